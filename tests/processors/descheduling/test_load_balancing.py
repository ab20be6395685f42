"""LowNodeLoad beside a slow reference of upstream's algorithm, and its laws on random clusters."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods, MoveCaps
from pipeline.processors.descheduling.configured_strategies import (
    low_node_load_strategies,
    pools_of_configuration,
)
from pipeline.processors.descheduling.load_balancing import (
    MOST_WITHOUT_ROOM,
    LowNodeLoadStrategy,
)
from pipeline.processors.descheduling.node_fit import FitSimulator
from pipeline.processors.descheduling.node_limits import is_over, node_limits, watched_resources
from pipeline.processors.descheduling.strategy import MOST_MOVES, Plan
from tests.processors.descheduling.upstream_low_node_load import evictions
from tests.vectors.strategies import balance_world

Case = dict[str, Any]
ROOM = {"cpu": 8000, "memory": 32_000, "pods": 20}


def node(name: str, **fields: Any) -> Case:
    return {"name": name, "allocatable": ROOM, **fields}


def pod(name: str, on: str, cpu: int, memory: int = 1000, **fields: Any) -> Case:
    amounts = {"cpu": cpu, "memory": memory}
    return {
        "name": name, "namespace": "d", "node": on, "requests": amounts, "usage": amounts,
        "k8s_qos": "Burstable", "priority_class": "koord-prod", **fields,
    }  # fmt: skip


CONFIG = {"low_thresholds": {"cpu": 45, "memory": 55}, "high_thresholds": {"cpu": 70, "memory": 80}}


def case(nodes: list[Case], pods: list[Case], **config: Any) -> Case:
    return {"kind": "balance", "config": {**CONFIG, **config}, "nodes": nodes, "pods": pods}


def planned(given_case: Case) -> tuple[Plan, ClusterNodes, ClusterPods, LowNodeLoadStrategy]:
    low, nodes, pods = balance_world(given_case)
    (configured,) = low_node_load_strategies(pools_of_configuration(low, nodes.labels), low.args)
    own, strategy = configured.pods.apply(pods), configured.strategy
    assert isinstance(strategy, LowNodeLoadStrategy)
    return strategy.plan(nodes, own, FitSimulator(nodes, own)), nodes, own, strategy


def names(plan: Plan, pods: ClusterPods) -> list[str]:
    return [pods.records[move.pod].name for move in plan.moves]


@st.composite
def clusters(draw: st.DrawFn) -> Case:
    nodes, pods = [], []
    for index in range(draw(st.integers(2, 5))):
        name = f"n{index}"
        flags: Case = {"unschedulable": True} if draw(st.integers(0, 5)) == 0 else {}
        flags |= {"no_metric": True} if draw(st.integers(0, 7)) == 0 else {}
        nodes.append(node(name, **flags))
        for number in range(draw(st.integers(0, 8))):
            fields: Case = {
                "priority_class": draw(st.sampled_from(["koord-prod", "koord-batch", "koord-mid"])),
                "evictable": draw(st.integers(0, 4)) > 0,
                "priority": draw(st.sampled_from([0, 5])),
            }
            if draw(st.integers(0, 9)) == 0:
                fields["usage"] = None
            cpu = draw(st.integers(0, 30)) * 100
            memory = draw(st.sampled_from([0, 1000, 9000]))
            pods.append(pod(f"{name}-{number}", name, cpu, memory, **fields))
    config: Case = {"node_fit": draw(st.booleans())}
    if draw(st.booleans()):
        config |= {"prod_low_thresholds": {"cpu": 30}, "prod_high_thresholds": {"cpu": 45}}
    if draw(st.integers(0, 4)) == 0:
        config |= {
            "use_deviation_thresholds": True,
            "low_thresholds": {"cpu": 10, "memory": 10},
            "high_thresholds": {"cpu": 10, "memory": 15},
        }
        config.pop("prod_low_thresholds", None)
        config.pop("prod_high_thresholds", None)
    return case(nodes, pods, **config)


def heat(usage: Any, prod: Any, limits: Any, *, with_prod: bool) -> Any:
    """How far each node is, in parts of its limits, (nodes,); unknown usage is 0."""
    parts = [(usage, limits.high), (prod, limits.prod_high)][: 1 + with_prod]
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = [np.where(high > 0, used / high, 0.0) for used, high in parts]
    return np.nan_to_num(np.concatenate(shares, axis=1)).max(axis=1)


@settings(max_examples=300, deadline=None)
@given(clusters())
def test_no_target_gets_hot_and_the_hottest_node_never_gets_hotter(cluster: Case) -> None:
    plan, nodes, _, strategy = planned(cluster)
    resources = watched_resources(strategy.pool)
    columns = [nodes.resources.index(name) for name in resources]
    limits = node_limits(
        strategy.pool, resources, nodes.capacity[:, columns], nodes.usage[:, columns],
        nodes.prod_usage[:, columns],
    )  # fmt: skip
    after, prod_after = plan.usage[:, columns], plan.prod_usage[:, columns]
    targets = sorted({move.target for move in plan.moves if move.target is not None})
    before = nodes.usage[:, columns]
    got_more = after[targets] > before[targets]
    assert not (is_over(after, limits.high)[targets] & got_more).any()
    if strategy.pool.prod_high_percent:
        assert not is_over(prod_after, limits.prod_high)[targets].any()
    with_prod = bool(strategy.pool.prod_high_percent)
    was = heat(before, nodes.prod_usage[:, columns], limits, with_prod=with_prod)
    now = heat(after, prod_after, limits, with_prod=with_prod)
    assert now.max() <= max(was.max(), 1.0) + 1e-12
    if plan.moves:
        assert now.max() <= was.max() + 1e-12


@settings(max_examples=300, deadline=None)
@given(clusters())
def test_a_plan_moves_each_pod_once_to_another_node_that_takes_it(cluster: Case) -> None:
    plan, nodes, pods, _ = planned(cluster)
    moved = [move.pod for move in plan.moves]
    assert len(moved) == len({*moved})
    sources = {source.node for source in plan.sources}
    for move in plan.moves:
        assert pods.may_move[move.pod]
        assert pods.node[move.pod] == move.source in sources
        assert move.target is not None
        assert move.target not in sources
        assert not nodes.is_cordoned[move.target]
        assert not np.isnan(pods.usage[move.pod]).any()
        assert not np.isnan(nodes.usage[move.target]).any()
    assert bool(plan.moves) != bool(plan.reason)


@settings(max_examples=300, deadline=None)
@given(clusters())
def test_a_relieved_node_gives_no_pod_too_many(cluster: Case) -> None:
    plan, nodes, pods, strategy = planned(cluster)
    resources = watched_resources(strategy.pool)
    columns = [nodes.resources.index(name) for name in resources]
    limits = node_limits(
        strategy.pool, resources, nodes.capacity[:, columns], nodes.usage[:, columns],
        nodes.prod_usage[:, columns],
    )  # fmt: skip
    for source in plan.sources:
        usage, high = plan.usage, limits.hot
        if source.scope == "prod":
            usage, high = plan.prod_usage, limits.prod_hot
        left, limit = usage[source.node, columns], high[source.node]
        assert source.is_relieved == (not is_over(left, limit).any())
        for move in source.moves if source.is_relieved else ():
            assert is_over(left + pods.usage[move.pod, columns], limit).any()


@settings(max_examples=200, deadline=None)
@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_of_nodes_and_pods_changes_no_load(cluster: Case, random: Any) -> None:
    """Ties may end in another way: equal pods are interchangeable."""
    plan, _, pods, _ = planned(cluster)
    shuffled = {**cluster, "nodes": [*cluster["nodes"]], "pods": [*cluster["pods"]]}
    random.shuffle(shuffled["nodes"])
    again, _, other_pods, _ = planned(shuffled)
    assert names(plan, pods) == names(again, other_pods)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.lists(st.sampled_from(["koord-prod", "koord-batch"]), min_size=12, max_size=12),
)
@example([9, 8, 1, 50], ["koord-prod"] * 12)
def test_with_room_for_all_no_more_pods_leave_than_upstream_evicts(
    hundreds: list[int], classes: list[str]
) -> None:
    """One hot resource, and a target for each pod: the choice alone differs."""
    pods = [
        pod(f"p{index}", "hot", 100 * cpu, 0, priority_class=classes[index])
        for index, cpu in enumerate(hundreds)
    ]
    nodes = [node("hot"), *(node(f"t{index}") for index in range(len(pods)))]
    cluster = case(nodes, pods)
    plan, _, columns, _ = planned(cluster)
    upstream = evictions(cluster)
    assert len(plan.moves) <= len(upstream)
    if upstream and plan.sources[0].is_relieved and len(plan.moves) == len(upstream) == 1:
        assert names(plan, columns) == upstream


def test_pods_that_turn_out_to_be_unnecessary_stay() -> None:
    """Batch leaves first, and does not suffice; the Prod pod suffices alone."""
    pods = [pod(f"b{i}", "a", 100, priority_class="koord-batch") for i in range(4)]
    pods += [pod("web", "a", 3000), pod("fixed", "a", 3000, evictable=False)]
    cluster = case([node("a"), node("b")], pods)
    assert evictions(cluster) == ["b0", "b1", "b2", "b3", "web"]
    plan, _, columns, _ = planned(cluster)
    assert names(plan, columns) == ["web"]
    assert plan.usage[1, 0] == 3000


def test_each_next_pod_is_chosen_for_what_is_left() -> None:
    """Upstream takes 2000 after 2200, although 300 is left to go."""
    amounts = {"p1": 2200, "p2": 2000, "p3": 300}
    pods = [pod(name, "a", cpu) for name, cpu in amounts.items()]
    pods.append(pod("fixed", "a", 3400, evictable=False))
    cluster = case([node("a"), node("b"), node("c")], pods)
    assert evictions(cluster) == ["p1", "p2"]
    plan, _, columns, _ = planned(cluster)
    assert names(plan, columns) == ["p1", "p3"]


def test_a_node_is_relieved_when_its_alert_can_close() -> None:
    """Memory is between both marks, but was not hot: the pod that uses it stays."""
    pods = [pod(f"p{i}", "a", 600, 0) for i in range(10)] + [pod("cache", "a", 0, 25_500)]
    for hysteresis, moves in ((0, 1), (5, 2), (20, 4), (90, 6)):
        cluster = case([node("a"), node("b")], pods, hysteresis_percent=hysteresis)
        plan, _, columns, _ = planned(cluster)
        assert len(plan.moves) == moves
        assert "cache" not in names(plan, columns)
        assert plan.sources[0].is_relieved


def test_an_exhausted_resource_stops_only_pods_that_use_it() -> None:
    pods = [
        pod("a-heavy", "a", 2000, 8000), pod("a-lean", "a", 1500, 0),
        pod("a-rest", "a", 3000, evictable=False), pod("b-memory", "b", 100, 17_000),
        pod("b-more", "b", 0, 600),
    ]  # fmt: skip
    config = {"high_thresholds": {"cpu": 70, "memory": 55}}
    plan, _, columns, _ = planned(case([node("a"), node("b")], pods, **config))
    assert names(plan, columns) == ["a-lean"]


def test_a_pod_too_large_for_every_target_is_reported() -> None:
    pods = [pod("large", "a", 6000), pod("y", "b", 500)]
    plan, _, _, _ = planned(case([node("a"), node("b")], pods))
    (stay,) = plan.sources[0].stays
    assert stay.reason == "too large: it would make every target hot"
    assert plan.reason == "no target takes a pod of a hot node"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"prod_low_thresholds": {"cpu": 30}, "prod_high_thresholds": {"cpu": 45}},
        {"use_deviation_thresholds": True},
    ],
)
def test_a_resource_without_a_high_threshold_makes_no_node_hot(config: Case) -> None:
    """Usage of memory, of the node and of Prod, is above allocatable, as with too small an
    annotation of raw allocatable."""
    pods = [pod(f"p{i}", "a", 500, 9000) for i in range(4)]
    nodes = [node("a"), node("b")]
    config = {"low_thresholds": {"cpu": 45}, "high_thresholds": {"cpu": 70}, **config}
    plan, *_ = planned(case(nodes, pods, **config))
    assert plan.reason == "no node is hot"
    hot = {"low_thresholds": {"cpu": 5}, "high_thresholds": {"cpu": 10}}
    plan, *_ = planned(case(nodes, pods, **config | hot | {"prod_high_thresholds": {}}))
    assert [each.resource for source in plan.sources for each in source.over] == ["cpu"]


def test_a_target_keeps_its_prod_limit_in_the_pass_over_nodes() -> None:
    pods = [pod("x1", "a", 2000), pod("x2", "a", 4000), pod("y", "b", 2000)]
    config = {"prod_low_thresholds": {"cpu": 30}, "prod_high_thresholds": {"cpu": 40}}
    cluster = case([node("a"), node("b")], pods, **config)
    assert evictions(cluster) == ["x1"]
    assert planned(cluster)[0].moves == ()


@pytest.mark.parametrize("node_fit", [True, False])
def test_most_moves_of_a_node_are_bounded(node_fit: bool) -> None:
    pods = [pod(f"p{i}", "a", 500) for i in range(16)]
    low, nodes, columns = balance_world(
        case([node("a"), node("b"), node("c")], pods, node_fit=node_fit)
    )
    pools = pools_of_configuration(low, nodes.labels)
    (configured,) = low_node_load_strategies(pools, low.args)
    columns = replace(columns, caps=MoveCaps(per_node=2))
    plan = configured.plan(nodes, columns, FitSimulator(nodes, columns))
    assert len(plan.moves) == 2
    assert not plan.sources[0].is_relieved


def test_a_plan_takes_a_bounded_number_of_pods_off_a_node() -> None:
    """35 pods would have to leave: more plans follow."""
    pods = [pod(f"p{i}", "a", 40, 0) for i in range(175)]
    many = {"allocatable": {**ROOM, "pods": 1000}}
    plan, *_ = planned(case([node("a", **many), node("b", **many)], pods))
    (source,) = plan.sources
    assert (len(source.moves), source.is_relieved) == (MOST_MOVES, False)
    assert source.stays[0].reason == "32 pods leave the node already"


def test_pods_without_room_do_not_keep_a_plan_busy() -> None:
    """Each of them looks at all targets. The small pod, which would fit, comes too late."""
    count = MOST_WITHOUT_ROOM
    pods = [pod(f"p{i}", "a", 4000, 0, priority=1) for i in range(count)]
    pods.append(pod("small", "a", 100, 0, priority=2))
    nodes = [node("a"), node("b")]
    asked = [*pods, pod("y", "b", 3000)]
    assert names(*planned(case(nodes, asked))[0:3:2]) == []
    assert names(*planned(case(nodes, asked[1:]))[0:3:2]) == ["small"]
