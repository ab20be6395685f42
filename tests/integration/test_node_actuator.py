"""The node actuator with a real exporter, a real broker and real cgroups (v1)."""

import asyncio
import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import LocalKafka
from pipeline.processors.node_qos.extended_resource_spec import ANNOTATION as EXTENDED_RESOURCES
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import ACTIONS
from tests.actuators.node.nri_runtime.program import Runtime
from tests.broker import messages, own_topics
from tests.cgroup_tree import cgroup_tree
from tests.integration.actuated_node import BATCH, PROD, Node
from tests.processes import hears_sigterm, until

pytestmark = [pytest.mark.cgroups, pytest.mark.slow, pytest.mark.timeout(600)]

BURN = "while True: pass"
BATCH_AMOUNTS = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"}


def suppress(min_percent: int = 0) -> dict[str, Any]:
    """A policy that leaves next to nothing while the Prod pod works; `min_percent` is what other
    processes of this machine cannot take, however much they use."""
    rules = {
        "enable": True, "cpuSuppressThresholdPercent": 60, "cpuSuppressPolicy": "cfsQuota",
        "cpuSuppressMinPercent": min_percent,
    }  # fmt: skip
    return {"resourceUsedThresholdWithBE": rules}


OFF = {"resourceUsedThresholdWithBE": {"enable": False}}


@pytest.fixture
async def kafka(broker: LocalKafka) -> KafkaSettings:
    settings = own_topics(broker, 2)
    await apply_topics(settings)
    return settings


@pytest.fixture
def node(kafka: KafkaSettings, tmp_path: Path) -> Iterator[Node]:
    with cgroup_tree("actuator") as tree:
        node = Node(kafka, tree, tmp_path)
        try:
            yield node
        finally:
            node.stop()


async def test_best_effort_is_held_down_and_grows_back(node: Node) -> None:
    before = node.limits()
    node.act("--mode=act")
    node.tree.python(PROD, BURN)
    node.tree.python(BATCH, BURN)
    # Nothing is written before there is a policy.
    await until(lambda: "metrics page" in node.log())
    assert node.limits() == before
    await node.view(suppress())
    # 60% of two CPUs, less one that Prod uses.
    await until(lambda: 2_000 <= node.quota_us() < 60_000, explain=node.log)
    await node.view(suppress(80))
    # By at most a tenth of the node in a second.
    quotas = {node.quota_us()}

    def has_grown() -> bool:
        quotas.add(node.quota_us())
        return max(quotas) == 160_000

    await until(has_grown, explain=node.log)
    assert len(quotas) > 4
    await node.view(OFF)
    await until(lambda: node.limits() == before, explain=node.log)
    found = [json.loads(m.value) for m in await messages(node.kafka, ACTIONS)]
    assert {a["actuator"] for a in found} == {"node-actuator"}
    assert found[0]["action"] == "cpu_suppression"
    assert found[0]["outcome"] == "done"


async def test_in_mode_observe_nothing_is_written(node: Node) -> None:
    before = node.limits()
    node.act()
    node.tree.python(PROD, BURN)
    await node.view(suppress())

    async def observed() -> list[dict[str, Any]]:
        found = [json.loads(m.value) for m in await messages(node.kafka, ACTIONS)]
        return [action for action in found if action["outcome"] == "observed"]

    await until(observed, explain=node.log)
    assert node.limits() == before


async def test_kills_at_random_moments_leave_what_undo_restores(node: Node) -> None:
    before = node.limits()
    chance = random.Random(7)
    node.tree.python(PROD, BURN)
    await node.view(suppress())
    for _ in range(4):
        process = node.act("--mode=act")
        await until(lambda p=process: hears_sigterm(p.pid))
        await asyncio.sleep(chance.uniform(0, 3))
        process.kill()
        process.wait()
    process = node.act("--mode=act")
    await until(lambda: hears_sigterm(process.pid))
    await until(lambda: 2_000 <= node.quota_us() < 60_000, explain=node.log)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, node.log()
    assert node.quota_us() != -1  # limits hold while the actuator restarts
    undo = node.start("node-actuator", f"--state-file={node.folder / 'state.json'}", "--undo")
    assert undo.wait(60) == 0, node.log()
    assert node.limits() == before


async def test_without_usage_nothing_is_widened_and_the_reason_is_shown(node: Node) -> None:
    node.act("--mode=act")
    node.tree.python(PROD, BURN)
    await node.view(suppress())
    await until(lambda: 2_000 <= node.quota_us() < 60_000, explain=node.log)
    node.exporter.kill()
    node.exporter.wait()
    await until(lambda: node.page()["springtide_node_actuator_usage_age_seconds"] > 15)
    held = node.quota_us()
    await node.view(suppress(80))
    generation = float(node.generation)
    await until(lambda: node.page()["springtide_node_actuator_view_generation"] == generation)
    await asyncio.sleep(3)
    assert node.quota_us() <= held
    node.exporter = node.start("exporter", "--window-seconds=1")
    await until(lambda: node.quota_us() == 160_000, explain=node.log)


async def test_a_container_runtime_learns_limits_before_a_container_starts(node: Node) -> None:
    pod, container = "kubepods/besteffort/podnew", "a1" * 32
    node.tree.make(pod)
    stated = {"requests": BATCH_AMOUNTS, "limits": BATCH_AMOUNTS}
    annotations = {EXTENDED_RESOURCES: json.dumps({"containers": {"main": stated}})}
    path = f"/{node.tree.name}/{pod}/{container}"
    request = {
        "pod": {"uid": "new", "name": "new", "namespace": "x", "annotations": annotations},
        "container": {"id": container, "name": "main", "linux": {"cgroups_path": path}},
    }
    async with Runtime.listening(node.folder / "nri.sock") as runtime:
        node.act("--mode=act", f"--nri-socket={node.folder / 'nri.sock'}")
        assert await runtime.line() == {"synchronized": 0}

        async def resources() -> Any:
            answer = await runtime.ask(create=request)
            return answer["adjust"]["linux"]["resources"]

        # Without a policy nothing is decided.
        assert await resources() == {"memory": {}, "cpu": {}}
        await node.view({})
        expected = {
            "memory": {"limit": {"value": 64 * 2**20}},
            "cpu": {
                "shares": {"value": 512}, "quota": {"value": 50_000}, "period": {"value": 100_000}
            },
        }  # fmt: skip

        async def is_decided() -> bool:
            return bool(await resources() == expected)

        await until(is_decided, explain=node.log)
        assert node.page()["springtide_node_actuator_nri_connected"] == 1
