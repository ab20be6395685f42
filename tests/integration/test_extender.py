"""The extender and its table over a real broker."""

import asyncio
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic

from pipeline.clock import SystemClock
from pipeline.extender.service import serve
from pipeline.kafka.producer import Producer
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.process_guard import die_with_parent
from pipeline.settings import ExtenderSettings, KafkaSettings
from pipeline.table import NODE_AND_POD_TOPICS, Feed, Table
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodRecord
from pipeline.topics.registry import (
    DEAD_LETTERS,
    HEARTBEATS,
    NODE_STATE,
    NODES,
    PODS,
    RESOURCES,
    Topic,
)
from pipeline.topics.resource_amounts import Resources
from tests.broker import admin_client, messages
from tests.processes import eventually, springtide, until
from tests.table.records import node_state

PARTITIONS = 3


class Cluster:
    """Topics of one prefix with a producer, closed at the end of the test."""

    def __init__(self, broker: LocalKafka, prefix: str) -> None:
        self.broker = broker
        self.prefix = prefix
        self.client = {"bootstrap_servers": broker.bootstrap_servers, "request_timeout_ms": 10_000}

        self.flags = ["--bootstrap-servers", broker.bootstrap_servers, "--topic-prefix", prefix]

    def name(self, topic: Topic) -> str:
        return topic.full_name(self.prefix)

    async def create(self, *topics: Topic, partitions: int = PARTITIONS) -> None:
        async with admin_client(self.client) as admin:
            await admin.create_topics([
                NewTopic(self.name(t), partitions, 1, topic_configs=dict(t.config()))
                for t in topics
            ])  # fmt: skip

    async def delete(self, topic: Topic) -> None:
        async with admin_client(self.client) as admin:
            await admin.delete_topics([self.name(topic)])
            while self.name(topic) in await admin.list_topics():  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def send(self, topic: Topic, *records: tuple[str, bytes | None]) -> None:
        async with AIOKafkaProducer(**self.client, enable_idempotence=True) as producer:
            for key, value in records:
                await producer.send(self.name(topic), value, key=key.encode())

    async def states(self, *states: NodeStateRecord) -> None:
        await self.send(NODE_STATE, *((state.node, encode_json(state)) for state in states))


@pytest.fixture
def cluster(broker: LocalKafka) -> Cluster:
    return Cluster(broker, f"extender-{uuid.uuid4().hex[:8]}")


@asynccontextmanager
async def following(cluster: Cluster, **options: Any) -> AsyncIterator[Feed]:
    feed = Feed(
        Table(), client=cluster.client, prefix=cluster.prefix, clock=SystemClock(), **options
    )
    task = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def fresh(node: str, **more: Any) -> NodeStateRecord:
    """Return a node state whose window has just ended."""
    return msgspec.structs.replace(
        node_state(node, **more), as_of=format_time(SystemClock().now() - 5)
    )


def cpu(feed: Feed, node: str) -> float:
    return float(feed.table["usage_cpu_cores"][feed.table.lookup([node])][0])


