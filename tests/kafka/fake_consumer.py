"""A consumer in memory, with the behaviour of aiokafka 0.14 on which `pipeline.kafka.follow`
depends."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from pipeline.kafka import follow

TP = TopicPartition("t.nodes", 0)
CLIENT = {"bootstrap_servers": "fake:9092"}


class FakeLog:
    """A partition: records by offset, of which compaction may have removed some."""

    def __init__(self, offsets: Iterable[int] = (), end: int = 0, first: int = 0) -> None:
        self.records: dict[int, tuple[bytes, bytes | None]] = {
            offset: (b"k", b"%d" % offset) for offset in offsets
        }
        self.first, self.end = first, end or max(self.records, default=-1) + 1

    def append(self, value: bytes | None) -> None:
        self.records[self.end] = (b"k", value)
        self.end += 1


class FakeConsumer:
    """Reads `logs`; records appended at offset N have the time 1000 * N."""

    def __init__(self, logs: dict[TopicPartition, FakeLog]) -> None:
        self.logs = logs
        self.options: dict[str, Any] = {}
        self.resets: list[TopicPartition] = []
        self.fails: BaseException | None = None
        self.is_silent = False
        self.is_stopped = False
        self._assigned: list[TopicPartition] = []
        self._positions: dict[TopicPartition, int] = {}
        self.is_closed = False
        self._client = SimpleNamespace(_metadata_update=None, _get_conn=None, close=self._close)
        self._paused: set[TopicPartition] = set()

    async def start(self) -> None:
        assert None not in (self._client._metadata_update, self._client._get_conn), "unlimited"
        if self.fails:
            raise self.fails

    async def stop(self) -> None:
        self.is_stopped = True

    async def _close(self) -> None:
        self.is_closed = True

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._assigned = partitions
        asyncio.get_running_loop().call_soon(self._reset)

    def _reset(self) -> None:
        self.resets += [tp for tp in self._assigned if tp not in self._positions]

    def pause(self, *partitions: TopicPartition) -> None:
        self._paused |= set(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._paused -= set(partitions)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self._positions[tp] = offset

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return {tp.partition for tp in self.logs if tp.topic == topic} or None

    async def position(self, tp: TopicPartition) -> int:
        return self._positions[tp]

    async def beginning_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.logs[tp].first for tp in tps}

    async def end_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        if self.fails:
            raise self.fails
        return {tp: self.logs[tp].end for tp in tps}

    async def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[Any, Any]:
        if any(time < 0 for time in times.values()):
            raise ValueError("The target time must be non-negative")  # as aiokafka
        found = {tp: range(self.logs[tp].first, self.logs[tp].end) for tp in times}
        later = {tp: [o for o in found[tp] if 1000 * o >= time] for tp, time in times.items()}
        return {tp: SimpleNamespace(offset=o[0]) if o else None for tp, o in later.items()}

    async def getmany(
        self, *tps: TopicPartition, timeout_ms: int, max_records: int
    ) -> dict[TopicPartition, list[Any]]:
        if self.fails:
            raise self.fails
        batches: dict[TopicPartition, list[Any]] = {}
        for tp in tps:
            if tp in self._paused or self.is_silent or tp not in self.logs:
                continue
            log, position = self.logs[tp], self._positions[tp]
            if not log.first <= position <= log.end:
                raise OffsetOutOfRangeError({tp: position})
            offsets = sorted(o for o in log.records if o >= max(position, log.first))
            taken = offsets[:max_records]
            self._positions[tp] = taken[-1] + 1 if len(taken) < len(offsets) else log.end
            if taken:
                batches[tp] = [self._record(tp, offset) for offset in taken]
        return batches

    def _record(self, tp: TopicPartition, offset: int) -> Any:
        key, value = self.logs[tp].records[offset]
        return SimpleNamespace(
            topic=tp.topic, partition=tp.partition, offset=offset, key=key, value=value,
            timestamp=1000 * offset,
        )  # fmt: skip


def install(monkeypatch: pytest.MonkeyPatch, logs: dict[TopicPartition, FakeLog]) -> FakeConsumer:
    """Let every follower read `logs` by the consumer that this returns."""
    consumer = FakeConsumer(logs)

    def make(**options: Any) -> FakeConsumer:
        consumer.options = options
        return consumer

    monkeypatch.setattr(follow, "AIOKafkaConsumer", make)
    return consumer
