"""NodeResourcesAllocatable of scheduler-plugins: big nodes first, or small (scheduling 3.5)."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.scorers.rounding import between_extremes

Mode = Literal["Least", "Most"]


def raw_size(
    allocatable: Mapping[str, IntArray], weights: Mapping[str, int], mode: Mode = "Least"
) -> IntArray:
    """The weighted mean of what nodes have, (nodes,), cut; below 0 where small ones are wanted."""
    total = sum(weights.values())
    # In whole numbers of Python: amounts times weights do not fit into 64 bits.
    summed = sum(amounts.astype(object) * weights[name] for name, amounts in allocatable.items())
    sign = 1 if mode == "Most" else -1
    return np.array([sign * (int(one) // total) for one in np.atleast_1d(summed)], np.int64)


def by_size(raw: IntArray) -> IntArray:
    """The score of nodes of this size. All alike is 0 for all."""
    return between_extremes(raw.astype(np.float64))
