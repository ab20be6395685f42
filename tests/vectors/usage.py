"""Groups of aggregation, the system's remainder, intervals and pod classes."""

from collections.abc import Sequence

import numpy as np

from node_exporter.collection import NODE, Collection, Entity
from node_exporter.collection import Usage as Reading
from node_exporter.system_remainder import Latest
from node_exporter.system_remainder import system_usage as exporter_system_usage
from node_exporter.window_aggregation import OpenWindow
from pipeline.processors.arrays import FloatArray
from pipeline.processors.kubernetes.object_records import pod_record
from pipeline.processors.kubernetes.pod_classes import class_label, explicit_class, pod_class
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.rank_percentiles import parse_percentile, row_percentiles
from pipeline.processors.model.resource_pairs import kubernetes_units
from pipeline.processors.model.result_records import encode_node_states
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.processors.policy.collect_interval import collect_interval as effective_intervals
from pipeline.settings import ExporterSettings
from pipeline.topics.codec import decode_json
from pipeline.topics.node_state import AGGREGATED, Counters, NodeStateRecord
from pipeline.topics.resource_amounts import Usage
from pipeline.topics.samples import LIST_COLUMNS
from tests.processors.joined import END_MS, Row, header, joined, logged
from tests.vectors.cases import Case
from tests.vectors.runner import ERROR, NotBuiltError, group
from tests.vectors.world import pod

POLICY = "usageWithoutPageCache"
NOW = 1000.0
"""Time on the exporter's monotonic clock."""


_EXPORTER = "exporter's window_aggregation.OpenWindow"


@group(f"rank_percentiles.row_percentiles, {_EXPORTER}")
def metric_aggregate(case: Case) -> object:
    """Percentiles as node states have them, one row among others; the rest from the exporter."""
    samples = case["samples"]
    if case["type"] == "last":
        samples = [value for _, value in sorted(samples, key=lambda sample: sample[0])]
    if case["type"] == "count":
        # A window says which share of its seconds was sampled.
        seconds = 2 * len(samples) + 1
        return {"value": round(_exported(samples, seconds)["coverage"] * seconds)}
    column, percent = f"cpu_cores_{case['type']}", parse_percentile(case["type"])
    exported = _exported(samples, max(len(samples), 1))
    if percent is None:
        return _value(exported[column])
    unknown, another = [np.nan] * len(samples), range(len(samples))
    rows = np.array([[*row, np.nan] for row in (unknown, samples, another)], float)
    answer = _value(row_percentiles(rows, [percent])[1, 0])
    assert column not in exported or _value(exported[column]) == answer
    return answer


def _value(value: float | None) -> Case:
    """An unknown value, where upstream reports an error."""
    return ERROR if value is None or np.isnan(value) else {"value": float(value)}


def _exported(cores: Sequence[float], length: int) -> Row:
    """The node's row of a window of `length` seconds that began with this usage."""
    window = OpenWindow(length * 1000, length * 1000, 1000)
    for i, cpu in enumerate(cores, start=1):
        usage = Reading(NODE, round(cpu * 1e9), 1.0, None, None, None)
        window.add(Collection(i * 1000, (usage,), None))
    node: Row = window.rows(None, None)[0]
    return node


@group("join, Bank, result_records.encode_node_states")
def usage_report(case: Case) -> object:
    """Usage of a sample, through the join and a bank, as the node state reports it."""
    if "gpu" in case:
        raise NotBuiltError("no exporter measures devices")
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
    """Node state after a window with a point of usage in every second of the span before its
    end."""
    last, span = case["window_seconds"], case["sample_span_seconds"]
    cpu, memory = float(case["cpu_cores"]), float(case["memory_bytes"])
    seconds = range(last - span, last + 1)
    columns = ([float(second) for second in seconds], [cpu] * len(seconds), [memory] * len(seconds))
    row = _row("node", "", cpu, memory) | dict(zip(LIST_COLUMNS, columns, strict=True))
    of = header(window_start_ms=END_MS - last * 1000)
    window = logged(joined(row | {"coverage": span / last}, of=of))
    bank = Bank()
    batch = WindowBatch([window])
    bank.apply(batch.training("p90"))
    (state,) = encode_node_states(
        batch, [bank.peaks(["node-1"]).summaries[0]], bank.recent_usage(["node-1"]), [Counters()],
        [None], [()], [{}], [{"generation": 0, "offset": 0, "epoch": 0}],
    )  # fmt: skip
    return decode_json(NodeStateRecord, state)


def _row(kind: str, id: str, cpu: float, memory: float) -> Row:
    return {
        "kind": kind, "id": id, "coverage": 1.0, "cpu_cores_avg": cpu, "memory_bytes_avg": memory,
    }  # fmt: skip


def _array(usage: Usage) -> FloatArray:
    return np.array([usage.cpu_cores, usage.memory_bytes], float)


@group("exporter's system_remainder.system_usage, join, WindowBatch")
def system_usage(case: Case) -> object:
    """The remainder that the exporter calculates; if it has one, the join must find the same in a
    window without a row of the system."""
    if "numa_cpu" in case or "numa_memory" in case:
        raise NotBuiltError("no exporter measures NUMA nodes")
    parts = [*case["pods"].values(), case["host_apps"]]
    system = exporter_system_usage(
        _latest(case["node"]),
        [_latest(part) for part in parts],
        NOW - ExporterSettings().system_outdated_seconds,
    )
    if system is None:
        return {"produced": False}
    measured = {"cpu_cores": system.cpu_cores, "memory_bytes": system.memory_bytes}
    kinds = [*(("pod", uid) for uid in case["pods"]), ("host_app", "apps")]
    rows = [
        _row(kind, id, part["cpu"], part["memory"])
        for (kind, id), part in zip(kinds, parts, strict=True)
    ]
    window = joined(_row("node", "", case["node"]["cpu"], case["node"]["memory"]), *rows)
    system = WindowBatch([logged(window)]).average.system[0]
    assert np.allclose(system, np.array([*measured.values()], float), rtol=1e-12)
    return {"produced": True} | measured


def _latest(data: Case | None) -> Latest | None:
    """The reading of a second's usage, `age` seconds ago."""
    if data is None:
        return None
    cpu_ns, entity = round(data["cpu"] * 1e9), Entity("pod", "", None)
    return Latest(NOW - data["age"], Reading(entity, cpu_ns, 1.0, data["memory"], None, None))


@group("policy.collect_interval")
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


@group("object_records.pod_record", name="pod_class")
def pod_classes(case: Case) -> object:
    """Class and QoS of a pod as the watcher publishes them."""
    labels, priority = labels_of(case), case.get("priority")
    own_class, koord_qos = case.get("priority_class_label"), case.get("koord_qos")
    record = pod_record(
        pod("p", [], priority_class=own_class, koord_qos=koord_qos, kube_qos=case.get("kube_qos"),
            priority=priority)
    )  # fmt: skip
    return {
        "priority_class_raw": class_label(explicit_class(labels, priority)),
        "priority_class": class_label(record.pod_class),
        "qos": record.qos,
    }
