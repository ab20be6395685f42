"""Plans and limits while answers are slow, pods end slowly, and clocks jump."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from actuators.eviction.received_plans import receive
from pipeline.errors import ApiUnavailableError
from pipeline.processors.eviction.migration_policy import MigrationLimits, MigrationPolicy
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from tests.actuators.simulated_cluster import STOP, SimulatedPod, failed_with
from tests.actuators.test_relief import BARE, World
from tests.actuators.test_repeated_calls import BATCH, room_for, waiting_pod


def victims(world: World, count: int, **changes: Any) -> list[SimulatedPod]:
    return [world.cluster.add_pod("n", labels=BATCH, **changes) for _ in range(count)]


def slow_answers(world: World, slow_path: str, seconds: Callable[[int], float]) -> list[float]:
    """Let the answers to GETs of a path take a while after they were true: `seconds` gets the
    number of the request. Returns the times of these requests."""
    answer, times = world.cluster.request, list[float]()

    async def request(method: str, path: str, **more: Any) -> bytes:
        try:
            return await answer(method, path, **more)
        finally:
            if (method, path) == ("GET", slow_path):
                times.append(world.clock.monotonic())
                await world.clock.sleep(seconds(len(times)))

    world.cluster.request = request  # type: ignore[method-assign]
    return times


@pytest.mark.parametrize(("valid_seconds", "evicted"), [(240.0, 3), (60.0, 0)])
async def test_pods_that_end_slowly_leave_together_or_not_at_all(
    valid_seconds: float, evicted: int
) -> None:
    """Two pods may leave a node at the same time."""
    world = World()
    plan = room_for(
        world, waiting_pod(world), *victims(world, 3, grace=90), valid_seconds=valid_seconds
    )
    await world.run(plan, seconds=250)
    assert len(world.evicted) == evicted
    if not evicted:
        assert "0 of 3 pods" in world.last_error or "2 of 3 pods" in world.last_error


async def test_no_pod_leaves_after_its_plan_has_expired() -> None:
    world = World()
    pods = victims(world, 3, grace=10, ends_after=60)
    await world.run(room_for(world, waiting_pod(world), *pods, valid_seconds=40.0), seconds=150)
    assert len(world.evicted) == 2
    assert world.last_error.startswith("Expired")


async def test_a_plan_that_expires_while_its_eviction_is_recorded_evicts_no_pod() -> None:
    world = World(policy=BARE)

    async def slowly(action: ActionRecord) -> None:
        await world.clock.sleep(8.0)
        world.log.append(action)

    world.log.write = slowly  # type: ignore[method-assign]
    plan = world.plan(world.cluster.add_pod("n"), seconds=5.0)
    assert await world.run(plan, seconds=30.0) == ["intended", "refused"]
    assert (world.evicted, world.last_error.partition(":")[0]) == ([], "Expired")


async def test_a_plan_that_is_read_late_is_refused_with_an_action() -> None:
    world = World(policy=BARE)
    plan = world.plan(world.cluster.add_pod("n"), seconds=-1.0)
    assert await world.run(plan, plan) == ["refused"]
    assert world.last_error.startswith("Late")


@pytest.mark.parametrize(("left_seconds", "outcome"), [(-50.0, "refused"), (5.0, "done")])
async def test_a_plan_ends_by_the_brokers_clock_for_an_evictor_whose_clock_is_behind(
    left_seconds: float, outcome: str
) -> None:
    world, behind = World(policy=BARE), 200.0

    async def write(action: ActionRecord) -> float:
        world.log.append(action)
        return world.clock.now() + behind

    world.log.write = write  # type: ignore[method-assign]
    appended_at = world.clock.now() + behind + left_seconds - 300.0
    plan = msgspec.structs.replace(
        world.plan(world.cluster.add_pod("n")),
        at=format_time(appended_at), valid_until=format_time(appended_at + 300.0),
    )  # fmt: skip
    await world.worker.start(receive(plan, world.clock, appended_at))
    assert await world.run() == ["intended", outcome]
    assert world.last_error.partition(":")[0] == ("Expired" if left_seconds < 0 else "")


async def test_an_old_answer_about_the_kill_switch_is_not_used() -> None:
    world = World(policy=BARE)

    def seconds(number: int) -> float:
        if number == 2:  # directly before the call
            world.cluster.is_stopped = True
            return 25.0
        return 0.0

    times = slow_answers(world, STOP, seconds)
    assert await world.run(world.plan(world.cluster.add_pod("n")), seconds=60.0) == [
        "intended", "refused",
    ]  # fmt: skip
    assert (world.evicted, len(times)) == ([], 3)
    assert "evictions are stopped" in world.last_error


async def test_a_kill_switch_that_always_answers_slowly_stops_evictions() -> None:
    world = World(policy=BARE)
    times = slow_answers(world, STOP, lambda _: 1.5)
    plan = world.plan(world.cluster.add_pod("n"))
    assert await world.run(plan, seconds=30.0) == ["refused"]
    assert (world.evicted, len(times)) == ([], 5)
    assert "kill switch" in world.last_error


async def test_a_call_is_sent_within_a_second_of_the_question_about_the_kill_switch() -> None:
    world = World(policy=BARE)
    slow_answers(world, STOP, lambda _: 0.7)
    answer, allowed = world.cluster.request, list[float]()

    async def request(
        method: str, path: str, *, connect_seconds: float | None = None, **more: Any
    ) -> bytes:
        if connect_seconds is not None:
            allowed.append(connect_seconds)
            if len(allowed) == 1:
                await world.clock.sleep(connect_seconds)
                world.cluster.is_stopped = True
                raise ApiUnavailableError("no connection", was_done=False)
        return await answer(method, path, **more)

    world.cluster.request = request  # type: ignore[method-assign]
    await world.run(world.plan(world.cluster.add_pod("n")), seconds=30.0)
    assert allowed == [pytest.approx(0.3)]
    assert world.evicted == []
    assert "evictions are stopped" in world.last_error


async def test_a_pod_is_marked_by_one_request_after_the_kill_switch() -> None:
    world = World(policy=MigrationPolicy(protections=BARE.protections, mode="SoftEviction"))
    answer, attempts = world.cluster.request, list[int | None]()

    async def request(method: str, path: str, **more: Any) -> bytes:
        if method == "PATCH":
            attempts.append(more.get("attempts"))
            if len(attempts) == 1:
                world.cluster.is_stopped = True
                raise failed_with(ApiUnavailableError("busy", was_done=False), 503)
        return await answer(method, path, **more)

    world.cluster.request = request  # type: ignore[method-assign]
    await world.run(world.plan(world.cluster.add_pod("n")), seconds=30.0)
    assert attempts == [1]
    assert "evictions are stopped" in world.last_error


@pytest.mark.parametrize("step_seconds", [7200.0, -7200.0])
async def test_a_step_of_the_wall_clock_lifts_no_limit(step_seconds: float) -> None:
    """Of 30 replicas three may leave in five minutes, one at a time."""
    world = World()
    first, second, *_ = world.cluster.add_deployment("web", 30, ["n"])
    await world.run(world.plan(first), seconds=60.0)
    world.clock.jump(step_seconds)
    await world.run(world.plan(second, seconds=20.0), seconds=30.0)
    assert world.evicted == [first.uid]
    assert world.last_error.startswith("ObjectLimiter")
    await world.run(world.plan(second, seconds=20.0), seconds=20.0)
    assert world.evicted == [first.uid, second.uid]


async def test_a_step_of_the_wall_clock_expires_no_plan() -> None:
    world = World(policy=BARE)
    plan = world.plan(*(world.cluster.add_pod("n") for _ in range(3)), seconds=60.0)
    await world.run(plan, seconds=5.0)
    world.clock.jump(7200.0)
    await world.run(seconds=40.0)
    assert len(world.evicted) == 3


async def test_the_state_of_a_workload_is_read_after_the_wait_for_the_rate() -> None:
    world = World()
    world.gate.rate.per_second = 0.1
    first, *others = world.cluster.add_deployment("web", 10, ["n"])
    first.changes["labels"] = BATCH
    plan = room_for(world, waiting_pod(world), *victims(world, 1), first)

    def unready_meanwhile(number: int) -> float:
        if world.evicted and world.clock.monotonic() > 5.0:
            for pod in others[:2]:
                pod.ready_at = float("inf")
        return 0.0

    waiting = plan.waiting
    assert waiting is not None
    path = f"/api/v1/namespaces/{waiting.namespace}/pods/{waiting.name}"
    slow_answers(world, path, unready_meanwhile)
    await world.run(plan, seconds=25.0)
    assert len(world.evicted) == 1
    assert world.last_error.startswith("MaxUnavailablePerWorkload")


def with_rate(per_second: float, burst: int = 1) -> MigrationPolicy:
    limits = MigrationLimits(evict_qps=per_second, evict_burst=burst, max_migrating_per_node=None)
    return MigrationPolicy(limits=limits, protections=BARE.protections)


async def test_an_edit_of_evictqps_is_in_force_at_once() -> None:
    world = World(policy=with_rate(1e-9))
    first, second = (world.cluster.add_pod("n") for _ in range(2))
    await world.run(world.plan(first, second, seconds=300.0), seconds=200.0)
    assert world.evicted == [first.uid]
    world.gate.take_policy(with_rate(0.1))
    await world.run(seconds=5.0)
    assert world.evicted == [first.uid, second.uid]


async def test_a_rate_that_is_lowered_during_a_wait_holds_up_no_other_plan() -> None:
    world = World(policy=with_rate(0.02))
    pods = victims(world, 3)
    await world.run(room_for(world, waiting_pod(world), pods[0]), seconds=10.0)
    plan = room_for(world, waiting_pod(world), pods[1], valid_seconds=60.0)
    working = asyncio.create_task(world.run(plan, seconds=20.0))
    await world.clock.advance(5.0)
    world.gate.take_policy(with_rate(1e-9))
    await working
    assert world.evicted == [pods[0].uid]
    assert world.last_error == "Expired: the rate of evictions leaves no time"


@pytest.mark.parametrize(("burst", "evicted"), [(1, 1), (2, 2), (9, 3)])
async def test_a_burst_of_evictions_is_as_large_as_the_policy_says(
    burst: int, evicted: int
) -> None:
    world = World(policy=with_rate(0.01, burst))
    await world.run(world.plan(*(world.cluster.add_pod("n") for _ in range(3))), seconds=20.0)
    assert len(world.evicted) == evicted


async def test_the_evictors_own_rate_has_no_burst() -> None:
    world = World(policy=with_rate(10.0, 9))
    world.gate.rate.per_second = 0.1
    await world.run(world.plan(*(world.cluster.add_pod("n") for _ in range(3))), seconds=15.0)
    assert len(world.evicted) == 2


@pytest.mark.parametrize(("burst", "outcomes"), [(2, ["refused"]), (3, ["intended", "done"] * 3)])
async def test_a_plan_that_makes_room_counts_on_the_burst(burst: int, outcomes: list[str]) -> None:
    world = World(policy=with_rate(0.01, burst))
    plan = room_for(world, waiting_pod(world), *victims(world, 3), valid_seconds=60.0)
    assert await world.run(plan, seconds=30.0) == outcomes


async def test_refused_plans_do_not_count_as_plans_of_a_pod() -> None:
    world = World()
    waiting, victim = waiting_pod(world), victims(world, 1)[0]
    protected = [
        world.cluster.add_pod("n", labels={"koordinator.sh/priority-class": "koord-prod"})
        for _ in range(3)
    ]
    plans = [room_for(world, waiting, pod) for pod in (*protected, victim)]
    await world.run(*plans, seconds=20.0)
    assert world.evicted == [victim.uid]


@pytest.mark.parametrize("mode", ["observe", "recommend"])
async def test_other_modes_say_what_the_limits_say(mode: Any) -> None:
    world = World(mode=mode)
    pods = world.cluster.add_deployment("web", 10, ["n"])
    single = world.cluster.add_deployment("one", 1, ["n"])[0]
    for pod in pods[5:7]:
        pod.ready_at = float("inf")
    await world.run(world.plan(pods[0], single))
    reasons = {str(action.outcome): action.error for action in world.log}
    outcome = "observed" if mode == "observe" else "recommended"
    assert reasons[outcome].startswith("would wait: MaxUnavailablePerWorkload")
    assert reasons["refused"].startswith("ExpectedReplicas")
    world.log.clear()
    await world.run(room_for(world, waiting_pod(world), *victims(world, 3, grace=90)))
    assert [action.outcome for action in world.log] == ["refused"]
    assert "MaxMigratingPerNode" in world.last_error
    assert world.evicted == []
