"""Follow topics without a consumer group: from offsets or times to their present end, then live.

`open_follower` connects. `Follower.begin` (or `read_from`) starts reading, `poll`
returns the next records, `is_caught_up` says whether everything that was there at the beginning has
been returned. Tombstones are records without a value. If one of the topics is written in
transactions, only committed records are returned; otherwise nobody who leaves a transaction open
hides records.

Errors are those of `translated_errors`, and two more. If a follower is behind and nothing arrives
for a minute, `poll` raises `SilentTopicError`. If a partition no longer has the next offset,
because retention deleted it or the topic was deleted or recreated, `poll` raises `LostOffsetError`:
the caller decides whether to read again, to skip or to end. aiokafka reconnects on its own; after
an error of `poll` open another follower, after a pause (`Backoff`).

Workarounds for aiokafka 0.14, all in this module, each tested in tests/kafka/test_follow.py:

- `assign` starts to reset partitions without a position in the background, and may undo a `seek`:
  all positions are set in the turn of the event loop that assigns the partitions.
- Without an explicit `auto_offset_reset="none"` a lost offset silently becomes another one.
- `stop` in the turn of the event loop in which `start` returned raises the cancellation of a task
  that never ran: a follower is handed out one turn later.
- `stop` may wait for a broker that is away, raise the cancellation of its own tasks, or swallow a
  cancellation of its caller: it runs in a task of its own, for two seconds at most (`run_within`).
- `getmany` does not yield to the event loop while records are buffered: `poll` does.
- Records do not show how far a partition has been read, because compaction and transactions leave
  offsets without a record: the consumer's position does.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from pipeline.errors import BrokerUnavailableError, KafkaError
from pipeline.kafka import record_batches
from pipeline.kafka.client import limit_connections, limit_metadata_requests, translated_errors
from pipeline.kafka.topic_ids import cluster_id, topic_ids
from pipeline.settings import KafkaSettings
from pipeline.tasks import run_within
from pipeline.topics.registry import MAX_RECORD_BYTES, Topic, is_in_transactions

__all__ = [
    "Backoff", "ConsumerRecord", "Fetching", "Follower", "LostOffsetError", "Positions",
    "SilentTopicError", "TopicPartition", "open_follower", "topic_partitions",
]  # fmt: skip

SILENCE_SECONDS: Final = 60.0
"""How long nothing may arrive of a partition whose end was not reached."""

_START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 2.0

Positions = dict[TopicPartition, int]
"""The offset to be read next, by partition."""


class LostOffsetError(KafkaError):
    """A partition does not have the offset to be read next: the record was deleted, or the topic
    was deleted or recreated."""


class SilentTopicError(BrokerUnavailableError):
    """Nothing arrived of a topic whose end was not reached."""


class Fetching(NamedTuple):
    """Limits of a fetch. A record batch larger than `partition_bytes` is fetched alone; the broker
    answers when it has `min_bytes`, or after `max_wait_ms`."""

    partition_bytes: int = MAX_RECORD_BYTES
    min_bytes: int = 1
    max_wait_ms: int = 500


_DEFAULT_FETCHING: Final = Fetching()


class Backoff:
    """Pauses between attempts, in seconds: each twice as long as the last one, up to `longest`,
    times 0.5 to 1.5, so that many clients do not return at once."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self._next = first

    @property
    def is_first(self) -> bool:
        """Whether no pause was taken since the last success."""
        return self._next == self._first

    def reset(self) -> None:
        """Start with the shortest pause again, after a success."""
        self._next = self._first

    def pause(self) -> float:
        """The length of the next pause."""
        pause, self._next = self._next, min(2 * self._next, self._longest)
        return pause * (0.5 + random.random())


def topic_partitions(kafka: KafkaSettings, *topics: Topic) -> list[TopicPartition]:
    """All partitions of these topics, as the settings declare them."""
    return [
        TopicPartition(topic.full_name(kafka.topic_prefix), partition)
        for topic in topics
        for partition in range(topic.partition_count(kafka.partitions))
    ]


