"""Mean and deviation of the average usage of nodes over the windows of an archive, by rule.

A window counts with its length. Means and sums of squared deviations of two parts are combined
without loss of digits (Chan, Golub, LeVeque: Updating Formulae and a Pairwise Algorithm for
Computing Sample Variances, 1979).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import COUNTED_AS_PROD
from pipeline.processors.model.model_config import MAX_USAGE
from pipeline.processors.model.resource_pairs import per_resource
from pipeline.processors.model.training_batch import valid

USAGE_COLUMNS: Final = (
    "type", "log_partition", "log_offset", "node", "window_start", "window_end", "kind",
    "coverage", "cpu_cores_avg", "memory_bytes_avg", "pod_class",
)  # fmt: skip
"""The columns of an archive that a history needs."""
_NEEDED: Final = ("log_partition", "log_offset", "node", "window_start", "window_end", "kind")
LEAST_COVERAGE: Final = 0.5
"""A window that was measured for less of its time says little."""


class UsageHistory:
    """Average usage of nodes and of their pods of Prod, in cores and bytes, window by window.

    Rules are those of thresholds: CPU and memory of the node, then of Prod. A window whose usage is
    unknown does not count; a node without pods of Prod uses nothing of it.
    """

    def __init__(self) -> None:
        self._weight: dict[str, FloatArray] = {}
        self._mean: dict[str, FloatArray] = {}
        self._squares: dict[str, FloatArray] = {}
        self._count: dict[str, FloatArray] = {}
        self._span_ms: dict[str, tuple[int, int]] = {}

    def add(self, rows: pa.Table) -> None:
        """Count the windows of these rows, in `USAGE_COLUMNS`, whose rows follow each other. The
        first of several windows of a node that end at the same time counts.

        Raises `InvalidRecordError` for a row without node, time or place in the log."""
        rows = rows.filter(pc.equal(rows["type"], "window"))
        if not len(rows):
            return
        for name in _NEEDED:
            if rows[name].null_count:
                raise InvalidRecordError(f"a row of a window has no {name}")
        window = _window_numbers(rows)
        is_node = _equal(rows["kind"], "node")
        columns = [_numbers(rows[f"{name}_avg"]) for name in ("cpu_cores", "memory_bytes")]
        usage = valid(np.stack(columns, axis=1), MAX_USAGE)
        prod = _prod_usage(rows, window, usage)
        node_rows = np.flatnonzero(is_node)
        values = np.concatenate([usage[node_rows], prod[window[node_rows]]], axis=1)
        values[_numbers(rows["coverage"])[node_rows] < LEAST_COVERAGE] = np.nan
        start_ms, end_ms = (
            rows[name].cast(pa.int64()).to_numpy()[node_rows]
            for name in ("window_start", "window_end")
        )
        names = np.array(rows["node"].take(pa.array(node_rows)).to_pylist(), object)
        nodes, owner = np.unique(names, return_inverse=True)
        _, first = np.unique(np.stack([owner, end_ms]), axis=1, return_index=True)
        for number, node in enumerate(nodes.tolist()):
            own = first[owner[first] == number]
            self._add_node(node, start_ms[own], end_ms[own], values[own])

    def _add_node(
        self, node: str, start_ms: IntArray, end_ms: IntArray, values: FloatArray
    ) -> None:
        known = ~np.isnan(values)
        weights = np.where(known, (end_ms - start_ms)[:, None] / 1000.0, 0.0)
        weight = weights.sum(axis=0)
        total = np.where(weight > 0.0, weight, 1.0)
        mean = (weights * np.nan_to_num(values)).sum(axis=0) / total
        squares = (weights * np.where(known, values - mean, 0.0) ** 2).sum(axis=0)
        before = self._weight.get(node, np.zeros(4))
        old_mean = self._mean.get(node, np.zeros(4))
        both = np.where(before + weight > 0.0, before + weight, 1.0)
        change = mean - old_mean
        self._weight[node] = before + weight
        self._mean[node] = old_mean + change * weight / both
        self._squares[node] = (
            self._squares.get(node, np.zeros(4)) + squares + change**2 * before * weight / both
        )
        self._count[node] = self._count.get(node, np.zeros(4)) + known.sum(axis=0)
        first, last = self._span_ms.get(node, (int(start_ms.min()), int(end_ms.max())))
        self._span_ms[node] = min(first, int(start_ms.min())), max(last, int(end_ms.max()))

    def values(self, node: str, now: float) -> FloatArray:
        """Mean, deviation, seconds and windows (4, rules) of a node, cores and bytes; NaN is
        unknown. `now` does not matter: what is too old was not added."""
        if node not in self._weight:
            return np.full((4, 4), np.nan)
        weight = self._weight[node]
        known = weight > 0.0
        deviation = np.sqrt(self._squares[node] / np.where(known, weight, 1.0))
        first, last = self._span_ms[node]
        seconds = np.full(4, (last - first) / 1000.0)
        moments = np.where(known, [self._mean[node], deviation], np.nan)
        return np.stack([*moments, seconds, self._count[node]])


def _window_numbers(rows: pa.Table) -> IntArray:
    """The number of each row's window in these rows."""
    places = np.stack([rows[name].to_numpy() for name in ("log_partition", "log_offset")])
    begins = np.ones(len(rows), np.int64)
    begins[1:] = (places[:, 1:] != places[:, :-1]).any(axis=0)
    return np.cumsum(begins) - 1


def _prod_usage(rows: pa.Table, window: IntArray, usage: FloatArray) -> FloatArray:
    """The usage of Prod in each window, (windows, 2): what its pods used in the part of the window
    in which they were measured."""
    classes = rows["pod_class"].cast(pa.string())
    counts = pc.is_in(classes, pa.array(COUNTED_AS_PROD)).to_numpy(zero_copy_only=False)
    is_pod = _equal(rows["kind"], "pod")
    # A pod without a class is one that no record describes: it may be Prod.
    lacks_class = classes.is_null().to_numpy()
    chosen = np.flatnonzero(is_pod & (counts | lacks_class))
    coverage = _numbers(rows["coverage"])[chosen]
    share = np.clip(np.where(np.isnan(coverage), 1.0, coverage), 0.0, 1.0)
    amounts = usage[chosen] * per_resource(share)
    windows = int(window[-1]) + 1
    return np.stack([np.bincount(window[chosen], amounts[:, r], windows) for r in range(2)], axis=1)


def _equal(column: pa.ChunkedArray, text: str) -> npt.NDArray[np.bool_]:
    result: npt.NDArray[Any] = pc.equal(column, text).to_numpy()
    return result.astype(np.bool_)


def _numbers(column: pa.ChunkedArray) -> FloatArray:
    """The values, NaN unknown."""
    values: FloatArray = column.to_numpy()
    return values.astype(np.float64)
