"""Lines and areas over time, thinned to what a figure can show.

The extremes of each pixel column stay: a peak of one sample in a month is visible.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.figures.svg import number, polyline


def thinned(x: FloatArray, values: FloatArray) -> IntArray:
    """The indices of the lowest, the highest and the last value of each pixel column, ascending.

    `x` (n,) are pixels, ascending; `values` (n,) have no NaN.
    """
    starts = _column_starts(x)
    counts = np.diff(starts, append=len(x))
    by_value = np.lexsort((values, np.repeat(starts, counts)))
    ends = starts + counts - 1
    return np.unique(np.concatenate([by_value[starts], by_value[ends], ends]))


def _column_starts(x: FloatArray) -> IntArray:
    """The first index of each pixel column."""
    return np.flatnonzero(np.diff(np.floor(x), prepend=-np.inf))


def _runs(x: FloatArray, y: FloatArray) -> Iterator[list[tuple[float, float]]]:
    """The points of each part without NaN, thinned."""
    edges = np.flatnonzero(np.diff(~np.isnan(y), prepend=False, append=False))
    for first, end in edges.reshape(-1, 2).tolist():
        own = thinned(x[first:end], y[first:end]) + first
        yield [*zip(x[own].tolist(), y[own].tolist(), strict=True)]


def line_data(x: FloatArray, y: FloatArray) -> str:
    """The data of a path through points (n,), broken where y is NaN."""
    return "".join(polyline(run) for run in _runs(x, y))


def area_data(x: FloatArray, y: FloatArray, base: float) -> str:
    """The data of a path around the area between points (n,) and `base`, broken where y is NaN."""
    return "".join(
        f"{polyline([(run[0][0], base), *run, (run[-1][0], base)])}Z" for run in _runs(x, y)
    )


def bars_data(x: FloatArray, low: FloatArray, high: FloatArray) -> str:
    """The data of a path of vertical lines at x (n,) from `low` (n,) to `high` (n,), one a pixel
    column, which covers all in it."""
    if not len(x):
        return ""
    starts = _column_starts(x)
    tops, bottoms = np.fmin.reduceat(high, starts), np.fmax.reduceat(low, starts)
    bars = zip(x[starts].tolist(), bottoms.tolist(), tops.tolist(), strict=True)
    return "".join(f"M{number(at)} {number(bottom)}V{number(top)}" for at, bottom, top in bars)
