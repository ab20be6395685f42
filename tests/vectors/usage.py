"""Vector groups of aggregation, system remainder, intervals and pod classes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.processors.aggregate import aggregate
from pipeline.processors.bank import Bank
from pipeline.processors.classes import class_label, explicit_class, pod_class
from pipeline.processors.intervals import collect_interval as effective_intervals
from pipeline.processors.reclaimable import kubernetes_units
from pipeline.processors.system_usage import Reading, Usage, numa_system_usage
from pipeline.processors.system_usage import system_usage as remainder_of
from pipeline.processors.thresholds import whole_percent
from pipeline.processors.window import FloatArray, NodeWindow
from pipeline.topics.node_state import AGGREGATED

Case = dict[str, Any]

START_MS = 1_700_000_000_000


def metric_aggregate(case: Case) -> object:
    samples = case["samples"]
    if case["type"] == "last":
        samples = [value for _, value in sorted(samples, key=lambda sample: sample[0])]
    return {"value": aggregate(samples, case["type"])}


def usage_report(case: Case) -> object:
    if "gpu" in case:
        gpu = case["gpu"]
        ratio = whole_percent(
            np.array([gpu["memory"]], float), np.array([gpu["memory_total"]], float)
        )
        return {
            "gpu_core": gpu["core"], "gpu_memory": gpu["memory"], "gpu_memory_ratio": int(ratio[0]),
        }  # fmt: skip
    points = _points_of(case)
    if case["aggregated_entry"]:
        found = _aggregated(points, case["window_seconds"])
    else:
        found = np.array([[aggregate(usage, "avg") for usage in points[:, 1:].T]])
    if np.isnan(found).all():
        return {"reported": False}
    (cpu, memory), *others = kubernetes_units(found).tolist()
    assert all(other == [cpu, memory] for other in others)
    return {"reported": True, "cpu_milli": int(cpu), "memory_bytes": int(memory)}


def _points_of(case: Case) -> FloatArray:
    """A point of the case's usage every second, so many that its window ends with their span."""
    last, span = case["window_seconds"], case["sample_span_seconds"]
    usage = [case["cpu_cores"], case["memory_bytes"]]
    return np.array([[second, *usage] for second in range(last - span, last + 1)], float)


def _aggregated(points: FloatArray, seconds: int) -> FloatArray:
    """All statistics of the span of so many seconds, by the model bank; usage in the last axis."""
    window = NodeWindow(
        node="n",
        machine_id="m",
        epoch=1,
        start_ms=START_MS,
        end_ms=START_MS + seconds * 1000,
        coverage=1.0,
        node_usage=np.full(2, np.nan),
        points=points,
    )
    bank = Bank()
    bank.apply([window])
    (recent,) = bank.recent_usage(["n"])
    return recent.aggregated[list(AGGREGATED.values()).index(seconds)]


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
    "usage_report": usage_report,
    "system_usage": system_usage,
    "collect_interval": collect_interval,
    "pod_class": pod_classes,
}
