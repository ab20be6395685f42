"""A running worker notices that a log lost its last records, and leaves the right positions.

How it continues: tests/agents/test_recovery.py. With a broker: tests/system/test_truncation.py.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from pipeline.agents.shard import Shard
from pipeline.agents.truncated_logs import CHECK_SECONDS, check_topics, watch_ends
from pipeline.errors import BrokerUnavailableError, StateError
from pipeline.topics.checkpoints import marker_key
from tests.agents.fakes import MemoryBroker
from tests.agents.logs import LogWriter, make_log
from tests.agents.owners import Owner, settle

SAMPLES, WINDOWS = "t.samples", "t.windows"
NODES = ("a", "b")


class Watching:
    """`watch_ends` over the logs of an owner in memory."""

    def __init__(self, broker: MemoryBroker, owner: Owner) -> None:
        self.is_away = False
        self.log: LogWriter | None = None
        self._broker, self._owner = broker, owner
        shards = [owner.shard]
        self.task = asyncio.create_task(
            watch_ends(shards, self._ends, owner.recovery.save, owner.clock)
        )

    async def _ends(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        if self.is_away:
            raise BrokerUnavailableError("away")
        samples, windows = (self._broker.logs[topic, 0] for topic in (SAMPLES, WINDOWS))
        ends = {0: len(samples)}, {0: len(windows)}
        if self.log is not None:  # joined and applied while the answer is on its way
            self.log.windows(1, "a")
            self._owner.model.next_offset += 1
            self._owner.shard.join.next_offset += 1
        return ends

    async def look(self) -> None:
        await settle()
        await self._owner.clock.advance(CHECK_SECONDS)
        await settle()


async def test_logs_that_grow_or_cannot_be_read_are_left_alone() -> None:
    broker, log = make_log(4, *NODES)
    watching = Watching(broker, await Owner(broker, "x").load())
    watching.log = log
    for is_away in (False, True, False):
        watching.is_away = is_away
        await watching.look()
        assert not watching.task.done()
    watching.task.cancel()


@pytest.mark.parametrize("new_samples", [0, 50])
async def test_positions_of_truncated_samples_are_saved_before_the_worker_stops(
    new_samples: int,
) -> None:
    broker, _ = make_log(4, *NODES)
    owner = await Owner(broker, "x").load()
    await owner.round()
    watching = Watching(broker, owner)
    broker.truncate(SAMPLES, 0, 5)
    await watching.look()
    with pytest.raises(StateError, match="samples end at offset 5 and 8 was next"):
        await watching.task
    for _ in range(new_samples):
        broker.put(SAMPLES, 0, b"a", b"new")
    assert (await Owner(broker, "y").load()).shard.join.next_offset == 5


async def test_truncated_windows_stop_the_worker() -> None:
    broker, _ = make_log(4, *NODES)
    watching = Watching(broker, await Owner(broker, "x").load())
    broker.truncate(WINDOWS, 0, 7)
    await watching.look()
    with pytest.raises(StateError, match="windows end at 7 and 8 was next"):
        await watching.task


async def test_truncated_windows_are_saved_with_the_next_generation() -> None:
    broker, log = make_log(4, *NODES)
    owner = await Owner(broker, "x").load()
    watching = Watching(broker, owner)
    broker.truncate(WINDOWS, 0, 5)
    await watching.look()
    with pytest.raises(StateError, match="windows end at 5 and 8 was next"):
        await watching.task
    log.windows(4, *NODES)  # beyond the former end, before the worker is back
    again = await Owner(broker, "y").load()
    assert (again.model.generation, again.model.next_offset) == (2, 13)
    assert [again.model.counters[node].applied for node in NODES] == [8, 8]


async def test_windows_behind_the_models_do_not_hide_that_samples_were_truncated() -> None:
    broker, log = make_log(3, *NODES)
    owner = await Owner(broker, "x").load()
    log.windows(1, *NODES)  # joined, and not applied yet
    owner.shard.join.next_offset = 8
    watching = Watching(broker, owner)
    broker.truncate(SAMPLES, 0, 5)
    await watching.look()
    assert isinstance(watching.task.exception(), StateError)
    for _ in range(20):
        broker.put(SAMPLES, 0, b"a", b"new")
    again = await Owner(broker, "y").load()
    assert (again.model.next_offset, again.shard.join.next_offset) == (8, 5)
    log.samples = 5
    log.windows(1, *NODES)
    assert (await Owner(broker, "z").load()).shard.join.next_offset == 7


async def test_a_marker_on_its_way_does_not_replace_the_saved_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, _ = make_log(4, *NODES)
    owner = await Owner(broker, "x").load()
    watching = Watching(broker, owner)
    append, may_arrive = owner.output.append, asyncio.Event()
    slow = {marker_key(owner.epoch)}

    async def append_slowly(topic: str, partition: int, records: Any, *more: Any) -> Any:
        if slow & {key for key, _ in records}:
            slow.clear()
            await may_arrive.wait()
        return await append(topic, partition, records, *more)

    monkeypatch.setattr(owner.output, "append", append_slowly)
    running = asyncio.create_task(owner.round())
    await settle()
    broker.truncate(SAMPLES, 0, 5)
    await watching.look()
    may_arrive.set()
    await settle()
    await running
    await settle()
    assert isinstance(watching.task.exception(), StateError)
    for _ in range(20):
        broker.put(SAMPLES, 0, b"a", b"new")
    assert (await Owner(broker, "y").load()).shard.join.next_offset == 5


async def test_positions_of_all_truncated_partitions_are_saved() -> None:
    broker, _ = make_log(4, *NODES)
    owner = await Owner(broker, "x").load()
    other = await Owner(make_log(4, *NODES)[0], "x").load()
    other.shard.ownership.partition = 1
    saved: list[int] = []

    async def save(shard: Shard) -> None:
        saved.append(shard.ownership.partition)

    async def ends() -> tuple[Mapping[int, int], Mapping[int, int]]:
        return {0: 5, 1: 5}, {0: 8, 1: 8}

    task = asyncio.create_task(watch_ends([owner.shard, other.shard], ends, save, owner.clock))
    await settle()
    await owner.clock.advance(CHECK_SECONDS)
    with pytest.raises(StateError, match=r"partition 0 .* partition 1 "):
        await task
    assert saved == [0, 1]


def test_only_a_known_other_id_is_a_recreated_topic() -> None:
    check_topics({"a": "1"}, [{}, {"a": "1"}, {"b": "2"}])
    check_topics({}, [{"a": "1"}])  # an older broker tells no ids
    with pytest.raises(StateError, match="a was recreated"):
        check_topics({"a": "2"}, [{}, {"a": "1"}])
