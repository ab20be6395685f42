"""The usage that is compared with thresholds: of nodes, and of their Prod pods.

The average over a span is the mean of the windows' averages in it. A percentile of a node is that
of its points, second by second; of Prod pods, and of nodes without points (imported usage, memory
with page cache), it is that of the windows' averages. The peak is that of the deciding predictor.

Usage of a span is unknown unless the known windows reach over at least half of it, or of `WINDOWS`
windows where these are shorter. Usage of Prod is unknown in a window in which the usage of a Prod
pod is. Pods of no or unknown class count as Prod. Usage that exceeds what the machine has is wrong,
and unknown: else one such window would keep the average of its span above any threshold.

What the Node's annotation reserves for processes outside of Kubernetes (the system and host
applications) is no room for pods, and what these use of it takes none: it is no part of the
compared usage of the node. Where their usage is unknown, all usage of the node counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES, COUNTED_AS_PROD
from pipeline.processors.model.alert_columns import USAGES, WINDOWS
from pipeline.processors.model.column_store import Columns
from pipeline.processors.model.entity_models import NEVER
from pipeline.processors.model.model_config import FIRST_CLASS, NODE
from pipeline.processors.model.node_peaks import PeakBatch, PeakColumns
from pipeline.processors.model.rank_percentiles import parse_percentile, row_percentiles
from pipeline.processors.model.resource_pairs import TO_KUBERNETES
from pipeline.processors.model.usage_anomalies import MOST_SHARE
from pipeline.processors.model.window_batch import WindowBatch, amounts
from pipeline.topics.alerts import RULES
from pipeline.topics.hot_node_policy import HotNodePolicy

PointPercentile = Callable[[IntArray, int, int], FloatArray]
"""A percentile of the points of nodes: their positions, the span in seconds, the percent; gives
(k, 2)."""

_CAPACITY: Final = ("capacity_cpu_cores", "capacity_memory_bytes")
_PROD: Final = CLASS_CODES["prod"]
_COUNTED_AS_PROD: Final = [CLASS_CODES[name] for name in COUNTED_AS_PROD]


def window_usage(batch: WindowBatch, places: IntArray, most: FloatArray) -> FloatArray:
    """Average usage of the windows at these places of `batch`, (n, `USAGES`) cores or bytes, of
    machines that can use so much, (n, 2)."""
    average = batch.average
    classes, counts = average.classes[places], average.class_pods[places]
    has_pods = counts[:, _COUNTED_AS_PROD, None] > 0
    prod = np.where(has_pods, classes[:, _COUNTED_AS_PROD], 0.0).sum(axis=1)
    if np.isnan(average.pods).any():
        prod[_unmeasured_prod(batch)[places]] = np.nan
    outside = average.system[places] + average.host_apps[places]
    usage = np.concatenate([average.node[places], prod, outside], axis=1)
    usage[usage > np.tile(most, len(USAGES) // 2)] = np.nan
    return usage


def most_usage(batch: WindowBatch, places: IntArray) -> FloatArray:
    """The most that the machines of these windows can use, (n, 2) cores and bytes: a little more
    than the sample or the Node says that they have, NaN where neither does."""
    rows = batch.node_rows[places]
    measured = np.stack([batch.number(name)[rows] for name in _CAPACITY], axis=1)
    stated = amounts([batch.windows[place].node.capacity for place in places.tolist()])
    most: FloatArray = MOST_SHARE * np.fmax(measured, stated / TO_KUBERNETES)
    return most


def _unmeasured_prod(batch: WindowBatch) -> BoolArray:
    """Whether the usage of a Prod pod is unknown, by window and resource, (n, 2)."""
    classes = np.concatenate([facts.pods.classes for facts in batch.facts])
    unknown = np.isnan(batch.average.pods) & np.isin(classes, _COUNTED_AS_PROD)[:, None]
    counts = [np.bincount(batch.window_index[column], minlength=len(batch)) for column in unknown.T]
    return np.stack(counts, axis=1) > 0


def record_usage(columns: Columns, rows: IntArray, end_ms: IntArray, usage: FloatArray) -> None:
    """Append the usage (n, `USAGES`) of windows with these ends to the last ones of each row."""
    for name, newest in (("alert_window_ms", end_ms), ("alert_usage", usage)):
        column = columns[name]
        kept = column[rows, ..., 1:]
        column[rows] = np.concatenate([kept, newest[..., None]], axis=-1)


def compared_usage(
    columns: Columns,
    rows: IntArray,
    policies: Sequence[HotNodePolicy],
    window_ms: IntArray,
    peaks: PeakBatch,
    positions: IntArray,
    point_percentile: PointPercentile,
    most: FloatArray,
    reserved: FloatArray,
) -> FloatArray:
    """The usage by rule that each policy names, after `record_usage`, (n, rules) cores or bytes.

    `window_ms` (n,) are the lengths of the last windows, and `positions` (n,) those of the nodes in
    `peaks`. The machines can use `most` (n, 2), of which `reserved` (n, 2) is kept for processes
    outside of Kubernetes; NaN is unknown, and nothing.
    """
    spans = np.array([policy.span_seconds for policy in policies], np.int64)
    recent = _RecentWindows(columns, rows, spans * 1000, window_ms)
    kinds = [policy.usage for policy in policies]
    averages = recent.averages()
    usage, outside = averages[:, : len(RULES)], averages[:, len(RULES) :]
    for kind, span in sorted({*zip(kinds, spans.tolist(), strict=True)}):
        if kind == "average":
            continue
        own = np.flatnonzero((spans == span) & np.array([other == kind for other in kinds]))
        if kind == "peak":
            usage[own] = peaks.decided(_peaks)[positions[own]]
        elif percent := parse_percentile(kind):
            usage[own] = recent.percentiles(own, percent)
            points = point_percentile(own, span, percent)
            points[points > most[own]] = np.nan
            usage[own, :2] = np.where(np.isnan(points), usage[own, :2], points)
    inside_reservation = np.nan_to_num(np.minimum(outside, reserved))
    usage[:, :2] = np.maximum(usage[:, :2] - inside_reservation, 0.0)
    return usage


def _peaks(columns: PeakColumns) -> FloatArray:
    entities = columns.peaks[:, [NODE, FIRST_CLASS + _PROD]]
    return entities.reshape(len(entities), len(RULES))


class _RecentWindows:
    """The averages of the last windows of n nodes, those outside of each node's span unknown."""

    def __init__(
        self, columns: Columns, rows: IntArray, span_ms: IntArray, window_ms: IntArray
    ) -> None:
        ends = columns["alert_window_ms"][rows]
        usage = columns["alert_usage"][rows]
        first_ms = ends[:, -1:] - span_ms[:, None]
        inside = (ends > first_ms) & (ends != NEVER)
        self._known: BoolArray = inside[:, None] & ~np.isnan(usage)
        self._usage: FloatArray = usage
        known_ends = np.where(self._known, ends[:, None], ends[:, None, -1:])
        newest = np.where(self._known, ends[:, None], NEVER).max(axis=-1)
        length = newest - known_ends.min(axis=-1) + window_ms[:, None]
        kept_ms = np.minimum(span_ms, WINDOWS * window_ms)
        self._reaches = self._known.any(axis=-1) & (2 * length >= kept_ms[:, None])

    def averages(self) -> FloatArray:
        """(n, `USAGES`)."""
        sums = np.where(self._known, self._usage, 0.0).sum(axis=-1)
        counts = np.maximum(self._known.sum(axis=-1), 1)
        return np.where(self._reaches, sums / counts, np.nan)

    def percentiles(self, own: IntArray, percent: int) -> FloatArray:
        """A percentile of these nodes, (k, rules)."""
        rules = own[:, None], np.arange(len(RULES))
        values = np.where(self._known[rules], self._usage[rules], np.nan)
        answers = row_percentiles(values.reshape(-1, values.shape[-1]), [percent])
        return np.where(self._reaches[rules], answers.reshape(len(own), len(RULES)), np.nan)
