"""From the joins to the models of the same partitions, in memory.

What a join appended goes on to the model with the offset that the log gave it, and is not fetched
again. The log alone decides all the same: what lies in it and was not handed over (a paused worker
that woke up wrote it, or somebody's tool) is read from it before anything that comes after it, and
found within seconds where nothing comes. One loop feeds the models of all partitions, with all
that waits at a time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from aiokafka.errors import KafkaError

from pipeline.agents.consume import Readers, advance, fill
from pipeline.agents.model_agent import Batch, ModelCursor, process
from pipeline.clock import Clock
from pipeline.kafka.partition_log import LogRecord
from pipeline.logs import get_logger
from pipeline.metrics import gauge
from pipeline.tasks import run_all

log = get_logger(__name__)

BEHIND = gauge("worker_log_lag_records", "Records of the log to be applied.", ["partition"])

LOOK_SECONDS: Final = 1.0
"""How often the end of the log is asked for."""
_MOST: Final = 1000
_MOST_BYTES: Final = 64 * 1024 * 1024
# For a few nodes at once models take little more than for one.
_LINGER_SECONDS: Final = 0.1


class Waiting(NamedTuple):
    """What one model is to apply: `records` in order of offset, and the log up to `end`."""

    records: list[LogRecord]
    end: int = 0


class Handover:
    """Records on their way. Who brings more where `most` of them wait, or 64 MiB, waits until some
    are taken; `take` gives all at once, so up to `most` and what was brought last."""

    def __init__(self, most: int = _MOST, linger_seconds: float = _LINGER_SECONDS) -> None:
        self._most = most
        self._linger_seconds = linger_seconds
        self._waiting: dict[ModelCursor, Waiting] = {}
        self._changed = asyncio.Condition()

    async def put(
        self, cursor: ModelCursor, records: Sequence[LogRecord] = (), end: int = 0
    ) -> None:
        """Bring what was appended next to the partition of `cursor`, or the news that its log goes
        on to `end`. Of a partition that was let go nothing is kept."""
        async with self._changed:
            await self._changed.wait_for(lambda: not (cursor.owned and self._is_full()))
            if not cursor.owned:
                return
            before = self._waiting.get(cursor, Waiting([]))
            self._waiting[cursor] = Waiting([*before.records, *records], max(before.end, end))
            self._changed.notify_all()

    async def take(self) -> Mapping[ModelCursor, Waiting]:
        """All that waits: soon after there is anything, at once if it is much."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._linger_seconds):
                    await self._changed.wait_for(self._is_full)
            taken, self._waiting = self._waiting, {}
            self._changed.notify_all()
        return taken

    async def wake(self) -> None:
        """Let those look up who wait for room: their partition may have been let go."""
        async with self._changed:
            self._changed.notify_all()

    def _is_full(self) -> bool:
        records = [record for waiting in self._waiting.values() for record in waiting.records]
        return len(records) >= self._most or sum(map(_bytes_of, records)) >= _MOST_BYTES


def _bytes_of(record: LogRecord) -> int:
    """What a record holds in memory: with a window its sample and its numbers, too, which are not
    quite twice as much again."""
    size = len(record.value or b"")
    return size if record.said is None else 3 * size


async def feed_models(handover: Handover, topic: str, open_reader: Readers) -> None:
    """Bring each model behind what is handed over for it, until cancelled; `topic` is the log."""
    while True:
        batches: list[Batch] = []
        gaps: list[tuple[ModelCursor, list[LogRecord], int]] = []
        for cursor, (records, end) in (await handover.take()).items():
            ahead = [record for record in records if record.offset >= cursor.next_offset]
            if ahead and cursor.next_offset + len(ahead) == ahead[-1].offset + 1:
                batches.append((cursor, ahead))
            elif cursor.owned:
                gaps.append((cursor, ahead, end))
        await process(batches)
        await run_all(_catch_up(*gap, topic, open_reader) for gap in gaps)


async def _catch_up(
    cursor: ModelCursor, ahead: Sequence[LogRecord], end: int, topic: str, open_reader: Readers
) -> None:
    await advance(cursor, topic, ahead, open_reader)
    if end > cursor.next_offset:
        await fill(cursor, topic, cursor.ownership.partition, end, open_reader)


async def look_for_others(
    handover: Handover,
    cursors: Collection[ModelCursor],
    ends: Callable[[Collection[int]], Awaitable[Mapping[int, int]]],
    clock: Clock,
) -> None:
    """Have models read what lies in their log and does not come to them, until cancelled.

    `ends` gives the end of the log of these partitions. Only a model that was behind at the last
    look and did not move since is not being brought what there is.
    """
    stood: dict[ModelCursor, int] = {}
    while True:
        await clock.sleep(LOOK_SECONDS)
        try:
            found = await ends([cursor.ownership.partition for cursor in cursors])
        except KafkaError as error:
            log.debug("the end of the log is not known", error=repr(error))
            continue
        before, stood = stood, {}
        for cursor in cursors:
            partition, at = cursor.ownership.partition, cursor.next_offset
            BEHIND.labels(str(partition)).set(max(found[partition] - at, 0))
            if at < found[partition]:
                stood[cursor] = at
                if before.get(cursor) == at:
                    await handover.put(cursor, end=found[partition])
