"""An upgrade and a rollback of the chart while windows flow.

Workers, watcher and actuator are processes that stand in for their containers: the real Helm, API
server and controllers replace the pods, KWOK takes them for running, and `pod_processes` does what
a kubelet would.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from pipeline.clock import SystemClock
from pipeline.kube.api_client import Api, open_api
from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.local.local_kafka import LocalKafka
from pipeline.processors.overcommit.status_patch import read_amounts
from pipeline.settings import KubernetesSettings, variable_name
from tests.chaos.load import WINDOW_SECONDS
from tests.chaos.run import allowed_offers
from tests.chaos.world import create_objects
from tests.deploy.helm import CHART, DEFAULT_ROLES, NAMESPACE, run_helm, with_values
from tests.deploy.pod_processes import PodProcesses
from tests.processes import hears_sigterm, until
from tests.system import oracle
from tests.system.harness import Stage, create_stage, feed, gather, wait_for_results

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(900)]

ROLES: Final = ("worker", "watcher", "actuator")
_NODES: Final = 4
_OFFERS_SECONDS: Final = 0.5

Amounts = tuple[int, ...]


def values_of(stage: Stage) -> list[str]:
    """The values of the release: its topics and policy, and no role but `ROLES`."""
    others = {"node-actuator": "nodeActuator"}
    kafka, worker, model = stage.settings.kafka, stage.settings.worker, stage.model
    values = (
        *(f"{others.get(role, role)}.enabled=false" for role in DEFAULT_ROLES if role not in ROLES),
        "topics.apply=false", "watcher.replicas=1", "actuator.replicas=1",
        f"settings.kafka.bootstrap_servers={kafka.bootstrap_servers}",
        f"settings.kafka.topic_prefix={kafka.topic_prefix}",
        f"settings.kafka.partitions={kafka.partitions}",
        "settings.kubernetes.config_namespace=koordinator-system",
        f"settings.kubernetes.config_name={stage.prefix}",
        f"settings.worker.id={worker.id}",
        f"settings.worker.session_timeout_seconds={worker.session_timeout_seconds:.0f}",
        f"settings.worker.checkpoint_interval_seconds={worker.checkpoint_interval_seconds:.0f}",
        f"settings.model.expiration_seconds={model.expiration_seconds:.0f}",
        f"settings.model.horizon_seconds={model.horizon_seconds:.0f}",
        f"settings.model.accuracy_interval_seconds={model.accuracy_interval_seconds:.0f}",
        "settings.actuator.mode=act",
    )  # fmt: skip
    return with_values(values)


class Offers:
    """The amounts of Mid and Batch that each Node had, in their order."""

    def __init__(self, api: Api) -> None:
        self.of_node: dict[str, list[Amounts]] = {}
        self._api = api

    async def look(self) -> None:
        """Note what Nodes have now."""
        for node in (await self._api.get("/api/v1/nodes"))["items"]:
            amounts = tuple(read_amounts(node["status"].get("allocatable") or {}))
            noted = self.of_node.setdefault(node["metadata"]["name"], [])
            if max(amounts) > 0 and amounts not in noted[-1:]:
                noted.append(amounts)

    def count(self) -> int:
        return sum(map(len, self.of_node.values()))

    @asynccontextmanager
    async def noted(self) -> AsyncIterator[None]:
        """Look again and again while the context lasts."""

        async def look() -> None:
            while True:
                await self.look()
                await asyncio.sleep(_OFFERS_SECONDS)

        looking = asyncio.create_task(look())
        try:
            yield
        finally:
            looking.cancel()
            results = await asyncio.gather(looking, return_exceptions=True)
        for error in results:
            if isinstance(error, Exception):
                raise error


async def test_an_upgrade_and_a_rollback_with_processes_for_containers_change_no_result(
    broker: LocalKafka, tmp_path: Path
) -> None:
    stage = await create_stage(broker.bootstrap_servers, 2)
    values = values_of(stage)
    variables = {variable_name(f"{role}.metrics_port"): "0" for role in ROLES}
    with local_control_plane() as plane:
        for name in (NAMESPACE, "koordinator-system"):
            plane.kubectl("create", "namespace", name)
        load = await asyncio.to_thread(create_objects, plane, _NODES, stage.prefix)
        plane.kubectl("label", "nodes", "--all", "kubernetes.io/os=linux")
        kubernetes = KubernetesSettings(kubeconfig=plane.kubeconfig())
        processes = PodProcesses(plane, tmp_path, ROLES, variables)
        async with (
            open_api(kubernetes, SystemClock(), name="test") as api,
            processes.following(),
            feed(stage, load) as made,  # type: ignore[arg-type]
        ):
            offers = Offers(api)
            async with made.running(WINDOW_SECONDS), offers.noted():
                for change in (
                    ("install", "springtide", str(CHART), *values),
                    ("upgrade", "springtide", str(CHART), *values, "--set",
                     "settings.log.level=debug"),
                    ("rollback", "springtide"),
                ):  # fmt: skip
                    before = {*processes.running}
                    await run_in_cluster(plane, *change)
                    await all_replaced(processes, before)
                    # All processes are new, and windows have results.
                    await wait_for_results(stage)
                count = offers.count()
                await until(lambda: offers.count() > count, 120, processes.tails)
            logs = await gather(stage, made.samples, timeout=60)
    assert {(ended.role, ended.exit_code) for ended in processes.ended} == {
        (role, 0) for role in ROLES
    }
    expected = oracle.undisturbed(logs["windows"], stage.settings)
    assert oracle.sample_problems(logs, made.samples, frozenset()) == []
    assert oracle.applied_twice(logs, expected) == []
    assert oracle.differences(logs, expected) == []
    assert not any(logs["dead-letters"].values())
    allowed: dict[str, set[Amounts]] = {}
    for offer in allowed_offers(logs):
        allowed.setdefault(offer.node, set()).add(offer.amounts)
    for node, noted in offers.of_node.items():
        assert {*noted} <= allowed.get(node, set()), node


async def run_in_cluster(plane: ControlPlane, *arguments: str) -> None:
    await asyncio.to_thread(
        run_helm, *arguments, "--namespace", NAMESPACE, "--wait", "--timeout", "5m",
        kubeconfig=plane.kubeconfig(),
    )  # fmt: skip


async def all_replaced(processes: PodProcesses, before: set[str]) -> None:
    """Wait until each pod of the release has a process that runs, and none is of `before`. One that
    has only begun to start would end by SIGTERM without a word."""

    def are_replaced() -> bool:
        roles: list[Any] = [process.role for process in processes.running.values()]
        is_whole = sorted(roles) == ["actuator", "watcher", "worker", "worker"]
        return (
            is_whole
            and before.isdisjoint(processes.running)
            and all(hears_sigterm(process.pid) for process in processes.running.values())
        )

    await until(are_replaced, 180, processes.tails)
