"""What a window says about its raw samples: average, percentile, last, count.

Owes the rest: one definition of each statistic, for a single series and for many rows at once,
with the same bits in both. Percentile p of n samples is the one of rank floor(n*p) - 1 (at least
0) in ascending order; floor is taken in whole numbers, so no float error moves a rank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.errors import EmptyWindowError

type_names: Final = ("avg", "last", "count", "max")
_PERCENTILE: Final = re.compile(r"p(\d{1,2})")

FloatArray = npt.NDArray[np.float64]


def percent_of(statistic: str) -> int | None:
    """The whole percentage that a name like `p95` stands for; None for other statistics."""
    match = _PERCENTILE.fullmatch(statistic)
    return int(match[1]) if match else None


def aggregate_rows(values: npt.ArrayLike, statistic: str) -> FloatArray:
    """One statistic of each row of `values` (rows, samples) in time order; NaN is a missing sample.

    `statistic` is `avg`, `last`, `count`, `max` or a percentile `p0` to `p99`. A row without
    samples gives NaN, and 0 for `count`. Raises ValueError for an unknown statistic.
    """
    matrix = np.ascontiguousarray(values, dtype=np.float64)
    if matrix.ndim != 2:
        raise ValueError(f"expected rows of samples (2 dimensions), got shape {matrix.shape}")
    present = ~np.isnan(matrix)
    counts = present.sum(axis=1)
    percent = percent_of(statistic)
    if percent is not None:
        return percentile_rows(matrix, [percent])[:, 0]
    if statistic == "max":
        return _pick(np.sort(matrix, axis=1), counts - 1, counts)
    if statistic == "count":
        return np.asarray(counts, dtype=np.float64)
    if statistic == "last":
        newest = (
            matrix.shape[1] - 1 - np.argmax(present[:, ::-1], axis=1) if matrix.size else counts
        )
        return _pick(matrix, newest, counts)
    if statistic == "avg":
        return _mean(matrix, present, counts)
    raise ValueError(f"unknown statistic {statistic!r}: use avg, last, count, max or p0 to p99")


def percentile_rows(values: FloatArray, percents: Sequence[int]) -> FloatArray:
    """Percentiles (rows, percents) of each row of `values` (rows, samples), in whole percent; NaN
    is a missing sample, and the answer where a row has none."""
    if values.shape[1] == 0:
        return np.full((len(values), len(percents)), np.nan)
    counts = values.shape[1] - np.isnan(values).sum(axis=1)
    ranks = np.maximum(counts[:, None] * np.asarray(percents) // 100 - 1, 0)
    # NaN is sorted behind all numbers, so of a row without samples the first is NaN.
    return np.take_along_axis(np.sort(values, axis=1), ranks, axis=1)


def aggregate(samples: Sequence[float], statistic: str) -> float:
    """The same for one series in time order. Raises EmptyWindowError when nothing is in it."""
    value = float(
        aggregate_rows(np.asarray(samples, dtype=np.float64).reshape(1, -1), statistic)[0]
    )
    if np.isnan(value):
        raise EmptyWindowError(
            f"{statistic} of no samples: the window is empty; collect at least one sample first"
        )
    return value


def _pick(
    matrix: FloatArray, columns: npt.NDArray[np.intp], counts: npt.NDArray[np.int64]
) -> FloatArray:
    if matrix.shape[1] == 0:
        return np.full(len(matrix), np.nan)
    picked = matrix[np.arange(len(matrix)), np.maximum(columns, 0)]
    return np.where(counts > 0, picked, np.nan)


def _mean(
    matrix: FloatArray, present: npt.NDArray[np.bool_], counts: npt.NDArray[np.int64]
) -> FloatArray:
    if matrix.shape[1] == 0:
        return np.full(len(matrix), np.nan)
    # A running sum adds strictly from left to right, so a row has the same bits alone or among
    # others, and padding with missing samples changes nothing.
    sums = np.cumsum(np.where(present, matrix, 0.0), axis=1)[:, -1]
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
