"""ResourceLimits: nodes on which limits leave most room first.

Source: the limit-aware proposal KEP-217, which was never shipped (scheduling 4). raw = (allocatable
- limits of its pods - limits of the pod) * 100 / allocatable, below 0 where limits are promised
beyond what is there; the highest of the nodes compared gets 100, the lowest 0.
"""

from collections.abc import Mapping

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.scorers.rounding import between_extremes


def limit_room(
    allocatable: Mapping[str, FloatArray],
    limits: Mapping[str, FloatArray],
    pod_limits: Mapping[str, float],
    weights: Mapping[str, float],
) -> FloatArray:
    """What limits leave, (nodes,) in percent of allocatable: the mean over the resources of
    `weights`, by these weights. NaN where a node has nothing of a resource."""
    total = sum(weights.values())
    summed = np.zeros(len(next(iter(allocatable.values()))))
    for resource, weight in weights.items():
        have = allocatable[resource]
        with np.errstate(all="ignore"):
            left = (have - limits[resource] - pod_limits.get(resource, 0.0)) * 100 / have
        summed += weight * np.where(have > 0, left, np.nan)
    return summed / total


def limit_aware(room: FloatArray) -> IntArray:
    """The score of nodes whose limits leave so much room. All alike is 0 for all."""
    return between_extremes(room)
