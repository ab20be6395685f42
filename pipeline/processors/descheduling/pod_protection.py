"""Which pods no strategy moves, whatever its arguments are."""

from typing import Final

from pipeline.processors.descheduling.pod_order import EVICTION_COST, NEVER_EVICTED_COST, cost
from pipeline.processors.eviction.eviction_objections import PREEMPTIBLE, TIED_TO_NODES
from pipeline.topics.pod_columns import ENDED
from pipeline.topics.pods import PodRecord

SYSTEM_CRITICAL: Final = 2_000_000_000
"""The lowest priority of pods that are critical for the system."""


def protection(pod: PodRecord) -> str | None:
    """Why no strategy moves the pod; None if one may."""
    owner = pod.owner
    if owner is None:
        return "no controller would start the pod again"
    if owner.kind in TIED_TO_NODES:
        return f"{owner.kind} {owner.name} would start it on its node again"
    if pod.deleted_at is not None:
        return "the pod is being deleted"
    if pod.phase in ENDED:
        return "the pod has ended"
    if pod.labels.get(PREEMPTIBLE) == "false":
        return f"the pod has the label {PREEMPTIBLE}: false"
    if (pod.priority or 0) >= SYSTEM_CRITICAL:
        return "the pod is critical for the system"
    if cost(pod.annotations.get(EVICTION_COST)) == NEVER_EVICTED_COST:
        return f"{EVICTION_COST} is {NEVER_EVICTED_COST}"
    return None
