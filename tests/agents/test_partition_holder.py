"""Loading and releasing partitions, with a fake consumer group."""

import asyncio
import re
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
from tests.agents.logs import LogWriter, make_log
from tests.agents.owners import Owner


class FakeGroup:
    """A consumer group in its first generation, which notes crashes."""

    def __init__(self) -> None:
        self.generation = 1
        self.crashes: list[BaseException] = []

    def crash(self, error: BaseException) -> None:
        self.crashes.append(error)


def new_holder(group: FakeGroup | None = None) -> PartitionHolder:
    return PartitionHolder(group or FakeGroup(), Settings(), ManualClock())


def replace_load(holder: PartitionHolder, load: Any) -> None:
    holder.load = load  # type: ignore[method-assign]


@pytest.mark.parametrize("revoked", [True, False])
async def test_a_revocation_or_the_end_of_the_worker_cancels_a_load(revoked: bool) -> None:
    """A revocation is no error."""
    holder, begun = new_holder(), asyncio.Event()

    async def load(partitions: AbstractSet[int], generation: int) -> None:
        begun.set()
        await asyncio.sleep(60)

    replace_load(holder, load)
    taking = asyncio.create_task(holder.assigned({1}))
    await begun.wait()
    if revoked:
        await holder.revoked()
        await taking
    else:
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
    assert holder.shards == {}


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        # A client may raise its own cancellation: the worker would own nothing without an error.
        (asyncio.CancelledError(), StateError(r"partitions [1] was cancelled without a request")),
        (ConnectionError("no broker"), ConnectionError("no broker")),
    ],
)
async def test_a_failed_load_raises(error: BaseException, raised: Exception) -> None:
    holder = new_holder()

    async def load(partitions: AbstractSet[int], generation: int) -> None:
        raise error

    replace_load(holder, load)
    with pytest.raises(type(raised), match=re.escape(str(raised))):
        await holder.assigned({1})


async def test_next_load_reuses_shards_loaded_before_a_revocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = MemoryBroker()
    for partition in (0, 1, 2):
        LogWriter(broker, partition=partition).windows(3, f"node-{partition}")
    group, begun = FakeGroup(), asyncio.Event()
    holder = new_holder(group)
    holder.recovery = Owner(broker, "x").recovery
    monkeypatch.setattr(PartitionHolder, "start_tasks", lambda *_: None)
    load, kinds = Recovery.load, list[tuple[int, bool]]()

    async def load_slowly(
        self: Recovery, reader: Any, partition: int, previous: Shard | None
    ) -> Shard:
        kinds.append((partition, previous is not None))
        if partition == 1 and not begun.is_set():
            begun.set()
            await asyncio.sleep(60)
        return await load(self, reader, partition, previous)

    monkeypatch.setattr(Recovery, "load", load_slowly)
    assert holder.trouble() == "waiting for partitions"
    taking = asyncio.create_task(holder.assigned({0, 1, 2}))
    await begun.wait()
    assert holder.trouble() == "loading partitions"
    await holder.revoked()
    await taking
    assert holder.trouble() == "waiting for partitions"
    assert (holder.shards, kinds) == ({}, [(0, False), (1, False)])
    kinds.clear()
    group.generation = 2
    await holder.assigned({0, 1, 2})
    assert holder.trouble() == ""
    assert kinds == [(0, True), (1, False), (2, False)]
    assert sorted(holder.shards) == [0, 1, 2]
    shards = list(holder.shards.values())
    rows = sum(len(shard.model.bank.node_models) for shard in shards)
    assert (rows, holder.released) == (3, {})
    assert all(shard.model.owned and shard.join.owned for shard in shards)
    # A partition that does not return leaves no rows.
    await holder.revoked()
    assert not any(shard.model.owned or shard.join.owned for shard in shards)
    group.generation = 3
    await holder.assigned({2})
    (shard,) = holder.shards.values()
    assert shard.ownership.partition == 2
    assert len(holder.recovery.bank.store.models) == len(shard.model.bank.store.models)
    assert len(shard.model.bank.nodes) == 1


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch) -> PartitionHolder:
    """A holder without tasks, over a log with three windows of a node."""
    holder = new_holder()
    holder.recovery = Owner(make_log(3, "node")[0], "x").recovery
    monkeypatch.setattr(PartitionHolder, "start_tasks", lambda *_: None)
    return holder


async def test_next_load_reuses_shards_loaded_for_an_old_generation(
    holder: PartitionHolder,
) -> None:
    await holder.load({0}, generation=7)
    released = {partition: shard.model.owned for partition, shard in holder.released.items()}
    assert (holder.shards, released) == ({}, {0: False})


async def test_a_shutdown_releases_all_partitions(holder: PartitionHolder) -> None:
    await holder.assigned({0})
    model = holder.shards[0].model
    await holder.shut_down()
    assert (holder.shards, model.owned) == ({}, False)


@pytest.mark.parametrize("requested", [True, False])
async def test_a_cancelled_task_crashes_the_group_unless_its_partition_was_revoked(
    requested: bool,
) -> None:
    group = FakeGroup()
    holder = new_holder(group)

    async def work() -> None:
        await asyncio.sleep(60)

    holder.run_task(work())
    (task,) = holder.tasks
    await asyncio.sleep(0)
    if requested:
        await holder.revoked()
    else:
        task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert [type(error) for error in group.crashes] == ([] if requested else [StateError])
