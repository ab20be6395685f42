"""The watcher with the real API server and broker: topics agree with the cluster."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pipeline.clock import SystemClock
from pipeline.errors import ForbiddenError
from pipeline.kube.api_client import open_api
from pipeline.local.control_plane import ControlPlane
from pipeline.metrics_server import Readiness
from pipeline.settings import KubernetesSettings, Settings
from pipeline.sources.cluster.doubtful_lists import CONFIRM_SECONDS
from pipeline.sources.cluster.watcher import watch_cluster
from pipeline.tasks import cancel_tasks
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.registry import NODES, PODS
from tests.broker import latest, messages
from tests.cluster.extender_cluster import add_nodes
from tests.cluster.objects import (
    apply,
    assert_forbidden,
    delete,
    event_text,
    node,
    pod,
    policy_event_text,
    service_account_token,
    write_policy,
)
from tests.cluster.roles import Role, in_step
from tests.kube.access import in_pod
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]


async def node_records(settings: Settings) -> dict[str, NodeRecord]:
    values = await latest(settings.kafka, NODES)
    return {name: decode_json(NodeRecord, value) for name, value in values.items()}


async def test_topics_follow_kubectl(plane: ControlPlane, settings: Settings) -> None:
    # A taint that a controller removes later would be another record.
    await add_nodes(plane, node("a1"), node("a2", labels={"pool": "gold"}))
    # One pod on each node, some that the scheduler places, and one that fits nowhere.
    placed = [pod("p0", on="a1", cpu="100m"), pod("p1", on="a2", cpu="100m")]
    apply(plane, *placed, *(pod(f"p{i}", cpu="100m") for i in (2, 3, 4)), pod("big", cpu="99"))
    with Role("watcher", settings) as watcher:
        await until(lambda: in_step(plane, settings))
        keys = (await latest(settings.kafka, PODS)).keys()
        assert {key.partition("/")[0] for key in keys} >= {"", "a1", "a2"}
        delete(plane, "pod", "p0", "p3", "big")
        delete(plane, "node", "a1")
        plane.kubectl("label", "node", "a2", "more=yes")
        await until(lambda: in_step(plane, settings))
        written = len(await messages(settings.kafka, NODES))
        # A change that leaves the record equal writes no record.
        ignored = "kubectl.kubernetes.io/last-applied-configuration=x"
        plane.kubectl("annotate", "node", "a2", ignored, "--overwrite")
        apply(plane, node("a3"))
        await until(lambda: in_step(plane, settings))
        assert watcher.stop() == 0
    assert [m.key for m in (await messages(settings.kafka, NODES))[written:]].count(b"a2") == 0


async def test_a_valid_policy_is_in_force_and_an_invalid_one_causes_an_event(
    plane: ControlPlane, settings: Settings
) -> None:
    name = settings.kubernetes.config_name
    usual = Overcommit(buffer_percent=10)
    apply(plane, node("b1"), node("b2", labels={"pool": "gold"}))

    async def strategies() -> list[Overcommit | None]:
        records = await node_records(settings)
        return [records[name].overcommit if name in records else None for name in ("b1", "b2")]

    async def in_force(*expected: Overcommit | None) -> None:
        async def is_so() -> bool:
            return {*await node_records(settings)} == {"b1", "b2"} and (
                await strategies() == [*expected]
            )

        await until(is_so)

    with Role("watcher", settings) as watcher:
        await in_force(None, None)
        gold = {"nodeSelector": {"matchLabels": {"pool": "gold"}}, "midUnallocatedPercent": 20}
        write_policy(plane, name, colocation_config={"enable": True, "nodeConfigs": [gold]})
        valid = usual, replace(usual, mid_unallocated_percent=20)
        await in_force(*valid)
        write_policy(plane, name, colocation_config='{"enable": true, "degradeTimeMinutes": 0}')
        text = "degradeTimeMinutes is 0, allowed is 1 or more"
        await until(lambda: text in policy_event_text(plane, name))
        assert await strategies() == [*valid]
        plane.kubectl("delete", "configmap", name, "-n", "koordinator-system")
        plane.kubectl("label", "node", "b2", "deleted=yes")

        async def is_labelled_after_deletion() -> bool:
            return (await node_records(settings))["b2"].labels.get("deleted") == "yes"

        await watcher.logs("there is none", 2)
        await until(is_labelled_after_deletion)
        assert await strategies() == [*valid]
        write_policy(plane, name, colocation_config='{"enable": true, "degradeTimeMinutes": 0}')
        assert watcher.stop() == 0
    # A watcher that starts with the invalid policy also uses the last valid one.
    plane.kubectl("label", "node", "b1", "more=yes")

    async def is_labelled() -> bool:
        return (await node_records(settings))["b1"].labels.get("more") == "yes"

    with Role("watcher", settings):
        await until(is_labelled)
        assert await strategies() == [*valid]
        own = 'node.koordinator.sh/colocation-strategy={"midUnallocatedPercent": "x"}'
        plane.kubectl("annotate", "node", "b1", own)
        write_policy(plane, name, colocation_config={"enable": True})
        await in_force(usual, usual)
        await until(lambda: "midUnallocatedPercent" in event_text(plane, "b1"))


async def test_thresholds_of_hot_nodes_follow_the_descheduler_configuration(
    plane: ControlPlane, settings: Settings
) -> None:
    name = f"{settings.kubernetes.config_name}-descheduler"
    settings = replace(
        settings, kubernetes=replace(settings.kubernetes, descheduler_config_name=name)
    )
    apply(plane, node("h1"), node("h2", labels={"pool": "gold"}))

    def write_thresholds(**args: Any) -> None:
        config = [{"name": "LowNodeLoad", "args": args}]
        tree = {
            "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
            "profiles": [{"pluginConfig": config}],
        }  # fmt: skip
        write_policy(plane, name, koord_descheduler_config=tree)

    async def in_force(*expected: float | None, seconds: float = 30) -> None:
        async def is_so() -> bool:
            records = await node_records(settings)
            policies = [record.hot_nodes for _, record in sorted(records.items())]
            high = [policy and policy.high_percent["cpu"] for policy in policies]
            return high == [*expected]

        await until(is_so, seconds)

    gold = {"name": "gold", "nodeSelector": {"matchLabels": {"pool": "gold"}}}
    with Role("watcher", settings) as watcher:
        await in_force(None, None)
        write_thresholds(
            highThresholds={"cpu": 75}, nodePools=[gold | {"highThresholds": {"cpu": 90}}]
        )
        await in_force(75, 90, seconds=10)
        bad = gold | {"highThresholds": {"cpu": -1}}
        write_thresholds(highThresholds={"cpu": 70}, nodePools=[bad])
        await in_force(70, 90, seconds=10)
        text = "highThresholds.cpu: -1 is not a number from 0 to 1000"
        await until(lambda: text in policy_event_text(plane, name), 10)
        assert watcher.stop() == 0
    plane.kubectl("delete", "configmap", name, "-n", "koordinator-system")
    plane.kubectl("label", "node", "h1", "more=yes")

    async def is_labelled() -> bool:
        return (await node_records(settings))["h1"].labels.get("more") == "yes"

    with Role("watcher", settings):
        await until(is_labelled)
        await in_force(70, 90)
        write_thresholds()
        await in_force(None, None, seconds=10)


async def test_objects_deleted_while_no_watcher_ran_get_tombstones(
    plane: ControlPlane, settings: Settings
) -> None:
    apply(plane, node("c1"), node("c2"), *(pod(f"c{i}", cpu="100m") for i in range(6)))
    with Role("watcher", settings) as first:
        await until(lambda: in_step(plane, settings))
        with Role("watcher", settings) as second:
            await second.logs("standing by")
            first.kill()
            delete(plane, "pod", "c0", "c1")
            delete(plane, "node", "c2")
            apply(plane, pod("c7", cpu="100m"))
            await until(lambda: in_step(plane, settings), 120)
            assert second.stop() == 0
    delete(plane, "pod", "c2", "c3")
    apply(plane, node("c3"))
    with Role("watcher", settings):
        await until(lambda: in_step(plane, settings), 120)


class SkippingClock(SystemClock):
    """A clock that `skip` sets ahead: time passes at once, for those who sleep, too."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def skip(self, seconds: float) -> None:
        self._ahead += seconds

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead

    async def sleep(self, seconds: float) -> None:
        end = self.monotonic() + seconds
        await super().sleep(0)
        while (left := end - self.monotonic()) > 0:
            await super().sleep(min(left, 0.1))


