"""Groups of Koordinator's LoadAwareScheduling, asked of a state table with one node."""

from collections.abc import Mapping
from typing import Any

import msgspec

from pipeline.processors.kubernetes.object_records import pod_record
from pipeline.processors.kubernetes.pod_classes import class_label
from pipeline.processors.loadaware import node_thresholds
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs, problems
from pipeline.processors.loadaware.node_thresholds import Limits
from pipeline.processors.loadaware.node_usage import load_aware_usage
from pipeline.processors.loadaware.pod_estimate import (
    SCALING_FACTORS,
    SECONDS_AFTER_INITIALIZED,
    SECONDS_AFTER_SCHEDULED,
)
from pipeline.processors.placement.enabled_plugins import Placement
from pipeline.processors.scorers.load_aware import LOAD_AWARE, SCORER
from pipeline.topics.node_state import AGGREGATED, AggregatedUsage
from tests.vectors.cases import Case, plain
from tests.vectors.runner import Difference, group
from tests.vectors.world import LONG_AGO, World, container, placement, pod, usage

NODE = "n"
_REPORT_SECONDS = 60
_ENDED = ("Succeeded", "Failed")


_TABLE = "Table, CandidateNodes"


@group("object_records.pod_record")
def loadaware_priority_class(case: Case) -> object:
    manifest = pod(
        "p", [_for_qos(case["kube_qos"])], priority_class=case["label_priority_class"],
        koord_qos=case["label_qos"], kube_qos=case["kube_qos"], priority=case["priority"],
    )  # fmt: skip
    return {"priority_class": class_label(pod_record(manifest).pod_class)}


def _for_qos(kube_qos: str) -> Case:
    """A container that gives its pod this QoS class."""
    amounts = {"cpu": 100, "memory": 100}
    requests = {} if kube_qos == "BestEffort" else amounts
    return container(requests, amounts if kube_qos == "Guaranteed" else {})


@group("load_aware.SCORER.read")
def loadaware_args_defaults(case: Case) -> object:
    args = msgspec.to_builtins(SCORER.read(plain(case)))
    always = (
        "filterExpiredNodeMetrics",
        "enableScheduleWhenNodeMetricsExpired",
        "nodeMetricExpirationSeconds",
    )
    return {name: value for name, value in args.items() if value or name in always}


@group("load_aware.SCORER, loadaware_args.problems")
def loadaware_args_validation(case: Case) -> object:
    """Upstream checks arguments before defaults: so does `problems`, by which `read` refuses."""
    bad = sorted({key for key, _ in problems(SCORER.stated(plain(case)))})
    return {"valid": not bad, "bad_fields": bad}


def _unchecked(args: Case) -> Placement:
    """A placement of arguments as they are: some groups give them without defaults."""
    return Placement((), (), {LOAD_AWARE: SCORER.stated(args)})


_OWN = {
    SCALING_FACTORS: "annotation_scaling_factors",
    SECONDS_AFTER_SCHEDULED: "annotation_after_scheduled",
    SECONDS_AFTER_INITIALIZED: "annotation_after_initialized",
}
"""Keys of a pod in a case by the annotations that they stand for."""


def _manifest(case: Case, name: str = "asking", **more: Any) -> Case:
    return pod(
        name, [container(case["requests"], case["limits"])],
        priority_class=case["priority_class"] or None, daemonset=case.get("daemonset", False),
        annotations={key: case[name] for key, name in _OWN.items() if case.get(name) is not None},
        **more,
    )  # fmt: skip


@group("Decisions.asked")
def loadaware_estimator(case: Case) -> object:
    factors = plain(case["scaling_factors"])
    args = {"estimatedScalingFactors": factors}
    args["allowCustomizeEstimation"] = case.get("allow_customize", False)
    asked = World(_unchecked(args), 0.0).asked(_manifest(case["pod"]))
    return {name: asked.counted[f"estimate:{name}"] for name in factors}


def _add_node(world: World, case: Case) -> None:
    world.node(
        NODE,
        plain(case["allocatable"]),
        annotations={
            "node.koordinator.sh/raw-allocatable": case.get("raw_allocatable_annotation"),
            node_thresholds.ANNOTATION: case.get("usage_thresholds_annotation"),
        },
    )


@group(_TABLE)
def loadaware_estimator_node(case: Case) -> object:
    world = World(_unchecked({}), 0.0)
    _add_node(world, case)
    moment = world.candidates()
    amounts = {name: int(moment.allocatable(name, "raw")[0]) for name in ("cpu", "memory")}
    return {name: amount for name, amount in amounts.items() if amount}


