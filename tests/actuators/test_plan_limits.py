"""Plans are limited per pod, also by the actions of a former leader."""

import asyncio
from typing import Any

import pytest

from actuators.eviction.plan_limits import PLANS_OF_A_POD, PlanLimits
from actuators.eviction.received_plans import ReceivedPlan, receive
from actuators.rate_limit import RateLimit
from pipeline.clock import ManualClock
from pipeline.processors.placement.victim_selection import SETTLE_SECONDS
from pipeline.times import format_time, parse_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.eviction_plans import EvictionPlanRecord, WaitingPod

NOW = 1_700_000_000.0


def record(plan_id: str, at: float, valid_until: float, waiting: str = "w") -> EvictionPlanRecord:
    return EvictionPlanRecord(
        node="n", id=plan_id, at=format_time(at), valid_until=format_time(valid_until),
        planner="test", why="", pods=(),
        waiting=WaitingPod(namespace="default", name="w", uid=waiting, priority=9500),
    )  # fmt: skip


def plan(plan_id: str, at: float = NOW, waiting: str = "w") -> ReceivedPlan:
    return ReceivedPlan(record(plan_id, at, at + 30, waiting), at, at + 30)


def action(plan_id: str, outcome: Any, **changes: Any) -> ActionRecord:
    values = {"actuator": "evictor", "action": "evict", "why": "", "plan": plan_id, "waiting": "w"}
    return ActionRecord(node="n", at=format_time(NOW), outcome=outcome, **(values | changes))


@pytest.mark.parametrize(
    ("made", "valid_until", "appended", "seconds"),
    [
        (0, 30, None, 30), (-10, 20, -10, 20), (-10, 20, None, 20), (-60, -30, None, -30),
        # The planner's clock is ahead, behind, or claims too much.
        (250, 280, 0, 30), (250, 280, -20, 10), (250, 280, None, 30), (-20, 10, 0, 10),
        (0, 9000, 0, 300), (-9000, 9000, 0, -8700), (9000, 9030, 0, 0), (0, -30, 0, -30),
        # The evictor's clock is behind that of planner and broker.
        (100, 130, 100, 30),
    ],
)  # fmt: skip
def test_a_plan_is_valid_by_the_clocks_of_planner_and_broker(
    made: float, valid_until: float, appended: float | None, seconds: float
) -> None:
    clock = ManualClock(NOW, monotonic=1000.0)
    times = record("p", NOW + made, NOW + valid_until)
    received = receive(times, clock, None if appended is None else NOW + appended)
    assert received.expires_at == 1000.0 + seconds
    assert received.made_at == 1000.0 + min(made, 0.0 if appended is None else appended, 0.0)


def test_a_plan_is_started_once() -> None:
    limits = PlanLimits()
    assert limits.start(plan("p"), NOW) is None
    assert limits.start(plan("p"), NOW) == "repeated"
    assert limits.start(plan("late"), NOW + 30) == "late"
    assert limits.start(plan("late"), NOW + 30) == "repeated"


def test_a_pod_gets_a_few_plans_and_time_after_each() -> None:
    limits = PlanLimits()
    for number in range(PLANS_OF_A_POD):
        at = NOW + number * SETTLE_SECONDS
        assert limits.start(plan(f"p{number}", at), at) is None
        limits.tried(plan(f"p{number}", at).plan)
        limits.made_room(plan(f"p{number}", at).plan, at)
        assert limits.start(plan(f"early{number}", at + 1), at + 1) in ("early", "too_many")
    at = NOW + PLANS_OF_A_POD * SETTLE_SECONDS
    assert limits.start(plan("more", at), at) == "too_many"
    assert limits.start(plan("other", at, waiting="x"), at) is None


@pytest.mark.parametrize("outcome", ["intended", "done"])
def test_a_new_leader_knows_what_the_former_one_evicted(outcome: str) -> None:
    limits = PlanLimits()
    limits.learn(action("p", outcome), NOW)
    assert limits.start(plan("p"), NOW) == "repeated"
    assert limits.start(plan("q", NOW + 1), NOW + 1) == "early"
    later = NOW + SETTLE_SECONDS
    assert limits.start(plan("r", later), later) is None


@pytest.mark.parametrize(("outcome", "expected"), [("intended", "too_many"), ("refused", None)])
def test_a_new_leader_counts_the_plans_of_the_former_one_that_evicted(
    outcome: str, expected: str | None
) -> None:
    limits = PlanLimits()
    for number in range(PLANS_OF_A_POD):
        limits.learn(action(f"p{number}", outcome), NOW - 600)
        # A plan has an action for each of its pods.
        limits.learn(action(f"p{number}", outcome), NOW - 600)
        assert number or limits.start(plan("q0"), NOW) is None
    assert limits.start(plan("q"), NOW) == expected
    assert limits.start(plan("p0"), NOW) == "repeated"


def test_actions_of_the_cluster_actuator_are_ignored() -> None:
    limits = PlanLimits()
    limits.learn(action("p", "done", actuator="cluster"), NOW)
    assert limits.start(plan("p"), NOW) is None


async def test_the_pace_continues_after_an_eviction_of_a_former_leader() -> None:
    clock = ManualClock()
    rate = RateLimit(0.1, clock)
    # The clock of the former leader may be ahead.
    rate.happened(seconds_ago=parse_time(format_time(NOW)) - NOW - 5)
    waited = []

    async def wait() -> None:
        await rate.wait()
        waited.append(clock.monotonic())

    task = asyncio.create_task(wait())
    await clock.advance(11)
    await task
    assert waited == [10]
