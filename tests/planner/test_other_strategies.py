"""Strategies beside LowNodeLoad in the planner: the same rules hold for each of them."""

from typing import Any

import pytest

from actuators.planner import relief_rounds
from actuators.planner.planning_gate import BLOCKED, PAUSED
from actuators.planner.relief_policy import ReliefPolicy, relief_policy
from actuators.planner.relief_rounds import FIRST_NODES, PAUSE_SECONDS
from pipeline.processors.descheduling.move_memory import LOOK_BACK_SECONDS, MoveMemory
from pipeline.processors.descheduling.move_outcomes import JUDGED_PLANS
from pipeline.processors.descheduling.strategy import MOST_MOVES
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.alerts import OpenAlert
from pipeline.topics.eviction_requests import EvictionRequestRecord
from pipeline.topics.pods import Owner
from pipeline.topics.resource_amounts import Resources
from tests.extender.relief_world import LOW, TIERS, ReliefWorld, configuration, profile
from tests.metric_values import value_of
from tests.planner.test_relief_rounds import Planning
from tests.processors.descheduling.test_move_memory import action, leaving, plan
from tests.table.records import NOW

Case = dict[str, Any]
STRATEGIES: dict[str, Case] = {
    "CustomPriority": TIERS,
    "DrainNode": TIERS | {"mode": "DrainNode"},
    "FragmentationAware": {},
    "ScaleDownBinPack": {"strategy": "EvictDirectly", "maxPodsToEvict": 1},
    "NodeReservation": {},
    "NodeRequests": {},
}
INTERVAL_SECONDS = 120.0
SMALL = Resources(cpu_millicores=1)
RESERVING = {"node.koordinator.sh/reservation": '{"reservedCPUs": "0-1"}'}


def plugin(name: str) -> str:
    return "CustomPriority" if name == "DrainNode" else name


def policy_of(*names: str, dry: tuple[str, ...] = (), **fields: Any) -> ReliefPolicy:
    args = {plugin(name): STRATEGIES.get(name, LOW) for name in names}
    args |= {name: args[name] | {"dryRun": True} for name in dry}
    return relief_policy(configuration(profile(args), **fields))


def world() -> ReliefWorld:
    """A node of the expensive tier from which each strategy moves a pod, and one that takes it."""
    nodes = ReliefWorld().node("gold", 8.0, labels={"tier": "gold"}, annotations=RESERVING)
    nodes.node("silver", 1.0, labels={"tier": "silver"})
    nodes.runs("gold", "web", a=4.0)
    return nodes.pod(
        "gold", "b", 2.0, owner=Owner(kind="ReplicaSet", name="db"), annotations=pinned("1-2")
    )


def pinned(cpus: str) -> dict[str, str]:
    return {"scheduling.koordinator.sh/resource-status": f'{{"cpuset": "{cpus}"}}'}


class Asking(Planning):
    """Rounds while the expensive node asks that 1.5 cores leave it, again and again."""

    async def after(self, seconds: float = 0.0) -> list[str]:
        now = self.clock.now()
        assert self.rounds.requests.take(asked("gold", now, cpu_millicores=1500), now, now)
        return await super().after(seconds)


def asked(node: str, now: float, **fields: Any) -> EvictionRequestRecord:
    values = {"id": "r", "requester": "agent", "why": "memory is reclaimed", "classes": ("prod",)}
    until = format_time(now + 300)
    return EvictionRequestRecord(
        node=node, at=format_time(now), valid_until=until, **(values | fields)
    )


def planning_of(*names: str, **fields: Any) -> Planning:
    kind = Asking if "NodeRequests" in names else Planning
    return kind(world(), policy_of(*names, **fields))


def with_hot_node(planning: Planning, name: str = "hot") -> Planning:
    planning.world.node(name, 12.0).runs(name, f"of-{name}", **{f"pod-{name}": 1.0})
    return planning


