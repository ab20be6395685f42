"""The options of evictions that a policy sets."""

import json
from typing import Any

import pytest

from pipeline.processors.eviction.migration_policy import (
    EvictionMode,
    EvictionOptions,
    MigrationPolicy,
)
from tests.actuators.simulated_cluster import SimulatedPod
from tests.actuators.test_plan_times import victims
from tests.actuators.test_relief import BARE, World
from tests.actuators.test_repeated_calls import room_for, waiting_pod


def with_options(mode: EvictionMode = "Eviction", **options: Any) -> World:
    return World(
        policy=MigrationPolicy(
            protections=BARE.protections, mode=mode, delete_options=EvictionOptions(**options)
        )
    )


async def bodies(world: World, pod: SimulatedPod) -> list[Any]:
    """The options of all evictions while a plan for the pod is executed."""
    answer, options = world.cluster.request, list[Any]()

    async def request(method: str, path: str, *, body: Any = None, **more: Any) -> Any:
        if path.endswith("/eviction"):
            options.append(body["deleteOptions"])
        return await answer(method, path, body=body, **more)

    world.cluster.request = request  # type: ignore[method-assign]
    await world.run(world.plan(pod))
    return options


async def test_each_eviction_has_the_options_and_the_uid_of_its_pod() -> None:
    world = with_options(grace_period_seconds=0, propagation_policy="Background")
    pod = world.cluster.add_pod("n")
    expected = {
        "gracePeriodSeconds": 0,
        "propagationPolicy": "Background",
        "preconditions": {"uid": pod.uid},
    }
    assert await bodies(world, pod) == [{**expected, "dryRun": ["All"]}, expected]
    assert world.evicted == [pod.uid]


async def test_without_options_a_pod_has_its_own_grace_period() -> None:
    world = with_options()
    pod = world.cluster.add_pod("n")
    assert (await bodies(world, pod))[-1] == {"preconditions": {"uid": pod.uid}}


async def test_a_marked_pod_tells_its_agent_the_options() -> None:
    world = with_options("SoftEviction", grace_period_seconds=7)
    pod = world.cluster.add_pod("n")
    assert await bodies(world, pod) == []
    text = pod.changes["annotations"]["scheduling.koordinator.sh/soft-eviction"]
    assert json.loads(text)["deleteOptions"] == {
        "gracePeriodSeconds": 7, "preconditions": {"uid": pod.uid}
    }  # fmt: skip


@pytest.mark.parametrize(("grace", "evicted"), [(None, 0), (5, 3)])
async def test_a_plan_that_makes_room_counts_on_the_grace_period_of_the_policy(
    grace: int | None, evicted: int
) -> None:
    """Two pods may leave a node at the same time, and their own grace period is longer."""
    world = with_options(grace_period_seconds=grace)
    pods = victims(world, 3, grace=90, ends_after=5)
    await world.run(room_for(world, waiting_pod(world), *pods, valid_seconds=60.0), seconds=70.0)
    assert len(world.evicted) == evicted
