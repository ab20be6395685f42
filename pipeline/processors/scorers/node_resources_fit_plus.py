"""NodeResourcesFitPlus of Koordinator: pack some resources, spread others."""

from collections.abc import Mapping
from functools import partial
from typing import Final, Literal

import msgspec
import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.kubernetes.pod_resources import effective_requests
from pipeline.processors.scorers.rounding import MAX_SCORE
from pipeline.processors.scorers.scorer import (
    Counts,
    NodesView,
    PodDemand,
    Scorer,
    ScorerArgs,
    Weight,
    unknown_resources,
)
from pipeline.topics.pods import Container, CountedPod, PodRecord
from pipeline.topics.resource_amounts import by_name

Strategy = Literal["MostAllocated", "LeastAllocated"]
_DEFAULT_REQUESTS: Final[Mapping[str, int]] = {"cpu": 100, "memory": 200 << 20}
"""Requests of a container without a request: 100 millicores, 200 MiB."""


class FitResource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Strategy
    weight: Weight = 1


class NodeResourcesFitPlusArgs(ScorerArgs, frozen=True, kw_only=True):
    resources: dict[str, FitResource] = msgspec.field(default_factory=dict)


def fit_request(pod: CountedPod | PodRecord, resource: str) -> int:
    """The request of a pod for `resource`, overhead included, with defaults for containers
    without a request. Init containers before a sidecar have ended (upstream adds their maximum)."""
    default = _DEFAULT_REQUESTS.get(resource, 0)

    def counted(container: Container) -> dict[str, int]:
        return {resource: by_name(container.requests, container.scalars).get(resource, default)}

    requests = effective_requests(
        map(counted, pod.containers),
        ((counted(container), container.restartable) for container in pod.init_containers),
        {},
        by_name(pod.overhead, pod.scalar_overhead or None),
    )
    return requests.get(resource, 0)


def score(nodes: NodesView, demand: PodDemand, args: NodeResourcesFitPlusArgs) -> IntArray:
    """The mean by weight over the resources that the pod requests, (nodes,); 100 if it requests
    none of them."""
    summed, weights = np.zeros(len(nodes), np.int64), 0
    for name, resource in args.resources.items():
        requested = demand.counted[f"fitted:{name}"]
        if requested <= 0:
            continue
        capacity = nodes.allocatable(name)
        used = nodes.counted(f"fitted:{name}") + requested
        is_packed = resource.type == "MostAllocated"
        counted = np.minimum(used, capacity) if is_packed else np.maximum(capacity - used, 0)
        share = counted * MAX_SCORE // np.maximum(capacity, 1)
        summed += resource.weight * np.where(capacity > 0, share, 0)
        weights += resource.weight
    return summed // weights if weights else np.full(len(nodes), MAX_SCORE, np.int64)


SCORER: Final = Scorer(
    name="NodeResourcesFitPlus",
    source="Koordinator",
    text="by requests: packs the resources of type `MostAllocated`, spreads `LeastAllocated`",
    args=NodeResourcesFitPlusArgs,
    score=score,
    problems=lambda args: unknown_resources("resources", [*args.resources]),
    counts=lambda args: Counts(
        amounts={f"fitted:{name}": partial(fit_request, resource=name) for name in args.resources}
    ),
)
