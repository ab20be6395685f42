"""One score of many, and what takes the place of those that go by load where nothing is known."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.scorers.rounding import MAX_SCORE

MAX_EXTENDER_SCORE: Final = 10


def combined(scores: Sequence[IntArray], weights: Sequence[int]) -> IntArray:
    """The mean of scores, each (nodes,) from 0 to 100, by weights, cut to a whole number."""
    summed = sum(np.asarray(s) * w for s, w in zip(scores, weights, strict=True))
    return np.asarray(summed // sum(weights), np.int64)


def in_steps(score: IntArray, steps: int) -> IntArray:
    """A score of 0 to 100 as one of 0 to `steps`, cut.

    >>> in_steps(np.array([0, 9, 10, 99, 100]), 10)
    array([ 0,  0,  1,  9, 10])
    """
    return score * steps // MAX_SCORE


def one_best(steps: IntArray, score: IntArray) -> IntArray:
    """The steps of scores with one best: who is as good as the first of the best by `score` gets a
    step less. Among equals a scheduler would choose by luck, and nobody could know whom.

    >>> one_best(np.array([9, 8, 9, 9]), np.array([91, 85, 94, 94]))
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
    asked: Mapping[str, int],
) -> IntArray:
    """The score, (nodes,), by what is asked for alone: the fuller with the pod the better, 0 where
    it does not fit. What Trimaran falls back to where nobody knows usage (KEP-61, Bad Metrics)."""
    shares = np.zeros(len(next(iter(allocatable.values()))), np.int64)
    fits = np.ones(len(shares), np.bool_)
    for resource, have in allocatable.items():
        taken = requested[resource] + asked.get(resource, 0)
        fits &= (taken <= have) & (have > 0)
        shares += np.minimum(taken, have) * MAX_SCORE // np.maximum(have, 1)
    return np.where(fits, shares // len(allocatable), 0)
