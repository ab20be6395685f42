"""Doctor beside the real API server and broker, with valid and invalid policies."""

import asyncio

import pytest

from pipeline.cli.doctor_check import Check
from pipeline.cli.doctor_policy import check_definitions, check_nodes, check_policy
from pipeline.clock import SystemClock
from pipeline.kube.api_client import open_api
from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KubernetesSettings, Settings
from tests.cluster.objects import apply, define, node, policy_event_text, write_policy
from tests.cluster.roles import Role, in_step
from tests.crds import FOLDER
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(900)]


async def check(settings: Settings) -> tuple[Check, Check]:
    """The checks of the policy and of the nodes."""

    def both() -> tuple[Check, Check]:
        of_policy, state = check_policy(settings)
        return of_policy, check_nodes(settings, state)

    return await asyncio.to_thread(both)


async def test_doctor_checks_policy_and_watcher(plane: ControlPlane, settings: Settings) -> None:
    name = settings.kubernetes.config_name
    # A watcher of another test may have left its Lease.
    path = "/apis/coordination.k8s.io/v1/namespaces/springtide-system/leases/springtide-watcher"
    async with open_api(settings.kubernetes, SystemClock()) as api:
        await api.delete(path)
    apply(plane, node("e1"), node("e2", labels={"pool": "gold"}))
    of_policy, of_nodes = await check(settings)
    assert (of_policy.status, of_nodes.status) == ("warn", "warn")
    assert f"no ConfigMap koordinator-system/{name}" in of_policy.found
    assert "the policy is in force on no node" in of_nodes.found
    assert of_nodes.todo == "start springtide watcher"

    write_policy(plane, name, colocation_config={"enable": True})
    with Role("watcher", settings) as watcher:
        await until(lambda: in_step(plane, settings))
        of_policy, of_nodes = await check(settings)
        assert (of_policy.status, of_nodes.status) == ("ok", "ok")
        assert "colocation is on" in of_policy.found
        assert "2 from the cluster, 0 from a file; all carry the policy; " in of_nodes.found
        assert of_nodes.found.endswith(" leads")

        write_policy(plane, name, colocation_config='{"enable": true, "degradeTimeMinutes": 0}')
        of_policy, of_nodes = await check(settings)
        assert (of_policy.status, "degradeTimeMinutes is 0" in of_policy.found) == ("fail", True)
        assert (of_nodes.status, "could not be compared" in of_nodes.found) == ("ok", True)
        assert watcher.stop() == 0

    # The watcher has released its lease: no node gets this edit.
    write_policy(plane, name, cpu_burst_config={"clusterStrategy": {"policy": "auto"}})
    of_policy, of_nodes = await check(settings)
    assert (of_policy.status, of_nodes.status) == ("ok", "fail")
    assert "2 of 2 do not carry the policy: e1, e2" in of_nodes.found
    assert of_nodes.todo == "start springtide watcher"
    # The leading watcher follows another ConfigMap.
    other = name + "-other"
    wrong = Settings(
        kafka=settings.kafka,
        kubernetes=KubernetesSettings(kubeconfig=settings.kubernetes.kubeconfig, config_name=other),
    )
    write_policy(plane, other, colocation_config={"enable": False})
    with Role("watcher", wrong):
        await until(lambda: in_step(plane, wrong))
        _, of_nodes = await check(settings)
        assert (of_nodes.status, "it may use another ConfigMap" in of_nodes.todo) == ("fail", True)


async def test_a_user_who_may_not_read_the_policy_gets_a_hint(
    plane: ControlPlane, settings: Settings
) -> None:
    nobody = plane.kubeconfig("nobody", ["system:authenticated"])
    of_policy, _ = await check(
        Settings(kafka=settings.kafka, kubernetes=KubernetesSettings(kubeconfig=nobody))
    )
    assert (of_policy.status, "forbidden" in of_policy.found) == ("unknown", True)
    assert "configmaps" in of_policy.todo


async def test_kinds_that_the_api_server_does_not_serve_are_named(
    plane: ControlPlane, settings: Settings
) -> None:
    def missing() -> str:
        found = check_definitions(settings)
        return "" if found is None else f"{found.status}: {found.found}"

    async def misses(*names: str) -> bool:
        expected = f"warn: the API server does not serve {', '.join(names)}" if names else ""
        return await asyncio.to_thread(missing) == expected

    define(plane, str(FOLDER))
    await until(misses)
    plane.kubectl("delete", "crd", "nodeslos.slo.koordinator.sh")
    await until(lambda: misses("nodeslos.slo.koordinator.sh"))
    plane.kubectl("delete", "-f", str(FOLDER), "--ignore-not-found")
    await until(lambda: misses(
        "nodemetrics.slo.koordinator.sh", "nodeslos.slo.koordinator.sh",
        "clustercolocationprofiles.config.koordinator.sh",
        "podmigrationjobs.scheduling.koordinator.sh",
    ))  # fmt: skip
    nowhere = KubernetesSettings(kubeconfig=plane.kubeconfig(server="https://127.0.0.1:1"))
    assert await asyncio.to_thread(check_definitions, Settings(kubernetes=nowhere)) is None


async def test_rules_that_contradict_the_extender_cause_an_event(
    plane: ControlPlane, settings: Settings
) -> None:
    name = settings.kubernetes.config_name
    write_policy(plane, name, resource_threshold_config={"clusterStrategy": {"enable": True}})
    text = "the setting extender.memory_threshold_percent, which is 95"
    with Role("watcher", settings):
        await until(lambda: text in policy_event_text(plane, name))
