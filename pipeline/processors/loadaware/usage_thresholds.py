"""Compare the usage of nodes with thresholds, without pods in flight.

The comparison of Koordinator's LoadAware filter for many nodes at once, for callers that ask
whether a node has cooled. A node passes if its usage is unknown or stale: a filter that guesses
would take capacity away.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray

RESOURCES: Final = ("cpu", "memory")


class UsageVerdict(NamedTuple):
    """The verdict on nodes, arrays (nodes,).

    `fresh`: the window is young enough; `known`: it is fresh and at least one resource with a
    threshold could be compared. `over` and `percent` are by resource.
    """

    refused: BoolArray
    known: BoolArray
    fresh: BoolArray
    over: Mapping[str, BoolArray]
    percent: Mapping[str, FloatArray]


def usage_percent(used: FloatArray, allocatable: FloatArray) -> FloatArray:
    """`used` as percent of `allocatable`, unrounded; NaN where either is unknown.

    NaN, infinite and negative values are unknown, and so is an allocatable of 0.
    """
    known = np.isfinite(used) & (used >= 0) & np.isfinite(allocatable) & (allocatable > 0)
    with np.errstate(all="ignore"):
        return np.where(known, used / np.where(known, allocatable, 1.0) * 100.0, np.nan)


def over_threshold(percent: FloatArray, threshold_percent: float) -> BoolArray:
    """Whether usage, rounded half up to a whole percent, is above a threshold; 0 switches it off.

    As in Koordinator, with a threshold of 65, 65.4 % passes and 65.5 % does not. NaN passes.
    """
    if threshold_percent <= 0:
        return np.zeros(len(percent), np.bool_)
    with np.errstate(invalid="ignore"):
        over: BoolArray = np.floor(percent + 0.5) > threshold_percent
    return over


def is_fresh(age_seconds: FloatArray, stale_after_seconds: float | FloatArray) -> BoolArray:
    """Whether windows are younger than `stale_after_seconds`; NaN is not.

    A window as far in the future is not fresh either: one of two clocks is wrong.
    """
    with np.errstate(invalid="ignore"):
        fresh: BoolArray = np.abs(age_seconds) < stale_after_seconds
    return fresh


def filter_by_usage(
    used: Mapping[str, FloatArray],
    allocatable: Mapping[str, FloatArray],
    fresh: BoolArray,
    *,
    thresholds_percent: Mapping[str, float],
) -> UsageVerdict:
    """Judge nodes by the average usage of their last window over their allocatable.

    `used` and `allocatable` hold an array (nodes,) for each resource in `thresholds_percent`, in
    one unit per resource; `fresh` (nodes,) says whose windows count.
    """
    known = np.zeros(len(fresh), np.bool_)
    refused = np.zeros(len(fresh), np.bool_)
    percents, overs = {}, {}
    for resource, threshold in thresholds_percent.items():
        percent = usage_percent(used[resource], allocatable[resource])
        over = over_threshold(percent, threshold) & fresh
        percents[resource], overs[resource] = percent, over
        refused |= over
        if threshold > 0:
            known |= fresh & ~np.isnan(percent)
    return UsageVerdict(refused, known, fresh, overs, percents)


def age_text(age_seconds: float) -> str:
    """An age in words: `12 s ago`, `5 min ago`, `3 s in the future`."""
    if age_seconds < -0.5:
        return f"{-age_seconds:.0f} s in the future"
    if age_seconds < 600:
        return f"{max(0.0, age_seconds):.0f} s ago"
    return f"{age_seconds / 60:.0f} min ago"
