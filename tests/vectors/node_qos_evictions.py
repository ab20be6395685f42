"""Evictions that a node asks for: how much should leave, and which pods."""

import json
from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import Any

from pipeline.processors.kubernetes.pod_classes import LABEL_QOS_CLASS, pod_class
from pipeline.processors.node_qos.be_cpu_satisfaction import (
    BestEffortCpu,
    limit_millicores,
    release_millicores,
    satisfaction_rule,
)
from pipeline.processors.node_qos.eviction_tasks import EvictionTasks
from pipeline.processors.node_qos.eviction_victims import (
    EVICTION_POLICY,
    EVICTION_PRIORITY,
    LABEL_EVICTION_ENABLED,
    LABEL_SUB_PRIORITY,
    EvictionFeature,
    EvictionTask,
    Measure,
    choose_victims,
    victim_order,
)
from pipeline.processors.node_qos.mean_window import MeanWindow
from pipeline.processors.node_qos.node_state import NodeState, PodState
from pipeline.processors.slo.nodeslo import NodeSLOSpec, ThresholdStrategy
from pipeline.topics.resource_amounts import Resources
from tests.vectors.cases import Case, plain
from tests.vectors.runner import Difference, NotBuiltError, group

_AT = 1_700_000_000.0
_ALL_PRIORITIES = 2**31 - 1


def _state(thresholds: ThresholdStrategy, **fields: Any) -> NodeState:
    slo = NodeSLOSpec(resource_used_threshold_with_be=thresholds)
    return NodeState(node="node-1", at=_AT, slo=slo, **fields)


def _release(state: NodeState, feature: EvictionFeature, measure: Measure) -> int:
    tasks = [task for task in EvictionTasks().of(state) if task[:2] == (feature, measure)]
    return sum(task.release for task in tasks)


@group("MeanWindow, satisfaction_rule, limit_millicores, release_millicores", truncated=True)
def be_cpu_evict(case: Case) -> object:
    thresholds = ThresholdStrategy(
        cpu_evict_be_satisfaction_lower_percent=case["lower_percent"],
        cpu_evict_be_satisfaction_upper_percent=case["upper_percent"],
        cpu_evict_be_usage_threshold_percent=case["usage_threshold_percent"],
    )

    def sample(values: Case) -> BestEffortCpu | None:
        offered, real = case["node_batch_cpu_allocatable"], int(values["real_limit_milli"])
        limit = limit_millicores(case["policy"], real, offered)
        usage, request = int(values["usage_milli"]), int(values["request_milli"])
        return None if limit is None else BestEffortCpu(limit, usage, request)

    mean, current = sample(case["avg"]), sample(case["current"])
    interval, seconds = case["collect_interval_s"], case["window_s"]
    window = MeanWindow(interval)
    for index in range(case["sample_count"]):
        if mean is not None:
            window.add(_AT + index * interval, mean, seconds)
    rule, means, release = satisfaction_rule(thresholds), window.mean(seconds), 0
    if rule is not None and means is not None and current is not None:
        release = release_millicores(rule, BestEffortCpu(*means), current)
    return {"release_milli": release, "config_valid": rule is not None}


def _exact_release(used: Fraction, capacity: int, given: Case) -> int:
    """What is above the lower mark, if usage has reached the threshold."""
    threshold, lower = given["threshold_percent"], given["lower_percent"]
    lower = max(threshold - 2, 0) if lower is None else lower
    if not 0 <= lower < threshold or capacity <= 0 or used / capacity < Fraction(threshold, 100):
        return 0
    return max(ceil(used - Fraction(lower * capacity, 100)), 0)


def _not_truncated(exact: int, key: str, expected: Case) -> Difference | None:
    if abs(exact - expected[key]) <= 1:
        return None
    return Difference(
        "usage is not cut to whole percent",
        "what leaves takes the node down to the lower mark, not up to one percent short of it",
        {key: exact},
    )


def _of_cpu(given: Case, expected: Case) -> Difference | None:
    used = Fraction(int(given["node_used_cores"] * 1000))
    return _not_truncated(
        _exact_release(used, given["capacity_milli"], given), "release_milli", expected
    )


