"""Distributions of z = log(outcome / shape) as quantiles, and back to the bins of
`pooled_margins`."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.calibrated.pooled_margins import BINS, LOWEST, WIDTH

_DIGITS: Final = 2
_EDGES: Final = (LOWEST + WIDTH * np.arange(BINS)).round(_DIGITS)


def quantiles_of(weights: FloatArray, probabilities: Sequence[float]) -> list[float]:
    """Quantiles of a histogram (BINS,) that is not empty, as ends of bins: the first has at most
    that probability below it. The first quantile, of probability 0, is below all outcomes."""
    cumulated = np.cumsum(weights) / weights.sum()
    bins = np.minimum(np.searchsorted(cumulated, np.array(probabilities) - 1e-9), BINS - 1)
    bins[0] = max(int(np.flatnonzero(weights)[0]) - 1, 0)
    rounded: list[float] = _EDGES[bins].tolist()
    return rounded


def distribution_of(quantiles: Sequence[float], probabilities: Sequence[float]) -> FloatArray:
    """A histogram (BINS,) with sum 1 that has these quantiles; outcomes are spread evenly between
    two of them, and beyond the bins they count in the first or last one."""
    cumulated = np.interp(_EDGES, quantiles, probabilities, left=0.0, right=1.0)
    cumulated[-1] = 1.0
    return np.diff(cumulated, prepend=0.0)
