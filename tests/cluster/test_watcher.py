"""The watcher with the real API server and the real broker: the topics say what the cluster says,
whatever happened meanwhile."""

import json
from pathlib import Path

import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.settings import Settings
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.overcommit import Overcommit
from pipeline.topics.registry import NODES, PODS
from tests.cluster.objects import (
    apply,
    delete,
    items,
    latest,
    messages,
    node,
    pod,
    until,
    write_policy,
)
from tests.cluster.watching import Role, in_step

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]


async def strategies(settings: Settings) -> dict[str, Overcommit | None]:
    found = await latest(settings.kafka, NODES)
    return {name: decode_json(NodeRecord, value).overcommit for name, value in found.items()}


async def test_topics_follow_what_kubectl_does(plane: ControlPlane, settings: Settings) -> None:
    apply(plane, node("a1"), node("a2", labels={"pool": "gold"}))
    apply(plane, *(pod(f"p{i}", cpu="100m") for i in range(5)), pod("big", cpu="99"))
    with Role("watcher", settings) as watcher:
        await until(lambda: in_step(plane, settings))
        # Bound, and one that fits nowhere.
        keys = (await latest(settings.kafka, PODS)).keys()
        assert {key.partition("/")[0] for key in keys} >= {"", "a1", "a2"}
        delete(plane, "pod", "p0", "p3", "big")
        delete(plane, "node", "a1")
        plane.kubectl("label", "node", "a2", "more=yes")
        await until(lambda: in_step(plane, settings))
        written = len(await messages(settings.kafka, NODES))
        # Nothing is written again that is the same.
        unused = "kubectl.kubernetes.io/last-applied-configuration=x"
        plane.kubectl("annotate", "node", "a2", unused, "--overwrite")
        apply(plane, node("a3"))
        await until(lambda: in_step(plane, settings))
        assert watcher.stop() == 0
    said = [m.key for m in (await messages(settings.kafka, NODES))[written:]]
    assert said.count(b"a2") == 0
    delete(plane, "node", "a2", "a3")
    delete(plane, "pod", "p1", "p2", "p4")


async def test_an_edit_of_the_policy_is_in_force_and_a_broken_one_is_told(
    plane: ControlPlane, settings: Settings
) -> None:
    name = settings.kubernetes.config_name
    apply(plane, node("b1"), node("b2", labels={"pool": "gold"}))

    async def in_force(expected: dict[str, Overcommit | None]) -> bool:
        return await strategies(settings) == expected

    with Role("watcher", settings) as watcher:
        await until(lambda: in_force({"b1": None, "b2": None}))
        gold = {"nodeSelector": {"matchLabels": {"pool": "gold"}}, "midUnallocatedPercent": 20}
        write_policy(plane, name, colocation_config={"enable": True, "nodeConfigs": [gold]})
        good: dict[str, Overcommit | None] = {
            "b1": Overcommit(),
            "b2": Overcommit(mid_unallocated_percent=20),
        }
        await until(lambda: in_force(good), 5)
        write_policy(plane, name, colocation_config='{"enable": true, "degradeTimeMinutes": 0}')

        def told() -> str:
            events = items(plane, "events", "-n", "koordinator-system")
            return "".join(of["message"] for of in events if of["involvedObject"]["name"] == name)

        await until(lambda: "degradeTimeMinutes is 0, allowed is 1 or more" in told(), 10)
        assert await strategies(settings) == good
        # Whoever starts with the broken one keeps what was in force, too.
        watcher.kill()
    plane.kubectl("label", "node", "b1", "more=yes")
    with Role("watcher", settings):
        await until(lambda: labelled(settings, "b1"))
        assert await strategies(settings) == good
        own = 'node.koordinator.sh/colocation-strategy={"midUnallocatedPercent": "x"}'
        plane.kubectl("annotate", "node", "b1", own)
        write_policy(plane, name, colocation_config={"enable": True})
        await until(lambda: in_force({"b1": Overcommit(), "b2": Overcommit()}))
        await until(lambda: any(
            of["involvedObject"]["name"] == "b1" and "midUnallocatedPercent" in of["message"]
            for of in items(plane, "events")
        ))  # fmt: skip
    delete(plane, "node", "b1", "b2")


async def labelled(settings: Settings, name: str) -> bool:
    record = decode_json(NodeRecord, (await latest(settings.kafka, NODES))[name])
    return record.labels.get("more") == "yes"


async def test_what_went_while_nobody_watched_gets_its_tombstone(
    plane: ControlPlane, settings: Settings
) -> None:
    apply(plane, node("c1"), node("c2"), *(pod(f"c{i}", cpu="100m") for i in range(6)))
    with Role("watcher", settings) as first:
        await until(lambda: in_step(plane, settings))
        with Role("watcher", settings) as second:
            await until(lambda: "standing by" in second.text())
            first.kill()
            delete(plane, "pod", "c0", "c1")
            delete(plane, "node", "c2")
            apply(plane, pod("c7", cpu="100m"))
            await until(lambda: in_step(plane, settings), 60)
            second.kill()
    delete(plane, "pod", "c2", "c3")
    apply(plane, node("c3"))
    with Role("watcher", settings):
        await until(lambda: in_step(plane, settings), 60)
    delete(plane, "pod", "c4", "c5", "c7")
    delete(plane, "node", "c1", "c3")


async def test_its_service_account_may_do_what_it_needs_and_no_more(
    plane: ControlPlane, settings: Settings, project: Path
) -> None:
    plane.kubectl("apply", "-f", str(project / "deploy" / "rbac" / "watcher.yaml"))
    account = plane.kubeconfig(
        "system:serviceaccount:springtide-system:springtide-watcher",
        ["system:serviceaccounts", "system:serviceaccounts:springtide-system"],
    )
    kubernetes = type(settings.kubernetes)(
        kubeconfig=account, config_name=settings.kubernetes.config_name
    )
    write_policy(plane, kubernetes.config_name, colocation_config='{"enable": 1}')
    apply(plane, node("d1"), pod("d1", cpu="100m"))
    with Role("watcher", Settings(kafka=settings.kafka, kubernetes=kubernetes)) as watcher:
        await until(lambda: in_step(plane, settings))
        await until(lambda: any(
            of["involvedObject"]["name"] == kubernetes.config_name
            for of in items(plane, "events", "-n", "koordinator-system")
        ))  # fmt: skip
        assert watcher.stop() == 0
    said = plane.kubectl("auth", "can-i", "--list", user=account)
    assert "nodes" in said
    for denied in (
        ["delete", "pod", "d1"],
        ["get", "secrets"],
        ["label", "node", "d1", "a=b"],
        ["delete", "configmap", kubernetes.config_name, "-n", "koordinator-system"],
    ):
        with pytest.raises(Exception, match="orbidden"):
            plane.kubectl(*denied, user=account)
    delete(plane, "pod", "d1")
    delete(plane, "node", "d1")
    assert json.loads(plane.kubectl("get", "nodes", "-o", "json"))["items"] == []
