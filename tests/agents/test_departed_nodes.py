"""Models of workloads outlive their node, whatever happens to the worker."""

import asyncio
from collections.abc import Sequence

import pytest

from pipeline.agents import departed_nodes
from pipeline.agents.checkpoint_selection import read_checkpoints
from pipeline.agents.departed_nodes import DepartedNodes
from pipeline.agents.refusals import ignore_records
from pipeline.kafka.producer import Keyed
from pipeline.processors.model import state_codec
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ModelConfig
from pipeline.processors.model.workload_models import RETAINED_MS
from pipeline.topics.checkpoints import departed_key, parse_key
from tests.agents.fakes import MemoryBroker
from tests.agents.logs import LogWriter, make_log
from tests.agents.owners import Owner
from tests.processors.model.test_workload_models import of_web

DEPARTED = b"@departed@"


def departed(broker: MemoryBroker) -> dict[bytes, bytes]:
    live = broker.live("t.checkpoints")
    return {key: value for key, value in live.items() if key.startswith(DEPARTED)}


async def started() -> tuple[MemoryBroker, LogWriter, Owner]:
    """A round with two nodes, whose pods are of one Deployment."""
    broker, log = make_log(0)
    for _ in range(12):
        for node in ("a", "b"):
            log.window(node, deployment="web")
    owner = await Owner(broker, "x").load()
    await owner.round()
    return broker, log, owner


async def test_departed_node_leaves_its_workloads_without_pods() -> None:
    broker, log, owner = await started()
    before = state_codec.decode(owner.model.bank.encode_state("a"))
    log.depart("a")
    await owner.apply()
    assert not departed(broker)
    await owner.round()
    (key,) = departed(broker)
    assert parse_key(key) == ("departed", "a", before.end_ms)
    content = await read_checkpoints(
        await broker.open_reader([("t.checkpoints", 0)]).__aenter__(), "t.checkpoints", 0, 0,
        ignore_records,
    )  # fmt: skip
    state = state_codec.decode(content.departed["a", before.end_ms])
    assert (state.workloads, state.workload_models) == (before.workloads, before.workload_models)
    assert state.uids == ()
    assert set(content.usable()) == {"b"}


async def test_crash_before_the_round_loses_nothing() -> None:
    broker, log, owner = await started()
    log.depart("a")
    await owner.apply()
    owner.die()
    second = await Owner(broker, "y").load()
    await second.round()
    after_crash = departed(broker)
    broker, log, owner = await started()
    log.depart("a")
    await owner.apply()
    await owner.round()
    assert after_crash == departed(broker) != {}


async def test_worker_that_keeps_its_partition_keeps_unwritten_ones() -> None:
    broker, log, owner = await started()
    log.depart("a")
    await owner.apply()
    owner.model.ownership.owned = False
    await owner.load(owner.shard)
    await owner.round()
    assert len(departed(broker)) == 1


async def test_node_that_returns_and_departs_again_leaves_both() -> None:
    broker, log, owner = await started()
    for _ in range(2):
        log.depart("a")
        log.window("a", deployment="web")
    log.depart("a")
    await owner.apply()
    await owner.round()
    assert len(departed(broker)) == 3
    third = await Owner(broker, "z").load()
    await third.round()
    assert len(departed(broker)) == 3


@pytest.mark.parametrize("error", [ConnectionError, asyncio.CancelledError])
async def test_round_that_ends_during_the_write_loses_none(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, log, owner = await started()
    log.depart("a")
    await owner.apply()

    async def append(topic: str, partition: int, records: Sequence[Keyed]) -> list[int]:
        if any(record.key.startswith(DEPARTED) for record in records):
            raise error
        return await deliver(topic, partition, records)

    deliver = owner.output.append
    with monkeypatch.context() as patch:
        patch.setattr(owner.output, "append", append)
        with pytest.raises(error):
            await owner.round()
    owner.model.ownership.owned = False
    await owner.load(owner.shard)
    await owner.round()
    assert len(departed(broker)) == 1


async def test_node_that_departs_during_the_write_is_in_the_next_round() -> None:
    nodes = DepartedNodes()
    nodes.add("a", bank_of("a", 1))

    async def add(records: Sequence[Keyed]) -> None:
        nodes.add("b", bank_of("b", 2))

    await nodes.write(0, add)
    assert [parse_key(record.key)[1] for record in await written(nodes, 0)] == ["b"]
    assert await written(nodes, 0) == []


async def written(nodes: DepartedNodes, now_ms: int) -> list[Keyed]:
    """Return the records that `nodes` writes."""
    sent: list[Keyed] = []

    async def send(records: Sequence[Keyed]) -> None:
        sent.extend(records)

    await nodes.write(now_ms, send)
    return sent


def bank_of(node: str, end: int) -> Bank:
    bank = Bank(ModelConfig())
    window = of_web(end, "p")
    window.node = node
    bank.apply([window])
    return bank


async def test_known_ones_are_not_replaced_by_what_a_replay_met() -> None:
    bank = bank_of("a", 1)
    end_ms = bank.end_ms("a") or 0
    nodes = DepartedNodes([("a", end_ms)])
    nodes.add("a", bank)
    assert await written(nodes, end_ms) == []


async def test_node_without_workloads_leaves_nothing() -> None:
    nodes = DepartedNodes()
    nodes.add("unknown", Bank(ModelConfig()))
    assert (nodes.known, await written(nodes, 0)) == (set(), [])


async def test_outdated_ones_are_deleted() -> None:
    nodes = DepartedNodes([("a", 1000), ("b", 1001)])
    (record,) = await written(nodes, 1001 + RETAINED_MS)
    assert record == (departed_key("a", 1000), None)
    assert nodes.known == {("b", 1001)}


async def test_oldest_of_too_many_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departed_nodes, "MAX_DEPARTED", 3)
    nodes = DepartedNodes()
    for number in range(5):
        nodes.add(f"n{number}", bank_of(f"n{number}", number))
    records = await written(nodes, 0)
    kept = {parse_key(record.key)[1] for record in records if record.value is not None}
    assert kept == {"n2", "n3", "n4"}
    assert len(nodes.known) == 3
