"""Rounds of the planner over a state table: when it plans, what it writes, and when it must not."""

import asyncio
import json
import math
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import pytest

from actuators.planner.planner import take_record
from actuators.planner.planning_gate import BLOCKED, STALE_SECONDS
from actuators.planner.relief_policy import ReliefPolicy
from actuators.planner.relief_rounds import (
    FIRST_NODES,
    NODES_OF_A_ROUND,
    PAUSE_SECONDS,
    PLANS,
    SLOW_SECONDS,
    Published,
    ReliefRounds,
)
from pipeline.clock import ManualClock
from pipeline.errors import BrokerUnavailableError, RecordError
from pipeline.extender.plan_documents import ReliefPlan
from pipeline.extender.relief_planning import ReliefPlanning
from pipeline.processors.descheduling.cluster_columns import MoveCaps
from pipeline.processors.descheduling.low_node_load import NodePool
from pipeline.processors.descheduling.low_node_load_args import LowNodeLoadArgs
from pipeline.processors.descheduling.move_memory import (
    LAST_ACTION_SECONDS,
    MoveMemory,
)
from pipeline.processors.descheduling.relief_alerts import ReliefAlerts
from pipeline.processors.eviction.migration_policy import (
    MigrationLimits,
    MigrationPolicy,
    Protections,
)
from pipeline.table import FeedState
from pipeline.table.node_pods import NodePods
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord, Outcome
from pipeline.topics.alerts import AlertRecord
from pipeline.topics.codec import encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.pods import Owner
from pipeline.topics.registry import ACTIONS, ALERTS, EVICTION_PLANS, Topic
from pipeline.topics.resource_amounts import Usage
from tests.extender.relief_world import ALERT, ReliefWorld
from tests.metric_values import value_of
from tests.table.records import GIB, NOW

A_POD: Mapping[str, float] = {"a": 1.0}
POLICY = ReliefPolicy(interval_seconds=120.0)


class Planning:
    """Rounds over a `ReliefWorld`; published plans are in `plans`."""

    def __init__(self, world: ReliefWorld, policy: ReliefPolicy | None = POLICY) -> None:
        self.world = world
        self.clock = ManualClock(NOW)
        self.plans: list[EvictionPlanRecord] = []
        self.alerts: list[AlertRecord] = []
        self.outcomes: list[ActionRecord] = []
        self.reads: list[set[str]] = []
        self.is_leader = True
        self.failures = 0
        self.can_publish = True
        self.state = FeedState(caught_up=True, connected=True, message="following")
        self.moves = FeedState(caught_up=True, connected=True, complete_until=math.inf)
        self.start(MoveMemory(), policy)

    def start(self, memory: MoveMemory, policy: ReliefPolicy | None = POLICY) -> None:
        """Start a planner with this memory, in place of the former one."""
        self.memory = memory
        self.rounds = ReliefRounds(
            self.world.table, self.state, self.moves, self.world.decisions, memory, self.clock,
            self.read_pods, self.publish, lambda: self.is_leader,
        )  # fmt: skip
        self.rounds.policy = policy

    async def read_pods(self, nodes: Collection[str], span_seconds: float) -> NodePods:
        self.reads.append({*nodes})
        if self.failures:
            self.failures -= 1
            raise BrokerUnavailableError("the broker is away")
        records = [pod for pod in self.world.records if pod.node in nodes]
        return NodePods(records, self.world.table.pod_history)

    async def publish(self, record: Published) -> None:
        if not self.can_publish:
            raise BrokerUnavailableError("the broker is away")
        if isinstance(record, AlertRecord):
            self.alerts.append(record)
        elif isinstance(record, ActionRecord):
            self.outcomes.append(record)
        else:
            self.plans.append(record)

    async def after(self, seconds: float = 0.0) -> list[str]:
        """Let time pass with fresh windows; returns the nodes that were planned for in it."""
        before = len(self.plans)
        if seconds:
            await self.clock.advance(seconds)
            self.world.report(self.clock.now())
        await self.rounds.step()
        return [plan.node for plan in self.plans[before:]]

    def act(self, plan: EvictionPlanRecord, outcome: Outcome, error: str = "") -> None:
        """Let an evictor finish a plan now."""
        now = format_time(self.clock.now())
        for pod in plan.pods:
            action = ActionRecord(
                node=plan.node, at=now, actuator="evictor", action="evict", outcome=outcome,
                why="", before={f"{pod.namespace}/{pod.name}": pod.uid}, plan=plan.id,
                workload=pod.workload, error=error,
            )  # fmt: skip
            self.memory.take_action(action, self.clock.now())