def judge(memory: MoveMemory, strategy: str) -> None:
    """Let the last plans of a strategy have failed."""
    for i in range(JUDGED_PLANS):
        action = ActionRecord(
            node="hot", at=format_time(NOW - 60), actuator="planner", action="outcome",
            outcome="failed", why="", plan=f"{strategy}-{i}", strategy=strategy,
        )  # fmt: skip
        assert memory.take_action(action, NOW)


@pytest.mark.parametrize("name", STRATEGIES)
async def test_an_enabled_strategy_is_planned_once_an_interval(name: str) -> None:
    planning = planning_of(name)
    assert await planning.after() == ["gold"]
    (plan,) = planning.plans
    assert plan.id == f"gold/{plugin(name)}/{int(NOW // LOOK_BACK_SECONDS)}.0"
    assert (plan.planner, plan.strategy, plan.waiting) == ("planner", plugin(name), None)
    assert {pod.target for pod in plan.pods} == {"silver"}
    assert plan.why
    assert "hot" not in plan.why
    assert planning.reads == [{"gold"}]
    # It expires unexecuted: the node rests until then, and nothing is read in between.
    for _ in range(10):
        assert await planning.after(INTERVAL_SECONDS / 10) == []
    assert planning.reads == [{"gold"}]
    assert await planning.after(2 * INTERVAL_SECONDS) == ["gold"]
    assert len({plan.id for plan in planning.plans}) == 2


@pytest.mark.parametrize("name", STRATEGIES)
async def test_a_workload_that_was_moved_gives_no_pod_for_half_an_hour(name: str) -> None:
    planning = planning_of(name)
    await planning.after()
    planning.act(planning.plans[0], "done")
    moved = {pod.workload for pod in planning.plans[0].pods}
    for _ in range(12):
        await planning.after(INTERVAL_SECONDS)
    assert not moved & {pod.workload for plan in planning.plans[1:] for pod in plan.pods}


@pytest.mark.parametrize("name", STRATEGIES)
async def test_a_dry_run_publishes_nothing(name: str) -> None:
    assert await planning_of(name, dryRun=True).after() == []


async def test_each_strategy_has_its_own_dry_run() -> None:
    planning = planning_of("FragmentationAware", "CustomPriority", dry=("CustomPriority",))
    await planning.after()
    assert [plan.strategy for plan in planning.plans] == ["FragmentationAware"]


async def test_a_dry_run_holds_no_other_strategy_back() -> None:
    """The node gets hot after a dry run of another strategy planned for it."""
    planning = planning_of("LowNodeLoad", "CustomPriority", dry=("CustomPriority",))
    assert await planning.after() == []
    planning.world.node("gold", 12.0, labels={"tier": "gold"})
    assert await planning.after(PAUSE_SECONDS) == ["gold"]
    assert [plan.strategy for plan in planning.plans] == ["LowNodeLoad"]


@pytest.mark.parametrize("name", STRATEGIES)
async def test_nothing_is_planned_without_the_lease_or_while_the_table_is_not_fed(
    name: str,
) -> None:
    planning = planning_of(name)
    planning.is_leader = False
    assert await planning.after() == []
    planning = planning_of(name)
    planning.state.caught_up = False
    assert await planning.after() == []
    assert planning.reads == []


@pytest.mark.parametrize("name", STRATEGIES)
async def test_the_caps_of_the_configuration_hold(name: str) -> None:
    assert await planning_of(name, maxNoOfPodsToEvictTotal=0).after() == []
    planning = planning_of(name, maxNoOfPodsToEvictPerNode=1)
    assert await planning.after() == ([] if name == "DrainNode" else ["gold"])
    assert [len(plan.pods) for plan in planning.plans] in ([1], [])