async def test_records_of_topics_reach_the_answer(cluster: Cluster) -> None:
    settings = ExtenderSettings(mode="act", host="127.0.0.1", port=0)
    feed = Feed(
        Table(), client=cluster.client, prefix=cluster.prefix, clock=SystemClock(),
        topics=NODE_AND_POD_TOPICS,
    )  # fmt: skip
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(feed, settings, SystemClock(), stop, port.set_result, linger_seconds=0.0)
    )
    base = f"http://127.0.0.1:{await asyncio.wait_for(port, 60)}"
    body = {"Pod": {"metadata": {"name": "p"}}, "NodeNames": ["calm", "hot", "stranger"]}
    async with aiohttp.ClientSession(base) as session:
        await until(lambda: "waiting for topic" in feed.state.message)
        async with session.get("/readyz") as response:
            assert response.status == 503
            assert cluster.name(NODE_STATE) in (await response.json())["table"]
        assert (await session.post("/filter", json=body)).status == 503
        assert (await session.get("/healthz")).status == 200

        # As after an upgrade without `springtide topics apply`.
        await cluster.create(NODE_STATE, NODES, RESOURCES, PODS)
        await until(lambda: feed.state.missing == (cluster.name(HEARTBEATS),))
        await cluster.states(
            fresh("calm", cpu=1.0), fresh("hot", cpu=1.0), fresh("hot", cpu=3.9, offset=1)
        )
        await cluster.send(
            NODES,
            ("calm",
             encode_json(NodeRecord(node="calm", allocatable=Resources(cpu_millicores=2000)))),
        )  # fmt: skip
        await asyncio.wait_for(feed.wait_caught_up(), 60)
        await until(lambda: len(feed.table) == 2 and cpu(feed, "hot") == 3.9)
        await until(lambda: feed.table.snapshot("calm").node is not None)
        assert (await session.get("/readyz")).status == 200
        reply = await (await session.post("/filter", json=body)).json()
        assert reply["NodeNames"] == ["calm", "stranger"]
        assert reply["FailedAndUnresolvableNodes"] == {"hot": "node(s) cpu usage exceed threshold"}
        answer = await (await session.post("/prioritize", json=body)).json()
        scores = {entry["Host"]: entry["Score"] for entry in answer}
        # calm: with 0.25 for the pod of the 2 cores that the Node says it has.
        assert scores == {"calm": 5, "hot": 3, "stranger": 0}
        page = await (await session.get("/metrics")).text()
        for metric in ("caught_up 1.0", "nodes 2.0"):
            assert f"springtide_table_{metric}" in page
    stop.set()
    await asyncio.wait_for(serving, 60)


async def test_older_results_are_ignored_and_tombstones_remove_nodes(cluster: Cluster) -> None:
    await cluster.create(NODE_STATE, NODES)
    await cluster.states(fresh("a", offset=10, cpu=1.0), fresh("b", offset=11, cpu=1.0))
    async with following(cluster) as feed:
        await asyncio.wait_for(feed.wait_caught_up(), 60)
        assert list(feed.table) == ["a", "b"]
        await cluster.states(fresh("a", offset=9, cpu=3.0), fresh("b", offset=12, cpu=3.0))
        await until(lambda: feed.state.older == 1 and cpu(feed, "b") == 3.0)
        assert cpu(feed, "a") == 1.0
        await cluster.send(NODE_STATE, ("a", None))
        await until(lambda: "a" not in feed.table)
        await cluster.states(fresh("a", offset=10, cpu=1.0), fresh("b", offset=13, cpu=2.0))
        await until(lambda: cpu(feed, "b") == 2.0 and feed.state.older == 2)
        assert list(feed.table) == ["b"]


async def test_an_invalid_record_becomes_a_dead_letter(cluster: Cluster) -> None:
    await cluster.create(NODE_STATE, NODES)
    await cluster.create(DEAD_LETTERS, partitions=1)
    good = encode_json(fresh("good"))
    bad = {
        "undecodable": ("n1", b"\x00 no JSON"),
        "invalid": ("n2", encode_json(fresh("n2")).replace(b'"as_of":"', b'"as_of":"late ')),
        "key_mismatch": ("n3", good),
        "unsupported_version": (
            "n4",
            encode_json(fresh("n4")).replace(b'"version":1', b'"version":9'),
        ),
    }
    await cluster.send(NODE_STATE, *bad.values(), ("good", good))
    producer = Producer(cluster.client)
    report_bad = partial(producer.offer_dead_letter, DEAD_LETTERS.full_name(cluster.prefix))
    async with following(cluster, on_bad=report_bad) as feed:
        await asyncio.wait_for(feed.wait_caught_up(), 60)
        assert (list(feed.table), dict(feed.state.bad)) == (["good"], dict.fromkeys(bad, 1))
    await producer.stop()
    assert producer.lost == 0
    servers = cluster.broker.bootstrap_servers
    kafka = KafkaSettings(bootstrap_servers=servers, topic_prefix=cluster.prefix, partitions=1)
    got = await messages(kafka, DEAD_LETTERS)
    found = {dict(one.headers)["reason"].decode(): (one.key.decode(), one.value) for one in got}
    assert found == bad


