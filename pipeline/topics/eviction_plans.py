"""`springtide.eviction-plans`: which pods are to leave a node, and for what.

Owes the rest: a plan names pods by UID, so that one of the same name is never meant, and says until
when it holds. It is a wish: whoever carries it out looks at the world as it is then.
"""

import msgspec

from pipeline.topics.codec import Record


class WaitingPod(msgspec.Struct, frozen=True, kw_only=True):
    """The pod for which others are to make room."""

    namespace: str
    name: str
    uid: str
    priority: int


class LeavingPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that is to leave, and what that is expected to free."""

    uid: str
    pod_class: str
    cpu_millicores: int = 0
    memory_bytes: int = 0


class EvictionPlanRecord(Record, frozen=True, kw_only=True):
    """All of `pods` leave `node`, or none; times are RFC 3339, UTC. `id` names the plan, so that a
    repeat of it changes nothing."""

    node: str
    id: str
    at: str
    valid_until: str
    planner: str
    why: str
    pods: tuple[LeavingPod, ...]
    waiting: WaitingPod | None = None
