"""Cool-downs of nodes, workloads and pods, from plans and actions in any order."""

import itertools
import random
import tracemalloc
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from pipeline.errors import InvalidRecordError
from pipeline.processors.descheduling import move_memory
from pipeline.processors.descheduling.cool_downs import (
    REFUSED_REST_SECONDS,
    WORKLOAD_REST_SECONDS,
    IncomingUsage,
)
from pipeline.processors.descheduling.move_memory import (
    LAST_ACTION_SECONDS,
    LASTING_SECONDS,
    LOOK_BACK_SECONDS,
    MoveMemory,
)
from pipeline.processors.descheduling.move_outcomes import LANDING_SECONDS
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod, WaitingPod

NOW = 1_700_000_000.0
SPAN = 300.0
OVER_AT = NOW + 300.0 + LAST_ACTION_SECONDS
WEB, API = "Deployment/d/web", "Deployment/d/api"


def leaving(uid: str, workload: str = WEB, target: str = "cool") -> LeavingPod:
    return LeavingPod(
        uid=uid, pod_class="prod", namespace="d", name=uid, workload=workload, target=target,
        cpu_millicores=500, memory_bytes=1 << 20,
    )  # fmt: skip


def plan(*pods: LeavingPod, at: float = NOW, **changes: Any) -> EvictionPlanRecord:
    values: dict[str, Any] = {
        "node": "hot", "id": "p", "at": format_time(at), "valid_until": format_time(at + 300),
        "planner": "planner", "why": "hot", "pods": pods or (leaving("a"),),
    }  # fmt: skip
    return EvictionPlanRecord(**(values | changes))


def action(
    outcome: Any, uid: str = "a", *, at: float = NOW + 10, workload: str = WEB, **changes: Any
) -> ActionRecord:
    values: dict[str, Any] = {
        "node": "hot", "at": format_time(at), "actuator": "evictor", "action": "evict",
        "outcome": outcome, "why": "hot", "before": {f"d/{uid}": uid}, "plan": "p",
        "workload": workload,
    }  # fmt: skip
    return ActionRecord(**(values | changes))


def remembered(*records: EvictionPlanRecord | ActionRecord, now: float = NOW + 20) -> MoveMemory:
    memory = MoveMemory()
    for record in records:
        if isinstance(record, ActionRecord):
            memory.take_action(record, now)
        else:
            memory.take_plan(record, now)
    return memory


def rest(memory: MoveMemory, now: float) -> str | None:
    return memory.rests(now).of_node("hot", SPAN)


def test_a_node_rests_while_its_plan_is_under_way() -> None:
    memory = remembered(plan(leaving("a"), leaving("b")), action("refused"))
    assert rest(memory, NOW + 20) == "plan p is under way"
    assert rest(memory, OVER_AT - 1) is not None
    assert rest(memory, OVER_AT) is None
    assert memory.rests(NOW + 20).of_node("other", SPAN) is None


def test_a_plan_is_under_way_for_as_long_as_the_broker_dates_it() -> None:
    """It was known before it was written."""
    memory = remembered(plan(), now=NOW)
    assert not memory.take_plan(plan(), NOW + 5, NOW + 4)
    assert rest(memory, OVER_AT + 4 - 1) is not None
    assert rest(memory, OVER_AT + 4) is None


def test_a_plan_without_evictions_ends_with_its_last_action() -> None:
    memory = remembered(plan(leaving("a"), leaving("b")), action("refused"), action("refused", "b"))
    assert rest(memory, NOW + 20) is None


@pytest.mark.parametrize("outcome", ["observed", "recommended"])
def test_node_and_workload_of_an_observed_plan_rest_as_the_workload_would(outcome: str) -> None:
    """Its node stays hot, and the same plan would be made again and again."""
    memory = remembered(plan(), action(outcome))
    assert rest(memory, NOW + 600) == "its last plan was only observed, 10 minutes ago"
    assert memory.rests(NOW + 600).of_pod("b", WEB) is not None
    assert memory.rests(NOW + 20).incoming(SPAN) == []
    assert memory.unjudged(NOW + 3000, lambda _: SPAN) == []
    over = memory.rests(NOW + 10 + WORKLOAD_REST_SECONDS)
    assert (over.of_node("hot", SPAN), over.of_pod("a", WEB)) == (None, None)


