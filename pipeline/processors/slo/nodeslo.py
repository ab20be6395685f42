"""The fields of `slo.koordinator.sh/v1alpha1 NodeSLO`: a node's rules of quality of service.

The object has the name of its node and no namespace. The docstrings are part of its definition.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from pipeline.processors.slo.crd_fields import (
    AboveZero,
    BelowProd,
    BurstPercent,
    Document,
    Flag,
    Free,
    GroupIdentity,
    Int32,
    MinAdjustment,
    NotNegative,
    OomPriority,
    OrUnlimited,
    Percent,
    PercentOrQuantity,
    Permill,
    Quantity,
    QuotaPercent,
    ScaleFactor,
    Weight,
)

CpuSuppressPolicy: TypeAlias = Literal["cpuset", "cfsQuota"]
CpuEvictPolicy: TypeAlias = Literal["evictByRealLimit", "evictByAllocatable"]
CpuPolicy: TypeAlias = Literal["groupIdentity", "coreSched"]
NetQosPolicy: TypeAlias = Literal["tc", "terway-qos"]
BlockType: TypeAlias = Literal["device", "volumegroup", "podvolume"]
BurstPolicy: TypeAlias = Literal["none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto"]
CgroupBase: TypeAlias = Literal["CgroupRoot", "Kubepods", "KubepodsBurstable", "KubepodsBesteffort"]


class ThresholdStrategy(Document, frozen=True, kw_only=True):
    """When low classes are held back, and when they are evicted. Percents are of the node's
    capacity unless they say otherwise."""

    enable: bool | None = None
    cpu_suppress_threshold_percent: Annotated[
        Percent | None, Meta(description="CPU use that Best Effort pods may bring the node to.")
    ] = None
    cpu_suppress_min_percent: Annotated[
        Percent | None, Meta(description="CPU that Best Effort pods keep in any case.")
    ] = None
    cpu_suppress_policy: Annotated[
        CpuSuppressPolicy | None, Meta(description="By which means CPU is taken away.")
    ] = None
    memory_evict_threshold_percent: Annotated[
        Percent | None, Meta(description="Memory use from which pods are evicted.")
    ] = None
    memory_evict_lower_percent: Annotated[
        Percent | None, Meta(description="Memory use down to which pods are evicted.")
    ] = None
    memory_allocatable_evict_threshold_percent: Annotated[
        NotNegative | None,
        Meta(description="Requested memory, of the allocatable, from which pods are evicted."),
    ] = None
    memory_allocatable_evict_lower_percent: Annotated[
        NotNegative | None,
        Meta(description="Requested memory, of the allocatable, down to which pods are evicted."),
    ] = None
    cpu_evict_be_satisfaction_upper_percent: Annotated[
        Percent | None,
        Meta(description="CPU that Best Effort pods may use, of their requests, to evict up to."),
    ] = None
    cpu_evict_be_satisfaction_lower_percent: Annotated[
        Percent | None,
        Meta(description="CPU that Best Effort pods may use, of their requests, to evict from."),
    ] = None
    cpu_evict_be_usage_threshold_percent: Annotated[
        Percent | None,
        Meta(description="CPU that Best Effort pods use, of what they may, to evict from."),
    ] = None
    cpu_evict_time_window_seconds: Annotated[
        AboveZero | None, Meta(description="The time over which CPU use is averaged.")
    ] = None
    cpu_evict_threshold_percent: Annotated[
        Percent | None, Meta(description="CPU use from which pods are evicted.")
    ] = None
    cpu_evict_lower_percent: Annotated[
        Percent | None, Meta(description="CPU use down to which pods are evicted.")
    ] = None
    cpu_allocatable_evict_threshold_percent: Annotated[
        NotNegative | None,
        Meta(description="Requested CPU, of the allocatable, from which pods are evicted."),
    ] = None
    cpu_allocatable_evict_lower_percent: Annotated[
        NotNegative | None,
        Meta(description="Requested CPU, of the allocatable, down to which pods are evicted."),
    ] = None
    cpu_evict_policy: Annotated[
        CpuEvictPolicy | None, Meta(description="What Best Effort pods may use is measured by.")
    ] = None
    evict_enabled_priority_threshold: Annotated[
        Int32 | None, Meta(description="The highest priority that is evicted for its use.")
    ] = None
    allocatable_evict_priority_threshold: Annotated[
        BelowProd | None, Meta(description="The highest priority that is evicted for its request.")
    ] = None


class CpuQos(Document, frozen=True, kw_only=True):
    """Which class has the CPU first."""

    enable: bool | None = None
    group_identity: Annotated[
        GroupIdentity | None, Meta(description="Under the policy groupIdentity; 2 is first.")
    ] = None
    sched_idle: Annotated[
        Flag | None, Meta(description="Under the policy coreSched: runs when nothing else does.")
    ] = None
    core_expeller: Annotated[
        bool | None, Meta(description="Under the policy coreSched: shares no core with the idle.")
    ] = None


class MemoryQos(Document, frozen=True, kw_only=True):
    """How memory is protected and reclaimed."""

    enable: bool | None = None
    min_limit_percent: Annotated[
        Percent | None, Meta(description="Never reclaimed, of the request.")
    ] = None
    low_limit_percent: Annotated[
        Percent | None, Meta(description="Reclaimed last, of the request.")
    ] = None
    throttling_percent: Annotated[
        Percent | None, Meta(description="Slowed beyond, of what the limit is above the request.")
    ] = None
    wmark_ratio: Annotated[
        Percent | None, Meta(description="Reclaimed in the background beyond, of the limit.")
    ] = None
    wmark_scale_permill: Annotated[
        Permill | None, Meta(description="How much is reclaimed in the background at once.")
    ] = None
    wmark_min_adj: Annotated[
        MinAdjustment | None, Meta(description="Less than 0: reclaimed later than others.")
    ] = None
    priority_enable: Flag | None = None
    priority: Annotated[
        OomPriority | None, Meta(description="Who is killed first where memory runs out.")
    ] = None
    oom_kill_group: Annotated[
        Flag | None, Meta(description="Whether all processes are killed together.")
    ] = None
    page_cache_enable: Annotated[
        bool | None, Meta(description="Whether the page cache is limited.")
    ] = None
    page_cache_limit_percent: Annotated[
        Percent | None, Meta(description="Page cache, of the limit.")
    ] = None
    page_cache_limit_size: Annotated[
        Quantity | None, Meta(description="Page cache in bytes, before the percentage.")
    ] = None
    page_cache_reclaim_sync: Annotated[
        bool | None, Meta(description="Whether groups that exceed it have to wait.")
    ] = None


class IoConfig(Document, frozen=True, kw_only=True):
    """Limits of a block device, 0 is none; latencies and costs are for the root group alone."""

    read_iops: NotNegative | None = None
    write_iops: NotNegative | None = None
    read_bps: NotNegative | None = None
    write_bps: NotNegative | None = None
    io_weight_percent: Weight | None = None
    read_latency: Annotated[NotNegative | None, Meta(description="Microseconds.")] = None
    write_latency: Annotated[NotNegative | None, Meta(description="Microseconds.")] = None
    read_latency_percent: Percent | None = None
    write_latency_percent: Percent | None = None
    enable_user_model: Annotated[
        bool | None, Meta(description="Whether the costs below are in force.")
    ] = None
    model_read_bps: AboveZero | None = None
    model_write_bps: AboveZero | None = None
    model_read_seq_iops: AboveZero | None = None
    model_write_seq_iops: AboveZero | None = None
    model_read_rand_iops: AboveZero | None = None
    model_write_rand_iops: AboveZero | None = None


class Block(Document, frozen=True, kw_only=True):
    """A device, a volume group or a volume of pods."""

    name: str | None = None
    type: BlockType | None = None
    io_cfg: IoConfig | None = None


class BlkioQos(Document, frozen=True, kw_only=True):
    """How block devices are shared."""

    enable: bool | None = None
    blocks: tuple[Block, ...] | None = None


class ResctrlQos(Document, frozen=True, kw_only=True):
    """Which part of the last cache, and of the memory's bandwidth, a class may use."""

    enable: bool | None = None
    cat_range_start_percent: Percent | None = None
    cat_range_end_percent: Percent | None = None
    mba_percent: Percent | None = None


