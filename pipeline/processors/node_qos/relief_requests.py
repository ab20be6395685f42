"""When a node asks for the eviction of pods, and what the record says.

The newest wishes are sent when they change, and repeated while they last: a request is valid for a
minute only, so that it ends soon after the last repeat. Wishes that nobody confirmed for ten
seconds are not sent. All times are monotonic seconds, except for `now` (Unix time) of a record.
"""

from collections.abc import Sequence
from typing import Final

from pipeline.processors.node_qos.node_evictions import EvictionWish
from pipeline.times import format_time
from pipeline.topics.eviction_requests import EvictionRequestRecord

ACTUATOR: Final = "node-actuator"
VALID_SECONDS: Final = 60.0
REPEAT_SECONDS: Final = 20.0
CONFIRMED_SECONDS: Final = 10.0
WITHDRAWN_SECONDS: Final = 3.0
"""A request is withdrawn when nothing was wished for so long: one missing sample ends none."""
_MOST_REASONS: Final = 3


class ReliefRequests:
    """The request of a node: what it wishes, and what it sent last."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._wishes: tuple[EvictionWish, ...] = ()
        self._wished_at = self._confirmed_at = float("-inf")
        self._sent: EvictionRequestRecord | None = None
        self._sent_at = float("-inf")

    def want(self, wishes: Sequence[EvictionWish], at: float) -> None:
        """Take the wishes of a round in place of those before."""
        self._confirmed_at = at
        self._wishes = tuple(wishes)
        if wishes:
            self._wished_at = at

    def due(self, at: float, now: float) -> EvictionRequestRecord | None:
        """The record that is to be sent now; None if there is none."""
        if at - self._confirmed_at > CONFIRMED_SECONDS:
            return None
        is_open = (
            self._sent is not None and bool(self._sent.pods) and at - self._sent_at < VALID_SECONDS
        )
        if not self._wishes:
            is_over = at - self._wished_at >= WITHDRAWN_SECONDS
            return self._withdrawal(now) if is_open and is_over else None
        record = self._record(now)
        is_new = not is_open or self._sent is None or record.pods != self._sent.pods
        return record if is_new or at - self._sent_at >= REPEAT_SECONDS else None

    def note_sent(self, record: EvictionRequestRecord, at: float) -> None:
        """The record was delivered, or may have been."""
        self._sent, self._sent_at = record, at

    def _record(self, now: float) -> EvictionRequestRecord:
        wishes = self._wishes
        # The planner plans at once for a request of another name, and later for a repeat.
        newest = max(wish.since for wish in wishes)
        reasons = list(dict.fromkeys(f"{wish.feature}: {wish.why}" for wish in wishes))
        return EvictionRequestRecord(
            node=self._node,
            id=f"{self._node}/{format_time(newest)}",
            at=format_time(now),
            valid_until=format_time(now + VALID_SECONDS),
            requester=ACTUATOR,
            why="; ".join(reasons[:_MOST_REASONS]),
            # A request for nothing would be a withdrawal.
            cpu_millicores=max(sum(wish.cpu_millicores for wish in wishes), 1),
            memory_bytes=sum(wish.memory_bytes for wish in wishes),
            classes=tuple(sorted({wish.pod_class for wish in wishes})),
            pods=tuple(wish.uid for wish in wishes),
        )

    def _withdrawal(self, now: float) -> EvictionRequestRecord:
        text = format_time(now)
        return EvictionRequestRecord(
            node=self._node, id=f"{self._node}/{text}", at=text, valid_until=text,
            requester=ACTUATOR, why="no pod has to leave any more", classes=(),
        )  # fmt: skip
