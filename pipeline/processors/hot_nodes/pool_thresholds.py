"""Thresholds that are distances from the mean of a node pool, in percent of capacity.

Detection and the plans of LowNodeLoad both use these, so that they agree.
"""

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray

_WHOLE_PERCENT = 100.0


def known_means(percents: FloatArray) -> tuple[FloatArray, IntArray]:
    """The mean of each column of `percents` (nodes, k) over the nodes whose value is known, and the
    number of these nodes, (k,) each. NaN is unknown; so is the mean of no node.

    >>> means, counts = known_means(np.array([[10.0, np.nan], [30.0, np.nan], [np.nan, np.nan]]))
    >>> means.tolist(), counts.tolist()
    ([20.0, nan], [2, 0])
    """
    known = ~np.isnan(percents)
    counts: IntArray = known.sum(axis=0)
    sums = np.where(known, percents, 0.0).sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan), counts


def is_unused(low: FloatArray, high: FloatArray) -> BoolArray:
    """Which distances mean that the resource is not compared: as in Koordinator those of 0, and
    those without a distance above the mean (NaN)."""
    unused: BoolArray = (low == 0.0) | (high == 0.0) | np.isnan(high)
    return unused


def deviation_percents(
    mean: FloatArray, low: FloatArray, high: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The thresholds at the distances `low` below and `high` above the mean, within 0 to 100.

    NaN is no distance. Both are 100 percent, whatever the mean, where distances are unused.

    >>> [own.tolist() for own in deviation_percents(*np.array([[50.0, 50], [10, 0], [60, 20]]))]
    [[40.0, 100.0], [100.0, 100.0]]
    """
    unused = is_unused(low, high)
    lower = np.clip(mean - low, 0.0, _WHOLE_PERCENT)
    upper = np.clip(mean + high, 0.0, _WHOLE_PERCENT)
    return np.where(unused, _WHOLE_PERCENT, lower), np.where(unused, _WHOLE_PERCENT, upper)
