"""Rounds of checkpoints: slices, then the marker, then tombstones."""

import asyncio
from typing import Any

import pytest

from pipeline.agents import checkpoint_rounds
from pipeline.agents.checkpoint_rounds import CheckpointRounds
from pipeline.agents.model_agent import apply_batches
from pipeline.topics.checkpoints import (
    NodeCheckpoint,
    RoundMarker,
    claim_key,
    marker_key,
    node_key,
    parse_key,
)
from pipeline.topics.codec import decode_pack
from tests.agents.fakes import MemoryBroker
from tests.agents.logs import LogWriter, make_log
from tests.agents.owners import Owner, content, published, settle, undisturbed

TOPIC = "t.checkpoints"
NODES = tuple(f"node-{n}" for n in range(7))


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_rounds, "SLICE", 3)


async def loaded(count: int = 3) -> tuple[MemoryBroker, LogWriter, Owner]:
    """Return an owner that has applied a log with `count` windows of each node."""
    broker, log = make_log(count, *NODES)
    return broker, log, await Owner(broker, "first").load()


def kinds(broker: MemoryBroker, since: int = 0) -> list[str]:
    """Return the kinds of records in `checkpoints`: node, marker, claim or tombstone."""
    return [
        "tombstone" if record.value is None else parse_key(record.key or b"")[0]
        for record in broker.records(TOPIC)[since:]
    ]


def marker(broker: MemoryBroker, epoch: int) -> RoundMarker:
    return decode_pack(RoundMarker, broker.live(TOPIC)[marker_key(epoch)])


def checkpoint(broker: MemoryBroker, node: str, epoch: int) -> NodeCheckpoint:
    return decode_pack(NodeCheckpoint, broker.live(TOPIC)[node_key(node, epoch)])


async def test_a_round_writes_all_nodes_and_then_the_marker() -> None:
    broker, _, owner = await loaded()
    await owner.round()
    assert kinds(broker) == ["claim", *["node"] * 7, "marker"]
    round_marker = marker(broker, owner.epoch)
    assert (round_marker.resume, round_marker.joined, round_marker.nodes) == (21, 20, 7)
    for node, (state, counters, *_) in content(undisturbed(broker)).items():
        written = checkpoint(broker, node, owner.epoch)
        assert (written.state, written.counters) == (state, counters)
        assert (written.covers, written.epoch, written.round) == (21, owner.epoch, 1)


async def test_a_round_never_waits_for_publications_while_others_wait_for_it() -> None:
    """Who found a truncated log holds `busy` and writes a round of its own."""
    broker, _, owner = await loaded()
    periodic = asyncio.create_task(owner.rounds.write(1.0))
    await settle()
    async with owner.model.busy:
        await owner.clock.advance(1.0)
        async with asyncio.timeout(5):
            await CheckpointRounds(owner.shard, owner.recovery.output, TOPIC, owner.clock).write()
    assert kinds(broker)[-1] == "marker"
    async with asyncio.timeout(5):
        while not periodic.done():
            await owner.clock.advance(1.0)
    await periodic


async def test_a_large_checkpoint_leaves_out_the_prediction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, _, owner = await loaded()
    await owner.round()
    sizes = [len(broker.live(TOPIC)[node_key(node, owner.epoch)]) for node in NODES]
    monkeypatch.setattr(checkpoint_rounds, "LARGEST_VALUE_BYTES", min(sizes) - 1)
    await owner.round()
    assert marker(broker, owner.epoch).round == 2
    written = [checkpoint(broker, node, owner.epoch) for node in NODES]
    expected = content(undisturbed(broker))
    assert [(each.prediction, each.state) for each in written] == [
        (None, expected[node][0]) for node in NODES
    ]
    before = {topic: published(broker, topic) for topic in ("t.predictions", "t.node-state")}
    heir = (await Owner(broker, "second").load()).model
    await heir.publish(list(heir.reports.items()))
    assert {topic: published(broker, topic) for topic in before} == before
    assert all(results.keys() == set(NODES) for results in before.values())


async def test_the_marker_has_the_start_of_the_round_and_checkpoints_their_coverage() -> None:
    broker, log, owner = await loaded()
    for slices in (3, 6):
        await owner.step_round()
        log.windows(1, *NODES)
        await owner.apply()
        assert kinds(broker) == ["claim", *["node"] * slices]
    await owner.step_round()
    assert kinds(broker) == ["claim", *["node"] * 7, "marker"]
    round_marker = marker(broker, owner.epoch)
    assert (round_marker.resume, round_marker.joined) == (21, 20)
    covers = [checkpoint(broker, node, owner.epoch).covers for node in NODES]
    assert covers == [21, 21, 21, 28, 28, 28, 35]
    for node, end in zip(NODES, covers, strict=True):
        state = content(undisturbed(broker, end))[node][0]
        assert checkpoint(broker, node, owner.epoch).state == state