@pytest.mark.parametrize("seconds", [-7200.0, 7200.0])
def test_a_clock_that_is_set_changes_no_cool_down(seconds: float) -> None:
    memory = remembered(plan(leaving("a"), leaving("b")), action("done"), action("refused", "b"))
    before, now = memory.rests(NOW + 20), NOW + 20 + seconds
    memory.shift(seconds)
    memory.forget(now)
    after = memory.rests(now)
    assert after.of_node("hot", SPAN) == before.of_node("hot", SPAN) is not None
    for uid, workload in (("x", WEB), ("b", API)):
        assert after.of_pod(uid, workload) == before.of_pod(uid, workload) is not None
    assert after.incoming(SPAN) == before.incoming(SPAN) != []
    assert memory.rests(now - 10 + WORKLOAD_REST_SECONDS).of_pod("x", WEB) is None
    assert [*memory.planned_pods(now - 30)] != []
    assert [*memory.planned_pods(now - 10)] == []


@pytest.mark.parametrize("seconds", [-7200.0, 7200.0])
def test_a_clock_that_is_set_ends_no_plan_and_no_pause(seconds: float) -> None:
    memory = remembered(plan())
    for number in range(5):
        failed = action("failed", actuator="planner", action="outcome", plan=f"{number}",
                        strategy="LowNodeLoad")  # fmt: skip
        memory.take_action(failed, NOW + 20)
    memory.shift(seconds)
    assert rest(memory, OVER_AT + seconds - 1) == "plan p is under way"
    assert rest(memory, OVER_AT + seconds) is None
    over_at = NOW + 10 + seconds + LOOK_BACK_SECONDS
    assert memory.paused("LowNodeLoad", over_at) == {""}
    assert memory.paused("LowNodeLoad", over_at + 1) == set()


@pytest.mark.parametrize("outcome", ["intended", "done", "failed"])
def test_a_node_rests_for_a_span_after_the_last_eviction(outcome: str) -> None:
    """An eviction whose outcome was lost may have happened."""
    memory = remembered(plan(), action("done", at=NOW + 5), action(outcome, at=NOW + 250),
                        now=NOW + 260)  # fmt: skip
    assert (
        rest(memory, NOW + 250 + SPAN - 1) == "usage of 300 s does not show the eviction 299 s ago"
    )
    assert rest(memory, NOW + 250 + SPAN) is None


def test_an_eviction_by_another_planner_counts_for_its_node_and_workload() -> None:
    memory = remembered(action("done", plan="of an extender"))
    assert rest(memory, NOW + 20) is not None
    assert memory.rests(NOW + 20).of_pod("b", WEB) is not None


@pytest.mark.parametrize("outcome", ["refused", "failed"])
def test_plans_that_are_refused_or_failed_as_a_whole_are_over(outcome: str) -> None:
    pods = leaving("a"), leaving("b")
    assert rest(remembered(plan(*pods), action(outcome, before={})), NOW + 20) is None


def test_a_repeated_action_about_a_gone_pod_does_not_end_its_plan() -> None:
    gone = action("refused", "b", error="Gone: no pod of the UID b is on the node")
    memory = remembered(plan(leaving("a"), leaving("b")), gone, gone)
    assert rest(memory, NOW + 20) == "plan p is under way"
    memory.take_action(action("refused"), NOW + 20)
    assert rest(memory, NOW + 20) is None


def test_a_pod_that_is_only_marked_does_not_count_as_evicted() -> None:
    """Another agent may evict it at any time, and no one else is planned until then."""
    memory = remembered(plan(), action("intended"), action("marked"))
    assert rest(memory, NOW + 20) == "plan p is under way"
    assert len(memory.rests(NOW + 20).incoming(SPAN)) == 1
    expired = memory.rests(OVER_AT)
    assert (expired.of_node("hot", SPAN), expired.of_pod("b", WEB)) == (None, None)
    assert expired.incoming(SPAN) == []
    assert expired.of_pod("a", WEB) == (
        "it was marked for its eviction by another agent 5 minutes ago"
    )
    assert memory.unjudged(NOW + 3000, lambda _: SPAN) == []


