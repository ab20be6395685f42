"""Groups of scorers, asked of the extender's decisions over a state table.

Groups whose results a score does not show (a prediction, a risk, a distribution) call the public
function of the scorer that computes them, over the same table where the case describes nodes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.kubernetes.object_records import pod_record
from pipeline.processors.scorers import (
    beta,
    load_statistics,
    load_variation_risk_balancing,
    low_risk_over_commitment,
    node_metadata,
    node_resources_allocatable,
    peaks,
    resource_limits,
    scheduling_hint,
    target_load_packing,
)
from pipeline.processors.scorers.registry import SCORERS
from pipeline.processors.scorers.rounding import round_half_away
from pipeline.topics.node_state import UsageDeviation
from pipeline.topics.resource_amounts import Usage
from tests.vectors.cases import Case, plain
from tests.vectors.runner import Difference, group
from tests.vectors.world import World, container, placement, pod

NODE = "n"
NOW = 1_700_000_000.0
_TYPES = {"cpu": "CPU", "memory": "Memory"}


_SCORES = "Decisions.prioritize"


def column(value: float | None) -> FloatArray:
    """The value of a node between two about which nothing is known."""
    return np.array([np.nan, np.nan if value is None else float(value), np.nan])


def first(values: Any, position: int = 0) -> Any:
    """The value of the first node, None if it is unknown."""
    value = np.asarray(values)[position].item()
    return None if value != value else value


def of_node(values: Any) -> Any:
    """The value of the node of `column`, None if it is unknown."""
    return first(values, 1)


def _manifest(tree: Case, name: str = "asking", **more: Any) -> Case:
    containers, init = (
        [container(entry.get("requests"), entry.get("limits")) for entry in tree.get(kind) or ()]
        for kind in ("containers", "init_containers")
    )
    overhead = container(tree.get("overhead"), {})["resources"]["requests"]
    return pod(name, containers, initContainers=init, overhead=overhead, **more)


def _with_requests(amounts: Mapping[str, int], name: str = "asking", **more: Any) -> Case:
    return pod(name, [container(amounts, {})], **more)


def _metric(metrics: Sequence[Case], kind: str, operators: Sequence[str]) -> float | None:
    """The last value of a kind in percent, by the first operator that is there."""
    for operator in operators:
        for metric in reversed(metrics):
            if metric["type"] == kind and metric["operator"] == operator:
                return float(metric["value"])
    return None


def _report(world: World, capacity: Mapping[str, float], metrics: Any, at: float) -> None:
    """The node's usage as load-watcher's metrics have it, in percent of `capacity`: an average over
    a quarter of an hour, its deviation, and the latest value."""
    metrics = plain(metrics) or []

    def amounts(operators: Sequence[str]) -> Usage:
        percents = {r: _metric(metrics, _TYPES[r], operators) for r in ("cpu", "memory")}
        cpu, memory = (
            None if percent is None else percent / 100 * capacity.get(resource, 0)
            for resource, percent in percents.items()
        )
        return Usage(cpu_cores=None if cpu is None else cpu / 1000, memory_bytes=memory)

    kinds = {metric["type"] for metric in metrics}
    if not kinds & {*_TYPES.values()}:
        # A node without a report is new, and idle, unless one of its pods is old.
        world.runs(pod("old", [], node=NODE, scheduled_at=1.0))
        return
    average, deviation = amounts(["AVG"]), amounts(["STD"])
    latest = amounts(["Latest", "", "AVG"])
    spread = {"15m": UsageDeviation(mean=average, stdev=deviation)}
    world.report(NODE, latest, at=at, deviation=spread)


@group("Scorer.read")
def trimaran_args_defaults(case: Case) -> object:
    return msgspec.to_builtins(SCORERS.get(case["plugin"]).read(plain(case["args"])))


# -- TargetLoadPacking

_PACKING = "TargetLoadPacking"


def _packing_args(case: Case) -> Case:
    return {
        "targetUtilization": case["target_utilization"],
        "defaultRequests": {"cpu": f"{case['default_requests_cpu_m']}m"},
        "defaultRequestsMultiplier": str(case["default_requests_multiplier"]),
    }


def _packing_pod(tree: Case, name: str = "asking", **more: Any) -> Case:
    containers = [_packing_container(entry) for entry in tree["containers"] or ()]
    overhead = {"cpu": f"{tree['overhead_cpu_m']}m"}
    return pod(name, containers, overhead=overhead, **more)


def _packing_container(tree: Case) -> Case:
    return container({"cpu": tree.get("request_cpu_m")}, {"cpu": tree.get("limit_cpu_m")})


def _the_busier_counts(given: Case, expected: Case) -> Difference | None:
    """The product predicts by the average and by the last window, and takes the busier."""
    metrics = [m for m in given["metrics"] or () if m["type"] == "CPU"]
    if {m["operator"] for m in metrics} < {"AVG", "Latest"} or len(metrics) < 2:
        return None
    average, latest = (_metric(metrics, "CPU", [operator]) or 0.0 for operator in ("AVG", "Latest"))
    last = metrics[-1]["value"]
    if max(average, latest) <= last:
        return None
    percent = expected["predicted_percent"] + max(average, latest) - last
    score = target_load_packing.target_load(np.array([percent]), given["target_utilization"])
    return Difference(
        "the busier of the average and the last window counts, not the metric that comes last",
        "a node whose load falls is filled later than upstream fills it",
        {"score": int(score[0]), "predicted_percent": percent},
    )


@group(_SCORES, name="target_load_packing", differs=_the_busier_counts)
def target_load_packing_group(case: Case) -> object:
    ends = float(case["window_end_s"])
    world = World(placement(_PACKING, _packing_args(case)), ends)
    capacity = {"cpu": case["node_capacity_cpu_m"]}
    world.node(NODE, capacity)
    _report(world, capacity, case["metrics"], ends)
    for index, recent in enumerate(case["recent_pods"] or ()):
        seen = recent["seen_at_s"]
        world.runs(_packing_pod(recent, f"recent-{index}", node=NODE, scheduled_at=seen))
    manifest = _packing_pod(case["pod"])
    predicted = target_load_packing.prediction(world.candidates(), world.asked(manifest))
    return {"score": world.scores(manifest, _PACKING)[NODE], "predicted_percent": first(predicted)}


@group("Decisions.asked")
def target_load_packing_container(case: Case) -> object:
    args = {
        "defaultRequests": {"cpu": f"{case['default_cpu_m']}m"},
        "defaultRequestsMultiplier": str(case["multiplier"]),
    }
    if not case["default_cpu_m"]:
        args["defaultRequests"] = {"cpu": "0"}
    world = World(placement(_PACKING, args), NOW)
    asked = world.asked(pod("asking", [_packing_container(case["container"])]))
    return {"predicted_cpu_m": asked.counted["packing"]}


@group("Table, CandidateNodes.unmeasured")
def trimaran_recent_pod_window(case: Case) -> object:
    """Whether a pod is added to the average of the node's window."""
    ends = float(case["window_end_s"])
    world = World(placement(_PACKING, {}), max(ends, case["seen_at_s"]))
    world.node(NODE, {"cpu": 4000})
    world.report(NODE, Usage(cpu_cores=1.0), at=ends)
    world.runs(_with_requests({"cpu": 100}, "p", node=NODE, scheduled_at=case["seen_at_s"]))
    return {"counted": bool(world.candidates().unmeasured()[0])}


