"""`springtide.eviction-plans`: pods to evict from a node, and why.

A plan that makes room names the pod that waits: all of its pods leave, or none. In a plan without
one, which relieves the node, each pod stands alone. A plan names pods by UID, so that a later pod
of the same name is safe, and has an end of validity. It is a proposal: the evictor checks it
against the state of the cluster before it acts.
"""

from typing import Final

import msgspec

from pipeline.topics.codec import Record

LONGEST_VALID_SECONDS: Final = 300.0
"""A plan is valid for so long at most, whatever it says itself."""

MOST_PODS: Final = 1000
MOST_BYTES: Final = 1024 * 1024
LONGEST_NAME: Final = 512
"""Pods and bytes of a plan, and characters of its `id`, `planner` and `strategy`. A node has fewer
pods, and no planner of Springtide has longer names: the evictor refuses the plan."""


class WaitingPod(msgspec.Struct, frozen=True, kw_only=True):
    """The pending pod that needs the room."""

    namespace: str
    name: str
    uid: str
    priority: int


class LeavingPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod to evict, and the resources that its eviction is expected to free. Namespace and name
    may be empty.

    Plans that relieve a node also say the pod's `workload` as kind/namespace/name, the `target`
    where it is expected to land, usage and predicted peak there in percent of capacity after all
    moves, and the first targets that refused it, as "node: reason".
    """

    uid: str
    pod_class: str
    namespace: str = ""
    name: str = ""
    cpu_millicores: int = 0
    memory_bytes: int = 0
    workload: str = ""
    target: str = ""
    target_usage: dict[str, float] = msgspec.field(default_factory=dict)
    target_peak: dict[str, float] = msgspec.field(default_factory=dict)
    why_not: tuple[str, ...] = ()


class EvictionPlanRecord(Record, frozen=True, kw_only=True):
    """A plan to evict `pods` from `node`: with `waiting` all of them or none. Times are RFC 3339,
    UTC. A plan whose `id` was seen before is ignored. `strategy` names what made it."""

    node: str
    id: str
    at: str
    valid_until: str
    planner: str
    why: str
    pods: tuple[LeavingPod, ...]
    waiting: WaitingPod | None = None
    strategy: str = ""


def excess(plan: EvictionPlanRecord, size_bytes: int) -> str | None:
    """What a plan, whose record has this size, has too much of; None if it is within bounds."""
    if size_bytes > MOST_BYTES:
        return f"a plan of {size_bytes} bytes is larger than {MOST_BYTES}"
    if len(plan.pods) > MOST_PODS:
        return f"{len(plan.pods)} pods are more than the {MOST_PODS} of a plan"
    for key in ("id", "planner", "strategy"):
        if (length := len(getattr(plan, key))) > LONGEST_NAME:
            return f"{key} has {length} characters, more than {LONGEST_NAME}"
    return None
