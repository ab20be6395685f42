"""Read a partition as a log: from an offset to an offset, for recovery, gaps and commands.

A record is a `LogRecord` whether a `LogReader` or Faust has read it, so that the agents neither
know nor care which of them it was.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.kafka.follow import (
    ConsumerRecord,
    Follower,
    LostOffsetError,
    TopicPartition,
    open_follower,
)
from pipeline.topics.registry import is_in_transactions

if TYPE_CHECKING:
    from pipeline.topics.windows import Window


class LogRecord(NamedTuple):
    """A record of a partition. `appended_ms` is the broker's time in milliseconds since 1970;
    `window` is the decoded value where the worker that wrote it still has it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    appended_ms: int
    window: "Window | None" = None


class LogReader:
    """Reads ranges of partitions, one after the other; made by `open_reader`."""

    def __init__(self, followers: Mapping[str, Follower]) -> None:
        """`followers` are those of the partitions, by topic."""
        self._followers = followers

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset that is still there, and the offset of the next record."""
        tp = TopicPartition(topic, partition)
        follower = self._followers[topic]
        first = await follower.beginnings([tp])
        return first[tp], (await follower.ends([tp]))[tp]

    async def topic_ids(self) -> dict[str, str]:
        """The ids of the topics by name; empty if the broker is too old to tell."""
        ids: dict[str, str] = {}
        for follower in set(self._followers.values()):
            ids |= await follower.topic_ids()
        return ids

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The offset of the next record, by partition."""
        ends = await self._followers[topic].ends(TopicPartition(topic, p) for p in partitions)
        return {tp.partition: end for tp, end in ends.items()}

    async def offset_at(self, topic: str, partition: int, appended_ms: int) -> int:
        """The offset of the first record appended at this time (milliseconds since 1970) or
        later; the end if there is none."""
        tp = TopicPartition(topic, partition)
        return (await self._followers[topic].offsets_at({tp: appended_ms}))[tp]

    async def read(
        self, topic: str, partition: int, start: int, end: int
    ) -> AsyncIterator[list[LogRecord]]:
        """All records that are still there with start <= offset < end, in order, in lists.

        Raises `SilentTopicError` if nothing arrives for a minute, `LostOffsetError` if the log now
        ends below `start`.
        """
        tp, follower = TopicPartition(topic, partition), self._followers[topic]
        while start < end:
            follower.read_from({tp: start}, {tp: end})
            try:
                async for messages in follower.read_to_end():
                    if records := [record_of(each) for each in messages if each.offset < end]:
                        yield records
                        start = records[-1].offset + 1
                return
            except LostOffsetError:
                first, _ = await self.bounds(topic, partition)
                if first <= start:
                    raise
                # Retention deletes records while they are read: callers count what is missing.
                start = first


def record_of(message: ConsumerRecord) -> LogRecord:
    """An aiokafka record as a `LogRecord`."""
    return LogRecord(
        message.partition, message.offset, message.key, message.value, message.timestamp
    )


@asynccontextmanager
async def open_reader(
    client: Mapping[str, Any], partitions: Iterable[tuple[str, int]]
) -> AsyncIterator[LogReader]:
    """A reader of these (topic, partition); `client` is what `client_options` returns.

    Name all partitions at once: each assignment costs a wait for metadata. Topics that are written
    in transactions are read by a follower of their own: an open transaction must not hide samples
    and windows.
    """
    followers: dict[str, Follower] = {}
    async with AsyncExitStack() as stack:
        by_isolation = defaultdict[bool, list[TopicPartition]](list)
        for topic, partition in partitions:
            by_isolation[is_in_transactions(topic)].append(TopicPartition(topic, partition))
        for assigned in by_isolation.values():
            follower = await stack.enter_async_context(open_follower(client, assigned))
            followers |= dict.fromkeys({tp.topic for tp in assigned}, follower)
        yield LogReader(followers)
