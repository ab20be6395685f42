"""`springtide.heartbeats`: proof that the watcher's topics match what it copies, keyed by source.

The watcher writes one while `nodes` and `pods` match the API server, after all records before it:
without them nothing tells a watcher that is dead from a cluster in which nothing changes. The file
source and simulated fleets write none. A dedicated topic keeps other records out of `nodes` and
`pods`, whose readers take every key for a node or a pod.
"""

from typing import Final, Literal

from pipeline.times import parse_time
from pipeline.topics.codec import Record

HEARTBEAT_SECONDS: Final = 5.0
"""Between two heartbeats."""
LATE_SECONDS: Final = 30.0
"""Without a heartbeat for so long the watcher counts as dead: a standby leads after 15 s, and lists
everything first."""
AHEAD_SECONDS: Final = 60.0
"""A heartbeat further in the future proves nothing: it would hide a dead watcher until then."""


def is_alive(age: float) -> bool:
    """Whether a watcher with a last heartbeat of this age, in seconds, is alive."""
    return -AHEAD_SECONDS <= age <= LATE_SECONDS


def age_text(age: float) -> str:
    """The age of the last heartbeat, for people."""
    if age >= 0:
        return f"the last heartbeat is {age:.0f} s old"
    return f"the last heartbeat is {-age:.0f} s in the future: compare the clocks"


class HeartbeatRecord(Record, frozen=True, kw_only=True):
    """All changes that `source`, the watcher, saw before `at` (RFC 3339, UTC) are on its topics."""

    source: Literal["cluster"]
    at: str

    def __post_init__(self) -> None:
        try:
            parse_time(self.at)
        except ValueError as error:
            raise ValueError(f"at is not a time: {error}") from error
