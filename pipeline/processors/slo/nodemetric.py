"""The fields of `slo.koordinator.sh/v1alpha1 NodeMetric`: what to measure on a node, and its usage.

The object has the name of its node and no namespace. The docstrings are part of its definition.
"""

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta

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

MemoryCollectPolicy: TypeAlias = Literal[
    "usageWithHotPageCache", "usageWithoutPageCache", "usageWithPageCache"
]
AGGREGATIONS: Final = ("avg", "p50", "p90", "p95", "p99")
"""The words of `AggregatedUsage.usage`. There is none for the highest sample, which may be an
outlier."""


class AggregatePolicy(Document, frozen=True, kw_only=True):
    """Over which spans usage is aggregated."""

    durations: tuple[Duration, ...] | None = None


class CollectPolicy(Document, frozen=True, kw_only=True):
    """How usage is measured, and how often it is reported."""

    aggregate_duration_seconds: Annotated[
        AboveZero | None, Meta(description="The time over which plain usage is averaged.")
    ] = None
    report_interval_seconds: Annotated[
        AboveZero | None, Meta(description="The time from one report to the next.")
    ] = None
    node_aggregate_policy: AggregatePolicy | None = None
    node_memory_collect_policy: Annotated[
        MemoryCollectPolicy | None, Meta(description="Which pages count as used memory.")
    ] = None


class PredictPolicy(Document, frozen=True, kw_only=True):
    """How a peak is predicted, and when it is told anew."""

    resource_diff_threshold_percent: Annotated[
        NotNegative | None, Meta(description="How different a result is before it is told.")
    ] = None
    cold_start_period_seconds: Annotated[
        NotNegative | None, Meta(description="How long a pod counts what it asked for.")
    ] = None


class NodeMetricSpec(Document, frozen=True, kw_only=True):
    """What is to be measured on this node."""

    metric_collect_policy: CollectPolicy | None = None
    predict_policy: PredictPolicy | None = None


class DeviceTopology(Document, frozen=True, kw_only=True):
    """Where in the machine a device is."""

    socket_id: Int32
    node_id: Annotated[Int32, Meta(description="The NUMA node.")]
    pcie_id: Annotated[str, Meta(description="The PCIe switch.")]
    bus_id: Annotated[str | None, Meta(description="domain:bus:device.function")] = None


class VirtualFunction(Document, frozen=True, kw_only=True):
    """A virtual function of a device."""

    minor: Int32
    bus_id: Annotated[str | None, Meta(description="domain:bus:device.function")] = None


class VirtualFunctionGroup(Document, frozen=True, kw_only=True):
    """Virtual functions that are alike."""

    labels: dict[str, str] | None = None
    vfs: tuple[VirtualFunction, ...] | None = None


class Device(Document, frozen=True, kw_only=True):
    """A device such as a GPU, and what of it is in use."""

    health: Annotated[bool, Meta(description="Whether it works.")]
    type: str | None = None
    labels: dict[str, str] | None = None
    id: Annotated[str | None, Meta(description="Its UUID.")] = None
    minor: Annotated[Int32 | None, Meta(description="Its minor number.")] = None
    module_id: Annotated[Int32 | None, Meta(description="Its place on the board.")] = None
    resources: Resources | None = None
    topology: DeviceTopology | None = None
    vf_groups: tuple[VirtualFunctionGroup, ...] | None = None


class ResourceMap(Document, frozen=True, kw_only=True):
    """Amounts of resources, and of each device."""

    resources: Resources | None = None
    devices: tuple[Device, ...] | None = None


class AggregatedUsage(Document, frozen=True, kw_only=True):
    """Usage in one span: its average, and percentiles of its samples. No usage where there are
    samples of less than half of the span."""

    duration: Annotated[Duration | None, Meta(description="How long the span is.")] = None
    usage: Annotated[
        dict[str, ResourceMap] | None, Meta(description="By avg, p50, p90, p95 and p99.")
    ] = None


class NumaUsage(Document, frozen=True, kw_only=True):
    """What is in use on one NUMA node."""

    numa_node_id: Int32 | None = None
    node_usage: ResourceMap | None = None
    system_usage: ResourceMap | None = None


class NodeUsage(Document, frozen=True, kw_only=True):
    """What is in use on the node."""

    node_usage: Annotated[
        ResourceMap | None, Meta(description="By everything, averaged over the report's time.")
    ] = None
    aggregated_node_usages: tuple[AggregatedUsage, ...] | None = None
    system_usage: Annotated[
        ResourceMap | None, Meta(description="By neither pods nor host applications.")
    ] = None
    aggregated_system_usages: tuple[AggregatedUsage, ...] | None = None
    numa_usages: tuple[NumaUsage, ...] | None = None


class PodMetric(Document, frozen=True, kw_only=True):
    """What one pod uses, averaged over the report's time."""

    name: str | None = None
    namespace: str | None = None
    pod_usage: ResourceMap | None = None
    priority: Annotated[
        str | None, Meta(description="Class: koord-prod, koord-mid, koord-batch, koord-free.")
    ] = None
    qos: Annotated[str | None, Meta(description="LSE, LSR, LS, BE or SYSTEM.")] = None
    extensions: Free | None = None


class HostApplicationMetric(Document, frozen=True, kw_only=True):
    """What an application uses that runs beside Kubernetes, averaged over the report's time."""

    name: str | None = None
    usage: ResourceMap | None = None
    priority: Annotated[
        str | None, Meta(description="Class: koord-prod, koord-mid, koord-batch, koord-free.")
    ] = None
    qos: Annotated[str | None, Meta(description="LSE, LSR, LS, BE or SYSTEM.")] = None


class PredictedMetric(Document, frozen=True, kw_only=True):
    """A prediction for the pods of a class as a whole."""

    resource: ResourceMap | None = None


class NodeMetricStatus(Document, frozen=True, kw_only=True):
    """What was measured last."""

    update_time: Annotated[
        Timestamp | None, Meta(description="When: what is too old is not relied upon.")
    ] = None
    node_metric: NodeUsage | None = None
    pods_metric: Annotated[
        tuple[PodMetric, ...] | None, Meta(description="In order of namespace and name.")
    ] = None
    host_application_metric: Annotated[
        tuple[HostApplicationMetric, ...] | None, Meta(description="In order of names.")
    ] = None
    prod_reclaimable_metric: Annotated[
        PredictedMetric | None, Meta(description="What Prod asked for and will not use.")
    ] = None
    prod_peak_metric: Annotated[
        PredictedMetric | None, Meta(description="What Prod and the system will not exceed.")
    ] = None


class NodeMetric(Document, frozen=True, kw_only=True):
    """What is measured on the node of this name, and what was."""

    api_version: Literal["slo.koordinator.sh/v1alpha1"]
    kind: Literal["NodeMetric"]
    metadata: Free
    spec: NodeMetricSpec | None = None
    status: NodeMetricStatus | None = None