@pytest.mark.parametrize("name", STRATEGIES)
async def test_a_strategy_that_does_not_help_is_paused_alone(name: str) -> None:
    planning = with_hot_node(planning_of("LowNodeLoad", name))
    judge(planning.memory, plugin(name))
    assert await planning.after() == ["hot"]
    assert planning.plans[0].strategy == "LowNodeLoad"
    assert value_of(PAUSED.labels(plugin(name))) == 1
    assert value_of(PAUSED.labels("LowNodeLoad")) == 0
    assert value_of(BLOCKED.labels("outcome")) == 0
    planning = planning_of(name)
    judge(planning.memory, plugin(name))
    assert await planning.after() == []
    assert value_of(BLOCKED.labels("outcome")) == 1


@pytest.mark.parametrize("name", STRATEGIES)
async def test_a_strategy_goes_on_while_low_node_load_is_paused(name: str) -> None:
    planning = with_hot_node(planning_of("LowNodeLoad", name))
    judge(planning.memory, "LowNodeLoad")
    await planning.after()
    assert {plan.strategy for plan in planning.plans} == {plugin(name)}


async def test_hot_nodes_come_first_and_all_strategies_share_the_caps() -> None:
    planning = planning_of("LowNodeLoad", "CustomPriority", maxNoOfPodsToEvictTotal=2)
    assert await with_hot_node(planning).after() == ["hot", "gold"]
    assert [len(plan.pods) for plan in planning.plans] == [1, 1]


async def test_a_node_is_drained_whole_or_not_at_all_over_rounds() -> None:
    """One of two pods is planned in the interval before: the cap leaves room for one."""
    planning = with_hot_node(planning_of("LowNodeLoad", "DrainNode", maxNoOfPodsToEvictTotal=2))
    planning.world.node("silver", 1.0, labels={"tier": "gold"})
    assert await planning.after() == ["hot"]
    planning.world.node("late", 1.0, labels={"tier": "silver"})
    assert await planning.after(INTERVAL_SECONDS) == []
    assert await planning.after(INTERVAL_SECONDS) == ["gold"]
    assert len(planning.plans[-1].pods) == 2


async def test_scale_down_evicts_its_most_pods_in_an_interval() -> None:
    nodes = ReliefWorld()
    for i in range(3 * FIRST_NODES):
        nodes.node(f"n{i:02}", 2.0).runs(f"n{i:02}", f"web-{i}", **{f"p{i}": 1.0})
    planning = Planning(nodes, policy_of("ScaleDownBinPack"))
    await planning.after()
    for _ in range(5):
        await planning.after(PAUSE_SECONDS)
    assert len(planning.reads) > 1
    assert sum(len(plan.pods) for plan in planning.plans) == 1


async def test_many_nodes_are_planned_for_in_bounded_rounds() -> None:
    nodes = ReliefWorld()
    for i in range(4 * FIRST_NODES):
        nodes.node(f"n{i:02}", 8.0).runs(f"n{i:02}", f"web-{i}", **{f"p{i}": 8.0 + i / 100})
        nodes.node(f"to-{i:02}", 1.0)
    planning = Planning(nodes, policy_of("FragmentationAware"))
    # The most uneven nodes first.
    assert {*await planning.after()} == {f"n{i}" for i in range(30, 40)}
    await planning.after(PAUSE_SECONDS)
    await planning.after(PAUSE_SECONDS)
    assert {plan.node for plan in planning.plans} == {f"n{i:02}" for i in range(40)}
    assert [len(nodes) for nodes in planning.reads] == [10, 20, 10]
    await planning.after(PAUSE_SECONDS)
    assert len(planning.reads) == 3


