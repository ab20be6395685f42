"""Usage of nodes as users and thresholds read it: percent of capacity, freshness, age in words."""

import math

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray


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


def age_text(age_seconds: float) -> str:
    """An age in words: `12 s ago`, `15 min ago`, `3 s in the future`, and `never` for NaN."""
    if math.isnan(age_seconds):
        return "never"
    if age_seconds < -0.5:
        return f"{-age_seconds:.0f} s in the future"
    if age_seconds < 600:
        return f"{max(0.0, age_seconds):.0f} s ago"
    return f"{age_seconds / 60:.0f} min ago"
