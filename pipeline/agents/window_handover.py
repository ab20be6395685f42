"""Pass windows in memory from the joins to the models of the same partitions.

A join hands over each appended window with its offset, so it is not fetched again. The log still
decides: records that were not handed over (written by a worker that was paused, or by a tool) are
read from it before later ones, and within seconds if there are no later ones. One loop feeds the
models of all partitions with everything that waits, so that they share calls.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from pipeline.agents.consume import Readers, advance, fill
from pipeline.agents.model_agent import Batch, ModelCursor, process_batches
from pipeline.clock import Clock
from pipeline.errors import KafkaError
from pipeline.kafka.partition_log import LogRecord
from pipeline.logs import get_logger
from pipeline.metrics import gauge
from pipeline.tasks import run_all

log = get_logger(__name__)

BEHIND = gauge(
    "worker_log_lag_records", "Records of the log that the models have not applied.", ["partition"]
)

CHECK_SECONDS: Final = 1.0
"""Time between two looks at the end of the log."""
_MAX_RECORDS: Final = 1000
MAX_BYTES: Final = 64 * 1024 * 1024
# Joins of one batch hand over together. A call for a few nodes costs little more than one for one.
_LINGER_SECONDS: Final = 0.02


class PendingRecords(NamedTuple):
    """`records` for one model in order of offset; the log extends to `end`."""

    records: list[LogRecord]
    end: int = 0


class WindowHandover:
    """Handed over records that no model has taken, bounded so that joins cannot fill the memory.

    `put` waits while there are `max_records` or 64 MiB of them. `take` returns all of them: up to
    that limit and the last `put`.
    """

    def __init__(
        self, max_records: int = _MAX_RECORDS, linger_seconds: float = _LINGER_SECONDS
    ) -> None:
        self._max_records = max_records
        self._linger_seconds = linger_seconds
        self.pending: dict[ModelCursor, PendingRecords] = {}
        self._changed = asyncio.Condition()

    async def put(
        self, cursor: ModelCursor, records: Sequence[LogRecord] = (), end: int = 0
    ) -> None:
        """Hand over `records` for `cursor`, or that its log extends to `end`.

        Records of a revoked partition are dropped.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: not (cursor.owned and self._is_full()))
            if not cursor.owned:
                return
            before = self.pending.get(cursor, PendingRecords([]))
            self.pending[cursor] = PendingRecords([*before.records, *records], max(before.end, end))
            self._changed.notify_all()

    async def take(self) -> Mapping[ModelCursor, PendingRecords]:
        """Wait for records, and a moment longer for more unless the limit is reached."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.pending)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._linger_seconds):
                    await self._changed.wait_for(self._is_full)
            taken, self.pending = self.pending, {}
            self._changed.notify_all()
        return taken

    async def wake(self) -> None:
        """Wake calls of `put` that wait for room, because partitions were revoked."""
        async with self._changed:
            self._changed.notify_all()

    def _is_full(self) -> bool:
        records = [record for pending in self.pending.values() for record in pending.records]
        return len(records) >= self._max_records or sum(map(_bytes_of, records)) >= MAX_BYTES


def _bytes_of(record: LogRecord) -> int:
    """Estimate the memory of a record. A decoded window takes about twice its encoded size."""
    size = len(record.value or b"")
    return size if record.window is None else 3 * size


async def feed_models(handover: WindowHandover, topic: str, open_reader: Readers) -> None:
    """Apply handed over records of the log `topic` to their models, until cancelled."""
    while True:
        batches: list[Batch] = []
        gaps: list[tuple[ModelCursor, list[LogRecord], int]] = []
        for cursor, (records, end) in (await handover.take()).items():
            ahead = [record for record in records if record.offset >= cursor.next_offset]
            if ahead and cursor.next_offset + len(ahead) == ahead[-1].offset + 1:
                batches.append((cursor, ahead))
            elif cursor.owned:
                gaps.append((cursor, ahead, end))
        await process_batches(batches)
        await run_all(_catch_up(*gap, topic, open_reader) for gap in gaps)


async def _catch_up(
    cursor: ModelCursor, ahead: Sequence[LogRecord], end: int, topic: str, open_reader: Readers
) -> None:
    await advance(cursor, topic, ahead, open_reader)
    if end > cursor.next_offset:
        await fill(cursor, topic, cursor.ownership.partition, end, open_reader)


async def watch_log_ends(
    handover: WindowHandover,
    cursors: Collection[ModelCursor],
    read_ends: Callable[[Collection[int]], Awaitable[Mapping[int, int]]],
    clock: Clock,
) -> None:
    """Make models read records of the log that are not handed over, until cancelled.

    `read_ends` returns the end of the log by partition. A model that was behind at two consecutive
    looks and did not move in between reads the log up to its end: at a single look, the records may
    still be on their way from the join.
    """
    behind: dict[ModelCursor, int] = {}
    while True:
        await clock.sleep(CHECK_SECONDS)
        try:
            ends = await read_ends([cursor.ownership.partition for cursor in cursors])
        except KafkaError as error:
            log.debug("cannot read the end of the log", error=repr(error))
            continue
        previous, behind = behind, {}
        for cursor in cursors:
            partition, position = cursor.ownership.partition, cursor.next_offset
            BEHIND.labels(str(partition)).set(max(ends[partition] - position, 0))
            if position < ends[partition]:
                behind[cursor] = position
                if previous.get(cursor) == position:
                    await handover.put(cursor, end=ends[partition])
