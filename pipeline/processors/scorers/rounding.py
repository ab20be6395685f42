"""Rounding as the plugins of kube-scheduler do it, over arrays; and scaling by the extremes."""

from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray

MAX_SCORE: Final = 100


def half_away(values: FloatArray) -> IntArray:
    """To the nearest whole number, a half away from zero, as Go's `math.Round`. NaN gives 0.

    >>> half_away(np.array([2.5, -2.5, 0.49999999999999994, np.nan]))
    array([ 3, -3,  0,  0])
    """
    known = np.where(np.isnan(values), 0.0, values)
    whole = np.floor(np.abs(known))
    rounded: IntArray = (np.sign(known) * (whole + (np.abs(known) - whole >= 0.5))).astype(np.int64)
    return rounded


def clamp(values: FloatArray) -> FloatArray:
    """Each value within 0 and 1; NaN stays unknown."""
    bounded: FloatArray = np.clip(values, 0.0, 1.0)
    return bounded


def between_extremes(raw: FloatArray, *, if_equal: int = 0) -> IntArray:
    """Raw scores as 0 for the lowest to 100 for the highest, linear and cut; `if_equal` for all
    where they do not differ. NaN, which is unknown, gives 0.

    >>> between_extremes(np.array([-100.0, 0.0, 100.0, np.nan]))
    array([  0,  50, 100,   0])
    """
    known = np.isfinite(raw)
    if not known.any():
        return np.zeros(len(raw), np.int64)
    lowest, highest = raw[known].min(), raw[known].max()
    if lowest == highest:
        return np.where(known, if_equal, 0)
    share = (np.where(known, raw, lowest) - lowest) * MAX_SCORE / (highest - lowest)
    # What is divided by itself need not be 1 if it was multiplied before.
    return np.where(raw == highest, MAX_SCORE, np.where(known, share, 0.0)).astype(np.int64)
