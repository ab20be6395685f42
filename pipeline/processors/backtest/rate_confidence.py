"""How sure a rate of violations is: a bootstrap over nodes and over blocks of time.

Predictions of one node overlap in what they predict, and nodes share days, so that points are far
fewer than they seem. Each resample draws nodes and, for all of them alike, blocks of time, each
with replacement: Owen, The pigeonhole bootstrap (Annals of Applied Statistics 2007), whose
intervals are rather too wide than too narrow. Blocks in place of points keep what is near in time
together: Künsch, The jackknife and the bootstrap for general stationary observations (Annals of
Statistics 1989).

A resample of a history without violations has none. So no result is surer than that of as many
independent trials as there are blocks of nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray

INTERVAL: Final = 0.9
"""The interval has this share of the resamples."""
_RESAMPLES: Final = 2000
_AT_A_TIME: Final = 100
_SEED: Final = 20_250_101
"""Any number: the same history always gives the same interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateConfidence:
    """The interval of a rate, `low` to `high`, and how sure it is that the rate is at most the
    target (0 to 1). `trials` is the number of blocks of nodes."""

    low: float
    high: float
    sureness: float
    trials: float


def time_blocks(at: IntArray, block_steps: int) -> IntArray:
    """The block of each of these steps (q,), ascending: 0 and up. A short last block belongs to the
    one before."""
    blocks = (at - at[0]) // block_steps
    rest = int(at[-1]) + 1 - int(at[0]) - int(blocks[-1]) * block_steps
    if 2 * rest < block_steps and blocks[-1] > 0:
        blocks = np.minimum(blocks, blocks[-1] - 1)
    return np.asarray(blocks)


def rate_confidence(
    violated: BoolArray, scored: BoolArray, blocks: IntArray, target: float, copies: float = 1.0
) -> RateConfidence:
    """How sure the mean over nodes of their rates is, of points (k, q) in `blocks` (q,).

    `copies` is how many nodes have the same pods (`Trace.copies`): a resample draws so many times
    fewer nodes. At least one point is scored.
    """
    members = blocks[:, None] == np.arange(int(blocks[-1]) + 1)
    has_points = scored.any(axis=1)
    counts = scored[has_points].astype(np.float64) @ members
    misses = (violated & scored)[has_points].astype(np.float64) @ members
    trials = float((counts > 0).sum()) / copies
    rates = _resampled_rates(misses, counts, max(round(len(counts) / copies), 1))
    low, high = np.quantile(rates, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])
    return RateConfidence(
        low=float(low),
        high=max(float(high), least_upper_bound(trials)),
        sureness=min(float((rates <= target).mean()), most_sureness(trials, target)),
        trials=trials,
    )


def least_upper_bound(trials: float) -> float:
    """The upper end of the interval of a rate of which so many trials show nothing.

    >>> round(least_upper_bound(149), 3)
    0.02
    """
    return float(-math.expm1(math.log((1 - INTERVAL) / 2) / trials))


def most_sureness(trials: float, target: float) -> float:
    """How sure trials without a violation are: the chance that a rate of `target` would show one.

    >>> round(most_sureness(114, 0.02), 2)
    0.9
    """
    return float(-math.expm1(trials * math.log1p(-target)))


def needed_trials(sureness: float, target: float) -> int:
    """How many trials without a violation are so sure.

    >>> needed_trials(0.9, 0.02)
    114
    """
    return math.ceil(math.log1p(-sureness) / math.log1p(-target))


def _resampled_rates(misses: FloatArray, counts: FloatArray, drawn_nodes: int) -> FloatArray:
    """The mean rate of each resample of nodes and blocks, of counts (k, b)."""
    nodes, blocks = counts.shape
    random = np.random.default_rng(_SEED)
    results = []
    for _ in range(_RESAMPLES // _AT_A_TIME):
        times = random.multinomial(blocks, np.full(blocks, 1 / blocks), _AT_A_TIME).T
        weights = random.multinomial(drawn_nodes, np.full(nodes, 1 / nodes), _AT_A_TIME).T
        points = counts @ times
        rates = np.zeros_like(points)
        np.divide(misses @ times, points, out=rates, where=points > 0)
        weighted = weights * (points > 0)
        sums = weighted.sum(axis=0)
        drawn = sums > 0
        results.append((weighted * rates).sum(axis=0)[drawn] / sums[drawn])
    return np.concatenate(results)