@group("Table, CandidateNodes.unmeasured")
def trimaran_recent_pod_cleanup(case: Case) -> object:
    """Pods that are still added to averages, each on a node whose window ends now."""
    now = float(case["now_s"])
    world = World(placement(_PACKING, {}), now)
    nodes = {}
    for entry in case["pods"]:
        name = nodes[entry["name"]] = entry["name"].lower()
        world.node(name, {"cpu": 4000})
        world.report(name, Usage(cpu_cores=1.0), at=now)
        world.runs(_with_requests({"cpu": 100}, name, node=name, scheduled_at=entry["bound_at_s"]))
    added = dict(
        zip(world.candidates().names, world.candidates().unmeasured().tolist(), strict=True)
    )
    return {"kept": [name for name, node in nodes.items() if added[node]]}


# -- usage as Trimaran's plugins read it


def _measured(allocatable: Mapping[str, int], metrics: Any, plugin: str, args: Case) -> World:
    world = World(placement(plugin, args), NOW)
    world.node(NODE, allocatable)
    _report(world, allocatable, metrics, NOW)
    return world


_BALANCING = "LoadVariationRiskBalancing"
_NODE = {"cpu": 1000, "memory": 1 << 30}


def _deviation_alone(given: Case, expected: Case) -> Difference | None:
    operators = {m["operator"] for m in given["metrics"] or () if m["type"] == given["type"]}
    if operators != {"STD"}:
        return None
    return Difference(
        "a deviation without an average or a latest value is no usage",
        "a node of which only the deviation is known scores 0, upstream takes it for idle",
        {"avg": 0.0, "std": 0.0, "valid": False},
    )


