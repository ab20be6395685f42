"""Planners with a real API server: their rights, Lease, memory and configuration."""

import json
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KubernetesSettings, Settings
from tests.cluster.objects import apply, assert_forbidden, delete, service_account
from tests.cluster.roles import Role
from tests.planner.test_planner import CONFIGURATION, Cluster
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(600)]

NAME = "koord-descheduler-config"
"""The only ConfigMap that deploy/chart/rbac lets a planner read."""


async def test_a_standby_takes_over_a_killed_planner_and_its_memory(
    plane: ControlPlane, settings: Settings, producer: AIOKafkaProducer, project: Path
) -> None:
    account = service_account(plane, "planner", project)
    own = Settings(kafka=settings.kafka, kubernetes=KubernetesSettings(kubeconfig=account))
    apply(plane, {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": "koordinator-system"},
        "data": {NAME: json.dumps(CONFIGURATION)},
    })  # fmt: skip
    cluster = Cluster(settings.kafka, producer)
    await cluster.node("cool", 1.0)
    await cluster.node("hot", 12.0)
    await cluster.pods("hot", a=1.0)
    with Role("planner", own) as first:
        await until(cluster.plans, 120, first.text)
        with Role("planner", own) as second:
            await second.logs("standing by")
            first.kill()
            await second.logs('"remembered_plans": 1')
            await cluster.node("late", 13.0)
            await cluster.pods("late", b=2.0)
            await cluster.node("cool", 1.0, offset=1)
            await until(lambda: is_planned(cluster, "late"), 120, second.text)
            assert sorted(plan.node for plan in await cluster.plans()) == ["hot", "late"]
            delete(plane, "configmap", NAME, "-n", "koordinator-system")
            await second.logs("LowNodeLoad is not configured")
            assert second.stop() == 0
    assert_forbidden(
        plane, account, "get pods -A", "get nodes", "get configmaps -n koordinator-system",
        "delete lease springtide-planner -n springtide-system",
    )  # fmt: skip


async def is_planned(cluster: Cluster, node: str) -> bool:
    return node in {plan.node for plan in await cluster.plans()}
