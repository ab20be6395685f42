"""PredictedHeadroom: nodes that will stay idle first.

room = allocatable - predicted peak - estimates of pods in flight - estimate of the pod, as a share
of allocatable. A node that is quiet now and was busy every morning has little room. Koordinator's
and Trimaran's scorers see recent usage alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

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
    usage_expires,
)


class PredictedHeadroomArgs(ScorerArgs, frozen=True, kw_only=True):
    """Resources with a predicted peak: cpu and memory."""

    resources: WeightedResources = CPU_AND_MEMORY


def headroom(
    allocatable: Mapping[str, IntArray],
    peak: Mapping[str, FloatArray],
    added: Mapping[str, IntArray],
    weights: Mapping[str, int],
) -> IntArray:
    """The score, (nodes,): the mean of the shares by weight, truncated; 0 where the peak of a
    resource is unknown, or a node has nothing of it."""
    summed = np.zeros(len(next(iter(peak.values()))), np.int64)
    known = np.ones(len(summed), np.bool_)
    for resource, weight in weights.items():
        capacity = allocatable[resource]
        known &= np.isfinite(peak[resource]) & (capacity > 0)
        taken = np.nan_to_num(peak[resource]).astype(np.int64) + added[resource]
        share = np.maximum(capacity - taken, 0) * MAX_SCORE // np.maximum(capacity, 1)
        summed += weight * share
    return np.where(known, summed // sum(weights.values()), 0)


def score(nodes: NodesView, demand: PodDemand, args: PredictedHeadroomArgs) -> IntArray:
    weights = {resource.name: resource.weight for resource in args.resources}
    estimated = {name: index for index, name in enumerate(_estimated_resources(demand))}
    flight = nodes.flight()
    peak, added = {}, {}
    for name in weights:
        predicted = nodes.usage("peak", [name])[:, 0]
        predicted = np.where(nodes.is_fresh(USAGE_EXPIRES_SECONDS), predicted, np.nan)
        peak[name] = np.where(nodes.is_new(), 0.0, predicted)
        in_flight = flight[:, estimated[name]] if name in estimated else flight[:, 0] * 0
        added[name] = in_flight + demand.counted.get(f"estimate:{name}", 0)
    allocatable = {name: nodes.allocatable(name) for name in weights}
    return headroom(allocatable, peak, added, weights)


def _estimated_resources(demand: PodDemand) -> Sequence[str]:
    """The resources of LoadAwareScheduling, in the order of `NodesView.flight`."""
    return [name.partition(":")[2] for name in demand.counted if name.startswith("estimate:")]


def _problems(args: PredictedHeadroomArgs) -> Iterator[str]:
    yield from resource_problems(args)
    for resource in args.resources:
        if resource.name not in ("cpu", "memory"):
            yield f"resources: {resource.name!r:.80} has no predicted peak"


SCORER: Final = Scorer(
    name="PredictedHeadroom",
    source="Springtide",
    text="what is left under the *predicted* peak: nodes that stay idle first",
    args=PredictedHeadroomArgs,
    score=score,
    problems=_problems,
    expiration_seconds=usage_expires,
)
