"""Feed delivered records to the cursors of their partitions, without losing or repeating any.

Each owned partition has a cursor that knows its next offset. Records below it are acknowledged and
dropped. If records are missing below a delivered record, they are read from the log first: the host
may start anywhere after a rebalance. Records of a partition without a cursor are neither processed
nor acknowledged, because another worker owns it.

Records are acknowledged in order, after the cursor has processed them and everything it wrote was
delivered. An exception stops the worker, and unacknowledged records are read again.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from operator import attrgetter
from typing import Protocol

from pipeline.agents.consumer_group import Delivery, RecordSource
from pipeline.kafka.partition_log import LogReader, LogRecord
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.tasks import run_all

log = get_logger(__name__)

SKIPPED = counter("worker_skipped_records", "Records dropped below the cursor.", ["topic"])
GAPS = counter("worker_gap_records", "Records read from the log to fill a gap.", ["topic"])
LOST = counter("worker_lost_records", "Offsets that retention removed before use.", ["topic"])


class Cursor(Protocol):
    """An owned partition with a position in one topic."""

    next_offset: int

    @property
    def owned(self) -> bool:
        """False as soon as the partition is revoked."""

    async def process(self, records: Sequence[LogRecord]) -> None:
        """Apply records from `next_offset` on, deliver the results, and advance."""


Readers = Callable[[Iterable[tuple[str, int]]], AbstractAsyncContextManager[LogReader]]
"""Opens a reader of (topic, partition) pairs."""


async def consume(
    source: RecordSource,
    topic: str,
    cursor_of: Callable[[int], Cursor | None],
    open_reader: Readers,
    *,
    batch_size: int,
) -> None:
    """Feed the records of `topic` to the cursors of their partitions until `source` ends.

    Partitions of a batch are processed concurrently.
    """
    while deliveries := await source.take(batch_size):
        by_partition: dict[int, list[Delivery]] = defaultdict(list)
        for delivery in deliveries:
            by_partition[delivery.record.partition].append(delivery)
        feeds = []
        for partition, batch in by_partition.items():
            cursor = cursor_of(partition)
            if cursor is not None and cursor.owned:
                feeds.append(_feed(cursor, topic, batch, open_reader))
        await run_all(feeds)


async def _feed(cursor: Cursor, topic: str, batch: list[Delivery], open_reader: Readers) -> None:
    batch.sort(key=attrgetter("record.offset"))
    await advance(cursor, topic, [delivery.record for delivery in batch], open_reader)
    if cursor.owned:
        for delivery in batch:
            delivery.acknowledge()


async def advance(
    cursor: Cursor, topic: str, records: Sequence[LogRecord], open_reader: Readers
) -> None:
    """Process `records` (in order of offset) with `cursor`, and fill gaps from the log."""
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
    """Process the records between `cursor` and the offset `end`, read from the log."""
    start = cursor.next_offset
    log.warning("filling a gap from the log", topic=topic, partition=partition, start=start,
                end=end)  # fmt: skip
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
    # Retention may have removed the whole gap. A cursor that was lost meanwhile has read nothing.
    if cursor.owned:
        cursor.next_offset = max(cursor.next_offset, end)


async def _process(cursor: Cursor, records: Sequence[LogRecord]) -> None:
    if records and cursor.owned:
        await cursor.process(records)