def test_a_marked_pod_that_left_was_evicted_when_it_left() -> None:
    memory = remembered(plan(), action("marked"), action("done", at=NOW + 200), now=NOW + 200)
    assert rest(memory, NOW + 200 + SPAN - 1) is not None
    assert memory.rests(NOW + 400).of_pod("b", WEB) == (
        f"a pod of {WEB} was evicted, or observed to be, 3 minutes ago"
    )
    (ended,) = memory.unjudged(NOW + 900, lambda _: SPAN)
    assert ended.evicted_at == NOW + 200


def test_a_marked_pod_that_stays_lets_its_node_be_planned_for() -> None:
    memory = remembered(plan(), action("marked"), action("refused", at=NOW + 100), now=NOW + 100)
    rests = memory.rests(NOW + 110)
    assert (rests.of_node("hot", SPAN), rests.of_pod("b", WEB)) == (None, None)
    assert rests.of_pod("a", WEB) == "the evictor refused to evict it 0 minutes ago"


def test_a_workload_rests_while_it_moves_and_after_an_eviction() -> None:
    memory = remembered(plan(leaving("a")))
    assert memory.rests(NOW + 1).of_pod("b", WEB) == f"plan p moves pods of {WEB}"
    assert memory.rests(NOW + 1).of_pod("c", API) is None
    assert memory.rests(OVER_AT).of_pod("b", WEB) is None  # expired, nothing was evicted
    memory.take_action(action("done", at=NOW + 60), NOW + 61)
    assert memory.rests(NOW + 660).of_pod("b", WEB) == (
        f"a pod of {WEB} was evicted, or observed to be, 10 minutes ago"
    )
    assert memory.rests(NOW + 60 + WORKLOAD_REST_SECONDS - 1).of_pod("b", WEB) is not None
    assert memory.rests(NOW + 60 + WORKLOAD_REST_SECONDS).of_pod("b", WEB) is None


def test_a_former_source_takes_no_pod_of_the_same_workload_back() -> None:
    """The workload of the pod that left rests as long as the source is remembered."""
    memory = remembered(plan(leaving("a", target="cool")), action("done"))
    on_target = memory.rests(NOW + WORKLOAD_REST_SECONDS)
    assert on_target.of_pod("successor", WEB) is not None


def test_a_target_gives_no_pod_back_to_the_source_of_a_move_within_half_an_hour() -> None:
    """Of any workload: else two nodes would take turns."""
    memory = remembered(plan(leaving("a", target="cool"), leaving("b", target="other")))
    both = {"cool": {"hot"}, "other": {"hot"}}
    assert memory.rests(NOW + 20).resting_targets == both  # under way
    memory.take_action(action("done"), NOW + 20)
    memory.take_action(action("refused", "b"), NOW + 20)
    until = NOW + 10 + WORKLOAD_REST_SECONDS
    assert memory.rests(until - 1).resting_targets == {"cool": {"hot"}}
    assert memory.rests(until).resting_targets == {}
    observed = remembered(plan(), action("observed"))
    assert observed.rests(NOW + 20).resting_targets == {}


def test_an_eviction_that_was_refused_after_its_intention_moves_nothing() -> None:
    """The kill switch was set in between."""
    memory = remembered(plan(), action("intended"), action("refused", at=NOW + 11))
    assert rest(memory, NOW + 20) is None
    assert memory.rests(NOW + 20).of_pod("b", WEB) is None


def test_a_refused_pod_rests_and_others_of_its_workload_do_not() -> None:
    memory = remembered(plan(), action("refused"))
    assert memory.rests(NOW + 10 + REFUSED_REST_SECONDS - 1).of_pod("a", WEB) is not None
    assert memory.rests(NOW + 10 + REFUSED_REST_SECONDS).of_pod("a", WEB) is None
    assert memory.rests(NOW + 20).of_pod("b", WEB) is None


