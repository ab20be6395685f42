"""Make the status of a node's NodeMetric, as koordlet would report it.

Amounts are cut to whole millicores and bytes; unknown amounts are missing. A pod without known
usage is left out, so that readers count its request and not 0.
"""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import msgspec
import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.kubernetes.durations import duration_text, timestamp_seconds
from pipeline.processors.kubernetes.pod_classes import QOS_CLASSES, class_label
from pipeline.processors.slo.crd_fields import Resources
from pipeline.processors.slo.nodemetric import (
    AggregatedUsage,
    HostApplicationMetric,
    NodeMetricStatus,
    NodeUsage,
    PodMetric,
    PredictedMetric,
    ResourceMap,
)
from pipeline.processors.slo.quantities import cpu_quantity, memory_quantity
from pipeline.times import format_time
from pipeline.topics import node_state
from pipeline.topics.pod_columns import CLASSES, GONE
from pipeline.topics.resource_amounts import Usage
from pipeline.topics.samples import KINDS
from pipeline.topics.windows import Window

_LARGEST: Final = 2**63
_HOST_APP: Final = KINDS.index("host_app")


class NodeMetricReport(msgspec.Struct, frozen=True, kw_only=True):
    """Usage and peaks of a node. Averages are over the aggregation time, `aggregated` and
    `aggregated_system` by span as Go writes durations. Peaks contain the margin."""

    updated_seconds: float
    usage: Usage
    system_usage: Usage
    aggregated: dict[str, node_state.AggregatedUsage] = msgspec.field(default_factory=dict)
    aggregated_system: dict[str, node_state.AggregatedUsage] = msgspec.field(default_factory=dict)
    pods: tuple[PodMetric, ...] = ()
    host_apps: tuple[HostApplicationMetric, ...] = ()
    prod_reclaimable: Usage = Usage()
    prod_peak: Usage = Usage()


def status_of(report: NodeMetricReport) -> NodeMetricStatus:
    """The status of the node's NodeMetric. Raises ValueError for a span that is no duration."""
    pods = sorted(report.pods, key=lambda pod: (pod.namespace or "", pod.name or ""))
    hosts = sorted(report.host_apps, key=lambda host: host.name or "")
    return NodeMetricStatus(
        update_time=format_time(math.floor(report.updated_seconds)),
        node_metric=NodeUsage(
            node_usage=resource_map(report.usage),
            aggregated_node_usages=_aggregated(report.aggregated),
            system_usage=resource_map(report.system_usage),
            aggregated_system_usages=_aggregated(report.aggregated_system),
        ),
        pods_metric=tuple(pod for pod in pods if _is_whole(pod.pod_usage)),
        host_application_metric=tuple(host for host in hosts if _is_whole(host.usage)),
        prod_reclaimable_metric=_predicted(report.prod_reclaimable),
        prod_peak_metric=_predicted(report.prod_peak),
    )


def pods_of(window: Window, usage: FloatArray) -> tuple[PodMetric, ...]:
    """The pods of `window` with a known name, and their `usage` (n, 2) in order of their UIDs.
    Deleted pods are left out: another pod of the same name may exist."""
    pods = window.rows.pods
    decoded = pods.decode()
    columns = (decoded.column(name) for name in ("namespace", "name", "koordinator_qos", "phase"))
    return tuple(
        PodMetric(
            namespace=namespace,
            name=name,
            pod_usage=resource_map(usage_of(used)),
            priority=class_label(CLASSES[code]) or None,
            qos=qos or None,
        )
        for namespace, name, qos, phase, code, used in zip(
            *columns, pods.classes.tolist(), usage, strict=True
        )
        # Koordinator identifies a pod by its namespace and name.
        if namespace and name and phase != GONE
    )


def host_apps_of(
    window: Window, usage: FloatArray, classes: Mapping[str, str]
) -> tuple[HostApplicationMetric, ...]:
    """The host applications of `window`, and their `usage` (n, 2) in order of their rows. `classes`
    has the class of each by name; the QoS is that of the exporter's row."""
    sample = window.rows.sample
    rows = np.flatnonzero(sample.listing.kinds == _HOST_APP).tolist()
    names, qos = sample.listing.ids, sample.qos
    return tuple(
        HostApplicationMetric(
            name=names[row],
            usage=resource_map(usage_of(used)),
            priority=class_label(classes.get(names[row], "")) or None,
            qos=qos[row] if qos and qos[row] in QOS_CLASSES else None,
        )
        for row, used in zip(rows, usage, strict=True)
    )


def aggregated_usage(aggregations: FloatArray) -> node_state.AggregatedUsage:
    """The record of aggregations (5, 2) in the order of `node_state.AGGREGATIONS`."""
    usages = map(usage_of, aggregations)
    return node_state.AggregatedUsage(**dict(zip(node_state.AGGREGATIONS, usages, strict=True)))


def usage_of(used: FloatArray) -> Usage:
    """Cores and bytes, (2,), NaN is unknown."""
    cpu, memory = (None if math.isnan(amount) else amount for amount in used.tolist())
    return Usage(cpu_cores=cpu, memory_bytes=memory)


def _aggregated(
    spans: Mapping[str, node_state.AggregatedUsage],
) -> tuple[AggregatedUsage, ...] | None:
    """The spans in ascending order; a span without known values has no usage."""
    if not spans:
        return None
    by_length = sorted((_seconds(span), span) for span in spans)
    return tuple(
        AggregatedUsage(duration=duration_text(seconds), usage=_statistics(spans[span]) or None)
        for seconds, span in by_length
    )


def _seconds(span: str) -> Decimal:
    seconds = timestamp_seconds(span)
    if seconds is None:
        raise ValueError(f"{span!r:.80} is not a duration")
    return seconds


def _statistics(usages: node_state.AggregatedUsage) -> dict[str, ResourceMap]:
    statistics = {name: resource_map(getattr(usages, name)) for name in node_state.AGGREGATIONS}
    return {name: usage for name, usage in statistics.items() if usage.resources is not None}


def _predicted(usage: Usage) -> PredictedMetric | None:
    resource = resource_map(usage)
    return None if resource.resources is None else PredictedMetric(resource=resource)


def resource_map(usage: Usage) -> ResourceMap:
    """The known amounts of cpu and memory."""
    resources: Resources = {}
    if (millicores := _cut(usage.cpu_cores, 1000)) is not None:
        resources["cpu"] = cpu_quantity(millicores)
    if (size := _cut(usage.memory_bytes, 1)) is not None:
        resources["memory"] = memory_quantity(size)
    return ResourceMap(resources=resources or None)


def _is_whole(usage: ResourceMap | None) -> bool:
    return usage is not None and len(usage.resources or ()) == len(Usage.__struct_fields__)


def _cut(amount: float | None, factor: int) -> int | None:
    """The amount cut to a whole number, None if invalid."""
    if amount is None or not 0.0 <= amount * factor < _LARGEST:
        return None
    return int(amount * factor)
