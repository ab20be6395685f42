"""`springtide.eviction-requests`: a node asks that pods leave it, keyed by node.

An agent on a node sees pressure that its usage does not show yet, as reclaim of memory. It knows
neither other nodes nor disruption budgets, so that it asks, and the planner plans. It asks again
while the pressure lasts; its last request counts.
"""

from typing import Final

import msgspec

from pipeline.topics.codec import Record

MOST_PODS: Final = 100
"""Pods that one request may name."""


class EvictionRequestRecord(Record, frozen=True, kw_only=True):
    """A request for relief. Times are RFC 3339, UTC.

    node: Name of the node.
    id: Name of the request; a repeat has the same.
    at: When it was made.
    valid_until: When it ends; it is valid for five minutes at most.
    requester: Who asks.
    why: What the requester sees, for people.
    cpu_millicores: Usage of cpu that should leave; 0 if any will do.
    memory_bytes: Usage of memory that should leave, likewise. With both 0 the requests of the node
        before are withdrawn.
    classes: Classes of the pods that may leave: prod, mid, batch, free or none.
    pods: UIDs of the pods that should leave, the most wanted first; the amounts are then their
        usage. Empty: any pods of the classes, until the amounts are met.
    """

    node: str
    id: str
    at: str
    valid_until: str
    requester: str
    why: str
    cpu_millicores: int = 0
    memory_bytes: int = 0
    classes: tuple[str, ...] = msgspec.field(default=("batch", "free"))
    pods: tuple[str, ...] = ()
