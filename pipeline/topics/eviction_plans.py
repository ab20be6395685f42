"""`springtide.eviction-plans`: pods to evict from a node, and the pod that needs the room.

A plan names pods by UID, so that a later pod of the same name is safe, and has an end of validity.
It is a proposal: the evictor checks it against the state of the cluster before it acts.
"""

import msgspec

from pipeline.topics.codec import Record


class WaitingPod(msgspec.Struct, frozen=True, kw_only=True):
    """The pending pod that needs the room."""

    namespace: str
    name: str
    uid: str
    priority: int


class LeavingPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod to evict, and the resources that its eviction is expected to free."""

    uid: str
    pod_class: str
    cpu_millicores: int = 0
    memory_bytes: int = 0


class EvictionPlanRecord(Record, frozen=True, kw_only=True):
    """A plan to evict all `pods` from `node`, or none of them. Times are RFC 3339, UTC. A plan
    whose `id` was seen before is ignored."""

    node: str
    id: str
    at: str
    valid_until: str
    planner: str
    why: str
    pods: tuple[LeavingPod, ...]
    waiting: WaitingPod | None = None