@group("load_statistics.load", differs=_deviation_alone)
def trimaran_metric_selection(case: Case) -> object:
    """Average and deviation of a node with 1000 millicores and 1 GiB, back in percent."""
    world = _measured(_NODE, case["metrics"], _BALANCING, {})
    resource = {kind: name for name, kind in _TYPES.items()}[case["type"]]
    load = load_statistics.load(world.candidates(), resource, np.array([100.0]))
    if first(load.average) is None:
        return {"avg": 0.0, "std": 0.0, "valid": False}
    return {"avg": first(load.average), "std": first(load.deviation), "valid": True}


@group("load_statistics.load")
def trimaran_resource_stats(case: Case) -> object:
    resource = case["resource"]
    scale = load_statistics.resource_unit(resource)
    allocatable = {resource: case["allocatable"]}
    world = _measured(allocatable, case["metrics"], _BALANCING, {})
    moment = world.candidates()
    capacity = moment.allocatable(resource) / scale
    load = load_statistics.load(moment, resource, capacity)
    asked = world.asked(_with_requests({resource: case["request"]}))
    if first(load.average) is None:
        return {"valid": False}
    return {
        "valid": True, "capacity": first(capacity),
        "request": asked.counted[f"request:{resource}"] / scale,
        "used_avg": first(load.average), "used_std": first(load.deviation),
    }  # fmt: skip


@group("load_statistics.shares")
def trimaran_mu_sigma(case: Case) -> object:
    used = load_statistics.Load(column(case["used_avg"]), column(case["used_std"]))
    shares = load_statistics.shares(column(case["capacity"]), used, case["request"])
    return {"mu": of_node(shares.mean), "sigma": of_node(shares.deviation)}


@group("object_records.pod_record")
def trimaran_effective_resources(case: Case) -> object:
    record = pod_record(_manifest(case["pod"]))
    return {
        kind: {"cpu": amounts.cpu_millicores or 0, "memory": amounts.memory_bytes or 0}
        for kind, amounts in (("requests", record.requests), ("limits", record.limits))
    }


# -- LoadVariationRiskBalancing, LowRiskOverCommitment


@group("load_variation_risk_balancing.risk_score", name="load_variation_risk_balancing")
def load_variation_risk_balancing_group(case: Case) -> object:
    used = load_statistics.Load(column(case["used_avg"]), column(case["used_std"]))
    exact = load_variation_risk_balancing.risk_score(
        column(case["capacity"]), used, case["request"],
        margin=case["margin"], sensitivity=case["sensitivity"],
    )  # fmt: skip
    return {"score": of_node(round_half_away(exact)), "exact": of_node(exact)}


@group(_SCORES)
def load_variation_risk_balancing_node(case: Case) -> object:
    args = {"safeVarianceMargin": case["margin"], "safeVarianceSensitivity": case["sensitivity"]}
    world = _measured(plain(case["allocatable"]), case["metrics"], _BALANCING, args)
    return {"score": world.scores(_manifest(case["pod"]), _BALANCING)[NODE]}


_LOW_RISK = "LowRiskOverCommitment"


def _with_pods(world: World, pods: Sequence[Case]) -> None:
    for index, entry in enumerate(pods):
        world.runs(_manifest(entry, f"pod-{index}", node=NODE, scheduled_at=NOW - 9000))


@group("low_risk_over_commitment.request_sums")
def trimaran_node_requests_limits(case: Case) -> object:
    world = World(placement(_LOW_RISK, {}), NOW)
    world.node(NODE, plain(case["allocatable"]))
    _with_pods(world, case["pods_on_node"] or ())
    moment, asked = world.candidates(), world.asked(_manifest(case["pod"]))
    names = ("request", "limit", "request_without_pod", "limit_without_pod")
    answer: dict[str, dict[str, Any]] = {name: {} for name in names}
    for resource in _TYPES:
        sums = low_risk_over_commitment.request_sums(moment, asked, resource)
        for name, amount in zip(names, sums, strict=True):
            answer[name][resource] = first(amount) * load_statistics.resource_unit(resource)
    return answer


