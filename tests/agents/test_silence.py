"""Nodes that nobody names depart after a long silence; those that a record names stay."""

import asyncio

import pytest

from pipeline.agents.silence import LOOK_SECONDS, depart_silent
from pipeline.tasks import end
from pipeline.topics.nodes import NodeRecord
from tests.agents.fakes import MemoryBroker
from tests.agents.logs import LogWriter
from tests.agents.owners import Owner, published

SILENCE_SECONDS = 3000.0
LATER = 101
"""Windows of 30 s in a little more than that."""


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


async def looked(owner: Owner, times: int) -> None:
    """Let the owner look so many times, and apply what came of it."""
    assert owner.shard is not None
    task = asyncio.create_task(depart_silent([owner.shard], SILENCE_SECONDS, owner.clock))
    await owner.clock.advance(times * LOOK_SECONDS + 1)
    await end(task)
    await owner.apply()


async def test_one_that_was_silent_at_two_looks_departs_with_its_results(
    broker: MemoryBroker,
) -> None:
    log = LogWriter(broker)
    log.windows(1, "gone", "here")
    log.windows(LATER, "here")
    owner = await Owner(broker, "x").load()
    await looked(owner, 1)
    assert owner.model.bank.nodes == ("gone", "here")
    await looked(owner, 2)
    assert owner.model.bank.nodes == ("here",)
    assert set(published(broker, "t.node-state")) == {"here"}
    log.windows(1, "gone")
    await owner.apply()
    assert owner.model.bank.nodes == ("gone", "here")


async def test_one_that_a_record_names_stays(broker: MemoryBroker) -> None:
    log = LogWriter(broker)
    log.windows(1, "down", "here")
    log.windows(LATER, "here")
    owner = await Owner(broker, "x").load()
    assert owner.shard is not None
    owner.shard.join.inventory.nodes["down"] = NodeRecord(node="down")
    await looked(owner, 3)
    assert owner.model.bank.nodes == ("down", "here")


async def test_after_an_outage_of_all_nobody_departs(broker: MemoryBroker) -> None:
    log = LogWriter(broker)
    log.windows(1, "a", "b")
    owner = await Owner(broker, "x").load()
    await owner.clock.advance(10 * SILENCE_SECONDS)
    await looked(owner, 3)
    # The first of them sends again, the other a moment later.
    log.window("a", skip=LATER)
    await owner.apply()
    assert owner.shard is not None
    task = asyncio.create_task(depart_silent([owner.shard], SILENCE_SECONDS, owner.clock))
    await owner.clock.advance(LOOK_SECONDS + 1)
    log.window("b", skip=LATER)
    await owner.apply()
    await owner.clock.advance(LOOK_SECONDS)
    await end(task)
    assert owner.model.bank.nodes == ("a", "b")
