"""Alert records, and the open alerts of node states, from the columns of detection."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pipeline.processors.arrays import IntArray
from pipeline.processors.hot_nodes.debounce import CRITICAL, NONE
from pipeline.processors.hot_nodes.thresholds import Thresholds
from pipeline.processors.model.column_store import Columns
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.times import format_time
from pipeline.topics.alerts import (
    RULES,
    SEVERITIES,
    AlertRecord,
    CloseReason,
    Evidence,
    OpenAlert,
    Pressure,
    Severity,
    Transition,
    alert_id,
)
from pipeline.topics.hot_node_policy import HotNodePolicy

Position = Mapping[str, int]
"""`generation`, `offset` and `epoch` of a result."""

_DIGITS: Final = 2
_PRESSURE: Final = Pressure.__struct_fields__


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node, its row in the columns of detection, the end of its last window, and the position of
    the record of the log from which results about it come."""

    node: str
    columns: Columns
    row: int
    end_ms: int
    position: Position

    def change(
        self,
        rule: int,
        before: int,
        after: int,
        since_ms: int,
        *,
        reason: CloseReason | None = None,
        pool: str = "",
        evidence: Evidence,
    ) -> AlertRecord:
        """The record of a change of a rule's level; `reason` is why it was closed."""
        since = format_time(since_ms / 1000)
        return AlertRecord(
            node=self.node,
            as_of=format_time(self.end_ms / 1000),
            **self.position,
            id=alert_id(self.node, RULES[rule], since),
            rule=RULES[rule],
            transition=_transition(before, after),
            severity=_severity(after or before),
            since=since,
            duration_seconds=(self.end_ms - since_ms) / 1000,
            reason=reason,
            pool=pool,
            workload="",
            evidence=evidence,
            change=None,
            why="",
        )

    def closures(self, reason: CloseReason) -> list[AlertRecord]:
        """The ends of all alerts that are open."""
        levels = self.columns["alert_level"][self.row].tolist()
        opened = self.columns["alert_opened_ms"][self.row].tolist()
        return [
            self.change(
                rule, level, NONE, opened[rule], reason=reason,
                evidence=Evidence(series=self.series(rule)),
            )
            for rule, level in enumerate(levels)
            if level
        ]  # fmt: skip

    def series(self, rule: int) -> tuple[float | None, ...]:
        """The compared usage of the last windows in percent, from the first known one on."""
        values = [number(value) for value in self.columns["alert_series"][self.row, rule].tolist()]
        known = [i for i, value in enumerate(values) if value is not None]
        return tuple(values[known[0] :]) if known else ()

    def open_alerts(self, limits: Thresholds, i: int) -> tuple[OpenAlert, ...]:
        """The alerts that are open; `limits` are those of the i-th node."""
        levels = self.columns["alert_level"][self.row].tolist()
        opened = self.columns["alert_opened_ms"][self.row].tolist()
        usage = self.columns["alert_series"][self.row, :, -1].tolist()
        return tuple(
            OpenAlert(
                rule=RULES[rule],
                severity=_severity(level),
                since=format_time(opened[rule] / 1000),
                usage_percent=number(usage[rule]),
                threshold_percent=number(float(limits.marks[i, rule, 0])),
            )
            for rule, level in enumerate(levels)
            if level
        )


def evidence(
    row: NodeRow,
    rule: int,
    policy: HotNodePolicy,
    limits: Thresholds,
    i: int,
    pressure: Pressure | None,
) -> Evidence:
    """The evidence of a change of a rule; `limits` are those of the i-th node."""
    warning, critical = limits.marks[i, rule].tolist()
    series = row.series(rule)
    return Evidence(
        usage=policy.usage,
        span_seconds=policy.span_seconds,
        usage_percent=series[-1] if series else None,
        threshold_percent=number(warning),
        critical_percent=number(critical),
        pool_mean_percent=number(float(limits.means[i, rule])),
        series=series,
        pressure=pressure,
    )


def pressures(batch: WindowBatch, places: IntArray) -> list[Pressure | None]:
    """The pressure of the nodes of these windows; None where none is measured."""
    rows = batch.node_rows[places]
    columns = [batch.number(f"pressure_{name}")[rows].tolist() for name in _PRESSURE]
    return [
        Pressure(**{name: number(value, 4) for name, value in zip(_PRESSURE, values, strict=True)})
        if any(value == value for value in values)
        else None
        for values in zip(*columns, strict=True)
    ]


def _transition(before: int, after: int) -> Transition:
    if before == NONE:
        return "opened"
    if after == NONE:
        return "closed"
    return "escalated" if after == CRITICAL else "eased"


def _severity(level: int) -> Severity:
    return SEVERITIES[level - 1]


def number(value: float, digits: int = _DIGITS) -> float | None:
    """The value as records have it: rounded, None if it is unknown."""
    return round(value, digits) if math.isfinite(value) else None
