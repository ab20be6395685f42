"""Vector groups of aggregation, system remainder, intervals and pod classes.

What each passes through:

- `metric_aggregate`: percentiles through `aggregate.percentile_rows`, by which `points` finds those
  of node state, as one row among others; the rest, p90 and p95 too, through the exporter's
  `window.Window`.
- `usage_report`: a sample through `join` and the windows log to the bank and `columns`, and out of
  `result_records.encode_node_states`, in the whole units of `reclaimable.kubernetes_units`. The
  ratio of a device through `thresholds.whole_percent`, which nothing of ours calls yet.
- `system_usage`: the exporter's `system.system_usage`, second by second; where it finds something,
  `columns` (`system_usage.remainder`) must find the same in a window without a row of the system.
  NUMA nodes through `system_usage.numa_remainder`, which nothing of ours calls yet.
- `collect_interval`: `intervals.collect_interval`, which nothing of ours calls yet.
- `pod_class`: `classes.pod_class`, by which the inventory says what a pod is.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from node_exporter.collection import NODE, Collection, Entity
from node_exporter.collection import Usage as Reading
from node_exporter.system_remainder import Latest
from node_exporter.system_remainder import system_usage as exporter_system_usage
from node_exporter.window_aggregation import Window as ExporterWindow
from pipeline.processors.arrays import FloatArray
from pipeline.processors.join.system_usage import numa_remainder
from pipeline.processors.join.window_batch import WindowBatch
from pipeline.processors.kubernetes.pod_classes import class_label, explicit_class, pod_class
from pipeline.processors.loadaware.usage_thresholds import whole_percent
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.rank_percentiles import percent_of, percentile_rows
from pipeline.processors.model.reclaimable import kubernetes_units
from pipeline.processors.model.result_records import encode_node_states
from pipeline.processors.policy.collect_interval import collect_interval as effective_intervals
from pipeline.settings import ExporterSettings
from pipeline.topics.codec import decode_json
from pipeline.topics.node_state import AGGREGATED, Counters, NodeStateRecord
from pipeline.topics.resource_amounts import Usage
from pipeline.topics.samples import LIST_COLUMNS
from tests.processors.joined import END_MS, Row, header, joined, logged

Case = dict[str, Any]

POLICY = "usageWithoutPageCache"
NOW = 1000.0
"""Of the exporter's monotonic clock."""


def metric_aggregate(case: Case) -> object:
    samples = case["samples"]
    if case["type"] == "last":
        samples = [value for _, value in sorted(samples, key=lambda sample: sample[0])]
    column, percent = f"cpu_cores_{case['type']}", percent_of(case["type"])
    exported = _exported(samples)
    if percent is None:
        return {"value": _known(exported[column])}
    unknown, another = [np.nan] * len(samples), range(len(samples))
    rows = np.array([[*row, np.nan] for row in (unknown, samples, another)], float)
    value = _known(percentile_rows(rows, [percent])[1, 0])
    assert column not in exported or exported[column] == value
    return {"value": value}


def _known(value: float | None) -> float:
    if value is None or np.isnan(value):
        raise ValueError("unknown")
    return float(value)


def _exported(cores: Iterable[float]) -> Row:
    """What the exporter says of a window in which the node used so much, second by second."""
    seconds = [round(value * 1e9) for value in cores]
    window = ExporterWindow(len(seconds) * 1000, len(seconds) * 1000, 1000)
    for i, cpu_ns in enumerate(seconds, start=1):
        usage = Reading(NODE, cpu_ns, 1.0, None, None, None)
        window.add(Collection(i * 1000, (usage,), None))
    node: Row = window.rows(None, None)[0]
    return node


def usage_report(case: Case) -> object:
    if "gpu" in case:
        gpu = case["gpu"]
        ratio = whole_percent(
            np.array([gpu["memory"]], float), np.array([gpu["memory_total"]], float)
        )
        return {
            "gpu_core": gpu["core"], "gpu_memory": gpu["memory"], "gpu_memory_ratio": int(ratio[0]),
        }  # fmt: skip
    state = _reported(case)
    found = _array(state.usage)
    if case["aggregated_entry"]:
        (span,) = (name for name, s in AGGREGATED.items() if s == case["window_seconds"])
        entry = state.aggregated[span]
        found = np.stack([_array(getattr(entry, name)) for name in entry.__struct_fields__])
    if np.isnan(found).all():
        return {"reported": False}
    (cpu, memory), *others = kubernetes_units(np.atleast_2d(found)).tolist()
    assert all(other == [cpu, memory] for other in others)
    return {"reported": True, "cpu_milli": int(cpu), "memory_bytes": int(memory)}