ONLY_ONE = "ExpectedReplicas: 1 replicas, of which 1 may move and 1 be missing"
BUDGET = "Forbidden: a disruption budget forbids the eviction: b"


def refusals(error: str, *minutes: float) -> MoveMemory:
    """A refusal of the pod in a plan of its own after each of these minutes."""
    memory = MoveMemory()
    for number, minute in enumerate(minutes):
        at = NOW + 60 * minute
        memory.take_action(action("refused", at=at, error=error, plan=f"{number}"), at)
    return memory


def test_a_pod_rests_for_twice_as_long_after_each_refusal_for_a_reason_that_lasts() -> None:
    memory, minute, minutes = refusals(ONLY_ONE), 0, list[int]()
    for number in range(8):
        at = NOW + 60 * minute
        memory.forget(at)
        memory.take_action(action("refused", at=at, error=ONLY_ONE, plan=f"{number}"), at)
        minutes.append(minute)
        assert memory.rests(at).of_pod("a", WEB) == f"the evictor refused to evict it: {ONLY_ONE}"
        while memory.rests(NOW + 60 * minute).of_pod("a", WEB) is not None:
            minute += 1
    rests = [later - sooner for sooner, later in itertools.pairwise(minutes)]
    assert rests[:4] == [10, 20, 40, 60]
    assert min(rests[4:]) >= 40


@pytest.mark.parametrize(
    ("error", "first", "second"),
    [
        (ONLY_ONE, True, True),
        ("NodeFit: no other node could run the pod", True, True),
        (BUDGET, False, True),
        ("Expired: it was not the pod's turn", False, False),
        ("MaxMigratingPerNode: 2 pods are leaving from node n, the limit is 2", False, False),
        ("evictions are stopped by /api/v1/x", False, False),
        ("Unknown: the API server does not answer", False, False),
        ("", False, False),
    ],
)
def test_a_pod_is_unmovable_if_its_refusals_will_be_repeated(
    error: str, first: bool, second: bool
) -> None:
    """A budget may allow nothing because a rollout is under way, and a limit other pods."""
    for minutes, expected in (((0,), first), ((0, 12), second)):
        rests = refusals(error, *minutes).rests(NOW + 60 * (max(minutes) + 1))
        assert (rests.is_unmovable("a"), rests.was_refused("a")) == (expected, expected)
        assert rests.of_pod("a", WEB) is not None
        assert not rests.is_unmovable("b")


def test_refusals_for_a_reason_that_lasts_are_remembered_for_two_hours() -> None:
    memory, later = refusals(ONLY_ONE, 0, 10), NOW + LASTING_SECONDS - 1
    memory.forget(later)
    memory.take_action(action("refused", at=NOW + 60, error=ONLY_ONE, plan="read late"), later)
    assert memory.rests(later).was_refused("a")
    memory.forget(later + 700)
    assert not memory.rests(later + 700).was_refused("a")


def test_a_refusal_that_is_read_again_counts_once() -> None:
    memory = refusals(ONLY_ONE, 0)
    memory.take_action(action("refused", at=NOW, error=ONLY_ONE, plan="0"), NOW + 60)
    assert memory.rests(NOW + REFUSED_REST_SECONDS).of_pod("a", WEB) is None


def test_bare_pods_rest_alone() -> None:
    memory = remembered(plan(leaving("a", workload="")), action("done", workload=""))
    assert memory.rests(NOW + 20).of_pod("b", "") is None


def test_moved_pods_count_on_their_target_until_its_usage_shows_them() -> None:
    usage = IncomingUsage("cool", 500, 1 << 20, True)
    memory = remembered(plan(leaving("a"), leaving("b", target="")))
    assert memory.rests(NOW + 299).incoming(SPAN) == [usage]
    assert memory.rests(OVER_AT).incoming(SPAN) == []  # it expired, and nobody left
    memory.take_action(action("done", at=NOW + 100), NOW + 101)
    shown_at = NOW + 100 + SPAN + LANDING_SECONDS
    assert memory.rests(shown_at - 1).incoming(SPAN) == [usage]
    assert memory.rests(shown_at).incoming(SPAN) == []


