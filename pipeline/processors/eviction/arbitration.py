"""The order in which waiting evictions are judged, as Koordinator's arbitrator orders its jobs.

Four stable sorts, the last one dominates: newer requests first; pods that are cheap to evict
first; pods of one batch Job next to the best of them; Jobs that already have pods on the move
first.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from pipeline.processors.eviction.evictability import DELETION_COST, EVICTION_COST, cost
from pipeline.processors.placement.preemption_order import rank
from pipeline.times import time_or_none
from pipeline.topics.pods import PodRecord

_KUBE_QOS: Final = {"BestEffort": 0, "Burstable": 1, "Guaranteed": 2}
_QOS: Final = {"BE": 0, "LS": 1, "LSR": 2, "LSE": 3, "SYSTEM": 3}
_NONE: Final = 4

Verdict = Literal["pass", "wait", "fail"]


class PodRank(NamedTuple):
    """The place of a pod among others: the lowest is evicted first."""

    pod_class: int
    priority: int
    kube_qos: int
    qos: int
    deletion_cost: int
    eviction_cost: int
    age: float


class Request(NamedTuple):
    """A waiting eviction. `rank` is comparable among requests, None if the pod is gone; `batch_job`
    identifies the batch Job that owns the pod."""

    created_at: float = 0.0
    rank: PodRank | tuple[int, ...] | None = None
    batch_job: str | None = None


def pod_rank(pod: PodRecord, kube_qos: str) -> PodRank:
    """The rank of a pod: Free before Batch, Mid, Prod and pods without a class; then low priority,
    low QoS, low costs and short age first."""
    return PodRank(
        _NONE if pod.pod_class == "none" else rank(pod.pod_class),
        pod.priority or 0,
        _KUBE_QOS.get(kube_qos, _NONE),
        _QOS.get(pod.qos, _NONE),
        cost(pod.annotations.get(DELETION_COST)),
        cost(pod.annotations.get(EVICTION_COST)),
        -(time_or_none(pod.created_at) or 0.0),
    )


def arbitration_order(requests: Sequence[Request], moving: Mapping[str, int]) -> list[int]:
    """Positions of the requests in the order in which they are judged. `moving` is the number of
    pods on the move by batch Job."""
    order = by_creation(requests, range(len(requests)))
    order = by_pod_rank(requests, order)
    order = by_batch_job(requests, order)
    return by_moving_siblings(requests, order, moving)


def by_creation(requests: Sequence[Request], order: Sequence[int]) -> list[int]:
    """Newer requests first, in whole seconds."""
    return sorted(order, key=lambda position: -int(requests[position].created_at))


def by_pod_rank(requests: Sequence[Request], order: Sequence[int]) -> list[int]:
    """Pods that are gone first, then by rank."""
    return sorted(order, key=lambda position: requests[position].rank or ())


def by_batch_job(requests: Sequence[Request], order: Sequence[int]) -> list[int]:
    """Pods of one batch Job follow the first of them."""
    first: dict[str, int] = {}
    for place, position in enumerate(order):
        job = requests[position].batch_job
        if job is not None:
            first.setdefault(job, place)
    places = {position: place for place, position in enumerate(order)}
    return sorted(
        order,
        key=lambda position: first.get(requests[position].batch_job or "", places[position]),
    )


def by_moving_siblings(
    requests: Sequence[Request], order: Sequence[int], moving: Mapping[str, int]
) -> list[int]:
    """Batch Jobs with more pods on the move first."""
    return sorted(order, key=lambda position: -moving.get(requests[position].batch_job or "", 0))


def judge(*, exists: bool, is_evictable: bool, is_within_limits: bool) -> Verdict:
    """What becomes of a request: a pod that is gone passes, because there is nothing to do; one
    that may never be evicted fails; one that exceeds a limit waits."""
    if not exists:
        return "pass"
    if not is_evictable:
        return "fail"
    return "pass" if is_within_limits else "wait"
