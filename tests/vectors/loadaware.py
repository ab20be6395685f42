"""Vector groups of Koordinator's LoadAwareScheduling.

What each passes through is the module of `pipeline.processors.loadaware` that says so; classes of
pods by `classes.pod_class`, capacity by `node_facts.raw_allocatable`, as the watcher and the table
have them. Each case is run as one node between two others of which nothing is known.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from pipeline.processors.join.node_facts import RAW_ALLOCATABLE, raw_allocatable
from pipeline.processors.kubernetes.pod_classes import class_label, pod_class
from pipeline.processors.loadaware import filter_score, node_thresholds
from pipeline.processors.loadaware.in_flight import (
    DEFAULT_REPORT_SECONDS,
    Assigned,
    Sums,
    sums,
)
from pipeline.processors.loadaware.loadaware_args import (
    LoadAwareArgs,
    problems,
    with_defaults,
)
from pipeline.processors.loadaware.pod_estimate import (
    SCALING_FACTORS,
    SECONDS_AFTER_INITIALIZED,
    SECONDS_AFTER_SCHEDULED,
    deadline,
    estimate,
    own_factors,
    own_seconds,
)
from pipeline.processors.loadaware.usage_thresholds import is_fresh
from pipeline.processors.scorers import load_aware
from pipeline.topics.nodes import KnownNode
from pipeline.topics.resource_amounts import Resources

Case = dict[str, Any]

NODES, NODE = 3, 1


def loadaware_priority_class(case: Case) -> object:
    labels = {
        "koordinator.sh/priority-class": case["label_priority_class"],
        "koordinator.sh/qosClass": case["label_qos"],
    }
    said = {name: value for name, value in labels.items() if value is not None}
    found = pod_class(said, case["priority"], case["kube_qos"])
    return {"priority_class": class_label(found.priority_class)}


def loadaware_args_defaults(case: Case) -> object:
    found = msgspec.to_builtins(with_defaults(load_aware.SCORER.stated(case)))
    kept = (
        "filterExpiredNodeMetrics",
        "enableScheduleWhenNodeMetricsExpired",
        "nodeMetricExpirationSeconds",
    )
    return {name: value for name, value in found.items() if value or name in kept}


def loadaware_args_validation(case: Case) -> object:
    bad = sorted({key for key, _ in problems(load_aware.SCORER.stated(case))})
    return {"valid": not bad, "bad_fields": bad}


def short(priority_class: str) -> str:
    return priority_class.removeprefix("koord-")


def estimated(pod: Case, factors: Mapping[str, int], *, customize: bool = False) -> dict[str, int]:
    if customize:
        said = pod.get("annotation_scaling_factors")
        factors = own_factors({} if said is None else {SCALING_FACTORS: said}, factors)
    return estimate(short(pod["priority_class"]), pod["requests"], pod["limits"], factors)


def loadaware_estimator(case: Case) -> object:
    return estimated(
        case["pod"], case["scaling_factors"], customize=case.get("allow_customize", False)
    )


def _capacity(node: Case) -> dict[str, int | None]:
    said, raw = node["allocatable"], node.get("raw_allocatable_annotation")
    record = KnownNode(
        node="n",
        allocatable=Resources(cpu_millicores=said.get("cpu"), memory_bytes=said.get("memory")),
        annotations={} if raw is None else {RAW_ALLOCATABLE: raw},
    )
    found = raw_allocatable(record)
    return {"cpu": found.cpu_millicores, "memory": found.memory_bytes}


def loadaware_estimator_node(case: Case) -> object:
    return _capacity(case)


def loadaware_estimate_deadline(case: Case) -> object:
    after = {}
    for kind, name in (
        ("scheduled", SECONDS_AFTER_SCHEDULED), ("initialized", SECONDS_AFTER_INITIALIZED)
    ):  # fmt: skip
        said = case.get(f"annotation_after_{kind}")
        annotations = {name: said} if said is not None and case["allow_customize"] else {}
        after[kind] = own_seconds(annotations, name, case[f"after_{kind}_s"])
    found = deadline(
        case["scheduled_at_s"], case["initialized_at_s"], after["scheduled"], after["initialized"]
    )
    return {"deadline_s": found}


def _row(amounts: Mapping[str, int], resources: tuple[str, ...]) -> list[int]:
    return [amounts.get(name) or 0 for name in resources]


def in_flight(case: Case, args: LoadAwareArgs) -> Sums:
    """The sums of a node, in order of the resources of `args`."""
    resources, metric = args.resources, case["metric"] or {}
    factors = args.estimated_scaling_factors
    reported = {one["name"]: one for one in metric.get("pods", ()) if one["usage"]}
    pods = [
        pod
        for pod in case["assigned_pods"]
        if pod.get("phase") not in ("Succeeded", "Failed") and not pod.get("reservation")
    ]
    seen = [reported.get(pod["name"], {}) for pod in pods]
    ends = [
        deadline(
            pod["scheduled_at_s"], pod.get("initialized_at_s"),
            args.estimated_seconds_after_pod_scheduled, args.estimated_seconds_after_initialized,
        )
        for pod in pods
    ]  # fmt: skip

    def amounts(of: list[list[int]]) -> np.ndarray:
        return np.array(of, np.int64).reshape(len(pods), len(resources))

    counted = np.zeros((NODES, len(resources)), np.int64)
    if args.prod_usage_include_sys:
        counted[NODE] = _row(metric.get("system_usage") or {}, resources)
    return sums(
        Assigned(
            node=np.full(len(pods), NODE),
            is_prod=np.array([pod["priority_class"] == "koord-prod" for pod in pods], bool),
            estimate=amounts([_row(estimated(pod, factors), resources) for pod in pods]),
            usage=amounts([_row(one.get("usage", {}), resources) for one in seen]),
            is_reported=np.array([bool(one) for one in seen], bool),
            is_reported_prod=np.array([one.get("priority") == "koord-prod" for one in seen], bool),
            scheduled_seconds=np.array([pod["scheduled_at_s"] for pod in pods], float),
            deadline_seconds=np.array([np.nan if end is None else end for end in ends], float),
        ),
        column(metric.get("updated_at_s")),
        column(metric.get("report_interval_s") or DEFAULT_REPORT_SECONDS, DEFAULT_REPORT_SECONDS),
        counted,
    )


def column(value: float | None, other: float = np.nan) -> np.ndarray:
    return np.array([other, np.nan if value is None else value, other], float)


def loadaware_inflight(case: Case) -> object:
    args = load_aware.SCORER.stated(case["config"])
    found = in_flight(case, args)
    at = [args.resources.index(name) for name in ("cpu", "memory")]
    return {
        name: dict(zip(("cpu", "memory"), amounts[NODE, at].tolist(), strict=True))
        for name, amounts in found._asdict().items()
    }


def usage_of(metric: Case, resources: tuple[str, ...]) -> np.ndarray:
    found = np.full((NODES, len(resources)), np.nan)
    if metric.get("node_usage") is not None:
        found[NODE] = _row(metric["node_usage"], resources)
    return found


def aggregated_of(
    metric: Case, statistic: str, span: int, resources: tuple[str, ...]
) -> np.ndarray:
    spans: dict[int, np.ndarray] = {}
    for one in metric.get("aggregated", ()):
        if one["type"] == statistic and one["usage"]:
            spans[one["duration_s"]] = np.full((NODES, len(resources)), np.nan)
            spans[one["duration_s"]][NODE] = _row(one["usage"], resources)
    return filter_score.aggregated_usage(spans, span, usage_of(metric, resources))


def loadaware_aggregate_selection(case: Case) -> object:
    found = aggregated_of(case["metric"], case["type"], case["duration_s"], ("cpu", "memory"))
    cpu, memory = found[NODE].tolist()
    return {"usage": None if cpu != cpu else {"cpu": cpu, "memory": memory}}


def nodes_of(case: Case, args: LoadAwareArgs, compared: np.ndarray) -> filter_score.Nodes:
    metric, resources = case["metric"], args.resources
    capacity = np.zeros((NODES, len(resources)), np.int64)
    capacity[NODE] = _row(_capacity(case["node"]), resources)  # type: ignore[arg-type]
    at = np.arange(NODES) == NODE
    return filter_score.Nodes(
        capacity=capacity,
        compared=compared,
        is_reported=at & (metric is not None),
        has_usage=at & (metric is not None and metric["node_usage"] is not None),
        updated_seconds=column(metric and metric["updated_at_s"]),
    )


def loadaware_filter(case: Case) -> object:
    args, metric, pod = load_aware.SCORER.read(case["config"]), case["metric"] or {}, case["pod"]
    resources = args.resources
    found = node_thresholds.limits_of(
        args,
        case["node"].get("usage_thresholds_annotation"),
        is_prod=pod["priority_class"] == "koord-prod",
    )
    thresholds = np.zeros((NODES, len(resources)), np.int64)
    if not pod.get("daemonset"):
        thresholds[NODE] = _row(found.thresholds, resources)
    flight = in_flight(case, args)
    if found.of == node_thresholds.PROD:
        compared = filter_score.compared_prod(flight)
    elif found.of == node_thresholds.AGGREGATED:
        usage = aggregated_of(metric, found.statistic, found.span_seconds, resources)
        compared = filter_score.compared_usage(usage, flight)
    else:
        compared = filter_score.compared_usage(usage_of(metric, resources), flight)
    nodes = nodes_of(case, args, compared)
    expired = ~is_fresh(
        case["now_s"] - nodes.updated_seconds, args.node_metric_expiration_seconds or 0
    )
    verdict = filter_score.judge(
        nodes,
        np.array(_row(estimated(pod, args.estimated_scaling_factors), resources), np.int64),
        thresholds,
        expired & bool(args.filter_expired_node_metrics),
        passes_expired=bool(args.enable_schedule_when_node_metrics_expired),
    )
    code, at = int(verdict.code[NODE]), int(verdict.resource[NODE])
    reason = "aggregated_usage" if found.of == node_thresholds.AGGREGATED else "usage"
    return {
        "pass": code == filter_score.PASSES,
        "reason": {filter_score.PASSES: None, filter_score.EXPIRED: "expired"}.get(code, reason),
        "resource": resources[at] if at >= 0 else None,
    }


def loadaware_score(case: Case) -> object:
    args, metric, pod = load_aware.SCORER.read(case["config"]), case["metric"], case["pod"]
    resources, flight = args.resources, in_flight(case, args)
    aggregated = args.aggregated
    if args.score_according_prod_usage and pod["priority_class"] == "koord-prod":
        compared = filter_score.compared_prod(flight)
    elif aggregated is not None and aggregated.score_aggregation_type:
        span = node_thresholds.span_seconds(aggregated.score_aggregated_duration) or 0
        usage = aggregated_of(metric, aggregated.score_aggregation_type, span, resources)
        compared = filter_score.compared_usage(usage, flight)
    else:
        compared = filter_score.compared_usage(usage_of(metric, resources), flight)
    nodes = nodes_of(case, args, compared)
    found = filter_score.score(
        nodes,
        np.array(_row(estimated(pod, args.estimated_scaling_factors), resources), np.int64),
        ~is_fresh(case["now_s"] - nodes.updated_seconds, args.node_metric_expiration_seconds or 0),
        np.array(_row(args.resource_weights, resources), np.int64),
        args.dominant_resource_weight,
    )
    return {"score": int(found[NODE])}


ADAPTERS = {
    function.__name__: function
    for function in (
        loadaware_priority_class, loadaware_args_defaults, loadaware_args_validation,
        loadaware_estimator, loadaware_estimator_node, loadaware_inflight,
        loadaware_estimate_deadline, loadaware_aggregate_selection, loadaware_filter,
        loadaware_score,
    )
}  # fmt: skip
