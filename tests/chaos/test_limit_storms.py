"""Every limit of evictions is needed: a real evictor without one of them exceeds it, and the
monitor of the API server's audit log names it."""

import asyncio
from pathlib import Path

import pytest

from pipeline.clock import SystemClock
from pipeline.kafka.topic_admin import apply_topics
from pipeline.kube.api_client import open_api
from pipeline.local.control_plane import ControlPlane
from pipeline.local.local_kafka import LocalKafka
from pipeline.processors.eviction import migration_limits
from pipeline.settings import KubernetesSettings
from tests.chaos.eviction_monitor import Violation
from tests.chaos.limit_storms import PODS, STORMS, LimitRun, LimitStorm, run_storm, stage_of
from tests.cluster.objects import Existing, delete_others
from tests.processes import until

Storms = dict[str, tuple[LimitStorm, tuple[str, ...]]]
"""Storms and the seeded bugs of their evictors."""

RATES = ("rate", "evictQPS")

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(600)]


async def run_all(
    plane: ControlPlane, broker: LocalKafka, folder: Path, storms: Storms
) -> dict[str, tuple[int, list[Violation]]]:
    """Run storms at the same time; by name the number of evicted pods, and what that exceeded."""
    kubernetes = KubernetesSettings(kubeconfig=plane.kubeconfig())
    tasks, all_ready = {}, asyncio.Barrier(len(storms))
    async with (
        open_api(kubernetes, SystemClock(), name="storm") as api,
        asyncio.TaskGroup() as group,
    ):
        for number, (name, (storm, bugs)) in enumerate(storms.items()):
            stage = stage_of(plane, api, broker, folder, number, storm)
            await apply_topics(stage.settings.kafka)
            run = LimitRun(stage, storm, name.lower().replace(" ", "-"))
            tasks[name] = group.create_task(run_storm(run, bugs, all_ready))
    return {name: task.result() for name, task in tasks.items()}


async def test_an_evictor_evicts_as_many_pods_as_each_limit_allows(
    plane: ControlPlane, broker: LocalKafka, permanent: Existing, tmp_path: Path
) -> None:
    assert STORMS.keys() == {*migration_limits.LIMITS, *RATES}
    storms: Storms = {name: (storm, ()) for name, storm in STORMS.items()}
    results = await run_all(plane, broker, tmp_path, storms)
    await until(lambda: delete_others(plane, permanent), 120)
    assert {name: found for name, (_, found) in results.items() if found} == {}
    # With a slow rate as many as there is time for.
    evicted = {name: count for name, (count, _) in results.items() if name not in RATES}
    assert evicted == {name: STORMS[name].allowed for name in evicted}


async def test_without_any_single_limit_the_monitor_names_that_limit(
    plane: ControlPlane, broker: LocalKafka, permanent: Existing, tmp_path: Path
) -> None:
    storms: Storms = {name: (storm, (f"without {name}",)) for name, storm in STORMS.items()}
    storms |= {name: (STORMS[name], ("evictions_unlimited",)) for name in RATES}
    storms["UID"] = (LimitStorm(PODS), ("evictions_by_name",))
    storms["record"] = (LimitStorm(PODS), ("intentions_unrecorded",))
    results = await run_all(plane, broker, tmp_path, storms)
    await until(lambda: delete_others(plane, permanent), 120)
    named = {name: {violation.limit for violation in found} for name, (_, found) in results.items()}
    assert named == {name: {name} for name in storms}, results