def hot_and_cool(cores: Mapping[str, float] = A_POD, **policy: Any) -> Planning:
    world = ReliefWorld().node("hot", 12.0).node("cool", 2.0).runs("hot", "web", **cores)
    return Planning(world, POLICY._replace(**policy))


async def test_a_hot_node_gets_a_plan_that_people_and_the_evictor_can_read() -> None:
    planning = hot_and_cool()
    assert await planning.after() == ["hot"]
    (plan,) = planning.plans
    assert plan.id == f"hot/LowNodeLoad/{ALERT.since}/0.0"
    assert (plan.planner, plan.strategy, plan.waiting) == ("planner", "LowNodeLoad", None)
    assert plan.valid_until == format_time(NOW + 300)
    assert plan.why == (
        "pool __default_node_pool__: node usage of cpu is 75.00%, above 70.00%; 1 pod "
        "leaves, then cpu 68.8%, memory 10.9%, relieved"
    )
    (pod,) = plan.pods
    assert (pod.namespace, pod.name, pod.uid, pod.pod_class) == ("d", "a", "a", "prod")
    assert (pod.workload, pod.target) == ("ReplicaSet/d/web", "cool")
    assert (pod.cpu_millicores, pod.memory_bytes) == (1000, 1 << 30)
    assert pod.target_usage == {"cpu": 18.75, "memory": 14.06}
    assert planning.reads == [{"hot"}]


@pytest.mark.parametrize(("ttl_seconds", "valid_seconds"), [(60.0, 60), (3600.0, 300)])
async def test_a_plan_is_valid_for_the_ttl_of_the_policy_and_five_minutes_at_most(
    ttl_seconds: float, valid_seconds: int
) -> None:
    limits = MigrationLimits(ttl_seconds=ttl_seconds)
    planning = hot_and_cool(migration=MigrationPolicy(limits=limits))
    await planning.after()
    assert planning.plans[0].valid_until == format_time(NOW + valid_seconds)


async def test_a_cluster_without_alerts_costs_no_reading() -> None:
    planning = Planning(ReliefWorld().node("a", 2.0).node("b", 2.0))
    assert await planning.after() == []
    assert await planning.after(500) == []
    assert planning.reads == []


async def test_a_node_that_gets_hot_is_planned_for_within_the_interval() -> None:
    planning = hot_and_cool()
    await planning.after()
    planning.world.node("late", 13.0).runs("late", workload="late", d=2.0)
    assert await planning.after(PAUSE_SECONDS) == ["late"]


async def test_a_plan_that_expired_without_an_eviction_is_made_again_in_the_next_interval() -> None:
    planning = hot_and_cool()
    await planning.after()
    assert await planning.after(120) == []  # under way
    assert await planning.after(120) == []
    assert await planning.after(120) == ["hot"]
    first, second = planning.plans
    assert second.id.startswith(first.id.removesuffix("0"))
    assert second.id != first.id


@pytest.mark.parametrize("seconds", [-5.0, 30.0, 7200.0])
async def test_plans_have_names_of_their_own_whatever_the_clock_of_the_node(seconds: float) -> None:
    """The evictor ignores a plan whose name it has seen."""
    planning = hot_and_cool()
    since = format_time(planning.clock.now() + seconds)
    alert = msgspec.structs.replace(ALERT, since=since)
    planning.world.report(planning.clock.now(), "hot", alerts=(alert,))
    for number in range(20):
        await planning.after(400 if number else 0)
    assert len({plan.id for plan in planning.plans}) == len(planning.plans) == 20


async def test_two_leaders_give_one_name_to_a_first_plan() -> None:
    """One of them may have planned for the node before, for longer than the other remembers."""
    planning = hot_and_cool()
    await planning.after()
    await planning.after(7 * 3600)
    alert = msgspec.structs.replace(ALERT, since=format_time(planning.clock.now() - 60))
    planning.plans.clear()
    planning.world.report(planning.clock.now(), "hot", alerts=(alert,))
    await planning.after(400)
    planning.start(MoveMemory())
    await planning.after(10)
    first, other = planning.plans
    assert first.id == other.id


