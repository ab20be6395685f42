"""ScarceResourceAvoidance of Koordinator: pods that need no GPU avoid nodes that have one.

(kinds that the pod leaves unused - scarce kinds of them) * 100 / kinds that it leaves unused,
truncated.
"""

from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.scorers.rounding import MAX_SCORE
from pipeline.processors.scorers.scorer import (
    NodesView,
    PodDemand,
    Scorer,
    ScorerArgs,
    resource_problems,
)

_NOT_KINDS: Final = frozenset({"pods"})


class ScarceResourceAvoidanceArgs(ScorerArgs, frozen=True, kw_only=True):
    resources: tuple[str, ...] = ()


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


def score(nodes: NodesView, demand: PodDemand, args: ScarceResourceAvoidanceArgs) -> IntArray:
    kinds = {name: nodes.allocatable(name) for name in ("cpu", "memory", *nodes.scalars)}
    return scarce_resources(kinds, demand.requests, args.resources, len(nodes))


SCORER: Final = Scorer(
    name="ScarceResourceAvoidance",
    source="Koordinator",
    text="prefers nodes without the scarce `resources` that the pod does not request",
    args=ScarceResourceAvoidanceArgs,
    score=score,
    problems=resource_problems,
)
