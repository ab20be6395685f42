"""What is remembered of plans and of what became of their pods, in any order and within bounds."""

import itertools
from typing import Any

import msgspec
import pytest

from pipeline.processors.console import limits
from pipeline.processors.console.relief_document import (
    HotNode,
    KnownRelief,
    Relief,
    relief_document,
)
from pipeline.processors.console.relief_log import ReliefLog
from pipeline.times import format_time
from pipeline.topics.alerts import OpenAlert
from tests.extender.console_samples import MADE, action, plan, relief
from tests.table.records import NOW


def document(log: ReliefLog, now: float = NOW) -> Relief:
    return relief_document([], KnownRelief([], log.plans(now)))


def outcomes(log: ReliefLog, now: float = NOW) -> list[list[str | None]]:
    plans = document(log, now).plans or []
    return [[pod.outcome for pod in item.pods] for item in plans]


STEPS: list[Any] = [
    lambda log: log.take_plan(plan(), MADE, NOW),
    lambda log: log.take_action(action("intended"), MADE + 1, NOW),
    lambda log: log.take_action(action("done"), MADE + 2, NOW),
    lambda log: log.take_action(action("refused", "u1"), MADE + 3, NOW),
]


@pytest.mark.parametrize("order", [*itertools.permutations(range(4))])
def test_records_in_any_order_give_the_same_outcomes(order: tuple[int, ...]) -> None:
    log = ReliefLog()
    for step in (*order, *order):
        STEPS[step](log)
    assert outcomes(log) == [["done", "refused", None]]


def test_a_verdict_and_an_action_about_the_whole_plan_are_told_from_those_about_pods() -> None:
    (item,) = document(relief().log).plans or []
    assert (item.helped, item.verdict, item.outcome) == (True, "the node cooled", None)
    log = ReliefLog()
    log.take_plan(plan(), MADE, NOW)
    log.take_action(action("refused", "", error="too old"), MADE, NOW)
    (item,) = document(log).plans or []
    assert (item.helped, item.outcome, item.error) == (None, "refused", "too old")
    assert [pod.outcome for pod in item.pods] == [None] * 3


def test_other_actuators_and_actions_without_a_plan_are_ignored() -> None:
    log = ReliefLog()
    assert not log.take_action(action("done", actuator="cluster"), MADE, NOW)
    assert not log.take_action(action("done", plan=""), MADE, NOW)
    assert not log.take_action(action("done", plan="x" * 600), MADE, NOW)
    assert document(log).plans == []


def test_a_plan_is_forgotten_when_it_is_old() -> None:
    log = relief().log
    assert len(log.plans(MADE + limits.KEPT_SECONDS)) == 1
    assert log.plans(MADE + limits.KEPT_SECONDS + 1) == []
    assert not log.take_plan(plan("old"), NOW - limits.KEPT_SECONDS - 1, NOW)


def test_of_too_many_plans_the_newest_are_kept() -> None:
    log = ReliefLog()
    for number in range(limits.PLANS + 50):
        log.take_plan(plan(f"p{number}"), MADE + number, NOW)
    plans = document(log).plans or []
    assert len(plans) == limits.PLANS
    assert (plans[0].id, plans[-1].id) == (f"p{limits.PLANS + 49}", "p50")


def test_plans_that_others_crowded_out_are_not_taken_for_plans_that_were_not_made() -> None:
    log = ReliefLog()
    for number in range(limits.PLANS + 1):
        assert log.is_complete(NOW)
        log.take_plan(plan(f"p{number}"), MADE + number, NOW)
    assert not log.is_complete(NOW)
    assert log.is_complete(MADE + limits.KEPT_SECONDS + 1)


@pytest.mark.parametrize("is_plan_first", [False, True])
def test_actions_about_pods_that_are_not_listed_take_no_place(is_plan_first: bool) -> None:
    log, pods = ReliefLog(), 3 * limits.PODS_OF_A_PLAN
    if is_plan_first:
        log.take_plan(plan(pods=pods), MADE, NOW)
    for number in reversed(range(pods)):
        log.take_action(action("done", f"u{number}"), MADE, NOW)
    log.take_plan(plan(pods=pods), MADE, NOW)
    assert outcomes(log) == [["done"] * limits.PODS_OF_A_PLAN]


def test_a_large_plan_is_shortened_and_says_so() -> None:
    log = ReliefLog()
    log.take_plan(plan(pods=limits.PODS_OF_A_PLAN + 7, why="w" * 5000), MADE, NOW)
    for number in range(limits.PODS_OF_A_PLAN + 7):
        log.take_action(action("done", f"u{number}", error="e" * 5000), MADE, NOW)
    (item,) = document(log).plans or []
    assert (len(item.pods), item.more_pods) == (limits.PODS_OF_A_PLAN, 7)
    assert len(item.why) == len(item.pods[0].error) == limits.TEXT_CHARACTERS
    assert {pod.outcome for pod in item.pods} == {"done"}


def test_the_largest_document_is_below_a_megabyte() -> None:
    log = ReliefLog()
    for number in range(limits.PLANS):
        log.take_plan(plan(f"p{number}", pods=5), MADE, NOW)
    alert = OpenAlert(rule="node_cpu", severity="warning", since=format_time(MADE))
    hot = [HotNode(f"node-{number:05}", "pool", False, (alert,) * 4) for number in range(10_000)]
    made = relief_document(hot, KnownRelief([], log.plans(NOW)))
    assert (made.hot_nodes, made.hot_alerts, len(made.node)) == (10_000, 40_000, limits.HOT_ROWS)
    assert len(msgspec.json.encode(made)) < 1_000_000


def test_critical_alerts_come_first_and_unknown_is_null() -> None:
    def alert(severity: Any, age: float, **more: Any) -> OpenAlert:
        since = format_time(NOW - age)
        return OpenAlert(rule="node_cpu", severity=severity, since=since, **more)

    made = relief_document(
        [
            HotNode("a", "x", False, (alert("warning", 900.0),)),
            HotNode("b", "y", True, (alert("critical", 60.0, usage_percent=91.26),)),
        ],
        KnownRelief(problem="the broker is away"),
    )
    assert (made.node, made.pool, made.stale) == (["b", "a"], ["y", "x"], [True, False])
    assert (made.hot_nodes, made.critical_nodes, made.hot_alerts) == (2, 1, 2)
    assert made.since_seconds == [round(NOW - 60), round(NOW - 900)]
    assert (made.usage_percent, made.threshold_percent) == ([91.3, None], [None, None])
    assert (made.troubles, made.plans, made.problem) == (None, None, "the broker is away")
    assert (made.more_troubles, made.has_all_plans) == (None, None)


def test_figures_count_what_is_not_listed() -> None:
    alert = OpenAlert(rule="node_cpu", severity="critical", since=format_time(MADE))
    hot = [HotNode(f"node-{number:05}", "pool", False, (alert,) * 2) for number in range(900)]
    (trouble,) = relief().alerts.open(0.0)
    troubles = [msgspec.structs.replace(trouble, id=f"{number}") for number in range(130)]
    made = relief_document(hot, KnownRelief(troubles, []))
    assert (made.hot_nodes, made.critical_nodes, made.hot_alerts) == (900, 900, 1800)
    assert (len(made.troubles or ()), made.more_troubles) == (limits.TROUBLES, 30)
