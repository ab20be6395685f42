"""PredictedHeadroom: nodes that will stay idle first.

room = allocatable - predicted peak - estimates of pods in flight - estimate of the pod, as a share
of allocatable before amplification. A node that is quiet now and was busy every morning has little
room. Koordinator's and Trimaran's scorers see recent usage alone.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import numpy as np
from msgspec import Meta

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.scorers.rounding import MAX_SCORE
from pipeline.processors.scorers.scorer import (
    CPU_AND_MEMORY,
    USAGE_EXPIRES_SECONDS,
    NodesView,
    PodDemand,
    Scorer,
    ScorerArgs,
    WeightedResources,
    resource_problems,
)


class PredictedHeadroomArgs(ScorerArgs, frozen=True, kw_only=True):
    """Resources with a predicted peak: cpu and memory. Peaks of windows older than
    `usage_expiration_seconds` are unknown."""

    resources: WeightedResources = CPU_AND_MEMORY
    usage_expiration_seconds: Annotated[float, Meta(gt=0)] = USAGE_EXPIRES_SECONDS


def score(nodes: NodesView, demand: PodDemand, args: PredictedHeadroomArgs) -> IntArray:
    """The mean of the shares by weight, (nodes,), truncated; 0 where the peak of a resource is
    unknown, or a node has nothing of it."""
    weights = {resource.name: resource.weight for resource in args.resources}
    estimated = {name: index for index, name in enumerate(_estimated_resources(demand))}
    # Peaks that add up pods have those of the last window already, cold ones at their request.
    has_requests = nodes.column("peak_counts_requests").astype(np.bool_)[:, None]
    flight = np.where(has_requests, nodes.unreported_usage(), nodes.in_flight_usage())
    summed, known = np.zeros(len(nodes), np.int64), np.ones(len(nodes), np.bool_)
    for (name, weight), measured in zip(weights.items(), _peaks(nodes, args).T, strict=True):
        peak = np.where(nodes.is_new(), 0.0, measured)
        in_flight = flight[:, estimated[name]] if name in estimated else 0
        capacity = nodes.allocatable(name, "raw")
        known &= np.isfinite(peak) & (capacity > 0)
        used = np.nan_to_num(peak).astype(np.int64) + in_flight
        left = np.maximum(capacity - used - demand.counted.get(f"estimate:{name}", 0), 0)
        summed += weight * (left * MAX_SCORE // np.maximum(capacity, 1))
    return np.where(known, summed // sum(weights.values()), 0)


def _peaks(nodes: NodesView, args: PredictedHeadroomArgs) -> FloatArray:
    """Predicted peaks, (nodes, resources), NaN unknown."""
    names = dict.fromkeys(resource.name for resource in args.resources)
    peaks = nodes.usage("peak", [*names])
    return np.where(nodes.is_fresh(args.usage_expiration_seconds)[:, None], peaks, np.nan)


def _knows(nodes: NodesView, args: PredictedHeadroomArgs) -> bool:
    return bool(np.isfinite(_peaks(nodes, args)).any())


def _estimated_resources(demand: PodDemand) -> Sequence[str]:
    """The resources of LoadAwareScheduling, in the order of `NodesView.in_flight_usage`."""
    return [name.partition(":")[2] for name in demand.counted if name.startswith("estimate:")]


def _problems(args: PredictedHeadroomArgs) -> Iterator[str]:
    yield from resource_problems(args)
    for resource in args.resources:
        if resource.name not in ("cpu", "memory"):
            yield f"resources: {resource.name!r:.80} has no predicted peak"


SCORER: Final = Scorer(
    name="PredictedHeadroom",
    source="Springtide",
    text=(
        "what is left under the *predicted* peak: nodes that stay idle first; "
        "`usageExpirationSeconds`: ignore older windows"
    ),
    args=PredictedHeadroomArgs,
    score=score,
    problems=_problems,
    expiration_seconds=lambda args: args.usage_expiration_seconds,
    knows=_knows,
)
