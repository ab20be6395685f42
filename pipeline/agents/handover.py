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
from pipeline.agents.log import LogRecord
from pipeline.agents.model import Batch, ModelCursor, process
from pipeline.clock import Clock
from pipeline.logs import get_logger

log = get_logger(__name__)

LOOK_SECONDS: Final = 1.0
"""How often the end of the log is asked for."""
_MOST: Final = 2000
# For a few nodes at once models take little more than for one.
_LINGER_SECONDS: Final = 0.1
_ENOUGH: Final = 1000


class Waiting(NamedTuple):
    """What one model is to apply: `records` in order of offset, and the log up to `end`."""

    records: list[LogRecord]
    end: int = 0


class Handover:
    """Records on their way; who brings more than `most` waits until some are taken."""

    def __init__(self, most: int = _MOST, linger_seconds: float = _LINGER_SECONDS) -> None:
        self._most = most
        self._linger_seconds = linger_seconds
        self._waiting: dict[ModelCursor, Waiting] = {}
        self._changed = asyncio.Condition()

    async def put(
        self, cursor: ModelCursor, records: Sequence[LogRecord] = (), end: int = 0
    ) -> None:
        """Bring what was appended next to the partition of `cursor`, or the news that its log goes
        on to `end`."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._count() < self._most)
            before = self._waiting.get(cursor, Waiting([]))
            self._waiting[cursor] = Waiting([*before.records, *records], max(before.end, end))
            self._changed.notify_all()

    async def take(self) -> Mapping[ModelCursor, Waiting]:
        """All that waits: soon after there is anything, at once if it is much."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._linger_seconds):
                    enough = min(_ENOUGH, self._most)
                    await self._changed.wait_for(lambda: self._count() >= enough)
            taken, self._waiting = self._waiting, {}
            self._changed.notify_all()
        return taken

    def _count(self) -> int:
        return sum(len(waiting.records) for waiting in self._waiting.values())


async def feed_models(handover: Handover, topic: str, open_reader: Readers) -> None:
    """Bring each model behind what is handed over for it, until cancelled; `topic` is the log."""
    while True:
        batches: list[Batch] = []
        for cursor, (records, end) in (await handover.take()).items():
            ahead = [record for record in records if record.offset >= cursor.next_offset]
            if ahead and cursor.next_offset + len(ahead) == ahead[-1].offset + 1:
                batches.append((cursor, ahead))
            elif cursor.owned:
                await advance(cursor, topic, ahead, open_reader)
                if end > cursor.next_offset:
                    await fill(cursor, topic, cursor.ownership.partition, end, open_reader)
        await process(batches)


async def look_for_others(
    handover: Handover,
    cursors: Collection[ModelCursor],
    ends: Callable[[Collection[int]], Awaitable[Mapping[int, int]]],
    clock: Clock,
) -> None:
    """Have models read what lies in their log and does not come to them, until cancelled.

    `ends` gives the end of the log of these partitions. A model that moved since the last look is
    being brought what there is.
    """
    stood: dict[ModelCursor, int] = {}
    while True:
        await clock.sleep(LOOK_SECONDS)
        try:
            found = await ends([cursor.ownership.partition for cursor in cursors])
        except KafkaError as error:
            log.debug("the end of the log is not known", error=repr(error))
            continue
        for cursor in cursors:
            end = found[cursor.ownership.partition]
            if stood.get(cursor) == cursor.next_offset < end:
                await handover.put(cursor, end=end)
            stood[cursor] = cursor.next_offset
