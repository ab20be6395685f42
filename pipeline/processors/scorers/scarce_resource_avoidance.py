"""ScarceResourceAvoidance of Koordinator: pods that need no GPU avoid nodes that have one.

(kinds that the pod leaves unused - scarce kinds of them) * 100 / kinds that it leaves unused,
truncated.
"""

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


def score(nodes: NodesView, demand: PodDemand, args: ScarceResourceAvoidanceArgs) -> IntArray:
    unused, wasted = np.zeros((2, len(nodes)), np.int64)
    for name in ("cpu", "memory", *nodes.scalars):
        if name in _NOT_KINDS or demand.requests.get(name, 0) > 0:
            continue
        has_kind = nodes.allocatable(name) > 0
        unused += has_kind
        if name in args.resources:
            wasted += has_kind
    return np.where(unused > 0, (unused - wasted) * MAX_SCORE // np.maximum(unused, 1), MAX_SCORE)


SCORER: Final = Scorer(
    name="ScarceResourceAvoidance",
    source="Koordinator",
    text="prefers nodes without the scarce `resources` that the pod does not request",
    args=ScarceResourceAvoidanceArgs,
    score=score,
    problems=resource_problems,
)