async def test_the_deletion_of_most_nodes_is_confirmed_a_minute_later(
    plane: ControlPlane, settings: Settings, project: Path, tmp_path: Path
) -> None:
    name = settings.kubernetes.config_name
    rules = (project / "deploy/chart/rbac" / "watcher.yaml").read_text()
    plane.kubectl("apply", "-f", "-", stdin=rules.replace("slo-controller-config", name))
    account = service_account_token(plane, "springtide-watcher", tmp_path / "kubeconfig")
    nodes = [f"e{number}" for number in range(6)]
    apply(plane, *map(node, nodes))
    with Role("watcher", settings) as first:
        await until(lambda: in_step(plane, settings))
        assert first.stop() == 0
    delete(plane, "node", *nodes[1:])
    kubernetes = KubernetesSettings(kubeconfig=account, config_name=name)
    clock = SkippingClock()
    async with open_api(kubernetes, clock) as api:
        watching = asyncio.create_task(
            watch_cluster(
                api, Settings(kafka=settings.kafka, kubernetes=kubernetes), clock, Readiness()
            )
        )
        try:
            events = ("get", "events", "-n", "springtide-system", "-o", "wide")

            async def is_doubted() -> bool:
                return "DoubtfulList" in await asyncio.to_thread(plane.kubectl, *events)

            async def is_confirmed() -> bool:
                # A request that is made late by the skip restarts the watcher, which doubts anew.
                clock.skip(CONFIRM_SECONDS)
                await asyncio.sleep(5)
                return await in_step(plane, settings)

            await until(is_doubted, 120)
            assert set(nodes) <= (await node_records(settings)).keys()
            await until(is_confirmed, 240)
        finally:
            await cancel_tasks(watching)


