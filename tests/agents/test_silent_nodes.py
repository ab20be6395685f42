"""Deleted nodes and silent nodes without a record depart; nodes with a record stay."""

import asyncio
from collections.abc import Mapping

import pytest

from pipeline.agents import silent_nodes
from pipeline.agents.silent_nodes import (
    CHECK_SECONDS,
    RETAINED_SECONDS,
    expire_deleted_nodes,
    expire_silent_nodes,
)
from pipeline.tasks import cancel_tasks
from pipeline.topics.nodes import NodeRecord
from tests.agents.fakes import MemoryBroker
from tests.agents.logs import LogWriter
from tests.agents.owners import Owner, content, published, settle, undisturbed

SILENCE_SECONDS = 500.0
LATER = 102
"""A little more than the silence, in windows of 5 s."""


@pytest.fixture
def memory() -> MemoryBroker:
    return MemoryBroker()


def start_checks(owner: Owner, waiting: int = 0) -> "asyncio.Task[None]":
    """Check every hour, while `waiting` samples always wait to be joined."""
    shard = owner.shard

    async def ends() -> Mapping[int, int]:
        return {0: shard.join.next_offset + waiting}

    return asyncio.create_task(expire_silent_nodes([shard], SILENCE_SECONDS, ends, owner.clock))


async def run_checks(owner: Owner, times: int, waiting: int = 0) -> None:
    """Run `times` checks, and apply the departures."""
    task = start_checks(owner, waiting)
    await owner.clock.advance(times * CHECK_SECONDS + 1)
    await settle()
    await cancel_tasks(task)
    await owner.apply()


async def with_silent(memory: MemoryBroker, node: str) -> tuple[LogWriter, Owner]:
    """Load a log with one window of `node`, and newer ones of another node."""
    log = LogWriter(memory)
    log.windows(1, node, "here")
    log.windows(LATER, "here")
    return log, await Owner(memory, "x").load()


async def test_a_node_departs_after_two_silent_checks(memory: MemoryBroker) -> None:
    log, owner = await with_silent(memory, "gone")
    await run_checks(owner, 2)
    assert [*owner.model.bank.nodes] == ["gone", "here"]
    await run_checks(owner, 3)
    assert [*owner.model.bank.nodes] == ["here"]
    assert set(published(memory, "t.node-state")) == {"here"}
    log.windows(1, "gone")
    await owner.apply()
    assert owner.model.bank.nodes == ("gone", "here")


async def test_a_silent_node_with_a_record_stays(memory: MemoryBroker) -> None:
    _, owner = await with_silent(memory, "down")
    owner.shard.join.cluster_state.nodes["down"] = NodeRecord(node="down")
    await run_checks(owner, 4)
    assert owner.model.bank.nodes == ("down", "here")


async def test_no_node_departs_while_its_samples_may_wait(memory: MemoryBroker) -> None:
    _, owner = await with_silent(memory, "waits")
    await run_checks(owner, 5, waiting=3)
    assert owner.model.bank.nodes == ("here", "waits")


async def test_a_node_that_sends_again_stays_while_others_depart(memory: MemoryBroker) -> None:
    log = LogWriter(memory)
    log.windows(1, "a", "b")
    log.windows(LATER, "here")
    owner = await Owner(memory, "x").load()
    depart = owner.shard.join.depart

    async def depart_slowly(node: str, appended_ms: int) -> None:
        log.window("b", skip=LATER)
        await owner.apply()
        await depart(node, appended_ms)

    owner.shard.join.depart = depart_slowly  # type: ignore[method-assign]
    await run_checks(owner, 3)
    assert owner.model.bank.nodes == ("b", "here")


async def test_a_node_that_sends_while_its_departure_is_written_keeps_its_models(
    memory: MemoryBroker,
) -> None:
    log, owner = await with_silent(memory, "back")
    depart = owner.shard.join.depart

    async def depart_slowly(node: str, appended_ms: int) -> None:
        log.window(node, skip=LATER)
        await depart(node, appended_ms)

    owner.shard.join.depart = depart_slowly  # type: ignore[method-assign]
    await run_checks(owner, 3)
    assert owner.model.bank.nodes == ("back", "here")
    assert owner.model.counters["back"].applied == 2