async def test_a_caught_up_feed_has_a_thousand_nodes(cluster: Cluster) -> None:
    await cluster.create(NODE_STATE, NODES)
    await cluster.states(*(fresh(f"n{i}", cpu=1.0) for i in range(1000)))
    await cluster.states(*(fresh(f"n{i}", cpu=2.0, offset=1) for i in range(1000)))
    async with following(cluster) as feed:
        assert len(feed.table) == 0
        await asyncio.wait_for(feed.wait_caught_up(), 60)
        assert len(feed.table) == 1000
        rows = feed.table.lookup(list(feed.table))
        assert (set(feed.table["usage_cpu_cores"][rows]), feed.state.lag_records) == ({2.0}, 0)


async def test_a_recreated_topic_is_read_again(cluster: Cluster) -> None:
    await cluster.create(NODE_STATE, NODES)
    await cluster.states(
        *(fresh(f"old{i}", offset=1000) for i in range(20)), fresh("both", offset=1000)
    )
    async with following(cluster) as feed:
        await asyncio.wait_for(feed.wait_caught_up(), 60)
        assert len(feed.table) == 21
        await cluster.delete(NODE_STATE)
        await cluster.create(NODE_STATE)
        # More records than before: the ends of the logs alone do not show it.
        await cluster.states(*(fresh("both", offset=offset, cpu=3.0) for offset in range(30)))
        await until(lambda: list(feed.table) == ["both"])
        assert cpu(feed, "both") == 3.0
        assert (feed.state.rereads >= 1, feed.state.caught_up) == (True, True)


async def test_a_broker_restart_is_survived(broker: LocalKafka, cluster: Cluster) -> None:
    await cluster.create(NODE_STATE, NODES)
    await cluster.states(fresh("a", cpu=1.0))
    async with following(cluster) as feed:
        await asyncio.wait_for(feed.wait_caught_up(), 60)
        await until(lambda: feed.state.message == "following")
        await asyncio.to_thread(broker.stop)
        try:
            await until(lambda: not feed.state.connected)
            assert "away" in feed.state.message or "no broker answers" in feed.state.message
            assert (feed.state.caught_up, cpu(feed, "a")) == (True, 1.0)
        finally:
            await asyncio.to_thread(broker.start)
        await cluster.states(fresh("a", cpu=2.0, offset=1), fresh("b"))
        await until(lambda: len(feed.table) == 2 and cpu(feed, "a") == 2.0)
        await until(lambda: feed.state.connected and feed.state.message == "following")
        assert feed.state.rereads == 0


async def test_a_missing_broker_is_reported(cluster: Cluster) -> None:
    cluster.client["bootstrap_servers"] = "127.0.0.1:1"
    async with following(cluster) as feed:
        failure = await asyncio.wait_for(feed.wait_failure(), 30)
        assert failure.message == "listing topics: no broker answers at 127.0.0.1:1"
        assert not feed.state.caught_up


