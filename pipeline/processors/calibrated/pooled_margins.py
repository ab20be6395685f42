"""How far outcomes lie above the shape: histograms pooled over the fleet, and one for each node.

An outcome counts as z = log(outcome / shape). The margin at risk a is the quantile 1 - a of the
node's own histogram and that of the pool together. Nodes of all kinds share the pool's histogram:
one for each kind had too few outcomes.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray

BINS: Final = 501
LOWEST: Final = -2.5
HIGHEST: Final = 2.5
WIDTH: Final = (HIGHEST - LOWEST) / (BINS - 1)
POOL_HALF_LIFE_DAYS: Final = 5.0
NODE_HALF_LIFE_DAYS: Final = 7.0
POOL_WEIGHT: Final = 15.0
"""Of the pool and the prior, in horizons of the node's own."""
PRIOR_WEIGHT: Final = 1.0
"""In horizons of the pool. What happens on a day happens to many of its nodes at once: so a horizon
weighs 1, however many nodes the pool has."""
_LEAST_WEIGHT: Final = 1e-9


def bins_of(ratios: FloatArray) -> IntArray:
    """Bin of log(ratio) for each outcome / shape; a ratio of 0 belongs to the first bin."""
    z = np.log(np.maximum(ratios, np.exp(LOWEST)))
    return np.clip(np.ceil((z - LOWEST) / WIDTH - 1e-9), 0, BINS - 1).astype(np.int64)


def combined(pool: FloatArray, own: npt.NDArray[np.floating], prior: FloatArray) -> FloatArray:
    """Distribution of z for each node, (nodes, BINS), each with sum 1; all zero if nothing is
    known. `pool` (BINS,), `own` (nodes, BINS), `prior` (BINS,) with a sum of 1 or 0."""
    shared = pool + PRIOR_WEIGHT * prior
    total = POOL_WEIGHT * shared / max(shared.sum(), _LEAST_WEIGHT) + own
    sums = total.sum(axis=1, keepdims=True)
    shares: FloatArray = np.divide(total, sums, out=np.zeros_like(total), where=sums > 0.0)
    return shares


def survival(distributions: FloatArray) -> FloatArray:
    """Probability of an outcome above the end of each bin, (nodes, BINS); 1 where nothing is
    known."""
    known = distributions.any(axis=1, keepdims=True)
    above = 1.0 - np.cumsum(distributions, axis=1)
    return np.where(known, np.maximum(above, 0.0), 1.0)


def margins(above: FloatArray, levels: FloatArray) -> FloatArray:
    """Factor on the shape at each level of risk: the end of the first bin above which outcomes have
    at most that probability. `above` from `survival`; levels (nodes, n); infinite if no bin has."""
    bins = np.stack([(above > level[:, None] + 1e-12).sum(axis=1) for level in levels.T], axis=1)
    factors: FloatArray = np.where(bins < BINS, np.exp(LOWEST + WIDTH * bins), np.inf)
    return factors
