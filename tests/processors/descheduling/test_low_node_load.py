"""Pools of LowNodeLoad: what they take from the top level, and the thresholds that a node gets."""

from typing import Any

import msgspec
import pytest

from pipeline.processors.descheduling.hot_node_policies import with_hot_nodes
from pipeline.processors.descheduling.low_node_load import LowNodeLoad, NodePool
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.hot_node_policy import DEFAULT_POOL, HotNodePolicy
from pipeline.topics.nodes import KnownNode, NodeRecord
from tests.processors.descheduling.configurations import configuration, every_key, read, refused

ONE_POOL = "both are relieved as one pool, by the thresholds of most of its nodes"
GOLD = {"matchLabels": {"pool": "gold"}}
THRESHOLDS: dict[str, Any] = {
    "highThresholds": {"cpu": 75, "memory": 80}, "lowThresholds": {"cpu": 45, "memory": 55},
}  # fmt: skip
OLD = HotNodePolicy(pool="old", high_percent={"cpu": 11.0})


def loaded(*pools: dict[str, Any], **args: Any) -> LowNodeLoad:
    """LowNodeLoad with the thresholds above, which must have no problem."""
    tree = configuration("LowNodeLoad", {**THRESHOLDS, "nodePools": [*pools], **args})
    descheduling, problems = read(tree)
    assert refused(problems) == []
    assert descheduling.low_node_load is not None
    return descheduling.low_node_load


def of_node(tree: Any, before: HotNodePolicy | None = None, **labels: str) -> HotNodePolicy | None:
    record = NodeRecord(node="a", labels=labels)
    descheduling, _ = read(tree)
    return with_hot_nodes(
        record, descheduling, msgspec.structs.replace(record, hot_nodes=before)
    ).hot_nodes


def tree_of(*pools: dict[str, Any], **args: Any) -> dict[str, Any]:
    return configuration("LowNodeLoad", {**THRESHOLDS, "nodePools": [*pools], **args})


def test_pool_takes_what_it_does_not_set() -> None:
    runs = {"consecutiveAbnormalities": 9, "consecutiveNormalities": 7, "timeout": "2m"}
    own = {"highThresholds": {"cpu": 90}, "anomalyCondition": {"consecutiveAbnormalities": 2}}
    gold, top = loaded(
        {"name": "gold", "nodeSelector": GOLD, **own, "usageType": "peak"},
        useDeviationThresholds=False, anomalyCondition=runs, usageType="p95",
        usageAggregatedDuration="30m", hysteresisPercent=1, resourceWeights={"cpu": 3},
    ).pools  # fmt: skip
    assert (gold.high_percent, gold.low_percent) == ({"cpu": 90}, top.low_percent)
    assert (gold.open_windows, gold.close_windows, gold.anomaly_timeout_seconds) == (2, 7, 120)
    assert (gold.usage, gold.span_seconds, gold.hysteresis_percent) == ("peak", 1800, 1)
    assert (top.name, top.usage, top.open_windows) == (DEFAULT_POOL, "p95", 9)
    assert gold.resource_weights == {"cpu": 3, "memory": 1}


@pytest.mark.parametrize(("span", "seconds"), [("1m", 60), ("5m", 300), ("30m", 1800)])
def test_usage_is_compared_over_the_given_span(span: str, seconds: int) -> None:
    (top,) = loaded(usageAggregatedDuration=span).pools
    assert top.span_seconds == seconds


def test_deviation_and_selector_are_not_taken_from_the_top_level() -> None:
    pool, top = loaded({"name": "a"}, useDeviationThresholds=True, nodeSelector=GOLD).pools
    assert (pool.use_deviation_thresholds, pool.node_selector) == (False, None)
    assert top.use_deviation_thresholds
    assert top.node_selector is not None


def test_pools_share_no_map() -> None:
    pools = loaded({"name": "a"}, {"name": "b", "useDeviationThresholds": True}).pools
    maps = [value for p in pools for value in (p.high_percent, p.low_percent, p.prod_high_percent)]
    assert len({id(value) for value in maps}) == len(maps)
    pools[0].low_percent["memory"] = 0.0
    assert pools[2].low_percent == {"cpu": 45, "memory": 55}


