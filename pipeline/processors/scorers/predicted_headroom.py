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
    has_requests = nodes.column("peak_counts_requests").astype(np.bool_)
    flight, unreported = nodes.in_flight_usage(), nodes.unreported_usage()
    summed, known = np.zeros(len(nodes), np.int64), np.ones(len(nodes), np.bool_)
    for name, weight in weights.items():
        peak = np.where(nodes.is_new(), 0.0, _peak(nodes, name, args))
        capacity = nodes.allocatable(name, "raw")
        has_peak = np.isfinite(peak)
        known &= has_peak & (capacity > 0)
        used = np.where(has_peak, peak, 0.0).astype(np.int64)
        if name in estimated:
            column = estimated[name]
            used += np.where(has_requests, unreported[:, column], flight[:, column])
        left = np.maximum(capacity - used - demand.counted.get(f"estimate:{name}", 0), 0)
        summed += weight * (left * MAX_SCORE // np.maximum(capacity, 1))
    return np.where(known, summed // sum(weights.values()), 0)


def _peak(nodes: NodesView, resource: str, args: PredictedHeadroomArgs) -> FloatArray:
    """The predicted peak, (nodes,), NaN unknown."""
    seconds = args.usage_expiration_seconds

    def compute() -> FloatArray:
        return np.where(nodes.is_fresh(seconds), nodes.usage("peak", [resource])[:, 0], np.nan)

    return nodes.cached(f"fresh peak {resource} {seconds}", compute)


def _knows(nodes: NodesView, args: PredictedHeadroomArgs) -> bool:
    return any(
        np.count_nonzero(np.isfinite(_peak(nodes, each.name, args))) for each in args.resources
    )


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
