"""Nodes that nobody names depart after a long silence; those that a record names stay."""

import asyncio
from collections.abc import Mapping

import pytest

from pipeline.agents.silent_nodes import LOOK_SECONDS, depart_silent
from pipeline.tasks import cancel_tasks
from pipeline.topics.nodes import NodeRecord
from tests.agents.fakes import MemoryBroker
from tests.agents.logs import LogWriter
from tests.agents.owners import Owner, published, settle

SILENCE_SECONDS = 500.0
LATER = 102
"""Windows of 5 s in a little more than that."""


@pytest.fixture
def memory() -> MemoryBroker:
    return MemoryBroker()


def looking(owner: Owner, waiting: int = 0) -> "asyncio.Task[None]":
    """The owner looks every hour, while so many samples always wait to be joined."""
    shard = owner.shard
    assert shard is not None

    async def ends() -> Mapping[int, int]:
        return {0: shard.join.next_offset + waiting}

    return asyncio.create_task(depart_silent([shard], SILENCE_SECONDS, ends, owner.clock))


async def looked(owner: Owner, times: int, waiting: int = 0) -> None:
    """Let the owner look so many times, and apply what came of it."""
    task = looking(owner, waiting)
    await owner.clock.advance(times * LOOK_SECONDS + 1)
    await settle()
    await cancel_tasks(task)
    await owner.apply()


async def test_one_that_was_silent_at_two_looks_departs_with_its_results(
    memory: MemoryBroker,
) -> None:
    log = LogWriter(memory)
    log.windows(1, "gone", "here")
    log.windows(LATER, "here")
    owner = await Owner(memory, "x").load()
    await looked(owner, 2)
    assert owner.model.bank.nodes == ("gone", "here")
    await looked(owner, 3)
    assert owner.model.bank.nodes == ("here",)
    assert set(published(memory, "t.node-state")) == {"here"}
    log.windows(1, "gone")
    await owner.apply()
    assert owner.model.bank.nodes == ("gone", "here")


async def test_one_that_a_record_names_stays(memory: MemoryBroker) -> None:
    log = LogWriter(memory)
    log.windows(1, "down", "here")
    log.windows(LATER, "here")
    owner = await Owner(memory, "x").load()
    assert owner.shard is not None
    owner.shard.join.inventory.nodes["down"] = NodeRecord(node="down")
    await looked(owner, 4)
    assert owner.model.bank.nodes == ("down", "here")


async def test_nobody_departs_of_whom_samples_may_wait(memory: MemoryBroker) -> None:
    log = LogWriter(memory)
    log.windows(1, "waits", "here")
    log.windows(LATER, "here")
    owner = await Owner(memory, "x").load()
    await looked(owner, 5, waiting=3)
    assert owner.model.bank.nodes == ("here", "waits")


async def test_one_that_sends_while_others_depart_stays(memory: MemoryBroker) -> None:
    log = LogWriter(memory)
    log.windows(1, "a", "b")
    log.windows(LATER, "here")
    owner = await Owner(memory, "x").load()
    assert owner.shard is not None
    depart = owner.shard.join.depart

    async def depart_slowly(node: str, appended_ms: int) -> None:
        log.window("b", skip=LATER)
        await owner.apply()
        await depart(node, appended_ms)

    owner.shard.join.depart = depart_slowly  # type: ignore[method-assign]
    await looked(owner, 3)
    assert owner.model.bank.nodes == ("b", "here")


async def test_after_an_outage_of_all_nobody_departs(memory: MemoryBroker) -> None:
    log = LogWriter(memory)
    log.windows(1, "a", "b")
    owner = await Owner(memory, "x").load()
    await owner.clock.advance(10 * SILENCE_SECONDS)
    await looked(owner, 3)
    # The first of them sends again, the other a moment later.
    log.window("a", skip=LATER)
    await owner.apply()
    task = looking(owner)
    await owner.clock.advance(2 * LOOK_SECONDS + 1)
    log.window("b", skip=LATER)
    await owner.apply()
    await owner.clock.advance(LOOK_SECONDS)
    await cancel_tasks(task)
    assert owner.model.bank.nodes == ("a", "b")