async def test_a_plan_of_absurd_usage_is_refused_and_planning_goes_on() -> None:
    planning = hot_and_cool()
    now = planning.clock.now()
    record = {
        "version": 1, "node": "other", "id": "p", "at": format_time(now), "why": "w",
        "valid_until": format_time(now + 300), "planner": "planner", "strategy": "LowNodeLoad",
        "pods": [{"uid": "u", "pod_class": "batch", "target": "cool", "cpu_millicores": 2**64}],
    }  # fmt: skip
    value = json.dumps(record).encode()
    with pytest.raises(RecordError, match="more than any"):
        take_record(planning.memory, planning.rounds.alerts, EVICTION_PLANS, b"other", value, now)
    assert await planning.after() == ["hot"]


async def test_a_node_is_not_planned_for_before_usage_shows_the_last_eviction() -> None:
    world = ReliefWorld().node("hot", 15.0).node("cool", 1.0)
    world.runs("hot", a=1.0, b=1.0, c=1.0)
    world.records = [
        msgspec.structs.replace(pod, owner=Owner(kind="StatefulSet", name=pod.uid))
        for pod in world.records
    ]
    planning = Planning(world, POLICY._replace(caps=MoveCaps(per_node=1)))
    assert await planning.after() == ["hot"]
    planning.act(planning.plans[0], "done")
    assert await planning.after(120) == []
    assert await planning.after(120) == []
    assert await planning.after(120) == ["hot"]
    first, second = planning.plans
    assert {pod.uid for pod in first.pods} != {pod.uid for pod in second.pods}


@pytest.mark.parametrize("outcome", ["observed", "recommended"])
async def test_an_observed_plan_is_made_again_as_seldom_as_its_workload_would_move(
    outcome: Outcome,
) -> None:
    planning = hot_and_cool({"a": 1.0, "b": 1.0, "c": 1.0})
    planning.world.records = [
        msgspec.structs.replace(pod, owner=Owner(kind="StatefulSet", name=pod.uid))
        for pod in planning.world.records
    ]
    await planning.after()
    planning.act(planning.plans[0], outcome)
    for _ in range(14):
        assert await planning.after(120) == []
    assert await planning.after(120) == ["hot"]
    first, second = planning.plans
    assert first.pods == second.pods
    assert planning.outcomes == []


@pytest.mark.parametrize("seconds", [-7200.0, 7200.0])
async def test_a_clock_that_is_set_changes_no_pace(seconds: float) -> None:
    planning = hot_and_cool({"a": 1.0, "b": 1.0, "c": 1.0})
    await planning.after()
    planning.act(planning.plans[0], "done")
    planning.clock.jump(seconds)
    for _ in range(14):
        assert await planning.after(120) == []
    assert await planning.after(120) == ["hot"]


async def test_a_workload_gives_no_second_pod_for_half_an_hour() -> None:
    planning = hot_and_cool({"a": 1.0, "b": 1.0, "c": 1.0})
    await planning.after()
    planning.act(planning.plans[0], "done")
    for _ in range(14):
        assert await planning.after(120) == []
    assert await planning.after(120) == ["hot"]


async def test_a_restart_between_plan_and_eviction_makes_no_second_plan() -> None:
    planning = hot_and_cool()
    await planning.after()
    memory = MoveMemory()
    for plan in planning.plans:
        key, value = plan.node.encode(), encode_json(plan)
        now = planning.clock.now()
        assert take_record(memory, ReliefAlerts(), EVICTION_PLANS, key, value, now)
    planning.start(memory)
    assert await planning.after(30) == []
    planning.act(planning.plans[0], "done")
    assert await planning.after(200) == []


async def test_a_planner_that_knows_no_former_plan_makes_the_same_one() -> None:
    """The evictor ignores the second: its id is the same."""
    planning = hot_and_cool()
    await planning.after()
    planning.start(MoveMemory())
    await planning.after(30)
    first, second = planning.plans
    assert (first.id, first.pods) == (second.id, second.pods)


async def test_no_record_is_written_after_the_lease_is_lost() -> None:
    world = ReliefWorld().node("cool", 1.0).node("other", 1.0)
    for name in ("a", "b", "c"):
        world.node(name, 12.0).runs(name, workload=name, **{f"pod-{name}": 1.0})
    planning = Planning(world)
    publish = planning.publish

    async def publish_and_lose(record: Published) -> None:
        await publish(record)
        planning.is_leader = False

    planning.rounds._publish = publish_and_lose
    assert len(await planning.after()) == 1
    assert await planning.after(PAUSE_SECONDS) == []


