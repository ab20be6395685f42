"""Rounding as in the plugins of kube-scheduler, and scaling of raw scores, over arrays."""

from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray

MAX_SCORE: Final = 100


def round_half_away(values: FloatArray) -> IntArray:
    """Round to the nearest whole number, halves away from zero, as Go's `math.Round`. NaN gives 0.

    >>> round_half_away(np.array([2.5, -2.5, 0.49999999999999994, np.nan]))
    array([ 3, -3,  0,  0])
    """
    known = np.where(np.isnan(values), 0.0, values)
    whole = np.floor(np.abs(known))
    rounded: IntArray = (np.sign(known) * (whole + (np.abs(known) - whole >= 0.5))).astype(np.int64)
    return rounded


def clamp(values: FloatArray) -> FloatArray:
    """Limit values to 0 and 1; NaN stays NaN."""
    bounded: FloatArray = np.clip(values, 0.0, 1.0)
    return bounded


def scale_between_extremes(raw: FloatArray) -> IntArray:
    """Scale raw scores linearly, 0 for the lowest to 100 for the highest, truncated. NaN gives 0,
    and so does every score if all are equal.

    >>> scale_between_extremes(np.array([-100.0, 0.0, 100.0, np.nan]))
    array([  0,  50, 100,   0])
    """
    known = np.isfinite(raw)
    lowest, highest = raw.min(where=known, initial=np.inf), raw.max(where=known, initial=-np.inf)
    if lowest >= highest:
        return np.zeros(len(raw), np.int64)
    share = (np.where(known, raw, lowest) - lowest) * MAX_SCORE / (highest - lowest)
    # Rounding may leave the highest just below 100.
    return np.where(raw == highest, MAX_SCORE, np.where(known, share, 0.0)).astype(np.int64)
