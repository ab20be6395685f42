"""A prediction record as text: each predictor's formula with its numbers filled in, term by term.

Every published number can be computed again from the lines (see `derivation`). Formulas and units
come from the predictors' declarations; a predictor that is not installed has its terms listed. The
lines also state models, samples, ages, changes of level, and cold pods. Results are those of the
record; only what the record does not carry is computed here. An unknown value has its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pipeline.processors.explain.derivation import (
    RESOURCES,
    Resource,
    fill_in,
    indented,
    input_line,
    names_in,
    pod_values,
    step_line,
    sum_lines,
    unknown_line,
)
from pipeline.processors.explain.prod_text import margin_of, reclaimable_lines
from pipeline.processors.explain.unknown_reasons import RecordedPeak, known_declaration, why_unknown
from pipeline.processors.model import cold_start
from pipeline.processors.predictors.declaration import Formula, Term
from pipeline.times import parse_time
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.predictions import EntityPeaks, ModelTerms, PredictionRecord

_WHOLE: Final = ("node", "system")


def explain(
    record: PredictionRecord,
    state: NodeStateRecord | None = None,
    *,
    now: float | None = None,
    resources: Sequence[str] = tuple(RESOURCES),
    entities: Sequence[str] = (),
    predictors: Sequence[str] = (),
) -> list[str]:
    """Return the lines for these resources, entities (`node`, `system`, a class) and predictors;
    for all that the record has if none are named, but only the names of classes without usage.

    `now` (UTC seconds) adds ages of the inputs, `state` the node's usage now.
    """
    lines = list(_head(record, state, now))
    shown = predictors or predictors_of(record)
    unused = [name for name in record.classes if not entities and _is_unused(record, name, shown)]
    chosen = entities or [name for name in (*_WHOLE, *record.classes) if name not in unused]
    for resource in map(RESOURCES.__getitem__, resources):
        for entity in chosen:
            lines.append("")
            lines.extend(_entity(record, state, resource, entity, predictors))
    if unused:
        lines += ["", f"no usage, so that each peak is 0 (see --class): {', '.join(unused)}"]
    return lines


def _is_unused(record: PredictionRecord, name: str, predictors: Sequence[str]) -> bool:
    """Whether each peak of a class is known to be 0. Prod is derived all the same: it has what its
    requests leave unused."""
    raw = record.classes[name].raw
    return name != "prod" and all(
        resource.value(raw.get(predictor)) == 0.0
        for resource in RESOURCES.values()
        for predictor in predictors
    )


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
    yield step_line("margin", f"(100 + {percent!r}) / 100", margin_of(record), "")
    yield input_line("N, standard deviations", record.nsigma_multiplier, "")
    yield f"cold, {cold_start.criteria(record)}: {', '.join(record.cold_pods) or 'none'}"


def _entity(
    record: PredictionRecord,
    state: NodeStateRecord | None,
    resource: Resource,
    name: str,
    predictors: Sequence[str],
) -> Iterator[str]:
    peaks = entity_of(record, name)
    yield f"{resource.name} of {name}"
    yield f"  model: {_model(peaks.model, resource)}"
    changed = getattr(peaks.model.drift_at, resource.name)
    if changed is not None:
        yield f"  level changed at {changed}: most samples are from before, or of both levels"
    usage = None if state is None else _usage_now(state, resource, name)
    if usage is not None:
        yield f"  {input_line('used in the last window', usage, resource.unit)}"
    for predictor in predictors or predictors_of(record):
        peak = _recorded_peak(record, state, resource, name, predictor)
        yield f"  {predictor}{' (decides)' if predictor == record.predictor else ''}"
        yield from indented(_peak(peak, record, peaks), 4)
        if name == "prod" and predictor in record.reclaimable:
            yield "    what Prod leaves unused"
            yield from indented(reclaimable_lines(record, resource, predictor), 6)


def entity_of(record: PredictionRecord, name: str) -> EntityPeaks:
    """The peaks of `node`, `system` or a class; empty for a class that the record does not have."""
    if name == "node":
        return record.node_peaks
    return record.system if name == "system" else record.classes.get(name, EntityPeaks())


def _peak(peak: RecordedPeak, record: PredictionRecord, peaks: EntityPeaks) -> Iterator[str]:
    """From the terms to the peak before the margin, and with it."""
    raw = peak.resource.value(peaks.raw.get(peak.predictor))
    yield from _raw(peak, raw)
    if raw is not None:
        with_margin = peak.resource.value(peaks.peaks.get(peak.predictor))
        expression = f"{margin_of(record)!r} * {raw!r}"
        yield step_line("peak, margin * raw", expression, with_margin, peak.resource.unit)


def _recorded_peak(
    record: PredictionRecord,
    state: NodeStateRecord | None,
    resource: Resource,
    name: str,
    predictor: str,
) -> RecordedPeak:
    known, peaks = name in (*_WHOLE, *record.classes), entity_of(record, name)
    terms = peaks.terms.get(predictor, {})
    counters = None if state is None else state.counters
    return RecordedPeak(
        predictor=predictor,
        declared=known_declaration(predictor),
        entity=name,
        resource=resource,
        multiplier=record.nsigma_multiplier,
        names=[*terms],
        terms={
            term: value
            for term, usage in terms.items()
            if (value := resource.value(usage)) is not None
        },
        pods=[
            pod
            for pod in pod_values(record.pods, resource, predictor)
            if name in (*_WHOLE, pod.pod_class)
        ],
        samples=resource.count(peaks.model.samples) if known else None,
        answered=predictor in peaks.raw,
        covered=counters is None or not 0 < counters.applied == counters.untrained,
    )  # fmt: skip


def _raw(peak: RecordedPeak, raw: float | None) -> Iterator[str]:
    """How a peak before the safety margin came about."""
    members = _members(peak.names) if peak.declared.combines else []
    for member in members:
        yield f"{member}:"
        yield from indented(_raw(peak.member(member), peak.terms.get(member)))
    if not members:
        yield from _terms(peak)
    unit = peak.resource.unit
    if raw is None:
        yield unknown_line("raw", why_unknown(peak))
    elif formulas := [Formula(name) for name in members if name in peak.terms] or _formulas(peak):
        expressions = [formula.expression for formula in formulas]
        label = formulas[0].label
        text = label(peak.terms) if label else _highest(expressions)
        filled = [fill_in(expression, peak.values) for expression in expressions]
        yield step_line(f"raw, {text}", _highest(filled), raw, unit)
    else:
        yield input_line(f"raw, {peak.declared.without_formula}", raw, unit)


def _members(names: Sequence[str]) -> list[str]:
    """The members of a maximum: each has its peak under its name, which may have dots, and its
    terms under names with that prefix."""
    return [
        name for name in names if not any(name.startswith(f"{other}.") for other in names)
    ]  # fmt: skip


def _formulas(peak: RecordedPeak) -> list[Formula]:
    """The formulas that make up the peak; all their numbers are known."""
    sums = {term.name for term in peak.declared.terms if term.adds} if peak.nothing_counted else {}
    known = [
        formula
        for formula in peak.declared.formulas
        if peak.entity in formula.entities
        if all(name in peak.values and name not in sums for name in names_in(formula.expression))
    ]
    return known if peak.declared.pick == "highest" else known[:1]


def _terms(peak: RecordedPeak) -> Iterator[str]:
    """The terms, those that follow from others after them; a sum over pods with its addends."""
    declared = {term.name: term for term in peak.declared.terms}
    derived = {
        term.name: term.formula
        for term in peak.declared.terms
        if term.formula
        if all(name in peak.values for name in (term.name, *names_in(term.formula)))
    }
    for name in (*(name for name in peak.terms if name not in derived), *derived):
        term, value = declared.get(name, Term(name)), peak.terms[name]
        unit = peak.resource.unit if term.unit is None else term.unit
        if name in derived:
            yield step_line(
                f"{name}, {term.formula}", fill_in(term.formula, peak.values), value, unit
            )
        elif term.adds and peak.has_pod_peaks:
            yield from sum_lines(name, _addends(peak, term), value, unit)
        else:
            yield input_line(name, value, unit)


def _addends(peak: RecordedPeak, term: Term) -> Iterator[str]:
    """What each pod adds to a sum: its own peak, or its request."""
    unit, scale = peak.resource.unit, peak.resource.scale
    for pod in peak.pods:
        if pod.ended:
            continue
        by_request = pod.active and (pod.counts_request or term.adds == "requests")
        if term.adds == "peaks":
            if pod.raw is not None and not by_request:
                yield input_line(f"peak of {pod.uid}", pod.raw, unit)
        elif by_request and pod.request is not None:
            yield input_line(f"request of {pod.uid}", pod.request / scale, unit)


def _highest(expressions: Sequence[str]) -> str:
    return expressions[0] if len(expressions) == 1 else f"max({', '.join(expressions)})"


def _model(model: ModelTerms, resource: Resource) -> str:
    """Samples of the resource; the times are those of samples of either resource."""
    own, other = (getattr(model.samples, name) for name in (resource.name, resource.other))
    if model.first_at is None:
        return "no samples"
    others = "" if own == other else f"with {other} of {resource.other} "
    times = f"the first at {model.first_at}, the last at {model.last_at}"
    return f"{own or 'no'} samples, {others}{times}"


def _usage_now(state: NodeStateRecord, resource: Resource, entity: str) -> float | None:
    usage = {"node": state.usage, "system": state.system_usage, **state.class_usage}
    return resource.value(usage.get(entity))


def _ago(time: str, now: float | None) -> str:
    return "" if now is None else f", {now - parse_time(time):.1f} s ago"
