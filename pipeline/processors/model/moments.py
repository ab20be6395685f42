"""Decayed weight, mean and sum of squared deviations, per row and resource.

Each row is updated independently of the others. The decay has the same reference as the histogram
of the resource. Formula: D. H. D. West, Updating mean and variance estimates (1979), weighted form.
"""

from __future__ import annotations

import numpy as np

from pipeline.processors.arrays import FloatArray


def add(
    weight: FloatArray, mean: FloatArray, squares: FloatArray, values: FloatArray, by: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """New (weight, mean, squares) after one sample per element, `values` with weight `by` > 0.

    All arrays have one shape. NaN leaves its element as it was.
    """
    known = ~np.isnan(values)
    by = np.where(known, by, 0.0)
    total = weight + by
    delta = np.where(known, values - mean, 0.0)
    step = delta * (by / np.where(total > 0.0, total, 1.0))
    return total, mean + step, squares + weight * delta * step


def stdev(weight: FloatArray, squares: FloatArray) -> FloatArray:
    """Weighted population standard deviation; NaN where there is no sample."""
    known = weight > 0.0
    return np.where(known, np.sqrt(squares / np.where(known, weight, 1.0)), np.nan)
