"""Whether plans helped: judged once after the span of usage, published, and what follows."""

from collections.abc import Sequence

import msgspec
import pytest

from actuators.planner.planner import take_record
from actuators.planner.planning_gate import BLOCKED, PAUSED
from actuators.planner.relief_rounds import Published
from pipeline.errors import BrokerUnavailableError
from pipeline.processors.descheduling.move_memory import LOOK_BACK_SECONDS, MoveMemory
from pipeline.processors.descheduling.move_outcomes import LANDING_SECONDS, SETTLE_SECONDS
from pipeline.processors.descheduling.relief_alerts import ReliefAlerts
from pipeline.table.node_columns import TableNode
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord, Outcome
from pipeline.topics.codec import encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.pods import Owner
from pipeline.topics.registry import ACTIONS, EVICTION_PLANS
from tests.extender.relief_world import ALERT, POLICY, ROOM, ReliefWorld
from tests.metric_values import value_of
from tests.planner.test_relief_rounds import Planning, hot_and_cool
from tests.table.records import NOW

SPAN_SECONDS = 300.0


async def evicted(planning: Planning) -> EvictionPlanRecord:
    """A plan whose pod was evicted."""
    await planning.after()
    (plan,) = planning.plans
    planning.act(plan, "done")
    return plan


def verdicts(planning: Planning) -> list[tuple[str, str, str]]:
    return [(each.node, each.outcome, each.why) for each in planning.outcomes]


def cools(planning: Planning, *hot: str, opened: float = 0.0) -> None:
    """Let no node have an alert, but those that are `hot` since `opened`."""
    now = planning.clock.now()
    planning.world.report(now, alerts=())
    if hot:
        alert = msgspec.structs.replace(ALERT, since=format_time(opened))
        planning.world.report(now, *hot, alerts=(alert,))


async def test_a_plan_whose_node_cooled_has_helped_and_is_judged_once() -> None:
    planning = hot_and_cool()
    plan = await evicted(planning)
    await planning.clock.advance(SPAN_SECONDS + LANDING_SECONDS - 1)
    cools(planning)
    await planning.rounds.step()
    assert planning.outcomes == []
    await planning.after(1)
    await planning.after(1)
    assert verdicts(planning) == [("hot", "done", "the node cooled, and no target got hot")]
    (record,) = planning.outcomes
    assert (record.actuator, record.action, record.plan) == ("planner", "outcome", plan.id)
    assert (record.strategy, record.error) == ("LowNodeLoad", "")
    assert record.after == {"cpu_percent": "75.0", "memory_percent": "12.5"}


async def test_a_node_gets_the_time_to_cool() -> None:
    planning = hot_and_cool()
    await evicted(planning)
    await planning.after(SPAN_SECONDS + SETTLE_SECONDS - 1)
    assert planning.outcomes == []
    await planning.after(1)
    assert verdicts(planning) == [("hot", "failed", "the node is still hot")]


def lands(planning: Planning, node: str, workload: str = "web", age: float = -5.0) -> None:
    """Let a replacement start on a node, so many seconds before the plan was made."""
    owner, created_at = Owner(kind="ReplicaSet", name=workload), format_time(NOW - age)
    planning.world.pod(node, f"{workload} on {node}", 1.0, owner=owner, created_at=created_at)


async def test_a_node_that_is_still_hot_and_a_target_that_got_hot_are_failures() -> None:
    for hot, opened, why in (
        ("hot", NOW - 900, "the node is still hot"),
        ("cool", NOW + 100, "the node cooled, but cool got hot"),
        ("hot", NOW + 400, "the node cooled, and no target got hot"),  # hot again, later
        ("cool", NOW - 900, "the node cooled, and no target got hot"),  # it was hot before
    ):
        planning = hot_and_cool()
        await evicted(planning)
        lands(planning, "cool")
        await planning.clock.advance(SPAN_SECONDS + SETTLE_SECONDS)
        cools(planning, hot, opened=opened)
        await planning.rounds.step()
        assert [each.why for each in planning.outcomes] == [why]
        assert planning.outcomes[0].error == ("" if "no target" in why else why)