async def test_a_plan_that_may_have_arrived_is_not_made_again() -> None:
    planning = hot_and_cool()

    async def fail(record: Published) -> None:
        raise BrokerUnavailableError("no answer")

    planning.rounds._publish = fail
    await planning.after()
    planning.rounds._publish = planning.publish
    assert await planning.after(180) == []
    assert await planning.after(180) == ["hot"]


async def test_pods_that_cannot_be_read_are_read_again() -> None:
    planning = hot_and_cool()
    planning.failures = 1
    assert await planning.after() == []
    assert await planning.after(PAUSE_SECONDS) == ["hot"]


@pytest.mark.parametrize("flag", ["caught_up", "connected"])
async def test_nothing_is_planned_while_the_table_is_not_fed(
    flag: str, caplog: pytest.LogCaptureFixture
) -> None:
    planning = hot_and_cool()
    setattr(planning.state, flag, False)
    assert await planning.after() == await planning.after(5) == []
    assert planning.reads == []
    assert sum(record.message == "nothing is planned" for record in caplog.records) == 1
    setattr(planning.state, flag, True)
    assert await planning.after(5) == ["hot"]


async def test_nothing_is_planned_while_evictions_are_not_followed() -> None:
    planning = hot_and_cool()
    planning.moves.connected = False
    assert await planning.after() == []
    assert value_of(BLOCKED.labels("moves")) == 1
    planning.moves.connected = True
    planning.moves.complete_until = planning.clock.monotonic()
    assert await planning.after(STALE_SECONDS + 1) == []  # the broker answers, and sends nothing
    planning.moves.complete_until += 1
    assert await planning.after() == ["hot"]
    assert value_of(BLOCKED.labels("moves")) == 0
    assert STALE_SECONDS < LAST_ACTION_SECONDS


async def test_nothing_is_planned_while_the_fleet_is_silent() -> None:
    planning = hot_and_cool()
    await planning.clock.advance(600)  # no node reports
    await planning.rounds.step()
    assert (planning.plans, planning.reads) == ([], [])
    assert value_of(BLOCKED.labels("usage")) == 1
    assert await planning.after(1) == ["hot"]
    assert value_of(BLOCKED.labels("usage")) == 0


async def test_a_silent_node_is_not_relieved() -> None:
    planning = hot_and_cool()
    planning.world.node("other", 2.0)
    await planning.clock.advance(600)
    planning.world.report(planning.clock.now(), "cool", "other")
    await planning.rounds.step()
    assert planning.plans == []


@pytest.mark.parametrize("policy", [None, ReliefPolicy("LowNodeLoad is paused")])
async def test_nothing_is_planned_without_a_policy(policy: ReliefPolicy | None) -> None:
    planning = hot_and_cool()
    planning.rounds.policy = policy
    assert await planning.after() == []
    assert value_of(BLOCKED.labels("policy")) == 1


async def test_a_policy_that_is_removed_while_pods_are_read_stops_the_round() -> None:
    planning = hot_and_cool()
    read = planning.read_pods

    async def read_and_remove(nodes: Collection[str], span_seconds: float) -> NodePods:
        planning.rounds.policy = ReliefPolicy("LowNodeLoad is not configured")
        return await read(nodes, span_seconds)

    planning.rounds._read_pods = read_and_remove
    assert await planning.after() == []


async def test_a_policy_that_is_paused_while_plans_are_written_stops_the_round() -> None:
    planning = await hot_fleet(5)
    publish = planning.publish

    async def publish_and_pause(record: Published) -> None:
        await publish(record)
        planning.rounds.policy = ReliefPolicy("LowNodeLoad is paused")

    planning.rounds._publish = publish_and_pause
    assert len(await planning.after()) == 1
    planning.rounds.policy, planning.rounds._publish = POLICY, publish
    assert len(await planning.after(120)) == 4


async def test_a_node_that_is_deleted_while_pods_are_read_gets_no_plan() -> None:
    planning = hot_and_cool()
    read = planning.read_pods

    async def read_and_delete(nodes: Collection[str], span_seconds: float) -> NodePods:
        planning.world.table.drop_node("hot")
        return await read(nodes, span_seconds)

    planning.rounds._read_pods = read_and_delete
    assert await planning.after() == []
    assert await planning.after(120) == []