async def test_a_slice_is_captured_before_it_is_sent() -> None:
    broker, log, owner = await loaded()
    append, log_end = owner.output.append, len(broker.records("t.windows"))

    async def apply_meanwhile(*arguments: Any) -> Any:
        if arguments[0] == TOPIC:
            log.windows(1, *NODES)
            ahead = broker.records("t.windows")[owner.model.next_offset :]
            apply_batches([(owner.model, ahead)])
        return await append(*arguments)

    owner.output.append = apply_meanwhile
    await owner.round()
    expected = content(undisturbed(broker, log_end))
    for node in NODES[:3]:
        written = checkpoint(broker, node, owner.epoch)
        assert (written.covers, written.state) == (log_end, expected[node][0])


async def test_a_revoked_partition_gets_no_marker() -> None:
    broker, _, owner = await loaded()
    await owner.step_round()
    owner.model.ownership.owned = False
    await owner.step_round()
    assert kinds(broker) == ["claim", *["node"] * 3]


async def test_a_partition_revoked_during_the_last_slice_gets_no_marker() -> None:
    broker, _, owner = await loaded()
    append, sent = owner.output.append, 0

    async def lose_it(*arguments: Any) -> Any:
        nonlocal sent
        sent += 1
        if sent == 3:
            owner.model.ownership.owned = False
        return await append(*arguments)

    owner.output.append = lose_it
    await owner.round()
    assert kinds(broker) == ["claim", *["node"] * 7]


async def test_a_round_ends_without_a_marker_if_samples_were_truncated_meanwhile() -> None:
    broker, _, owner = await loaded()
    owner.shard.join.next_offset = 21
    await owner.step_round()
    owner.shard.join.next_offset, owner.model.joined = 10, 9
    for _ in range(3):
        await owner.step_round()
    assert "marker" not in kinds(broker)
    await owner.round()
    assert marker(broker, owner.epoch).joined == 9


async def test_a_failed_delivery_raises_and_no_marker_follows() -> None:
    broker, _, owner = await loaded()
    owner.output.refuses = lambda topic: topic == TOPIC
    with pytest.raises(ConnectionError):
        await owner.round()
    assert kinds(broker) == ["claim"]


async def test_older_epochs_are_deleted_after_the_marker() -> None:
    broker, log, first = await loaded()
    await first.round()
    log.windows(1, *NODES)
    second = await Owner(broker, "second").load()
    start = len(broker.records(TOPIC))
    await second.round()
    # 7 nodes, the marker and the claim of the first owner.
    assert kinds(broker, start) == [*["node"] * 7, "marker", *["tombstone"] * 9]
    assert {parse_key(key)[2] for key in broker.live(TOPIC)} == {second.epoch, -1}
    assert claim_key("second") in broker.live(TOPIC)
    start = len(broker.records(TOPIC))
    await second.round()
    assert kinds(broker, start) == [*["node"] * 7, "marker"]


async def test_a_departed_node_is_deleted_after_the_next_marker() -> None:
    broker, log, owner = await loaded()
    await owner.round()
    log.depart(NODES[0])
    await owner.apply()
    start = len(broker.records(TOPIC))
    await owner.round()
    assert kinds(broker, start) == [*["node"] * 6, "marker", "tombstone"]
    assert node_key(NODES[0], owner.epoch) not in broker.live(TOPIC)


async def test_a_node_that_departs_during_a_round_is_left_out() -> None:
    broker, log, owner = await loaded()
    await owner.step_round()
    log.depart(NODES[0])
    log.depart(NODES[5])
    await owner.apply()
    await owner.step_round()
    await owner.step_round()
    departed = {node_key(NODES[number], owner.epoch) for number in (0, 5)}
    assert departed.isdisjoint(broker.live(TOPIC))


async def test_a_node_that_departs_while_the_marker_is_written_is_not_missing_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, log, owner = await loaded()
    append = owner.output.append

    async def append_after_departure(topic: str, partition: int, records: Any, *more: Any) -> Any:
        if [key for key, _ in records] == [marker_key(owner.epoch)]:
            log.depart("node-3", 1 << 50)
            await owner.apply()
        return await append(topic, partition, records, *more)

    with monkeypatch.context() as patch:
        patch.setattr(owner.output, "append", append_after_departure)
        await owner.round()
    log.window("new")
    heir = await Owner(broker, "second").load()
    assert {counters.lost for counters in heir.model.counters.values()} == {0}
    assert "node-3" not in heir.model.bank.nodes
    await owner.round()
    assert node_key("node-3", owner.epoch) not in broker.live(TOPIC)


async def test_an_empty_partition_completes_rounds() -> None:
    broker, _, owner = await loaded(0)
    await owner.round()
    assert (marker(broker, owner.epoch).resume, marker(broker, owner.epoch).joined) == (0, -1)


async def test_rounds_start_at_their_interval_and_are_spread_over_it() -> None:
    _, _, owner = await loaded()
    times: list[float] = []
    append = owner.output.append

    async def note(*arguments: Any) -> Any:
        times.append(owner.clock.monotonic())
        return await append(*arguments)

    owner.output.append = note
    task = asyncio.create_task(owner.rounds.run(100, first_after_seconds=10))
    await settle()
    await owner.clock.advance(250)
    # Three slices, 30 s apart, and the marker after the last; there are no tombstones.
    assert sorted({round(t) for t in times}) == [10, 40, 70, 110, 140, 170, 210, 240]
    owner.model.ownership.owned = False
    await owner.clock.advance(200)
    assert task.done()