class Follower:
    """Reads assigned partitions; made by `open_follower`, and used by one task at a time.

    `positions` holds the offset that `poll` returns next of each partition that is being read.
    """

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        servers: Mapping[str, Any],
        assigned: Collection[TopicPartition],
    ) -> None:
        self.assigned = assigned
        self.positions: Positions = {}
        self._consumer = consumer
        self._servers = servers
        self._doing = f"reading {', '.join(sorted({tp.topic for tp in assigned}))}"
        self._silent_seconds = 0.0
        self._has_metadata = False
        self._behind: Positions = {}

    async def beginnings(self, partitions: Iterable[TopicPartition] | None = None) -> Positions:
        """The first offset that is still there, of these partitions or of all."""
        with translated_errors(self._servers, self._doing):
            return dict(await self._consumer.beginning_offsets(self._all(partitions)))

    async def ends(self, partitions: Iterable[TopicPartition] | None = None) -> Positions:
        """The offset of the next record to be committed, of these partitions or of all."""
        with translated_errors(self._servers, self._doing):
            return dict(await self._consumer.end_offsets(self._all(partitions)))

    async def topic_ids(self) -> dict[str, str]:
        """The ids of the assigned topics by name; empty if the broker is too old to tell."""
        with translated_errors(self._servers, self._doing):
            return await topic_ids(self._consumer._client, {tp.topic for tp in self.assigned})

    async def cluster_id(self) -> str:
        """The id of the Kafka cluster; empty if the broker is too old to tell."""
        with translated_errors(self._servers, self._doing):
            return await cluster_id(self._consumer._client)

    async def offsets_at(self, times_ms: Mapping[TopicPartition, int]) -> Positions:
        """The offset of the first record appended at this time (milliseconds since 1970, or before)
        or later; the end of the partition if there is none."""
        if not times_ms:
            return {}
        ends = await self.ends(times_ms)
        with translated_errors(self._servers, self._doing):
            at_times = await self._consumer.offsets_for_times(
                # aiokafka refuses negative times; no record is older than 1970.
                {tp: max(time_ms, 0) for tp, time_ms in times_ms.items()}
            )
        return {tp: ends[tp] if at_times[tp] is None else at_times[tp].offset for tp in times_ms}

    async def begin(self, since_ms: Mapping[str, int] | None = None) -> None:
        """Read all partitions: topics in `since_ms` from this append time on (milliseconds since
        1970), the others from their first record."""
        since_ms = since_ms or {}
        ends = await self.ends()
        starts = await self.beginnings()
        timed = {tp: since_ms[tp.topic] for tp in self.assigned if tp.topic in since_ms}
        starts |= await self.offsets_at(timed)
        self.read_from(starts, ends)

    def read_from(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> None:
        """Read these partitions from `starts` on, and pause all others. `is_caught_up` holds once
        all below `ends` has been returned.

        Does not await: positions must be set before aiokafka fetches from other ones.
        """
        self.pause()
        self.positions = dict(starts)
        self._behind = {tp: end for tp, end in ends.items() if starts[tp] < end}
        self._silent_seconds = 0.0
        for tp, offset in starts.items():
            self._consumer.seek(tp, offset)
        self._consumer.resume(*starts)

    def pause(self) -> None:
        """Fetch nothing until `read_from`."""
        self._consumer.pause(*self.assigned)

    @property
    def is_caught_up(self) -> bool:
        """Whether everything below the ends given to `read_from` (or by `begin`) was returned."""
        return not self._behind

    async def poll(
        self, *, timeout_seconds: float = 0.25, max_records: int = 500
    ) -> list[ConsumerRecord]:
        """The next records, in order within each partition; empty if none came in time.

        Raises `LostOffsetError` and, while behind, `SilentTopicError`.
        """
        with translated_errors(self._servers, self._doing):
            try:
                batches = await self._consumer.getmany(
                    *self.positions,
                    timeout_ms=round(1000 * timeout_seconds),
                    max_records=max_records,
                )
            except OffsetOutOfRangeError as error:
                lost = ", ".join(
                    f"{tp.topic}[{tp.partition}] has no offset {offset}"
                    for tp, offset in error.args[0].items()
                )
                raise LostOffsetError(f"{lost}: it was deleted, or the topic recreated") from error
            if batches:
                self._has_metadata = True
            else:
                self._check_partitions()
            await asyncio.sleep(0)
            before = sum(self.positions.values())
            for tp in self.positions:
                self.positions[tp] = await self._consumer.position(tp)
        for tp in [tp for tp, end in self._behind.items() if self.positions[tp] >= end]:
            del self._behind[tp]
        if sum(self.positions.values()) != before or not self._behind:
            self._silent_seconds = 0.0
        else:
            self._silent_seconds += timeout_seconds
            if self._silent_seconds > SILENCE_SECONDS:
                tp, end = next(iter(self._behind.items()))
                raise SilentTopicError(
                    f"{tp.topic}[{tp.partition}]: nothing arrived of offsets {self.positions[tp]} "
                    f"to {end} for {SILENCE_SECONDS:g} s"
                )
        return [record for batch in batches.values() for record in batch]

    async def read_to_end(self) -> AsyncIterator[list[ConsumerRecord]]:
        """The records up to the ends of `is_caught_up`, and perhaps some that came since; then
        nothing is fetched any more. Raises as `poll` does."""
        while not self.is_caught_up:
            if records := await self.poll():
                yield records
        self.pause()

    def _check_partitions(self) -> None:
        """Raise `LostOffsetError` if a partition was deleted: aiokafka waits for it silently."""
        topics = {tp.topic for tp in self.positions}
        known = {topic: self._consumer.partitions_for_topic(topic) or () for topic in topics}
        missing = [tp for tp in self.positions if tp.partition not in known[tp.topic]]
        if missing and self._has_metadata:
            raise LostOffsetError(f"{missing[0].topic}[{missing[0].partition}] was deleted")
        self._has_metadata = not missing

    def _all(self, partitions: Iterable[TopicPartition] | None) -> list[TopicPartition]:
        return list(self.assigned if partitions is None else partitions)


@asynccontextmanager
async def open_follower(
    client: Mapping[str, Any],
    partitions: Iterable[TopicPartition],
    fetching: Fetching = _DEFAULT_FETCHING,
) -> AsyncIterator[Follower]:
    """A connected follower of these partitions, which reads nothing before `begin` or `read_from`.

    `client` is what `client_options` returns. Raises `BrokerUnavailableError` if no broker answers
    within 30 s, `KafkaError` if it refuses the connection.
    """
    record_batches.install()
    assigned = list(partitions)
    committed = any(is_in_transactions(tp.topic) for tp in assigned)
    consumer = AIOKafkaConsumer(
        **client,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed" if committed else "read_uncommitted",
        max_partition_fetch_bytes=fetching.partition_bytes,
        fetch_min_bytes=fetching.min_bytes,
        fetch_max_wait_ms=fetching.max_wait_ms,
        # How often the client looks what to fetch; an answer and a new position wake it anyway.
        consumer_timeout_ms=fetching.max_wait_ms,
    )
    limit_metadata_requests(consumer._client)
    limit_connections(consumer._client)
    try:
        with translated_errors(client, "connecting"):
            await run_within(_START_SECONDS, consumer.start())
        await asyncio.sleep(0)
        consumer.assign(assigned)
        consumer.pause(*assigned)
        for tp in assigned:
            consumer.seek(tp, 0)
        yield Follower(consumer, client, assigned)
    finally:
        # Nothing is flushed or committed: what a broken connection raises changes nothing.
        with suppress(KafkaError, OSError), translated_errors(client, "disconnecting"):
            try:
                await run_within(STOP_SECONDS, consumer.stop())
            except BaseException:
                # `stop` ended, or was cancelled, before it closed the connections.
                await run_within(1.0, consumer._client.close())
                raise