@pytest.mark.parametrize(
    ("runs", "expected"), [((0, 0), (5, 3)), ((0, 4), (5, 4)), ((2, 0), (2, 3))]
)
def test_each_run_of_0_windows_gets_its_default(
    runs: tuple[int, int], expected: tuple[int, int]
) -> None:
    condition = {"consecutiveAbnormalities": runs[0], "consecutiveNormalities": runs[1]}
    (top,) = loaded(anomalyCondition=condition).pools
    assert (top.open_windows, top.close_windows) == expected


def test_weights_of_0_count_as_1_with_a_warning() -> None:
    _, problems = read(tree_of(resourceWeights={"cpu": 0, "memory": -3}))
    assert [problem.text for problem in problems] == ["0 counts as 1", "-3 counts as 1"]
    (top,) = loaded(resourceWeights={"cpu": 0, "example.com/gpu": 2}).pools
    assert top.resource_weights == {"cpu": 1, "memory": 1, "example.com/gpu": 2}


def test_first_pool_that_selects_a_node_wins_and_others_get_the_top_level() -> None:
    pools = (
        {"name": "gold", "nodeSelector": GOLD, "highThresholds": {"cpu": 90}},
        {"name": "also", "nodeSelector": GOLD, "highThresholds": {"cpu": 91}},
    )
    gold, other = of_node(tree_of(*pools), pool="gold"), of_node(tree_of(*pools), pool="iron")
    assert gold == HotNodePolicy(
        pool="gold", high_percent={"cpu": 90.0}, low_percent={"cpu": 45.0, "memory": 55.0}
    )
    assert other == HotNodePolicy(
        high_percent={"cpu": 75.0, "memory": 80.0}, low_percent={"cpu": 45.0, "memory": 55.0}
    )


def test_node_outside_of_every_selector_has_no_thresholds() -> None:
    assert of_node(tree_of(nodeSelector=GOLD), OLD, pool="iron") is None
    assert of_node(tree_of() | {"nodeSelector": GOLD}, OLD, pool="iron") is None
    assert of_node(tree_of() | {"nodeSelector": GOLD}, OLD, pool="gold") is not None
    tree = tree_of()
    tree["profiles"][0]["nodeSelector"] = GOLD
    assert of_node(tree, OLD, pool="iron") is None
    assert of_node(tree, OLD, pool="gold") is not None


@pytest.mark.parametrize(
    "tree",
    [tree_of(paused=True), configuration("LowNodeLoad", {}), configuration("CustomPriority", {}),
     configuration("LowNodeLoad", None)],
    ids=["paused", "no thresholds", "no plugin", "no arguments"],
)  # fmt: skip
def test_nothing_is_detected(tree: Any) -> None:
    assert of_node(tree, OLD) is None


