"""NodeResourcesAllocatable of scheduler-plugins: small nodes first, or big ones."""

from typing import Final, Literal

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.scorers.rounding import scale_between_extremes
from pipeline.processors.scorers.scorer import (
    NodesView,
    PodDemand,
    Scorer,
    ScorerArgs,
    WeightedResource,
    WeightedResources,
    resource_problems,
)

Mode = Literal["Least", "Most"]
_SQUARE_FITS: Final = 1 << 31


class NodeResourcesAllocatableArgs(ScorerArgs, frozen=True, kw_only=True):
    mode: Mode = "Least"
    resources: WeightedResources = (
        WeightedResource(name="cpu", weight=1 << 20),
        WeightedResource(name="memory", weight=1),
    )


def node_sizes(nodes: NodesView, args: NodeResourcesAllocatableArgs) -> IntArray:
    """The size of nodes, (nodes,): the mean of allocatable by weight, truncated; negative in mode
    `Least`."""
    weights = {resource.name: resource.weight for resource in args.resources}
    total, sign = sum(weights.values()), 1 if args.mode == "Most" else -1
    # Amounts times weights may exceed 64 bits: divide before, and the remainders after. The object
    # type has integers of any size; remainders below the square root of 2**63 need it not.
    kind = object if total >= _SQUARE_FITS else np.int64
    parts = [np.divmod(nodes.allocatable(name), total) for name in weights]
    whole = sum(part * weight for (part, _), weight in zip(parts, weights.values(), strict=True))
    rest = sum(
        rest.astype(kind) * weight
        for (_, rest), weight in zip(parts, weights.values(), strict=True)
    )
    return sign * np.asarray(whole + rest // total, np.int64)


def score(nodes: NodesView, demand: PodDemand, args: NodeResourcesAllocatableArgs) -> IntArray:
    return scale_between_extremes(node_sizes(nodes, args).astype(np.float64))


SCORER: Final = Scorer(
    name="NodeResourcesAllocatable",
    source="scheduler-plugins",
    text="prefers small nodes, or with `mode: Most` big ones",
    args=NodeResourcesAllocatableArgs,
    score=score,
    problems=resource_problems,
)
