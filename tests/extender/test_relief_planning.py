"""Plans over a state table: who leaves a hot node, where the pods land, and why nothing moves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.cli.plan import plan_lines
from pipeline.extender.hopeless_nodes import hopeless_nodes
from pipeline.extender.plan_documents import ReliefPlan
from pipeline.extender.relief_planning import AlertRelief, ReliefPlanning
from pipeline.processors.descheduling.configured_strategies import pools_of_policies
from pipeline.processors.descheduling.cool_downs import IncomingUsage
from pipeline.processors.descheduling.descheduler_config import read_tree
from pipeline.processors.descheduling.low_node_load import NodePool
from pipeline.processors.descheduling.low_node_load_args import LowNodeLoadArgs
from pipeline.processors.descheduling.migration_fit import NOWHERE
from pipeline.processors.eviction.migration_policy import MigrationPolicy
from pipeline.processors.policy.selectors import Selector
from pipeline.topics.alerts import OpenAlert
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.node_state import AggregatedUsage
from pipeline.topics.nodes import Taint
from pipeline.topics.pods import Owner
from pipeline.topics.resource_amounts import Resources, Usage
from tests.extender.relief_world import ALERT, LOW, POLICY, TIERS, configuration, profile
from tests.extender.relief_world import ReliefWorld as World
from tests.processors.joined import NODE_ROW, header, joined, known_pod, logged, pod_row
from tests.processors.joined import view_of as view
from tests.table.records import GIB, NOW, any_pod, running


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
    assert node.why == "node usage of cpu is 75.00%, above 70.00%"
    assert node.relieved
    assert node.projected_usage["cpu"] == pytest.approx(100 * 11 / 16)
    assert move.target_usage_before["cpu"] == pytest.approx(100 * 2 / 16)
    assert move.target_usage["cpu"] == pytest.approx(100 * 3 / 16)
    assert move.workload == "ReplicaSet/web"
    assert move.score is not None


def test_usage_of_a_target_is_shown_before_and_after_all_moves() -> None:
    world = World().node("hot", 15.0).node("cool", 1.0).runs("hot", a=2.0, b=2.0)
    lines = [line.strip() for line in plan_lines(world.plan()) if "usage there" in line]
    text = "usage there cpu 6.2% -> 31.2%, memory 12.5% -> 15.6% after all moves"
    assert lines == [text, text]
    world.put_state("cool", 1.0, peaks={"p95": Usage(cpu_cores=4.0)}, predictor="p95")
    (line, _) = [line.strip() for line in plan_lines(world.plan()) if "usage there" in line]
    assert line == f"{text}; predicted peak cpu 50.0%"


def test_usage_after_the_landing_stays_below_the_filters_thresholds() -> None:
    world = World(cpu_threshold_percent=15).node("hot", 12.0).node("cool", 2.0)
    plan = world.runs("hot", a=1.0, b=2.0).plan()
    assert reason(plan) == "no target takes a pod of a hot node"
    stay = plan.items[0].stays[0]
    assert stay.reason == "refused by the only target that has room for its usage"
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


def test_a_cluster_without_nodes_has_a_plan() -> None:
    assert World().plan().strategies == World().plan(LOW).strategies == ()
    (outcome,) = World().plan_by(configuration(profile({"CustomPriority": TIERS}))).strategies
    assert outcome.reason == "fewer than two tiers have nodes"


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
    assert node.why == "node usage of cpu is 75.00%, above 70.00%"
    # What processes outside of Kubernetes use of it is no usage.
    outside = Usage(cpu_cores=2.0, memory_bytes=0.0)
    world.put_state("a", 6.0, system_usage=outside, host_app_usage=Usage(cpu_cores=0.0))
    assert not world.plan({"highThresholds": {"cpu": 70}, "lowThresholds": {"cpu": 45}}).items


def test_a_target_gives_no_room_that_its_annotation_reserves() -> None:
    annotations = {"node.koordinator.sh/reservation": '{"reservedCPUs": "0-11"}'}
    world = World().node("a", 12.0).node("b", 1.5, annotations=annotations).node("c", 6.0)
    world.runs("a", web=1.5)
    (node,) = world.plan({"highThresholds": {"cpu": 70}, "lowThresholds": {"cpu": 45}}).items
    assert [move.target for move in node.moves] == ["c"]


def test_the_usage_of_an_alert_is_in_percent_of_what_is_not_reserved() -> None:
    annotations = {"node.koordinator.sh/reservation": '{"resources": {"cpu": "8"}}'}
    world = World().node("a", 12.0, annotations=annotations).node("b", 1.0).runs("a", web=1.0)
    (node,) = world.plan().items
    assert node.why == "node usage of cpu is 75.00%, above 70.00%"


@pytest.mark.parametrize(("policy", "moves"), [("Default", 1), ("ReservedCPUsOnly", 0)])
def test_requests_are_held_to_what_a_reservation_leaves(policy: str, moves: int) -> None:
    """All of 8 cores and 2 of 64 GiB are more out of balance than half of 16 cores."""
    text = f'{{"reservedCPUs": "0-7", "applyPolicy": "{policy}"}}'
    annotations = {"node.koordinator.sh/reservation": text}
    world = World().node("a", 1.0, annotations=annotations).node("b", 1.0)
    world.pod("a", "x", 4.0).pod("a", "y", 4.0)
    args = {"imbalanceThreshold": 0.3}
    plan = world.plan_by(configuration(profile({"FragmentationAware": args})))
    assert plan.strategies[0].moves == moves


def test_a_threshold_of_unmeasured_usage_is_ignored() -> None:
    world = World().node("a", 12.0).node("b", 1.0).runs("a", web=1.0)
    args = {"highThresholds": {"cpu": 60, "x.io/y": 50}, "lowThresholds": {"cpu": 30, "x.io/y": 5}}
    read = configuration(profile({"LowNodeLoad": args}))
    planning = ReliefPlanning(world.table, world.decisions, read, NOW)
    assert planning.ignored_resources == ["x.io/y"]
    assert planning.plan(world.records, world.table.pod_history).strategies[0].moves == 1


def tiers_world(**settings: Any) -> World:
    world = World(**settings).node("gold-1", 12.0, labels={"tier": "gold"})
    return world.node("silver-1", 1.0, labels={"tier": "silver"})


def moves_of(plan: ReliefPlan) -> list[tuple[str, str, str | None]]:
    return [(node.strategy, move.name, move.target) for node in plan.items for move in node.moves]


def test_enabled_strategies_run_after_each_other_and_move_no_pod_twice() -> None:
    world = tiers_world().runs("gold-1", a=1.0, b=1.0)
    plan = world.plan_by(configuration(profile({"LowNodeLoad": LOW, "CustomPriority": TIERS})))
    assert [each.strategy for each in plan.strategies] == ["LowNodeLoad", "CustomPriority"]
    moves = moves_of(plan)
    assert [strategy for strategy, *_ in moves] == ["LowNodeLoad", "CustomPriority"]
    assert {name for _, name, _ in moves} == {"a", "b"}


def test_later_strategies_see_earlier_moves_in_the_filters() -> None:
    """Each pod alone stays below the threshold of the filter on the target, both do not."""
    world = tiers_world(cpu_threshold_percent=15).runs("gold-1", a=1.0, b=1.0)
    plan = world.plan_by(configuration(profile({"LowNodeLoad": LOW, "CustomPriority": TIERS})))
    assert [(strategy, target) for strategy, _, target in moves_of(plan)] == [
        ("LowNodeLoad", "silver-1")
    ]
    (stay,) = plan.items[-1].stays
    assert stay.rejected[0].reason.startswith("cpu usage would be 17.8% of")


@pytest.mark.parametrize("percent", [15, 60])
def test_pods_of_unknown_usage_count_with_the_estimate_of_the_filters(percent: int) -> None:
    """Of 0.8 cores 85 percent are expected: with the third pod 19 percent of the target."""
    world = tiers_world(cpu_threshold_percent=percent)
    for name in "abc":
        world.pod("gold-1", name, 0.8)
    plan = world.plan_by(configuration(profile({"CustomPriority": TIERS})))
    moved = [name for _, name, _ in moves_of(plan)]
    assert moved == ["a", "b", "c"][: 2 if percent == 15 else 3]
    cores = 1.0 + 0.68 * len(moved)
    assert plan.items[0].moves[0].target_usage["cpu"] == pytest.approx(100 * cores / 16, abs=0.01)


def test_no_strategy_makes_a_node_hot_by_the_thresholds_of_its_pool() -> None:
    world = tiers_world().runs("gold-1", a=3.0, b=3.0, c=3.0)
    low = {"highThresholds": {"cpu": 40}, "lowThresholds": {"cpu": 5}}
    plan = world.plan_by(configuration(profile({"CustomPriority": TIERS, "LowNodeLoad": low})))
    assert [strategy for strategy, *_ in moves_of(plan)] == ["CustomPriority"]
    assert plan.items[-1].moves[0].target_usage["cpu"] == 25.0
    (rejected,) = plan.items[-1].stays[0].rejected
    assert rejected.reason == "usage of cpu would exceed the high limit of its pool"


def test_no_strategy_puts_pods_on_a_node_with_limits_and_unknown_usage() -> None:
    world = World().node("gold-1", 6.0, labels={"tier": "gold"})
    world.node("silver-1", 1.0, labels={"tier": "silver"}, age=250.0).runs("gold-1", a=1.0)
    both = profile({"CustomPriority": TIERS, "LowNodeLoad": LOW})
    plan = world.plan_by(configuration(both))
    assert plan.items[-1].stays[0].rejected[0].reason == "usage of cpu is unknown"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"plugins": {}}, "LowNodeLoad is not enabled in plugins.balance of its profile"),
        (
            {"plugins": {"balance": {"disabled": [{"name": "LowNodeLoad"}]}}},
            "LowNodeLoad is not enabled in plugins.balance of its profile",
        ),
        (
            {
                "plugins": {
                    "balance": {"enabled": [{"name": "LowNodeLoad"}]},
                    "evict": {"disabled": [{"name": "*"}]},
                }
            },
            "MigrationController is disabled in plugins.evict of the profile",
        ),
    ],
)
def test_a_strategy_that_may_evict_nothing_says_why(fields: dict[str, Any], text: str) -> None:
    world = World().node("hot", 12.0).node("cool", 1.0).runs("hot", web=2.0)
    read = configuration(profile({"LowNodeLoad": LOW}, **fields))
    plan = world.plan_by(read)
    assert reason(plan) == text
    # It looked at no node: none is known to be hot, or to take pods.
    assert (plan.strategies[0].hot, plan.strategies[0].targets) == (None, None)
    assert [*plan_lines(plan)] == [
        f"LowNodeLoad, pool __default_node_pool__: nothing would move: {text} (2 nodes)"
    ]
    assert ReliefPlanning(world.table, world.decisions, read, NOW).sources == frozenset()


def test_pool_with_an_invalid_value_is_the_reason_and_no_pause() -> None:
    world = World().node("hot", 12.0).node("cool", 1.0).runs("hot", web=2.0)
    invalid = LOW | {"highThresholds": {"cpu": "75%"}}
    read, _ = read_tree(
        {
            "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
            "profiles": [profile({"LowNodeLoad": invalid})],
        }
    )  # fmt: skip
    assert read is not None
    assert reason(world.plan_by(read)) == "the pool has an invalid value"


@pytest.mark.parametrize(
    ("args", "fields"),
    [
        ({}, {"nodeSelector": {"matchLabels": {"deschedule": "a"}}}),
        ({"paused": True}, {}),
    ],
    ids=["selector", "paused"],
)
def test_file_without_effect_is_the_reason_and_not_missing_thresholds(
    args: dict[str, Any], fields: dict[str, Any]
) -> None:
    world = World().node("hot", 12.0).runs("hot", web=2.0)
    plan = world.plan_by(configuration(profile({"LowNodeLoad": LOW | args}), **fields))
    assert [*plan_lines(plan, Path("a b.yaml"))] == [
        "nothing would move: a b.yaml has no strategy in force for any node",
        "  `springtide policy 'a b.yaml'` says what is in force, with --nodes for each node",
    ]
    first, _ = plan_lines(plan)
    assert first == "nothing would move: no node has thresholds"


@pytest.mark.parametrize("where", ["configuration", "profile"])
def test_node_selectors_of_configuration_and_profile_hold(where: str) -> None:
    world = World().node("hot", 12.0).node("cool", 1.0).runs("hot", web=2.0)
    world.node("other", 12.0, labels={"pool": "a"})
    selector = {"nodeSelector": {"matchLabels": {"pool": "a"}}}
    own, of_all = (selector, {}) if where == "profile" else ({}, selector)
    plan = world.plan_by(configuration(profile({"LowNodeLoad": LOW}, **own), **of_all))
    assert [node.node for node in plan.items] == []
    assert (plan.strategies[0].nodes, plan.strategies[0].hot) == (1, 0)
    assert reason(plan) == "no node is low: there is no target"


@pytest.mark.parametrize(
    ("fields", "args"),
    [
        ({"owner": None}, {"evictAllBarePods": True}),
        ({"owner": None}, {"skipEvictionGates": ["BarePods"]}),
        ({"volumes": ("emptyDir",)}, {"evictLocalStoragePods": True}),
        ({"priority": 2_000_000_000}, {"evictSystemCriticalPods": True}),
    ],
)
def test_protections_are_those_of_the_configuration(
    fields: dict[str, Any], args: dict[str, Any]
) -> None:
    world = World().node("hot", 12.0).node("cool", 1.0).runs("hot", web=2.0)
    world.records = [msgspec.structs.replace(pod, **fields) for pod in world.records]
    assert moves_of(world.plan(LOW)) == []
    allowing = profile({"LowNodeLoad": LOW, "MigrationController": args})
    assert moves_of(world.plan_by(configuration(allowing))) == [("LowNodeLoad", "web", "cool")]


@pytest.mark.parametrize(
    "args",
    [
        {"priorityThreshold": {"value": 5}},
        {"namespaces": {"exclude": ["d"]}},
        {"labelSelector": {"matchLabels": {"a": "b"}}},
        {"schedulerNames": ["other"]},
    ],
)
def test_protections_of_the_configuration_also_forbid(args: dict[str, Any]) -> None:
    world = World().node("hot", 12.0).node("cool", 1.0).runs("hot", web=2.0)
    world.records = [msgspec.structs.replace(pod, priority=5) for pod in world.records]
    assert moves_of(world.plan(LOW))
    forbidding = profile({"LowNodeLoad": LOW, "MigrationController": args})
    assert moves_of(world.plan_by(configuration(forbidding))) == []


@pytest.mark.parametrize(
    ("fields", "moves", "text"),
    [
        ({}, 4, ""),
        ({"maxNoOfPodsToEvictTotal": 3}, 3, "maxNoOfPodsToEvictTotal, 3, is reached"),
        ({"maxNoOfPodsToEvictTotal": 0}, 0, "maxNoOfPodsToEvictTotal, 0, is reached"),
        ({"maxNoOfPodsToEvictPerNode": 1}, 2, "maxNoOfPodsToEvictPerNode, 1, is reached"),
        ({"maxNoOfPodsToEvictPerNamespace": 2}, 2, "maxNoOfPodsToEvictPerNamespace, 2, is reached"),
    ],
)
def test_caps_hold_over_all_strategies_of_a_plan(
    fields: dict[str, Any], moves: int, text: str
) -> None:
    """LowNodeLoad moves a pod off each hot node, CustomPriority would move the others."""
    world = World().node("gold-1", 12.0, labels={"tier": "gold"}).runs("gold-1", a=1.0, b=1.0)
    world.node("gold-2", 12.0, labels={"tier": "gold"}).runs("gold-2", c=1.0, d=1.0)
    world.node("silver-1", 1.0, labels={"tier": "silver"})
    both = profile({"LowNodeLoad": LOW, "CustomPriority": TIERS})
    plan = world.plan_by(configuration(both, **fields))
    assert len(moves_of(plan)) == moves
    stays = {stay.reason for node in plan.items for stay in node.stays}
    assert (text in stays) if text else not stays


@pytest.mark.parametrize(
    ("fields", "percent"), [({}, 62.5), ({"usageType": "p95"}, None), ({"span": "10m"}, None)]
)
def test_usage_of_prod_is_that_which_detection_compares_over_the_same_span(
    fields: dict[str, Any], percent: float | None
) -> None:
    """The last window is calm, the span is not. Another configuration may name another span."""
    world = World().node("hot", 10.0).node("cool", 1.0).runs("hot", web=2.0)
    state = world.table.snapshot("hot").state
    assert state is not None
    classes = {"prod": Usage(cpu_cores=6.0, memory_bytes=GIB)}
    compared = {"prod_cpu": 62.5, "node_cpu": 99.0}
    aggregated = {name: AggregatedUsage(avg=state.usage, p95=state.usage) for name in ("5m", "10m")}
    world.put_state(
        "hot", 10.0, class_usage=classes, compared_percent=compared, aggregated=aggregated
    )
    args: dict[str, Any] = {"highThresholds": {"cpu": 90}, "lowThresholds": {"cpu": 45}}
    args |= {"prodHighThresholds": {"cpu": 50}, "prodLowThresholds": {"cpu": 40}}
    args |= {"hysteresisPercent": 0}
    if "span" in fields:
        fields = {"usageAggregatedDuration": fields["span"]}
    plan = world.plan(args | fields)
    if percent is None:
        assert reason(plan) == "no node is hot"
    else:
        assert plan.items[0].why == f"prod usage of cpu is {percent:.2f}%, above 50.00%"


def test_a_target_stays_below_its_threshold_of_prod_over_the_span() -> None:
    policy = HotNodePolicy(
        high_percent={"cpu": 70.0}, low_percent={"cpu": 45.0},
        prod_high_percent={"cpu": 30.0}, prod_low_percent={"cpu": 20.0}, hysteresis_percent=0.0,
    )  # fmt: skip
    for compared, moves in (({"prod_cpu": 24.0}, 0), ({"prod_cpu": 23.0}, 1), ({}, 1)):
        world = World().node("hot", 12.0).node("cool", 1.0, hot_nodes=policy)
        world.node("hot", 12.0, hot_nodes=policy).runs("hot", a=1.0)
        classes = {"prod": Usage(cpu_cores=1.0, memory_bytes=GIB)}
        world.put_state("cool", 1.0, class_usage=classes, compared_percent=compared)
        assert len(world.plan().items[0].moves) == moves


def test_usage_of_an_alert_is_what_the_plan_relieves() -> None:
    """The last window is calm, the span of the alert is not; and the other way around."""
    prod = OpenAlert(
        rule="prod_cpu", severity="warning", since=ALERT.since, usage_percent=62.5,
        threshold_percent=50.0,
    )  # fmt: skip
    policy = HotNodePolicy(
        high_percent={"cpu": 90.0}, low_percent={"cpu": 45.0},
        prod_high_percent={"cpu": 50.0}, prod_low_percent={"cpu": 40.0}, hysteresis_percent=0.0,
    )  # fmt: skip
    world = World().node("cool", 1.0, hot_nodes=policy).runs("hot", web=2.0)
    for usage, alerts in (
        (6.0, (prod,)),
        (10.0, (msgspec.structs.replace(prod, usage_percent=45.0),)),
    ):
        world.node("hot", 10.0, hot_nodes=policy)
        classes = {"prod": Usage(cpu_cores=usage, memory_bytes=GIB)}
        world.put_state("hot", 10.0, class_usage=classes, alerts=alerts)
        plan = world.plan()
        if usage == 6.0:
            assert plan.items[0].why == "prod usage of cpu is 62.50%, above 50.00%"
            assert plan.items[0].relieved
        else:
            assert reason(plan) == "no node is hot"


@pytest.mark.parametrize("name", ["none", "unknown"])
def test_pods_without_a_class_are_prod_as_in_alerts(name: str) -> None:
    world = World().node("cool", 1.0).runs("hot", web=2.0).node("hot", 10.0)
    world.put_state("hot", 10.0, class_usage={name: Usage(cpu_cores=9.0, memory_bytes=GIB)})
    world.records = [msgspec.structs.replace(pod, pod_class=name) for pod in world.records]
    args = {
        "highThresholds": {"cpu": 90}, "lowThresholds": {"cpu": 45},
        "prodHighThresholds": {"cpu": 50}, "prodLowThresholds": {"cpu": 40},
    }  # fmt: skip
    assert moves_of(world.plan(args)) == [("LowNodeLoad", "web", "cool")]


def test_unknown_usage_of_an_alert_relieves_nothing() -> None:
    world = World().node("hot", 12.0).node("cool", 1.0).runs("hot", web=2.0)
    assert world.plan().items
    world.put_state("hot", 12.0, alerts=(msgspec.structs.replace(ALERT, usage_percent=None),))
    assert reason(world.plan()) == "no node is hot"


def test_prod_pods_of_the_plan_count_in_the_filter_for_prod() -> None:
    annotation = {
        "scheduling.koordinator.sh/usage-thresholds": '{"prodUsageThresholds":{"cpu":15}}'
    }
    world = World().node("hot", 15.0).node("cool", 1.0, annotations=annotation)
    world.put_state("cool", 1.0, class_usage={"prod": Usage(cpu_cores=1.0, memory_bytes=GIB)})
    plan = world.runs("hot", a=1.0, b=1.0).plan()
    (node,) = plan.items
    assert len(node.moves) == 1
    assert node.stays[0].rejected[0].reason.startswith("cpu prod usage would be 17.8% of")


def test_targets_of_a_pool_that_compares_a_minute_are_judged_by_their_last_window() -> None:
    policy = msgspec.structs.replace(POLICY, span_seconds=60)
    world = World().node("hot", 12.0, hot_nodes=policy).runs("hot", a=1.0)
    world.node("busy", 9.0, hot_nodes=policy)
    assert reason(world.plan()) == "no node is low: there is no target"
    world.node("cool", 2.0, hot_nodes=policy)
    assert moves_of(world.plan()) == [("LowNodeLoad", "a", "cool")]


@pytest.mark.parametrize("usage", ["average", "p95"])
def test_a_span_that_no_configuration_has_does_not_end_the_planner(usage: str) -> None:
    """Records of nodes may have any: usage over it is unknown."""
    policy = msgspec.structs.replace(POLICY, span_seconds=77, usage=usage)
    world = World().node("cool", 2.0).node("hot", 12.0, hot_nodes=policy).runs("hot", a=1.0)
    assert world.plan().items == ()


def with_history(aggregated: Mapping[str, AggregatedUsage], **fields: Any) -> World:
    """A hot node whose pod used 1 core for some time, and 5 in the last window; another one used 4
    all the time."""
    world = World().node("hot", 12.0, **fields).node("cool", 1.0, **fields)
    for place, cores in enumerate((1.0, 1.0, 1.0, 5.0)):
        rows = [
            pod_row(uid, cpu_cores_avg=used, memory_bytes_avg=GIB)
            for uid, used in {"rising": cores, "steady": 4.0}.items()
        ]
        pods = [known_pod(uid, name=uid) for uid in ("rising", "steady")]
        window = joined(NODE_ROW, *rows, view=view(*pods), of=header("hot", place))
        assert world.table.pod_history.put(logged(window))
    for uid in ("rising", "steady"):
        world.pod("hot", uid, 1.0, owner=Owner(kind="ReplicaSet", name=uid))
    return world.put_state("hot", 12.0, aggregated=aggregated)


@pytest.mark.parametrize(
    ("aggregated", "span", "used"),
    [
        ({"5m": AggregatedUsage(avg=Usage(cpu_cores=12.0, memory_bytes=8 * GIB))}, "5m", 2000.0),
        # As just after the first windows of the node: its usage is that of the last one.
        ({}, "5m", 5000.0),
        ({"5m": AggregatedUsage(avg=Usage(cpu_cores=12.0, memory_bytes=8 * GIB))}, "1m", 5000.0),
        # Of cpu alone.
        ({"5m": AggregatedUsage(avg=Usage(memory_bytes=8 * GIB))}, "5m", 5000.0),
    ],
)
def test_usage_of_pods_is_over_the_same_span_as_that_of_their_node(
    aggregated: Mapping[str, AggregatedUsage], span: str, used: float
) -> None:
    args = LOW | {"usageAggregatedDuration": span}
    (node,) = with_history(aggregated).plan(args).items
    of_pods = {move.name: move.usage["cpu"] for move in node.moves}
    of_steady, of_rising = 4000.0, used
    # 0.8 cores are too much: the smaller one leaves.
    (leaving,) = of_pods
    assert of_pods == {leaving: {"rising": of_rising, "steady": of_steady}[leaving]}
    assert leaving == ("rising" if used < 4000 else "steady")
    left = 12000.0 - of_pods[leaving]
    assert node.projected_usage["cpu"] == pytest.approx(100 * left / 16000.0)


def test_usage_of_an_alert_is_over_the_span_and_so_is_that_of_pods() -> None:
    policy = msgspec.structs.replace(POLICY, span_seconds=60)
    world = with_history({}, hot_nodes=policy)
    world.put_state("hot", 12.0, alerts=(ALERT,))
    (move,) = world.plan().items[0].moves
    assert (move.name, move.usage["cpu"]) == ("rising", 3000.0)


def relieved(world: World, **relief: Any) -> ReliefPlan:
    planning = ReliefPlanning(world.table, world.decisions, None, NOW, AlertRelief(**relief))
    return planning.plan(world.records, world.table.pod_history)


@pytest.mark.parametrize(
    ("weights", "first"), [({"cpu": 1, "memory": 1}, "by-cpu"), ({"memory": 9}, "by-memory")]
)
def test_weights_of_the_configured_pool_decide_which_node_is_relieved_first(
    weights: dict[str, int], first: str
) -> None:
    world = World().node("by-cpu", 15.0).node("by-memory", 12.0).node("cool", 2.0)
    world.report(NOW, "by-memory", usage=Usage(cpu_cores=12.0, memory_bytes=18 * GIB))
    world.runs("by-cpu", a=4.0).runs("by-memory", b=1.0)
    plan = relieved(world, pools=[NodePool(resource_weights=weights)])
    assert plan.items[0].node == first


def test_the_first_certain_pool_of_a_name_has_its_weights() -> None:
    policies = [msgspec.structs.replace(POLICY, pool="gold"), None]
    configured = [
        NodePool(name="gold", resource_weights={"cpu": 4}, is_certain=False),
        NodePool(name="gold", resource_weights={"cpu": 3, "x/gpu": 2}, low_percent={"pods": 5}),
        NodePool(name="gold", resource_weights={"cpu": 2}),
    ]
    (of_records,) = pools_of_policies(policies)
    assert of_records.pool.resource_weights == {"cpu": 1, "memory": 1}
    (found,) = pools_of_policies(policies, configured)
    assert found.pool.resource_weights == {"cpu": 3, "memory": 1, "pods": 1, "x/gpu": 2}
    assert found.pool.low_percent == {"pods": 5, "cpu": 45.0}
    assert found.pool.high_percent == {"cpu": 70.0}
    assert found.is_member.tolist() == [True, False]


@pytest.mark.parametrize("on_hot", [False, True])
def test_nodes_of_a_pool_stay_one_pool_while_its_thresholds_change(on_hot: bool) -> None:
    """Else the hot node would have no target, or every node would count as hot."""
    old = msgspec.structs.replace(POLICY, pool="gold")
    new = msgspec.structs.replace(old, high_percent={"cpu": 72.0})
    world = World().node("hot", 12.0, hot_nodes=new if on_hot else old).runs("hot", a=1.0)
    world.node("cool", 2.0, hot_nodes=old if on_hot else new)
    plan = world.plan()
    assert [(each.pool, each.nodes, each.targets, each.moves) for each in plan.strategies] == [
        ("gold", 2, 1, 1)
    ]
    assert [*hopeless_nodes(plan, {"hot": "gold"}, ())] == []


def test_a_pool_has_the_thresholds_of_most_of_its_nodes() -> None:
    few = msgspec.structs.replace(POLICY, high_percent={"cpu": 90.0})
    for policies in ([few, POLICY, POLICY], [POLICY, POLICY, few]):
        (found,) = pools_of_policies(policies)
        assert found.pool.high_percent == {"cpu": 70.0}
        assert found.is_member.all()


@pytest.mark.parametrize(
    ("thresholds", "is_prod", "target"),
    [
        ("usageThresholds", True, "other"),
        ("usageThresholds", False, "other"),
        ("prodUsageThresholds", True, "other"),
        ("prodUsageThresholds", False, "cool"),
    ],
)
def test_pods_on_their_way_count_in_the_filters_too(
    thresholds: str, is_prod: bool, target: str
) -> None:
    """The load of the target alone would allow one more."""
    annotation = f'{{"{thresholds}":{{"cpu":25}}}}'
    annotations = {"scheduling.koordinator.sh/usage-thresholds": annotation}
    world = World().node("hot", 12.0).node("cool", 1.0, annotations=annotations).node("other", 4.0)
    world.put_state("cool", 1.0, class_usage={"prod": Usage(cpu_cores=1.0, memory_bytes=GIB)})
    world.runs("hot", a=1.0)
    assert [m.target for m in relieved(world).items[0].moves] == ["cool"]
    incoming = [IncomingUsage("cool", 2500.0, 0.0, is_prod), IncomingUsage("gone", 1.0, 1.0, True)]
    (move,) = relieved(world, incoming=incoming).items[0].moves
    assert move.target == target


def bound(world: World, node: str, cores: float, age: float) -> World:
    """A scheduler put a pod on the node so many seconds ago; the last window ended 10 s ago."""
    requests = Resources(cpu_millicores=round(cores * 1000), memory_bytes=1 << 30)
    world.table.put_pod(running(any_pod(f"new-{node}", requests=requests), node, age))
    return world


def landings(world: World) -> list[tuple[str | None, ...]]:
    """Where pods land by the records of the nodes, and by a configuration."""
    plans = world.plan(), world.plan(LOW)
    return [tuple(move.target for node in plan.items for move in node.moves) for plan in plans]


def test_requests_of_a_pod_without_samples_take_room_on_its_node() -> None:
    world = World(in_flight="none").node("hot", 12.0).node("cool", 1.0).node("other", 4.0)
    world.runs("hot", a=2.0)
    assert landings(world) == [("cool",), ("cool",)]
    bound(world, "cool", 15.0, 5.0)
    assert landings(world) == [("other",), ("other",)]
    rejected = world.plan(LOW).items[0].moves[0].rejected
    assert [(r.node, r.reason) for r in rejected] == [
        ("cool", "requests of cpu exceed what is left of allocatable")
    ]


def test_a_pod_in_flight_counts_with_its_estimate_in_the_load_of_its_node() -> None:
    """85% of 8 cores: it is not low any more, although its filters would pass the pod."""
    world = World().node("hot", 12.0).node("cool", 1.0).runs("hot", a=2.0)
    bound(world, "cool", 8.0, 5.0)
    assert landings(world) == [(), ()]
    assert reason(world.plan()) == "no node is low: there is no target"
    # Its window shows it.
    world.report(NOW + 60, "hot", "cool")
    assert landings(world) == [("cool",), ("cool",)]


def test_pods_in_flight_make_no_node_hot_and_a_hot_one_no_hotter() -> None:
    world = World().node("hot", 12.0).node("warm", 6.5).node("cool", 1.0)
    world.runs("hot", "web", a=1.0, b=5.0).runs("warm", "db", c=1.0)
    before = world.plan(LOW).items
    assert [(node.node, [move.name for move in node.moves]) for node in before] == [("hot", ["a"])]
    bound(bound(world, "warm", 8.0, 5.0), "hot", 3.0, 5.0)
    assert world.plan(LOW).items == before
    world.put_state("hot", 2.0)
    assert "pods on their way" in reason(world.plan(LOW))


A_SELECTOR = Selector(match_labels={"zone": "a"})


@pytest.mark.parametrize(
    ("policy", "moves"),
    [
        (MigrationPolicy(), 1),
        (MigrationPolicy(node_fit=True), 0),
        (MigrationPolicy(node_fit=True, skipped_gates=frozenset({"NodeFit"})), 1),
    ],
)
def test_pods_that_the_evictor_would_find_no_node_for_stay(
    policy: MigrationPolicy, moves: int
) -> None:
    """LowNodeLoad itself does not ask whether a target could run them."""
    taint = Taint(key="gpu", effect="NoSchedule")
    world = World().node("hot", 12.0).node("cool", 1.0, taints=(taint,)).runs("hot", a=1.0)
    plan = relieved(world, args=LowNodeLoadArgs(node_fit=False), policy=policy)
    assert len(plan.items[0].moves) == moves


@pytest.mark.parametrize(
    ("labels", "taints", "policy", "moves"),
    [
        ({"zone": "a"}, (), MigrationPolicy(node_fit=True, node_selector=A_SELECTOR), 1),
        ({"zone": "b"}, (), MigrationPolicy(node_fit=True, node_selector=A_SELECTOR), 0),
        ({"zone": "a"}, ("x",), MigrationPolicy(node_fit=True, node_selector=A_SELECTOR), 0),
        ({"zone": "b"}, (), MigrationPolicy(node_selector=A_SELECTOR), 1),
    ],
)
def test_a_selected_node_must_be_able_to_run_a_pod_as_the_evictor_asks(
    labels: dict[str, str], taints: tuple[str, ...], policy: MigrationPolicy, moves: int
) -> None:
    """It may be another node than the target; the pod's own one does not count."""
    world = World().node("hot", 12.0, labels={"zone": "a"}).node("cool", 1.0)
    taint = tuple(Taint(key=key, effect="NoSchedule") for key in taints)
    world.node("busy", 10.0, labels=labels, taints=taint).runs("hot", a=1.0)
    (node,) = relieved(world, policy=policy).items
    assert [move.target for move in node.moves] == ["cool"] * moves
    assert [stay.rejected[0].reason for stay in node.stays] == [NOWHERE] * (1 - moves)


def test_node_fit_of_the_migration_controller_holds_for_another_configuration() -> None:
    world = World().node("hot", 12.0, labels={"zone": "a"}).node("cool", 1.0)
    args = {"nodeFit": True, "nodeSelector": "zone=a"}
    read = configuration(profile({"LowNodeLoad": LOW, "MigrationController": args}))
    plan = world.runs("hot", a=1.0).plan_by(read)
    assert reason(plan) == "no target takes a pod of a hot node"
