"""`springtide.wake-ups`: Nodes to touch, so that the scheduler retries pods that were refused.

The extender writes a record when a node may take a waiting pod that it refused before. The cluster
actuator then changes an annotation of the Node. The key is the node.
"""

from pipeline.times import parse_time
from pipeline.topics.codec import Record


class WakeUpRecord(Record, frozen=True, kw_only=True):
    """Since `at` (RFC 3339, UTC) `node` may take `pod` (namespace/name) and perhaps others that
    wait; empty after a start of the extender, which does not know them."""

    node: str
    at: str
    pod: str = ""

    def __post_init__(self) -> None:
        try:
            parse_time(self.at)
        except ValueError as error:
            raise ValueError(f"at is not a time: {error}") from error
