"""Groups of the strategies that choose pods to move: asked of columns of nodes and pods."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.descheduling.bookings import Bookings, TargetLimits
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.configured_strategies import (
    PodFilter,
    low_node_load_strategies,
    pools_of_configuration,
    selected_nodes,
    why_off,
)
from pipeline.processors.descheduling.descheduler_config import MIGRATION_CONTROLLER, Profile
from pipeline.processors.descheduling.field_types import PodSelector
from pipeline.processors.descheduling.fragmentation import NAME as FRAGMENTATION
from pipeline.processors.descheduling.fragmentation import FragmentationStrategy, imbalance
from pipeline.processors.descheduling.landing import Arrival
from pipeline.processors.descheduling.low_node_load import LowNodeLoad
from pipeline.processors.descheduling.node_fit import FitSimulator
from pipeline.processors.descheduling.node_limits import (
    CLASSES,
    classify,
    deviation_limits,
    node_limits,
    over_use,
    percents,
    static_limits,
    watched_resources,
)
from pipeline.processors.descheduling.planned_moves import PlannedMoves
from pipeline.processors.descheduling.pod_order import (
    eviction_order,
    fit_scores,
    node_scores,
    pod_ranks,
    weights_of,
)
from pipeline.processors.descheduling.scale_down import ScaleDownStrategy, rank
from pipeline.processors.descheduling.strategy_args import (
    CustomPriorityArgs,
    FragmentationAwareArgs,
)
from pipeline.processors.descheduling.tier_moves import TierStrategy, smallest_first, tiers_of
from pipeline.processors.eviction.evictability import read_cost
from pipeline.processors.join.node_facts import RAW_ALLOCATABLE, raw_allocatable
from pipeline.processors.kubernetes.object_records import pod_record
from pipeline.processors.kubernetes.pod_classes import (
    LABEL_PRIORITY_CLASS,
    LABEL_QOS_CLASS,
    class_label,
    pod_class,
)
from pipeline.processors.loadaware.usage_readings import is_fresh
from pipeline.processors.policy.selectors import Selector
from pipeline.times import format_time
from pipeline.topics.nodes import NodeRecord, Taint
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources
from tests.processors.descheduling.upstream_low_node_load import (
    BOOKED_AS_THEY_LEAVE,
    BOTH_LIMITS,
    FIXES,
    HIGH_ALONE,
    UNKNOWN_STAYS,
    evictions,
)
from tests.vectors.cases import Case, plain
from tests.vectors.descheduling import eviction_order_result, read
from tests.vectors.runner import Difference, NotBuiltError, group
from tests.vectors.world import container
from tests.vectors.world import pod as manifest

_THRESHOLDS = {
    "low_thresholds": "lowThresholds", "high_thresholds": "highThresholds",
    "prod_low_thresholds": "prodLowThresholds", "prod_high_thresholds": "prodHighThresholds",
}  # fmt: skip


def resources_of(*amounts: Iterable[Mapping[str, Any] | None]) -> tuple[str, ...]:
    names = [name for group in amounts for each in group for name in each or ()]
    return tuple(dict.fromkeys(("cpu", "memory", "pods", *names)))


def row(amounts: Mapping[str, float] | None, resources: Sequence[str]) -> list[float]:
    """Amounts by resource, 0 where one is missing; NaN if there are none at all."""
    if amounts is None:
        return [np.nan] * len(resources)
    return [amounts.get(name, 0.0) for name in resources]


def record(pod: Case) -> PodRecord:
    labels = dict(pod.get("labels") or {})
    if "priority_class" in pod:
        labels[LABEL_PRIORITY_CLASS] = pod["priority_class"]
    if "koord_qos" in pod:
        labels[LABEL_QOS_CLASS] = pod["koord_qos"]
    priority = pod.get("priority")
    classes = pod_class(labels, priority, pod.get("k8s_qos"))
    annotations = {
        "controller.kubernetes.io/pod-deletion-cost": str(pod.get("deletion_cost", 0)),
        "scheduling.koordinator.sh/eviction-cost": str(pod.get("eviction_cost", 0)),
    }
    return PodRecord(
        node=pod.get("node", ""), uid=pod["name"], cgroup_uid=pod["name"],
        namespace=pod.get("namespace", ""), name=pod["name"], labels=labels,
        annotations=annotations, priority=priority, pod_class=classes.priority_class,
        qos=classes.qos, node_selector=pod.get("node_selector") or {},
        affinity=pod.get("affinity"), tolerations=tuple(pod.get("tolerations") or ()),
        created_at=format_time(pod["created_at"]) if "created_at" in pod else None,
    )  # fmt: skip


def cluster_pods(
    pods: Sequence[Case], nodes: Sequence[str], resources: Sequence[str]
) -> ClusterPods:
    records = [record(pod) for pod in pods]
    requests = [row({**(pod.get("requests") or {}), "pods": 1}, resources) for pod in pods]
    usage = []
    for pod in pods:
        used = pod["usage"] if "usage" in pod else pod.get("requests")
        usage.append(row(None if used is None else {**used, "pods": 1}, resources))
    shape = len(pods), len(resources)
    used = np.array(usage, np.float64).reshape(shape)
    wanted = np.array(requests, np.float64).reshape(shape)
    return ClusterPods(
        node=np.array([nodes.index(pod["node"]) if "node" in pod else -1 for pod in pods], np.intp),
        usage=used,
        expected=np.where(np.isnan(used), wanted, used),
        requests=wanted,
        is_prod=np.array([each.pod_class == "prod" for each in records], np.bool_),
        may_move=np.array([pod.get("evictable", True) for pod in pods], np.bool_),
        ranks=pod_ranks(records, [pod.get("k8s_qos", "") for pod in pods]),
        records=records,
        objections={i: str(pod["why"]) for i, pod in enumerate(pods) if "why" in pod},
    )


def cluster_nodes(
    nodes: Sequence[Case],
    resources: Sequence[str],
    usage: FloatArray,
    prod_usage: FloatArray,
    requested: FloatArray,
) -> ClusterNodes:
    allocatable = np.array([row(node["allocatable"], resources) for node in nodes])
    return ClusterNodes(
        names=[node["name"] for node in nodes],
        resources=tuple(resources),
        capacity=allocatable,
        usage=usage,
        prod_usage=prod_usage,
        allocatable=allocatable,
        requested=requested,
        is_cordoned=np.array([bool(node.get("unschedulable")) for node in nodes]),
        labels=[node.get("labels") or {} for node in nodes],
        taints=[
            [Taint(key=t["key"], value=t.get("value", ""), effect=t["effect"])
             for t in node.get("taints") or ()]
            for node in nodes
        ],
    )  # fmt: skip


def low_node_load(config: Case) -> LowNodeLoad:
    """The arguments of a case, as they are read from a configuration."""
    config = plain(config)
    args: Case = {key: config[name] for name, key in _THRESHOLDS.items() if name in config}
    names = {
        "number_of_nodes": "numberOfNodes", "node_fit": "nodeFit",
        "use_deviation_thresholds": "useDeviationThresholds",
        "node_metric_expiration_seconds": "nodeMetricExpirationSeconds",
        "resource_weights": "resourceWeights", "weights": "resourceWeights",
        "hysteresis_percent": "hysteresisPercent",
    }  # fmt: skip
    # Upstream has no hysteresis.
    args["hysteresisPercent"] = 0
    args |= {key: config[name] for name, key in names.items() if name in config}
    namespaces = {
        key: config[f"{key}_namespaces"]
        for key in ("include", "exclude")
        if f"{key}_namespaces" in config
    }
    if namespaces:
        args["evictableNamespaces"] = namespaces
    low = read("LowNodeLoad", args)[0].low_node_load
    assert low is not None
    return low


def sums(
    amounts: FloatArray, node: np.ndarray[Any, Any], selected: np.ndarray[Any, Any], count: int
) -> FloatArray:
    totals = np.zeros((count, amounts.shape[1]))
    np.add.at(totals, node[selected], np.nan_to_num(amounts[selected]))
    return totals


def balance_world(case: Case) -> tuple[LowNodeLoad, ClusterNodes, ClusterPods]:
    low = low_node_load(case["config"])
    nodes, pods = plain(case["nodes"]), plain(case["pods"])
    config = plain(case["config"])
    resources = resources_of(
        [node["allocatable"] for node in nodes], [pod["requests"] for pod in pods],
        [config.get(name) for name in _THRESHOLDS],
    )  # fmt: skip
    columns = cluster_pods(pods, [node["name"] for node in nodes], resources)
    everyone = np.ones(len(pods), np.bool_)
    usage = sums(columns.usage, columns.node, everyone, len(nodes))
    prod = sums(columns.usage, columns.node, columns.is_prod, len(nodes))
    place = resources.index("pods")
    for total, selected in ((usage, everyone), (prod, columns.is_prod)):
        total[:, place] = np.bincount(columns.node[selected], minlength=len(nodes))
    usage += [row(node.get("system_usage") or {}, resources) for node in nodes]
    ages = [
        np.nan if node.get("no_metric") else node.get("metric_age_seconds", 0) for node in nodes
    ]
    stale = ~is_fresh(np.array(ages, np.float64), low.args.usage_expiration_seconds)
    usage[stale] = prod[stale] = np.nan
    requested = sums(columns.requests, columns.node, everyone, len(nodes))
    return low, cluster_nodes(nodes, resources, usage, prod, requested), columns


def _in_terms_of_ties(wanted: Any, answer: Any) -> Any:
    """The answer in the terms of the case: how many pods left, and which of those it names."""
    if not isinstance(answer, Mapping) or "evicted" not in answer:
        return answer
    evicted = answer["evicted"]
    return {
        "evicted_count": len(evicted),
        "evicted_always": [name for name in wanted["evicted_always"] if name in evicted],
        "evicted_never": [name for name in wanted["evicted_never"] if name not in evicted],
    }


_EFFECTS = {
    HIGH_ALONE: "a node is hot by a resource without a low threshold",
    UNKNOWN_STAYS: "pods of unknown usage stay, also without nodeFit",
    BOOKED_AS_THEY_LEAVE: "room of targets goes to the pods that leave first",
    BOTH_LIMITS: "no target becomes hot by usage of Prod, and fewer pods move",
}


def _balance_differs(given: Case, expected: Case) -> Difference | None:
    """The weaknesses of upstream without which the reference chooses other pods."""
    usual = sorted(evictions(given))
    chosen = evictions(given, FIXES)
    if sorted(chosen) == usual:
        return None
    others = {fix: [other for other in FIXES if other != fix] for fix in FIXES}
    reasons = [
        fix for fix in FIXES if sorted(evictions(given, others[fix])) != sorted(chosen)
    ] or [*FIXES]  # fmt: skip
    answer = {
        "evicted_count": len(chosen),
        "evicted_always": [
            name for name in expected["evicted_always"] if name in chosen
        ],
        "evicted_never": [name for name in expected["evicted_never"] if name not in chosen],
    }  # fmt: skip
    if answer == expected:
        return None
    return Difference("; ".join(reasons), "; ".join(map(_EFFECTS.__getitem__, reasons)), answer)


@group(
    "low_node_load_strategies", resolve=_in_terms_of_ties, differs=_balance_differs
)  # fmt: skip
def low_node_load_evictions(case: Case) -> object:
    assert case["kind"] == "balance"
    low, nodes, pods = balance_world(case)
    confirmed = None
    if "confirmed_hot" in case:
        confirmed = np.isin(nodes.names, case["confirmed_hot"])
    evicted: list[str] = []
    pools = pools_of_configuration(low, nodes.labels)
    for configured in low_node_load_strategies(pools, low.args, confirmed=confirmed):
        own = configured.pods.apply(pods)
        plan = configured.plan(nodes, own, FitSimulator(nodes, own))
        assert plan.moves or plan.reason
        evicted += [pods.records[move.pod].name for move in plan.moves]
    return {"evicted": evicted}


def _classes_differ(given: Case, expected: Case) -> Difference | None:
    config = given.get("config") or {}
    alone = {*config.get("high_thresholds", ())} - {*config.get("low_thresholds", ())}
    if not alone or config.get("use_deviation_thresholds"):
        return None
    limits = {
        name: {k: dict(v) for k, v in own.items()} for name, own in expected["limits"].items()
    }
    kinds = {name: kind for kind, names in expected["classes"].items() for name in names}
    for node in given["nodes"]:
        name = node["name"]
        for resource in alone:
            percent, capacity = config["high_thresholds"][resource], node["allocatable"][resource]
            limit = int(percent * 0.01 * capacity)
            limits[name]["low"][resource] = limits[name]["high"][resource] = limit
            if node["usage"][resource] > limit:
                kinds[name] = "high"
    classes = {kind: [n for n in kinds if kinds[n] == kind] for kind in expected["classes"]}
    answer = {"classes": classes, "limits": limits}
    return None if answer == expected else Difference(HIGH_ALONE, _EFFECTS[HIGH_ALONE], answer)


@group("classify, node_limits", differs=_classes_differ)
def classify_nodes(case: Case) -> object:
    return _CLASSIFY[case["kind"]](case)


_LIMITS = ("low", "high", "prod_low", "prod_high")


def _classify(case: Case) -> object:
    plain(case["effective_thresholds"])
    pool = low_node_load(case["config"]).pools[-1]
    nodes = plain(case["nodes"])
    resources = watched_resources(pool)
    capacity, usage, prod = (
        np.array([row(node[key], resources) for node in nodes])
        for key in ("allocatable", "usage", "prod_usage")
    )
    limits = node_limits(pool, resources, capacity, usage, prod)
    cordoned = np.array([bool(node.get("unschedulable")) for node in nodes])
    codes = classify(usage, prod, limits, cordoned).tolist()
    names = [node["name"] for node in nodes]
    return {
        "classes": {
            kind: [name for name, code in zip(names, codes, strict=True) if CLASSES[code] == kind]
            for kind in CLASSES
        },
        "limits": {
            name: {
                kind: dict(zip(resources, values[index].astype(int).tolist(), strict=True))
                for kind, values in limits._asdict().items()
                if kind in _LIMITS
            }
            for index, name in enumerate(names)
        },
    }


def _percent_floor(case: Case) -> object:
    resources = [*plain(case["usage"])]
    usage, capacity = (np.array(row(case[key], resources)) for key in ("usage", "allocatable"))
    shares = percents(usage, capacity).tolist()
    floors = {n: int(share) for n, share in zip(resources, shares, strict=True) if share == share}
    return {"percent_floor": floors}


def _capacity_base(case: Case) -> object:
    allocatable, text = plain(case["allocatable"]), case["raw_allocatable_annotation"]
    node = NodeRecord(
        node="n",
        allocatable=Resources(
            cpu_millicores=allocatable.get("cpu"), memory_bytes=allocatable.get("memory")
        ),
        annotations={} if text is None else {RAW_ALLOCATABLE: text},
    )
    raw = raw_allocatable(node)
    return {"capacity": {"cpu": raw.cpu_millicores, "memory": raw.memory_bytes}}


def _limit_rounding(case: Case) -> object:
    return {"limit": int(static_limits(case["percent"], np.array([float(case["capacity"])]))[0])}


def _deviation(case: Case) -> object:
    values = (np.array([float(case[key])]) for key in (
        "mean_percent", "low_deviation", "high_deviation", "capacity",
    ))  # fmt: skip
    low, high = deviation_limits(*values)
    return {"low": int(low[0]), "high": int(high[0])}


def _expired(case: Case) -> object:
    age = np.array([float(case["age_seconds"])])
    return {"expired": not is_fresh(age, case["expiration_seconds"])[0]}


def _reason_facts(case: Case) -> object:
    prefix, scope = ("prod_", "prod") if case["prod"] else ("", "node")
    thresholds = plain(case[f"{prefix}high_thresholds"])
    plain(case)
    names = [*thresholds]
    usage, capacity = (np.array(row(case[k], names)) for k in (f"{prefix}usage", "allocatable"))
    limits = static_limits(np.array([float(thresholds[name]) for name in names]), capacity)
    found = over_use(scope, names, usage, limits, capacity, thresholds)
    return {
        "over": [
            {
                "resource": each.resource, "scope": each.scope,
                "usage_percent": f"{each.usage_percent:.2f}",
                "threshold_percent": f"{each.threshold_percent:.2f}",
            }
            for each in found
        ]
    }  # fmt: skip


_CLASSIFY = {
    "classify": _classify, "usage_percent_floor": _percent_floor, "capacity_base": _capacity_base,
    "limit_rounding": _limit_rounding, "deviation_limits": _deviation, "metric_expired": _expired,
    "reason_facts": _reason_facts,
}  # fmt: skip


def _tied(wanted: Any, answer: Any) -> Any:
    """The answer with the pods of each tie in the order of the case."""
    if not isinstance(wanted, Mapping) or not isinstance(answer, Mapping):
        return answer
    if "order" not in wanted or "order" not in answer:
        return answer
    order, ties = [*answer["order"]], []
    for tie in wanted["order"]:
        part, order = order[: len(tie)], order[len(tie) :]
        ties.append([*tie] if {*part} == {*tie} else part)
    return {**answer, "order": [*ties, *([order] if order else [])]}


@group("eviction_order, pod_class", resolve=_tied)
def pod_sort_order(case: Case) -> object:
    match case["kind"]:
        case "resolve_class":
            pod = case["pod"]
            labels = {
                label: pod[key]
                for key, label in (
                    ("priority_class_label", LABEL_PRIORITY_CLASS), ("qos_label", LABEL_QOS_CLASS),
                )
                if key in pod
            }  # fmt: skip
            classes = pod_class(labels, pod.get("priority"), pod["k8s_qos"])
            label = class_label(classes.priority_class)
            return {"priority_class": label, "koord_qos": classes.qos}
        case "cost_annotation":
            value = read_cost(case["text"])
            return {"cost": value or 0, "valid": value is not None}
    pods, exceeded = plain(case["pods"]), plain(case["exceeded"]) or {}
    resources = [*dict.fromkeys(["cpu", "memory", *exceeded])]
    weights = weights_of(resources, plain(case["weights"]) or {})
    usage = np.array([row(pod["usage"], resources) for pod in pods])
    fits = fit_scores(usage, np.array(row(exceeded, resources)), weights)
    ranks = pod_ranks([record(pod) for pod in pods], [pod["k8s_qos"] for pod in pods])
    return {"order": [pods[index]["name"] for index in eviction_order(ranks, fits)]}


@group("node_scores, fit_scores")
def usage_scores(case: Case) -> object:
    weights = plain(case["weights"])
    if case["kind"] == "pod_score":
        usage, exceeded = plain(case["usage"]), plain(case["exceeded"])
        resources = [*dict.fromkeys([*usage, *exceeded, *weights])]
        excess = np.array(row(exceeded, resources))
        weight = weights_of(resources, weights)
        score = fit_scores(np.array([row(usage, resources)]), excess, weight)[0]
        return {"score": round(float(score), 9)}
    allocatable, usage = plain(case["allocatable"]), plain(case["usage"])
    if case["kind"] == "node_score":
        usage = {"n": usage}
    resources = [*dict.fromkeys([*allocatable, *weights])]
    used = np.array([row(of_node, resources) for of_node in usage.values()])
    capacity = np.tile(row(allocatable, resources), (len(used), 1))
    scores = node_scores(used, capacity, weights_of(resources, weights))
    if case["kind"] == "node_score":
        return {"score": int(scores[0])}
    order = np.argsort(scores if case["order"] == "ascending" else -scores, kind="stable")
    return {"order": [[*usage][index] for index in order]}


def _target_columns(case: Case, pods: Sequence[Case]) -> tuple[Any, ...]:
    """Targets and pods of a case, with a node `source` on which the pods are."""
    targets = plain(case["targets"]) if "targets" in case else [plain(case["target"])]
    targets = [{"name": "target", **node} for node in targets]
    resources = resources_of(
        *([node.get(key) for node in targets] for key in ("limit", "usage", "allocatable")),
        [pod.get("usage") for pod in pods], [pod.get("requests") for pod in pods],
    )  # fmt: skip
    every: list[Case] = [{"name": "source", "allocatable": {}}]
    every += [{"allocatable": dict.fromkeys(resources, np.inf), **node} for node in targets]
    for node in every[1:]:
        node["allocatable"] = {"pods": np.inf, **node["allocatable"]}
    limits = [{}, *(node["limit"] for node in targets)]
    usage = np.array([row(node.get("usage") or {}, resources) for node in every])
    requested = np.array([row(node.get("requested") or {}, resources) for node in every])
    nodes = cluster_nodes(every, resources, usage, np.zeros_like(usage), requested)
    high = np.array([[each.get(n, np.inf) for n in resources] for each in limits])
    columns = cluster_pods(
        [{"name": str(i), "requests": {}, **pod, "node": "source"} for i, pod in enumerate(pods)],
        nodes.names, resources,
    )  # fmt: skip
    return nodes, columns, high


@group("Bookings.land")
def target_fit(case: Case) -> object:
    pods = plain(case["pods"]) if "pods" in case else [plain(case["pod"])]
    nodes, columns, high = _target_columns(case, pods)
    watched = [*range(len(nodes.resources))]
    limits = TargetLimits(high, np.full_like(high, np.inf), np.zeros(len(watched), np.bool_))
    bookings = Bookings(nodes, columns, FitSimulator(nodes, columns), watched, limits)
    accepted, target = [], None
    for pod in range(len(pods)):
        landing = bookings.land(pod, np.arange(1, len(nodes)))
        accepted.append(landing.node is not None)
        if landing.node is not None:
            bookings.book(pod, landing)
            target = nodes.names[landing.node]
    if case["kind"] == "projected":
        return {"target": target}
    projected = dict(zip(nodes.resources, bookings.usage[1].tolist(), strict=True))
    return {"accepted": accepted, "projected": {n: projected[n] for n in case["target"]["usage"]}}


def _requests_world(case: Case, key: str = "nodes") -> tuple[ClusterNodes, ClusterPods]:
    """Nodes and pods of a case that has requests and no usage."""
    nodes, pods = plain(case[key]), plain(case["pods"])
    resources = resources_of([n["allocatable"] for n in nodes], [p["requests"] for p in pods])
    names = [node["name"] for node in nodes]
    pods = [pod if pod.get("node") in names else {**pod, "node": "source"} for pod in pods]
    if "source" not in names and any(pod["node"] == "source" for pod in pods):
        nodes = [*nodes, {"name": "source", "allocatable": {}}]
        names.append("source")
    columns = cluster_pods(pods, names, resources)
    requested = sums(columns.requests, columns.node, np.ones(len(pods), np.bool_), len(nodes))
    zeros = np.zeros_like(requested)
    return cluster_nodes(nodes, resources, zeros, zeros, requested), columns


@group("FragmentationStrategy.plan")
def fragmentation_aware(case: Case) -> object:
    resources = tuple(case["resources"])
    if case["kind"] == "choose":
        nodes, pods = _requests_world(case)
        strategy = FragmentationStrategy(
            resources=resources, imbalance_threshold=case["imbalance_threshold"],
            min_improvement=case["min_improvement"], node_fit=case.get("node_fit", False),
        )  # fmt: skip
        plan = strategy.plan(nodes, pods, FitSimulator(nodes, pods))
        evicted = [pods.records[move.pod].name for move in plan.moves]
        args = FragmentationAwareArgs(paused=case.get("paused", False))
        enabled = {"balance": (FRAGMENTATION,), "evict": (MIGRATION_CONTROLLER,)}
        profile = Profile("", None, enabled, None, {FRAGMENTATION: args})
        is_off = why_off(profile, FRAGMENTATION) != ""
        return {"evicted": [] if case.get("dry_run") or is_off else evicted}
    world = {
        "nodes": [{"name": "node1", "allocatable": plain(case["allocatable"])}],
        "pods": plain(case["pods"]),
    }
    nodes, pods = _requests_world(world)
    strategy = FragmentationStrategy(resources=resources)
    if case["kind"] == "imbalance":
        columns = [nodes.resources.index(name) for name in resources]
        found = imbalance(nodes.requested[0, columns], nodes.allocatable[0, columns])
        return {"imbalance": float(found)}
    gains = strategy.gains(nodes, pods, 0).tolist()
    return {"gain": gains[[pod["name"] for pod in world["pods"]].index(case["remove"])]}


def _labels(selector: Case | None) -> Selector | None:
    return None if selector is None else Selector(match_labels=plain(selector))


def _priority_differs(given: Case, expected: Case) -> Difference | None:
    """Koordinator cordons nodes, and books nothing between the pods of a node in its mode
    BestEffort."""
    if given["kind"] != "run":
        return None
    chosen = _run_tiers(given)
    if expected["cordoned"]:
        return Difference("no role has the right to cordon", "autoCordon does nothing", chosen)
    if given.get("mode", "BestEffort") != "BestEffort":
        return None
    if set(chosen["evicted"]) >= set(expected["evicted"]):
        return None
    return Difference(
        "a pod that moves takes room on its target", "a cheap tier is not overbooked", chosen
    )


@group("TierStrategy.plan", differs=_priority_differs)
def custom_priority(case: Case) -> object:
    match case["kind"]:
        case "validate":
            return eviction_order_result(case)
        case "pod_selector":
            selectors = tuple(PodSelector(selector=_labels(each)) for each in case["selectors"])
            pod = record({"name": "p", "labels": plain(case["labels"])})
            return {"selected": PodFilter(None, selectors).objection(pod) is None}
        case "node_selector":
            nodes = plain(case["nodes"])
            is_selected = selected_nodes(
                [node["labels"] for node in nodes], _labels(case["node_selector"])
            )
            chosen = zip(nodes, is_selected.tolist(), strict=True)
            return {"nodes": [node["name"] for node, selected in chosen if selected]}
        case "tiers":
            nodes, order = plain(case["nodes"]), plain(case["eviction_order"])
            tiers = tiers_of(
                [node["labels"] for node in nodes],
                [_labels(tier["node_selector"]) for tier in order],
            ).tolist()
            return {
                "tiers": {
                    tier["name"]: [
                        node["name"] for node, own in zip(nodes, tiers, strict=True) if own == i
                    ]
                    for i, tier in enumerate(order)
                }
            }
        case "pod_requests":
            containers = [container(each, {}) for each in plain(case["containers"])]
            requests = pod_record(manifest("p", containers)).requests
            return {"requests": {"cpu": requests.cpu_millicores, "memory": requests.memory_bytes}}
        case "candidate_order":
            nodes, pods = _requests_world({"nodes": [], **plain(case)})
            order = smallest_first(pods, np.arange(len(pods)), nodes.resources)
            return {"order": [pods.records[pod].name for pod in order.tolist()]}
        case "virtual_capacity" | "remaining":
            return _capacity(case)
        case "candidates":
            nodes, pods = _requests_world(case, "targets")
            strategy = TierStrategy(selectors=(), node_fit=case["node_fit"])
            targets = np.flatnonzero([name != "source" for name in nodes.names])
            landing = FitSimulator(nodes, pods)
            planned = PlannedMoves(nodes, pods, landing, node_fit=case["node_fit"])
            moves, _ = strategy.place(np.arange(len(pods)), targets, planned)
            return {"candidates": [pods.records[move.pod].name for move in moves]}
    return _run_tiers(case)


def _capacity(case: Case) -> object:
    """What is left of a target beside its pods, and whether a pod fits."""
    if case["kind"] == "remaining":
        pods = [{**pod, "node": "t"} for pod in plain(case["pods"])]
        nodes, columns = _requests_world(
            {"nodes": [{"name": "t", "allocatable": plain(case["allocatable"])}], "pods": pods}
        )
        free = FitSimulator(nodes, columns).free[0].tolist()
        left = dict(zip(nodes.resources, free, strict=True))
        return {"remaining": {name: left[name] for name in case["allocatable"]}}
    room = {"pods": 1, **plain(case["remaining"])}
    pod = {"name": "p", "node": "source", "requests": plain(case["requests"])}
    nodes, columns = _requests_world({"nodes": [{"name": "t", "allocatable": room}], "pods": [pod]})
    fit = FitSimulator(nodes, columns)
    target = int(nodes.names.index("t"))
    fits = fit.land(0, np.array([target]), []).node is not None
    fit.refused(0, np.array([target]), [Arrival(0, target)] if fits else [])
    left = dict(zip(nodes.resources, fit.free[target].tolist(), strict=True))
    return {"fits": fits, "left": {name: left[name] for name in case["remaining"]}}


def _run_tiers(case: Case) -> Case:
    order = plain(case["eviction_order"])
    nodes, pods = _requests_world(case)
    args = CustomPriorityArgs(
        mode=case.get("mode", "BestEffort"), auto_cordon=case.get("auto_cordon", False)
    )
    strategy = TierStrategy(
        selectors=tuple(_labels(tier["node_selector"]) for tier in order),
        mode=args.mode, node_fit=case.get("node_fit", True),
    )  # fmt: skip
    plan = strategy.plan(nodes, pods, FitSimulator(nodes, pods))
    return {
        "evicted": [pods.records[move.pod].name for move in plan.moves],
        "cordoned": [],
    }


@group("ScaleDownStrategy.plan")
def scale_down_binpack(case: Case) -> object:
    if case["kind"] == "rank":
        pods = [
            {**pod, "evictable": pod["kind"] == "target"} for pod in plain(case["pods"])
        ]  # fmt: skip
        nodes, columns = _requests_world({"nodes": plain(case["nodes"]), "pods": pods})
        ranking = rank(nodes, columns, ("cpu", "memory"), {})
        scores = zip(nodes.names, ranking.scores.tolist(), strict=True)
        return {
            "order": [columns.records[pod].name for pod in ranking.pods.tolist()],
            "node_scores": {
                name: "inf" if score == np.inf else score for name, score in scores
                if score == score
            },
        }  # fmt: skip
    if case["strategy"] != "EvictDirectly" or case["protected"]:
        raise NotBuiltError("deletion costs are not written to pods")
    # One node for each pod, in the order of the ranking, and room for all of them elsewhere.
    names = case["ranked"]
    room = {"cpu": 1000 * len(names), "memory": 1000, "pods": 100}
    nodes, columns = _requests_world(
        {
            "nodes": [{"name": name, "allocatable": room} for name in [*names, "zz-room"]],
            "pods": [{"name": name, "node": name, "requests": {"cpu": 1}} for name in names],
        }
    )
    strategy = ScaleDownStrategy(most_pods=case["max_pods_to_evict"])
    plan = strategy.plan(nodes, columns, FitSimulator(nodes, columns))
    evicted = [columns.records[move.pod].name for move in plan.moves]
    return {"deletion_cost": {}, "evicted": [] if case.get("dry_run") else evicted}
