"""Vector groups of aggregation, system remainder, intervals and pod classes."""

from collections.abc import Callable
from typing import Any

from pipeline.processors.aggregate import aggregate
from pipeline.processors.classes import class_label, explicit_class, pod_class
from pipeline.processors.intervals import collect_interval as effective_intervals
from pipeline.processors.system_usage import Reading, Usage, numa_system_usage
from pipeline.processors.system_usage import system_usage as remainder_of

Case = dict[str, Any]


def metric_aggregate(case: Case) -> object:
    samples = case["samples"]
    if case["type"] == "last":
        samples = [value for _, value in sorted(samples, key=lambda sample: sample[0])]
    return {"value": aggregate(samples, case["type"])}


def _usage(data: Case | None) -> Usage | None:
    return None if data is None else Usage(data["cpu"], data["memory"], data["age"])


def _readings(data: Case) -> dict[str, Reading]:
    return {key: Reading(reading["value"], reading["age"]) for key, reading in data.items()}


def system_usage(case: Case) -> object:
    if "numa_cpu" in case or "numa_memory" in case:
        numa = numa_system_usage(
            case["system_cpu"],
            _readings(case["numa_cpu"]),
            _readings(case["numa_memory"]),
            _readings(case["pods_numa_memory"]),
        )
        return {"numa": {key: usage._asdict() for key, usage in numa.items()}}
    pods = (Usage(pod["cpu"], pod["memory"], pod["age"]) for pod in case["pods"].values())
    usage = remainder_of(_usage(case["node"]), pods, _usage(case["host_apps"]))
    if usage is None:
        return {"produced": False}
    return {"produced": True, "cpu_cores": usage.cpu_cores, "memory_bytes": usage.memory_bytes}


def collect_interval(case: Case) -> object:
    interval = effective_intervals(case["reportIntervalSeconds"], case["aggregateDurationSeconds"])
    return {
        "report_interval": interval.report_seconds,
        "aggregate_window": interval.aggregate_seconds,
    }


def labels_of(case: Case) -> dict[str, str]:
    """The labels of a pod as the vectors spell them."""
    labels = {
        "koordinator.sh/qosClass": case.get("koord_qos"),
        "koordinator.sh/priority-class": case.get("priority_class_label"),
    }
    return {key: value for key, value in labels.items() if value is not None}


def class_of(case: Case) -> str:
    """The class of a pod as the vectors describe it."""
    return pod_class(labels_of(case), case.get("priority"), case.get("kube_qos")).priority_class


def pod_classes(case: Case) -> object:
    labels, priority = labels_of(case), case.get("priority")
    found = pod_class(labels, priority, case.get("kube_qos"))
    return {
        "priority_class_raw": class_label(explicit_class(labels, priority)),
        "priority_class": class_label(found.priority_class),
        "qos": found.qos,
    }


ADAPTERS: dict[str, Callable[[Case], object]] = {
    "metric_aggregate": metric_aggregate,
    "system_usage": system_usage,
    "collect_interval": collect_interval,
    "pod_class": pod_classes,
}
