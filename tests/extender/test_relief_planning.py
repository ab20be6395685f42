"""Plans over a state table: who leaves a hot node, where the pods land, and why nothing moves."""

from typing import Any

import msgspec
import pytest

from pipeline.extender.decisions import Decisions
from pipeline.extender.plan_documents import ReliefPlan
from pipeline.extender.relief_planning import ReliefPlanning
from pipeline.extender.scheduler_api import rules_of
from pipeline.processors.descheduling.descheduler_config import read_tree
from pipeline.settings import ExtenderSettings
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.topics.alerts import OpenAlert
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.nodes import Taint
from pipeline.topics.pods import Owner, PodRecord
from pipeline.topics.resource_amounts import Resources
from tests.processors.joined import NODE_ROW, header, joined, known_pod, logged, pod_row
from tests.processors.joined import view_of as view
from tests.table.records import GIB, NOW, any_pod, node_state, running

# Without hysteresis a node is relieved at its threshold.
POLICY = HotNodePolicy(
    high_percent={"cpu": 70.0}, low_percent={"cpu": 45.0}, hysteresis_percent=0.0
)
ALERT = OpenAlert(rule="node_cpu", severity="warning", since="2023-11-14T22:00:00Z")
ROOM = Resources(cpu_millicores=16_000, memory_bytes=64 << 30)


class World:
    """Nodes of 16 cores and 64 GiB with pods, and the usage of each."""

    def __init__(self, **settings: Any) -> None:
        rules = rules_of(ExtenderSettings(**settings))
        self.table = Table(counting=rules.counting, pod_windows=8)
        self.decisions = Decisions(self.table, rules)
        self.records: list[PodRecord] = []

    def node(
        self,
        name: str,
        cpu: float | None,
        *,
        age: float = 10.0,
        with_alert: bool = True,
        **fields: Any,
    ) -> "World":
        self.table.put_node(
            TableNode(node=name, allocatable=ROOM, **({"hot_nodes": POLICY} | fields))
        )
        is_hot = cpu is not None and cpu > 11.2
        self.table.put_state(
            node_state(
                name, cpu=cpu, memory=8 * GIB, cores=16.0, room=64 * GIB, age=age,
                alerts=(ALERT,) if is_hot and with_alert else (),
            )
        )  # fmt: skip
        return self

    def runs(self, node: str, **cores: float) -> "World":
        """Prod pods of a Deployment that use and request so many cores; unlike those of `pods`
        their usage is measured."""
        rows = [
            pod_row(uid, cpu_cores_avg=used, memory_bytes_avg=GIB) for uid, used in cores.items()
        ]
        pods = [known_pod(uid, name=uid) for uid in cores]
        window = logged(joined(NODE_ROW, *rows, view=view(*pods), of=header(node, 0)))
        assert self.table.pod_history.put(window)
        for uid, used in cores.items():
            self.pod(node, uid, used)
        return self

    def pod(self, node: str, uid: str, cores: float, **fields: Any) -> "World":
        amounts = Resources(cpu_millicores=round(cores * 1000), memory_bytes=1 << 30)
        usual = {"owner": Owner(kind="ReplicaSet", name="web"), "requests": amounts}
        record = running(any_pod(uid, **(usual | fields)), node)
        self.table.put_pod(record)
        self.records.append(record)
        return self

    def plan(self, descheduling: dict[str, Any] | None = None) -> ReliefPlan:
        read = None
        if descheduling is not None:
            args = {"name": "LowNodeLoad", "args": descheduling}
            read, problems = read_tree(
                {
                    "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
                    "profiles": [{"name": "a", "pluginConfig": [args]}],
                }
            )  # fmt: skip
            assert not [problem for problem in problems if not problem.in_force]
        planning = ReliefPlanning(self.table, self.decisions, read, NOW)
        records = [pod for pod in self.records if pod.node in planning.sources]
        return planning.plan(records, self.table.pod_history)


def reason(plan: ReliefPlan) -> str:
    (outcome,) = plan.strategies
    assert outcome.moves == 0
    return outcome.reason