@pytest.mark.parametrize(
    ("place", "workload", "age", "why"),
    [
        ("other", "web", -5.0, "the node cooled, but other got hot"),
        ("other", "web", 3600.0, "the node cooled, and no target got hot"),  # it ran there before
        ("other", "api", -5.0, "the node cooled, and no target got hot"),
        ("cool", "web", -5.0, "the node cooled, and no target got hot"),
    ],
)
async def test_the_node_where_a_pod_landed_counts_not_the_one_where_it_was_expected(
    place: str, workload: str, age: float, why: str
) -> None:
    """The scheduler decides. A node that got hot without a pod of the plan was not heated by it."""
    planning = hot_and_cool()
    planning.world.node("other", 6.0)
    plan = await evicted(planning)
    assert plan.pods[0].target == "cool"
    lands(planning, place, workload, age)
    await planning.clock.advance(SPAN_SECONDS + SETTLE_SECONDS)
    cools(planning, "other", opened=NOW + 100)
    await planning.rounds.step()
    assert [each.why for each in planning.outcomes] == [why]


async def test_nothing_is_judged_while_the_pods_of_hot_nodes_cannot_be_read() -> None:
    planning = hot_and_cool()
    await evicted(planning)
    lands(planning, "cool")
    await planning.clock.advance(SPAN_SECONDS + SETTLE_SECONDS)
    cools(planning, "cool", opened=NOW + 100)
    planning.failures = 2  # of the round, too
    await planning.rounds.step()
    assert planning.outcomes == []
    await planning.after(1)
    assert [each.why for each in planning.outcomes] == ["the node cooled, but cool got hot"]


@pytest.mark.parametrize("ahead", [-160.0, -30.0, 30.0, 160.0])
@pytest.mark.parametrize(
    ("hot", "opened", "why"),
    [
        ("hot", NOW - 20, "the node is still hot"),
        ("hot", NOW + 200, "the node cooled, and no target got hot"),
        ("cool", NOW + 100, "the node cooled, but cool got hot"),
        ("cool", NOW - 100, "the node cooled, and no target got hot"),
    ],
)
async def test_a_verdict_does_not_depend_on_the_clocks_of_nodes(
    hot: str, opened: float, why: str, ahead: float
) -> None:
    planning = hot_and_cool()
    await evicted(planning)
    lands(planning, "cool")
    await planning.clock.advance(SPAN_SECONDS + SETTLE_SECONDS)
    cools(planning)
    alert = msgspec.structs.replace(ALERT, since=format_time(opened + ahead))
    # The last window ended ten seconds ago by a clock that is right.
    as_of = format_time(planning.clock.now() - 10 + ahead)
    planning.world.report(planning.clock.now(), hot, alerts=(alert,), as_of=as_of)
    await planning.rounds.step()
    assert [each.why for each in planning.outcomes] == [why]


async def test_without_an_eviction_or_fresh_usage_nothing_is_judged() -> None:
    refused, silent = hot_and_cool(), hot_and_cool()
    await refused.after()
    refused.act(refused.plans[0], "refused")
    await refused.after(SPAN_SECONDS + SETTLE_SECONDS)
    await evicted(silent)
    await silent.clock.advance(SPAN_SECONDS + SETTLE_SECONDS)
    await silent.rounds.step()
    assert refused.outcomes == silent.outcomes == []
    silent.world.report(silent.clock.now())
    await silent.rounds.step()
    assert [each.why for each in silent.outcomes] == ["the node is still hot"]


@pytest.mark.parametrize(
    ("usage", "hysteresis", "why"),
    [
        (65.0, 5.0, "the node cooled, and no target got hot"),
        (65.1, 5.0, "the node is still hot"),
        (70.0, 0.0, "the node cooled, and no target got hot"),
    ],
)
async def test_an_alert_that_only_waits_for_more_calm_windows_is_no_failure(
    usage: float, hysteresis: float, why: str
) -> None:
    """The policy may ask for any number of windows below the threshold, of any length."""
    planning = hot_and_cool()
    await evicted(planning)
    policy = msgspec.structs.replace(POLICY, close_windows=20, hysteresis_percent=hysteresis)
    planning.world.table.put_node(TableNode(node="hot", allocatable=ROOM, hot_nodes=policy))
    alert = msgspec.structs.replace(ALERT, usage_percent=usage)
    await planning.clock.advance(SPAN_SECONDS + SETTLE_SECONDS - 1)
    planning.world.report(planning.clock.now(), alerts=())
    planning.world.report(planning.clock.now(), "hot", alerts=(alert,))
    await planning.rounds.step()
    assert planning.outcomes == []
    await planning.after(1)
    assert [each.why for each in planning.outcomes] == [why]