def _reported(case: Case) -> NodeStateRecord:
    """Node state after one window, at the end of which there was a point of the case's usage every
    second of the span; its average is of what was seen of it."""
    last, span = case["window_seconds"], case["sample_span_seconds"]
    cpu, memory = float(case["cpu_cores"]), float(case["memory_bytes"])
    seconds = range(last - span, last + 1)
    columns = ([float(second) for second in seconds], [cpu] * len(seconds), [memory] * len(seconds))
    row = _row("node", "", cpu, memory) | dict(zip(LIST_COLUMNS, columns, strict=True))
    of = header(window_start_ms=END_MS - last * 1000)
    window = logged(joined(row | {"coverage": span / last}, of=of))
    bank = Bank()
    batch = WindowBatch([window], POLICY)
    bank.apply(batch.training("p90"))
    (state,) = encode_node_states(
        batch,
        [bank.peaks(["node-1"]).headline(0)],
        bank.recent_usage(["node-1"]),
        [Counters()],
        [{"generation": 0, "offset": 0, "epoch": 0}],
    )
    return decode_json(NodeStateRecord, state)


def _row(kind: str, id: str, cpu: float, memory: float) -> Row:
    return {
        "kind": kind, "id": id, "coverage": 1.0, "cpu_cores_avg": cpu, "memory_bytes_avg": memory,
    }  # fmt: skip


def _array(usage: Usage) -> FloatArray:
    return np.array([usage.cpu_cores, usage.memory_bytes], float)


def system_usage(case: Case) -> object:
    if "numa_cpu" in case or "numa_memory" in case:
        return {"numa": _numa(case)}
    parts = [*case["pods"].values(), case["host_apps"]]
    found = exporter_system_usage(
        _latest(case["node"]),
        [_latest(part) for part in parts],
        NOW - ExporterSettings().system_outdated_seconds,
    )
    if found is None:
        return {"produced": False}
    measured = {"cpu_cores": found.cpu_cores, "memory_bytes": found.memory_bytes}
    kinds = [*(("pod", uid) for uid in case["pods"]), ("host_app", "apps")]
    rows = [
        _row(kind, id, part["cpu"], part["memory"])
        for (kind, id), part in zip(kinds, parts, strict=True)
    ]
    window = joined(_row("node", "", case["node"]["cpu"], case["node"]["memory"]), *rows)
    system = WindowBatch([logged(window)], POLICY).average.system[0]
    assert np.allclose(system, np.array([*measured.values()], float), rtol=1e-12)
    return {"produced": True} | measured


def _latest(data: Case | None) -> Latest | None:
    """The reading of a second's usage, so long ago."""
    if data is None:
        return None
    cpu_ns, entity = round(data["cpu"] * 1e9), Entity("pod", "", None)
    return Latest(NOW - data["age"], Reading(entity, cpu_ns, 1.0, data["memory"], None, None))


def _numa(case: Case) -> Case:
    """The system of the NUMA nodes of one node; what is as old as the exporter forgets is none."""
    oldest = ExporterSettings().system_outdated_seconds
    ids = sorted({*case["numa_cpu"], *case["numa_memory"]})

    def fresh(name: str) -> FloatArray:
        readings = [case[name].get(id) for id in ids]
        known = [r["value"] if r is not None and r["age"] <= oldest else None for r in readings]
        return np.array([known], float)

    found = numa_remainder(
        np.array([case["system_cpu"]], float),
        *map(fresh, ("numa_cpu", "numa_memory", "pods_numa_memory")),
    )[0]
    names = ("cpu_cores", "memory_bytes")
    return {
        id: {name: value for name, value in zip(names, values, strict=True) if not np.isnan(value)}
        for id, values in zip(ids, found.tolist(), strict=True)
    }


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