@group("low_risk_over_commitment.total_risk")
def low_risk_overcommitment(case: Case) -> object:
    names = ("request", "limit", "request_without_pod", "limit_without_pod")
    asked = low_risk_over_commitment.RequestSums(*(column(case[name]) for name in names))
    capacity = column(case["capacity"])
    average, deviation = (column(case[f"used_{name}_percent"]) for name in ("avg", "std"))
    used = load_statistics.load_from_percent(capacity, average, deviation)
    smoothing = case["smoothing_window"]
    risk = low_risk_over_commitment.total_risk(
        capacity, asked, used, limit_weight=case["limit_weight"], smoothing_window=smoothing
    )
    return {
        "risk_limit": of_node(low_risk_over_commitment.limit_risk(capacity, asked)),
        "risk_load": of_node(low_risk_over_commitment.load_risk(capacity, asked, used, smoothing)),
        "risk": of_node(risk),
    }


@group(_SCORES)
def low_risk_overcommitment_score(case: Case) -> object:
    args = {
        "smoothingWindowSize": case["smoothing_window"],
        "riskLimitWeights": plain(case["risk_limit_weights"]),
    }
    world = _measured(plain(case["allocatable"]), case["metrics"], _LOW_RISK, args)
    _with_pods(world, case["pods_on_node"] or ())
    return {"score": world.scores(_manifest(case["pod"]), _LOW_RISK)[NODE]}


@group("beta.fit, beta.probability_below")
def beta_distribution(case: Case) -> object:
    mean, deviation = column(case["mu"]), column(case["sigma"])
    fit = beta.fit(mean, deviation)
    return {
        "alpha": of_node(fit.alpha),
        "beta": of_node(fit.beta),
        "probability_below": of_node(
            beta.probability_below(mean, deviation, column(case["threshold"]))
        ),
    }


# -- Peaks


def _by_the_average(given: Case, expected: Case) -> Difference | None:
    """Upstream takes the metric that comes first; the product always takes the average."""
    metrics = [m for m in given["metrics"] or () if m["type"] == "CPU"]
    operators = [m["operator"] for m in metrics]
    if "AVG" not in operators or operators[0] == "AVG" or given["power_model"] is None:
        return None
    average = next(m for m in metrics if m["operator"] == "AVG")
    model, capacity = given["power_model"], given["node_capacity_cpu_m"]
    after = average["value"] + 100 * given["pod_request_cpu_m"] / capacity
    exponents = np.exp(model["k2"] * np.array([after, average["value"]]))
    rise = None if after > 100 else float(model["k1"] * (exponents[0] - exponents[1]))
    return Difference(
        "the average counts, whichever metric comes first",
        "a load that just rose or fell moves the cost of a node more slowly",
        {"power_jump": rise, "raw_score": 0 if rise is None else int(rise * 1e15)},
    )


@group("peaks.node_power_rise", name="peaks", differs=_by_the_average)
def peaks_group(case: Case) -> object:
    model = case["power_model"]
    args = {} if model is None else {"nodePowerModel": {NODE: plain(model)}}
    capacity = {"cpu": case["node_capacity_cpu_m"]}
    world = _measured(capacity, case["metrics"], "Peaks", args)
    asked = world.asked(_with_requests({"cpu": case["pod_request_cpu_m"]}))
    rise = peaks.node_power_rise(world.candidates(), asked, world.rules.placement.args["Peaks"])
    return {"power_jump": first(rise), "raw_score": first(peaks.costs(rise))}


@group(_SCORES)
def peaks_normalize(case: Case) -> object:
    """Nodes whose power rises by the costs with a pod, from no usage to all of it."""
    costs = plain(case["costs"])
    model = {name: {"k0": 0.0, "k1": cost / 1e15, "k2": _DOUBLES} for name, cost in costs.items()}
    world = World(placement("Peaks", {"nodePowerModel": model}), NOW)
    for name in costs:
        world.node(name, {"cpu": 1000})
        world.report(name, Usage(cpu_cores=0.0), at=NOW)
    scores = world.scores(_with_requests({"cpu": 1000}), "Peaks")
    return {"scores": {name: scores[name] for name in costs}}


_DOUBLES = float(np.log(2.0)) / 100


# -- ResourceLimits

_LIMITS = "ResourceLimits"