async def test_nothing_is_judged_while_the_usage_of_the_alert_is_unknown() -> None:
    """That of Prod is, while one Prod pod is not measured; the node reports all the same."""
    planning = hot_and_cool()
    await evicted(planning)
    await planning.clock.advance(SPAN_SECONDS + SETTLE_SECONDS)
    for field in ("usage_percent", "threshold_percent"):
        alert = msgspec.structs.replace(ALERT, **{field: None})
        planning.world.report(planning.clock.now(), "hot", alerts=(alert,))
        await planning.rounds.step()
        assert planning.outcomes == []
    planning.world.report(planning.clock.now(), "hot", alerts=(ALERT,))
    await planning.rounds.step()
    assert [each.why for each in planning.outcomes] == ["the node is still hot"]


async def test_nodes_with_long_windows_are_judged() -> None:
    """A window of ten minutes that ended five minutes ago is the newest that there is."""
    planning = hot_and_cool()
    await evicted(planning)
    await planning.clock.advance(SPAN_SECONDS + SETTLE_SECONDS)
    planning.world.report(planning.clock.now() - 290, "hot", window_seconds=600.0)
    await planning.rounds.step()
    assert [each.why for each in planning.outcomes] == ["the node is still hot"]


async def test_a_node_that_is_no_longer_watched_or_deleted_is_not_judged() -> None:
    """Its alert ends with its threshold, not because it cooled."""
    for is_deleted in (False, True):
        planning = hot_and_cool()
        await evicted(planning)
        await planning.clock.advance(SPAN_SECONDS + SETTLE_SECONDS)
        cools(planning)
        if is_deleted:
            planning.world.table.drop_node("hot")
        else:
            node = TableNode(node="hot", allocatable=ROOM, hot_nodes=None)
            planning.world.table.put_node(node)
        await planning.rounds.step()
        assert planning.outcomes == []


@pytest.mark.parametrize("outcome", ["failed", "intended"])
async def test_plans_whose_evictions_failed_or_are_unknown_are_not_judged(outcome: Outcome) -> None:
    """An API server that refuses evictions says nothing about the strategy."""
    planning = hot_and_cool()
    await planning.after()
    planning.act(planning.plans[0], outcome)
    await planning.after(SPAN_SECONDS + SETTLE_SECONDS)
    assert planning.outcomes == []


