"""Detect hot nodes: from applied windows to changes of alerts.

`detect` is called once after each applied window, like `bank.due`; its results are then a function
of the node's windows alone, not of other nodes or of how windows were batched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.hot_nodes.alert_records import (
    NodeRow,
    Position,
    evidence,
    number,
    pressures,
)
from pipeline.processors.hot_nodes.compared_usage import (
    compared_usage,
    most_usage,
    record_usage,
    window_usage,
)
from pipeline.processors.hot_nodes.debounce import NONE, step
from pipeline.processors.hot_nodes.thresholds import WHOLE_PERCENT, thresholds
from pipeline.processors.model import alert_columns, bank
from pipeline.processors.model.bank import NodeInBank, Outcome
from pipeline.processors.model.column_store import Columns
from pipeline.processors.model.node_peaks import PeakBatch
from pipeline.processors.model.resource_pairs import TO_KUBERNETES
from pipeline.processors.model.window_batch import WindowBatch, amounts
from pipeline.topics.alerts import RULES, AlertRecord, CloseReason, OpenAlert
from pipeline.topics.hot_node_policy import HotNodePolicy

_NONE: Final[Mapping[str, float]] = {}
_IS_OF_PROD: Final = np.array([rule.startswith("prod_") for rule in RULES])


@dataclass(frozen=True, slots=True)
class Applied:
    """k applied windows of distinct nodes: their places in `batch`, what applying them did, and the
    peaks of the nodes afterwards. `position_of` gives the position in the log of the i-th."""

    nodes: Sequence[NodeInBank]
    batch: WindowBatch
    places: IntArray
    outcomes: Sequence[Outcome]
    peaks: PeakBatch
    position_of: Callable[[int], Position]

    def row(self, i: int, columns: Columns, row: int) -> NodeRow:
        """The i-th node, whose row in the columns of detection is `row`."""
        end_ms = self.batch.windows[int(self.places[i])].header.window_end_ms
        return NodeRow(self.nodes[i][1], columns, row, end_ms, self.position_of(i))


@dataclass(frozen=True, slots=True)
class Detection:
    """Results for k nodes: their open alerts, the compared usage in percent by rule of those whose
    thresholds are distances from a mean, and the changes of alerts, each with the number of its
    node."""

    open_alerts: list[tuple[OpenAlert, ...]]
    compared_percent: list[Mapping[str, float]]
    changes: list[tuple[int, AlertRecord]] = field(default_factory=list)


def detect(applied: Applied) -> Detection:
    """Update the alerts of nodes with windows that were applied, and return what changed.

    An alert of a node without a policy is closed. A node whose name another machine took over
    closes its alerts and starts without any.
    """
    detection = Detection([()] * len(applied.nodes), [_NONE] * len(applied.nodes))
    columns, rows = bank.alert_rows(applied.nodes)
    policies = [applied.batch.windows[place].node.hot_nodes for place in applied.places.tolist()]
    for i in np.flatnonzero(alert_columns.is_used(columns, rows)).tolist():
        reason: CloseReason = "new machine" if applied.outcomes[i].restarted else "policy"
        if reason == "new machine" or policies[i] is None:
            row = applied.row(i, columns, int(rows[i]))
            detection.changes.extend((i, closure) for closure in row.closures(reason))
            columns.clear(rows[i : i + 1])
    watched = [(i, policy) for i, policy in enumerate(policies) if policy is not None]
    if watched:
        positions = np.array([i for i, _ in watched])
        _detect(applied, columns, rows, positions, [policy for _, policy in watched], detection)
    return detection


def _detect(
    applied: Applied,
    columns: Columns,
    all_rows: IntArray,
    positions: IntArray,
    policies: Sequence[HotNodePolicy],
    detection: Detection,
) -> None:
    """Apply the windows of nodes with a policy."""
    batch, rows, places = applied.batch, all_rows[positions], applied.places[positions]
    windows = [batch.windows[place] for place in places.tolist()]
    start_ms = np.array([window.header.window_start_ms for window in windows], np.int64)
    end_ms = np.array([window.header.window_end_ms for window in windows], np.int64)
    uncovered = [not applied.outcomes[i].trained for i in positions.tolist()]
    most = most_usage(batch, places)
    usage = window_usage(batch, places, most)
    usage[uncovered] = np.nan
    record_usage(columns, rows, end_ms, usage)

    def point_percentile(own: IntArray, span_seconds: int, percent: int) -> FloatArray:
        nodes = [applied.nodes[i] for i in positions[own].tolist()]
        return bank.usage_percentile(nodes, span_seconds, percent)

    reserved = amounts([window.node.reserved for window in windows])
    compared = compared_usage(
        columns, rows, policies, end_ms - start_ms, applied.peaks, positions, point_percentile,
        most, reserved / TO_KUBERNETES,
    )  # fmt: skip
    compared[uncovered] = np.nan
    allocatable = amounts([window.node.allocatable for window in windows])
    percent = _percent(compared, allocatable - np.nan_to_num(reserved))
    series = columns["alert_series"]
    series[rows] = np.concatenate([series[rows, :, 1:], percent[..., None]], axis=-1)
    limits = thresholds(policies)
    reported = limits.watched & (limits.deviates[:, None] | _IS_OF_PROD)
    for i in np.flatnonzero(reported.any(axis=1)).tolist():
        detection.compared_percent[int(positions[i])] = _by_rule(percent[i], reported[i])
    opened_ms = columns["alert_opened_ms"][rows]
    before, after, watched = step(columns, rows, percent, limits, start_ms, end_ms)
    since_ms = np.where(before == NONE, end_ms[:, None], opened_ms)
    changed = np.argwhere(before != after).tolist()
    pressure = pressures(batch, places) if changed else []
    for i, rule in changed:
        row = applied.row(int(positions[i]), columns, int(rows[i]))
        is_closed = after[i, rule] == NONE
        reason: CloseReason = "cooled" if watched[i, rule] else "policy"
        record = row.change(
            rule, int(before[i, rule]), int(after[i, rule]), int(since_ms[i, rule]),
            reason=reason if is_closed else None, pool=policies[i].pool,
            evidence=evidence(row, rule, policies[i], limits, i, pressure[i]),
        )  # fmt: skip
        detection.changes.append((int(positions[i]), record))
    for i in np.flatnonzero(after.any(axis=1)).tolist():
        position = int(positions[i])
        row = applied.row(position, columns, int(rows[i]))
        detection.open_alerts[position] = row.open_alerts(limits, i)


def _by_rule(percent: FloatArray, is_reported: BoolArray) -> dict[str, float]:
    """The known usage by rule, of the rules that are reported."""
    values = zip(RULES, percent.tolist(), is_reported.tolist(), strict=True)
    numbers = {rule: number(value) for rule, value, reported in values if reported}
    return {rule: value for rule, value in numbers.items() if value is not None}


def _percent(usage: FloatArray, capacity: FloatArray) -> FloatArray:
    """Usage (n, rules), cores or bytes, in percent of capacity (n, 2), millicores and bytes; NaN
    where that is 0 or unknown. Whole millicores give exact percents."""
    base = np.where(capacity > 0.0, capacity, np.nan)
    used = usage.reshape(len(usage), -1, 2) * TO_KUBERNETES
    percent: FloatArray = WHOLE_PERCENT * used / base[:, None]
    return percent.reshape(usage.shape)


def end_alerts(node: NodeInBank, position: Position) -> list[AlertRecord]:
    """Close the alerts of a node that was deleted, as of its last window."""
    models, name = node
    end_ms = models.end_ms(name)
    if end_ms is None:
        return []
    columns, rows = bank.alert_rows([node])
    closures = NodeRow(name, columns, int(rows[0]), end_ms, position).closures("node deleted")
    columns.clear(rows)
    return closures