async def test_no_node_departs_after_an_outage_of_all(memory: MemoryBroker) -> None:
    log = LogWriter(memory)
    log.windows(1, "a", "b")
    owner = await Owner(memory, "x").load()
    await owner.clock.advance(10 * SILENCE_SECONDS)
    await run_checks(owner, 3)
    # The first node sends again, the other a moment later.
    log.window("a", skip=LATER)
    await owner.apply()
    task = start_checks(owner)
    await owner.clock.advance(2 * CHECK_SECONDS + 1)
    log.window("b", skip=LATER)
    await owner.apply()
    await owner.clock.advance(CHECK_SECONDS)
    await cancel_tasks(task)
    assert owner.model.bank.nodes == ("a", "b")


async def expire(owner: Owner, seconds: float) -> None:
    """Expire deleted nodes for so long, and apply the departures."""
    task = asyncio.create_task(expire_deleted_nodes([owner.shard], owner.clock))
    await owner.clock.advance(seconds)
    await settle()
    await cancel_tasks(task)
    await owner.apply()


async def with_deleted(memory: MemoryBroker, *nodes: str) -> tuple[LogWriter, Owner]:
    """Load a log in which `nodes` are deleted now and the node `here` stays."""
    log = LogWriter(memory)
    log.windows(5, *nodes, "here")
    owner = await Owner(memory, "x").load()
    for node in nodes:
        memory.put("t.nodes", 0, node.encode(), None)
        log.retract(node, round(1000 * owner.clock.now()))
    await owner.apply()
    return log, owner


async def test_a_deleted_node_that_returns_within_an_hour_keeps_its_models(
    memory: MemoryBroker,
) -> None:
    log, owner = await with_deleted(memory, "back")
    assert set(published(memory, "t.predictions")) == {"here"}
    assert set(published(memory, "t.node-state")) == {"here"}
    await expire(owner, RETAINED_SECONDS - 1)
    log.window("back")
    await owner.apply()
    assert owner.model.counters["back"].applied == 6
    # Peaks hardly change with one window, but the last ones were withdrawn.
    assert set(published(memory, "t.predictions")) == {"back", "here"}
    await expire(owner, 2 * RETAINED_SECONDS)
    assert owner.model.bank.nodes == ("back", "here")


async def test_models_of_a_deleted_node_depart_after_an_hour(memory: MemoryBroker) -> None:
    log, owner = await with_deleted(memory, "gone")
    await expire(owner, RETAINED_SECONDS + 61)
    assert owner.model.bank.nodes == ("here",)
    log.window("gone")
    await owner.apply()
    assert owner.model.counters["gone"].applied == 1


async def test_only_the_newest_of_many_deleted_nodes_keep_their_models(
    memory: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silent_nodes, "MAX_RETAINED", 1)
    _, owner = await with_deleted(memory, "first", "second")
    await expire(owner, 61)
    assert owner.model.bank.nodes == ("here", "second")


async def test_a_restart_keeps_the_models_of_a_deleted_node_and_their_age(
    memory: MemoryBroker,
) -> None:
    log, first = await with_deleted(memory, "back", "gone")
    late = undisturbed(memory, 5).reports["back"]
    await first.round()
    await first.model.publish([("back", late)])
    first.die()
    second = await Owner(memory, "y").load()
    assert set(published(memory, "t.node-state")) == {"here"}
    assert second.model.retracted == first.model.retracted
    log.window("back")
    await second.apply()
    assert second.model.counters["back"].applied == 6
    assert content(second.model)["back"] == content(undisturbed(memory))["back"]
    await expire(second, RETAINED_SECONDS + 61)
    assert second.model.bank.nodes == ("back", "here")
