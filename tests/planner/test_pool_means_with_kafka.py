"""Means of a pool through a real broker: node states, planner, worker, alert."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from pipeline.kafka.client import client_options
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.process_guard import die_with_parent
from pipeline.settings import KafkaSettings
from pipeline.topics.alerts import AlertRecord
from pipeline.topics.codec import decode_json
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pool_means import PoolMeansRecord, pool_key
from pipeline.topics.registry import ALERTS, DEAD_LETTERS, FLEET, NODES, SAMPLES, WINDOWS
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import decode_window
from tests.broker import flags_of, messages
from tests.planner.test_planner import Cluster
from tests.processes import environment, springtide, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

POLICY = HotNodePolicy(
    pool="gold", high_percent={"cpu": 20.0}, use_deviation_thresholds=True, open_windows=2
)
CPU = {"a": 9.0, "b": 3.0, "c": 3.0}
"""Used cores of nodes with ten cores."""


class Nodes:
    """Sends windows of half the span, each ending when it is sent."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._end_ms = 0

    async def window(self) -> None:
        self._end_ms = max(self._end_ms + 1, round(1000 * time.time()))
        for node, cores in CPU.items():
            header = SampleHeader(
                node=node, machine_id=node, boot_id="b", epoch=1, sequence=self._end_ms,
                window_start_ms=self._end_ms - 150_000, window_end_ms=self._end_ms,
            )  # fmt: skip
            row = {"kind": "node", "id": "", "coverage": 1.0, "cpu_cores_avg": cores}
            sample = encode_samples(SampleBatch(header, [row]))
            await self._cluster.send(SAMPLES, node, sample)


@asynccontextmanager
async def worker(kafka: KafkaSettings, data: Path, *options: str) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        *springtide(
            *("worker", "--no-supervise", *flags_of(kafka), "--id", kafka.topic_prefix),
            *("--metrics-port", "0", "--data-dir", str(data)), *options,
        ),
        env=environment(), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    )  # fmt: skip
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def alerts(kafka: KafkaSettings) -> list[AlertRecord]:
    return [decode_json(AlertRecord, each.value) for each in await messages(kafka, ALERTS)]


async def test_a_pool_that_vanished_between_two_leaders_gets_a_tombstone(
    kafka: KafkaSettings,
) -> None:
    await apply_topics(kafka)
    fleet = FLEET.full_name(kafka.topic_prefix)
    async with AIOKafkaProducer(**client_options(kafka)) as producer:
        cluster = Cluster(kafka, producer)
        for key, value in (
            (pool_key("gone"), b"{}"), (pool_key("again"), b"{}"), (pool_key("again"), None),
            (b"pool/\xff", b"{}"), (b"other", b"{}"),
        ):  # fmt: skip
            await producer.send_and_wait(fleet, value, key)

        async def tombstones() -> list[bytes]:
            return [each.key for each in await messages(kafka, FLEET) if each.value is None][1:]

        async with cluster.planner():
            await until(tombstones)
        assert await tombstones() == [pool_key("gone")]


async def test_a_worker_compares_nodes_with_the_mean_that_the_planner_publishes(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    await apply_topics(kafka)
    fleet = FLEET.full_name(kafka.topic_prefix)
    async with AIOKafkaProducer(**client_options(kafka)) as producer:
        cluster = Cluster(kafka, producer)
        room = Resources(cpu_millicores=10_000)
        for name in CPU:
            await cluster.write(
                NODES, name, NodeRecord(node=name, hot_nodes=POLICY, allocatable=room)
            )
        await producer.send_and_wait(fleet, b"no means", pool_key("gold"))
        nodes = Nodes(cluster)

        async def has_alert() -> bool:
            await nodes.window()
            return bool(await alerts(kafka))

        async with worker(kafka, tmp_path), cluster.planner():
            await until(has_alert, 300)
    (alert, *_) = await alerts(kafka)
    assert (alert.node, alert.rule, alert.transition) == ("a", "node_cpu", "opened")
    (letter, *_) = await messages(kafka, DEAD_LETTERS)
    assert dict(letter.headers)["topic"] == fleet.encode()
    # The planner withdraws the invalid record if it sees it before the first window.
    unread = (None, b"no means")
    records = [each for each in await messages(kafka, FLEET) if each.value not in unread]
    assert {each.key for each in records} == {pool_key("gold")}
    means = {decode_json(PoolMeansRecord, r.value).means["node_cpu"].percent for r in records}
    # 50, and another one if the first record came before the windows of all nodes.
    assert means <= {30.0, 50.0, 60.0}
    mean = alert.evidence.pool_mean_percent
    assert mean is not None
    assert mean in means
    assert alert.evidence.threshold_percent == mean + 20.0
    windows = [decode_window(each.value) for each in await messages(kafka, WINDOWS)]
    joined = {
        window.node.hot_nodes.mean_percent.get("node_cpu")
        for window in windows
        if window.node.hot_nodes is not None
    }
    assert None in joined
    assert joined - {None} <= means