class NetworkQos(Document, frozen=True, kw_only=True):
    """Bandwidth: a whole number is percent of the node's, a text an amount per second."""

    enable: bool | None = None
    ingress_request: PercentOrQuantity | None = None
    ingress_limit: PercentOrQuantity | None = None
    egress_request: PercentOrQuantity | None = None
    egress_limit: PercentOrQuantity | None = None


class QosClass(Document, frozen=True, kw_only=True):
    """The rules for the pods of one QoS class."""

    cpu_qos: CpuQos | None = None
    memory_qos: MemoryQos | None = None
    blkio_qos: BlkioQos | None = None
    resctrl_qos: ResctrlQos | None = None
    network_qos: NetworkQos | None = None


class QosPolicies(Document, frozen=True, kw_only=True):
    """By which means quality of service is kept."""

    cpu_policy: CpuPolicy | None = None
    net_qos_policy: NetQosPolicy | None = None


class QosStrategy(Document, frozen=True, kw_only=True):
    """The rules for each QoS class."""

    policies: QosPolicies | None = None
    lsr_class: QosClass | None = None
    ls_class: QosClass | None = None
    be_class: QosClass | None = None
    system_class: QosClass | None = None
    cgroup_root: QosClass | None = None


class BurstStrategy(Document, frozen=True, kw_only=True):
    """By how much a container may exceed its CPU limit for a while."""

    policy: BurstPolicy | None = None
    cpu_burst_percent: Annotated[
        BurstPercent | None, Meta(description="What the kernel lets it save up, of the limit.")
    ] = None
    cfs_quota_burst_percent: Annotated[
        QuotaPercent | None, Meta(description="What its quota is raised to, of the limit.")
    ] = None
    cfs_quota_burst_period_seconds: Annotated[
        OrUnlimited | None, Meta(description="For how long; -1 is without an end.")
    ] = None
    share_pool_threshold_percent: Annotated[
        Percent | None, Meta(description="CPU use of the shared cores that ends it.")
    ] = None


