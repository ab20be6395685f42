"""A prediction record as text: each predictor's formula with its numbers filled in, term by term.

Owes the rest: lines (see `derivation`) from which every published number can be computed again,
and words for what the numbers rest on: models, samples, ages, drift, who was cold. Results are
those of the record; only what it does not carry is computed here. Unknown is said, and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pipeline.processors.derivation import (
    RESOURCES,
    Pod,
    Resource,
    added,
    filled_in,
    given,
    names_in,
    pods_of,
    step,
    unknown,
)
from pipeline.processors.explain_prod import margin_of, unused
from pipeline.times import parse_time
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.predictions import EntityPeaks, ModelTerms, PredictionRecord

_WHOLE: Final = ("node", "system")
_MOMENTS: Final = "mean + N * stdev"
_POD_SUM: Final = "pods + requests"

_FORMULAS: Final[Mapping[str, Sequence[str]]] = {
    "nsigma-v1": (_MOMENTS,),
    "nsigma-v2": ("v1", _POD_SUM),
    "pods-nsigma": (_MOMENTS, _POD_SUM),
    "hourly-nsigma": (_MOMENTS,),
    "borg-default": ("requests / a",),
    "resource-central": (_POD_SUM,),
    "vpa": ("quantile * margin",),
}
"""What a peak is before the strategy's margin, by names of terms; of several the highest counts.
A predictor that is not here has its terms listed."""

_SUMS: Final = frozenset(
    {
        ("requests", "borg-default"),
        *(
            (term, name)
            for term in ("pods", "requests")
            for name in ("nsigma-v2", "pods-nsigma", "resource-central")
        ),
    }
)
"""Terms that add up what pods have, and whose they are."""

_UNITS: Final = dict.fromkeys(("counted", "left_out", "fraction", "margin", "a"), "") | {
    "hour": "(UTC)", "window_seconds": "s"
}  # fmt: skip
"""Of terms that are no usage."""

_MEASURED: Final[Mapping[str, str]] = {
    "percentile": "a quantile of the decayed histogram",
    "resource-central": "a percentile of the slots of its history",
    "autopilot": "a load-weighted quantile of cpu, the highest memory of the window",
}
"""What a peak is that no arithmetic on terms gives."""


def explain(
    record: PredictionRecord,
    state: NodeStateRecord | None = None,
    *,
    now: float | None = None,
    resources: Sequence[str] = tuple(RESOURCES),
    entities: Sequence[str] = (),
    predictors: Sequence[str] = (),
) -> list[str]:
    """The lines for these resources, entities (`node`, `system`, a class) and predictors.

    None named is all of which something is known. `now` (UTC seconds) adds ages of the inputs;
    `state` what the node uses now.
    """
    lines = list(_head(record, state, now))
    for resource in map(RESOURCES.__getitem__, resources):
        for entity in entities or (*_WHOLE, *record.classes):
            lines.append("")
            lines.extend(_entity(record, state, resource, entity, predictors))
    return lines


def predictors_of(record: PredictionRecord) -> list[str]:
    """The predictors of a record, the deciding one first."""
    others = [name for name in record.node_peaks.peaks if name != record.predictor]
    return [record.predictor, *others]


def _head(
    record: PredictionRecord, state: NodeStateRecord | None, now: float | None
) -> Iterator[str]:
    yield f"node {record.node}{' (simulated)' if record.simulated else ''}"
    yield f"predicted as of {record.as_of}{_ago(record.as_of, now)}"
    yield f"log: generation {record.generation}, offset {record.offset}, epoch {record.epoch}"
    if state is not None:
        counters = state.counters
        yield (
            f"last window {state.as_of}{_ago(state.as_of, now)}, "
            f"{state.window_seconds!r} s, coverage {state.coverage!r}"
        )
        yield (
            f"windows: {counters.applied} applied, {counters.gaps} missing, "
            f"{counters.untrained} with too little coverage, {counters.lost} lost"
        )
    yield f"deciding predictor: {record.predictor}"
    percent = record.safety_margin_percent
    yield step("margin", f"(100 + {percent!r}) / 100", margin_of(record), "")
    yield given("N, standard deviations", record.nsigma_multiplier, "")
    cold = ", ".join(record.cold_pods) or "none"
    yield (
        f"cold, at most {record.cold_start_seconds!r} s old or with fewer than "
        f"{record.cold_start_samples} samples: {cold}"
    )


def _entity(
    record: PredictionRecord,
    state: NodeStateRecord | None,
    resource: Resource,
    name: str,
    predictors: Sequence[str],
) -> Iterator[str]:
    found = entity_of(record, name)
    yield f"{resource.name} of {name}"
    yield f"  model: {_model(found.model)}"
    changed = getattr(found.model.drift_at, resource.name)
    if changed is not None:
        yield f"  level changed at {changed}: most samples are from before, or of both levels"
    used = None if state is None else _usage_now(state, resource, name)
    if used is not None:
        yield f"  {given('used in the last window', used, resource.unit)}"
    for predictor in predictors or predictors_of(record):
        yield f"  {predictor}{' (decides)' if predictor == record.predictor else ''}"
        yield from _indented(_peak(record, found, resource, name, predictor))
        if name == "prod" and predictor in record.reclaimable:
            yield "    what Prod leaves unused"
            yield from _indented(unused(record, resource, predictor), 6)


def entity_of(record: PredictionRecord, name: str) -> EntityPeaks:
    """What a record says of `node`, `system` or a class; nothing of a class that it has not."""
    if name == "node":
        return record.node_peaks
    return record.system if name == "system" else record.classes.get(name, EntityPeaks())


class _Case(NamedTuple):
    """One predictor's peak of one entity. `names` are those of all terms, `terms` what is known of
    them. `pods` are those whose sums the terms hold; None where their peaks are not published."""

    predictor: str
    entity: str
    resource: Resource
    multiplier: float
    names: Sequence[str]
    terms: Mapping[str, float]
    pods: Sequence[Pod] | None

    @property
    def values(self) -> Mapping[str, float]:
        """What names in a formula stand for."""
        return {**self.terms, "N": self.multiplier}


def _peak(
    record: PredictionRecord, found: EntityPeaks, resource: Resource, name: str, predictor: str
) -> Iterator[str]:
    """From the terms to the peak before the margin, and with it."""
    raw = resource.of(found.raw.get(predictor))
    named = found.terms.get(predictor, {})
    terms = {
        term: value for term, usage in named.items() if (value := resource.of(usage)) is not None
    }
    pods = [
        pod
        for pod in pods_of(record.pods, resource, predictor)
        if name in ("node", pod.pod_class)
    ]  # fmt: skip
    case = _Case(predictor, name, resource, record.nsigma_multiplier, [*named], terms, pods)
    yield from _raw(case, raw)
    if raw is not None:
        peak = resource.of(found.peaks.get(predictor))
        yield step("peak, margin * raw", f"{margin_of(record)!r} * {raw!r}", peak, resource.unit)


def _raw(case: _Case, raw: float | None) -> Iterator[str]:
    """How a peak before the margin came about."""
    members = _members(case.names) if case.predictor == "max" else []
    for member in members:
        yield f"{member}:"
        yield from _indented(_raw(_member(case, member), case.terms.get(member)), 2)
    if not members:
        yield from _terms(case)
    formulas = [member for member in members if member in case.terms] or _formulas(case)
    unit = case.resource.unit
    if raw is None:
        yield unknown("raw", _why_unknown(case))
    elif not formulas:
        yield given(f"raw, {_MEASURED.get(case.predictor, 'as its predictor says')}", raw, unit)
    else:
        filled = [filled_in(formula, case.values) for formula in formulas]
        yield step(f"raw, {_highest(formulas)}", _highest(filled), raw, unit)


def _members(names: Sequence[str]) -> list[str]:
    """The members of a maximum: each has its peak under its name, which may have dots, and its
    terms under extensions of that."""
    return [
        name for name in names if not any(name.startswith(f"{other}.") for other in names)
    ]  # fmt: skip


def _member(case: _Case, member: str) -> _Case:
    """A member of a maximum, with its terms under its own names."""
    start = f"{member}."
    return case._replace(
        predictor=member,
        names=[name.removeprefix(start) for name in case.names if name.startswith(start)],
        terms={
            name.removeprefix(start): value
            for name, value in case.terms.items()
            if name.startswith(start)
        },
        pods=None,
    )


def _formulas(case: _Case) -> list[str]:
    """The formulas of which all numbers are known."""
    found = []
    for formula in _FORMULAS.get(case.predictor, ()):
        if "requests" in formula and _nothing_counted(case.terms):
            continue
        if formula == _POD_SUM and case.entity == "node":
            formula = f"{formula} + system"
        if all(name in case.values for name in names_in(formula)):
            found.append(formula)
    return found


def _terms(case: _Case) -> Iterator[str]:
    """The terms; a sum over pods with what it is made of."""
    for term, value in case.terms.items():
        unit = _UNITS.get(term, case.resource.unit)
        if term == "v1":
            yield step(f"v1, {_MOMENTS}", filled_in(_MOMENTS, case.values), value, unit)
        elif case.pods is not None and (term, case.predictor) in _SUMS:
            yield from added(term, _addends(case, term, case.pods), value, unit)
        else:
            yield given(term, value, unit)


def _addends(case: _Case, term: str, pods: Sequence[Pod]) -> Iterator[str]:
    """What each pod adds to a sum: its own peak, or its request where that is not trusted."""
    unit, scale = case.resource.unit, case.resource.scale
    for pod in pods:
        if pod.ended:
            continue
        asks = pod.active and pod.request is not None
        if case.predictor == "borg-default":
            by_request = asks
        else:
            by_request = asks and (pod.cold or pod.raw is None)
        if term == "pods" and pod.raw is not None and not by_request:
            yield given(f"peak of {pod.uid}", pod.raw, unit)
        elif term == "requests" and by_request and pod.request is not None:
            yield given(f"request of {pod.uid}", pod.request / scale, unit)


def _nothing_counted(terms: Mapping[str, float]) -> bool:
    """Whether there are pods, and nothing is known of any."""
    return terms.get("counted") == 0.0 and terms.get("left_out", 0.0) > 0.0


def _why_unknown(case: _Case) -> str:
    if _nothing_counted(case.terms):
        return f"neither peak nor request of its {case.terms['left_out']:.0f} pods is known"
    if case.predictor == "borg-default":
        return "it asks for nothing"
    if case.predictor == "hourly-nsigma":
        return "too short a history, or an hour that was never seen"
    if _POD_SUM in _FORMULAS.get(case.predictor, ()) and case.entity == "node":
        return "no samples of the system"
    return "no samples"


def _highest(expressions: Sequence[str]) -> str:
    return expressions[0] if len(expressions) == 1 else f"max({', '.join(expressions)})"


def _model(model: ModelTerms) -> str:
    if model.first_at is None:
        return "no samples"
    return f"{model.samples} samples, the first at {model.first_at}, the last at {model.last_at}"


def _usage_now(state: NodeStateRecord, resource: Resource, entity: str) -> float | None:
    usage = {"node": state.usage, "system": state.system_usage, **state.class_usage}
    return resource.of(usage.get(entity))


def _ago(time: str, now: float | None) -> str:
    return "" if now is None else f", {now - parse_time(time):.1f} s ago"


def _indented(lines: Iterable[str], spaces: int = 4) -> Iterator[str]:
    return (" " * spaces + line for line in lines)