@pytest.mark.parametrize(
    ("pod_class", "is_prod"), [("prod", True), ("none", True), ("batch", False)]
)
def test_moved_pods_without_a_class_count_as_prod_as_in_alerts(
    pod_class: str, is_prod: bool
) -> None:
    pod = msgspec.structs.replace(leaving("a"), pod_class=pod_class)
    (usage,) = remembered(plan(pod)).rests(NOW).incoming(SPAN)
    assert usage.is_prod == is_prod


def test_a_refused_pod_does_not_count_on_its_target() -> None:
    memory = remembered(plan(leaving("a"), leaving("b")), action("refused"))
    assert len(memory.rests(NOW + 20).incoming(SPAN)) == 1


def test_any_order_and_repeats_give_the_same_cool_downs() -> None:
    records: list[EvictionPlanRecord | ActionRecord] = [
        plan(leaving("a"), leaving("b")), plan(leaving("c", API), id="q", node="other"),
        action("done"), action("refused", "b"), action("done", "c", plan="q", node="other"),
    ]  # fmt: skip
    chance = random.Random(1)

    def answers(order: Sequence[EvictionPlanRecord | ActionRecord]) -> Any:
        rests = remembered(*order).rests(NOW + 100)
        pods = [rests.of_pod(uid, name) for uid in "abc" for name in (WEB, API, "")]
        return rest(remembered(*order), NOW + 100), pods, sorted(rests.incoming(SPAN))

    expected = answers(records)
    for _ in range(20):
        repeated = [*records, *chance.sample(records, 2)]
        chance.shuffle(repeated)
        assert answers(repeated) == expected


def test_other_plans_and_actions_are_ignored() -> None:
    waiting = WaitingPod(namespace="d", name="w", uid="w", priority=1)
    memory = MoveMemory()
    assert not memory.take_plan(plan(planner="extender", waiting=waiting), NOW)
    assert not memory.take_action(action("done", actuator="cluster"), NOW + 20)
    assert not memory.take_plan(plan(at=NOW - LOOK_BACK_SECONDS - 1), NOW)
    assert rest(memory, NOW + 20) is None


def test_invalid_times_and_giant_plans_are_refused() -> None:
    memory = MoveMemory()
    with pytest.raises(InvalidRecordError, match="invalid time"):
        memory.take_plan(plan(valid_until="tomorrow"), NOW)
    with pytest.raises(InvalidRecordError, match="invalid time"):
        memory.take_action(msgspec.structs.replace(action("done"), at="yesterday"), NOW)
    with pytest.raises(InvalidRecordError, match="1001 pods"):
        memory.take_plan(plan(*(leaving(str(n)) for n in range(1001))), NOW)


def test_a_clock_that_is_ahead_makes_no_node_rest_for_longer() -> None:
    memory = remembered(plan(at=NOW + 9e6), action("done", at=NOW + 9e6), now=NOW)
    assert rest(memory, NOW + SPAN) is None


@pytest.mark.parametrize("behind_seconds", [600.0, 2 * LOOK_BACK_SECONDS])
def test_a_clock_that_is_behind_makes_no_node_rest_for_shorter(behind_seconds: float) -> None:
    """The broker's append time says when the records were written."""
    memory, at = MoveMemory(), NOW - behind_seconds
    assert memory.take_plan(plan(leaving("a"), leaving("b"), at=at), NOW + 1, NOW)
    assert rest(memory, NOW + 299) == "plan p is under way"
    assert memory.take_action(action("done", at=at + 10), NOW + 11, NOW + 10)
    assert rest(memory, NOW + 10 + SPAN - 1) is not None
    assert memory.rests(NOW + 10 + WORKLOAD_REST_SECONDS - 1).of_pod("b", WEB) is not None
    assert memory.rests(NOW + 10 + SPAN).incoming(SPAN) != []
    assert rest(memory, OVER_AT) is None


