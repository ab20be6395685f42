"""Averages and percentiles of a node and its system over any time up to an hour.

The worker publishes percentiles of the node's readings over fixed spans. For other spans, and for
the system, the percentiles here follow from four statistics of each window: half of its readings
count as its average, the next 40% as its p90, the rest as its p95 and its maximum. For one window
this is exact; for several it rounds up. Arrays have two rows, the node and its system, and two
columns, cores and bytes; NaN is unknown.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.processors.slo.nodemetric import LONGEST_SPAN_SECONDS
from pipeline.topics.node_state import AGGREGATIONS

STATISTICS: Final = ("avg", "p90", "p95", "max")
_SHARES: Final = np.array([0.50, 0.40, 0.05, 0.05])
"""Share of a window's readings that counts as each of `STATISTICS`."""
_PERCENTS: Final = np.array([int(name[1:]) / 100 for name in AGGREGATIONS[1:]])
# Sums of shares are off by rounding errors.
_TOLERANCE: Final = 1e-9

_Single = npt.NDArray[np.float32]


def window_statistics(batch: WindowBatch) -> FloatArray:
    """`STATISTICS` of the node and the system in each window, (n, 2, 4, 2)."""
    return np.stack([batch.node_and_system(name) for name in STATISTICS], axis=2)


class WindowStatistics(NamedTuple):
    """Statistics (n, 2, 4, 2) of a node's windows, oldest first: their start and end (n, 2), and
    the time that each counts (n,), in milliseconds."""

    spans: IntArray = np.empty((0, 2), np.int64)
    weights: FloatArray = np.empty(0)
    statistics: _Single = np.empty((0, 2, len(STATISTICS), 2), np.float32)

    def with_window(
        self, span: IntArray, coverage: float, statistics: FloatArray, seconds: int
    ) -> "WindowStatistics":
        """These windows and a newer one, without those that begin before the last `seconds`."""
        start_ms, end_ms = span.tolist()
        recent = self.spans[:, 0] >= end_ms - 1000 * min(seconds, LONGEST_SPAN_SECONDS)
        return WindowStatistics(
            np.concatenate([self.spans[recent], span[None]]),
            np.append(self.weights[recent], (end_ms - start_ms) * coverage),
            np.concatenate([self.statistics[recent], statistics[None].astype(np.float32)]),
        )

    def aggregated(self, seconds: float) -> FloatArray:
        """The average and percentiles of `AGGREGATIONS` over the last `seconds`, (2, 5, 2).

        Unknown if the windows within that time reach over less than half of it.
        """
        result = np.full((2, len(AGGREGATIONS), 2), np.nan)
        if not len(self.spans) or seconds > LONGEST_SPAN_SECONDS:
            return result
        end_ms = self.spans[-1, 1]
        within = self.spans[:, 0] >= end_ms - 1000 * seconds
        if not within.any() or 2 * (end_ms - self.spans[within, 0].min()) < 1000 * seconds:
            return result
        statistics, weights = self.statistics[within].astype(np.float64), self.weights[within]
        for entity in range(2):
            for resource in range(2):
                result[entity, :, resource] = _aggregated(
                    statistics[:, entity, :, resource], weights
                )
        return result


def _aggregated(statistics: FloatArray, weights: FloatArray) -> FloatArray:
    """The aggregations (5,) of one resource from `STATISTICS` (n, 4) and `weights` (n,)."""
    known = ~np.isnan(statistics).any(axis=1) & (weights > 0.0)
    if not known.any():
        return np.full(len(AGGREGATIONS), np.nan)
    statistics, weights = statistics[known], weights[known]
    total = weights.sum()
    order = statistics.ravel().argsort()
    reached = np.outer(weights, _SHARES).ravel()[order].cumsum() / total
    positions = np.minimum(np.searchsorted(reached, _PERCENTS - _TOLERANCE), len(order) - 1)
    average = (statistics[:, 0] * weights).sum() / total
    return np.array([average, *statistics.ravel()[order][positions]])
