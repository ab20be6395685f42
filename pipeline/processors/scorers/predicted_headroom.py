"""PredictedHeadroom: nodes that stay idle for long first.

room = allocatable - predicted peak - what is in flight and not in the peak yet - what the pod will
use, as a share of allocatable. A node that is quiet now and was busy every morning has little of
it. Ours: Koordinator and Trimaran look at what was used lately.
"""

from collections.abc import Mapping

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.scorers.rounding import MAX_SCORE


def headroom(
    allocatable: Mapping[str, IntArray],
    peak: Mapping[str, FloatArray],
    added: Mapping[str, IntArray],
    weights: Mapping[str, int],
) -> IntArray:
    """The score, (nodes,): the mean of the shares by weights, cut; 0 where the peak of a resource
    is not known, or nothing of it there."""
    summed = np.zeros(len(next(iter(peak.values()))), np.int64)
    known = np.ones(len(summed), np.bool_)
    for resource, weight in weights.items():
        have = allocatable[resource]
        known &= np.isfinite(peak[resource]) & (have > 0)
        taken = np.nan_to_num(peak[resource]).astype(np.int64) + added[resource]
        share = np.maximum(have - taken, 0) * MAX_SCORE // np.maximum(have, 1)
        summed += weight * share
    return np.where(known, summed // sum(weights.values()), 0)
