"""Loading and releasing partitions, with a fake consumer group."""

import asyncio
from collections.abc import Set as AbstractSet
from typing import Any

import pytest

from pipeline.agents.partition_holder import PartitionHolder
from pipeline.agents.recovery import Recovery
from pipeline.agents.shard import Shard
from pipeline.clock import ManualClock
from pipeline.errors import StateError
from pipeline.settings import Settings
from tests.agents.fakes import MemoryBroker
from tests.agents.logs import LogWriter
from tests.agents.owners import Owner


class FakeGroup:
    """A consumer group in its first generation, which notes crashes."""

    def __init__(self) -> None:
        self.generation = 1
        self.crashes: list[BaseException] = []

    def crash(self, error: BaseException) -> None:
        self.crashes.append(error)


def holder(group: FakeGroup | None = None) -> PartitionHolder:
    return PartitionHolder(group or FakeGroup(), Settings(), ManualClock())


def loads_by(it: PartitionHolder, load: Any) -> None:
    it._load = load  # type: ignore[method-assign]


async def test_a_load_that_a_revocation_cuts_off_is_no_error() -> None:
    it, begun = holder(), asyncio.Event()

    async def load(partitions: AbstractSet[int], generation: int) -> None:
        begun.set()
        await asyncio.sleep(60)

    loads_by(it, load)
    taking = asyncio.create_task(it.assigned({1}))
    await begun.wait()
    await it.revoked()
    await taking
    assert (it.joins, it.models) == ({}, {})


async def test_a_load_that_nobody_cut_off_and_yet_is_cancelled_ends_the_worker() -> None:
    """A library that lets a cancellation of its own escape: the worker would hold nothing, say
    that it is ready, and nobody would restart it."""
    it = holder()

    async def load(partitions: AbstractSet[int], generation: int) -> None:
        raise asyncio.CancelledError

    loads_by(it, load)
    with pytest.raises(StateError, match=r"loading partitions \[1\] was cut off"):
        await it.assigned({1})


async def test_a_load_that_fails_ends_the_worker() -> None:
    it = holder()

    async def load(partitions: AbstractSet[int], generation: int) -> None:
        raise ConnectionError("no broker")

    loads_by(it, load)
    with pytest.raises(ConnectionError):
        await it.assigned({1})


async def test_whoever_stops_the_worker_stops_its_loading() -> None:
    it, begun = holder(), asyncio.Event()

    async def load(partitions: AbstractSet[int], generation: int) -> None:
        begun.set()
        await asyncio.sleep(60)

    loads_by(it, load)
    taking = asyncio.create_task(it.assigned({1}))
    await begun.wait()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking


async def test_a_revocation_within_a_load_keeps_what_was_loaded_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log_of = MemoryBroker()
    for partition in (0, 1, 2):
        LogWriter(log_of, partition=partition).windows(3, f"node-{partition}")
    group, begun = FakeGroup(), asyncio.Event()
    it = holder(group)
    it._recovery = Owner(log_of, "x").recovery
    monkeypatch.setattr(PartitionHolder, "_start_tasks", lambda *_: None)
    load, kinds = Recovery.load, list[tuple[int, bool]]()

    async def load_slowly(
        self: Recovery, reader: Any, partition: int, kept: Shard | None
    ) -> tuple[Shard, list[bytes]]:
        kinds.append((partition, kept is not None))
        if partition == 1 and not begun.is_set():
            begun.set()
            await asyncio.sleep(60)
        return await load(self, reader, partition, kept)

    monkeypatch.setattr(Recovery, "load", load_slowly)
    taking = asyncio.create_task(it.assigned({0, 1, 2}))
    await begun.wait()
    await it.revoked()
    await taking
    assert (it.models, kinds) == ({}, [(0, False), (1, False)])
    kinds.clear()
    group.generation = 2
    await it.assigned({0, 1, 2})
    assert kinds == [(0, True), (1, False), (2, False)]
    assert sorted(it.models) == [0, 1, 2]
    rows = sum(model.bank.num_nodes for model in it.models.values())
    assert (rows, it._released) == (3, {})
    assert all(model.owned for model in it.models.values())
    # What is taken away for good leaves nothing behind.
    await it.revoked()
    group.generation = 3
    await it.assigned({2})
    assert sorted(it.models) == [2]
    assert it._recovery.bank.num_rows == it.models[2].bank.num_rows
    assert len({node for model in it.models.values() for node in model.bank.nodes}) == 1


async def test_what_was_loaded_for_a_generation_that_has_passed_is_kept_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log_of = MemoryBroker()
    LogWriter(log_of).windows(3, "node")
    it = holder()
    it._recovery = Owner(log_of, "x").recovery
    monkeypatch.setattr(PartitionHolder, "_start_tasks", lambda *_: None)
    await it._load({0}, generation=7)
    assert it.models == {}
    assert sorted(it._released) == [0]
    assert not it._released[0].model.owned


@pytest.mark.parametrize("asked", [True, False])
async def test_a_task_that_is_cut_off_ends_the_worker_unless_it_was_let_go(asked: bool) -> None:
    group = FakeGroup()
    it = holder(group)

    async def work() -> None:
        await asyncio.sleep(60)

    it._run(work())
    (task,) = it._tasks
    await asyncio.sleep(0)
    if asked:
        await it.revoked()
    else:
        task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert [type(error) for error in group.crashes] == ([] if asked else [StateError])
