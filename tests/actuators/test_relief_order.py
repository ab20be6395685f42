"""Pods of relief plans: pauses that servers ask for, gates, and which pod comes first."""

from typing import Any

import pytest

from pipeline.errors import ApiUnavailableError, KubernetesError
from pipeline.processors.eviction.migration_policy import (
    Gate,
    MigrationLimits,
    MigrationPolicy,
    ObjectLimiter,
    Protections,
)
from tests.actuators.simulated_cluster import SimulatedPod, failed_with
from tests.actuators.test_relief import BARE, SOFT, World
from tests.actuators.test_repeated_calls import fail_evictions, unavailable

OFF = ObjectLimiter(duration_seconds=0.0)


def budget_says(retry_after_seconds: float) -> KubernetesError:
    error = ApiUnavailableError("none", retry_after_seconds=retry_after_seconds, was_done=False)
    return failed_with(error, 429, "DisruptionBudget")


@pytest.mark.parametrize("seconds", [40.0, 55.0])
async def test_a_pod_waits_as_long_as_a_budget_asks_for(seconds: float) -> None:
    world = World(policy=BARE)
    times = fail_evictions(world, lambda number: budget_says(seconds) if number == 1 else None)
    pod = world.cluster.add_pod("n")
    await world.run(world.plan(pod, seconds=280.0), seconds=100.0)
    assert len(times) == 2
    assert seconds <= times[1] - times[0] <= seconds + 5.0
    assert world.evicted == [pod.uid]


async def test_a_call_is_repeated_after_the_pause_that_the_server_asks_for() -> None:
    world = World(policy=BARE)
    times = fail_evictions(world, lambda number: unavailable(17.0) if number == 1 else None)
    pod = world.cluster.add_pod("n")
    assert await world.run(world.plan(pod), seconds=40.0) == ["intended", "done"]
    assert times[1] - times[0] >= 17.0


async def test_a_pod_waits_as_long_as_the_trial_without_effect_asks_for() -> None:
    world, trials = World(policy=BARE), list[float]()
    answer = world.cluster.request

    async def request(method: str, path: str, *, body: Any = None, **more: Any) -> Any:
        if path.endswith("/eviction") and "dryRun" in body["deleteOptions"]:
            trials.append(world.clock.monotonic())
            if len(trials) == 1:
                raise unavailable(50.0)
        return await answer(method, path, body=body, **more)

    world.cluster.request = request  # type: ignore[method-assign]
    pod = world.cluster.add_pod("n")
    await world.run(world.plan(pod, seconds=280.0), seconds=80.0)
    assert world.evicted == [pod.uid]
    assert trials[1] - trials[0] >= 50.0


async def test_pods_that_the_controller_has_still_to_create_are_unavailable() -> None:
    """Of 10 replicas two may be unavailable."""
    world = World()
    pods = world.cluster.add_deployment("web", 10, ["n"])
    for pod in pods[:2]:
        del world.cluster.pods[pod.uid]
    await world.run(world.plan(pods[5], seconds=20.0), seconds=25.0)
    assert world.evicted == []
    assert world.last_error.startswith("MaxUnavailablePerWorkload: 2 pods")
    world.cluster.add_pod("n", deployment="web")
    await world.run(world.plan(pods[5], seconds=20.0), seconds=25.0)
    assert world.evicted == [pods[5].uid]


async def test_a_marked_pod_is_not_marked_by_another_plan() -> None:
    world = World(policy=SOFT)
    pod = world.cluster.add_pod("n")
    await world.run(world.plan(pod))
    assert await world.run(world.plan(pod)) == ["intended", "marked", "refused"]
    assert world.last_error == "Repeated: another plan evicts the pod"


GATES: dict[Gate, dict[str, Any]] = {
    "MaxMigratingGlobally": {"max_migrating_globally": 1},
    "MaxMigratingPerNode": {"max_migrating_per_node": 1},
    "MaxMigratingPerNamespace": {"max_migrating_per_namespace": 1},
    "MaxMigratingPerWorkload": {"max_migrating_per_workload": 1},
    "MaxUnavailablePerWorkload": {"max_unavailable_per_workload": 1},
}
OPEN: dict[str, Any] = {
    "max_migrating_per_node": None, "workload_limiter": OFF, "max_migrating_per_workload": 9,
    "max_unavailable_per_workload": 9,
}  # fmt: skip


@pytest.mark.parametrize("gate", GATES)
async def test_each_gate_of_a_count_can_be_skipped_and_is_named(gate: Gate) -> None:
    def world(*skipped: Gate) -> tuple[World, list[SimulatedPod]]:
        limits = MigrationLimits(**(OPEN | GATES[gate]))
        world = World(policy=MigrationPolicy(limits=limits, skipped_gates=frozenset(skipped)))
        return world, world.cluster.add_deployment("web", 20, ["n"])

    held, pods = world()
    await held.run(held.plan(*pods[:2], seconds=15.0), seconds=16.0)
    assert len(held.evicted) == 1
    assert held.last_error.startswith(f"{gate}: ")
    free, pods = world(gate)
    await free.run(free.plan(*pods[:2], seconds=15.0), seconds=16.0)
    assert len(free.evicted) == 2
    assert free.log[-1].skipped == (gate,)


async def test_pods_of_a_batch_job_that_moves_come_first() -> None:
    policy = MigrationPolicy(
        protections=Protections(),
        limits=MigrationLimits(**OPEN),
        skipped_gates=frozenset(
            {"ExpectedReplicas", "MaxMigratingPerWorkload", "MaxUnavailablePerWorkload"}
        ),
    )
    world = World(policy=policy)

    def pod_of(job: str, pod_class: str) -> SimulatedPod:
        owner = {"kind": "Job", "name": job, "apiVersion": "batch/v1", "controller": True}
        labels = {"koordinator.sh/priority-class": pod_class}
        return world.cluster.add_pod("n", labels=labels, owners=[owner], grace=200)

    moves, sibling = pod_of("moves", "koord-batch"), pod_of("moves", "koord-batch")
    cheaper = pod_of("rests", "koord-free")
    await world.run(world.plan(moves), seconds=3.0)
    await world.run(world.plan(cheaper, sibling), seconds=10.0)
    assert world.evicted == [moves.uid, sibling.uid, cheaper.uid]
