"""ScarceResourceAvoidance of Koordinator: keep pods that need no GPU off nodes that have one.

(kinds that the pod leaves unused - scarce ones of them) * 100 / kinds that it leaves unused, cut
(scheduling 2.2).
"""

from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.scorers.rounding import MAX_SCORE

_NOT_KINDS: Final = frozenset({"pods"})


def scarce_resources(
    allocatable: Mapping[str, IntArray],
    requested: Mapping[str, int],
    scarce: Collection[str],
    nodes: int,
) -> IntArray:
    """The score, (nodes,), by the kinds of resource that each node has: `allocatable` by name."""
    unused, wasted = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    for name, amounts in allocatable.items():
        if name in _NOT_KINDS or requested.get(name, 0) > 0:
            continue
        unused += amounts > 0
        if name in scarce:
            wasted += amounts > 0
    return np.where(unused > 0, (unused - wasted) * MAX_SCORE // np.maximum(unused, 1), MAX_SCORE)
