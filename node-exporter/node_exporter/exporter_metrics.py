"""The exporter's own metrics: what collecting costs, what was lost and why, usage as gauges.

Names that begin with `koordlet_` are Koordinator's, so that its dashboards work unchanged.
"""

from contextlib import suppress
from typing import Final

from prometheus_client import Gauge

from node_exporter.collection import NODE, Collection, Usage
from node_exporter.sampler import FEATURES
from pipeline.metrics import REGISTRY, counter, gauge, histogram
from pipeline.settings import ExporterSettings, HostApplication

_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

COLLECTION_SECONDS: Final = histogram(
    "exporter_collection_duration_seconds", "Time to read node and pods once.", buckets=_SECONDS
)
UPDATE_SECONDS: Final = histogram(
    "exporter_update_duration_seconds", "Time to close and encode a window.", buckets=_SECONDS
)
ERRORS: Final = counter("exporter_errors", "Failures, by what failed.", ["kind"])
SAMPLES_DROPPED: Final = counter(
    "exporter_samples_dropped", "Samples of one entity that were not taken.", ["reason"]
)
COLLECTIONS_MISSED: Final = counter(
    "exporter_collections_missed", "Moments at which nothing was read (stopped or too busy)."
)
CLOCK_STEPS: Final = counter("exporter_clock_steps", "Steps of the wall clock.", ["direction"])
WINDOWS: Final = counter("exporter_windows", "Windows that Kafka has acknowledged.")
WINDOWS_DROPPED: Final = counter(
    "exporter_windows_dropped", "Windows that were not published.", ["reason"]
)
BUFFER_BYTES: Final = gauge("exporter_buffer_bytes", "Windows that wait for Kafka.")
BUFFER_WINDOWS: Final = gauge("exporter_buffer_windows", "Number of windows that wait for Kafka.")
LAST_WINDOW_END: Final = gauge(
    "exporter_last_window_end_timestamp_seconds", "End of the last window that was closed."
)
WINDOW_SECONDS: Final = gauge(
    "exporter_window_seconds", "Length of a window: by the settings, or by the policy."
)
UNSUPPORTED: Final = gauge(
    "exporter_unsupported_feature",
    "1: this kernel does not offer it, its values are unknown.",
    ["feature"],
)
PODS: Final = gauge("exporter_pods", "Pods that were read in the last collection.")
SOCKET_CLIENTS: Final = gauge("exporter_socket_clients", "Clients of the local socket.")
NODE_CPU: Final = gauge("exporter_node_used_cpu_cores", "CPU use of the node, last collection.")
NODE_MEMORY: Final = gauge(
    "exporter_node_used_memory_bytes", "Memory use of the node by the memory collect policy."
)
SYSTEM_CPU: Final = gauge(
    "exporter_system_used_cpu_cores", "Node minus pods minus host applications; NaN: unknown."
)
SYSTEM_MEMORY: Final = gauge(
    "exporter_system_used_memory_bytes", "Node minus pods minus host applications; NaN: unknown."
)


def _koordlet(name: str, documentation: str, labels: tuple[str, ...]) -> Gauge:
    return Gauge(name, documentation, labels, namespace="koordlet", registry=REGISTRY)


KOORDLET_NODE_CPU: Final = _koordlet("node_used_cpu_cores", "CPU use of the node.", ("node",))
KOORDLET_NODE_MEMORY: Final = _koordlet(
    "node_used_memory_bytes", "Memory use of the node.", ("node",)
)
KOORDLET_HOST_APP: Final = _koordlet(
    "host_application_resource_usage",
    "Use of processes outside Kubernetes.",
    ("node", "app", "priority", "qos", "resource", "unit"),
)


def record(collection: Collection, settings: ExporterSettings, node: str) -> None:
    """Put one collection on the metrics page."""
    for reason, count in collection.dropped.items():
        SAMPLES_DROPPED.labels(reason).inc(count)
    for kind, count in collection.errors.items():
        ERRORS.labels(kind).inc(count)
    system = collection.system
    SYSTEM_CPU.set(_or_nan(system.cpu_cores if system else None))
    SYSTEM_MEMORY.set(
        _or_nan(memory_by_policy(system, settings.memory_collect_policy) if system else None)
    )
    pods = 0
    ended = {app.name: app for app in settings.host_applications}
    for usage in collection.usages:
        pods += usage.entity.kind == "pod"
        memory = memory_by_policy(usage, settings.memory_collect_policy)
        if usage.entity == NODE:
            NODE_CPU.set(_or_nan(usage.cpu_cores))
            NODE_MEMORY.set(_or_nan(memory))
            KOORDLET_NODE_CPU.labels(node).set(_or_nan(usage.cpu_cores))
            KOORDLET_NODE_MEMORY.labels(node).set(_or_nan(memory))
        elif usage.entity.kind == "host_app":
            app = ended.pop(usage.entity.id)
            _set_host_app(app, node, "cpu", "core", usage.cpu_cores)
            _set_host_app(app, node, "memory", "byte", memory)
    for app in ended.values():
        _set_host_app(app, node, "cpu", "core", None)
        _set_host_app(app, node, "memory", "byte", None)
    PODS.set(pods)


def record_unsupported(features: frozenset[str]) -> None:
    """State which features this kernel does not offer."""
    for feature in FEATURES:
        UNSUPPORTED.labels(feature).set(feature in features)


def _set_host_app(
    app: HostApplication, node: str, resource: str, unit: str, value: float | None
) -> None:
    labels = (node, app.name, app.priority, app.qos, resource, unit)
    if value is not None:
        KOORDLET_HOST_APP.labels(*labels).set(value)
    else:  # not known now: an old value must not stay on the page
        with suppress(KeyError):
            KOORDLET_HOST_APP.remove(*labels)


def memory_by_policy(usage: Usage, policy: str) -> int | None:
    """The memory figure that the policy asks for.

    Without kidled there is no hot page cache to tell from cold: usage without page cache then, as
    in Koordinator. `exporter_unsupported_feature{feature="hot_page_cache"}` states it.
    """
    if policy == "usageWithPageCache":
        return usage.memory_with_page_cache_bytes
    hot = usage.memory_with_hot_page_cache_bytes
    if policy == "usageWithHotPageCache" and hot is not None:
        return hot
    return usage.memory_bytes


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