def _limits_world(case: Case) -> tuple[World, Case]:
    weights = plain(case["weights"])
    resources = [{"name": name, "weight": weight} for name, weight in weights.items()]
    args: Case = {"resources": resources}
    case.get("best_effort_default")  # the product's own default
    world = World(placement(_LIMITS, args), NOW)
    world.node(NODE, plain(case["allocatable"]))
    for index, limits in enumerate(case["existing_pod_limits"] or ()):
        there = pod(f"pod-{index}", [container({}, plain(limits))], node=NODE, scheduled_at=1.0)
        world.runs(there)
    tree = case["pod"]
    init = [container({}, plain(limits)) for limits in tree.get("init_container_limits") or ()]
    overhead = container(plain(tree.get("overhead")), {})["resources"]["requests"]
    containers = [container({}, plain(limits)) for limits in tree["container_limits"] or ()]
    return world, pod("asking", containers, initContainers=init, overhead=overhead)


def _unlimited_takes_all(given: Case, expected: Case) -> Difference | None:
    """Upstream lets only a pod without any limit count the whole allocatable, and only with
    `best_effort_default`; the product decides for each resource."""
    tree = given["pod"]
    limits = (*(tree["container_limits"] or ()), *(tree.get("init_container_limits") or ()))
    limited = {name for amounts in limits for name, limit in amounts.items() if limit}
    limited |= {name for name, amount in (tree.get("overhead") or {}).items() if amount}
    free = [name for name in given["weights"] if name not in limited]
    is_default = given.get("best_effort_default") == "node_allocatable"
    if not free or (is_default and not limited):
        return None
    shares = sum(given["weights"][name] for name in free) / sum(given["weights"].values())
    return Difference(
        "a pod without a limit of a resource counts the whole allocatable of it",
        "set defaultLimit to let pods without limits count less",
        {"raw_score": expected["raw_score"] - 100 * shares},
    )


@group("resource_limits.node_limit_room", differs=_unlimited_takes_all)
def limit_aware_score(case: Case) -> object:
    world, manifest = _limits_world(case)
    args = world.rules.placement.args[_LIMITS]
    return {
        "raw_score": first(
            resource_limits.node_limit_room(world.candidates(), world.asked(manifest), args)
        )
    }


@group(_SCORES)
def limit_aware_normalize(case: Case) -> object:
    """Nodes whose limits leave so much room."""
    raw = plain(case["raw"])
    args = {"resources": [{"name": "cpu"}], "defaultLimit": {"cpu": 0}}
    world = World(placement(_LIMITS, args), NOW)
    for name, room in raw.items():
        world.node(name, {"cpu": 100_000})
        limits = {"cpu": round(100_000 - room * 1000)}
        world.runs(pod(f"on-{name}", [container({}, limits)], node=name, scheduled_at=1.0))
    scores = world.scores(pod("asking", []), _LIMITS)
    return {"scores": {name: scores[name] for name in raw}}


# -- Koordinator's, scheduler-plugins'

_FIT_PLUS = "NodeResourcesFitPlus"


@group(_SCORES)
def noderesourcesfitplus(case: Case) -> object:
    resources = plain(case["resources"])
    world = World(placement(_FIT_PLUS, {"resources": resources}), NOW)
    world.node(NODE, plain(case["node_allocatable"]))
    used, wanted = plain(case["node_requested"]) or {}, plain(case["pod_requests"]) or {}
    world.runs(_with_requests(_exactly(used, resources), "there", node=NODE, scheduled_at=1.0))
    return {"score": world.scores(_with_requests(_exactly(wanted, resources)), _FIT_PLUS)[NODE]}


def _exactly(amounts: Mapping[str, int], resources: Mapping[str, Any]) -> Mapping[str, int]:
    """Amounts with an explicit 0 where a container without a request would count a default."""
    return {**dict.fromkeys(resources, 0), **amounts}


def _beside_sidecars(given: Case, expected: Case) -> Difference | None:
    """An init container runs beside the sidecars that started before it."""
    default = {"cpu": 100, "memory": 200 << 20}.get(given["resource"], 0)
    sidecars = highest = 0
    for entry in given["init_containers"] or ():
        request = default if entry["request"] is None else entry["request"]
        if entry.get("sidecar"):
            sidecars += request
        highest = max(highest, sidecars + (0 if entry.get("sidecar") else request))
    running = sum(default if entry is None else entry for entry in given["containers"] or ())
    request = max(running + sidecars, highest)
    if request == expected["request"]:
        return None
    return Difference(
        "an init container runs beside the sidecars that were started before it",
        "pods with sidecars count more, so nodes are filled less",
        {"request": request},
    )