@pytest.mark.parametrize("is_hot", [False, True])
async def test_a_plan_is_judged_by_its_targets(is_hot: bool) -> None:
    planning = planning_of("FragmentationAware")
    await planning.after()
    planning.act(planning.plans[0], "done")
    if is_hot:
        await planning.after(60.0)
        opened = format_time(planning.clock.now())
        alert = OpenAlert(rule="node_cpu", severity="warning", since=opened, usage_percent=75.0)
        planning.world.report(planning.clock.now(), "silver", alerts=(alert,))
        (moved,) = [
            pod for pod in planning.world.records if pod.uid == planning.plans[0].pods[0].uid
        ]
        planning.world.pod("silver", "new", 1.0, owner=moved.owner, created_at=opened)
    for _ in range(8):
        await planning.after(60.0)
    verdict = planning.outcomes[0]
    assert verdict.outcome == ("failed" if is_hot else "done")
    assert verdict.why == ("silver got hot" if is_hot else "no target got hot")
    assert verdict.strategy == "FragmentationAware"


def test_strategies_that_are_enabled_and_evict_are_planned() -> None:
    assert policy_of("LowNodeLoad").strategies == ("LowNodeLoad",)
    policy = policy_of("FragmentationAware", "CustomPriority")
    assert policy.strategies == ("FragmentationAware", "CustomPriority")
    assert policy.why_not == "LowNodeLoad is not configured"
    assert policy_of("ScaleDownBinPack").most_pods == {"ScaleDownBinPack": 1}
    args: Case = {"ScaleDownBinPack": {}, "FragmentationAware": {"paused": True}}
    assert relief_policy(configuration(profile(args))).strategies == ()


async def test_a_node_is_planned_for_as_soon_as_it_reserves_cpus_of_pods() -> None:
    nodes = ReliefWorld().node("a", 6.0).node("b", 1.0).node("c", 1.0)
    owners = [Owner(kind="ReplicaSet", name=name) for name in ("one", "two", "three")]
    for name, owner, cpus in zip("xyz", owners, ("0-1", "2-3", "4"), strict=True):
        nodes.pod("a", name, 2.0, owner=owner, annotations=pinned(cpus))
    planning = Planning(nodes, policy_of("NodeReservation"))
    assert await planning.after() == []
    assert planning.reads == []
    nodes.node("a", 6.0, annotations={"node.koordinator.sh/reservation": '{"reservedCPUs": "3,4"}'})
    assert await planning.after(PAUSE_SECONDS) == ["a"]
    (plan,) = planning.plans
    assert {pod.name for pod in plan.pods} == {"y", "z"}
    assert "its node reserves CPU " in plan.why
    # It changes again: pods of a plan that is under way are not planned again, others later.
    planning.act(plan, "done")
    for name in ("y", "z"):
        nodes.table.drop_pod("a", name)
    assert not nodes.table.taken_cpus()
    nodes.node("a", 6.0, annotations={"node.koordinator.sh/reservation": '{"reservedCPUs": "0"}'})
    assert await planning.after(PAUSE_SECONDS) == []
    for _ in range(4):
        await planning.after(INTERVAL_SECONDS)
    assert [{pod.name for pod in plan.pods} for plan in planning.plans] == [{"y", "z"}, {"x"}]


async def test_pods_on_reserved_cpus_that_may_not_leave_stay() -> None:
    planning = planning_of("NodeReservation")
    planning.world.node("gold", 8.0, annotations=RESERVING)
    planning.world.table.drop_pod("gold", "b")
    planning.world.records.clear()
    planning.world.pod("gold", "bare", 2.0, owner=None, annotations=pinned("1"))
    assert await planning.after() == []
    assert planning.reads == [{"gold"}]


@pytest.mark.parametrize(
    ("annotation", "status"),
    [
        ("{", '{"cpuset": "0"}'), ('{"resources": {"cpu": "2"}}', '{"cpuset": "0"}'),
        ('{"reservedCPUs": "0-1"}', '{"cpuset": "9-"}'), ('{"reservedCPUs": "0-1"}', "[]"),
        ('{"reservedCPUs": "0-1"}', "{}"), ('{"reservedCPUs": "0-1"}', '{"cpuset": "2"}'),
    ],
)  # fmt: skip
async def test_other_annotations_than_lists_of_the_same_cpus_move_nothing(
    annotation: str, status: str
) -> None:
    nodes = ReliefWorld().node("b", 1.0)
    nodes.node("a", 6.0, annotations={"node.koordinator.sh/reservation": annotation})
    nodes.pod("a", "x", 2.0, annotations={"scheduling.koordinator.sh/resource-status": status})
    planning = Planning(nodes, policy_of("NodeReservation"))
    assert await planning.after() == []
    assert planning.reads == []