def test_the_pod_that_fits_the_excess_best_lands_on_the_coolest_node() -> None:
    world = World().node("hot", 12.0).node("warm", 6.0).node("cool", 2.0)
    plan = world.runs("hot", large=6.0, fitting=1.0, small=0.2).plan()
    (node,) = plan.items
    (move,) = node.moves
    assert (node.node, move.name, move.target) == ("hot", "fitting", "cool")
    assert node.why == "node usage of cpu is 75.00 percent, above 70.00"
    assert node.relieved
    assert node.projected_usage["cpu"] == pytest.approx(100 * 11 / 16)
    assert move.target_usage["cpu"] == pytest.approx(100 * 3 / 16)
    assert move.workload == "ReplicaSet/web"
    assert move.score is not None


def test_usage_after_the_landing_stays_below_the_filters_thresholds() -> None:
    world = World(cpu_threshold_percent=15).node("hot", 12.0).node("cool", 2.0)
    plan = world.runs("hot", a=1.0, b=2.0).plan()
    assert reason(plan) == "no target takes a pod of a hot node"
    stay = plan.items[0].stays[0]
    assert stay.reason == "refused by all 1 targets that have room for its usage"
    (rejected,) = stay.rejected
    assert rejected.node == "cool"
    assert rejected.reason.startswith("cpu usage would be")


def test_moves_of_one_plan_count_for_the_next_ones() -> None:
    """Together they would exceed the threshold of the filter on the coolest node."""
    world = World(cpu_threshold_percent=25).node("hot", 15.0).node("cool", 1.0).node("other", 1.1)
    moves = world.runs("hot", a=2.0, b=2.0, c=2.0).plan().items[0].moves
    assert [move.target for move in moves] == ["cool", "other"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"taints": (Taint(key="gpu", effect="NoSchedule"),)}, "does not tolerate the taint gpu"),
        ({"labels": {"zone": "b"}}, "node selector"),
    ],
)
def test_rules_of_the_scheduler_refuse_targets(fields: dict[str, Any], text: str) -> None:
    world = World().node("hot", 12.0).node("cool", 1.0, **fields).runs("hot")
    world.runs("other", web=1.0)
    world.records.clear()
    world.table.drop_node("other")
    world.pod("hot", "web", 1.0, node_selector={"zone": "a"} if "labels" in fields else {})
    window = logged(joined(
        NODE_ROW, pod_row("web", cpu_cores_avg=1.0, memory_bytes_avg=GIB),
        view=view(known_pod("web")), of=header("hot", 1),
    ))  # fmt: skip
    assert world.table.pod_history.put(window)
    (stay,) = world.plan().items[0].stays
    assert text in stay.rejected[0].reason


def test_a_cordoned_node_takes_no_pod() -> None:
    world = World().node("hot", 12.0).node("cool", 1.0, unschedulable=True).runs("hot", a=1.0)
    assert reason(world.plan()) == "no node is low: there is no target"


def test_stale_usage_is_neither_hot_nor_a_target() -> None:
    world = World().node("hot", 15.0, age=400.0).node("cool", 1.0, age=400.0)
    plan = world.runs("hot", a=1.0).plan()
    assert reason(plan) == "usage of no node is known: there are no windows, or they are too old"
    assert plan.strategies[0].known == 0


def test_a_pod_of_unknown_usage_stays() -> None:
    world = World().node("hot", 12.0).node("cool", 1.0).pod("hot", "unknown", 2.0)
    plan = world.plan()
    assert reason(plan) == "no pod of a hot node may move"
    assert plan.items[0].stays[0].reason == "usage of the pod is unknown"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"owner": None}, "no controller"),
        ({"owner": Owner(kind="DaemonSet", name="logs")}, "DaemonSet logs would start it"),
        ({"priority": 2_000_000_000}, "critical"),
        ({"deleted_at": "2023-11-14T22:13:20Z"}, "being deleted"),
        ({"volumes": ("emptyDir",)}, "emptyDir"),
    ],
)
def test_protected_pods_stay_and_say_why(fields: dict[str, Any], text: str) -> None:
    world = World().node("hot", 12.0).node("cool", 1.0).runs("hot", web=2.0)
    world.records = [msgspec.structs.replace(pod, **fields) for pod in world.records]
    assert text in world.plan().items[0].stays[0].reason


def test_a_hot_node_without_an_open_alert_is_relieved_only_by_another_configuration() -> None:
    world = World().node("hot", 12.0, with_alert=False).node("cool", 1.0).runs("hot", web=2.0)
    assert "none has an open alert" in reason(world.plan())
    assert world.plan({"highThresholds": {"cpu": 70}, "lowThresholds": {"cpu": 45}}).items[0].moves


