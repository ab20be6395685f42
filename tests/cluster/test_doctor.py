"""Doctor beside the real API server and broker: a policy good or broken, a watcher there or not."""

import asyncio

import pytest

from pipeline.cli.doctor_check import Check
from pipeline.cli.doctor_policy import nodes, policy
from pipeline.clock import SystemClock
from pipeline.kube.api_client import open_api
from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KubernetesSettings, Settings
from tests.cluster.objects import apply, delete, items, node, write_policy
from tests.cluster.watching import Role, in_step
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(900)]


async def look(settings: Settings) -> tuple[Check, Check]:
    def both() -> tuple[Check, Check]:
        check, given = policy(settings)
        return check, nodes(settings, given)

    return await asyncio.to_thread(both)


async def release(settings: Settings) -> None:
    """Delete the Lease: no watcher of another test leads any more."""
    path = "/apis/coordination.k8s.io/v1/namespaces/springtide-system/leases/springtide-watcher"
    async with open_api(settings.kubernetes, SystemClock()) as api:
        await api.delete(path)


async def test_policy_and_watcher_are_looked_at(plane: ControlPlane, settings: Settings) -> None:
    name = settings.kubernetes.config_name
    await release(settings)
    apply(plane, node("e1"), node("e2", labels={"pool": "gold"}))
    of_policy, of_nodes = await look(settings)
    assert (of_policy.status, of_nodes.status) == ("warn", "warn")
    assert f"no ConfigMap koordinator-system/{name}" in of_policy.found
    assert "the policy is in force on no node" in of_nodes.found
    assert of_nodes.todo == "start springtide watcher"

    write_policy(plane, name, colocation_config={"enable": True})
    with Role("watcher", settings) as watcher:
        await until(lambda: in_step(plane, settings))
        of_policy, of_nodes = await look(settings)
        assert (of_policy.status, of_nodes.status) == ("ok", "ok")
        assert "colocation is on" in of_policy.found
        assert "2 from the cluster, 0 from a file; all carry the policy; " in of_nodes.found
        assert of_nodes.found.endswith(" leads")

        write_policy(plane, name, colocation_config='{"enable": true, "degradeTimeMinutes": 0}')
        of_policy, of_nodes = await look(settings)
        assert of_policy.status == "fail"
        assert "degradeTimeMinutes is 0" in of_policy.found
        assert (of_nodes.status, "could not be compared" in of_nodes.found) == ("ok", True)
        assert watcher.stop() == 0

    # It let go of its lease; an edit that nobody follows is on no node.
    write_policy(plane, name, cpu_burst_config={"clusterStrategy": {"policy": "auto"}})
    of_policy, of_nodes = await look(settings)
    assert (of_policy.status, of_nodes.status) == ("ok", "fail")
    assert "2 of 2 do not carry the policy: e1, e2" in of_nodes.found
    assert of_nodes.todo == "start springtide watcher"
    # A watcher that leads and does not follow this ConfigMap.
    other = settings.kubernetes.config_name + "-other"
    wrong = Settings(
        kafka=settings.kafka,
        kubernetes=KubernetesSettings(kubeconfig=settings.kubernetes.kubeconfig, config_name=other),
    )
    write_policy(plane, other, colocation_config={"enable": False})
    with Role("watcher", wrong):
        await until(lambda: in_step(plane, wrong))
        _, of_nodes = await look(settings)
        assert of_nodes.status == "fail"
        assert "it may use another ConfigMap" in of_nodes.todo
    plane.kubectl("delete", "configmap", other, "-n", "koordinator-system")
    delete(plane, "node", "e1", "e2")


async def test_who_may_not_read_the_policy_is_told(plane: ControlPlane, settings: Settings) -> None:
    nobody = plane.kubeconfig("nobody", ["system:authenticated"])
    of_policy, _ = await look(
        Settings(kafka=settings.kafka, kubernetes=KubernetesSettings(kubeconfig=nobody))
    )
    assert of_policy.status == "unknown"
    assert "forbidden" in of_policy.found
    assert "configmaps" in of_policy.todo


async def test_rules_that_contradict_the_extender_are_on_an_event(
    plane: ControlPlane, settings: Settings
) -> None:
    name = settings.kubernetes.config_name
    rules = {"clusterStrategy": {"enable": True}}
    write_policy(plane, name, resource_threshold_config=rules)

    def told() -> str:
        events = items(plane, "events", "-n", "koordinator-system")
        return "".join(of["message"] for of in events if of["involvedObject"]["name"] == name)

    with Role("watcher", settings):
        await until(lambda: "the setting extender.memory_threshold_percent, which is 95" in told())
