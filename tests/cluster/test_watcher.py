"""The watcher with the real API server and the real broker: the topics say what the cluster says,
whatever happened meanwhile."""

import json
from pathlib import Path

import pytest

from pipeline.clock import SystemClock
from pipeline.errors import ControlPlaneError, ForbiddenError
from pipeline.kube.api_client import open_api
from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KubernetesSettings, Settings
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.registry import NODES, PODS
from tests.cluster.objects import (
    apply,
    delete,
    items,
    latest,
    messages,
    node,
    pod,
    write_policy,
)
from tests.cluster.watching import Role, in_step
from tests.kube.access import in_pod
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]


async def strategies(settings: Settings) -> dict[str, Overcommit | None]:
    found = await latest(settings.kafka, NODES)
    return {name: decode_json(NodeRecord, value).overcommit for name, value in found.items()}


async def test_topics_follow_what_kubectl_does(plane: ControlPlane, settings: Settings) -> None:
    apply(plane, node("a1"), node("a2", labels={"pool": "gold"}))
    # One on each, whichever the scheduler takes for the others.
    placed = [pod("p0", on="a1", cpu="100m"), pod("p1", on="a2", cpu="100m")]
    apply(plane, *placed, *(pod(f"p{i}", cpu="100m") for i in (2, 3, 4)), pod("big", cpu="99"))
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
        # A watcher that starts with the invalid policy keeps the last valid one, too.
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
    plane: ControlPlane, settings: Settings, project: Path, tmp_path: Path
) -> None:
    name = settings.kubernetes.config_name
    rules = (project / "deploy" / "rbac" / "watcher.yaml").read_text()
    plane.kubectl("apply", "-f", "-", given=rules.replace("slo-controller-config", name))
    account = by_token(plane, "springtide-watcher", tmp_path / "kubeconfig")
    kubernetes = type(settings.kubernetes)(kubeconfig=account, config_name=name)
    write_policy(plane, name, colocation_config='{"enable": 1}')
    ratio = {"node.koordinator.sh/cpu-reclaim-ratio": "much"}
    apply(plane, node("d1", labels=ratio), pod("d1", cpu="100m"))

    def told(of: str, *where: str) -> bool:
        return any(e["involvedObject"]["name"] == of for e in items(plane, "events", *where))

    with Role("watcher", Settings(kafka=settings.kafka, kubernetes=kubernetes)) as watcher:
        await until(lambda: in_step(plane, settings))
        await until(lambda: told(name, "-n", "koordinator-system"))
        write_policy(plane, name, colocation_config={"enable": True})
        await until(lambda: told("d1"))
        await until(lambda: in_step(plane, settings))
        assert watcher.stop() == 0
    for denied in (
        ["delete", "pod", "d1"],
        ["get", "pod", "d1"],
        ["get", "secrets"],
        ["get", "configmaps", "-n", "koordinator-system"],
        ["get", "configmaps"],
        ["label", "node", "d1", "a=b"],
        ["delete", "configmap", name, "-n", "koordinator-system"],
        ["delete", "lease", "springtide-watcher", "-n", "springtide-system"],
        ["get", "leases", "-n", "springtide-system"],
    ):
        with pytest.raises(ControlPlaneError, match="orbidden"):
            plane.kubectl(*denied, user=account)
    delete(plane, "pod", "d1")
    delete(plane, "node", "d1")


def by_token(plane: ControlPlane, account: str, path: Path) -> Path:
    """A kubeconfig with a token of this service account of ours, as its pods have one."""
    token = plane.kubectl("create", "token", account, "-n", "springtide-system").strip()
    tree = json.loads(plane.kubeconfig().read_text())
    tree["users"] = [{"name": account, "user": {"token": token}}]
    tree["contexts"][0]["context"]["user"] = account
    path.write_text(json.dumps(tree))
    return path


async def test_in_a_pod_it_comes_as_its_account(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.kubectl("create", "serviceaccount", "somebody", "-n", "springtide-system")
    token = tmp_path / "token"
    token.write_text(plane.kubectl("create", "token", "somebody", "-n", "springtide-system"))
    host, port = plane.server.removeprefix("https://").split(":")
    in_pod(monkeypatch, token, plane.certificate_authority, host, port)
    async with open_api(KubernetesSettings(), SystemClock()) as api:
        with pytest.raises(
            ForbiddenError, match="system:serviceaccount:springtide-system:somebody"
        ):
            await api.get("/api/v1/pods")
