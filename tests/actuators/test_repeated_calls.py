"""Evictions whose call is repeated, and plans that make room, with a simulated cluster."""

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.errors import ApiUnavailableError, KubernetesError, NotFoundError
from pipeline.times import format_time
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod, WaitingPod
from tests.actuators.simulated_cluster import SimulatedPod, failed_with
from tests.actuators.test_relief import BARE, World

BATCH = {"koordinator.sh/priority-class": "koord-batch"}
PROD = {"koordinator.sh/priority-class": "koord-prod"}


def unavailable(retry_after_seconds: float | None = None) -> KubernetesError:
    error = ApiUnavailableError("busy", retry_after_seconds=retry_after_seconds, was_done=False)
    return failed_with(error, 503)


def fail_evictions(world: World, failure: Callable[[int], Exception | None]) -> list[float]:
    """Let evictions fail: `failure` gets the number of the call. Returns the times of calls."""
    answer, began, times = world.cluster.request, world.clock.now(), list[float]()

    async def request(method: str, path: str, *, body: Any = None, **more: Any) -> Any:
        if path.endswith("/eviction") and "dryRun" not in body["deleteOptions"]:
            times.append(world.clock.now() - began)
            if (error := failure(len(times))) is not None:
                raise error
        return await answer(method, path, body=body, **more)

    world.cluster.request = request  # type: ignore[method-assign]
    return times


def room_for(
    world: World, waiting: SimulatedPod, *pods: SimulatedPod, valid_seconds: float = 30.0
) -> EvictionPlanRecord:
    now = world.clock.now()
    return EvictionPlanRecord(
        node=pods[0].node, id=f"room-{pods[0].uid}", at=format_time(now),
        valid_until=format_time(now + valid_seconds), planner="extender", why="room",
        pods=tuple(LeavingPod(uid=pod.uid, pod_class="batch") for pod in pods),
        waiting=WaitingPod(namespace="d", name=waiting.name, uid=waiting.uid, priority=9500),
    )  # fmt: skip


def waiting_pod(world: World) -> SimulatedPod:
    return world.cluster.add_pod("", labels=PROD, priority=9500)


async def test_a_server_that_asks_for_no_pause_gets_a_few_calls() -> None:
    world = World(policy=BARE)
    times = fail_evictions(world, lambda _: unavailable(0.0))
    assert await world.run(world.plan(world.cluster.add_pod("n")), seconds=90) == [
        "intended", "failed",
    ]  # fmt: skip
    assert 2 < len(times) <= 31
    assert times[-1] <= 31


async def test_calls_that_time_out_are_repeated_for_half_a_minute() -> None:
    world = World(policy=BARE)
    answer, times = world.cluster.request, list[float]()

    async def request(method: str, path: str, *, body: Any = None, **more: Any) -> Any:
        if path.endswith("/eviction") and "dryRun" not in body["deleteOptions"]:
            times.append(world.clock.now())
            await world.clock.sleep(20.0)
            raise ApiUnavailableError("no answer")
        return await answer(method, path, body=body, **more)

    world.cluster.request = request  # type: ignore[method-assign]
    await world.run(world.plan(world.cluster.add_pod("n")), seconds=300)
    assert len(times) == 2
    assert world.log[-1].outcome == "failed"


async def test_a_call_is_not_repeated_for_a_pod_that_no_longer_waits() -> None:
    world = World()
    waiting = waiting_pod(world)

    def bound_meanwhile(_: int) -> Exception:
        waiting.node = "other"
        return unavailable(25.0)

    times = fail_evictions(world, bound_meanwhile)
    victim = world.cluster.add_pod("n", labels=BATCH)
    await world.run(room_for(world, waiting, victim), seconds=60)
    assert len(times) == 1
    assert world.last_error.startswith("no pod waits: it is on other; ")


async def test_a_proxys_404_is_no_eviction() -> None:
    world = World(policy=BARE)
    not_found = failed_with(NotFoundError("404 page not found", reason=""), 404)
    fail_evictions(world, lambda number: not_found if number == 1 else None)
    pod = world.cluster.add_pod("n")
    assert await world.run(world.plan(pod), seconds=30) == ["intended", "done"]
    assert world.evicted == [pod.uid]


@pytest.mark.parametrize("count", [1, 2])
async def test_pods_of_one_workload_leave_in_one_plan(count: int) -> None:
    world = World()
    siblings = world.cluster.add_deployment("b", 20, ["n"])[:count]
    for pod in siblings:
        pod.changes["labels"] = BATCH
    await world.run(room_for(world, waiting_pod(world), *siblings), seconds=60)
    assert world.evicted == [pod.uid for pod in siblings]


async def test_no_pod_leaves_if_another_one_would_only_be_marked() -> None:
    world = World()
    victim = world.cluster.add_pod("n", labels=BATCH)
    soft = world.cluster.add_pod(
        "n", labels=BATCH | {"koordinator.sh/evict-policy": "SoftEviction"}
    )
    await world.run(room_for(world, waiting_pod(world), victim, soft))
    assert world.evicted == []
    assert "SoftEviction" in world.last_error
