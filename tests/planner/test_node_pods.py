"""Pods that are read on give what a reader from the start gives, with a real broker."""

import random
import time
from typing import Any

import numpy as np
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from pipeline.errors import KafkaError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import ConsumerRecord, Follower
from pipeline.kafka.topic_admin import apply_topics
from pipeline.table import limits, node_pods
from pipeline.table.node_pods import NodePodReader, NodePods, read_node_pods
from pipeline.topics.codec import encode_json
from pipeline.topics.pods import pod_key
from pipeline.topics.registry import PODS, WINDOWS
from pipeline.topics.windows import encode_window
from tests.planner.test_planner import Cluster, cluster
from tests.processors.joined import NODE_ROW, header, joined, pod_row
from tests.table.records import GIB, any_pod, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
__all__ = ["cluster"]  # a fixture

NODES = tuple("abcdef")


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> list[ConsumerRecord]:
    """What followers return."""
    records: list[ConsumerRecord] = []
    poll = Follower.poll

    async def noted(self: Follower, **how: Any) -> list[ConsumerRecord]:
        returned = await poll(self, **how)
        records.extend(returned)
        return returned

    monkeypatch.setattr(Follower, "poll", noted)
    return records


async def send_pod(cluster: Cluster, node: str, uid: str) -> None:
    await cluster.send(PODS, node, encode_json(running(any_pod(uid), node)), pod_key(node, uid))


async def send_window(cluster: Cluster, node: str, number: int, **cores: float) -> None:
    rows = [pod_row(uid, cpu_cores_avg=used, memory_bytes_avg=GIB) for uid, used in cores.items()]
    window = joined(NODE_ROW, *rows, of=header(node, number, sequence=number))
    await cluster.send(WINDOWS, node, encode_window(window))


def content(pods: NodePods, nodes: tuple[str, ...]) -> Any:
    """Pods and known usage of the nodes that were asked for."""
    usage = {
        node: {
            uid: used.tolist()
            for uid, used in pods.history.usage(node, 300, None).items()
            if not np.isnan(used).any()
        }
        for node in nodes
    }
    return sorted((pod.node, pod.uid) for pod in pods.records), usage


@pytest.mark.parametrize("seed", range(3))
async def test_reading_on_gives_what_reading_from_the_start_gives(
    cluster: Cluster, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_pods, "MOST_NODES", 4)
    chance, kafka = random.Random(seed), cluster.settings.kafka
    reader, moments = NodePodReader(kafka), [time.time()]
    for number in range(1, 31):
        node, uid = chance.choice(NODES), f"u{chance.randrange(4)}"
        await send_pod(cluster, node, uid)
        if chance.random() < 0.4:
            await cluster.send(PODS, node, None, pod_key(node, f"u{chance.randrange(4)}"))
        if chance.random() < 0.1:
            await cluster.send(PODS, node, b"garbage", pod_key(node, uid))
        await send_window(cluster, node, number, **{uid: chance.randrange(8) / 4})
        moments.append(time.time())
        asked = tuple(chance.sample(NODES, chance.randrange(1, 4)))
        # Windows since any moment, so that they get old and young again, by a clock that jumps.
        span, since = chance.choice([0.0, 100.0, 1200.0]), chance.choice(moments)
        now = since + span + limits.LATE_WINDOW_SECONDS
        expected = await read_node_pods(kafka, asked, span, now)
        assert content(await reader.read(asked, span, now), asked) == content(expected, asked)


async def test_only_what_is_new_is_read_again(
    cluster: Cluster, polled: list[ConsumerRecord]
) -> None:
    for number in range(20):
        await send_pod(cluster, "a", f"u{number}")
    reader = NodePodReader(cluster.settings.kafka)
    assert len((await reader.read({"a"}, 300.0, time.time())).records) == 20
    polled.clear()
    await send_pod(cluster, "a", "new")
    await send_window(cluster, "a", 1, new=1.0)
    pods = await reader.read({"a"}, 300.0, time.time())
    assert (len(pods.records), len(pods.history)) == (21, 1)
    assert len(polled) == 2


async def test_nodes_beyond_the_most_are_forgotten(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_pods, "MOST_NODES", 2)
    reader = NodePodReader(cluster.settings.kafka)
    for number, node in enumerate("abc", start=1):
        await send_window(cluster, node, number, u=1.0)
        pods = await reader.read({node}, 300.0, time.time())
        assert len(pods.history) == min(number, 2)
    assert len((await reader.read({*"abc"}, 300.0, time.time())).history) == 3


async def test_a_failure_and_a_recreated_topic_start_anew(
    cluster: Cluster, polled: list[ConsumerRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = cluster.settings.kafka
    await send_pod(cluster, "a", "old")
    reader = NodePodReader(kafka)
    assert len((await reader.read({"a"}, 300.0, time.time())).records) == 1

    async def fail(_self: Follower, **_how: Any) -> list[ConsumerRecord]:
        raise KafkaError("the broker is away")

    await send_pod(cluster, "a", "other")
    with monkeypatch.context() as broken:
        broken.setattr(Follower, "poll", fail)
        with pytest.raises(KafkaError):
            await reader.read({"a"}, 300.0, time.time())
    polled.clear()
    assert len((await reader.read({"a"}, 300.0, time.time())).records) == 2
    assert len(polled) == 2
    admin = AIOKafkaAdminClient(**client_options(kafka))
    await admin.start()
    try:
        await admin.delete_topics([PODS.full_name(kafka.topic_prefix)])
    finally:
        await admin.close()
    await apply_topics(kafka)
    for number in range(5):
        await send_pod(cluster, "a", f"new{number}")
    pods = await reader.read({"a"}, 300.0, time.time())
    assert {pod.uid for pod in pods.records} == {f"new{number}" for number in range(5)}
