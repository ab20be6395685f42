"""NodeResourcesAllocatable of scheduler-plugins: small nodes first, or big ones."""

from collections.abc import Mapping
from typing import Final, Literal

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.scorers.rounding import between_extremes
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


class NodeResourcesAllocatableArgs(ScorerArgs, frozen=True, kw_only=True):
    mode: Mode = "Least"
    resources: WeightedResources = (
        WeightedResource(name="cpu", weight=1 << 20),
        WeightedResource(name="memory", weight=1),
    )


def raw_size(
    allocatable: Mapping[str, IntArray], weights: Mapping[str, int], mode: Mode = "Least"
) -> IntArray:
    """The mean of allocatable by weight, (nodes,), truncated; negative in mode `Least`."""
    total = sum(weights.values())
    # Python integers: amounts times weights exceed 64 bits.
    summed = sum(amounts.astype(object) * weights[name] for name, amounts in allocatable.items())
    sign = 1 if mode == "Most" else -1
    return np.array([sign * (int(size) // total) for size in np.atleast_1d(summed)], np.int64)


def by_size(raw: IntArray) -> IntArray:
    """The score of nodes of this size; 0 for all if they are equal."""
    return between_extremes(raw.astype(np.float64))


def size_of(nodes: NodesView, args: NodeResourcesAllocatableArgs) -> IntArray:
    """The size of nodes, (nodes,), negative in mode `Least`."""
    weights = {resource.name: resource.weight for resource in args.resources}
    return raw_size({name: nodes.allocatable(name) for name in weights}, weights, args.mode)


def score(nodes: NodesView, demand: PodDemand, args: NodeResourcesAllocatableArgs) -> IntArray:
    return by_size(size_of(nodes, args))


SCORER: Final = Scorer(
    name="NodeResourcesAllocatable",
    source="scheduler-plugins",
    text="prefers small nodes, or with `mode: Most` big ones",
    args=NodeResourcesAllocatableArgs,
    score=score,
    problems=resource_problems,
)
