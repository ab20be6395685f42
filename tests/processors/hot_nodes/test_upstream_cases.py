"""Detection on the recorded cases of LowNodeLoad's classification."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from pipeline.processors.join.node_facts import RAW_ALLOCATABLE, raw_allocatable
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.nodes import KnownNode
from pipeline.topics.resource_amounts import Resources
from tests.processors.hot_nodes.node_windows import CORES, MEMORY, Stream, hot_window
from tests.processors.hot_nodes.single_rule import changes, policy_of

_PATH = Path(__file__).parents[2] / "data" / "vectors" / "descheduling.json"
_GROUPS = {of["group"]: of["cases"] for of in json.loads(_PATH.read_text())["groups"]}
CASES: list[dict[str, Any]] = _GROUPS["classify_nodes"]
WATCHED = ("cpu", "memory")


def of_kind(kind: str) -> list[Any]:
    return [
        pytest.param(case["input"], case["expected"], id=case["name"].replace(" ", "-"))
        for case in CASES
        if case["input"]["kind"] == kind
    ]


def rules_of(usage: Any, prod: Any, policy: HotNodePolicy) -> set[str]:
    """The rules that hold for a node with this usage in percent."""
    window = hot_window(
        1, usage["cpu"], usage["memory"], policy=policy,
        pods={"uid-0": ("prod", prod["cpu"] / 100 * CORES)},
        prod_memory=prod["memory"] / 100 * MEMORY,
    )  # fmt: skip
    return {record.rule for record in Stream().apply(window).records.get("node-1", [])}


def means_of(nodes: Any) -> dict[str, float]:
    """The mean usage of these nodes by rule."""
    return {
        f"{scope}_{r}": statistics.fmean(
            100 * n[key].get(r, 0) / n["allocatable"][r] for n in nodes
        )
        for scope, key in (("node", "usage"), ("prod", "prod_usage"))
        for r in WATCHED
    }


@pytest.mark.parametrize(("given", "expected"), of_kind("classify"))
def test_rules_hold_where_upstream_finds_usage_over_a_limit(given: Any, expected: Any) -> None:
    """Of cpu and memory; upstream also counts pods."""
    deviates = given["config"].get("use_deviation_thresholds", False)
    thresholds = given["effective_thresholds"]
    policy = HotNodePolicy(
        high_percent={r: thresholds["high"][r] for r in WATCHED if r in thresholds["high"]},
        prod_high_percent={
            r: thresholds["prod_high"][r] for r in WATCHED if r in thresholds["prod_high"]
        },
        low_percent={r: thresholds["low"][r] for r in WATCHED if r in thresholds["low"]},
        prod_low_percent={
            r: thresholds["prod_low"][r] for r in WATCHED if r in thresholds["prod_low"]
        },
        span_seconds=30, open_windows=1, use_deviation_thresholds=deviates,
        mean_percent=means_of(given["nodes"]),
    )  # fmt: skip
    for node in given["nodes"]:
        usage, prod = (
            {r: 100 * node[key].get(r, 0) / node["allocatable"][r] for r in WATCHED}
            for key in ("usage", "prod_usage")
        )
        limits = expected["limits"][node["name"]]
        over = {
            f"{scope}_{r}"
            for scope, key, limit in (
                ("node", "usage", "high"), ("prod", "prod_usage", "prod_high"),
            )
            for r in WATCHED
            if r in limits[limit] and node[key].get(r, 0) > limits[limit][r]
        }  # fmt: skip
        assert rules_of(usage, prod, policy) == over
        if {rule for rule in over if rule.startswith("node")}:
            assert node["name"] in expected["classes"]["high"]


@pytest.mark.parametrize(("given", "expected"), of_kind("limit_rounding"))
def test_whole_usage_is_hot_above_the_same_limit(given: Any, expected: Any) -> None:
    for used in range(given["capacity"] + 1):
        percent = 100.0 * used / given["capacity"]
        is_hot = bool(changes([percent], policy_of(given["percent"], opens=1)))
        assert is_hot == (used > expected["limit"])


def test_a_limit_that_upstream_rounds_below_the_threshold_is_not_ours() -> None:
    """29% of 100 is 28 in upstream's floats, so that usage of 29 counts as over it."""
    assert math.trunc(29 * 0.01 * 100) == 28
    assert changes([29.0], policy_of(29.0, opens=1)) == []
    assert changes([29.01], policy_of(29.0, opens=1)) == [(1, "opened")]


@pytest.mark.parametrize(("given", "expected"), of_kind("capacity_base"))
def test_capacity_is_allocatable_before_amplification(given: Any, expected: Any) -> None:
    annotation = given["raw_allocatable_annotation"]
    stated = given["allocatable"]
    record = KnownNode(
        node="a",
        allocatable=Resources(cpu_millicores=stated["cpu"], memory_bytes=stated["memory"]),
        annotations={} if annotation is None else {RAW_ALLOCATABLE: annotation},
    )
    capacity = raw_allocatable(record)
    assert capacity == Resources(
        cpu_millicores=expected["capacity"]["cpu"], memory_bytes=expected["capacity"]["memory"]
    )


@pytest.mark.parametrize(("given", "expected"), of_kind("reason_facts"))
def test_evidence_has_the_facts_of_upstreams_reason(given: Any, expected: Any) -> None:
    policy = HotNodePolicy(
        high_percent=given["high_thresholds"],
        prod_high_percent=given.get("prod_high_thresholds", {}),
        span_seconds=30, open_windows=1,
    )  # fmt: skip
    usage, prod = (
        {r: 100 * given.get(key, given["usage"])[r] / given["allocatable"][r] for r in WATCHED}
        for key in ("usage", "prod_usage")
    )
    window = hot_window(
        1, usage["cpu"], usage["memory"], policy=policy,
        pods={"uid-0": ("prod", prod["cpu"] / 100 * CORES)},
        prod_memory=prod["memory"] / 100 * MEMORY,
    )  # fmt: skip
    over = [
        {
            "resource": record.rule.partition("_")[2],
            "scope": record.rule.partition("_")[0],
            "usage_percent": f"{record.evidence.usage_percent:.2f}",
            "threshold_percent": f"{record.evidence.threshold_percent:.2f}",
        }
        for record in Stream().apply(window).records["node-1"]
    ]
    scope = "prod" if given["prod"] else "node"
    assert [fact for fact in over if fact["scope"] == scope] == expected["over"]