def test_without_thresholds_there_is_no_strategy() -> None:
    plan = World().node("hot", 15.0, hot_nodes=None).plan()
    assert (plan.strategies, plan.items) == ((), ())


def test_another_configuration_applies_in_place_of_the_records() -> None:
    world = World().node("a", 10.0).node("b", 1.0).runs("a", web=2.0)
    assert reason(world.plan()) == "no node is hot"
    args = {"highThresholds": {"cpu": 60}, "lowThresholds": {"cpu": 30}}
    assert world.plan(args).items[0].moves[0].target == "b"
    excluded = args | {"evictableNamespaces": {"exclude": ["d"]}}
    plan = world.plan(excluded)
    assert plan.items[0].stays[0].reason == "the strategy moves no pods of namespace d"


def test_pools_have_their_own_thresholds_and_targets() -> None:
    world = World().node("a-hot", 10.0, labels={"pool": "a"}).node("b", 1.0, labels={"pool": "b"})
    world.node("a-cool", 2.0, labels={"pool": "a"}).runs("a-hot", web=2.0)
    args = {
        "highThresholds": {"cpu": 90}, "lowThresholds": {"cpu": 30},
        "nodePools": [
            {
                "name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}},
                "highThresholds": {"cpu": 50},
            }
        ],
    }  # fmt: skip
    plan = world.plan(args)
    assert [(each.pool, each.moves) for each in plan.strategies] == [
        ("a", 1), ("__default_node_pool__", 0)
    ]  # fmt: skip
    assert plan.items[0].moves[0].target == "a-cool"


def test_reservation_of_the_node_counts_in_its_capacity() -> None:
    annotations = {"node.koordinator.sh/reservation": '{"resources": {"cpu": "8"}}'}
    world = World().node("a", 6.0, annotations=annotations).node("b", 1.0).runs("a", web=1.0)
    (node,) = world.plan({"highThresholds": {"cpu": 70}, "lowThresholds": {"cpu": 45}}).items
    assert node.why == "node usage of cpu is 75.00 percent, above 70.00"


def test_a_threshold_of_unmeasured_usage_is_ignored() -> None:
    world = World().node("a", 12.0).node("b", 1.0).runs("a", web=1.0)
    args = {"highThresholds": {"cpu": 60, "x.io/y": 50}, "lowThresholds": {"cpu": 30, "x.io/y": 5}}
    read, _ = read_tree(
        {
            "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
            "profiles": [
                {"name": "a", "pluginConfig": [{"name": "LowNodeLoad", "args": args}]}
            ],
        }
    )  # fmt: skip
    planning = ReliefPlanning(world.table, world.decisions, read, NOW)
    assert planning.ignored_resources == ["x.io/y"]
    assert planning.plan(world.records, world.table.pod_history).strategies[0].moves == 1


def test_enabled_strategies_run_after_each_other_and_move_no_pod_twice() -> None:
    world = World().node("gold-1", 12.0, labels={"tier": "gold"})
    world.node("silver-1", 1.0, labels={"tier": "silver"}).runs("gold-1", a=1.0, b=1.0)
    names = ("gold", "silver")
    tiers = [{"name": name, "nodeSelector": {"matchLabels": {"tier": name}}} for name in names]
    low = {"highThresholds": {"cpu": 70}, "lowThresholds": {"cpu": 45}, "hysteresisPercent": 0}
    read, problems = read_tree(
        {
            "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
            "profiles": [
                {
                    "name": "a",
                    "plugins": {"balance": {"enabled": [{"name": "CustomPriority"}]}},
                    "pluginConfig": [
                        {"name": "LowNodeLoad", "args": low},
                        {"name": "CustomPriority", "args": {"evictionOrder": tiers}},
                    ],
                }
            ],
        }
    )  # fmt: skip
    assert not [problem for problem in problems if not problem.in_force]
    planning = ReliefPlanning(world.table, world.decisions, read, NOW)
    plan = planning.plan(world.records, world.table.pod_history)
    assert [each.strategy for each in plan.strategies] == ["LowNodeLoad", "CustomPriority"]
    moves = [(node.strategy, move.name) for node in plan.items for move in node.moves]
    assert [strategy for strategy, _ in moves] == ["LowNodeLoad", "CustomPriority"]
    assert {name for _, name in moves} == {"a", "b"}
