"""A plan that is only shown goes by the former plans, evictions and requests of the planner."""

import math

import msgspec

from actuators.planner.former_moves import FormerMoves, no_former_moves
from pipeline.cli.plan import planning_after
from pipeline.extender.plan_documents import PlannedNode, ReliefPlan
from pipeline.processors.descheduling.descheduler_config import Descheduling
from pipeline.processors.descheduling.move_outcomes import JUDGED_PLANS
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod
from pipeline.topics.workloads import WorkloadRecord
from tests.extender.relief_world import LOW, ReliefWorld, configuration, profile
from tests.planner.test_other_strategies import asked
from tests.planner.test_relief_rounds import Planning, hot_and_cool
from tests.table.records import NOW

LOW_NODE_LOAD = configuration(profile({"LowNodeLoad": LOW}))


def shown(
    world: ReliefWorld, former: FormerMoves, descheduling: Descheduling | None = None,
    now: float = NOW,
) -> ReliefPlan:  # fmt: skip
    planning = planning_after(former, world.table, world.decisions, descheduling, now)
    records = [pod for pod in world.records if pod.node in planning.sources]
    return planning.plan(records, world.table.pod_history)


def node_of(plan: ReliefPlan) -> PlannedNode:
    (node,) = plan.items
    return node


async def planned() -> tuple[Planning, EvictionPlanRecord, FormerMoves]:
    """A planner with one plan, and what a reader of its topics knows."""
    planning = hot_and_cool({"a": 1.0, "b": 0.9})
    await planning.after()
    (plan,) = planning.plans
    former = no_former_moves(planning.world.table)
    assert former.memory.take_plan(plan, NOW)
    return planning, plan, former


async def test_without_former_moves_the_plan_is_that_of_the_planner() -> None:
    planning, plan, _ = await planned()
    node = node_of(shown(planning.world, no_former_moves(planning.world.table)))
    assert [move.name for move in node.moves] == [pod.name for pod in plan.pods]


async def test_pods_of_a_node_with_a_plan_under_way_stay() -> None:
    planning, plan, former = await planned()
    for descheduling in (None, LOW_NODE_LOAD):
        node = node_of(shown(planning.world, former, descheduling))
        assert node.moves == ()
        assert {stay.reason for stay in node.stays} == {f"plan {plan.id} is under way"}


async def test_an_only_replica_that_the_evictor_refused_stays_and_others_leave() -> None:
    planning, plan, former = await planned()
    (only,) = plan.pods
    (other,) = {"a", "b"} - {only.name}
    refused = ActionRecord(
        node="hot", at=format_time(NOW), actuator="evictor", action="evict", outcome="refused",
        why="", before={"default/x": only.uid}, plan=plan.id, workload=only.workload,
        error="ExpectedReplicas: 1 replicas, of which 1 may move and 1 be missing",
    )  # fmt: skip
    for memory in (former.memory, planning.memory):
        assert memory.take_action(refused, NOW)
    node = node_of(shown(planning.world, former, None, NOW + 1))
    assert [move.name for move in node.moves] == [other]
    stays = {stay.name: stay.reason for stay in node.stays}
    assert stays[only.name].startswith(
        "the evictor refused to evict it: ExpectedReplicas: 1 replicas"
    )
    await planning.after(120.0)
    assert [pod.name for pod in planning.plans[-1].pods] == [other]


def request_world() -> ReliefWorld:
    return ReliefWorld().node("gold", 9.0).node("silver", 1.0).runs("gold", a=2.0)


REQUESTS = configuration(profile({"LowNodeLoad": LOW, "NodeRequests": {}}))


def test_requests_of_nodes_are_planned_if_the_configuration_says_so() -> None:
    world = request_world()
    former = no_former_moves(world.table)
    assert former.requests.take(asked("gold", NOW, cpu_millicores=1500), NOW, NOW)
    node = node_of(shown(world, former, REQUESTS))
    assert (node.node, node.strategy) == ("gold", "NodeRequests")
    assert node.why == "the node asks for relief: agent: memory is reclaimed"
    assert [(move.name, move.target) for move in node.moves] == [("a", "silver")]
    assert shown(world, former, LOW_NODE_LOAD).items == ()
    # Its five minutes are over.
    assert shown(world, former, REQUESTS, NOW + 301).items == ()