def test_an_append_time_that_is_ahead_makes_no_node_rest_for_longer() -> None:
    memory = MoveMemory()
    memory.take_plan(plan(), NOW, NOW + 9e6)
    memory.take_action(action("done"), NOW + 10, NOW + 9e6)
    assert rest(memory, NOW + 10 + SPAN) is None


def test_what_is_older_than_an_hour_is_forgotten() -> None:
    memory = remembered(plan(), action("done"))
    memory.forget(NOW + LOOK_BACK_SECONDS + 20)
    assert len(memory) == 0
    assert memory.rests(NOW + 20).of_pod("b", WEB) is None


def test_a_plan_has_a_name_that_only_former_plans_for_its_alert_change() -> None:
    memory = MoveMemory()
    first = memory.next_id("hot/LowNodeLoad/a", 0)
    assert first == "hot/LowNodeLoad/a/0.0"
    memory.take_plan(plan(id="hot/LowNodeLoad/b/0.0"), NOW)
    assert memory.next_id("hot/LowNodeLoad/a", 0) == first
    memory.take_plan(plan(id=first), NOW)
    assert memory.next_id("hot/LowNodeLoad/a", 0) not in (first, "hot/LowNodeLoad/a/1.0")
    assert memory.next_id("hot/LowNodeLoad/b", 0) != "hot/LowNodeLoad/b/0.0"