def test_detection_needs_neither_an_enabled_plugin_nor_evictions() -> None:
    tree = tree_of(dryRun=True) | {"dryRun": True}
    tree["profiles"][0]["plugins"] = {"balance": {"disabled": [{"name": "*"}]}}
    assert of_node(tree) is not None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"highThresholds": {"cpu": -1}}, "highThresholds.cpu: -1 is not a number from 0 to 1000"),
        ({"highThresholds": {"cpu": 44}}, "lowThresholds.cpu: 45 is above highThresholds.cpu"),
        ({"prodHighThresholds": {"cpu": 76}}, "prodHighThresholds.cpu: 76 is above"),
        ({"prodHighThresholds": {"cpu": 10}, "prodLowThresholds": {"cpu": 11}},
         "prodLowThresholds.cpu: 11 is above"),
        ({"highThresholds": {"mem": 1}}, "highThresholds: 'mem' is no resource"),
        ({"anomalyCondition": {"consecutiveAbnormalities": -1}},
         "anomalyCondition.consecutiveAbnormalities: -1 is not"),
        ({"usageType": "p42"}, "usageType: 'p42' is not one of"),
        ({"usageAggregatedDuration": "7m"}, "usageAggregatedDuration: usage is known over 1m, 5m"),
        ({"usageAggregatedDuration": "1m", "usageType": "p95"},
         "usageAggregatedDuration: p95 is known over 5m, 10m, 30m, not over 60 s"),
        ({"hysteresisPercent": "5"}, "hysteresisPercent: '5' is not a number"),
    ],
)  # fmt: skip
def test_nodes_of_an_invalid_pool_keep_their_last_thresholds_and_others_do_not(
    change: dict[str, Any], problem: str
) -> None:
    bad = {"name": "bad", "nodeSelector": GOLD, **change}
    tree = tree_of(bad, {"name": "good", "highThresholds": {"cpu": 90}})
    _, problems = read(tree)
    at = "profiles[0].pluginConfig[0].args.nodePools[0]"
    assert refused(problems)[0].startswith(f"{at}.{problem}")
    kept = "pool bad is not in force: its nodes keep their last thresholds"
    assert kept in {p.text for p in problems}
    assert of_node(tree, OLD, pool="gold") == OLD
    assert of_node(tree, None, pool="gold") is None
    good = of_node(tree, OLD, pool="iron")
    assert good is not None
    assert good.pool == "good"
    # The same at the top level, where pools with own values stay in force.
    whole = {"highThresholds": {"cpu": 9}, "lowThresholds": {}, "prodHighThresholds": {},
             "prodLowThresholds": {}, "anomalyCondition": {}, "usageType": "average",
             "usageAggregatedDuration": "5m", "hysteresisPercent": 5}  # fmt: skip
    tree = tree_of({"name": "own", "nodeSelector": GOLD, **whole}, {"name": "heir"}, **change)
    assert of_node(tree, OLD, pool="iron") == OLD
    own = of_node(tree, OLD, pool="gold")
    assert own is not None
    assert own.pool == "own"


def test_a_selector_with_a_problem_does_not_select_more() -> None:
    selectors: tuple[Any, ...] = (
        {"matchLabel": {"pool": "gold"}},
        {"matchLabels": {"pool": "gold"}, "matchExpressions": [{"key": "a", "operator": "Is"}]},
        {"matchLabels": {"pool": 3}},
        [],
        "pool=gold",
    )
    for selector in selectors:
        tree = tree_of({"name": "bad", "nodeSelector": selector, "highThresholds": {"cpu": 99}})
        policy = of_node(tree, OLD, pool="gold")
        assert policy is not None
        assert policy.pool == DEFAULT_POOL
        in_profile = tree_of()
        in_profile["profiles"][0]["nodeSelector"] = selector
        in_configuration = tree_of() | {"nodeSelector": selector}
        for tree in (tree_of(nodeSelector=selector), in_configuration, in_profile):
            assert of_node(tree, OLD, pool="iron") == OLD


def test_unknown_keys_and_invalid_values_beside_thresholds_leave_detection_on() -> None:
    for change in ({"foo": 1}, {"numberOfNodes": -5}, {"evictableNamespaces": 3}):
        tree = tree_of(**change)
        descheduling, problems = read(tree)
        assert refused(problems)
        assert descheduling.low_node_load is not None
        assert descheduling.low_node_load.args.dry_run
        assert of_node(tree, OLD) == of_node(tree_of())


def test_deviations_have_no_order_and_no_upper_bound_below_1000() -> None:
    deviations = {"highThresholds": {"cpu": 10}, "lowThresholds": {"cpu": 20}}
    (top,) = loaded(useDeviationThresholds=True, **deviations).pools
    assert top.hot_node_policy == HotNodePolicy(
        use_deviation_thresholds=True, high_percent={"cpu": 10.0}, low_percent={"cpu": 20.0}
    )
    assert loaded(highThresholds={"cpu": 120}, lowThresholds={"cpu": 120}).pools


def test_resources_other_than_cpu_and_memory_cause_one_warning_each() -> None:
    own = {"pods": 90, "example.com/gpu": 5}
    pools = [{"name": "a", "nodeSelector": {"matchLabels": {"a": "b"}}, "highThresholds": own}]
    tree = tree_of(highThresholds={"pods": 80, "example.com/gpu": 3}, nodePools=pools)
    _, problems = read(tree)
    assert [problem.text for problem in problems] == [
        "usage of example.com/gpu causes no alert",
        "usage of pods causes no alert",
    ]
    policy = of_node(tree)
    assert policy is not None
    assert policy.high_percent == {}


