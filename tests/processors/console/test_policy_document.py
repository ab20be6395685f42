"""The policy in force by node, the different policies, and warnings."""

from typing import Any

from pipeline.processors.console import limits
from pipeline.processors.console.policy_document import (
    ExtenderPolicy,
    NodePolicy,
    PolicyReport,
    policy_report,
)
from pipeline.processors.kubernetes.object_records import STRATEGY
from pipeline.processors.loadaware.loadaware_args import Aggregated, LoadAwareArgs
from pipeline.processors.loadaware.node_thresholds import ANNOTATION
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.nodes import KnownNode, NodeStrategy
from pipeline.topics.overcommit_policy import Overcommit

LOW: Any = {"high_percent": {"cpu": 60.0}, "pool": "gpu"}


def node(name: str, **more: Any) -> NodePolicy:
    return NodePolicy(name, KnownNode(node=name, **more), "percentile", ("percentile",))


def report(*nodes: NodePolicy, **more: Any) -> PolicyReport:
    args = LoadAwareArgs(usage_thresholds={"cpu": 65, "memory": 0})
    usual: dict[str, Any] = {"mode": "act", "load_aware": args}
    return policy_report(nodes, ExtenderPolicy(**(usual | more)))


def test_equal_policies_are_one_and_that_of_most_nodes_is_first() -> None:
    plain = Overcommit()
    made = report(
        node("c", overcommit=plain), node("a", overcommit=plain), node("d"),
        NodePolicy("b", None, "", ()),
    )  # fmt: skip
    assert (made.name, made.policy) == (["a", "b", "c", "d"], [0, None, 0, 1])
    first, second = made.policies
    assert (first.nodes, second.nodes, second.overcommit) == (2, 1, None)
    # Defaults are said, and no limit is not 0.
    assert first.overcommit is not None
    assert first.overcommit["cpu_reclaim_threshold_percent"] == 60
    assert first.overcommit["batch_cpu_threshold_percent"] is None


def test_thresholds_and_overrides_are_shown_without_what_nobody_set() -> None:
    made = report(
        node("a", strategy=NodeStrategy(predictor="percentile"), hot_nodes=HotNodePolicy(**LOW))
    )
    (policy,) = made.policies
    assert policy.strategy == {"predictor": "percentile"}
    assert policy.hot_nodes is not None
    assert policy.hot_nodes["high_percent"] == {"cpu": 60.0}
    assert "mean_percent" not in policy.hot_nodes
    assert made.pool == ["gpu"]
    assert (made.cpu_threshold_percent, made.memory_threshold_percent) == (65, None)


def test_warnings_name_the_nodes_that_they_are_about() -> None:
    made = report(
        *[NodePolicy(f"n{number}", None, "", ()) for number in range(5)],
        node("bad", annotations={ANNOTATION: "{", STRATEGY: '{"safetyMarginPercent": -1}'}),
        node("asks", strategy=NodeStrategy(predictor="calibrated")),
        node("hot", hot_nodes=HotNodePolicy(**LOW)),
        notes=["a note"],
    )
    said = {warning.text: (warning.nodes, warning.first_nodes) for warning in made.warnings}
    assert said.pop("a note") == (None, [])
    (unknown,) = (text for text in said if text.startswith("no record of the node"))
    assert said.pop(unknown) == (5, ["n0", "n1", "n2"])
    rest = {names[0]: text for text, (_, names) in said.items() if names[0] != "bad"}
    assert "predictor calibrated, which does not run: percentile decides" in rest["asks"]
    assert "cpu of a node be filled to 65%, but above 60% it is hot" in rest["hot"]
    assert len([names for _, names in said.values() if names == ["bad"]]) == 2


def test_a_node_that_agrees_with_everything_has_no_warning() -> None:
    high = HotNodePolicy(high_percent={"cpu": 80.0})
    assert report(node("a", hot_nodes=high)).warnings == []
    # Without a threshold of CPU the extender fills nothing by a rule of its own.
    assert report(node("a", hot_nodes=HotNodePolicy(**LOW)), load_aware=None).warnings == []


def test_many_different_policies_and_warnings_are_bounded() -> None:
    made = report(
        *[
            node(
                f"n{number:04}", overcommit=Overcommit(buffer_percent=number % 100),
                strategy=NodeStrategy(predictor=f"p{number}"),
            )
            for number in range(500)
        ]
    )  # fmt: skip
    assert (len(made.policies), len(made.warnings)) == (limits.POLICIES, limits.WARNINGS)
    assert (made.more_policies, made.more_warnings) == (
        500 - limits.POLICIES, 500 - limits.WARNINGS,
    )  # fmt: skip
    # A policy that is not listed is not unknown.
    assert sorted(index for index in made.policy if index is not None) == [*range(500)]


def test_thresholds_are_those_that_the_filter_selects_for_the_node() -> None:
    def filled(own: str | None, **args: Any) -> list[str]:
        annotations = {} if own is None else {ANNOTATION: own}
        usual = {"usage_thresholds": {"cpu": 65, "memory": 95}}
        made = report(
            node("a", annotations=annotations, hot_nodes=HotNodePolicy(**LOW)),
            load_aware=LoadAwareArgs(**(usual | args)),
        )
        return [warning.text for warning in made.warnings]

    assert "filled to 65%" in filled(None)[0]
    assert filled('{"usageThresholds": {"cpu": 50}}') == []
    assert "filled to 90%" in filled('{"usageThresholds": {"cpu": 90}}')[0]
    p95 = Aggregated(usage_thresholds={"cpu": 80}, usage_aggregation_type="p95")
    assert filled(None, aggregated=p95) == []
    prod = {"cpu": 40, "memory": 0}
    made = report(
        load_aware=LoadAwareArgs(
            usage_thresholds={"cpu": 65}, aggregated=p95, prod_usage_thresholds=prod
        )
    )
    assert (made.cpu_threshold_percent, made.memory_threshold_percent) == (80, None)
    assert (made.threshold_statistic, made.prod_threshold_percent) == ("p95", {"cpu": 40})
