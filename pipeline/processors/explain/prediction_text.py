"""A prediction record as text: each predictor's formula with its numbers filled in, term by term.

Owes the rest: lines (see `derivation`) from which every published number can be computed again,
and words for what the numbers rest on: models, samples, ages, drift, who was cold. Results are
those of the record; only what it does not carry is computed here. Unknown is said, and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from pipeline.processors.explain.derivation import (
    RESOURCES,
    Resource,
    added,
    filled_in,
    given,
    names_in,
    pods_of,
    step,
    unknown,
)
from pipeline.processors.explain.prod_text import margin_of, unused
from pipeline.processors.explain.unknown_reasons import POD_SUMS, Case, why_unknown
from pipeline.times import parse_time
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.predictions import EntityPeaks, ModelTerms, PredictionRecord

_WHOLE: Final = ("node", "system")
_MOMENTS: Final = "mean + N * stdev"
_POD_SUM: Final = "pods + requests"
_EDGE: Final = "first * (ratio ** {} - 1) / (ratio - 1)"

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
        *((term, name) for term in ("pods", "requests") for name in POD_SUMS),
    }
)
"""Terms that add up what pods have, and whose they are."""

_DERIVED: Final[Mapping[tuple[str, str], str]] = {
    ("v1", "nsigma-v2"): _MOMENTS,
    ("start", "percentile"): _EDGE.format("bucket"),
    ("end", "percentile"): _EDGE.format("(bucket + 1)"),
}
"""Terms that follow from those before them, and whose they are."""

_PLAIN: Final = ("counted", "left_out", "fraction", "margin", "a", "bucket", "ratio")
_UNITS: Final = {**dict.fromkeys(_PLAIN, ""), "hour": "(UTC)", "window_seconds": "s"}
"""Of terms that are no usage."""

_MEASURED: Final[Mapping[str, str]] = {
    "percentile": "all samples were 0",
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
    yield f"  model: {_model(found.model, resource)}"
    changed = getattr(found.model.drift_at, resource.name)
    if changed is not None:
        yield f"  level changed at {changed}: most samples are from before, or of both levels"
    used = None if state is None else _usage_now(state, resource, name)
    if used is not None:
        yield f"  {given('used in the last window', used, resource.unit)}"
    for predictor in predictors or predictors_of(record):
        case = _case(record, state, resource, name, predictor)
        yield f"  {predictor}{' (decides)' if predictor == record.predictor else ''}"
        yield from _indented(_peak(case, record, found))
        if name == "prod" and predictor in record.reclaimable:
            yield "    what Prod leaves unused"
            yield from _indented(unused(record, resource, predictor), 6)


def entity_of(record: PredictionRecord, name: str) -> EntityPeaks:
    """What a record says of `node`, `system` or a class; nothing of a class that it has not."""
    if name == "node":
        return record.node_peaks
    return record.system if name == "system" else record.classes.get(name, EntityPeaks())


def _peak(case: Case, record: PredictionRecord, found: EntityPeaks) -> Iterator[str]:
    """From the terms to the peak before the margin, and with it."""
    raw = case.resource.of(found.raw.get(case.predictor))
    yield from _raw(case, raw)
    if raw is not None:
        peak = case.resource.of(found.peaks.get(case.predictor))
        expression = f"{margin_of(record)!r} * {raw!r}"
        yield step("peak, margin * raw", expression, peak, case.resource.unit)


def _case(
    record: PredictionRecord,
    state: NodeStateRecord | None,
    resource: Resource,
    name: str,
    predictor: str,
) -> Case:
    known, found = name in (*_WHOLE, *record.classes), entity_of(record, name)
    named = found.terms.get(predictor, {})
    counters = None if state is None else state.counters
    return Case(
        predictor=predictor,
        entity=name,
        resource=resource,
        multiplier=record.nsigma_multiplier,
        names=[*named],
        terms={
            term: value
            for term, usage in named.items()
            if (value := resource.of(usage)) is not None
        },
        pods=[
            pod
            for pod in pods_of(record.pods, resource, predictor)
            if name in (*_WHOLE, pod.pod_class)
        ],
        samples=resource.count(found.model.samples) if known else None,
        answered=predictor in found.raw,
        covered=counters is None or not 0 < counters.applied == counters.untrained,
    )  # fmt: skip


def _raw(case: Case, raw: float | None) -> Iterator[str]:
    """How a peak before the margin came about."""
    members = _members(case.names) if case.predictor == "max" else []
    for member in members:
        yield f"{member}:"
        yield from _indented(_raw(case.member(member), case.terms.get(member)), 2)
    if not members:
        yield from _terms(case)
    formulas = [member for member in members if member in case.terms] or _formulas(case)
    unit = case.resource.unit
    if raw is None:
        yield unknown("raw", why_unknown(case))
    elif not formulas:
        yield given(f"raw, {_MEASURED.get(case.predictor, 'as its predictor says')}", raw, unit)
    else:
        filled = [filled_in(formula, case.values) for formula in formulas]
        yield step(f"raw, {_said(case) or _highest(formulas)}", _highest(filled), raw, unit)


def _said(case: Case) -> str | None:
    """What a formula alone would not say."""
    if case.predictor != "percentile":
        return None
    bucket, percent = case.terms["bucket"], 100.0 * case.terms["fraction"]
    edge = "end" if "end" in case.terms else "start"
    return f"p{percent:.6g} of the histogram: {edge} of bucket {bucket:.0f}"


def _members(names: Sequence[str]) -> list[str]:
    """The members of a maximum: each has its peak under its name, which may have dots, and its
    terms under extensions of that."""
    return [
        name for name in names if not any(name.startswith(f"{other}.") for other in names)
    ]  # fmt: skip


def _formulas(case: Case) -> list[str]:
    """The formulas of which all numbers are known."""
    if case.predictor == "percentile":
        # The last bucket has no end.
        return [edge for edge in ("end", "start") if edge in case.terms][:1]
    found = []
    for formula in _FORMULAS.get(case.predictor, ()):
        if "requests" in formula and case.nothing_counted:
            continue
        if formula == _POD_SUM and case.entity == "node":
            formula = f"{formula} + system"
        if all(name in case.values for name in names_in(formula)):
            found.append(formula)
    return found


def _terms(case: Case) -> Iterator[str]:
    """The terms, those that follow from others behind them; a sum over pods with what it is made
    of."""
    derived = {
        term: formula
        for (term, predictor), formula in _DERIVED.items()
        if predictor == case.predictor
        if all(name in case.values for name in (term, *names_in(formula)))
    }
    for term in (*(term for term in case.terms if term not in derived), *derived):
        unit, value = _UNITS.get(term, case.resource.unit), case.terms[term]
        if formula := derived.get(term):
            yield step(f"{term}, {formula}", filled_in(formula, case.values), value, unit)
        elif case.pods_told and (term, case.predictor) in _SUMS:
            yield from added(term, _addends(case, term), value, unit)
        else:
            yield given(term, value, unit)


def _addends(case: Case, term: str) -> Iterator[str]:
    """What each pod adds to a sum: its own peak, or its request where that is not trusted."""
    unit, scale = case.resource.unit, case.resource.scale
    for pod in case.pods:
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


def _highest(expressions: Sequence[str]) -> str:
    return expressions[0] if len(expressions) == 1 else f"max({', '.join(expressions)})"


def _model(model: ModelTerms, resource: Resource) -> str:
    """The times are those of samples of either resource."""
    own, other = (getattr(model.samples, name) for name in (resource.name, resource.other))
    if model.first_at is None:
        return "no samples"
    of = "" if own == other else f"with {other} of {resource.other} "
    return f"{own or 'no'} samples, {of}the first at {model.first_at}, the last at {model.last_at}"


def _usage_now(state: NodeStateRecord, resource: Resource, entity: str) -> float | None:
    usage = {"node": state.usage, "system": state.system_usage, **state.class_usage}
    return resource.of(usage.get(entity))


def _ago(time: str, now: float | None) -> str:
    return "" if now is None else f", {now - parse_time(time):.1f} s ago"


def _indented(lines: Iterable[str], spaces: int = 4) -> Iterator[str]:
    return (" " * spaces + line for line in lines)