@pytest.mark.parametrize("helps", [True, False])
async def test_a_strategy_that_does_not_help_is_paused_for_an_hour(
    helps: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    planning = hot_and_cool()
    for number in range(5):
        action = ActionRecord(
            node="hot", at=format_time(NOW), actuator="planner", action="outcome",
            outcome="done" if helps or number < 2 else "failed", why="", plan=f"p{number}",
            strategy="LowNodeLoad",
        )  # fmt: skip
        take_record(planning.memory, ReliefAlerts(), ACTIONS, b"hot", encode_json(action), NOW)
    assert await planning.after() == (["hot"] if helps else [])
    assert value_of(BLOCKED.labels("outcome")) == float(not helps)
    assert await planning.after(LOOK_BACK_SECONDS - 1) == (["hot"] if helps else [])
    if not helps:
        assert await planning.after(2) == ["hot"]
    # Said once, and when it ends.
    logged = [record.message for record in caplog.records if "paused" in record.message]
    assert logged == (
        []
        if helps
        else [
            "strategies are paused: too few of their last plans helped",
            "no strategy is paused any more",
        ]
    )


@pytest.mark.parametrize(
    ("helped", "failed", "is_paused"), [(10, 30, True), (30, 10, False), (3, 2, False)]
)
async def test_plans_that_are_judged_together_all_count(
    helped: int, failed: int, is_paused: bool
) -> None:
    """The plans of a round have verdicts of the same time, in no order."""
    memory = MoveMemory()
    for number in range(helped + failed):
        action = ActionRecord(
            node=f"n{number}", at=format_time(NOW), actuator="planner", action="outcome",
            outcome="done" if number < helped else "failed", why="", plan=f"p{number}",
            strategy="LowNodeLoad",
        )  # fmt: skip
        memory.take_action(action, NOW)
    assert memory.paused("LowNodeLoad", NOW) == ({""} if is_paused else set())


def fails(planning: Planning, node: str) -> None:
    """Let the last plans for a node not have helped."""
    for number in range(5):
        action = ActionRecord(
            node=node, at=format_time(NOW), actuator="planner", action="outcome",
            outcome="failed", why="", plan=f"p{number}", strategy="LowNodeLoad",
        )  # fmt: skip
        planning.memory.take_action(action, NOW)


@pytest.mark.parametrize("has_other", [False, True])
async def test_plans_that_do_not_help_in_one_pool_pause_no_other_pool(has_other: bool) -> None:
    gold = msgspec.structs.replace(POLICY, pool="gold")
    world = ReliefWorld().node("hot", 12.0, hot_nodes=gold).node("cool", 2.0, hot_nodes=gold)
    world.runs("hot", "web", a=1.0)
    if has_other:
        world.node("warm", 12.0).node("cold", 1.0).runs("warm", "api", b=1.0)
    planning = Planning(world)
    fails(planning, "hot")
    assert await planning.after() == (["warm"] if has_other else [])
    assert value_of(BLOCKED.labels("outcome")) == float(not has_other)
    assert value_of(PAUSED.labels("LowNodeLoad")) == 1.0
    (alert,) = planning.alerts
    assert (alert.rule, alert.pool, alert.node) == ("plans_do_not_help", "gold", "")
    assert (alert.severity, alert.transition) == ("warning", "opened")
    assert alert.why.startswith("fewer than 3 of the last 5 judged plans helped")
    await planning.after(600)
    assert [each.transition for each in planning.alerts] == ["opened"]
    await planning.after(LOOK_BACK_SECONDS - 599)
    await planning.after(10)
    last = [each for each in planning.alerts if each.transition == "closed"]
    assert [(each.id, each.reason) for each in last] == [(alert.id, "planned")]
    assert "hot" in {plan.node for plan in planning.plans}


async def test_an_alert_about_plans_that_do_not_help_ends_with_the_policy() -> None:
    planning = hot_and_cool()
    fails(planning, "hot")
    await planning.after()
    assert planning.rounds.policy is not None
    planning.rounds.policy = planning.rounds.policy._replace(why_not="LowNodeLoad is paused")
    await planning.after(10)
    changes = [(each.transition, each.reason) for each in planning.alerts]
    assert changes == [("opened", None), ("closed", "policy")]


async def test_a_new_leader_judges_what_the_former_one_planned_and_repeats_no_verdict() -> None:
    planning = hot_and_cool()
    plan = await evicted(planning)
    for is_last in (False, True):
        memory, value = MoveMemory(), encode_json(plan)
        take_record(memory, ReliefAlerts(), EVICTION_PLANS, plan.node.encode(), value, NOW)
        planning.start(memory)
        planning.act(plan, "done")
        if is_last:
            (outcome,), now = planning.outcomes, planning.clock.now()
            take_record(memory, ReliefAlerts(), ACTIONS, b"hot", encode_json(outcome), now)
        await planning.after(SPAN_SECONDS + SETTLE_SECONDS)
        assert len(planning.outcomes) == 1


async def test_nothing_is_judged_without_the_lease_and_a_lost_verdict_is_tried_again() -> None:
    planning = hot_and_cool()
    await evicted(planning)
    planning.is_leader = False
    await planning.after(SPAN_SECONDS + SETTLE_SECONDS)
    assert planning.outcomes == []
    planning.is_leader, planning.can_publish = True, False
    await planning.after(1)
    assert planning.outcomes == []
    planning.can_publish = True
    await planning.after(1)
    assert len(planning.outcomes) == 1


def verdict_of(number: int, outcome: Outcome, at: float) -> ActionRecord:
    return ActionRecord(
        node="hot", at=format_time(at), actuator="planner", action="outcome", outcome=outcome,
        why="", plan=f"p{number}", strategy="LowNodeLoad",
    )  # fmt: skip


def log_of_two_leaders(ahead_seconds: float) -> list[tuple[ActionRecord, float]]:
    """Verdicts with their append times: three failures by a leader whose clock is ahead, or behind,
    and after a failover three successes by another one."""
    failures = [(verdict_of(i, "failed", NOW + i + ahead_seconds), NOW + i) for i in range(3)]
    return failures + [(verdict_of(i, "done", NOW + 60 + i), NOW + 60 + i) for i in range(3, 6)]


@pytest.mark.parametrize("ahead_seconds", [0.0, 1800.0, -1800.0])
@pytest.mark.parametrize("read_seconds", [0.0, 90.0, 3000.0])
def test_the_order_of_verdicts_is_the_same_for_each_leader(
    ahead_seconds: float, read_seconds: float
) -> None:
    """A leader that reads them later must not take older failures for the last ones."""
    memory = MoveMemory()
    for record, appended_at in log_of_two_leaders(ahead_seconds):
        # As they come, or when a later leader begins.
        now = max(appended_at, NOW + read_seconds)
        assert memory.take_action(record, now, appended_at)
    assert memory.paused("LowNodeLoad", NOW + 3001) == set()


async def test_a_verdict_that_may_have_arrived_is_not_judged_anew() -> None:
    """The broker has it, and the answer was lost: another verdict would be a second one."""
    planning = hot_and_cool()
    await evicted(planning)
    published: list[ActionRecord] = []

    async def publish(record: Published) -> None:
        assert isinstance(record, ActionRecord)
        published.append(record)
        if len(published) < 3:
            raise BrokerUnavailableError("no answer")

    planning.rounds._outcomes._publish = publish
    await planning.after(SPAN_SECONDS + SETTLE_SECONDS)
    cools(planning)
    for _ in range(4):
        await planning.after(1)
    assert len(published) == 3
    assert {encode_json(record) for record in published} == {encode_json(published[0])}
    assert published[0].outcome == "failed"


async def test_a_verdict_that_the_feed_has_read_is_not_written_again() -> None:
    planning = hot_and_cool()
    await evicted(planning)
    published: list[ActionRecord] = []

    async def publish(record: Published) -> None:
        assert isinstance(record, ActionRecord)
        published.append(record)
        raise BrokerUnavailableError("no answer")

    planning.rounds._outcomes._publish = publish
    await planning.after(SPAN_SECONDS + SETTLE_SECONDS)
    (record,) = published
    take_record(planning.memory, ReliefAlerts(), ACTIONS, b"hot", encode_json(record), NOW, NOW)
    for _ in range(3):
        await planning.after(1)
    assert published == [record]


@pytest.mark.parametrize("arrives", ["before it leads", "while it leads", "never"])
async def test_a_failover_between_judging_and_publishing_leaves_one_verdict(arrives: str) -> None:
    """The first leader judges and loses the lease while its record is on the way."""
    planning = hot_and_cool()
    plan = await evicted(planning)
    await planning.after(SPAN_SECONDS + SETTLE_SECONDS)
    (first,) = planning.outcomes
    planning.outcomes.clear()
    log = [first] if arrives == "before it leads" else []
    memory = await next_leader(planning, plan, log)
    if arrives == "while it leads":
        log = [*planning.outcomes, first]
        for record in log:
            take_record(memory, ReliefAlerts(), ACTIONS, b"hot", encode_json(record), NOW, NOW)
    else:
        log += planning.outcomes
    judged = {record.plan for record in log}
    assert judged == {plan.id}
    assert len(planning.outcomes) == (arrives != "before it leads")
    # Each reader of the log has the same verdict, and one.
    third = MoveMemory()
    for record in log:
        take_record(third, ReliefAlerts(), ACTIONS, b"hot", encode_json(record), NOW, NOW)
    for each in (memory, third):
        assert [(found.node, found.helped) for found in each._verdicts.values()] == [
            ("hot", log[-1].outcome == "done")
        ]


async def next_leader(
    planning: Planning, plan: EvictionPlanRecord, log: Sequence[ActionRecord]
) -> MoveMemory:
    """Let another planner lead that has read plan, eviction and these verdicts."""
    memory, now = MoveMemory(), planning.clock.now()
    take_record(memory, ReliefAlerts(), EVICTION_PLANS, b"hot", encode_json(plan), now, NOW)
    planning.start(memory)
    done = ActionRecord(
        node="hot", at=format_time(NOW), actuator="evictor", action="evict", outcome="done",
        why="", before={"d/a": plan.pods[0].uid}, plan=plan.id, workload=plan.pods[0].workload,
    )  # fmt: skip
    for record in (done, *log):
        take_record(memory, ReliefAlerts(), ACTIONS, b"hot", encode_json(record), now, NOW)
    cools(planning)
    for _ in range(2):
        await planning.after(1)
    return memory


@pytest.mark.parametrize("feed", ["moves", "table"])
async def test_nothing_is_judged_while_evictions_or_nodes_are_not_followed(feed: str) -> None:
    """The plan may have evicted another pod since, and the node may have cooled."""
    planning = hot_and_cool()
    await evicted(planning)
    state = planning.moves if feed == "moves" else planning.state
    state.connected = False
    await planning.after(SPAN_SECONDS + SETTLE_SECONDS)
    assert planning.outcomes == []
    state.connected = True
    await planning.after(1)
    assert len(planning.outcomes) == 1