def test_an_alert_that_lasts_for_days_never_gets_a_name_twice() -> None:
    """The evictor remembers names for as long as it leads."""
    memory, names = MoveMemory(), []
    for minute in range(0, 9000, 7):
        now = NOW + 60 * minute
        memory.forget(now)
        names.append(memory.next_id("hot/LowNodeLoad/a", minute // 60))
        memory.take_plan(plan(at=now, id=names[-1]), now)
    assert len(set(names)) == len(names)


def test_a_plan_of_before_the_last_hour_gives_its_name_to_no_other() -> None:
    memory = MoveMemory()
    name = memory.next_id("hot/LowNodeLoad/a", 0)
    memory.take_plan(plan(id=name, at=NOW - LOOK_BACK_SECONDS - 1), NOW)
    assert memory.next_id("hot/LowNodeLoad/a", 0) != name


@pytest.mark.parametrize("step_seconds", [-3600.0, -90.0, 0.0, 3600.0])
def test_a_clock_that_is_set_gives_no_name_twice(step_seconds: float) -> None:
    memory, names, now = MoveMemory(), [], NOW
    for number in range(40):
        names.append(memory.next_id("hot/LowNodeLoad/a", 0))
        memory.take_plan(plan(at=now, id=names[-1]), now)
        now += 400
        if number % 5 == 4:
            memory.shift(step_seconds)
            now += step_seconds
    assert len(set(names)) == len(names)


def test_a_plan_that_is_read_again_gives_no_name_twice() -> None:
    """The planner reads its own plans back."""
    memory, names = MoveMemory(), []
    for _ in range(3):
        names.append(memory.next_id("hot/LowNodeLoad/a", 0))
        for name in (names[-1], *names):
            memory.take_plan(plan(id=name), NOW)
    assert len(set(names)) == 3


def test_a_full_memory_gives_no_plan_the_name_of_a_former_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The evictor would ignore it, and the planner would not remember it."""
    monkeypatch.setattr(move_memory, "_MOST_PLANS", 10)
    memory = MoveMemory()
    for number in range(20):
        now = NOW + 120 * number
        for node in ("a", "b", "c"):
            name = memory.next_id(f"{node}/LowNodeLoad/a", 0)
            assert memory.take_plan(plan(node=node, at=now, id=name), now)


@pytest.mark.parametrize("amount", ["cpu_millicores", "memory_bytes"])
def test_a_plan_with_a_negative_amount_is_refused(amount: str) -> None:
    """Its target would look cooler than it is."""
    pod = msgspec.structs.replace(leaving("a"), **{amount: -1})
    with pytest.raises(InvalidRecordError, match="negative"):
        remembered(plan(pod))


@pytest.mark.parametrize("amount", ["cpu_millicores", "memory_bytes"])
@pytest.mark.parametrize("value", [2**48 + 1, 2**62, 2**64])
def test_a_plan_with_more_than_any_pod_uses_is_refused(amount: str, value: int) -> None:
    """Arrays of usage cannot hold it, or its target would be full."""
    pod = msgspec.structs.replace(leaving("a"), **{amount: value})
    with pytest.raises(InvalidRecordError, match="more than any"):
        remembered(plan(pod))
    largest = msgspec.structs.replace(leaving("a"), **{amount: 2**48})
    assert len(remembered(plan(largest)).rests(NOW).incoming(SPAN)) == 1


def test_texts_of_plans_are_not_remembered() -> None:
    """They are most of a plan, and thousands of plans are remembered."""
    tracemalloc.start()
    try:
        memory = MoveMemory()
        for number in range(50):
            pod = msgspec.structs.replace(leaving("a"), why_not=(f"{number}" * 100_000,))
            memory.take_plan(plan(pod, id=str(number), why="hot" * 100_000), NOW)
            del pod
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    assert len(memory) == 50


def test_planned_pods_are_those_since_a_time() -> None:
    memory = remembered(plan(leaving("a"), leaving("b")), plan(id="q", at=NOW + 15))
    assert len([*memory.planned_pods(NOW)]) == 3
    assert [pod.namespace for pod in memory.planned_pods(NOW + 10)] == ["d"]


def test_pods_of_all_plans_are_bounded_and_the_oldest_plans_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(move_memory, "_MOST_PODS_IN_ALL", 5)
    memory = MoveMemory()
    for number in range(4):
        at, pods = NOW + number, (leaving(f"a{number}"), leaving(f"b{number}"))
        memory.take_plan(plan(*pods, at=at, id=f"p/{number}"), NOW + 10)
    assert [each.at for each in memory.planned_pods(NOW)] == [NOW + 2] * 2 + [NOW + 3] * 2
    memory.forget(NOW + 2.5 + LOOK_BACK_SECONDS)
    for number in range(4, 6):
        memory.take_plan(plan(leaving("c"), at=NOW + 3600, id=f"p/{number}"), NOW + 3610)
    # What was forgotten makes room.
    assert len([*memory.planned_pods(NOW)]) == 4


def test_a_plan_that_is_read_after_its_evictions_is_judged_until_there_is_a_verdict() -> None:
    verdict = action("done", actuator="planner", action="outcome", before={}, at=NOW + 900)
    memory = remembered(action("done"), plan())
    later = NOW + 10 + SPAN + LANDING_SECONDS
    assert memory.unjudged(later - 1, lambda _: SPAN) == []
    assert [each.plan_id for each in memory.unjudged(later, lambda _: SPAN)] == ["p"]
    memory.shift(100.0)
    assert memory.unjudged(later, lambda _: SPAN) == []
    memory.forget(NOW + 100 + LOOK_BACK_SECONDS)
    assert [each.plan_id for each in memory.unjudged(later + 100, lambda _: SPAN)] == ["p"]
    memory.take_action(verdict, NOW + 900)
    assert memory.unjudged(later + 100, lambda _: SPAN) == []


def test_a_new_leader_does_not_order_verdicts_that_were_made_together() -> None:
    """The broker dates the verdicts of one round one after the other."""
    for failed_last in (False, True):
        memory = MoveMemory()
        for number in range(40):
            helped = (number < 30) == failed_last
            verdict = msgspec.structs.replace(
                action("done" if helped else "failed", actuator="planner", action="outcome"),
                plan=f"p{number}", strategy="LowNodeLoad",
            )  # fmt: skip
            memory.take_action(verdict, NOW + 20, NOW + 11 + 0.01 * number)
        assert memory.paused("LowNodeLoad", NOW + 20) == (set() if failed_last else {""})
