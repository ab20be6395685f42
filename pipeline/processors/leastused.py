"""Least-used scoring: the more of a node's allocatable is unused, the better.

Owes the rest: Koordinator's LoadAware score (0 to 100) in whole numbers, so that equal inputs give
equal scores on every machine, and its step down to the 0 to 10 of a scheduler extender.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.processors.thresholds import FloatArray

IntArray = npt.NDArray[np.int64]

MAX_PERCENT_SCORE: Final = 100
MAX_EXTENDER_SCORE: Final = 10

EQUAL_WEIGHTS: Final[Mapping[str, int]] = {"cpu": 1, "memory": 1}

# Shares are taken of whole milli-cores and bytes; times 100 these still fit 64 bits.
_WHOLE_UNITS: Final[Mapping[str, float]] = {"cpu": 1000.0}
_LARGEST: Final = 2.0**53


def least_used(
    used: Mapping[str, FloatArray],
    allocatable: Mapping[str, FloatArray],
    weights: Mapping[str, int] = EQUAL_WEIGHTS,
) -> IntArray:
    """Score 0 to 100 per node: the weighted mean of each resource's unused share, truncated.

    `used` and `allocatable` hold an array (nodes,) per resource of `weights`, cpu in cores and
    memory in bytes. A resource is truncated by itself first: trunc((cap - used) * 100 / cap), 0
    where usage is above. A resource that is unknown (NaN, infinite, negative, nothing allocatable)
    counts 0, so that a node without data is never best. Raises ValueError without any weight.
    """
    total = sum(weights.values())
    if total <= 0 or min(weights.values()) < 0:
        raise ValueError(f"weights must be at least 0 and not all 0, not {dict(weights)}")
    summed = np.zeros(len(next(iter(used.values()))), np.int64)
    for resource, weight in weights.items():
        summed += weight * _unused_percent(used[resource], allocatable[resource], resource)
    return summed // total


def extender_score(percent_score: IntArray) -> IntArray:
    """A score of 0 to 100 as a scheduler extender gives it: 0 to 10, truncated."""
    return percent_score * MAX_EXTENDER_SCORE // MAX_PERCENT_SCORE


def _unused_percent(used: FloatArray, allocatable: FloatArray, resource: str) -> IntArray:
    taken, most = _whole(used, resource), _whole(allocatable, resource)
    usable = (taken >= 0) & (most > 0) & (taken <= most)
    percent = (most - taken) * MAX_PERCENT_SCORE // np.where(usable, most, 1)
    return np.where(usable, percent, 0)


def _whole(amount: FloatArray, resource: str) -> IntArray:
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = amount * _WHOLE_UNITS.get(resource, 1.0)
        known = np.isfinite(amount) & (scaled >= 0) & (scaled <= _LARGEST)
    return np.where(known, np.rint(np.where(known, scaled, 0.0)), -1.0).astype(np.int64)