@group("Rules.counting, Counting.deadline")
def loadaware_estimate_deadline(case: Case) -> object:
    args: Case = {"allowCustomizeEstimation": case["allow_customize"]}
    annotations: dict[str, str] = {}
    for after, key, name in (
        ("scheduled", "estimatedSecondsAfterPodScheduled", SECONDS_AFTER_SCHEDULED),
        ("initialized", "estimatedSecondsAfterInitialized", SECONDS_AFTER_INITIALIZED),
    ):
        args[key] = case[f"after_{after}_s"]
        own = case.get(f"annotation_after_{after}")
        annotations |= {} if own is None else {name: own}
    scheduled, initialized = case["scheduled_at_s"], case["initialized_at_s"]
    manifest = pod("p", [], annotations=annotations, initialized_at=initialized)
    counting = World(_unchecked(args), 0.0).rules.counting
    return {"deadline_s": counting.deadline(pod_record(manifest), scheduled)}


def _world(case: Case, placement: Placement, now: float) -> World:
    """The node of a case with its pods and its report, as the topics have them."""
    world, metric = World(placement, now), case["metric"]
    _add_node(world, case.get("node") or {"allocatable": {}})
    reports = () if metric is None else metric.get("pods") or ()
    reported = {report["name"]: report for report in reports}
    measured = {}
    prod = dict.fromkeys(("cpu", "memory"), 0)
    for assigned in case["assigned_pods"] or ():
        name, phase = assigned["name"], assigned.get("phase") or "Running"
        label, scheduled = assigned["priority_class"], assigned["scheduled_at_s"]
        if assigned.get("reservation"):
            # A Reservation is no Pod here: the watcher never publishes one.
            plain(assigned)
            continue
        own = (reported.get(name) or {}).get("usage")
        if phase not in _ENDED and own:
            measured[name] = usage(own)
            if label == "koord-prod":
                prod = {key: prod[key] + (own.get(key) or 0) for key in prod}
        # A running pod that is not young is measured: one that is not measured is pending.
        phase = phase if own or phase in _ENDED else "Pending"
        initialized = assigned.get("initialized_at_s")
        world.runs(
            _manifest(
                assigned, name, node=NODE, phase=phase, scheduled_at=scheduled,
                initialized_at=initialized,
            )
        )  # fmt: skip
    if metric is None or (metric["updated_at_s"] is None and metric.get("node_usage") is None):
        _report_nothing(world, metric)
        return world
    for entry in reported.values():
        plain(entry)
    updated, seconds = metric["updated_at_s"], metric["report_interval_s"]
    world.report(
        NODE, usage(metric.get("node_usage")), at=LONG_AGO if updated is None else updated,
        seconds=seconds or _REPORT_SECONDS, system_usage=usage(metric.get("system_usage")),
        class_usage={"prod": usage(prod)} if prod["cpu"] or prod["memory"] else {},
        young_pods=measured, aggregated=_aggregated(metric.get("aggregated") or ()),
    )  # fmt: skip
    return world


def _report_nothing(world: World, metric: Case | None) -> None:
    """A report that never had a time is one that expired long ago; without one there is none."""
    if metric is not None:
        plain(metric)
        world.report(NODE, usage(None), at=LONG_AGO)


def _aggregated(entries: Any) -> dict[str, AggregatedUsage]:
    spans: dict[str, dict[str, Any]] = {}
    for entry in entries:
        seconds, kind, used = entry["duration_s"], entry["type"], entry["usage"]
        if used:
            spans.setdefault(_SPANS.get(seconds, ""), {})[kind] = usage(used)
    return {span: AggregatedUsage(**kinds) for span, kinds in spans.items() if span}


_SPANS = {seconds: span for span, seconds in AGGREGATED.items()}


def _in_our_spans(case: Case) -> Case:
    """A case with other spans than those of node states, in order on these."""
    entries = case["metric"].get("aggregated") or ()
    asked = [case["duration_s"]] if case["duration_s"] else []
    spans = sorted({*asked, *(entry["duration_s"] for entry in entries)})
    if {*spans} <= _SPANS.keys():
        return case
    ours = dict(zip(spans, sorted(_SPANS), strict=False))
    renamed = [entry | {"duration_s": ours.get(entry["duration_s"], 0)} for entry in entries]
    span = ours.get(case["duration_s"], 0)
    return case | {"duration_s": span, "metric": case["metric"] | {"aggregated": renamed}}