async def test_a_node_that_cooled_while_pods_were_read_gets_no_plan() -> None:
    planning = hot_and_cool()
    read = planning.read_pods

    async def read_and_cool(nodes: Collection[str], span_seconds: float) -> NodePods:
        planning.world.report(planning.clock.now(), "hot", alerts=())
        return await read(nodes, span_seconds)

    planning.rounds._read_pods = read_and_cool
    assert await planning.after() == []


async def test_a_dry_run_publishes_nothing() -> None:
    planning = hot_and_cool(dry=frozenset({"LowNodeLoad"}))
    before = value_of(PLANS.labels("dry"))
    assert await planning.after() == []
    assert value_of(PLANS.labels("dry")) == before + 1
    await planning.after(1200)
    assert value_of(PLANS.labels("dry")) == before + 1
    await planning.after(600)
    assert value_of(PLANS.labels("dry")) == before + 2
    planning.rounds.policy = POLICY
    assert await planning.after(120) == ["hot"]  # at once


async def test_moves_on_their_way_take_room_on_their_target() -> None:
    """The pod of the first plan would just fit a second time if it were forgotten."""
    world = ReliefWorld().node("a", 12.0).node("cool", 7.0).runs("a", workload="a", x=3.0)
    planning = Planning(world)
    assert await planning.after() == ["a"]
    world.node("b", 12.0).runs("b", workload="b", y=3.0)
    assert await planning.after(PAUSE_SECONDS) == []
    planning.act(planning.plans[0], "refused")
    assert await planning.after(120) == ["b"]


async def test_a_target_that_got_hot_is_relieved_by_its_own_usage() -> None:
    """It shows at least a part of the pod that arrived, which must not count twice."""
    world = ReliefWorld().node("a", 12.0).node("b", 2.0).node("c", 2.1)
    world.runs("a", "web", x=1.0).runs("b", "other", y=1.0)
    planning = Planning(world)
    await planning.after()
    assert [pod.target for pod in planning.plans[0].pods] == ["b"]
    hot = Usage(cpu_cores=12.0, memory_bytes=8 * GIB)
    await planning.clock.advance(PAUSE_SECONDS)
    world.report(planning.clock.now(), "b", usage=hot, alerts=(ALERT,))
    assert await planning.after() == ["b"]
    assert "cpu is 75.00%" in planning.plans[1].why