def _whole_percent(used: int, capacity: int) -> int:
    """Usage of whole percent, from which upstream computes the release."""
    return ceil(Fraction(used * 100 // capacity * capacity, 100))


def _cpu_of_whole_percent(given: Case) -> Case:
    used, capacity = int(given["node_used_cores"] * 1000), given["capacity_milli"]
    return given | {"node_used_cores": _whole_percent(used, capacity) / 1000}


@group("EvictionTasks.of", differs=_of_cpu, without=_cpu_of_whole_percent, truncated=True)
def cpu_evict_by_usage(case: Case) -> object:
    thresholds = ThresholdStrategy(
        enable=True,
        cpu_evict_threshold_percent=case["threshold_percent"],
        cpu_evict_lower_percent=case["lower_percent"],
        evict_enabled_priority_threshold=_ALL_PRIORITIES,
    )
    capacity = Resources(cpu_millicores=case["capacity_milli"])
    state = _state(thresholds, capacity=capacity, cpu_cores=float(case["node_used_cores"]))
    return {"release_milli": _release(state, EvictionFeature.CPU, Measure.CPU_USED)}


def _of_memory(given: Case, expected: Case) -> Difference | None:
    used = Fraction(given["used_bytes"])
    return _not_truncated(
        _exact_release(used, given["capacity_bytes"], given), "release_bytes", expected
    )


def _memory_of_whole_percent(given: Case) -> Case:
    used = _whole_percent(given["used_bytes"], given["capacity_bytes"])
    return given | {"used_bytes": used}


@group("EvictionTasks.of", differs=_of_memory, without=_memory_of_whole_percent, truncated=True)
def memory_evict_release(case: Case) -> object:
    thresholds = ThresholdStrategy(
        enable=True,
        memory_evict_threshold_percent=case["threshold_percent"],
        memory_evict_lower_percent=case["lower_percent"],
    )
    capacity = Resources(memory_bytes=case["capacity_bytes"])
    state = _state(thresholds, capacity=capacity, memory_bytes=float(case["used_bytes"]))
    return {"release_bytes": _release(state, EvictionFeature.BE_MEMORY, Measure.MEMORY_USED)}


_OFFERED = {
    "kubernetes.io/batch-cpu": (Measure.BATCH_CPU, "cpu_millicores"),
    "kubernetes.io/batch-memory": (Measure.BATCH_MEMORY, "memory_bytes"),
    "kubernetes.io/mid-cpu": (Measure.MID_CPU, "cpu_millicores"),
    "kubernetes.io/mid-memory": (Measure.MID_MEMORY, "memory_bytes"),
}


def _of_offers(given: Case, expected: Case) -> Difference | None:
    if not expected["release"]:
        return None
    if given["node_allocatable"] is None:
        return Difference(
            "an offer that is not known is not an offer of 0",
            "no pod leaves before the offer of the node is known",
            {"release": 0},
        )
    if given["lower_percent"] is None:
        return Difference(
            "a lower mark that is not stated is not 0",
            "a policy without it evicts nothing, instead of everything",
            {"release": 0},
        )
    return None


@group("EvictionTasks.of", differs=_of_offers, truncated=True)
def evict_by_allocatable(case: Case) -> object:
    if case["resource"] not in _OFFERED:
        raise NotBuiltError("requests of Prod's own resources evict nothing")
    measure, field = _OFFERED[case["resource"]]
    tier = measure.partition("-")[0]
    feature, prefix = EvictionFeature.CPU_ALLOCATABLE, "cpu"
    if field == "memory_bytes":
        feature, prefix = EvictionFeature.MEMORY_ALLOCATABLE, "memory"
    thresholds = ThresholdStrategy(
        enable=True,
        allocatable_evict_priority_threshold=case["priority_threshold"],
        **{
            f"{prefix}_allocatable_evict_threshold_percent": case["threshold_percent"],
            f"{prefix}_allocatable_evict_lower_percent": case["lower_percent"],
        },
    )
    pods = tuple(
        _pod(str(index), "BE", pod["priority"], **{tier: Resources(**{field: pod["request"]})})
        for index, pod in enumerate(case["pods"])
    )
    offered = {f"offered_{tier}": Resources(**{field: case["node_allocatable"]})}
    return {"release": _release(_state(thresholds, pods=pods, **offered), feature, measure)}


def _pod(name: str, qos: str, priority: int | None, **fields: Any) -> PodState:
    labels = {LABEL_QOS_CLASS: qos} if qos else {}
    return PodState(
        uid=name, name=name, path=f"kubepods/besteffort/pod{name}", kube_qos="BestEffort",
        qos_label=qos, pod_class=pod_class(labels, priority, "BestEffort").priority_class,
        priority=priority, **({"phase": "Running"} | fields),
    )  # fmt: skip


_KINDS = {
    "be_memory": (EvictionFeature.BE_MEMORY, Measure.MEMORY_USED),
    "memory": (EvictionFeature.MEMORY, Measure.MEMORY_USED),
    "cpu": (EvictionFeature.CPU, Measure.CPU_USED),
}


def _candidate(kind: str, pod: Case) -> PodState:
    labels, annotations = {}, {}
    if pod.get("evict_enabled"):
        labels[LABEL_EVICTION_ENABLED] = "true"
    if pod.get("label_priority") is not None:
        labels[LABEL_SUB_PRIORITY] = str(pod["label_priority"])
    if pod.get("eviction_priority") is not None:
        annotations[EVICTION_PRIORITY] = str(pod["eviction_priority"])
    if pod["eviction_policy"] is not None:
        annotations[EVICTION_POLICY] = json.dumps(plain(pod["eviction_policy"]))
    used = pod["used"]
    if kind == "be_memory" and used == 0:
        used = None  # so the cases write a missing sample
    return _pod(
        pod["name"], pod["qos"], pod["priority"], labels=labels, annotations=annotations,
        phase="Running" if pod.get("active", True) else "Failed",
        cpu_cores=None if used is None or kind != "cpu" else used / 1000,
        memory_bytes=None if used is None or kind == "cpu" else float(used),
    )  # fmt: skip


def _of_choice(given: Case, expected: Case) -> Difference | None:
    pods = {pod["name"]: pod for pod in given["pods"]}
    order = [name for name in expected["order"] if not _is_prod(pods[name])]
    evicted, left = [], given["release"]
    for name in order:
        if left > 0 and pods[name]["used"]:
            evicted.append(name)
            left -= pods[name]["used"]
    answer = {"order": order, "evicted": evicted}
    if answer == expected:
        return None
    if order != expected["order"]:
        return Difference(
            "a pod whose QoS or priority is that of Prod is never evicted",
            "no policy and no label of a pod lets a node evict Prod",
            answer,
        )
    if given["kind"] == "memory" and len(evicted) > len(expected["evicted"]):
        return Difference(
            "usage of memory is counted in bytes, not in thousandths of a byte",
            "as many pods leave as it takes, not one",
            answer,
        )
    return Difference(
        "a pod whose usage is not known is not evicted for its usage",
        "no pod leaves of which nothing says that it would help",
        answer,
    )


def _is_prod(pod: Case) -> bool:
    """By QoS label and priority; a pod that states neither is of Kubernetes' class BestEffort."""
    has_class = 3000 <= pod["priority"] <= 3999 or 5000 <= pod["priority"] <= 5999
    has_class |= 7000 <= pod["priority"] <= 7999
    return (
        pod["qos"] in ("LSE", "LSR", "SYSTEM")
        or pod["priority"] >= 9000
        or (pod["qos"] == "LS" and not has_class)
    )


def _one_victim(given: Case) -> Case | None:
    """The release of a single victim, of which upstream counts no less."""
    return given | {"release": 1} if given["kind"] == "memory" else None


@group("victim_order, choose_victims", differs=_of_choice, without=_one_victim)
def evict_selection(case: Case) -> object:
    feature, measure = _KINDS[case["kind"]]
    threshold = None if case["kind"] == "be_memory" else case["priority_threshold"]
    task = EvictionTask(feature, measure, case["release"], "", threshold)
    pods = [_candidate(case["kind"], pod) for pod in case["pods"]]
    victims = choose_victims([task], pods, (), len(pods))
    return {"order": _names(victim_order(task, pods)), "evicted": _names([v.pod for v in victims])}


def _names(pods: Sequence[PodState]) -> list[str]:
    return [pod.name for pod in pods]
