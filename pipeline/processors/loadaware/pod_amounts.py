"""What counts of a pod on its node: amounts that are summed per node, whichever pods it has.

Owes the rest: whole numbers, so that a sum from which a pod is taken away again is what it was
before; the same for a pod that is asked about, one that is on its way and one that runs.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import UNSET

from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs
from pipeline.processors.loadaware.pod_estimate import (
    SECONDS_AFTER_INITIALIZED,
    SECONDS_AFTER_SCHEDULED,
    deadline,
    estimate,
    own_factors,
    own_seconds,
)
from pipeline.processors.scorers.scorer import Packing, PodAmount
from pipeline.processors.scorers.target_load_packing import Container, pod_millicores
from pipeline.times import parse_time
from pipeline.topics.pods import CountedPod, PodRecord
from pipeline.topics.resource_amounts import Resources

Pod = CountedPod | PodRecord

_LARGEST: Final = 2**53


class Counting(NamedTuple):
    """What is to be counted: estimates by `load_aware`; of `resources` requests, limits, and limits
    that are at least the requests; what NodeResourcesFitPlus has pods ask for of `fitted`; cpu as
    `packing` has it."""

    load_aware: LoadAwareArgs
    resources: tuple[str, ...] = ("cpu", "memory")
    amounts_of_scorers: Mapping[str, PodAmount] = {}
    packing: Packing = Packing()

    @property
    def names(self) -> tuple[str, ...]:
        """The amounts, in the order of `amounts`."""
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
        """What counts of this pod, cpu in millicores, each at most what a float holds exactly."""
        requests, limits = asked_of(pod.requests, pod.scalars), limits_of(pod)
        found = [
            *self.estimates(pod, requests, limits).values(),
            *(requests.get(name, 0) for name in self.resources),
            *(limits.get(name, 0) for name in self.resources),
            *(max(requests.get(name, 0), limits.get(name, 0)) for name in self.resources),
            *(amount(pod) for amount in self.amounts_of_scorers.values()),
            packed(pod, self.packing),
            1,  # a pod
        ]
        return [min(max(amount, 0), _LARGEST) for amount in found]

    def estimates(
        self, pod: Pod, requests: Mapping[str, int], limits: Mapping[str, int]
    ) -> dict[str, int]:
        """What the pod will use of the resources that LoadAware knows; 0 without a factor."""
        args = self.load_aware
        factors = args.estimated_scaling_factors
        if args.allow_customize_estimation:
            factors = own_factors(pod.annotations, factors)
        found = estimate(pod.pod_class, requests, limits, factors)
        return {name: found.get(name, 0) for name in args.resources}

    def deadline(self, pod: Pod, scheduled_seconds: float) -> float | None:
        """Until when the pod counts its estimate although it is measured, UTC seconds."""
        args = self.load_aware
        scheduled = args.estimated_seconds_after_pod_scheduled
        initialized = args.estimated_seconds_after_initialized
        if args.allow_customize_estimation:
            scheduled = own_seconds(pod.annotations, SECONDS_AFTER_SCHEDULED, scheduled)
            initialized = own_seconds(pod.annotations, SECONDS_AFTER_INITIALIZED, initialized)
        since = seconds_of(pod.initialized_at)
        return deadline(scheduled_seconds, since, scheduled, initialized)


def asked_of(amounts: Resources, scalars: Mapping[str, int] | None) -> dict[str, int]:
    """Amounts by the names that Kubernetes has for them."""
    found = dict(scalars or {})
    if amounts.cpu_millicores is not None:
        found["cpu"] = amounts.cpu_millicores
    if amounts.memory_bytes is not None:
        found["memory"] = amounts.memory_bytes
    return found


def limits_of(pod: Pod) -> dict[str, int]:
    """What the pod may take: of other resources what it asks for, where no limit is said apart."""
    apart = pod.scalar_limits
    return asked_of(pod.limits, pod.scalars if apart is UNSET else apart)


def packed(pod: Pod, packing: Packing) -> int:
    """What TargetLoadPacking has the pod use of cpu, millicores."""
    containers = (
        Container(one.requests.cpu_millicores, one.limits.cpu_millicores) for one in pod.containers
    )
    return pod_millicores(containers, pod.overhead.cpu_millicores or 0, packing)


def seconds_of(time: str | None) -> float | None:
    """Unix time of RFC 3339 text; None for none, and for what is not."""
    try:
        return None if time is None else parse_time(time)
    except ValueError:
        return None
