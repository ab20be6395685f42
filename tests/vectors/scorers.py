"""Vector groups of scorers: how good nodes are for a pod, as plugins of others say it.

What each passes through is the module of `pipeline.processors.scorers` of the same name. Each case
is run as one node between two others that have nothing, so that what holds for one row of a column
is what holds for the case. Metrics are in load-watcher's form, read by `processors.load_watcher`.
Whom TargetLoadPacking still adds is asked of the table.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.exchange.load_watcher_document import Metric, average_of, latest_of
from pipeline.processors.kubernetes.object_records import pod_record
from pipeline.processors.scorers import (
    beta,
    load_statistics,
    registry,
    resource_limits,
    scheduling_hint,
)
from pipeline.processors.scorers import load_variation_risk_balancing as load_variation
from pipeline.processors.scorers import low_risk_over_commitment as low_risk
from pipeline.processors.scorers import node_metadata as metadata_scores
from pipeline.processors.scorers import node_resources_allocatable as node_size
from pipeline.processors.scorers import node_resources_fit_plus as fit_plus
from pipeline.processors.scorers import peaks as power_peaks
from pipeline.processors.scorers import scarce_resource_avoidance as scarce_resources
from pipeline.processors.scorers import target_load_packing as target_load
from pipeline.processors.scorers.rounding import half_away
from pipeline.processors.scorers.scorer import Packing
from pipeline.table import Table
from pipeline.times import format_time
from pipeline.topics.pods import Container as PodContainer
from pipeline.topics.pods import CountedPod
from tests.table.records import NOW, node_state

Case = dict[str, Any]

NAMES = {"cpu": "CPU", "memory": "Memory"}


def column(value: float | None) -> FloatArray:
    """A node between two of which nothing is known."""
    return np.array([np.nan, np.nan if value is None else float(value), np.nan])


def of(found: Any) -> Any:
    """What is said of that node."""
    value = np.asarray(found)[1].item()
    return None if value != value else value


def trimaran_args_defaults(case: Case) -> object:
    return msgspec.to_builtins(registry.scorer(case["plugin"]).read(case["args"]))


def metrics(case: Case) -> list[Metric]:
    return [Metric(**one) for one in case["metrics"] or ()]


def container_of(case: Case) -> target_load.Container:
    return target_load.Container(case.get("request_cpu_m"), case.get("limit_cpu_m"))


def target_load_packing(case: Case) -> object:
    def asks(pod: Case) -> int:
        return target_load.pod_millicores(
            map(container_of, pod["containers"]),
            pod["overhead_cpu_m"],
            Packing(case["default_requests_multiplier"], case["default_requests_cpu_m"]),
        )

    recent = [asks(pod) for pod in case["recent_pods"] if not _measured(case, pod)]
    added = asks(case["pod"]) + sum(recent)
    used = latest_of("CPU", metrics(case))
    percent = target_load.predicted_percent(
        column(used), column(case["node_capacity_cpu_m"]), column(added)
    )
    score = target_load.target_load(percent, case["target_utilization"])
    return {"score": of(score), "predicted_percent": of(percent)}


def _measured(case: Case, pod: Case) -> bool:
    ends = column(case["window_end_s"])
    return not of(target_load.is_unmeasured(column(pod["seen_at_s"]), ends))


def target_load_packing_container(case: Case) -> object:
    found = target_load.container_millicores(
        container_of(case["container"]), Packing(case["multiplier"], case["default_cpu_m"])
    )
    return {"predicted_cpu_m": found}


def trimaran_recent_pod_window(case: Case) -> object:
    bound, ends = column(case["seen_at_s"]), column(case["window_end_s"])
    return {"counted": of(target_load.is_unmeasured(bound, ends))}


def trimaran_recent_pod_cleanup(case: Case) -> object:
    """Each pod alone on a node whose window ends now: who is not in its average still counts."""
    table, now, bound = Table(), case["now_s"], {}
    for one in case["pods"]:
        name = bound[one["name"]] = one["name"].lower()
        table.put_state(node_state(name, age=NOW - now))
        pod = CountedPod(
            node=name, uid=name, cgroup_uid=name, phase="Running",
            containers=(PodContainer(name="main"),), scheduled_at=format_time(one["bound_at_s"]),
        )  # fmt: skip
        table.put_pod(pod)
    table.bring_up_to_date(now)
    counts = table.pods.unmeasured[table.lookup([*bound.values()])]
    return {"kept": [name for name, amount in zip(bound, counts, strict=True) if amount > 0]}


def trimaran_metric_selection(case: Case) -> object:
    found = average_of(case["type"], metrics(case))
    if found is None:
        return {"avg": 0.0, "std": 0.0, "valid": False}
    return {"avg": found.average, "std": found.deviation, "valid": True}


def load_of(resource: str, capacity: float, case: Case) -> load_statistics.Load:
    found = average_of(NAMES[resource], metrics(case))
    average, deviation = (None, None) if found is None else found
    return load_statistics.of_percent(column(capacity), column(average), column(deviation))


def trimaran_resource_stats(case: Case) -> object:
    unit = 2**20 if case["resource"] == "memory" else 1
    capacity = case["allocatable"] / unit
    found = load_of(case["resource"], capacity, case)
    if of(found.average) is None:
        return {"valid": False}
    return {
        "valid": True, "capacity": capacity, "request": case["request"] / unit,
        "used_avg": of(found.average), "used_std": of(found.deviation),
    }  # fmt: skip


def trimaran_mu_sigma(case: Case) -> object:
    used = load_statistics.Load(column(case["used_avg"]), column(case["used_std"]))
    found = load_statistics.shares(column(case["capacity"]), used, case["request"])
    return {"mu": of(found.mean), "sigma": of(found.deviation)}


def _stated(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{n}m" if name == "cpu" else str(n) for name, n in amounts.items()}


def amounts_of(pod: Case) -> dict[str, dict[str, int]]:
    """What a pod asks for in all, as the watcher and the extender read it from its manifest."""

    def listed(name: str) -> list[dict[str, Any]]:
        return [
            {"name": f"c{i}", "resources": {k: _stated(one.get(k) or {}) for k in _KINDS}}
            for i, one in enumerate(pod.get(name) or ())
        ]

    spec = {"containers": listed("containers"), "initContainers": listed("init_containers")}
    overhead = _stated(pod.get("overhead") or {})
    tree = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}}
    record = pod_record(tree | {"spec": spec | {"overhead": overhead}})
    return {
        kind: {"cpu": found.cpu_millicores or 0, "memory": found.memory_bytes or 0}
        for kind, found in zip(_KINDS, (record.requests, record.limits), strict=True)
    }


_KINDS = ("requests", "limits")


def trimaran_effective_resources(case: Case) -> object:
    return amounts_of(case["pod"])


def _asked(case: Case, resource: str) -> low_risk.Asked:
    def ask(pod: Case) -> tuple[int, int]:
        found = amounts_of(pod)
        return found["requests"][resource], found["limits"][resource]

    on_node = [ask(pod) for pod in case["pods_on_node"]]
    requests = column(sum(request for request, _ in on_node))
    limits_ = column(sum(max(request, limit) for request, limit in on_node))
    found = low_risk.asked_with_pod(requests, limits_, *ask(case["pod"]))
    return found.capped(column(case["allocatable"][resource]))


def trimaran_node_requests_limits(case: Case) -> object:
    asked = {resource: _asked(case, resource) for resource in NAMES}
    names = ("request", "limit", "request_without_pod", "limit_without_pod")
    return {
        name: {resource: of(found[i]) for resource, found in asked.items()}
        for i, name in enumerate(names)
    }


def load_variation_risk_balancing(case: Case) -> object:
    used = load_statistics.Load(column(case["used_avg"]), column(case["used_std"]))
    found = load_variation.risk_score(
        column(case["capacity"]), used, case["request"],
        margin=case["margin"], sensitivity=case["sensitivity"],
    )  # fmt: skip
    return {"score": of(half_away(found)), "exact": of(found)}


def load_variation_risk_balancing_node(case: Case) -> object:
    asked = amounts_of(case["pod"])["requests"]
    scores = [
        load_variation.risk_score(
            column(capacity), load_of(resource, capacity, case), asked[resource],
            margin=case["margin"], sensitivity=case["sensitivity"],
        )
        for resource, capacity in case["allocatable"].items()
    ]  # fmt: skip
    return {"score": of(load_variation.load_variation(scores))}


def low_risk_overcommitment(case: Case) -> object:
    asked = low_risk.Asked(
        *(
            column(case[name])
            for name in ("request", "limit", "request_without_pod", "limit_without_pod")
        )
    )
    capacity = column(case["capacity"])
    average, deviation = (column(case[f"used_{name}_percent"]) for name in ("avg", "std"))
    used = load_statistics.of_percent(capacity, average, deviation)
    smoothing = case["smoothing_window"]
    return {
        "risk_limit": of(low_risk.limit_risk(capacity, asked)),
        "risk_load": of(low_risk.load_risk(capacity, asked, used, smoothing)),
        "risk": of(
            low_risk.total_risk(
                capacity, asked, used,
                limit_weight=case["limit_weight"], smoothing_window=smoothing,
            )
        ),
    }  # fmt: skip


def low_risk_overcommitment_score(case: Case) -> object:
    asks = amounts_of(case["pod"])
    if not any(amount for kind in asks.values() for amount in kind.values()):
        # Not asked at all: as upstream, a pod that asks for nothing has no score anywhere.
        return {"score": 0}
    risks = [
        low_risk.total_risk(
            column(capacity), _asked(case, resource), load_of(resource, capacity, case),
            limit_weight=case["risk_limit_weights"][resource],
            smoothing_window=case["smoothing_window"],
        )
        for resource, capacity in case["allocatable"].items()
    ]  # fmt: skip
    return {"score": of(low_risk.low_risk(risks))}


def beta_distribution(case: Case) -> object:
    mean, deviation = column(case["mu"]), column(case["sigma"])
    found = beta.fit(mean, deviation)
    return {
        "alpha": of(found.alpha),
        "beta": of(found.beta),
        "probability_below": of(beta.below(mean, deviation, column(case["threshold"]))),
    }


def peaks(case: Case) -> object:
    model = power_peaks.PowerModel(
        *(column(case["power_model"][name]) for name in ("k0", "k1", "k2"))
    )
    used = latest_of("CPU", metrics(case), first=True)
    rise = power_peaks.power_rise(
        model, column(used), column(case["node_capacity_cpu_m"]), case["pod_request_cpu_m"]
    )
    return {"power_jump": of(rise), "raw_score": of(power_peaks.costs(rise))}


def peaks_normalize(case: Case) -> object:
    cost = np.array([*case["costs"].values()], np.int64)
    scores = power_peaks.cheapest_first(cost, np.ones(len(cost), np.bool_))
    return {"scores": dict(zip(case["costs"], scores.tolist(), strict=True))}


def limit_aware_score(case: Case) -> object:
    allocatable = case["allocatable"]
    on_node = {
        name: sum(pod.get(name, 0) for pod in case["existing_pod_limits"]) for name in allocatable
    }
    pod = case["pod"]
    ask = amounts_of(
        {
            "containers": [{"limits": one} for one in pod["container_limits"]],
            "init_containers": [{"limits": one} for one in pod.get("init_container_limits", ())],
            "overhead": pod.get("overhead"),
        }
    )["limits"]
    room = resource_limits.limit_room(
        {name: column(amount) for name, amount in allocatable.items()},
        {name: column(amount) for name, amount in on_node.items()},
        ask,
        case["weights"],
    )
    return {"raw_score": of(room)}


def limit_aware_normalize(case: Case) -> object:
    raw = np.array([*case["raw"].values()], np.float64)
    return {
        "scores": dict(zip(case["raw"], resource_limits.limit_aware(raw).tolist(), strict=True))
    }


def whole(value: int) -> np.ndarray:
    return np.array([0, value, 0], np.int64)


def _by_name(amounts: Mapping[str, int]) -> dict[str, np.ndarray]:
    return {name: whole(amount) for name, amount in amounts.items()}


def noderesourcesfitplus(case: Case) -> object:
    resources = {
        name: fit_plus.FitResource(type=one["type"], weight=one["weight"])
        for name, one in case["resources"].items()
    }
    found = fit_plus.fit_plus(
        case["pod_requests"],
        _by_name(case["node_requested"]),
        _by_name(case["node_allocatable"]),
        resources,
        3,
    )
    return {"score": of(found)}


def noderesourcesfitplus_pod_request(case: Case) -> object:
    init = [
        fit_plus.InitContainer(one["request"], one.get("sidecar", False))
        for one in case["init_containers"]
    ]
    return {"request": fit_plus.pod_request(case["resource"], case["containers"], init)}


def scarce_resource_avoidance(case: Case) -> object:
    found = scarce_resources.scarce_resources(
        _by_name(case["node_allocatable"]), case["pod_requests"], case["scarce_resources"], 3
    )
    return {"score": of(found)}


def scheduling_hint_preferred(case: Case) -> object:
    found = scheduling_hint.preferred_nodes(
        case["preferred"], case["prefilter_nodes"] or case["preferred"], case["max_hint_nodes"]
    )
    return {"skip": not found, "nodes": found or None}


def node_resources_allocatable(case: Case) -> object:
    names: Sequence[str] = [*case["nodes"]]
    allocatable = {
        resource: np.array([case["nodes"][name][resource] for name in names], np.int64)
        for resource in case["weights"]
    }
    raw = node_size.raw_size(allocatable, case["weights"], case["mode"])
    scores = node_size.by_size(raw)
    return {
        "raw": dict(zip(names, raw.tolist(), strict=True)),
        "scores": dict(zip(names, scores.tolist(), strict=True)),
    }


def node_metadata(case: Case) -> object:
    names, texts = zip(*case["nodes"].items(), strict=True)
    raw = metadata_scores.raw_metadata(
        [one.get(case["key"]) for one in texts], case["type"], case["strategy"], case["now_s"]
    )
    scores = metadata_scores.by_metadata(raw)
    known = [None if value != value else value for value in raw.tolist()]
    return {
        "raw": dict(zip(names, known, strict=True)),
        "scores": dict(zip(names, scores.tolist(), strict=True)),
    }


BESIDE_A_SIDECAR = "an init container runs beside the sidecars that were started before it"


def _sidecars(case: Case, _expected: Case) -> tuple[str, Case] | None:
    init = case["init_containers"]
    if len(init) < 2 or not init[0].get("sidecar"):
        return None
    return BESIDE_A_SIDECAR, {"request": init[0]["request"] + init[1]["request"]}


def _without_sidecars(case: Case) -> Case:
    init = [one | {"request": 0} if one.get("sidecar") else one for one in case["init_containers"]]
    return case | {"init_containers": init}


DIFFERENCES = {"noderesourcesfitplus_pod_request": _sidecars}
OUT_OF_PLAY = {"noderesourcesfitplus_pod_request": _without_sidecars}

ADAPTERS = {
    function.__name__: function
    for function in (
        target_load_packing, target_load_packing_container, trimaran_recent_pod_window,
        trimaran_recent_pod_cleanup,
        trimaran_args_defaults,
        trimaran_metric_selection, trimaran_resource_stats, trimaran_mu_sigma,
        trimaran_effective_resources, trimaran_node_requests_limits, load_variation_risk_balancing,
        load_variation_risk_balancing_node, low_risk_overcommitment, low_risk_overcommitment_score,
        beta_distribution, peaks, peaks_normalize, limit_aware_score, limit_aware_normalize,
        noderesourcesfitplus, noderesourcesfitplus_pod_request, scarce_resource_avoidance,
        scheduling_hint_preferred, node_resources_allocatable, node_metadata,
    )
}  # fmt: skip