def incoming(world: ReliefWorld, target: str, cores: float) -> FormerMoves:
    """A plan that has just put a pod on this node."""
    former = no_former_moves(world.table)
    pod = LeavingPod(
        uid="x", namespace="default", name="x", pod_class="prod", target=target,
        cpu_millicores=round(1000 * cores), memory_bytes=1,
    )  # fmt: skip
    plan = EvictionPlanRecord(
        id="other/LowNodeLoad/x/0", node="other", planner="planner", strategy="LowNodeLoad",
        at=format_time(NOW - 1), valid_until=format_time(NOW + 100), why="it is hot", pods=(pod,),
    )  # fmt: skip
    assert former.memory.take_plan(plan, NOW)
    return former


def test_pods_on_their_way_take_room_and_make_no_node_hot() -> None:
    world = ReliefWorld().node("hot", 12.0).node("cool", 1.0).node("next", 2.0)
    world.runs("hot", web=2.0)
    for descheduling in (None, LOW_NODE_LOAD):
        calm = node_of(shown(world, no_former_moves(world.table), descheduling))
        assert [move.target for move in calm.moves] == ["cool"]
        node = node_of(shown(world, incoming(world, "cool", 12.0), descheduling))
        assert (node.node, [move.target for move in node.moves]) == ("hot", ["next"])


def test_pods_on_their_way_to_a_hot_node_do_not_make_it_hotter() -> None:
    world = ReliefWorld().node("hot", 12.0).node("cool", 1.0).runs("hot", web=2.0)
    node = node_of(shown(world, incoming(world, "hot", 3.0), LOW_NODE_LOAD))
    assert node.usage["cpu"] == 75.0


def test_no_node_is_hot_by_pods_on_their_way_alone() -> None:
    world = ReliefWorld().node("warm", 9.0).node("cool", 1.0).runs("warm", web=2.0)
    plan = shown(world, incoming(world, "warm", 3.0), LOW_NODE_LOAD)
    (outcome,) = plan.strategies
    assert outcome.reason == "no node is hot by its own usage, without pods on their way to it"


def verdicts(strategy: str) -> list[ActionRecord]:
    return [
        ActionRecord(
            node="hot", at=format_time(NOW), actuator="planner", action="outcome",
            outcome="failed", why="", plan=f"{strategy}/{place}", strategy=strategy,
        )
        for place in range(JUDGED_PLANS)
    ]  # fmt: skip


def test_what_is_paused_because_plans_did_not_help_does_not_run() -> None:
    world = request_world().node("hot", 12.0).runs("hot", web=2.0)
    former = no_former_moves(world.table)
    assert former.requests.take(asked("gold", NOW, cpu_millicores=1500), NOW, math.inf)
    assert len(shown(world, former, REQUESTS).items) == 2
    for action in verdicts("NodeRequests"):
        assert former.memory.take_action(action, NOW)
    assert [node.strategy for node in shown(world, former, REQUESTS).items] == ["LowNodeLoad"]
    for action in verdicts("LowNodeLoad"):
        assert former.memory.take_action(action, NOW)
    plan = shown(world, former, REQUESTS)
    assert plan.items == ()
    assert {outcome.reason for outcome in plan.strategies} == {"of its last plans too few helped"}


async def test_planner_and_shown_plan_move_no_only_replica() -> None:
    """Before any evictor refused it."""
    planning = hot_and_cool({"a": 1.0})
    former = no_former_moves(planning.world.table)
    record = WorkloadRecord(namespace="d", kind="ReplicaSet", name="web", replicas=1)
    for replicas in (former.replicas, planning.rounds.replicas):
        assert replicas.take(b"d/ReplicaSet/web", encode_json(record))
    node = node_of(shown(planning.world, former))
    (stay,) = node.stays
    assert (node.moves, stay.reason) == (
        (), "1 replicas, of which 1 may move and 1 be missing"
    )  # fmt: skip
    assert await planning.after() == []
    (alert,) = planning.alerts
    assert (alert.rule, alert.transition) == ("nothing_can_be_done", "opened")
    skipping = configuration(
        profile({"LowNodeLoad": LOW, "MigrationController": {"skipCheckExpectedReplicas": True}})
    )
    assert len(node_of(shown(planning.world, former, skipping)).moves) == 1
    more = encode_json(msgspec.structs.replace(record, replicas=2))
    for replicas in (former.replicas, planning.rounds.replicas):
        assert replicas.take(b"d/ReplicaSet/web", more)
    assert len(node_of(shown(planning.world, former)).moves) == 1
    assert await planning.after(120.0) == ["hot"]