def test_thresholds_written_as_fractions_cause_one_warning_each() -> None:
    pools = [
        {"name": "a", "nodeSelector": GOLD},
        {"name": "b", "nodeSelector": {"matchLabels": {"a": "b"}}, "lowThresholds": {"cpu": 0.25}},
    ]
    tree = tree_of(
        *pools, highThresholds={"cpu": 0.7, "memory": 1}, lowThresholds={"cpu": 0.5, "memory": 0}
    )
    _, problems = read(tree)
    args = "profiles[0].pluginConfig[0].args"
    assert [(problem.where, problem.text, problem.in_force) for problem in problems] == [
        (f"{args}.highThresholds.cpu", "0.7 is in percent (is 70 meant?)", True),
        (f"{args}.lowThresholds.cpu", "0.5 is in percent (is 50 meant?)", True),
        (f"{args}.nodePools[1].lowThresholds.cpu", "0.25 is in percent (is 25 meant?)", True),
    ]


def test_pools_that_are_never_reached_or_named_twice_cause_a_warning() -> None:
    _, problems = read(tree_of({"name": "a"}, {"name": "a", "nodeSelector": GOLD}, {}))
    assert [problem.text for problem in problems] == [
        f"pool a is there twice: {ONE_POOL}",
        "applies to no node: an earlier pool selects all nodes",
        "applies to no node: an earlier pool selects all nodes",
    ]


def test_a_pool_with_the_name_of_the_default_pool_causes_a_warning() -> None:
    _, problems = read(tree_of({"name": DEFAULT_POOL, "nodeSelector": GOLD}))
    assert [(problem.where, problem.text, problem.in_force) for problem in problems] == [
        (
            "profiles[0].pluginConfig[0].args.nodePools[0]",
            f"{DEFAULT_POOL} is the name of the default pool: {ONE_POOL}",
            True,
        )
    ]


def test_a_name_of_a_resource_is_reported_where_it_is_written() -> None:
    """Resources with a threshold have a weight that nobody wrote."""
    _, problems = read(tree_of(highThresholds={"c p u": 70}))
    assert not [problem for problem in problems if "resourceWeights" in problem.where]
    assert [problem for problem in problems if "highThresholds" in problem.where]
    _, problems = read(tree_of(resourceWeights={"c p u": 2}))
    assert [problem for problem in problems if "resourceWeights" in problem.where]


def test_record_carries_the_policy_and_equal_policies_have_equal_bytes() -> None:
    descheduling, _ = read(every_key())
    record = NodeRecord(node="a", labels={"a": "b", "pool": "gold"})
    first = encode_json(with_hot_nodes(record, descheduling))
    again = decode_json(NodeRecord, first)
    assert encode_json(with_hot_nodes(again, read(every_key())[0], again)) == first
    assert encode_json(again) == first
    known = decode_json(KnownNode, first).hot_nodes
    assert known is not None
    assert (known.pool, known.usage, known.span_seconds) == ("gold", "p95", 600)
    assert (known.open_windows, known.close_windows, known.hysteresis_percent) == (4, 2, 3)
    default = encode_json(with_hot_nodes(record, read(tree_of())[0]))
    assert b'"usage"' not in default
    assert encode_json(decode_json(NodeRecord, default)) == default


def test_without_a_configuration_the_last_thresholds_stay() -> None:
    record = NodeRecord(node="a")
    before = msgspec.structs.replace(record, hot_nodes=OLD)
    assert with_hot_nodes(record, None, before).hot_nodes == OLD
    assert with_hot_nodes(record, None).hot_nodes is None


def test_every_value_of_a_pool_in_force_fits_a_record() -> None:
    pool = NodePool(high_percent={"cpu": 1000.0}, open_windows=1000, hysteresis_percent=1000.0)
    policy = pool.hot_node_policy
    assert policy is not None
    assert msgspec.convert(msgspec.to_builtins(policy), HotNodePolicy) == policy
