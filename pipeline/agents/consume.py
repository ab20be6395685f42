"""The one safe way to consume with Faust; what a worker reads through Faust, it reads here.

Faust's own ways lose data: an exception under `take()` commits the batch it loses, an undecodable
message stops its partition for ever. So bytes are taken raw from the channel's queue, all that it
holds at a time, and each partition has a *cursor* that knows its next offset. Below it a record is
acknowledged and dropped, above it the gap is read from the log first, and a partition without a
cursor is neither processed nor acknowledged. Records are acknowledged, in order, after the cursor
has processed them and all it wrote is delivered; partitions do not wait for one another within a
batch. An exception goes up and ends the worker: what was not acknowledged is read again. Where
Faust starts reading therefore decides nothing.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from pipeline.kafka.partition_log import LogReader, LogRecord
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.tasks import run_all

log = get_logger(__name__)

SKIPPED = counter("worker_skipped_records", "Records below the cursor, dropped.", ["topic"])
GAPS = counter("worker_gap_records", "Records read from the log to fill a gap.", ["topic"])
LOST = counter("worker_lost_records", "Offsets that retention removed before use.", ["topic"])

# What comes in this time after the first of a batch goes with it: each batch is a request to the
# broker for each of its partitions. One that is large enough does not wait.
_LINGER_SECONDS = 0.1
_LOOKS = 10
_ENOUGH = 100


class Cursor(Protocol):
    """A partition in this worker's hands, at a position of one topic."""

    next_offset: int

    @property
    def owned(self) -> bool:
        """False from the moment that the partition is revoked."""
        ...

    async def process(self, records: Sequence[LogRecord]) -> None:
        """Apply records at and after `next_offset`, deliver what follows from them, advance."""
        ...


class Readers(Protocol):
    """Opens a reader of these (topic, partition)."""

    def __call__(
        self, partitions: Iterable[tuple[str, int]], /
    ) -> AbstractAsyncContextManager[LogReader]: ...


async def consume(
    stream: Any,
    topic: str,
    cursors: Mapping[int, Cursor],
    open_reader: Readers,
    *,
    batch_size: int,
    linger_seconds: float = _LINGER_SECONDS,
) -> None:
    """Feed the Faust `stream` of `topic` to `cursors` (by partition) until it ends."""
    while events := await _take(stream.channel.queue, batch_size, linger_seconds):
        by_partition: dict[int, list[Any]] = defaultdict(list)
        for event in events:
            by_partition[event.message.partition].append(event)
        feeds = []
        for partition, mine in by_partition.items():
            cursor = cursors.get(partition)
            if cursor is not None and cursor.owned:
                _tell_faust(stream, mine[-1])
                feeds.append(_feed(cursor, topic, mine, open_reader))
        await run_all(feeds)


async def _take(queue: Any, most: int, linger_seconds: float) -> list[Any]:
    """The next events of the stream that has this queue; none at its end. Iterating over the stream
    would cost more per event than the join of a small window."""
    try:
        events = [await queue.get()]
        looks = 0
        enough = min(most, _ENOUGH)
        while 1 + queue.qsize() < enough and looks < _LOOKS and not queue.full():
            await asyncio.sleep(linger_seconds / _LOOKS)
            looks += 1
        while len(events) < most and not queue.empty():
            events.append(queue.get_nowait())
    except StopAsyncIteration:  # Faust throws it into the queue of a stream that is stopped
        return []
    return events


async def _feed(cursor: Cursor, topic: str, events: list[Any], open_reader: Readers) -> None:
    events.sort(key=_offset)
    await advance(cursor, topic, [_record(event) for event in events], open_reader)
    if cursor.owned:
        for event in events:
            event.ack()


def _tell_faust(stream: Any, event: Any) -> None:
    """Let Faust's monitor know that this partition is worked on: it complains of those that are
    not."""
    at, sensors = (event.message.tp, event.message.offset, stream, event), stream.app.sensors
    sensors.on_stream_event_out(*at, sensors.on_stream_event_in(*at))


async def advance(
    cursor: Cursor, topic: str, records: Sequence[LogRecord], open_reader: Readers
) -> None:
    """Bring `cursor` behind the last of `records` (in order of offset), filling gaps."""
    run: list[LogRecord] = []
    expected = cursor.next_offset
    for record in records:
        if record.offset < expected:
            SKIPPED.labels(topic).inc()
            continue
        if record.offset > expected:
            await _process(cursor, run)
            run = []
            await fill(cursor, topic, record.partition, record.offset, open_reader)
        run.append(record)
        expected = record.offset + 1
    await _process(cursor, run)


async def fill(cursor: Cursor, topic: str, partition: int, end: int, open_reader: Readers) -> None:
    """Bring `cursor` up to the offset `end` by reading the log."""
    start = cursor.next_offset
    log.warning("gap is read from the log", topic=topic, partition=partition, start=start, end=end)
    async with open_reader([(topic, partition)]) as reader:
        first, _ = await reader.bounds(topic, partition)
        if first > start:
            LOST.labels(topic).inc(min(first, end) - start)
            log.error("retention removed records before they were used", topic=topic,
                      partition=partition, start=start, end=min(first, end))  # fmt: skip
        async for records in reader.read(topic, partition, max(first, start), end):
            if not cursor.owned:
                return
            GAPS.labels(topic).inc(len(records))
            await _process(cursor, records)
    # Retention may have taken all of the gap; a cursor that was lost meanwhile has read nothing.
    if cursor.owned:
        cursor.next_offset = max(cursor.next_offset, end)


async def _process(cursor: Cursor, records: Sequence[LogRecord]) -> None:
    if records and cursor.owned:
        await cursor.process(records)


def _offset(event: Any) -> int:
    return int(event.message.offset)


def _record(event: Any) -> LogRecord:
    message = event.message
    return LogRecord(
        message.partition,
        message.offset,
        message.key,
        message.value,
        round(message.timestamp * 1000),
    )
