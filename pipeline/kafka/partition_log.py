"""Reading a partition as a log: from an offset to an offset, outside any consumer group.

Recovery, gaps and the inventory read this way; so does whoever replays. A record comes as a
`LogRecord` wherever it was read, by these functions or by Faust.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from pipeline.errors import BrokerUnavailableError
from pipeline.kafka.client import COMMITTED

if TYPE_CHECKING:
    from pipeline.topics.windows import Window

_POLL_MS = 500
_MAX_RECORDS = 500
_SILENT_POLLS = 120


class LogRecord(NamedTuple):
    """One record as it lies in a partition; `appended_ms` is the broker's time. `said` is what it
    says, where that is known without reading it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    appended_ms: int
    said: "Window | None" = None


class LogReader:
    """Reads ranges of partitions; made by `open_reader`."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset that is kept, and the one that the next record will get."""
        tp = TopicPartition(topic, partition)
        first = await self._consumer.beginning_offsets([tp])
        end = await self._consumer.end_offsets([tp])
        return first[tp], end[tp]

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The offset that the next record of each of these partitions will get."""
        places = [TopicPartition(topic, partition) for partition in partitions]
        return {tp.partition: end for tp, end in (await self._consumer.end_offsets(places)).items()}

    async def read(
        self, topic: str, partition: int, start: int, end: int
    ) -> AsyncIterator[list[LogRecord]]:
        """All kept records with start <= offset < end, in order, in lists of up to 500.

        Raises `BrokerUnavailableError` when nothing arrives for a minute.
        """
        if start >= end:
            return
        tp = TopicPartition(topic, partition)
        self._consumer.seek(tp, start)
        self._consumer.resume(tp)
        try:
            async for records in self._read(tp, start, end):
                yield records
        finally:
            self._consumer.pause(tp)

    async def _read(
        self, tp: TopicPartition, start: int, end: int
    ) -> AsyncIterator[list[LogRecord]]:
        silent, expected = 0, start
        while expected < end:
            found = await self._consumer.getmany(tp, timeout_ms=_POLL_MS, max_records=_MAX_RECORDS)
            records = [
                record_of(message)
                for message in found.get(tp, ())
                if expected <= message.offset < end
            ]
            if records:
                silent, expected = 0, records[-1].offset + 1
                yield records
                continue
            position = await self._consumer.position(tp)
            if position < expected:
                # aiokafka's own first reset, under way since `assign`, may undo a seek.
                self._consumer.seek(tp, expected)
            elif position > expected:
                silent, expected = 0, position
                continue
            silent += 1
            if silent > _SILENT_POLLS:
                raise BrokerUnavailableError(
                    f"{tp.topic}[{tp.partition}]: nothing arrived of offsets {expected} to {end} "
                    "for a minute"
                )


def record_of(message: Any) -> LogRecord:
    """An aiokafka ConsumerRecord as a `LogRecord`."""
    return LogRecord(
        message.partition, message.offset, message.key, message.value, message.timestamp
    )


@asynccontextmanager
async def open_reader(
    client: Mapping[str, Any], partitions: Iterable[tuple[str, int]]
) -> AsyncIterator[LogReader]:
    """A reader of these (topic, partition), connected by `client` (see `topics.client`)."""
    consumer = AIOKafkaConsumer(
        **client,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=8 * 1024 * 1024,
        **COMMITTED,
    )
    try:
        await consumer.start()
        # A failure before aiokafka's own tasks begin would come out of `stop` as a cancellation.
        await asyncio.sleep(0)
        # All at once and paused: each new assignment would cost a second of waiting for metadata.
        assigned = [TopicPartition(topic, partition) for topic, partition in partitions]
        consumer.assign(assigned)
        consumer.pause(*assigned)
        yield LogReader(consumer)
    finally:
        await consumer.stop()
