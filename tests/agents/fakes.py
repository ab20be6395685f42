"""Fakes for tests of the agents' logic: a broker in memory, its clients, and a record source.

`MemoryBroker` holds partitions as lists of records, `MemoryProducer` and `MemoryReader` stand in
for `Producer` and `LogReader`. A delivery takes `latency()` turns of the event loop.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pipeline.kafka.partition_log import LogRecord
from pipeline.kafka.producer import Headers, HeadersByKey, Keyed
from pipeline.topics.dead_letters import DeadLetter

APPENDED_MS = 1_700_000_000_000
READ_SIZE = 3


@dataclass
class MemoryBroker:
    """Partitions by (topic, number); `first` is the first offset that retention left."""

    logs: dict[tuple[str, int], list[LogRecord]] = field(default_factory=dict)
    first: dict[tuple[str, int], int] = field(default_factory=dict)
    recreated: dict[str, int] = field(default_factory=dict)
    latency: Callable[[], int] = lambda: 1

    def put(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> int:
        """Append a record; return its offset."""
        log = self.logs.setdefault((topic, partition), [])
        log.append(LogRecord(partition, len(log), key, value, APPENDED_MS))
        return len(log) - 1

    def records(self, topic: str, partition: int = 0) -> list[LogRecord]:
        """Return the records that retention has left."""
        log = self.logs.get((topic, partition), [])
        return log[self.first.get((topic, partition), 0) :]

    def trim(self, topic: str, partition: int, first: int) -> None:
        """Remove records below the offset `first`, as retention does."""
        self.first[topic, partition] = first

    def recreate(self, topic: str, partition: int = 0) -> None:
        """Delete and recreate a topic with this partition."""
        self.recreated[topic] = self.recreated.get(topic, 0) + 1
        self.logs.pop((topic, partition), None)
        self.first.pop((topic, partition), None)

    def truncate(self, topic: str, partition: int, end: int) -> None:
        """Remove records from the offset `end` on, as an unclean election does."""
        del self.logs[topic, partition][end:]

    def live(self, topic: str, partition: int = 0) -> dict[bytes, bytes]:
        """Return the newest value by key, without tombstones."""
        newest = {record.key or b"": record.value for record in self.records(topic, partition)}
        return {key: value for key, value in newest.items() if value is not None}

    @asynccontextmanager
    async def open_reader(self, partitions: Iterable[tuple[str, int]]) -> AsyncIterator[Any]:
        yield MemoryReader(self, set(partitions))


class MemoryReader:
    """Reads the partitions it was opened for."""

    def __init__(self, broker: MemoryBroker, partitions: set[tuple[str, int]]) -> None:
        self._broker = broker
        self._partitions = partitions

    async def topic_ids(self) -> dict[str, str]:
        topics = {topic for topic, _ in self._partitions}
        return {topic: f"{topic}-{self._broker.recreated.get(topic, 0)}" for topic in topics}

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        assert (topic, partition) in self._partitions
        first = self._broker.first.get((topic, partition), 0)
        return first, max(first, len(self._broker.logs.get((topic, partition), [])))

    async def read(
        self, topic: str, partition: int, start: int, end: int
    ) -> AsyncIterator[list[LogRecord]]:
        assert (topic, partition) in self._partitions
        log = self._broker.records(topic, partition)
        records = [record for record in log if start <= record.offset < end]
        for index in range(0, len(records), READ_SIZE):
            await asyncio.sleep(0)
            yield records[index : index + READ_SIZE]


class MemoryProducer:
    """Writes into a `MemoryBroker`; `refuses(topic)` makes a delivery fail."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.headers: dict[tuple[str, int, int], list[tuple[str, bytes]]] = {}
        self.letters: list[DeadLetter] = []
        self.deliveries = 0
        self.refuses: Callable[[str], bool] = lambda topic: False

    async def append(
        self,
        topic: str,
        partition: int,
        records: Sequence[Keyed],
        headers: Headers | HeadersByKey = (),
    ) -> list[int]:
        offsets = []
        for key, value in records:
            for _ in range(self.broker.latency()):
                await asyncio.sleep(0)
            if self.refuses(topic):
                raise ConnectionError(f"{topic} refused")
            offsets.append(self.broker.put(topic, partition, key, value))
            own = headers.get(key, ()) if isinstance(headers, Mapping) else headers
            if own:
                self.headers[topic, partition, offsets[-1]] = list(own)
        return offsets

    async def dead_letters(self, topic: str, partition: int, letters: Iterable[DeadLetter]) -> None:
        await asyncio.sleep(0)
        self.letters += letters
        self.deliveries += 1

    @property
    def reasons(self) -> list[str]:
        """The reasons of the dead letters, in order."""
        return [dict(letter.headers)["reason"].decode() for letter in self.letters]


class FakeDelivery:
    """A record of a `FakeSource`."""

    def __init__(self, source: "FakeSource", record: LogRecord) -> None:
        self._source = source
        self.record = record

    def acknowledge(self) -> None:
        self._source.before_acknowledge()
        self._source.acknowledged.append((self.record.partition, self.record.offset))


class FakeSource:
    """A `RecordSource` of `batches`. It notes (partition, offset) of acknowledged records."""

    def __init__(self, *batches: Sequence[LogRecord]) -> None:
        self._batches = [deque(batch) for batch in batches]
        self.acknowledged: list[tuple[int, int]] = []
        self.before_acknowledge: Callable[[], None] = lambda: None

    async def take(self, limit: int) -> list[FakeDelivery]:
        await asyncio.sleep(0)
        while self._batches and not self._batches[0]:
            self._batches.pop(0)
        if not self._batches:
            return []
        batch = self._batches[0]
        return [FakeDelivery(self, batch.popleft()) for _ in range(min(limit, len(batch)))]