async def test_the_service_account_may_do_what_the_watcher_needs_and_no_more(
    plane: ControlPlane, settings: Settings, project: Path, tmp_path: Path
) -> None:
    name = settings.kubernetes.config_name
    rules = (project / "deploy/chart/rbac" / "watcher.yaml").read_text()
    plane.kubectl("apply", "-f", "-", stdin=rules.replace("slo-controller-config", name))
    account = service_account_token(plane, "springtide-watcher", tmp_path / "kubeconfig")
    kubernetes = KubernetesSettings(kubeconfig=account, config_name=name)
    write_policy(plane, name, colocation_config='{"enable": 1}')
    ratio = {"node.koordinator.sh/cpu-reclaim-ratio": "much"}
    apply(plane, node("d1", labels=ratio), pod("d1", cpu="100m"))
    with Role("watcher", Settings(kafka=settings.kafka, kubernetes=kubernetes)) as watcher:
        await until(lambda: in_step(plane, settings))
        await until(lambda: policy_event_text(plane, name))
        write_policy(plane, name, colocation_config={"enable": True})
        await until(lambda: event_text(plane, "d1"))
        await until(lambda: in_step(plane, settings))
        assert watcher.stop() == 0
    assert_forbidden(
        plane, account, "delete pod d1", "get pod d1", "get secrets", "get configmaps",
        "get configmaps -n koordinator-system", "label node d1 a=b",
        f"delete configmap {name} -n koordinator-system",
        "delete lease springtide-watcher -n springtide-system", "get leases -n springtide-system",
    )  # fmt: skip


async def test_a_pod_uses_its_service_account(
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
