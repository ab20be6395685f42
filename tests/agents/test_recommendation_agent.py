"""Recommendations are published from the newest checkpoints of all partitions."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from pipeline.agents.ownership import Ownership
from pipeline.agents.recommendation_agent import (
    Places,
    publish_from_checkpoints,
    publish_repeatedly,
)
from pipeline.clock import ManualClock
from pipeline.errors import KafkaError
from pipeline.kafka.partition import partition_of
from pipeline.topics.checkpoints import NodeCheckpoint, node_key
from pipeline.topics.codec import decode_json, decode_pack, encode_pack
from pipeline.topics.recommendations import RecommendationRecord
from tests.agents import fakes
from tests.agents.fakes import APPENDED_MS, MemoryBroker, MemoryProducer
from tests.agents.logs import LogWriter, make_log
from tests.agents.owners import Owner, settle

TOPIC, SHOP = "t.recommendations", partition_of("shop", 2)
WEB = b"shop/Deployment/web"


async def publish(broker: MemoryBroker, partitions: int = 1, *, owned: bool = True) -> None:
    output: Any = MemoryProducer(broker)
    ownership = Ownership(0, 0)
    ownership.owned = owned
    places = Places("t", partitions, broker.open_reader)
    await publish_from_checkpoints(places, output, ownership, {})


def records(broker: MemoryBroker, partition: int = 0) -> dict[bytes, RecommendationRecord]:
    live = broker.live(TOPIC, partition)
    return {key: decode_json(RecommendationRecord, value) for key, value in live.items()}


async def filled(nodes: Sequence[str] = ("a", "b"), count: int = 12) -> tuple[MemoryBroker, Owner]:
    """Write windows of pods of one Deployment, three on each node one after the other."""
    broker, log = make_log(0)
    for _ in range(count):
        for node in nodes:
            log.window(node, deployment="web")
    owner = await Owner(broker, "x").load()
    await owner.round()
    return broker, owner


async def test_all_nodes_and_past_pods_are_in_one_record() -> None:
    broker, _ = await filled()
    await publish(broker)
    (web,) = records(broker).values()
    assert (web.namespace, web.kind, web.name) == ("shop", "Deployment", "web")
    assert (web.pods, web.pods_seen, web.samples) == (2, 6, 24)
    (container,) = web.recommendation.container_recommendations
    assert container.target == container.uncapped_target
    for resource, scale in (("cpu", "m"), ("memory", "")):
        lower, target, upper = (
            int(amounts[resource].removesuffix(scale))
            for amounts in (container.lower_bound, container.target, container.upper_bound)
        )
        assert 0 < lower <= target <= upper


async def test_containers_are_recommended_from_the_windows_of_all_nodes() -> None:
    broker, log = make_log(0)
    for _ in range(12):
        for node in ("a", "b"):
            log.window(node, deployment="web", containers=("main", "mesh"))
            log.window(f"{node}-single", deployment="db", containers=("db",))
    owner = await Owner(broker, "x").load()
    await owner.round()
    await publish(broker)
    before = records(broker)
    web, db = before[WEB], before[b"shop/Deployment/db"]
    assert [each.container_name for each in web.containers] == ["main", "mesh"]
    for container in web.containers:
        cpu, memory = (int(container.target[name].rstrip("m")) for name in ("cpu", "memory"))
        # Half of the floor of a pod, and half of a core at most, in its bucket and with 15% on top.
        assert 13 <= cpu <= 500 * 1.15 * 1.06
        assert memory >= 125 * 2**20
    (pod,) = db.recommendation.container_recommendations
    assert db.containers == (replace(pod, container_name="db"),)
    owner.die()
    second = await Owner(broker, "y").load()
    await second.round()
    await publish(broker)
    assert records(broker) == before


async def test_restart_of_the_worker_changes_nothing() -> None:
    broker, owner = await filled()
    await publish(broker)
    before = broker.live(TOPIC)
    count = len(broker.records(TOPIC))
    owner.die()
    second = await Owner(broker, "y").load()
    await second.round()
    await publish(broker)
    assert broker.live(TOPIC) == before
    assert len(broker.records(TOPIC)) == count


async def test_record_lies_in_the_partition_of_its_namespace() -> None:
    broker, _ = await filled()
    other = LogWriter(broker, partition=1)
    for _ in range(3):
        other.window("c", deployment="web")
    await publish(broker, 2)
    assert WEB in records(broker, SHOP)
    assert not records(broker, 1 - SHOP)


async def test_unreadable_models_withdraw_no_recommendation() -> None:
    broker, _ = await filled(("a",))
    await publish(broker)
    (key,) = (key for key in broker.live("t.checkpoints") if key.startswith(b"a@"))
    checkpoint = decode_pack(NodeCheckpoint, broker.live("t.checkpoints")[key])
    damaged = replace(checkpoint, state=checkpoint.state[:-1])
    broker.put("t.checkpoints", 0, node_key("a", damaged.epoch), encode_pack(damaged))
    await publish(broker)
    assert WEB in records(broker)


async def test_workload_of_a_departed_node_stays_for_eight_days() -> None:
    broker, owner = await filled(("a",))
    await publish(broker)
    (before,) = records(broker).values()
    log = LogWriter(broker)
    log.depart("a")
    await owner.apply()
    await owner.round()
    await publish(broker)
    nothing = {"cpu": "0m", "memory": "0"}
    assert records(broker) == {WEB: replace(before, pods=0, replicas=0, requested=nothing)}
    log.window("b", skip=9 * 86_400 // 5)
    await owner.apply()
    await owner.round()
    await publish(broker)
    assert broker.live(TOPIC) == {}
    assert broker.records(TOPIC)[-1].key == WEB


async def test_departed_nodes_of_a_partition_without_nodes_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, owner = await filled(("a",))
    LogWriter(broker).depart("a")
    await owner.apply()
    await owner.round()
    for days, is_live in ((7, True), (9, False)):
        monkeypatch.setattr(fakes, "APPENDED_MS", APPENDED_MS + days * 86_400_000)
        await owner.round()
        await publish(broker)
        assert (WEB in records(broker)) is is_live
    owner.die()
    second = await Owner(broker, "y").load()
    assert not second.model.departed.known
    await second.round()
    assert not [key for key in broker.live("t.checkpoints") if key.startswith(b"@departed@")]


async def test_partition_without_a_round_withdraws_nothing() -> None:
    broker, _ = await filled(("a",))
    await publish(broker)
    broker.logs["t.checkpoints", 0].clear()
    await publish(broker)
    assert WEB in records(broker)


async def test_nothing_is_written_after_the_partition_was_revoked() -> None:
    broker, _ = await filled()
    await publish(broker, owned=False)
    assert not broker.records(TOPIC)


async def test_foreign_records_are_removed_where_they_lie() -> None:
    broker, _ = await filled()
    empty, owner = await filled(())
    await owner.round()
    for key, value in empty.live("t.checkpoints").items():
        broker.put("t.checkpoints", 1, key, value)
    for partition in range(2):
        broker.put(TOPIC, partition, b"\xff\xfe/x/y", b"hostile")
        broker.put(TOPIC, partition, b"ghost/Deployment/x", b"hostile")
    broker.put(TOPIC, 1 - SHOP, WEB, b"hostile")
    await publish(broker, 2)
    assert list(records(broker, SHOP)) == [WEB]
    assert broker.live(TOPIC, 1 - SHOP) == {}


async def test_a_record_of_a_paused_owner_is_replaced() -> None:
    broker, _ = await filled()
    await publish(broker)
    newest = broker.live(TOPIC)
    for stale in (newest[WEB].replace(b'"samples":24', b'"samples":4'), None):
        broker.put(TOPIC, 0, WEB, stale)
        assert broker.live(TOPIC) != newest
        await publish(broker)
        assert broker.live(TOPIC) == newest


@pytest.mark.parametrize("error", [KafkaError("the broker does not answer"), ValueError("a bug")])
async def test_publication_comes_soon_is_repeated_and_survives_any_failure(
    error: Exception,
) -> None:
    clock = ManualClock()
    times: list[float] = []

    async def fail_once() -> None:
        times.append(clock.monotonic() - began)
        if len(times) == 1:
            raise error

    began = clock.monotonic()
    task = asyncio.create_task(publish_repeatedly(fail_once, 900.0, clock))
    for _ in range(200):
        await settle()
        await clock.advance(5.0)
    assert times == [60.0, 960.0]
    task.cancel()
