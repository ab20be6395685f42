"""The planner with a real broker: what it reads and writes, garbage, and a change of the leader."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from aiokafka import AIOKafkaProducer

from actuators.planner.planner import Planner
from actuators.planner.planning_gate import BLOCKED
from actuators.planner.relief_rounds import RESTING
from pipeline.clock import Clock, SystemClock
from pipeline.errors import NotFoundError
from pipeline.extender.decision_rules import rules_of
from pipeline.kafka.client import client_options
from pipeline.kafka.partition import partition_of
from pipeline.kafka.refused_records import REFUSED
from pipeline.kafka.topic_admin import apply_topics
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.processors.descheduling.relief_alerts import ReliefAlerts
from pipeline.settings import KafkaSettings, Settings
from pipeline.table.node_pods import read_node_pods
from pipeline.table.relief_alert_feed import read_relief_alerts
from pipeline.tasks import cancel_tasks
from pipeline.times import format_time
from pipeline.topics.alerts import AlertRecord
from pipeline.topics.codec import Record, decode_json, encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import Owner, pod_key
from pipeline.topics.predictions import PredictionRecord
from pipeline.topics.registry import (
    ACTIONS,
    ALERTS,
    EVICTION_PLANS,
    EVICTION_REQUESTS,
    NODE_STATE,
    NODES,
    PODS,
    PREDICTIONS,
    WINDOWS,
    WORKLOADS,
    Topic,
)
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.windows import encode_window
from pipeline.topics.workloads import WorkloadRecord, workload_key
from tests.broker import messages
from tests.extender.relief_world import ALERT, POLICY, ROOM
from tests.metric_values import sum_of, value_of
from tests.planner.test_other_strategies import asked
from tests.processes import until
from tests.processors.joined import NODE_ROW, header, joined, known_pod, pod_row
from tests.processors.joined import view_of as view
from tests.table.records import GIB, any_pod, node_state, running
from tests.table.test_node_histories import entity, prediction, proposals

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CONFIGURATION = {
    "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
    "profiles": [
        {
            "name": "p", "pluginConfig": [{"name": "LowNodeLoad", "args": {}}],
            "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
        }
    ],
}  # fmt: skip


class ConfigMaps:
    """An API server with one ConfigMap, or none."""

    def __init__(self, configuration: Any = CONFIGURATION) -> None:
        self.configuration = configuration

    async def request(self, method: str, path: str) -> bytes:
        assert (method, path.rpartition("/")[2]) == ("GET", "koord-descheduler-config")
        if self.configuration is None:
            raise NotFoundError("no ConfigMap", reason="NotFound")
        data = {"koord-descheduler-config": json.dumps(self.configuration)}
        return json.dumps({"data": data}).encode()


class Cluster:
    """Nodes, pods and windows on the topics of a real broker."""

    def __init__(self, kafka: KafkaSettings, producer: AIOKafkaProducer) -> None:
        self.settings = Settings(kafka=kafka)
        self._kafka, self._producer = kafka, producer

    async def send(
        self, topic: Topic, node: str, value: bytes | None, key: bytes | None = None
    ) -> None:
        await self._producer.send_and_wait(
            topic.full_name(self._kafka.topic_prefix), value, key or node.encode(),
            partition=partition_of(node, self._kafka.partitions),
        )  # fmt: skip

    async def write(self, topic: Topic, node: str, record: Record) -> None:
        await self.send(topic, node, encode_json(record))

    async def node(self, name: str, cpu: float, offset: int = 0) -> None:
        await self.write(NODES, name, NodeRecord(node=name, allocatable=ROOM, hot_nodes=POLICY))
        state = node_state(
            name, cpu=cpu, memory=8 * GIB, cores=16.0, room=64 * GIB, offset=offset,
            alerts=(ALERT,) if cpu > 11.2 else (),
        )  # fmt: skip
        fresh = msgspec.structs.replace(state, as_of=format_time(time.time()))
        await self.write(NODE_STATE, name, fresh)

    async def pods(self, node: str, **cores: float) -> None:
        rows = [
            pod_row(uid, cpu_cores_avg=used, memory_bytes_avg=GIB) for uid, used in cores.items()
        ]
        known = view(*(known_pod(uid, name=uid) for uid in cores))
        window = joined(NODE_ROW, *rows, view=known, of=header(node, 0))
        await self.send(WINDOWS, node, encode_window(window))
        for uid, used in cores.items():
            amounts = Resources(cpu_millicores=round(1000 * used), memory_bytes=1 << 30)
            owner = Owner(kind="StatefulSet", name=uid)
            pod = running(any_pod(uid, owner=owner, requests=amounts), node)
            await self.send(PODS, node, encode_json(pod), pod_key(node, uid))

    async def plans(self, strategy: str = "LowNodeLoad") -> list[EvictionPlanRecord]:
        records = await messages(self._kafka, EVICTION_PLANS)
        values = [r.value for r in records if f'"{strategy}"'.encode() in r.value]
        return [decode_json(EvictionPlanRecord, value) for value in values]

    @asynccontextmanager
    async def planner(
        self, api: ConfigMaps | None = None, clock: Clock | None = None
    ) -> AsyncIterator[asyncio.Task[None]]:
        lease = cast(Lease, SimpleNamespace(is_held=True))
        settings = self.settings
        planner = Planner(
            cast(Api, api or ConfigMaps()), settings, rules_of(settings.extender),
            clock or SystemClock(), lease,
        )  # fmt: skip
        task = asyncio.create_task(planner.run())
        try:
            yield task
            assert not task.done()
        finally:
            await cancel_tasks(task)


@pytest.fixture
async def cluster(kafka: KafkaSettings) -> AsyncIterator[Cluster]:
    await apply_topics(kafka)
    async with AIOKafkaProducer(**client_options(kafka)) as producer:
        yield Cluster(kafka, producer)


async def test_a_plan_is_written_once_also_after_a_failover(cluster: Cluster) -> None:
    await cluster.node("hot", 12.0)
    await cluster.node("cool", 1.0)
    await cluster.pods("hot", a=1.0, b=0.2)
    for topic in (EVICTION_PLANS, ACTIONS):
        await cluster.send(topic, "hot", b"\x00 no JSON")
        await cluster.send(topic, "hot", b'{"actuator": "evictor"}')
    source = EVICTION_PLANS.full_name(cluster.settings.kafka.topic_prefix)
    before = sum_of(REFUSED, source=source)
    async with cluster.planner():
        await until(cluster.plans)
    (plan,) = await cluster.plans()
    assert (plan.node, [pod.uid for pod in plan.pods]) == ("hot", ["a"])
    assert (plan.pods[0].target, plan.pods[0].workload) == ("cool", "StatefulSet/d/a")
    assert sum_of(REFUSED, source=source) > before
    RESTING.set(0)
    async with cluster.planner():
        await until(lambda: value_of(RESTING) == 1)  # it has considered the node
        assert await cluster.plans() == [plan]


async def test_the_only_replica_of_a_workload_is_not_planned(cluster: Cluster) -> None:
    await cluster.node("hot", 12.0)
    await cluster.node("cool", 1.0)
    await cluster.pods("hot", fitting=0.9, other=2.0)
    key = workload_key("d", "StatefulSet", "fitting")
    only = WorkloadRecord(namespace="d", kind="StatefulSet", name="fitting", replicas=1)
    for value in (b"no JSON", encode_json(only)):
        await cluster.send(WORKLOADS, "d", value, key)
    async with cluster.planner():
        await until(cluster.plans)
    (plan,) = await cluster.plans()
    assert [pod.uid for pod in plan.pods] == ["other"]


async def test_thresholds_are_proposed_from_predictions_while_a_planner_leads(
    cluster: Cluster,
) -> None:
    await cluster.send(PREDICTIONS, "n0", b"\x00 no JSON")
    for name in [f"n{number}" for number in range(6)]:
        await cluster.node(name, 8.0)
        record = decode_json(PredictionRecord, prediction(name, node_peaks=entity(8.8, 0.8)))
        fresh = msgspec.structs.replace(record, as_of=format_time(time.time()))
        await cluster.write(PREDICTIONS, name, fresh)
    async with cluster.planner():
        await until(proposals)
        # 55% and 5% of 16 cores.
        assert proposals()[POLICY.pool, "node_cpu"] == 0.7
    assert proposals() == {}


async def test_a_node_that_asks_for_relief_gets_a_plan(cluster: Cluster) -> None:
    await cluster.node("busy", 8.0)
    await cluster.node("cool", 1.0)
    await cluster.pods("busy", a=1.0, b=0.2)
    await cluster.send(EVICTION_REQUESTS, "busy", b"\x00 no JSON")
    await cluster.write(EVICTION_REQUESTS, "busy", asked("busy", time.time(), cpu_millicores=500))
    configuration = msgspec.json.decode(msgspec.json.encode(CONFIGURATION))
    configuration["profiles"][0]["plugins"]["balance"]["enabled"] = [{"name": "NodeRequests"}]
    configuration["profiles"][0]["pluginConfig"].append({"name": "NodeRequests"})
    async with cluster.planner(ConfigMaps(configuration)):
        await until(lambda: cluster.plans("NodeRequests"))
    (plan,) = await cluster.plans("NodeRequests")
    assert (plan.node, [pod.uid for pod in plan.pods]) == ("busy", ["a"])
    assert plan.pods[0].target == "cool"


async def test_nothing_is_planned_without_a_configuration(cluster: Cluster) -> None:
    await cluster.node("hot", 12.0)
    await cluster.node("cool", 1.0)
    await cluster.pods("hot", a=1.0)
    BLOCKED.labels("policy").set(0)
    async with cluster.planner(ConfigMaps(None)) as task:
        await until(lambda: value_of(BLOCKED.labels("policy")) == 1)
        assert await cluster.plans() == []
        assert not task.done()


async def test_readers_get_the_alerts_of_the_planner_and_the_next_leader_resumes_them(
    cluster: Cluster,
) -> None:
    await cluster.node("hot", 12.0)
    await cluster.pods("hot", a=1.0)
    kafka, clock, alerts = cluster.settings.kafka, SystemClock(), ReliefAlerts()
    async with cluster.planner():
        await until(lambda: messages(kafka, ALERTS))
    async with read_relief_alerts(kafka, alerts, clock, waits=True):
        (alert,) = alerts.open(clock.monotonic())
    assert (alert.rule, alert.pool) == ("all_nodes_hot", "__default_node_pool__")
    await cluster.node("cool", 1.0)
    async with cluster.planner():
        await until(cluster.plans)
        await until(lambda: has_messages(kafka, 2))
    changes = [decode_json(AlertRecord, m.value) for m in await messages(kafka, ALERTS)]
    assert [(change.id, change.transition) for change in changes] == [
        (alert.id, "opened"), (alert.id, "closed")
    ]  # fmt: skip


async def has_messages(kafka: KafkaSettings, count: int) -> bool:
    return len(await messages(kafka, ALERTS)) >= count


async def test_without_the_topic_there_are_no_alerts(kafka: KafkaSettings) -> None:
    alerts, clock = ReliefAlerts(), SystemClock()
    async with read_relief_alerts(kafka, alerts, clock, waits=True):
        assert alerts.open(clock.monotonic()) == []


async def test_pods_are_read_of_the_nodes_alone_that_are_asked_for(cluster: Cluster) -> None:
    for node in ("a", "b", "c"):
        await cluster.pods(node, **{f"{node}-1": 1.0, f"{node}-2": 2.0})
    # A pod that was deleted, one that was created again elsewhere, and invalid ones.
    await cluster.send(PODS, "a", None, pod_key("a", "a-2"))
    moved = running(any_pod("b-1", owner=Owner(kind="StatefulSet", name="x")), "a")
    await cluster.send(PODS, "a", encode_json(moved), pod_key("a", "b-1"))
    await cluster.send(PODS, "b", None, pod_key("b", "b-1"))
    await cluster.send(PODS, "a", b"garbage", pod_key("a", "bad"))
    await cluster.send(PODS, "a", encode_json(moved), pod_key("a", "other"))
    await cluster.send(WINDOWS, "a", b"garbage")
    pods = await read_node_pods(cluster.settings.kafka, {"a", "b"}, 300, time.time())
    assert {(pod.node, pod.uid) for pod in pods.records} == {
        ("a", "a-1"), ("a", "b-1"), ("b", "b-2")
    }  # fmt: skip
    assert len(pods.history) == 2
    assert pods.history.usage("a", 300, None)["a-2"][0] == 2.0
    nobody = await read_node_pods(cluster.settings.kafka, set(), 300, time.time())
    assert (nobody.records, len(nobody.history)) == ([], 0)
