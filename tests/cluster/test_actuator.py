"""The cluster actuator by mode, and its permissions."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from pipeline.local.control_plane import ControlPlane
from pipeline.processors.overcommit.status_patch import ABSENT, read_amounts
from pipeline.settings import KubernetesSettings, Settings
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import decode_json
from pipeline.topics.registry import ACTIONS
from tests.broker import messages
from tests.cluster.objects import (
    apply,
    assert_forbidden,
    define,
    named,
    node,
    pod,
    service_account,
    write_policy,
)
from tests.cluster.resource_results import ResourceResults
from tests.cluster.roles import Role, in_step
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

NOTHING = [ABSENT] * 4


@pytest.fixture
async def results(
    plane: ControlPlane, settings: Settings, producer: AIOKafkaProducer
) -> AsyncIterator[ResourceResults]:
    """Results of the node `g1`, and of `g2`, which the policy excludes; a watcher runs."""
    apply(plane, node("g1"), node("g2", labels={"off": "yes"}))
    off = {"nodeSelector": {"matchLabels": {"off": "yes"}}, "enable": False}
    policy = {"enable": True, "nodeConfigs": [off]}
    write_policy(plane, settings.kubernetes.config_name, colocation_config=policy)
    results = ResourceResults(settings, 1)
    with Role("watcher", settings):
        await until(lambda: in_step(plane, settings))
        for name in ("g1", "g2"):
            await results.publish(producer, name)
        yield results


def get_node(plane: ControlPlane, name: str) -> dict[str, Any]:
    return named(plane, "nodes")[name]


def offer(plane: ControlPlane, name: str) -> list[int] | None:
    """The offer of a node; None while capacity and allocatable differ."""
    status = get_node(plane, name)["status"]
    capacity, allocatable = read_amounts(status["capacity"]), read_amounts(status["allocatable"])
    return capacity if capacity == allocatable else None


def annotations(plane: ControlPlane, name: str) -> dict[str, str]:
    texts: dict[str, str] = get_node(plane, name)["metadata"].get("annotations", {})
    return texts


def texts(amounts: list[int]) -> dict[str, str]:
    names = ("batch-cpu", "batch-memory", "mid-cpu", "mid-memory")
    return {f"kubernetes.io/{name}": str(a) for name, a in zip(names, amounts, strict=True)}


async def test_each_mode_writes_its_own_marks_and_undoes_the_other_modes(
    plane: ControlPlane, settings: Settings, results: ResourceResults, producer: AIOKafkaProducer
) -> None:

    async def observed() -> bool:
        records = [
            decode_json(ActionRecord, message.value)
            for message in await messages(settings.kafka, ACTIONS)
        ]
        after = [record.after for record in records if record.outcome == "observed"]
        return after[-1:] == [texts(results.last["g1"])]

    with Role("actuator", settings):
        await until(observed)
        await results.publish(producer, "g1")
        await until(observed)
    # It wrote nothing. The Node's version proves nothing: KWOK changes its conditions.
    fields = named(plane, "nodes", "--show-managed-fields")["g1"]["metadata"]["managedFields"]
    managers = {entry["manager"] for entry in fields}
    assert managers
    assert "springtide-actuator" not in managers

    with Role("actuator", settings, "--mode", "recommend"):
        await until(lambda: "springtide/recommended" in annotations(plane, "g1"))
        fields = named(plane, "nodes", "--show-managed-fields")["g1"]["metadata"]["managedFields"]
        assert "springtide-actuator" in {entry["manager"] for entry in fields}
    recommended = json.loads(annotations(plane, "g1")["springtide/recommended"])
    assert recommended == texts(results.last["g1"])
    assert offer(plane, "g1") == NOTHING

    with Role("actuator", settings, "--mode", "act"):
        await until(lambda: offer(plane, "g1") == results.last["g1"])
        marks = annotations(plane, "g1")
        assert "springtide/recommended" not in marks
        assert "springtide/offered" in marks
        origin = json.loads(marks["node.koordinator.sh/originExtendedAllocatable"])
        assert origin["resources"]["kubernetes.io/batch-cpu"] == str(results.last["g1"][0])
        # The excluded node offers nothing, although it has results.
        assert offer(plane, "g2") == NOTHING
        plane.kubectl("annotate", "node", "g1", 'node.koordinator.sh/thirdPartyAllocations={'
                      '"allocations":[{"name":"yarn","priority":"koord-batch","resources":'
                      '{"kubernetes.io/batch-cpu":"90"}}]}')  # fmt: skip
        await results.publish(producer, "g1")
        less = [results.last["g1"][0] - 90, *results.last["g1"][1:]]
        await until(lambda: offer(plane, "g1") == less)
        # The actuator reverts a foreign removal, and obeys the policy.
        patch = {"status": {"allocatable": {"kubernetes.io/mid-cpu": None}}}
        plane.kubectl("patch", "node", "g1", "--subresource=status", "--type=merge",
                      "-p", json.dumps(patch))  # fmt: skip
        await until(lambda: offer(plane, "g1") == less)
        plane.kubectl("label", "node", "g1", "off=yes")
        await until(lambda: offer(plane, "g1") == NOTHING)
        marks = annotations(plane, "g1")
        assert not {"springtide/offered", "node.koordinator.sh/originExtendedAllocatable"} & {
            *marks
        }
        plane.kubectl("label", "node", "g1", "off-")
        await until(lambda: offer(plane, "g1") == less)

    with Role("actuator", settings) as last:
        await until(lambda: offer(plane, "g1") == NOTHING)
        assert last.stop() == 0
    assert not {"springtide/offered", "springtide/recommended"} & {*annotations(plane, "g1")}


async def test_the_service_account_may_do_what_the_actuator_needs_and_no_more(
    plane: ControlPlane, settings: Settings, results: ResourceResults, project: Path
) -> None:
    account = service_account(plane, "actuator", project)
    own = Settings(kafka=settings.kafka, kubernetes=KubernetesSettings(kubeconfig=account))
    definitions = str(project / "deploy/chart/crds")
    define(plane, definitions)

    def objects() -> list[set[str]]:
        return [{*named(plane, plural)} for plural in ("nodemetrics", "nodeslos")]

    with Role("actuator", own, "--mode", "act", "--node-metrics", "--node-slos") as actuator:
        await until(lambda: offer(plane, "g1") == results.last["g1"])
        await until(lambda: objects() == [{"g1", "g2"}] * 2)
        assert actuator.stop() == 0
    with Role("actuator", own, "--mode", "observe") as actuator:
        await until(lambda: objects() == [set()] * 2)
        await until(lambda: offer(plane, "g1") == NOTHING)
        assert actuator.stop() == 0
    apply(plane, pod("g", on="g1", cpu="10m"))
    assert_forbidden(
        plane, account, "delete node g1", "label node g1 a=b", "taint node g1 a=b:NoSchedule",
        "delete pod g", "get pods", "get configmaps -n koordinator-system", "get events",
        "delete crd nodemetrics.slo.koordinator.sh",
    )  # fmt: skip
    plane.kubectl("delete", "-f", definitions)
