"""Requests of a node for evictions: modes and switches, a real broker, and the planner's answer."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actuators.node.eviction_requests import REQUESTS, WISHED, EvictionRequests
from pipeline.clock import ManualClock, SystemClock
from pipeline.kafka.topic_admin import apply_topics
from pipeline.processors.node_qos.eviction_victims import EvictionFeature
from pipeline.processors.node_qos.node_state import NodeState, PodState
from pipeline.settings import KafkaSettings
from pipeline.tasks import cancel_tasks
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.eviction_requests import EvictionRequestRecord
from pipeline.topics.pods import Owner, pod_key
from pipeline.topics.registry import EVICTION_REQUESTS, PODS
from tests.broker import messages
from tests.forwarder import forwarder
from tests.metric_values import sum_of, value_of
from tests.planner.test_planner import CONFIGURATION, Cluster, ConfigMaps, cluster
from tests.processes import until
from tests.processors.node_qos.eviction_pods import GIB, NOW, best_effort, node
from tests.table.records import any_pod, running

__all__ = ["cluster"]  # a fixture

ACTING = {feature.setting: "act" for feature in EvictionFeature}
THRESHOLDS = {"memory_evict_threshold_percent": 80, "memory_evict_lower_percent": 70}


def pressed(*pods: PodState, **fields: Any) -> NodeState:
    """A node whose memory is used by 60 of 64 GiB."""
    values: dict[str, Any] = {"thresholds": THRESHOLDS, "memory_bytes": 60.0 * GIB}
    return msgspec.structs.replace(node(*pods, **(values | fields)), node="busy")


class Node:
    """A node without Kafka, whose time passes."""

    def __init__(self, modes: dict[str, str], folder: Path) -> None:
        self.clock, self.actions = ManualClock(now=NOW), list[ActionRecord]()
        self.stop_file = folder / "stop"
        self.requests = EvictionRequests(
            "busy", modes, KafkaSettings(), self.actions.append, self.clock, self.stop_file
        )

    async def after(self, seconds: float, *pods: PodState, **fields: Any) -> tuple[str, ...]:
        """The UIDs that the node asks for after so many seconds."""
        await self.clock.advance(seconds)
        self.requests.step(pressed(*pods, **({"at": self.clock.now()} | fields)))
        record = self.requests._requests.due(self.clock.monotonic(), self.clock.now())
        return () if record is None else record.pods


HOG = best_effort("hog", memory_bytes=20.0 * GIB)


async def test_an_acting_feature_asks_and_records_each_choice_once(tmp_path: Path) -> None:
    asking = Node(ACTING, tmp_path)
    for _ in range(5):
        assert await asking.after(1.0, HOG) == ("uid-hog",)
    (action,) = asking.actions
    assert (action.node, action.actuator, action.action, action.outcome) == (
        "busy", "node-actuator", "be_memory_evict", "intended"
    )  # fmt: skip
    assert (action.before, action.after) == ({"shop/hog": "uid-hog"}, {"shop/hog": None})
    assert action.why.startswith("memory usage is 64424509440")
    assert value_of(WISHED.labels("be_memory_evict", "act")) == 1


async def test_an_observing_feature_records_and_asks_for_nothing(tmp_path: Path) -> None:
    observing = Node({"be_memory_evict": "observe", "memory_evict": "off"}, tmp_path)
    for _ in range(5):
        assert await observing.after(1.0, HOG) == ()
    assert [action.outcome for action in observing.actions] == ["observed"]
    assert value_of(WISHED.labels("be_memory_evict", "observe")) == 1


async def test_what_is_observed_does_not_count_as_leaving(tmp_path: Path) -> None:
    modes = {"be_memory_evict": "observe", "memory_evict": "act"}
    assert await Node(modes, tmp_path).after(1.0, HOG) == ("uid-hog",)


@pytest.mark.parametrize("modes", [{}, {"be_memory_evict": "off"}])
async def test_features_that_are_off_do_nothing(modes: dict[str, str], tmp_path: Path) -> None:
    idle = Node(modes, tmp_path)
    assert await idle.after(1.0, HOG) == ()
    assert idle.actions == []


async def test_nothing_is_asked_while_the_stop_file_exists(tmp_path: Path) -> None:
    asking = Node(ACTING, tmp_path)
    asking.stop_file.touch()
    assert await asking.after(1.0, HOG) == ()
    asking.stop_file.unlink()
    assert await asking.after(1.0, HOG) == ("uid-hog",)


@pytest.mark.parametrize("skew", [-11.0, 11.0, 86_400.0])
async def test_old_usage_asks_for_nothing(tmp_path: Path, skew: float) -> None:
    asking = Node(ACTING, tmp_path)
    for _ in range(20):
        assert await asking.after(1.0, HOG, at=asking.clock.now() + 1 - skew) == ()
    assert asking.actions == []


class Running:
    """A node that runs, once a second, with what `state` has."""

    def __init__(self, kafka: KafkaSettings, folder: Path) -> None:
        self.pods: tuple[PodState, ...] = ()
        self.memory_bytes = 60.0 * GIB
        self._requests = EvictionRequests(
            "busy", ACTING, kafka, lambda action: None, SystemClock(), folder / "stop"
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(work) for work in (self._requests.run(), self._rounds())]
        try:
            yield
            assert not any(task.done() for task in tasks)
        finally:
            await cancel_tasks(*tasks)

    async def _rounds(self) -> None:
        while True:
            state = pressed(*self.pods, at=time.time(), memory_bytes=self.memory_bytes)
            self._requests.step(state)
            await asyncio.sleep(0.2)


async def requests_on(kafka: KafkaSettings) -> list[EvictionRequestRecord]:
    records = await messages(kafka, EVICTION_REQUESTS)
    return [decode_json(EvictionRequestRecord, record.value) for record in records]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_planner_moves_the_pod_that_the_node_chose(
    cluster: Cluster, kafka: KafkaSettings, tmp_path: Path
) -> None:
    await cluster.node("busy", 8.0)
    await cluster.node("cool", 1.0)
    await cluster.pods("busy", a=1.0, b=0.2)
    for uid in ("a", "b"):
        batch = any_pod(uid, pod_class="batch", owner=Owner(kind="StatefulSet", name=uid))
        await cluster.send(PODS, "busy", encode_json(running(batch, "busy")), pod_key("busy", uid))
    asking = Running(kafka, tmp_path)
    # By its own order the planner would choose the other one, which uses more.
    asking.pods = (
        best_effort("a", 5900, uid="a", memory_bytes=20.0 * GIB, cpu_cores=1.0),
        best_effort("b", 5000, uid="b", memory_bytes=18.0 * GIB, cpu_cores=0.2),
    )
    configuration = msgspec.json.decode(msgspec.json.encode(CONFIGURATION))
    configuration["profiles"][0]["plugins"]["balance"]["enabled"] = [{"name": "NodeRequests"}]
    configuration["profiles"][0]["pluginConfig"].append({"name": "NodeRequests"})
    async with asking.running(), cluster.planner(ConfigMaps(configuration)):
        await until(lambda: cluster.plans("NodeRequests"))
        (plan,) = await cluster.plans("NodeRequests")
        assert (plan.node, [pod.uid for pod in plan.pods]) == ("busy", ["b"])
        assert "node-actuator: BEMemoryEvict: memory usage is" in plan.why
        asking.pods, asking.memory_bytes = asking.pods[:1], 40.0 * GIB

        async def is_withdrawn() -> bool:
            last = (await requests_on(kafka))[-1]
            return not (last.pods or last.cpu_millicores or last.memory_bytes)

        await until(is_withdrawn)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_after_an_outage_only_what_is_still_wished_is_sent(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    await apply_topics(kafka)
    port = int(kafka.bootstrap_servers.rpartition(":")[2])
    async with forwarder() as away:
        behind = msgspec.structs.replace(kafka, bootstrap_servers=f"127.0.0.1:{away.port}")
        asking = Running(behind, tmp_path)
        asking.pods = (best_effort("old", memory_bytes=20.0 * GIB),)
        failed = sum_of(REQUESTS, result="failed")
        async with asking.running():
            await until(lambda: sum_of(REQUESTS, result="failed") > failed)
            asking.pods = (best_effort("new", memory_bytes=20.0 * GIB),)
            await until(lambda: value_of(WISHED.labels("be_memory_evict", "act")) == 1)
            away.target = port
            await until(lambda: requests_on(kafka))
            assert {record.pods for record in await requests_on(kafka)} == {("uid-new",)}
