"""Usage of nodes as users and thresholds read it: percent of capacity, freshness, age in words."""

import math
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray

LONG_WINDOW_SECONDS: Final = 60.0
_WINDOWS_UNTIL_STALE: Final = 2


def usage_percent(used: FloatArray, allocatable: FloatArray) -> FloatArray:
    """`used` as percent of `allocatable`, unrounded; NaN where either is unknown.

    NaN, infinite and negative values are unknown, and so is an allocatable of 0.
    """
    known = np.isfinite(used) & (used >= 0) & np.isfinite(allocatable) & (allocatable > 0)
    with np.errstate(all="ignore"):
        return np.where(known, used / np.where(known, allocatable, 1.0) * 100.0, np.nan)


def is_fresh(age_seconds: FloatArray, stale_after_seconds: float | FloatArray) -> BoolArray:
    """Whether windows are younger than `stale_after_seconds`; NaN is not.

    A window as far in the future is not fresh either: one of two clocks is wrong.
    """
    with np.errstate(invalid="ignore"):
        fresh: BoolArray = np.abs(age_seconds) < stale_after_seconds
    return fresh


def seconds_until_stale(window_seconds: FloatArray, stale_after_seconds: float) -> FloatArray:
    """The age from which each window is stale: `stale_after_seconds`, or twice its length where
    windows are longer than a minute and that is more. NaN is a window of unknown length."""
    long = np.where(window_seconds > LONG_WINDOW_SECONDS, window_seconds, 0.0)
    with np.errstate(over="ignore"):
        longest: FloatArray = np.maximum(stale_after_seconds, _WINDOWS_UNTIL_STALE * long)
    return longest


def age_text(age_seconds: float) -> str:
    """An age in words: `12 s ago`, `15 min ago`, `3 s in the future`, and `never` for NaN."""
    if math.isnan(age_seconds):
        return "never"
    if age_seconds < -0.5:
        return f"{-age_seconds:.0f} s in the future"
    if age_seconds < 600:
        return f"{max(0.0, age_seconds):.0f} s ago"
    return f"{age_seconds / 60:.0f} min ago"
