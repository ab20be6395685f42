"""The amounts of a pod that the state table sums per node.

Whole numbers, so that removing a pod restores the previous sum. The pod of a request, pods in
flight and running pods are counted by the same rules.
"""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import UNSET

from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs
from pipeline.processors.loadaware.pod_estimate import (
    SECONDS_AFTER_INITIALIZED,
    SECONDS_AFTER_SCHEDULED,
    deadline,
    estimate,
    pod_factors,
    pod_seconds,
)
from pipeline.processors.scorers.scorer import Packing, PodAmount, PodDemand
from pipeline.processors.scorers.target_load_packing import container_millicores
from pipeline.times import time_or_none
from pipeline.topics.pods import CountedPod, PodRecord
from pipeline.topics.resource_amounts import LARGEST_POD_AMOUNT, by_name

Pod = CountedPod | PodRecord


class Counting(NamedTuple):
    """The counted amounts: estimates by `load_aware`; requests, limits and the larger of both of
    `resources`; amounts that scorers declare; the cpu that TargetLoadPacking predicts."""

    load_aware: LoadAwareArgs
    resources: tuple[str, ...] = ("cpu", "memory")
    amounts_of_scorers: Mapping[str, PodAmount] = {}
    packing: Packing = Packing()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of amounts, in the order of `amounts`."""
        return (
            *(f"estimate:{name}" for name in self.load_aware.resources),
            *(f"request:{name}" for name in self.resources),
            *(f"limit:{name}" for name in self.resources),
            *(f"bound:{name}" for name in self.resources),
            *self.amounts_of_scorers,
            "packing",
            "pods",
        )

    def amounts(self, pod: Pod) -> list[int]:
        """The amounts of a pod, cpu in millicores, each from 0 to 2**48."""
        requests, limits = by_name(pod.requests, pod.scalars), pod_limits(pod)
        amounts = [
            *self.estimates(pod, requests, limits).values(),
            *(requests.get(name, 0) for name in self.resources),
            *(limits.get(name, 0) for name in self.resources),
            *(max(requests.get(name, 0), limits.get(name, 0)) for name in self.resources),
            *(amount(pod) for amount in self.amounts_of_scorers.values()),
            packed_millicores(pod, self.packing),
            1,
        ]
        return [min(max(amount, 0), LARGEST_POD_AMOUNT) for amount in amounts]

    def estimates(
        self, pod: Pod, requests: Mapping[str, int], limits: Mapping[str, int]
    ) -> dict[str, int]:
        """The estimated usage of the pod, by resource of LoadAware; 0 without a factor."""
        args = self.load_aware
        factors = args.estimated_scaling_factors
        if args.allow_customize_estimation:
            factors = pod_factors(pod.annotations, factors)
        estimates = estimate(pod.pod_class, requests, limits, factors)
        return {name: estimates.get(name, 0) for name in args.resources}

    def deadline(self, pod: Pod, scheduled_seconds: float) -> float | None:
        """When a pod that is measured stops counting its estimate, UTC seconds."""
        args = self.load_aware
        scheduled = args.estimated_seconds_after_pod_scheduled
        initialized = args.estimated_seconds_after_initialized
        if args.allow_customize_estimation:
            scheduled = pod_seconds(pod.annotations, SECONDS_AFTER_SCHEDULED, scheduled)
            initialized = pod_seconds(pod.annotations, SECONDS_AFTER_INITIALIZED, initialized)
        since = time_or_none(pod.initialized_at)
        return deadline(scheduled_seconds, since, scheduled, initialized)


def pod_demand(pod: PodRecord, counting: Counting) -> PodDemand:
    """The amounts that `counting` takes from a pod."""
    return PodDemand(pod, dict(zip(counting.names, counting.amounts(pod), strict=True)))


def pod_limits(pod: Pod) -> dict[str, int]:
    """The limits of a pod by name; of extended resources its requests if the record has no limits
    of their own."""
    own = pod.scalar_limits
    return by_name(pod.limits, pod.scalars if own is UNSET else own)


def packed_millicores(pod: Pod, packing: Packing) -> int:
    """The cpu that TargetLoadPacking predicts for a pod in millicores: its containers and its
    overhead, without init containers."""
    return (pod.overhead.cpu_millicores or 0) + sum(
        container_millicores(each.requests.cpu_millicores, each.limits.cpu_millicores, packing)
        for each in pod.containers
    )
