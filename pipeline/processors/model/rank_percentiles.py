"""Percentiles of raw samples, by rank.

Percentile p of n samples is the sample of rank floor(n*p) - 1 (at least 0) in ascending order. The
floor is computed in integers, so that no rounding error moves a rank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray

_PERCENTILE: Final = re.compile(r"p(\d{1,2})")


def parse_percentile(statistic: str) -> int | None:
    """The whole percentage that a name like `p95` stands for; None for other statistics."""
    match = _PERCENTILE.fullmatch(statistic)
    return int(match[1]) if match else None


def row_percentiles(values: FloatArray, percents: Sequence[int]) -> FloatArray:
    """Percentiles (rows, percents) of each row of `values` (rows, samples), in whole percent; NaN
    is a missing sample, and the answer where a row has none."""
    if values.shape[1] == 0:
        return np.full((len(values), len(percents)), np.nan)
    counts = values.shape[1] - np.isnan(values).sum(axis=1)
    ranks = np.maximum(counts[:, None] * np.asarray(percents) // 100 - 1, 0)
    # NaN is sorted behind all numbers, so of a row without samples the first is NaN.
    return np.take_along_axis(np.sort(values, axis=1), ranks, axis=1)
