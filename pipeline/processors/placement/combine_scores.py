"""Combine the scores of plugins, and score by requests where usage is unknown."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.scorers.rounding import MAX_SCORE

MAX_EXTENDER_SCORE: Final = 10


def weighted_mean(scores: Sequence[IntArray], weights: Sequence[int]) -> IntArray:
    """The mean of scores by weight, each (nodes,) from 0 to 100, truncated."""
    summed = sum(score * weight for score, weight in zip(scores, weights, strict=True))
    return np.asarray(summed // sum(weights), np.int64)


def scale_to_steps(score: IntArray, steps: int) -> IntArray:
    """Scores of 0 to 100 as scores of 0 to `steps`, truncated.

    >>> scale_to_steps(np.array([0, 9, 10, 99, 100]), 10)
    array([ 0,  0,  1,  9, 10])
    """
    return score * steps // MAX_SCORE


def separate_best(steps: IntArray, score: IntArray) -> IntArray:
    """Steps with a single best node: nodes in the same step as the best by `score` get a step less.
    A scheduler chooses among equals at random, so nobody could predict its choice.

    >>> separate_best(np.array([9, 8, 9, 9]), np.array([91, 85, 94, 94]))
    array([8, 8, 9, 8])
    """
    if not len(score):
        return steps
    best = score.argmax()
    alike = (steps == steps[best]) & (steps > 0)
    alike[best] = False
    return np.asarray(steps - alike, np.int64)


def best_fit(
    allocatable: Mapping[str, IntArray],
    requested: Mapping[str, IntArray],
    request: Mapping[str, int],
) -> IntArray:
    """Scores by requests alone, (nodes,): the fuller with the pod the better, 0 if it does not fit.
    Trimaran's fallback for unknown usage (KEP-61, Bad Metrics)."""
    shares = np.zeros(len(next(iter(allocatable.values()))), np.int64)
    fits = np.ones(len(shares), np.bool_)
    for resource, capacity in allocatable.items():
        taken = requested[resource] + request.get(resource, 0)
        fits &= (taken <= capacity) & (capacity > 0)
        shares += np.minimum(taken, capacity) * MAX_SCORE // np.maximum(capacity, 1)
    return np.where(fits, shares // len(allocatable), 0)
