"""LowNodeUtilization of kubernetes-sigs/descheduler, whose usage is that of LowNodeLoad here."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipeline.errors import SampleSourceError
from pipeline.processors.descheduling.cluster_columns import MoveCaps
from pipeline.processors.descheduling.configured_strategies import (
    low_node_load_strategies,
    pools_of_configuration,
)
from pipeline.processors.descheduling.node_fit import FitSimulator
from pipeline.processors.descheduling.node_limits import (
    CLASSES,
    classify,
    node_limits,
    watched_resources,
)
from pipeline.processors.imported_usage.fetched_usage import TimeWindow
from pipeline.processors.imported_usage.prometheus_answers import gather, read_matrix
from pipeline.processors.imported_usage.promql import QueryGrid, queries
from pipeline.topics.hot_node_policy import HotNodePolicy
from tests.processors.descheduling.upstream_low_node_load import UNKNOWN_STAYS
from tests.processors.hot_nodes.node_windows import Stream, hot_window
from tests.vectors.cases import Case, plain
from tests.vectors.descheduling import read
from tests.vectors.runner import Difference, group
from tests.vectors.strategies import balance_world

_SPAN_WINDOWS = 2
_AVERAGED = HotNodePolicy(
    high_percent={"cpu": 90.0}, use_deviation_thresholds=True, span_seconds=30 * _SPAN_WINDOWS
)
_MOST_MILLICORES = 10_000
"""Of the node of `hot_window`."""
_GRID = QueryGrid(60, 60, 60, "instance", "instance")
_ERRORS = {
    "has other resources": "different_resources", "is above": "low_above_target",
    "has metricsServer and source": "two_sources",
    "needs source Prometheus": "prometheus_not_allowed",
}  # fmt: skip


def _means(samples: Sequence[float | None]) -> Iterator[float]:
    """The mean of the known samples within the span that ends with each."""
    for end in range(1, len(samples) + 1):
        known = [each for each in samples[max(end - _SPAN_WINDOWS, 0) : end] if each is not None]
        yield sum(known) / len(known)


def _differs(given: Case, expected: Case) -> Difference | None:
    match given["kind"]:
        case "smoothing":
            answer = {"values": [round(value) for value in _means(given["samples"])]}
            return None if answer == expected else Difference(
                "usage is the mean over a span, not an exponential one",
                "a change of usage shows wholly when the span is over, and not for ever",
                answer,
            )  # fmt: skip
        case "prometheus" if expected.get("error") == "no_instance":
            return Difference(
                "a series without the name of a node is left out and counted",
                "one bad series does not stop the usage of all other nodes",
                {"error": None, "left_out": len(given["samples"])},
            )
        case "prometheus_balance" if expected["evicted_count"]:
            return Difference(
                UNKNOWN_STAYS,
                "no pod leaves by usage of its node alone: whether it would help is not known",
                expected | {"evicted_count": 0},
            )
    return None


@group("load_descheduling, gather, compared_usage, LowNodeLoadStrategy.plan", differs=_differs)
def sigs_low_node_utilization(case: Case) -> object:
    match case["kind"]:
        case "smoothing":
            return _smoothed(case)
        case "prometheus":
            return _read_answer(case)
        case "prometheus_balance":
            return _balance(case)
    args = {key: value for key, value in plain(case).items() if key != "kind"}
    _, problems = read("LowNodeUtilization", args)
    found = [_ERRORS[part] for part in _ERRORS for problem in problems if part in problem.text]
    assert len(found) == len(problems)
    return {"error": found[0] if found else None}


def _smoothed(case: Case) -> object:
    """The compared usage after each window; `beta` has no counterpart."""
    assert 0 < case["beta"] < 1
    stream, values = Stream(), []
    for end, sample in enumerate(case["samples"], 1):
        percent = None if sample is None else 100 * sample / _MOST_MILLICORES
        stream.apply(hot_window(end, percent, policy=_AVERAGED))
        values.append(round(stream.compared["node-1"]["node_cpu"] / 100 * _MOST_MILLICORES))
    return {"values": values}


def _read_answer(case: Case) -> object:
    """The provider asks for series where upstream asks for a vector."""
    series = [
        {"metric": {"instance": each["instance"]} if "instance" in each else {},
         "values": [[60, str(each["value"])]]}
        for each in case["samples"]
    ]  # fmt: skip
    kind = "matrix" if case["type"] == "vector" else case["type"]
    data = {"resultType": kind, "result": series}
    try:
        matrix = read_matrix(json.dumps({"status": "success", "data": data}).encode())
    except SampleSourceError as error:
        return {"error": "not_vector" if "not a matrix" in error.message else error.message}
    (query,) = [q for q in queries({}, _GRID) if q.key == "node.cpu_cores"]
    fetched = gather({query: matrix}, TimeWindow(0, 60_000), _GRID)
    return {"error": None, "left_out": fetched.left_out["names nobody"]}


def _balance(case: Case) -> object:
    """Usage of nodes in percent, and pods whose usage is unknown."""
    room = {"cpu": 100_000, "memory": 1 << 30, "pods": 100}
    nodes = [
        {"name": name, "allocatable": room, "system_usage": {"cpu": 100_000 * share}}
        for name, share in plain(case["samples"]).items()
    ]
    pods = [
        {"name": f"{node}-{i}", "node": node, "requests": {"cpu": 1}, "usage": None}
        for node, count in plain(case["movable"]).items()
        for i in range(count)
    ]
    config = {
        "low_thresholds": {"cpu": case["low"]}, "high_thresholds": {"cpu": case["high"]},
        "use_deviation_thresholds": case.get("deviation", False),
    }  # fmt: skip
    low, columns, of_pods = balance_world({"nodes": nodes, "pods": pods, "config": config})
    (pool,) = pools_of_configuration(low, columns.labels)
    (configured,) = low_node_load_strategies([pool], low.args)
    own = replace(of_pods, caps=MoveCaps(per_node=case.get("node_limit")))
    plan = configured.plan(columns, own, FitSimulator(columns, own))
    places = [columns.resources.index(name) for name in watched_resources(pool.pool)]
    parts = (columns.capacity, columns.usage, columns.prod_usage)
    capacity, usage, prod = (part[:, places] for part in parts)
    limits = node_limits(pool.pool, watched_resources(pool.pool), capacity, usage, prod)
    codes = classify(usage, prod, limits, columns.is_cordoned).tolist()
    classes = dict(zip(columns.names, (CLASSES[code] for code in codes), strict=True))
    return {
        "evicted_count": len(plan.moves),
        "low": [name for name, kind in classes.items() if kind in ("low", "both_low")],
        "high": [name for name, kind in classes.items() if kind == "high"],
    }
