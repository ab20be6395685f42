"""What speaks against an eviction plan, by the world as it is when it is to be carried out.

Owes the rest: nobody is evicted for a pod that does not wait any more, nobody who is as important
as it, and nobody whom his own controller, or he himself, keeps where he is.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pipeline.processors.placement.victim_selection import AT_MOST, PUSHED_OUT
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.pods import CountedPod, PodRecord

TIED_TO_NODES: Final = frozenset({"DaemonSet", "Node"})
"""Kinds of owners whose pods come again on the same node."""
PREEMPTIBLE: Final = "quota.scheduling.koordinator.sh/preemptible"
"""A label: `false` on a pod that is not pushed out."""

_ENDED: Final = frozenset({"Succeeded", "Failed"})


def stays(pod: CountedPod | PodRecord) -> bool:
    """Whether this pod is never pushed out: it says so, or would be back on its node at once."""
    tied = pod.owner is not None and pod.owner.kind in TIED_TO_NODES
    return tied or pod.labels.get(PREEMPTIBLE) == "false"


def leaving(plan: EvictionPlanRecord, there: Mapping[str, PodRecord]) -> list[PodRecord]:
    """The pods of a plan that are on its node, `there` by UID, and not on their way already."""
    found = (there[one.uid] for one in plan.pods if one.uid in there)
    return [pod for pod in found if pod.deleted_at is None and pod.phase not in _ENDED]


def objection(
    plan: EvictionPlanRecord,
    waiting: PodRecord | None,
    there: Mapping[str, PodRecord],
    *,
    may_push_out: bool = True,
) -> str | None:
    """Why nobody is to be evicted; None for no reason. `waiting` is the pod of the name that the
    plan gives, None for none, whose policy says whether it may push out others; `there` are the
    pods on the plan's node."""
    if plan.waiting is None:
        return "it does not say for whom"
    if waiting is None or waiting.uid != plan.waiting.uid:
        return "nobody waits: the pod is gone"
    if waiting.node:
        return f"nobody waits: the pod is on {waiting.node}"
    if not may_push_out:
        return "the pod that waits has preemptionPolicy Never"
    if waiting.deleted_at is not None:
        return "nobody waits: the pod is about to be deleted"
    if waiting.pod_class != "prod":
        return f"the pod that waits is of class {waiting.pod_class}, not prod"
    if len(plan.pods) > AT_MOST:
        return f"{len(plan.pods)} pods are more than the {AT_MOST} that may leave for one"
    return next(filter(None, _against(leaving(plan, there), waiting)), None)


def _against(pods: Sequence[PodRecord], waiting: PodRecord) -> list[str | None]:
    return [_against_one(pod, waiting.priority or 0) for pod in pods]


def _against_one(pod: PodRecord, priority: int) -> str | None:
    who = f"{pod.namespace}/{pod.name}"
    if pod.pod_class not in PUSHED_OUT:
        return f"{who} is of class {pod.pod_class}"
    if (pod.priority or 0) >= priority:
        return f"{who} has priority {pod.priority or 0}, the pod that waits {priority}"
    if stays(pod):
        return f"{who} says that it stays, or would come again at once"
    return None
