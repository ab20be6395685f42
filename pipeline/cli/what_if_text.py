"""Results of `springtide what-if` as tables and as a document."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.protocol import over_machines
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.what_if import PolicyOutcome
from pipeline.processors.explain.quantity_text import UNKNOWN, format_bytes, format_cpu
from pipeline.processors.explain.text_columns import align_columns
from pipeline.processors.model.model_config import RESOURCES
from pipeline.topics.alerts import RULES
from pipeline.topics.what_if import Unit, WhatIfMeasure, WhatIfTrace

VERSION: Final = 1
_HOUR: Final = 3600
_SHARES: Final = np.linspace(0.0, 1.0, 21)
Result = tuple[Trace, Mapping[str, PolicyOutcome], Sequence[str]]
"""A trace, what the policies `old` and `new` would have done, and what was assumed."""


class _Measure(NamedTuple):
    """A line of the table: a value of each node, (k,), and that of the fleet. `label` is its name
    in text, `key` in JSON."""

    key: str
    label: str
    nodes: list[float]
    total: float
    unit: Unit

    def text(self, value: float) -> str:
        """A value in its unit."""
        return _TEXTS[self.unit](value)


def _measures(trace: Trace, outcome: PolicyOutcome) -> list[_Measure]:
    measures = []
    for tier in ("mid", "batch"):
        for r, resource in enumerate(RESOURCES):
            amounts = getattr(outcome, tier)[:, r]
            unit = _UNITS[resource]
            name, label = f"{tier}_{resource}_{unit}", f"{tier} {resource}"
            measures.append(_Measure(name, label, amounts.tolist(), _sum(amounts), unit))
    for name in ("violation", "savings"):
        for resource, scores in outcome.scores.items():
            fleet = over_machines(scores, trace.copies)
            measures.append(
                _Measure(
                    f"{resource}_{name}", f"{resource} {name}", getattr(scores, name).tolist(),
                    getattr(fleet, name), "share",
                )
            )  # fmt: skip
    for r, rule in enumerate(RULES):
        alerts, hours = outcome.alerts[:, r], outcome.hot_seconds[:, r] / _HOUR
        measures += [
            _Measure(
                f"{rule}_alerts", f"alerts {rule}", alerts.tolist(), float(alerts.sum()), "count"
            ),
            _Measure(
                f"{rule}_hot_hours", f"hours hot {rule}", hours.tolist(), float(hours.sum()),
                "hours",
            ),
        ]  # fmt: skip
    evictions = outcome.evictions.tolist()
    measures.append(_Measure("evictions", "evictions", evictions, float(sum(evictions)), "count"))
    return measures


def text_lines(results: Sequence[Result], *, by_node: bool) -> Iterator[str]:
    """A table per trace with all nodes together; `by_node` one with the nodes that differ."""
    for number, (trace, outcomes, notes) in enumerate(results):
        if number:
            yield ""
        days = trace.steps * trace.step_seconds / 86_400
        yield f"{trace.dataset}/{trace.scenario}, {days:.1f} days, {len(trace.nodes)} nodes"
        old, new = (_measures(trace, outcomes[name]) for name in ("old", "new"))
        by_label = {each.label: each for each in old}
        rows = [("ALL NODES", "OLD", "NEW", "CHANGE")]
        for after in new:
            before = by_label.get(after.label)
            if before is not None and not (_is_nothing(before.total) and _is_nothing(after.total)):
                rows.append(row(after.label, before.total, after.total, after.text))
        for line in align_columns(rows, right=(1, 2, 3)):
            yield f"  {line}"
        if len(rows) == 1:
            yield "  every amount is 0 or unknown"
        if by_node:
            yield from _node_lines(trace.nodes, old, new)
        yield from (f"  {note}" for note in notes)


def _node_lines(
    nodes: Sequence[str], old: Sequence[_Measure], new: Sequence[_Measure]
) -> Iterator[str]:
    """What differs, node by node."""
    by_label = {each.label: each for each in old}
    rows = [("NODE", "WHAT", "OLD", "NEW", "CHANGE")]
    for i, node in enumerate(nodes):
        for after in new:
            before = by_label.get(after.label)
            if before is not None and not _is_same(before.nodes[i], after.nodes[i]):
                rows.append((node, *row(after.label, before.nodes[i], after.nodes[i], after.text)))
    if len(rows) == 1:
        yield "  no node differs"
        return
    yield ""
    for line in align_columns(rows, right=(2, 3, 4)):
        yield f"  {line}"


def row(
    label: str, before: float, after: float, text: Callable[[float], str]
) -> tuple[str, str, str, str]:
    """The cells of a measure: its label, both amounts, and the change."""
    change = after - before
    shown = text(abs(change))
    if shown == text(0.0):
        shown = "0"
    elif not math.isnan(change):
        shown = f"{'-' if change < 0 else '+'}{shown}"
    return label, text(before), text(after), shown


def _is_nothing(value: float) -> bool:
    return math.isnan(value) or value == 0


def _is_same(before: float, after: float) -> bool:
    return before == after or (math.isnan(before) and math.isnan(after))


def document(results: Sequence[Result]) -> dict[str, Any]:
    """The results as JSON values; null is unknown. Shares are 0 to 1."""
    return {
        "version": VERSION,
        "items": [_item(trace, outcomes, notes) for trace, outcomes, notes in results],
    }


def published(results: Sequence[Result]) -> tuple[WhatIfTrace, ...]:
    """The results for the console: totals, and how each measure is spread over the nodes."""
    return tuple(
        WhatIfTrace(
            dataset=trace.dataset,
            scenario=trace.scenario,
            nodes=len(trace.nodes),
            days=round(trace.steps * trace.step_seconds / 86_400, 3),
            notes=tuple(notes),
            measures=tuple(_both(trace, outcomes)),
        )
        for trace, outcomes, notes in results
    )


def _both(trace: Trace, outcomes: Mapping[str, PolicyOutcome]) -> Iterator[WhatIfMeasure]:
    """Each measure under both policies."""
    by_key = {each.key: each for each in _measures(trace, outcomes["old"])}
    for new in _measures(trace, outcomes["new"]):
        if (old := by_key.get(new.key)) is not None:
            yield WhatIfMeasure(
                key=new.key, label=new.label, unit=new.unit, old=_number(old.total),
                new=_number(new.total), old_by_node=_spread(old), new_by_node=_spread(new),
            )  # fmt: skip


def _spread(measure: _Measure) -> tuple[float, ...]:
    """The values that each `_SHARES` of the nodes stay below; none if no value is known."""
    values = np.array(measure.nodes)
    known = values[np.isfinite(values)]
    return tuple(np.quantile(known, _SHARES).round(6).tolist()) if len(known) else ()


def _item(
    trace: Trace, outcomes: Mapping[str, PolicyOutcome], notes: Sequence[str]
) -> dict[str, Any]:
    measures = {name: _measures(trace, outcome) for name, outcome in outcomes.items()}
    return {
        "dataset": trace.dataset,
        "scenario": trace.scenario,
        "notes": [*notes],
        "total": {
            name: {each.key: _number(each.total) for each in own} for name, own in measures.items()
        },
        "nodes": [
            {
                "node": node,
                **{
                    name: {each.key: _number(each.nodes[i]) for each in own}
                    for name, own in measures.items()
                },
            }
            for i, node in enumerate(trace.nodes)
        ],
    }


def _sum(amounts: FloatArray) -> float:
    """The sum of known amounts; NaN if none is known."""
    return float(np.nansum(amounts)) if not np.isnan(amounts).all() else math.nan


def _percent(share: float) -> str:
    return UNKNOWN if math.isnan(share) else f"{100 * share:.1f}%"


def _count(number: float) -> str:
    return f"{number:.0f}"


def _hours(hours: float) -> str:
    return f"{hours:.1f}"


_UNITS: Final[Mapping[str, Unit]] = {"cpu": "millicores", "memory": "bytes"}
_TEXTS: Final[Mapping[Unit, Callable[[float], str]]] = {
    "millicores": lambda millicores: format_cpu(millicores / 1000),
    "bytes": format_bytes,
    "share": _percent,
    "count": _count,
    "hours": _hours,
}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)