def _without_sidecars(given: Case) -> Case:
    init = [
        entry | {"request": 0} if entry.get("sidecar") else entry
        for entry in given["init_containers"]
    ]
    return given | {"init_containers": init}


@group("Decisions.asked", differs=_beside_sidecars, without=_without_sidecars)
def noderesourcesfitplus_pod_request(case: Case) -> object:
    resource = case["resource"]

    def requesting(amount: int | None, **more: Any) -> Case:
        return container({resource: amount}, {}) | more

    containers = [requesting(amount) for amount in case["containers"] or ()]
    init = [
        requesting(
            entry["request"], **({"restartPolicy": "Always"} if entry.get("sidecar") else {})
        )
        for entry in case["init_containers"] or ()
    ]
    args = {"resources": {resource: {"type": "LeastAllocated"}}}
    world = World(placement(_FIT_PLUS, args), NOW)
    asked = world.asked(pod("asking", containers, initContainers=init))
    return {"request": asked.counted[f"fitted:{resource}"]}


_SCARCE = "ScarceResourceAvoidance"


@group(_SCORES)
def scarce_resource_avoidance(case: Case) -> object:
    world = World(placement(_SCARCE, {"resources": case["scarce_resources"]}), NOW)
    world.node(NODE, plain(case["node_allocatable"]))
    return {"score": world.scores(_with_requests(plain(case["pod_requests"])), _SCARCE)[NODE]}


_HINT = "SchedulingHint"


@group(_SCORES)
def scheduling_hint_preferred(case: Case) -> object:
    """The nodes that score, best first, of those that the scheduler asks about."""
    world = World(placement(_HINT, {"maxHintNodes": case["max_hint_nodes"]}), NOW)
    hint = msgspec.json.encode({"preferredNodeNames": case["preferred"]}).decode()
    manifest = pod("asking", [], annotations={scheduling_hint.HINTS[1]: hint})
    asked = case["prefilter_nodes"]
    for name in {*case["preferred"], *(asked or ()), "other"}:
        world.node(name, {"cpu": 1000})
    names = [*world.table] if asked is None else asked
    scores = world.scored(manifest, names).plugins[_HINT].tolist()
    best = [name for score, name in sorted(zip(scores, names, strict=True), reverse=True) if score]
    return {"skip": not best, "nodes": best or None}


_SIZE = "NodeResourcesAllocatable"


@group(_SCORES, name="node_resources_allocatable")
def node_resources_allocatable_group(case: Case) -> object:
    weights, nodes = plain(case["weights"]), plain(case["nodes"])
    resources = [{"name": name, "weight": weight} for name, weight in weights.items()]
    world = World(placement(_SIZE, {"mode": case["mode"], "resources": resources}), NOW)
    for name, amounts in nodes.items():
        world.node(name, amounts)
    raw = node_resources_allocatable.node_sizes(
        world.candidates(), world.rules.placement.args[_SIZE]
    )
    scores = world.scores(pod("asking", []), _SIZE)
    sizes = dict(zip(world.candidates().names, raw.tolist(), strict=True))
    return {
        "raw": {name: sizes[name] for name in nodes},
        "scores": {name: scores[name] for name in nodes},
    }


_METADATA = "NodeMetadata"


@group(_SCORES, name="node_metadata")
def node_metadata_group(case: Case) -> object:
    args = {
        "metadataKey": case["key"], "metadataSource": case["source"],
        "metadataType": case["type"], "scoringStrategy": case["strategy"],
    }  # fmt: skip
    world = World(placement(_METADATA, args), float(case["now_s"]))
    kind = "labels" if case["source"] == "Label" else "annotations"
    nodes = {name: plain(texts) or {} for name, texts in case["nodes"].items()}
    for name, texts in nodes.items():
        world.node(name, {"cpu": 1000}, **{kind: texts})
    raw = node_metadata.node_values(world.candidates(), world.rules.placement.args[_METADATA])
    scores = world.scores(pod("asking", []), _METADATA)
    values = dict(zip(world.candidates().names, raw.tolist(), strict=True))
    return {
        "raw": {name: None if values[name] != values[name] else values[name] for name in nodes},
        "scores": {name: scores[name] for name in nodes},
    }
