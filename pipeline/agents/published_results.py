"""What the newest published results of a partition tell about state that was lost.

Results are derived, so nothing is restored from them. But they state how far the log was, and how
many windows each node had.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from pipeline.errors import RecordError
from pipeline.kafka.partition_log import LogReader
from pipeline.topics.codec import decode_json
from pipeline.topics.node_state import NodeStateRecord

# A worker that was paused may have published after a newer one.
_NEWEST: Final = 100
_GROWTH: Final = 10


async def published_end(reader: LogReader, topic: str, partition: int, generation: int) -> int:
    """Return where `windows` ends by the newest node states of this generation, 0 without any.

    A result follows the append of its window, so read the end of the log after this: if it is
    lower, the log was truncated above the last round of checkpoints.

    Tombstones, foreign records and compaction may leave no such state among the newest offsets.
    Then ten times as many are read, at most the partition: a ninth more than to read it once.
    A client that may write node states can feign a truncation once per record, because it starts
    the next generation. It costs a round of checkpoints, and marks no node.
    """
    first, end = await reader.bounds(topic, partition)
    newest = _NEWEST
    while True:
        states = _node_states(reader, topic, partition, end - newest)
        offsets = [
            state.offset async for _, state in states if state and state.generation == generation
        ]
        if offsets or end - newest <= first:
            return max(offsets, default=-1) + 1
        newest *= _GROWTH


async def published_states(
    reader: LogReader, topic: str, partition: int
) -> dict[str, NodeStateRecord]:
    """Return the newest node state of each node whose results were not withdrawn."""
    states: dict[str, NodeStateRecord] = {}
    async for node, state in _node_states(reader, topic, partition):
        states.pop(node, None)
        if state is not None:
            states[node] = state
    return states


async def _node_states(
    reader: LogReader, topic: str, partition: int, start: int = 0
) -> AsyncIterator[tuple[str, NodeStateRecord | None]]:
    """Yield the valid node states under their own keys from the offset `start` on, None for a
    tombstone."""
    first, end = await reader.bounds(topic, partition)
    async for records in reader.read(topic, partition, max(first, start), end):
        for record in records:
            with suppress(RecordError):
                key, value = (record.key or b"").decode(errors="replace"), record.value
                state = None if value is None else decode_json(NodeStateRecord, value)
                if state is None or state.node == key:
                    yield key, state
