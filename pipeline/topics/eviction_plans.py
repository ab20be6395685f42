"""`springtide.eviction-plans`: pods to evict from a node, and why.

A plan that makes room names the pod that waits: all of its pods leave, or none. In a plan without
one, which relieves the node, each pod stands alone. A plan names pods by UID, so that a later pod
of the same name is safe, and has an end of validity. It is a proposal: the evictor checks it
against the state of the cluster before it acts.
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
    """A pod to evict, and the resources that its eviction is expected to free. Namespace and name
    may be empty."""

    uid: str
    pod_class: str
    namespace: str = ""
    name: str = ""
    cpu_millicores: int = 0
    memory_bytes: int = 0


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
