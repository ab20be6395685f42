"""`springtide.wake-ups`: Nodes to touch, so that the scheduler retries pods that were refused.

The extender writes a record when a node may take a waiting pod that it refused before. The cluster
actuator then changes an annotation of the Node. The key is the node.
"""

from pipeline.topics.codec import Record


class WakeUpRecord(Record, frozen=True, kw_only=True):
    """Since `at` (RFC 3339, UTC) `node` may take `pod` (namespace/name), which waits; of several
    waiting pods it is one."""

    node: str
    at: str
    pod: str = ""