async def test_a_snapshot_answers_before_the_broker_and_catches_up(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "table.npz"
    options: dict[str, Any] = {"topics": NODE_AND_POD_TOPICS, "snapshot": path}
    await cluster.create(*NODE_AND_POD_TOPICS)
    await cluster.states(fresh("stays"), fresh("moves", cpu=1.0), fresh("goes"))
    await cluster.send(PODS, ("stays/p1", pod("p1", "stays")), ("goes/p2", pod("p2", "goes")))
    async with following(cluster, **options) as feed:
        await until(lambda: len(feed.table) == 3 and len(feed.table.pods) == 2)
        await feed.save()
    # While the broker is down:
    await cluster.states(fresh("moves", cpu=3.0, offset=1))
    await cluster.send(NODE_STATE, ("goes", None))
    await cluster.send(PODS, ("goes/p2", None), ("stays/p3", pod("p3", "stays")))
    nowhere = Cluster(cluster.broker, cluster.prefix)
    nowhere.client = {"bootstrap_servers": "127.0.0.1:1"}
    async with following(nowhere, **options) as feed:
        await until(lambda: feed.state.caught_up)
        assert sorted(feed.table) == ["goes", "moves", "stays"]
        assert (cpu(feed, "moves"), feed.state.connected) == (1.0, False)
    async with following(cluster, **options) as feed:
        await until(lambda: sorted(feed.table) == ["moves", "stays"])
        await until(lambda: cpu(feed, "moves") == 3.0 and len(feed.table.pods) == 2)
        counted = feed.table.pods.sums_of("pods", feed.table.lookup(["stays", "moves"]))
        assert counted.tolist() == [2, 0]
        assert feed.state.rereads == 0
    # Recreated topics do not continue at the end of the snapshot.
    for topic in NODE_AND_POD_TOPICS:
        await cluster.delete(topic)
    await cluster.create(*NODE_AND_POD_TOPICS)
    await cluster.states(fresh("other"))
    async with following(cluster, **options) as feed:
        await until(lambda: list(feed.table) == ["other"])
        assert feed.state.rereads == 1


def pod(uid: str, node: str) -> bytes:
    found = PodRecord(node=node, uid=uid, cgroup_uid=uid, namespace="d", name=uid, phase="Running")
    return encode_json(found)


def test_the_commands(cluster: Cluster) -> None:
    kafka = cluster.flags

    def top(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = springtide("top", *arguments)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    ran = top(*kafka)
    assert (ran.returncode, "springtide topics apply" in ran.stderr) == (4, True)
    asyncio.run(cluster.create(NODE_STATE, NODES))
    ran = top(*kafka)
    assert (ran.returncode, ran.stdout) == (4, "")
    assert "no usage of any node is known" in ran.stderr
    asyncio.run(cluster.create(*NODE_AND_POD_TOPICS[2:]))
    asyncio.run(cluster.states(fresh("calm"), fresh("hot", cpu=3.9)))
    ran = top(*kafka)
    assert ran.returncode == 0
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["NODE", "hot", "calm"]
    assert ran.stderr == ""
    stale = top(*kafka, "--stale-after-seconds", "1")
    assert (stale.returncode, "stale" in stale.stdout) == (4, True)
    document = json.loads(top(*kafka, "-o", "json").stdout)
    assert [item["node"] for item in document["items"]] == ["calm", "hot"]

    # It drains for a minute, until the second signal: in three seconds a busy machine asks nothing.
    program = (
        "from pipeline.extender import limits\nlimits.LINGER_SECONDS = 60.0\n"
        "from pipeline.cli.main import main\nmain()"
    )
    flags = ("--host", "127.0.0.1", "--port", "0", "--mode", "act")
    command = [sys.executable, "-c", program, "extender", *kafka, *flags]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent
    ) as extender:
        assert extender.stderr is not None
        said: dict[str, Any] = {}
        port = 0
        while said.get("event") != "table caught up":
            said = json.loads(extender.stderr.readline())
            port = said["port"] if said["event"] == "listening" else port
        base = f"http://127.0.0.1:{port}"
        body = b'{"Pod": {}, "NodeNames": ["calm", "hot"]}'
        with urllib.request.urlopen(f"{base}/filter", data=body, timeout=60) as response:
            assert json.load(response)["NodeNames"] == ["calm"]
        asked = top("--extender", base, "--no-headers")
        assert [line.split()[0] for line in asked.stdout.splitlines()] == ["hot", "calm"]
        extender.send_signal(signal.SIGTERM)
        assert eventually(lambda: readiness(base) == (503, "draining"))
        with urllib.request.urlopen(f"{base}/filter", data=body, timeout=60) as response:
            assert json.load(response)["NodeNames"] == ["calm"]
        extender.send_signal(signal.SIGTERM)  # a second one: do not linger
        assert extender.wait(60) == 0


def readiness(base: str) -> tuple[int, str]:
    """Return status and text of /readyz, on a new connection."""
    try:
        with urllib.request.urlopen(f"{base}/readyz", timeout=60) as response:
            return response.status, json.load(response)["status"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["status"]
