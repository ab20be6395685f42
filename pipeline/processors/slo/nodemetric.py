"""The fields of `slo.koordinator.sh/v1alpha1 NodeMetric`: measurement settings and usage of a node.

The object has the name of its node and no namespace. Docstrings become descriptions in its
definition.
"""

from typing import Final, Literal

from pipeline.processors.slo.crd_fields import (
    AboveZero,
    Document,
    Duration,
    Free,
    Int32,
    NotNegative,
    Resources,
    Timestamp,
)
from pipeline.settings.base import MemoryCollectPolicy

SHORTEST_SPAN_SECONDS: Final = 30
LONGEST_SPAN_SECONDS: Final = 3600
"""Times over which percentiles are reported: from a window to an hour, for windows take memory."""


class AggregatePolicy(Document, frozen=True, kw_only=True):
    """Durations over which usage is aggregated.

    durations: Durations such as 5m0s.
    """

    durations: tuple[Duration, ...] | None = None


class CollectPolicy(Document, frozen=True, kw_only=True):
    """How usage is measured, and how often it is reported.

    aggregate_duration_seconds: Time over which usage is averaged.
    report_interval_seconds: Time between two reports.
    node_memory_collect_policy: Pages that count as used memory.
    """

    aggregate_duration_seconds: AboveZero | None = None
    report_interval_seconds: AboveZero | None = None
    node_aggregate_policy: AggregatePolicy | None = None
    node_memory_collect_policy: MemoryCollectPolicy | None = None


class PredictPolicy(Document, frozen=True, kw_only=True):
    """How peaks are predicted, and when they are published.

    resource_diff_threshold_percent: Change from which a new result is published.
    cold_start_period_seconds: Time for which a pod counts its request.
    """

    resource_diff_threshold_percent: NotNegative | None = None
    cold_start_period_seconds: NotNegative | None = None


class NodeMetricSpec(Document, frozen=True, kw_only=True):
    """What is measured on this node."""

    metric_collect_policy: CollectPolicy | None = None
    predict_policy: PredictPolicy | None = None


class DeviceTopology(Document, frozen=True, kw_only=True):
    """Location of a device in the machine.

    socket_id: CPU socket.
    node_id: NUMA node.
    pcie_id: PCIe switch.
    bus_id: PCI address: domain:bus:device.function.
    """

    socket_id: Int32
    node_id: Int32
    pcie_id: str
    bus_id: str | None = None


class VirtualFunction(Document, frozen=True, kw_only=True):
    """A virtual function of a device.

    minor: Number of the virtual function.
    bus_id: PCI address: domain:bus:device.function.
    """

    minor: Int32
    bus_id: str | None = None


class VirtualFunctionGroup(Document, frozen=True, kw_only=True):
    """Virtual functions with the same labels.

    labels: Labels of the virtual functions.
    vfs: The virtual functions.
    """

    labels: dict[str, str] | None = None
    vfs: tuple[VirtualFunction, ...] | None = None


class Device(Document, frozen=True, kw_only=True):
    """A device such as a GPU, and its usage.

    health: Whether the device works.
    type: Kind of device, such as gpu.
    labels: Labels of the device.
    id: UUID of the device.
    minor: Minor number of the device.
    module_id: Slot on the board.
    resources: Used amounts, by resource.
    vf_groups: Virtual functions of the device.
    """

    health: bool
    type: str | None = None
    labels: dict[str, str] | None = None
    id: str | None = None
    minor: Int32 | None = None
    module_id: Int32 | None = None
    resources: Resources | None = None
    topology: DeviceTopology | None = None
    vf_groups: tuple[VirtualFunctionGroup, ...] | None = None


class ResourceMap(Document, frozen=True, kw_only=True):
    """Amounts of resources and devices.

    resources: Amounts by resource.
    devices: Devices with their usage.
    """

    resources: Resources | None = None
    devices: tuple[Device, ...] | None = None


class AggregatedUsage(Document, frozen=True, kw_only=True):
    """Average and percentiles over a duration; none if samples cover less than half of it.

    duration: Length of the time.
    usage: By avg, p50, p90, p95 and p99.
    """

    duration: Duration | None = None
    usage: dict[str, ResourceMap] | None = None


class NumaUsage(Document, frozen=True, kw_only=True):
    """Usage of a NUMA node.

    numa_node_id: Number of the NUMA node.
    node_usage: Total usage.
    system_usage: Usage of neither pods nor host applications.
    """

    numa_node_id: Int32 | None = None
    node_usage: ResourceMap | None = None
    system_usage: ResourceMap | None = None


class NodeUsage(Document, frozen=True, kw_only=True):
    """Usage of the node.

    node_usage: Total usage, averaged over aggregateDurationSeconds.
    system_usage: Usage of neither pods nor host applications.
    numa_usages: Usage by NUMA node.
    """

    node_usage: ResourceMap | None = None
    aggregated_node_usages: tuple[AggregatedUsage, ...] | None = None
    system_usage: ResourceMap | None = None
    aggregated_system_usages: tuple[AggregatedUsage, ...] | None = None
    numa_usages: tuple[NumaUsage, ...] | None = None


class PodMetric(Document, frozen=True, kw_only=True):
    """Usage of a pod, averaged over aggregateDurationSeconds.

    name: Name of the pod.
    namespace: Namespace of the pod.
    pod_usage: Usage of the pod.
    priority: Class: koord-prod, koord-mid, koord-batch, koord-free.
    qos: LSE, LSR, LS, BE or SYSTEM.
    extensions: Figures of other programs, by name.
    """

    name: str | None = None
    namespace: str | None = None
    pod_usage: ResourceMap | None = None
    priority: str | None = None
    qos: str | None = None
    extensions: Free | None = None


class HostApplicationMetric(Document, frozen=True, kw_only=True):
    """Usage of a host application, averaged over aggregateDurationSeconds.

    name: Name of the host application.
    usage: Usage of the host application.
    priority: Class: koord-prod, koord-mid, koord-batch, koord-free.
    qos: LSE, LSR, LS, BE or SYSTEM.
    """

    name: str | None = None
    usage: ResourceMap | None = None
    priority: str | None = None
    qos: str | None = None


class PredictedMetric(Document, frozen=True, kw_only=True):
    """Prediction for all pods of a class.

    resource: Predicted amounts.
    """

    resource: ResourceMap | None = None


class NodeMetricStatus(Document, frozen=True, kw_only=True):
    """Latest measurement.

    update_time: Time of the measurement. Readers ignore old measurements.
    pods_metric: Usage by pod, in the order of namespace and name.
    host_application_metric: Usage by host application, in the order of name.
    prod_reclaimable_metric: Requests of Prod that Prod will not use.
    prod_peak_metric: Predicted peak of Prod and system.
    """

    update_time: Timestamp | None = None
    node_metric: NodeUsage | None = None
    pods_metric: tuple[PodMetric, ...] | None = None
    host_application_metric: tuple[HostApplicationMetric, ...] | None = None
    prod_reclaimable_metric: PredictedMetric | None = None
    prod_peak_metric: PredictedMetric | None = None


class NodeMetric(Document, frozen=True, kw_only=True):
    """Measurement settings and usage of the node of this name."""

    api_version: Literal["slo.koordinator.sh/v1alpha1"]
    kind: Literal["NodeMetric"]
    metadata: Free
    spec: NodeMetricSpec | None = None
    status: NodeMetricStatus | None = None