@group(f"{_TABLE}, node_usage.compared")
def loadaware_aggregate_selection(case: Case) -> object:
    """The usage that the filter compares; without one it compares the estimates of pods."""
    if case["metric"] is None:
        plain(case)
        return {"usage": None}
    case = _in_our_spans(plain(case))
    settled = {
        "name": "settled", "priority_class": "koord-prod", "requests": {}, "limits": {},
        "scheduled_at_s": 0, "phase": "Running",
    }  # fmt: skip
    whole = {"name": "settled", "priority": "koord-prod", "usage": {"cpu": 1, "memory": 1}}
    metric = case["metric"] | {"pods": [whole]}
    args = SCORER.read({})
    node = {"metric": metric, "assigned_pods": [settled]}
    world = _world(node, Placement((), (), {LOAD_AWARE: args}), case["metric"]["updated_at_s"])
    limits = Limits({}, node_thresholds.AGGREGATED, case["type"], case["duration_s"])
    cpu, memory = load_aware_usage(world.candidates(), args, limits)[0].tolist()
    estimated = world.asked(_manifest(settled)).amounts("estimate", args.resources).tolist()
    if [cpu, memory] == estimated:
        return {"usage": None}
    return {"usage": {"cpu": cpu, "memory": memory}}


def _class_of_the_record(given: Case, expected: Case) -> Difference | None:
    """Upstream counts a pod whose report lacks its class with its whole estimate."""
    metric = given["metric"] or {}
    assigned: Mapping[str, Case] = {entry["name"]: entry for entry in given["assigned_pods"] or ()}
    odd = [
        entry
        for entry in metric.get("pods") or ()
        if entry["name"] in assigned
        and assigned[entry["name"]]["priority_class"] == "koord-prod"
        and entry.get("priority") != "koord-prod"
    ]
    if not odd:
        return None
    delta, prod = expected["node_delta"], expected["prod_usage"]
    used = {
        key: prod[key] + sum((entry["usage"] or {}).get(key) or 0 for entry in odd) for key in prod
    }
    return Difference(
        "the worker takes a pod's class from its Pod, not from the report of its usage",
        "usage of a Prod pod counts as Prod's although the node agent reported another class",
        expected | {"prod_usage": used, "prod_delta": delta},
    )


@group(f"{_TABLE}, node_usage.compared", differs=_class_of_the_record)
def loadaware_inflight(case: Case) -> object:
    args: LoadAwareArgs = SCORER.stated(plain(case["config"]))
    now = case["metric"]["updated_at_s"] if case["metric"] else None
    world = _world(case, Placement((), (), {LOAD_AWARE: args}), 1000.0 if now is None else now)
    moment = world.candidates()
    columns = [args.resources.index(name) for name in ("cpu", "memory")]
    prod = load_aware_usage(moment, args, Limits({}, node_thresholds.PROD))
    flights = {
        "node_delta": moment.in_flight_usage(), "prod_delta": moment.in_flight_usage(prod=True),
        "prod_usage": prod - moment.in_flight_usage(prod=True),
    }  # fmt: skip
    answer = {
        name: dict(zip(("cpu", "memory"), flight[0, columns].tolist(), strict=True))
        for name, flight in flights.items()
    }
    estimated = {name: int(moment.counted(f"estimate:{name}")[0]) for name in ("cpu", "memory")}
    return answer | {"node_estimated": estimated}


@group("POST /filter of the extender")
def loadaware_filter(case: Case) -> object:
    rules = placement(LOAD_AWARE, plain(case["config"]), filters=True)
    world = _world(case, rules, case["now_s"])
    reason = world.refusals(_manifest(case["pod"])).get(NODE)
    if reason is None:
        return {"pass": True, "reason": None, "resource": None}
    if reason == "node(s) nodeMetric expired":
        return {"pass": False, "reason": "expired", "resource": None}
    _, resource, *usage, _, _ = reason.split(" ")
    kind = "aggregated_usage" if usage == ["aggregated", "usage"] else "usage"
    return {"pass": False, "reason": kind, "resource": resource}


@group("Decisions.prioritize")
def loadaware_score(case: Case) -> object:
    world = _world(case, placement(LOAD_AWARE, plain(case["config"])), case["now_s"])
    if case["metric"] is None:
        # A node without a report is new, and idle, unless one of its pods is old.
        world.runs(pod("old", [], node=NODE, scheduled_at=LONG_AGO))
    return {"score": world.scores(_manifest(case["pod"]), LOAD_AWARE)[NODE]}