class SystemStrategy(Document, frozen=True, kw_only=True):
    """Settings of the node's kernel."""

    min_free_kbytes_factor: Annotated[
        AboveZero | None, Meta(description="Memory kept free, in ten-thousandths.")
    ] = None
    watermark_scale_factor: Annotated[
        ScaleFactor | None, Meta(description="vm.watermark_scale_factor")
    ] = None
    memcg_reap_back_ground: Annotated[
        Flag | None, Meta(description="Whether dead memory groups are reaped.")
    ] = None
    sched_group_identity_enabled: Flag | None = None
    sched_idle_saver_wmark: Annotated[NotNegative | None, Meta(description="Nanoseconds.")] = None
    sched_features: dict[str, bool] | None = None
    page_cache_limit_enabled: Flag | None = None
    total_network_bandwidth: Annotated[
        Quantity | None, Meta(description="Bandwidth of the node; 0 is what its network card says.")
    ] = None


class CgroupPath(Document, frozen=True, kw_only=True):
    """Where the cgroup of a host application is."""

    base: CgroupBase | None = None
    parent_dir: str | None = None
    relative_path: str | None = None


class HostApplicationStrategy(Document, frozen=True, kw_only=True):
    """Nothing yet."""


class HostApplication(Document, frozen=True, kw_only=True):
    """An application that runs beside Kubernetes."""

    name: str | None = None
    priority: Annotated[
        str | None, Meta(description="Class: koord-prod, koord-mid, koord-batch, koord-free.")
    ] = None
    qos: Annotated[str | None, Meta(description="LSE, LSR, LS, BE or SYSTEM.")] = None
    cgroup_path: CgroupPath | None = None
    strategy: HostApplicationStrategy | None = None


class NodeSLOSpec(Document, frozen=True, kw_only=True):
    """By which rules this node keeps quality of service."""

    resource_used_threshold_with_be: ThresholdStrategy | None = None
    resource_qos_strategy: QosStrategy | None = None
    cpu_burst_strategy: BurstStrategy | None = None
    system_strategy: SystemStrategy | None = None
    host_applications: tuple[HostApplication, ...] | None = None
    extensions: Free | None = None


class NodeSLOStatus(Document, frozen=True, kw_only=True):
    """Nothing yet."""


class NodeSLO(Document, frozen=True, kw_only=True):
    """By which rules the node of this name keeps quality of service."""

    api_version: Literal["slo.koordinator.sh/v1alpha1"]
    kind: Literal["NodeSLO"]
    metadata: Free
    spec: NodeSLOSpec | None = None
    status: NodeSLOStatus | None = None