@pytest.mark.parametrize("name", STRATEGIES)
async def test_no_strategy_moves_pods_to_a_node_that_gave_some_to_theirs(name: str) -> None:
    planning = planning_of(name)
    gave = plan(leaving("x", "ReplicaSet/d/other", "gold"), node="silver", at=NOW - 60)
    planning.memory.take_plan(gave, NOW)
    planning.memory.take_action(action("done", "x", node="silver", at=NOW - 60), NOW)
    assert await planning.after() == []
    planning.start(MoveMemory(), planning.rounds.policy)
    assert await planning.after(INTERVAL_SECONDS) == ["gold"]


@pytest.mark.parametrize("name", ["FragmentationAware", "ScaleDownBinPack"])
async def test_resources_that_are_not_counted_stop_this_strategy_alone(name: str) -> None:
    """Requests of other resources than those of the extender's rules are not summed up."""
    args = STRATEGIES[name] | {"resources": ["cpu", "example.com/gpu"]}
    named = profile({name: args, "CustomPriority": TIERS})
    planning = Planning(world(), relief_policy(configuration(named)))
    assert await planning.after() == ["gold"]
    assert [plan.strategy for plan in planning.plans] == ["CustomPriority"]
    outcome = planning.world.plan_by(configuration(profile({name: args}))).strategies[0]
    assert (outcome.strategy, outcome.reason) == (
        name, "requests of example.com/gpu are not counted: no rule of the extender names it"
    )  # fmt: skip


def with_small_pods(count: int) -> ReliefWorld:
    """A node of the expensive tier with so many pods that need almost nothing."""
    nodes = ReliefWorld().node("gold", 8.0, labels={"tier": "gold"})
    nodes.node("silver", 1.0, labels={"tier": "silver"})
    for i in range(count):
        name = f"pod-{i}"
        nodes.pod("gold", name, 0.001, owner=Owner(kind="ReplicaSet", name=name), requests=SMALL)
    return nodes


async def test_a_plan_of_tiers_takes_a_bounded_number_of_pods_off_a_node() -> None:
    planning = Planning(with_small_pods(MOST_MOVES + 1), policy_of("CustomPriority"))
    assert await planning.after() == ["gold"]
    assert [len(plan.pods) for plan in planning.plans] == [MOST_MOVES]


@pytest.mark.parametrize("surplus", [0, 1])
async def test_a_node_with_too_many_pods_is_not_drained(
    surplus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.processors.descheduling.tier_moves.MOST_DRAINED", 40)
    planning = Planning(with_small_pods(40 + surplus), policy_of("DrainNode"))
    assert await planning.after() == ([] if surplus else ["gold"])
    assert [len(plan.pods) for plan in planning.plans] == ([] if surplus else [40])


async def test_the_log_says_why_no_pod_leaves_a_node_that_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logged: list[tuple[str, dict[str, Any]]] = []

    def note(event: str, **fields: Any) -> None:
        logged.append((event, fields))

    monkeypatch.setattr(relief_rounds.log, "info", note)
    planning = Planning(world().node("silver", 12.0), policy_of("NodeRequests"))
    now = planning.clock.now()
    request = asked("gold", now, cpu_millicores=1500, pods=("a", "b"))
    assert planning.rounds.requests.take(request, now, now)
    assert await planning.after() == []
    (fields,) = (fields for event, fields in logged if event.startswith("no pod leaves"))
    assert (fields["node"], fields["pods"]) == ("gold", 2)
    assert fields["why"].startswith("d/a: no other node takes it: silver: ")
