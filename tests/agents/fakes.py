"""A broker in memory: enough of one for the agents' logic, where real Kafka is not the question.

`MemoryBroker` holds partitions as lists of records, `MemoryOutput` and `MemoryReader` stand in for
`Output` and `LogReader`. A delivery takes `latency()` turns of the event loop.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from pipeline.kafka.partition_log import LogRecord
from pipeline.kafka.producer import Keyed
from pipeline.topics.dead_letters import DeadLetter

APPENDED_MS = 1_700_000_000_000
_AT_A_TIME = 3


@dataclass
class MemoryBroker:
    """Partitions by (topic, number); `first` is the first offset that retention left."""

    logs: dict[tuple[str, int], list[LogRecord]] = field(default_factory=dict)
    first: dict[tuple[str, int], int] = field(default_factory=dict)
    latency: Callable[[], int] = lambda: 1

    def put(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> int:
        """Append a record; gives its offset."""
        log = self.logs.setdefault((topic, partition), [])
        log.append(LogRecord(partition, len(log), key, value, APPENDED_MS))
        return len(log) - 1

    def records(self, topic: str, partition: int = 0) -> list[LogRecord]:
        """What retention left."""
        log = self.logs.get((topic, partition), [])
        return log[self.first.get((topic, partition), 0) :]

    def trim(self, topic: str, partition: int, first: int) -> None:
        """Remove what lies below `first`, as retention does."""
        self.first[topic, partition] = first

    def recreate(self, topic: str, partition: int = 0) -> None:
        """Delete the topic and make it anew."""
        self.logs.pop((topic, partition), None)
        self.first.pop((topic, partition), None)

    def live(self, topic: str, partition: int = 0) -> dict[bytes, bytes]:
        """Newest value of each key, tombstones gone."""
        newest = {record.key or b"": record.value for record in self.records(topic, partition)}
        return {key: value for key, value in newest.items() if value is not None}

    @asynccontextmanager
    async def open_reader(self, partitions: Iterable[tuple[str, int]]) -> AsyncIterator[Any]:
        yield MemoryReader(self, set(partitions))


class MemoryReader:
    """Reads only what it was opened for."""

    def __init__(self, broker: MemoryBroker, places: set[tuple[str, int]]) -> None:
        self._broker = broker
        self._places = places

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        assert (topic, partition) in self._places
        first = self._broker.first.get((topic, partition), 0)
        return first, max(first, len(self._broker.logs.get((topic, partition), [])))

    async def read(
        self, topic: str, partition: int, start: int, end: int
    ) -> AsyncIterator[list[LogRecord]]:
        assert (topic, partition) in self._places
        found = [r for r in self._broker.records(topic, partition) if start <= r.offset < end]
        for at in range(0, len(found), _AT_A_TIME):
            await asyncio.sleep(0)
            yield found[at : at + _AT_A_TIME]


class MemoryOutput:
    """Writes into a `MemoryBroker`; `refuses(topic)` makes a delivery fail."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.dead_letters: list[DeadLetter] = []
        self.refuses: Callable[[str], bool] = lambda topic: False

    async def append(self, topic: str, partition: int, records: Sequence[Keyed]) -> list[int]:
        offsets = []
        for key, value in records:
            for _ in range(self.broker.latency()):
                await asyncio.sleep(0)
            if self.refuses(topic):
                raise ConnectionError(f"{topic} refused")
            offsets.append(self.broker.put(topic, partition, key, value))
        return offsets

    async def dead_letter(self, topic: str, partition: int, letter: DeadLetter) -> None:
        await asyncio.sleep(0)
        self.dead_letters.append(letter)

    @property
    def reasons(self) -> list[str]:
        """Why records were refused, in order."""
        return [dict(letter.headers)["reason"].decode() for letter in self.dead_letters]


class FakeStream:
    """What `consume` needs of a Faust stream: a channel's queue, in which one batch lies at a time
    and the end after the last, and a monitor. Its events note when they are acknowledged."""

    def __init__(self, *batches: Sequence[Any]) -> None:
        self._batches = [deque(batch) for batch in batches if batch]
        self._batch: deque[Any] = deque()
        self.acknowledged: list[tuple[int, int]] = []
        self.before_ack: Callable[[], None] = lambda: None
        self.worked_on: list[tuple[int, int]] = []
        self.channel = SimpleNamespace(queue=self)
        self.app = SimpleNamespace(sensors=self)

    async def get(self) -> Any:
        await asyncio.sleep(0)
        if not self._batch:
            if not self._batches:
                raise StopAsyncIteration
            self._batch = self._batches.pop(0)
        return self.get_nowait()

    def get_nowait(self) -> Any:
        event = self._batch.popleft()
        event.ack = partial(self._ack, event)
        return event

    def qsize(self) -> int:
        return len(self._batch)

    def empty(self) -> bool:
        return not self._batch

    def full(self) -> bool:
        return False

    def on_stream_event_in(self, *at: Any) -> str:
        return "began"

    def on_stream_event_out(self, tp: Any, offset: int, stream: Any, of: Any, state: str) -> None:
        assert (stream, state) == (self, "began")
        self.worked_on.append((of.message.partition, offset))

    def _ack(self, event: Any) -> None:
        self.before_ack()
        self.acknowledged.append((event.message.partition, event.message.offset))


def event(record: LogRecord) -> Any:
    """A Faust event of this record; Faust's timestamps are seconds."""
    return SimpleNamespace(
        message=SimpleNamespace(
            tp=record.partition,
            partition=record.partition,
            offset=record.offset,
            key=record.key,
            value=record.value,
            timestamp=record.appended_ms / 1000,
        )
    )
