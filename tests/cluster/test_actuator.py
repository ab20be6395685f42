"""The cluster actuator by mode, and what it may do."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from pipeline.kafka.client import client_options
from pipeline.local.control_plane import ControlPlane
from pipeline.processors.overcommit.status_patch import ABSENT, amounts_on
from pipeline.settings import KubernetesSettings, Settings
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import decode_json
from pipeline.topics.registry import ACTIONS
from tests.cluster.objects import (
    apply,
    define,
    delete,
    items,
    messages,
    node,
    pod,
    write_policy,
)
from tests.cluster.results import Results
from tests.cluster.watching import Role, in_step
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

NOTHING = [ABSENT] * 4


@pytest.fixture
async def producer(settings: Settings) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(**client_options(settings.kafka))
    await producer.start()
    yield producer
    await producer.stop()


@pytest.fixture
async def results(
    plane: ControlPlane, settings: Settings, producer: AIOKafkaProducer
) -> AsyncIterator[Results]:
    """Of a node `g1`, which takes part, and `g2`, which does not; a watcher runs."""
    apply(plane, node("g1"), node("g2", labels={"off": "yes"}))
    off = {"nodeSelector": {"matchLabels": {"off": "yes"}}, "enable": False}
    policy = {"enable": True, "nodeConfigs": [off]}
    write_policy(plane, settings.kubernetes.config_name, colocation_config=policy)
    results = Results(settings, 1)
    with Role("watcher", settings):
        await until(lambda: in_step(plane, settings))
        for name in ("g1", "g2"):
            await results.publish(producer, name)
        yield results
    delete(plane, "node", "g1", "g2")


def found(plane: ControlPlane, name: str) -> dict[str, Any]:
    one: dict[str, Any] = json.loads(plane.kubectl("get", "node", name, "-o", "json"))
    return one


def offer(plane: ControlPlane, name: str) -> list[int]:
    status = found(plane, name)["status"]
    assert amounts_on(status["capacity"]) == amounts_on(status["allocatable"])
    return amounts_on(status["allocatable"])


def annotations(plane: ControlPlane, name: str) -> dict[str, str]:
    said: dict[str, str] = found(plane, name)["metadata"].get("annotations", {})
    return said


def made(plane: ControlPlane, plural: str) -> set[str]:
    return {of["metadata"]["name"] for of in items(plane, plural)}


async def actions(settings: Settings) -> list[ActionRecord]:
    return [decode_json(ActionRecord, m.value) for m in await messages(settings.kafka, ACTIONS)]


async def test_each_mode_does_what_it_says_and_undoes_the_others(
    plane: ControlPlane, settings: Settings, results: Results, producer: AIOKafkaProducer
) -> None:
    before = found(plane, "g1")

    async def observed() -> bool:
        said = [one for one in await actions(settings) if one.outcome == "observed"]
        return bool(said) and said[-1].after == texts(results.last["g1"])

    with Role("actuator", settings):
        await until(observed)
        await results.publish(producer, "g1")
        await until(observed)
    assert (
        found(plane, "g1")["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    )

    with Role("actuator", settings, "--mode", "recommend"):
        await until(lambda: "springtide/recommended" in annotations(plane, "g1"))
    assert json.loads(annotations(plane, "g1")["springtide/recommended"]) == texts(
        results.last["g1"]
    )
    assert offer(plane, "g1") == NOTHING

    with Role("actuator", settings, "--mode", "act"):
        await until(lambda: offer(plane, "g1") == results.last["g1"])
        said = annotations(plane, "g1")
        assert "springtide/recommended" not in said
        assert "springtide/offered" in said
        origin = json.loads(said["node.koordinator.sh/originExtendedAllocatable"])
        assert origin["resources"]["kubernetes.io/batch-cpu"] == str(results.last["g1"][0])
        # The node that takes no part, though something was worked out for it, has nothing.
        assert offer(plane, "g2") == NOTHING
        plane.kubectl("annotate", "node", "g1", 'node.koordinator.sh/thirdPartyAllocations={'
                      '"allocations":[{"name":"yarn","priority":"koord-batch","resources":'
                      '{"kubernetes.io/batch-cpu":"90"}}]}')  # fmt: skip
        await results.publish(producer, "g1")
        less = [results.last["g1"][0] - 90, *results.last["g1"][1:]]
        await until(lambda: offer(plane, "g1") == less)
        # A foreign removal is reverted; switching the policy off is obeyed.
        patch = {"status": {"allocatable": {"kubernetes.io/mid-cpu": None}}}
        plane.kubectl("patch", "node", "g1", "--subresource=status", "--type=merge",
                      "-p", json.dumps(patch))  # fmt: skip
        await until(lambda: offer_or_none(plane) == less)
        plane.kubectl("label", "node", "g1", "off=yes")
        await until(lambda: offer(plane, "g1") == NOTHING, 15)
        assert not {"springtide/offered", "node.koordinator.sh/originExtendedAllocatable"} & set(
            annotations(plane, "g1")
        )
        plane.kubectl("label", "node", "g1", "off-")
        await until(lambda: offer(plane, "g1") == less, 15)

    with Role("actuator", settings) as last:
        await until(lambda: offer(plane, "g1") == NOTHING)
        assert last.stop() == 0
    kept = {"springtide/offered", "springtide/recommended"} & set(annotations(plane, "g1"))
    assert not kept


def offer_or_none(plane: ControlPlane) -> list[int] | None:
    """Of g1; None while capacity and allocatable differ."""
    status = found(plane, "g1")["status"]
    both = amounts_on(status["capacity"]), amounts_on(status["allocatable"])
    return both[0] if both[0] == both[1] else None


def texts(amounts: list[int]) -> dict[str, str]:
    names = ("batch-cpu", "batch-memory", "mid-cpu", "mid-memory")
    return {f"kubernetes.io/{name}": str(a) for name, a in zip(names, amounts, strict=True)}


async def test_its_service_account_may_do_what_it_needs_and_no_more(
    plane: ControlPlane, settings: Settings, results: Results, project: Path
) -> None:
    plane.kubectl("apply", "-f", str(project / "deploy" / "rbac" / "actuator.yaml"))
    account = plane.kubeconfig(
        "system:serviceaccount:springtide-system:springtide-actuator",
        ["system:serviceaccounts", "system:serviceaccounts:springtide-system"],
    )
    kubernetes = KubernetesSettings(kubeconfig=account)
    own = Settings(kafka=settings.kafka, kubernetes=kubernetes)
    definitions = str(project / "deploy" / "crds")
    define(plane, definitions)
    flags = ("--mode", "act", "--node-metrics", "--node-slos")
    with Role("actuator", own, *flags) as actuator:
        await until(lambda: offer(plane, "g1") == results.last["g1"])
        await until(lambda: made(plane, "nodemetrics") == made(plane, "nodeslos") == {"g1", "g2"})
        assert actuator.stop() == 0
    with Role("actuator", own, "--mode", "observe") as actuator:
        await until(lambda: not made(plane, "nodemetrics") | made(plane, "nodeslos"))
        await until(lambda: offer(plane, "g1") == NOTHING)
        assert actuator.stop() == 0
    apply(plane, pod("g", on="g1", cpu="10m"))
    for denied in (
        ["delete", "node", "g1"],
        ["label", "node", "g1", "a=b"],
        ["taint", "node", "g1", "a=b:NoSchedule"],
        ["delete", "pod", "g"],
        ["get", "pods"],
        ["get", "configmaps", "-n", "koordinator-system"],
        ["get", "events"],
        ["delete", "crd", "nodemetrics.slo.koordinator.sh"],
    ):
        with pytest.raises(Exception, match="orbidden"):
            plane.kubectl(*denied, user=account)
    delete(plane, "pod", "g")
    plane.kubectl("delete", "-f", definitions)