async def hot_fleet(nodes: int, **caps: int | None) -> Planning:
    world = ReliefWorld()
    for n in range(nodes):
        world.node(f"hot-{n:03d}", 12.0)
        world.runs(f"hot-{n:03d}", workload=f"w{n}", **{f"p{n}": 1.0})
    for n in range(nodes // 2):
        world.node(f"cool-{n:03d}", 1.0)
    return Planning(world, POLICY._replace(caps=MoveCaps(**caps)))


async def test_hundreds_of_hot_nodes_are_planned_for_in_bounded_rounds() -> None:
    planning = await hot_fleet(NODES_OF_A_ROUND + 170)
    sizes = [len(await planning.after(PAUSE_SECONDS)) for _ in range(7)]
    assert sizes == [10, 20, 40, 80, 100, 20, 0]
    assert len({plan.node for plan in planning.plans}) == 270


async def test_rounds_that_compute_for_long_get_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile the lease is not renewed."""
    planning = await hot_fleet(40)
    plan = ReliefPlanning.plan

    def slow(*arguments: Any) -> ReliefPlan:
        planning.clock.suspend(SLOW_SECONDS + 0.5)
        return plan(*arguments)

    monkeypatch.setattr(ReliefPlanning, "plan", slow)
    sizes = [len(await planning.after(PAUSE_SECONDS)) for _ in range(6)]
    assert sizes == [10, 5, 2, 1, 1, 1]


async def test_a_critical_alert_is_planned_for_first() -> None:
    planning = await hot_fleet(FIRST_NODES + 1)
    last = f"hot-{FIRST_NODES:03d}"
    critical = msgspec.structs.replace(ALERT, severity="critical")
    planning.world.report(NOW, last, alerts=(critical,))
    await planning.after()
    assert last in {plan.node for plan in planning.plans}


async def test_caps_hold_for_all_rounds_of_an_interval() -> None:
    planning = await hot_fleet(30, total=7)
    sizes = [len(await planning.after(PAUSE_SECONDS)) for _ in range(8)]
    assert sizes == [7, 0, 0, 0, 0, 0, 0, 0]
    assert planning.reads == planning.reads[:1]
    assert len(await planning.after(60)) == 7


async def test_caps_per_namespace_and_node_hold() -> None:
    planning = await hot_fleet(10, per_namespace=3)
    assert len(await planning.after()) == 3
    planning = hot_and_cool({"a": 0.6, "b": 0.6}, caps=MoveCaps(per_node=1))
    await planning.after()
    assert [len(plan.pods) for plan in planning.plans] == [1]


async def test_rounds_go_on_until_they_are_cancelled() -> None:
    planning = hot_and_cool()
    task = asyncio.create_task(planning.rounds.run())
    await planning.clock.advance(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [plan.node for plan in planning.plans] == ["hot"]


async def test_other_records_than_plans_and_evictions_say_nothing() -> None:
    memory = MoveMemory()
    action = ActionRecord(
        node="n", at=format_time(NOW), actuator="cluster", action="patch", outcome="done", why=""
    )
    alerts = ReliefAlerts()
    for topic in (EVICTION_PLANS, ACTIONS, ALERTS):
        assert not take_record(memory, alerts, topic, b"n", None, NOW)
    assert not take_record(memory, alerts, ACTIONS, b"n", encode_json(action), NOW)
    assert not take_record(memory, alerts, ALERTS, b"n", b'{"rule":"node_cpu"}', NOW)


@pytest.mark.parametrize("topic", [EVICTION_PLANS, ACTIONS, ALERTS], ids=lambda topic: topic.name)
@pytest.mark.parametrize("text", ["", "{", "{}", "[1]", '{"plan": 1}'])
async def test_garbage_on_the_topics_is_refused(topic: Topic, text: str) -> None:
    mark = {ACTIONS: '"evictor"', ALERTS: "all_nodes_hot"}.get(topic, "")
    with pytest.raises(RecordError):
        take_record(MoveMemory(), ReliefAlerts(), topic, b"n", f"{text}{mark}".encode(), NOW)


async def test_a_plan_under_the_key_of_another_node_is_refused() -> None:
    planning = hot_and_cool()
    await planning.after()
    value = encode_json(planning.plans[0])
    for key in (b"cool", None, b"\xff"):
        with pytest.raises(RecordError, match="differs from key"):
            take_record(MoveMemory(), ReliefAlerts(), EVICTION_PLANS, key, value, NOW)


# -- alerts about what cannot be done


def changes(planning: Planning) -> list[tuple[str, str, str | None]]:
    return [(alert.rule, alert.transition, alert.reason) for alert in planning.alerts]


async def test_a_pool_without_a_target_opens_one_alert_for_all_its_nodes() -> None:
    world = ReliefWorld().node("a", 12.0).node("b", 13.0).runs("a", "x", p=1.0)
    planning = Planning(world)
    for _ in range(5):
        assert await planning.after(120) == []
    assert changes(planning) == [("all_nodes_hot", "opened", None)]
    (alert,) = planning.alerts
    assert (alert.node, alert.pool, alert.severity) == ("", "__default_node_pool__", "critical")
    assert alert.why == ("no node is low: there is no target: none of 2 nodes may take pods")
    world.node("cool", 1.0)
    assert await planning.after(120) == ["a"]
    assert changes(planning)[1] == ("all_nodes_hot", "closed", "cooled")


async def test_a_hot_node_whose_pods_must_stay_opens_one_alert_with_the_reasons() -> None:
    planning = hot_and_cool()
    bare = [msgspec.structs.replace(pod, owner=None) for pod in planning.world.records]
    movable, planning.world.records = planning.world.records, bare
    for _ in range(5):
        assert await planning.after(120) == []
    assert changes(planning) == [("nothing_can_be_done", "opened", None)]
    (alert,) = planning.alerts
    assert (alert.node, alert.pool) == ("hot", "__default_node_pool__")
    assert "d/a stays: no controller would start the pod again" in alert.why
    planning.world.records = movable
    assert await planning.after(120) == ["hot"]
    end = planning.alerts[1]
    assert (end.transition, end.reason, end.id) == ("closed", "planned", alert.id)
    assert end.duration_seconds == 600
    assert end.position > alert.position


async def test_a_plan_that_is_not_delivered_closes_no_alert() -> None:
    planning = hot_and_cool()
    movable, planning.world.records = planning.world.records, []
    await planning.after()
    planning.world.records, planning.can_publish = movable, False
    await planning.after(120)
    planning.can_publish = True
    await planning.after(1)
    assert changes(planning) == [("nothing_can_be_done", "opened", None)]


async def test_a_node_with_pods_in_a_cool_down_is_not_hopeless() -> None:
    planning = hot_and_cool({"a": 1.0, "b": 1.0})
    await planning.after()
    planning.act(planning.plans[0], "done")
    for _ in range(5):
        assert await planning.after(120) == []
    assert planning.alerts == []


@pytest.mark.parametrize("has_other", [False, True])
@pytest.mark.parametrize("node_fit", [False, True])
async def test_a_target_that_gets_hot_gives_no_pod_back_within_half_an_hour(
    has_other: bool, node_fit: bool
) -> None:
    world = ReliefWorld().node("a", 12.0).node("b", 2.0)
    world.runs("a", "web", p=1.0).runs("b", "api", q=1.0)
    if has_other:
        world.node("other", 5.0)
    planning = Planning(world, POLICY._replace(args=LowNodeLoadArgs(node_fit=node_fit)))
    assert await planning.after() == ["a"]
    assert planning.plans[0].pods[0].target == "b"
    planning.act(planning.plans[0], "done")
    await planning.clock.advance(330)
    # The load has moved to the other node.
    now = planning.clock.now()
    alert = msgspec.structs.replace(ALERT, since=format_time(now - 60))
    world.put_state("a", 2.0, age=NOW - now + 10)
    world.put_state("b", 12.0, age=NOW - now + 10, alerts=(alert,))
    for _ in range(12):
        planned = await planning.after(120)
        if has_other:
            break
        assert planned == []
    assert planning.alerts == []
    if not has_other:
        assert await planning.after(120) == ["b"]
    target = "other" if has_other else "a"
    assert [(plan.node, plan.pods[0].target) for plan in planning.plans[1:]] == [("b", target)]


@pytest.mark.parametrize(
    "policy",
    [
        POLICY._replace(args=LowNodeLoadArgs(number_of_nodes=1)),
        POLICY._replace(
            migration=MigrationPolicy(protections=Protections(namespaces_excluded=frozenset({"d"})))
        ),
        POLICY._replace(pools=(NodePool(high_percent={"pods": 0}),)),
    ],
    ids=["args", "protections", "pools"],
)
async def test_a_round_plans_by_the_whole_policy(policy: ReliefPolicy) -> None:
    """One low node is not more than one; the namespace is excluded; a target may have no pods."""
    planning = hot_and_cool()
    planning.rounds.policy = policy
    assert await planning.after() == []
    planning.rounds.policy = POLICY
    assert await planning.after(120) == ["hot"]


async def test_a_node_whose_alert_opens_again_is_planned_for_at_once() -> None:
    planning = hot_and_cool({"a": 1.0, "b": 1.0})
    await planning.after()
    planning.act(planning.plans[0], "refused")
    assert await planning.after(PAUSE_SECONDS) == []
    planning.world.report(planning.clock.now(), "hot", alerts=())
    await planning.rounds.step()
    alert = msgspec.structs.replace(ALERT, since=format_time(planning.clock.now()))
    planning.world.report(planning.clock.now(), "hot", alerts=(alert,))
    assert await planning.after(PAUSE_SECONDS) == ["hot"]


ONLY_ONE = "ExpectedReplicas: 1 replicas, of which 1 may move and 1 be missing"


async def test_nothing_can_be_done_if_the_evictor_always_refuses_all_pods() -> None:
    """The planner knows neither replicas nor budgets, but what the evictor said about them."""
    planning = hot_and_cool()
    for _ in range(180):
        if await planning.after(60):
            planning.act(planning.plans[-1], "refused", ONLY_ONE)
    # One alert, although the evictor is asked again from time to time, because replicas change.
    assert {*changes(planning)} == {("nothing_can_be_done", "opened", None)}
    assert len({alert.id for alert in planning.alerts}) == 1
    assert planning.alerts[0].why.endswith(
        f"d/a stays: the evictor refused to evict it: {ONLY_ONE}"
    )
    assert 3 <= len(planning.plans) <= 7
    planning.world.report(planning.clock.now(), "hot", alerts=())
    await planning.after()
    assert changes(planning)[-1] == ("nothing_can_be_done", "closed", "cooled")


async def test_other_pods_leave_if_the_evictor_refuses_one() -> None:
    planning = hot_and_cool({"a": 2.0, "b": 1.0})
    await planning.after()
    (first,) = planning.plans
    planning.act(first, "refused", ONLY_ONE)
    assert await planning.after(130) == ["hot"]
    assert {pod.uid for plan in planning.plans for pod in plan.pods} == {"a", "b"}
    assert planning.alerts == []


async def test_a_node_is_not_hopeless_while_limits_let_its_pods_wait() -> None:
    planning = hot_and_cool()
    for _ in range(90):
        if await planning.after(60):
            planning.act(planning.plans[-1], "refused", "Expired: it was not the pod's turn")
    assert changes(planning) == []
    assert len(planning.plans) > 7


async def test_nodes_that_wait_because_of_a_cap_are_not_hopeless() -> None:
    planning = await hot_fleet(20)
    limits = MigrationLimits(cycle_total=3)
    planning.rounds.policy = POLICY._replace(
        caps=MoveCaps(total=3), migration=MigrationPolicy(limits=limits)
    )
    assert len(await planning.after()) == 3
    assert planning.alerts == []


async def hopeless(**changes: Any) -> Planning:
    """A planner that has opened an alert about a node."""
    planning = hot_and_cool(**changes)
    planning.world.records = []
    await planning.after()
    assert [alert.transition for alert in planning.alerts] == ["opened"]
    return planning


@pytest.mark.parametrize("reason", ["cooled", "node deleted", "policy"])
async def test_an_alert_ends_with_its_cause(reason: str) -> None:
    planning = await hopeless()
    match reason:
        case "cooled":
            planning.world.report(NOW, "hot", alerts=())
        case "node deleted":
            planning.world.table.drop_node("hot")
        case _:
            planning.rounds.policy = ReliefPolicy("LowNodeLoad is paused")
    await planning.after(1)
    assert planning.alerts[-1].reason == reason
    await planning.after(1)
    assert len(planning.alerts) == 2


async def test_an_alert_stays_open_while_the_fleet_is_silent() -> None:
    planning = await hopeless()
    await planning.clock.advance(600)
    await planning.rounds.step()
    planning.state.caught_up = False
    planning.world.table.drop_node("hot")
    await planning.rounds.step()
    assert len(planning.alerts) == 1


async def test_alerts_are_resumed_by_the_next_leader() -> None:
    planning = await hopeless()
    records = planning.alerts[:]
    planning.start(MoveMemory())
    for alert in records:
        value = encode_json(alert)
        assert take_record(MoveMemory(), planning.rounds.alerts, ALERTS, b"hot", value, NOW)
    await planning.after(120)
    assert planning.alerts == records
    planning.world.report(planning.clock.now(), "hot", alerts=())
    await planning.after(1)
    assert [alert.id for alert in planning.alerts] == [records[0].id] * 2


async def test_an_alert_without_a_valid_begin_is_refused_and_stops_no_round() -> None:
    planning = await hopeless()
    value = encode_json(planning.alerts[0])
    since = f'"since":"{planning.alerts[0].since}"'.encode()
    invalid = value.replace(since, b'"since":"yesterday"')
    assert invalid != value
    with pytest.raises(RecordError, match="since is not a time"):
        take_record(MoveMemory(), planning.rounds.alerts, ALERTS, b"hot", invalid, NOW)
    planning.world.report(NOW, "hot", alerts=())
    await planning.after(1)
    assert [alert.transition for alert in planning.alerts] == ["opened", "closed"]


async def test_an_open_alert_is_repeated_so_that_readers_know_that_it_is_open() -> None:
    planning = await hopeless()
    for _ in range(16):
        await planning.after(120)
    assert planning.alerts == [planning.alerts[0]] * 2


async def test_alerts_that_are_not_delivered_are_sent_again_and_none_without_the_lease() -> None:
    planning = hot_and_cool()
    planning.world.records = []
    planning.can_publish = False
    await planning.after()
    planning.can_publish, planning.is_leader = True, False
    await planning.after(1)
    assert planning.alerts == []
    planning.is_leader = True
    await planning.after(1)
    assert changes(planning) == [("nothing_can_be_done", "opened", None)]
