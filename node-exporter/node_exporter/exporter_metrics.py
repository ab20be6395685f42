"""Metrics of the exporter: cost of collection, losses by reason, and usage as gauges.

Metrics with the prefix `koordlet_` have Koordinator's names, so that its dashboards work unchanged.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from node_exporter.collection import NODE, Collection, Usage
from node_exporter.sampler import FEATURES
from pipeline.metrics import counter, foreign_gauge, gauge, histogram
from pipeline.settings import HostApplication
from pipeline.settings.base import MemoryCollectPolicy

_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

COLLECTION_SECONDS: Final = histogram(
    "exporter_collection_duration_seconds",
    "Duration of one reading of the node and all pods.",
    buckets=_SECONDS,
)
UPDATE_SECONDS: Final = histogram(
    "exporter_update_duration_seconds", "Duration of encoding a window.", buckets=_SECONDS
)
ERRORS: Final = counter("exporter_errors", "Failures, by kind.", ["kind"])
SAMPLES_DROPPED: Final = counter(
    "exporter_samples_dropped", "Dropped samples of one entity, by reason.", ["reason"]
)
COLLECTIONS_MISSED: Final = counter(
    "exporter_collections_missed",
    "Collections that were skipped because the process was stopped or late.",
)
CLOCK_STEPS: Final = counter(
    "exporter_clock_steps", "Steps of the wall clock, by direction.", ["direction"]
)
WINDOWS: Final = counter("exporter_windows", "Windows acknowledged by Kafka.")
WINDOWS_DROPPED: Final = counter(
    "exporter_windows_dropped", "Windows that were not published, by reason.", ["reason"]
)
BUFFER_BYTES: Final = gauge("exporter_buffer_bytes", "Size of the windows waiting for Kafka.")
BUFFER_WINDOWS: Final = gauge("exporter_buffer_windows", "Number of windows waiting for Kafka.")
LAST_WINDOW_END: Final = gauge(
    "exporter_last_window_end_timestamp_seconds", "End of the last closed window."
)
WINDOW_SECONDS: Final = gauge(
    "exporter_window_seconds", "Length of a window, set by the settings or by the policy."
)
UNSUPPORTED: Final = gauge(
    "exporter_unsupported_feature",
    "1 if this kernel does not offer the feature; its values are unknown.",
    ["feature"],
)
PODS: Final = gauge("exporter_pods", "Pods in the last collection.")
SOCKET_CLIENTS: Final = gauge("exporter_socket_clients", "Connected clients of the local socket.")
NODE_CPU: Final = gauge(
    "exporter_node_used_cpu_cores", "CPU usage of the node in the last collection."
)
NODE_MEMORY: Final = gauge(
    "exporter_node_used_memory_bytes", "Memory usage of the node, by the memory collect policy."
)
SYSTEM_CPU: Final = gauge(
    "exporter_system_used_cpu_cores",
    "CPU usage of the node minus pods minus host applications; NaN if unknown.",
)
SYSTEM_MEMORY: Final = gauge(
    "exporter_system_used_memory_bytes",
    "Memory usage of the node minus pods minus host applications; NaN if unknown.",
)


KOORDLET_NODE_CPU: Final = foreign_gauge(
    "koordlet_node_used_cpu_cores", "CPU usage of the node.", ["node"]
)
KOORDLET_NODE_MEMORY: Final = foreign_gauge(
    "koordlet_node_used_memory_bytes", "Memory usage of the node.", ["node"]
)
KOORDLET_HOST_APP: Final = foreign_gauge(
    "koordlet_host_application_resource_usage",
    "Usage of processes outside Kubernetes.",
    ["node", "app", "priority", "qos", "resource", "unit"],
)


def record(
    collection: Collection,
    applications: Iterable[HostApplication],
    memory_policy: MemoryCollectPolicy,
    node: str,
) -> None:
    """Update the metrics from one collection; `applications` are the measured ones."""
    for reason, count in collection.dropped.items():
        SAMPLES_DROPPED.labels(reason).inc(count)
    for kind, count in collection.errors.items():
        ERRORS.labels(kind).inc(count)
    system = collection.system
    SYSTEM_CPU.set(_or_nan(system.cpu_cores if system else None))
    SYSTEM_MEMORY.set(_or_nan(memory_by_policy(system, memory_policy) if system else None))
    pods = 0
    not_running = {app.name: app for app in applications}
    for usage in collection.usages:
        if usage.entity.kind == "pod":
            pods += 1
            continue
        memory = memory_by_policy(usage, memory_policy)
        if usage.entity == NODE:
            NODE_CPU.set(_or_nan(usage.cpu_cores))
            NODE_MEMORY.set(_or_nan(memory))
            KOORDLET_NODE_CPU.labels(node).set(_or_nan(usage.cpu_cores))
            KOORDLET_NODE_MEMORY.labels(node).set(_or_nan(memory))
        elif usage.entity.kind == "host_app":
            app = not_running.pop(usage.entity.id)
            _set_host_app(app, node, "cpu", "core", usage.cpu_cores)
            _set_host_app(app, node, "memory", "byte", memory)
    for app in not_running.values():
        _set_host_app(app, node, "cpu", "core", None)
        _set_host_app(app, node, "memory", "byte", None)
    PODS.set(pods)


def record_unsupported(features: frozenset[str]) -> None:
    """Update the metric of the features that this kernel does not offer."""
    for feature in FEATURES:
        UNSUPPORTED.labels(feature).set(feature in features)


def _set_host_app(
    app: HostApplication, node: str, resource: str, unit: str, value: float | None
) -> None:
    labels = (node, app.name, app.priority, app.qos, resource, unit)
    if value is not None:
        KOORDLET_HOST_APP.labels(*labels).set(value)
    else:  # unknown: the page must not show the old value
        with suppress(KeyError):
            KOORDLET_HOST_APP.remove(*labels)


def memory_by_policy(usage: Usage, policy: MemoryCollectPolicy) -> int | None:
    """Memory usage of an entity by the memory collect policy.

    Without kidled the hot page cache is unknown; usage without page cache replaces it, as in
    Koordinator, and `exporter_unsupported_feature{feature="hot_page_cache"}` is 1.
    """
    if policy == "usageWithPageCache":
        return usage.memory_with_page_cache_bytes
    hot = usage.memory_with_hot_page_cache_bytes
    if policy == "usageWithHotPageCache" and hot is not None:
        return hot
    return usage.memory_bytes


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
