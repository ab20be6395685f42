"""Hot nodes from end to end: recorded usage opens alerts, a planner plans, an evictor evicts, the
real scheduler binds the replacement by our extender, the alert closes, and the plan has helped."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.settings import Settings
from pipeline.topics.actions import ActionRecord
from pipeline.topics.alerts import AlertRecord
from pipeline.topics.codec import Record, decode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.registry import ACTIONS, ALERTS, EVICTION_PLANS, NODES, Topic
from tests.broker import latest, messages
from tests.cluster.exporters import SERIES, STEPS, Exporters
from tests.cluster.extender_cluster import Cluster, config_flags, scheduler_config
from tests.cluster.objects import apply, deployment, items, node, write_policy
from tests.cluster.roles import Role, worker, worker_in_step
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

Value = TypeVar("Value", bound=Record)
WINDOW_SECONDS = 5
HISTORY = 60
"""Windows before the test: the span of five minutes over which usage is averaged."""
CORES = 12.0
"""Mean usage of a pod: two make a node of 32 cores hot, one does not."""
MOVES, STAYS = "s10", "s14"
"""Deployments; each pod has the recorded usage of the machine with the number."""
POLICY = {
    "apiVersion": "descheduler/v1alpha2",
    "kind": "DeschedulerConfiguration",
    "deschedulingInterval": "10s",
    "profiles": [
        {
            "name": "hot-nodes",
            "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
            "pluginConfig": [
                {
                    "name": "LowNodeLoad",
                    "args": {
                        "highThresholds": {"cpu": 65, "memory": 90},
                        "lowThresholds": {"cpu": 45, "memory": 80},
                        "anomalyCondition": {
                            "consecutiveAbnormalities": 3, "consecutiveNormalities": 2,
                        },
                    },
                },
                {
                    "name": "MigrationController",
                    "args": {"maxMigratingPerWorkload": 1, "maxUnavailablePerWorkload": 1},
                },
            ],
        }
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def asking_plane() -> Iterator[ControlPlane]:
    with local_control_plane(scheduler=scheduler_config({})) as plane:
        plane.kubectl("create", "namespace", "springtide-system")
        plane.kubectl("create", "namespace", "koordinator-system")
        yield plane


def usage(pod: str, step: int) -> tuple[float, float]:
    """Cores and bytes of a pod: the recorded series, made so large that its mean is `CORES`."""
    series = SERIES[int(pod.partition("-")[0].removeprefix("s"))]["cpu_millicores"]
    return CORES * series[step % STEPS] * STEPS / sum(series), 4 * 2.0**30


async def records(cluster: Cluster, topic: Topic, kind: type[Value]) -> list[Value]:
    found = await messages(cluster.settings.kafka, topic)
    return [decode_json(kind, each.value) for each in found if each.value is not None]


async def alerts(cluster: Cluster, node_name: str) -> list[str]:
    """The changes of the alerts of a node, each as transition and reason."""
    return [
        " ".join(filter(None, (alert.rule, alert.transition, alert.reason)))
        for alert in await records(cluster, ALERTS, AlertRecord)
        if getattr(alert, "node", "") == node_name
    ]


def pods_of(cluster: Cluster, name: str) -> dict[str, str]:
    """The node of each pod of a Deployment that runs, by UID."""
    return {
        pod["metadata"]["uid"]: pod["spec"]["nodeName"]
        for pod in items(cluster.plane, "pods", "-l", f"app={name}")
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


async def run_on(cluster: Cluster, name: str, node_name: str) -> dict[str, str]:
    """Run two pods of a Deployment on a new node, while it is the only one that takes pods."""
    apply(cluster.plane, node(node_name, cpu="32", memory="128Gi"))
    apply(cluster.plane, deployment(name, 2, cpu="4", memory="8Gi"))
    await until(lambda: len(pods_of(cluster, name)) == 2, 120)
    cluster.plane.kubectl("cordon", node_name)
    return pods_of(cluster, name)


async def test_a_hot_node_is_relieved_once_and_one_with_a_budget_of_none_is_not(
    cluster: Cluster, tmp_path: Path
) -> None:
    settings = cluster.settings
    policy = {settings.kubernetes.descheduler_config_name: json.dumps(POLICY)}
    write_policy(cluster.plane, settings.kubernetes.descheduler_config_name, **policy)
    apply(cluster.plane, {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": STAYS},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": STAYS}}},
    })  # fmt: skip
    profile: dict[str, Any] = {
        "plugins": {"multiPoint": {"enabled": [{"name": "LoadAwareScheduling"}]}}
    }
    with worker(settings):
        async with cluster.watched_extender(*config_flags(tmp_path, profile)):
            before = {name: await run_on(cluster, name, f"of-{name}") for name in (MOVES, STAYS)}
            apply(cluster.plane, *(node(f"cool-{n}", cpu="32", memory="128Gi") for n in range(2)))
            cluster.plane.kubectl("uncordon", f"of-{MOVES}", f"of-{STAYS}")
            await until(lambda: have_thresholds(settings, 4), 120)
            await until(lambda: worker_in_step(settings), 120)
            exporters = Exporters(
                cluster.plane, settings.kafka, windows=HISTORY, window_seconds=WINDOW_SECONDS,
                usage=usage,
            )  # fmt: skip
            await exporters.send(HISTORY)
            sending = asyncio.create_task(exporters.run())
            try:
                await assert_relief(cluster, before)
            finally:
                sending.cancel()


async def have_thresholds(settings: Settings, count: int) -> bool:
    """Whether the records of so many nodes have thresholds."""
    found = (await latest(settings.kafka, NODES)).values()
    return [b'"hot_nodes"' in value for value in found] == [True] * count


async def assert_relief(cluster: Cluster, before: dict[str, dict[str, str]]) -> None:
    moves, stays = f"of-{MOVES}", f"of-{STAYS}"

    async def has_alert(node_name: str, change: str) -> bool:
        return change in await alerts(cluster, node_name)

    for node_name in (moves, stays):
        await until(lambda name=node_name: has_alert(name, "node_cpu opened"), 120)
    with (
        Role("planner", cluster.settings),
        Role("evictor", cluster.settings, "--mode", "act", "--evictions-per-minute", "60"),
    ):
        await until(lambda: {*pods_of(cluster, MOVES).values()} != {moves}, 240)
        await until(lambda: len(pods_of(cluster, MOVES)) == 2, 120)
        await until(lambda: has_alert(moves, "node_cpu closed cooled"), 300)
        plans = await records(cluster, EVICTION_PLANS, EvictionPlanRecord)
        assert {plan.node for plan in plans} == {moves, stays}
        await until(lambda: refusals(cluster, stays), 400)
        await until(lambda: outcomes(cluster, moves), 400)
    assert "disruption" in str(await refusals(cluster, stays))
    after = pods_of(cluster, MOVES)
    assert sorted(after.values())[0].startswith("cool-")
    assert len(before[MOVES].keys() & after.keys()) == 1
    assert pods_of(cluster, STAYS) == before[STAYS]
    assert await alerts(cluster, stays) == ["node_cpu opened"]
    evictions = [a.outcome for a in await actions(cluster, moves) if a.actuator == "evictor"]
    assert evictions == ["intended", "done"]
    assert await outcomes(cluster, moves) == ["the node cooled, and no target got hot"]
    assert await outcomes(cluster, stays) == []


async def actions(cluster: Cluster, node_name: str) -> list[ActionRecord]:
    found = await records(cluster, ACTIONS, ActionRecord)
    return [action for action in found if action.node == node_name]


async def refusals(cluster: Cluster, node_name: str) -> list[str]:
    """Why no pod of a node was evicted."""
    found = await actions(cluster, node_name)
    return [action.error for action in found if action.outcome == "refused"]


async def outcomes(cluster: Cluster, node_name: str) -> list[str]:
    """The planner's verdicts about plans of a node."""
    found = await actions(cluster, node_name)
    return [action.why for action in found if action.actuator == "planner"]
