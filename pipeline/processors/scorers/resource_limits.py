"""ResourceLimits: nodes on which limits leave most room first.

Source: scheduler-plugins' KEP-217, a proposal that was never shipped. room = (allocatable - limits
of its pods - limits of the pod) * 100 / allocatable, negative where limits exceed allocatable; the
best of the nodes compared gets 100, the worst 0.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.scorers.rounding import scale_between_extremes
from pipeline.processors.scorers.scorer import (
    CPU_AND_MEMORY,
    Counts,
    NodesView,
    PodDemand,
    Scorer,
    ScorerArgs,
    WeightedResources,
    resource_problems,
    unknown_resources,
)
from pipeline.topics.resource_amounts import millicores, whole_bytes

_UNLIMITED: Final = ("cpu", "memory", "ephemeral-storage")
"""Resources that a pod without a limit may use up; of all others it gets none."""


class ResourceLimitsArgs(ScorerArgs, frozen=True, kw_only=True):
    """`default_limit` is the limit of a pod without one, by resource: quantities, or numbers in
    millicores of cpu and bytes; without it the pod counts the node's allocatable."""

    resources: WeightedResources = CPU_AND_MEMORY
    default_limit: dict[str, Annotated[int, Meta(ge=0)] | str] = msgspec.field(default_factory=dict)

    @property
    def default_limits(self) -> dict[str, int]:
        """In millicores and bytes. Raises InvalidRecordError for an invalid quantity."""
        return {name: _amount(name, given) for name, given in self.default_limit.items()}


def _amount(resource: str, given: int | str) -> int:
    if isinstance(given, int):
        return given
    return millicores(given) if resource == "cpu" else whole_bytes(given)


def limit_room(
    allocatable: Mapping[str, FloatArray],
    limits: Mapping[str, FloatArray],
    pod_limits: Mapping[str, float],
    weights: Mapping[str, float],
) -> FloatArray:
    """Allocatable minus limits, (nodes,) in percent of allocatable: the mean over the resources of
    `weights`, by weight. NaN where a node has nothing of a resource."""
    total = sum(weights.values())
    summed = np.zeros(len(next(iter(allocatable.values()))))
    for resource, weight in weights.items():
        capacity = allocatable[resource]
        with np.errstate(all="ignore"):
            left = (capacity - limits[resource] - pod_limits.get(resource, 0.0)) * 100 / capacity
        summed += weight * np.where(capacity > 0, left, np.nan)
    return summed / total


def node_limit_room(nodes: NodesView, demand: PodDemand, args: ResourceLimitsArgs) -> FloatArray:
    """`limit_room` of nodes with the pod, (nodes,)."""
    weights = {resource.name: float(resource.weight) for resource in args.resources}
    allocatable = {name: nodes.allocatable(name).astype(np.float64) for name in weights}
    limits = {name: nodes.counted(f"limit:{name}").astype(np.float64) for name in weights}
    pod_limits = {name: demand.counted[f"limit:{name}"] for name in weights}
    defaults = args.default_limits
    for name, limit in pod_limits.items():
        if not limit and (name in _UNLIMITED or name in defaults):
            limits[name] = limits[name] + defaults.get(name, allocatable[name])
    return limit_room(allocatable, limits, pod_limits, weights)


def score(nodes: NodesView, demand: PodDemand, args: ResourceLimitsArgs) -> IntArray:
    return scale_between_extremes(node_limit_room(nodes, demand, args))


def _problems(args: ResourceLimitsArgs) -> Iterator[str]:
    yield from resource_problems(args)
    yield from unknown_resources("defaultLimit", [*args.default_limit])
    try:
        if min(args.default_limits.values(), default=0) < 0:
            yield "defaultLimit: an amount is below 0"
    except InvalidRecordError as error:
        yield f"defaultLimit: {error.message}"


SCORER: Final = Scorer(
    name="ResourceLimits",
    source="KEP-217",
    text=(
        "limits of all pods over allocatable: `resources: [{name, weight}]` (cpu, memory, "
        "`ephemeral-storage`, huge pages, extended resources), `defaultLimit` for pods without"
    ),
    args=ResourceLimitsArgs,
    score=score,
    problems=_problems,
    counts=lambda args: Counts(resources=tuple(resource.name for resource in args.resources)),
)
