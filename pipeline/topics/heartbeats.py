"""`springtide.heartbeats`: proof that the topics of a source match what it copies, keyed by source.

The watcher writes one while `nodes` and `pods` match the API server, after all records before it:
without them nothing tells a watcher that is dead from a cluster in which nothing changes. The file
source and simulated fleets write none. A dedicated topic keeps other records out of `nodes` and
`pods`, whose readers take every key for a node or a pod.
"""

from typing import Final

from pipeline.times import parse_time
from pipeline.topics.codec import Record

HEARTBEAT_SECONDS: Final = 5.0
"""Between two heartbeats of a source."""


class HeartbeatRecord(Record, frozen=True, kw_only=True):
    """All changes that `source` saw before `at` (RFC 3339, UTC) are on its topics."""

    source: str
    at: str

    def __post_init__(self) -> None:
        try:
            parse_time(self.at)
        except ValueError as error:
            raise ValueError(f"at is not a time: {error}") from error
