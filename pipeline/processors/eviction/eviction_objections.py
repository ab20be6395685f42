"""Objections to an eviction plan at the moment of its execution.

No pod is evicted for a pod that no longer waits, or for one that is not more important. Pods that
opt out, or that their controller would start on the same node again, are never evicted.
"""

from collections.abc import Mapping
from typing import Final

from pipeline.processors.placement.victim_selection import AT_MOST, PUSHED_OUT
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.pod_columns import ENDED
from pipeline.topics.pods import CountedPod, PodRecord

TIED_TO_NODES: Final = frozenset({"DaemonSet", "Node"})
"""Kinds of owners that start their pods on the same node again."""
PREEMPTIBLE: Final = "quota.scheduling.koordinator.sh/preemptible"
"""A pod with this label and the value `false` is never evicted."""


def is_never_evicted(pod: CountedPod | PodRecord) -> bool:
    """Whether the pod opts out of eviction, or would be started on its node again."""
    tied = pod.owner is not None and pod.owner.kind in TIED_TO_NODES
    return tied or pod.labels.get(PREEMPTIBLE) == "false"


def pods_to_evict(plan: EvictionPlanRecord, on_node: Mapping[str, PodRecord]) -> list[PodRecord]:
    """The pods of a plan that are `on_node` (by UID), not being deleted and not ended."""
    pods = (on_node[pod.uid] for pod in plan.pods if pod.uid in on_node)
    return [pod for pod in pods if pod.deleted_at is None and pod.phase not in ENDED]


def objection(
    plan: EvictionPlanRecord,
    waiting: PodRecord | None,
    on_node: Mapping[str, PodRecord],
    *,
    may_push_out: bool = True,
) -> str | None:
    """Why the plan is refused; None if it may be executed.

    `waiting` is the pod that the plan names, None if there is no such pod; `may_push_out` is false
    for its preemptionPolicy Never. `on_node` are the pods on the plan's node by UID.
    """
    if plan.waiting is None:
        return "the plan names no waiting pod"
    if waiting is None or waiting.uid != plan.waiting.uid:
        return "no pod waits: it was deleted"
    if waiting.node:
        return f"no pod waits: it is on {waiting.node}"
    if not may_push_out:
        return "the waiting pod has preemptionPolicy Never"
    if waiting.deleted_at is not None:
        return "no pod waits: it is being deleted"
    if waiting.pod_class != "prod":
        return f"the waiting pod is of class {waiting.pod_class}, not prod"
    if len(plan.pods) > AT_MOST:
        return f"{len(plan.pods)} pods are more than the {AT_MOST} that may be evicted for one"
    pods = pods_to_evict(plan, on_node)
    objections = (_objection_to(pod, waiting.priority or 0) for pod in pods)
    return next(filter(None, objections), None)


def _objection_to(pod: PodRecord, priority: int) -> str | None:
    name = f"{pod.namespace}/{pod.name}"
    if pod.pod_class not in PUSHED_OUT:
        return f"{name} is of class {pod.pod_class}"
    if (pod.priority or 0) >= priority:
        return f"{name} has priority {pod.priority or 0}, the waiting pod {priority}"
    if is_never_evicted(pod):
        return f"{name} opts out of eviction, or would be started on its node again"
    return None
