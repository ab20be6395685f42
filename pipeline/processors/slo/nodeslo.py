"""The fields of `slo.koordinator.sh/v1alpha1 NodeSLO`: rules of quality of service for a node.

The object has the name of its node and no namespace. Docstrings become descriptions in its
definition.
"""

from typing import Literal, TypeAlias

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
    """Thresholds for suppressing and evicting pods of low classes, in percent of capacity.

    enable: Whether these thresholds apply.
    cpu_suppress_threshold_percent: CPU usage up to which Best Effort pods may fill the node.
    cpu_suppress_min_percent: CPU that Best Effort pods always keep.
    cpu_suppress_policy: How Best Effort pods are limited.
    memory_evict_threshold_percent: Memory usage that starts evictions.
    memory_evict_lower_percent: Memory usage that ends evictions.
    memory_allocatable_evict_threshold_percent: Requests, % of allocatable, that start evictions.
    memory_allocatable_evict_lower_percent: Requests, % of allocatable, that end evictions.
    cpu_evict_be_satisfaction_upper_percent: CPU available, % of requests, that ends evictions.
    cpu_evict_be_satisfaction_lower_percent: CPU available, % of requests, that starts evictions.
    cpu_evict_be_usage_threshold_percent: CPU used, % of CPU available, that starts evictions.
    cpu_evict_time_window_seconds: Time over which CPU usage is averaged.
    cpu_evict_threshold_percent: CPU usage that starts evictions.
    cpu_evict_lower_percent: CPU usage that ends evictions.
    cpu_allocatable_evict_threshold_percent: Requests, % of allocatable, that start evictions.
    cpu_allocatable_evict_lower_percent: Requests, % of allocatable, that end evictions.
    cpu_evict_policy: How the CPU available to Best Effort pods is measured.
    evict_enabled_priority_threshold: Highest pod priority that is evicted for usage.
    allocatable_evict_priority_threshold: Highest pod priority that is evicted for requests.
    """

    enable: bool | None = None
    cpu_suppress_threshold_percent: Percent | None = None
    cpu_suppress_min_percent: Percent | None = None
    cpu_suppress_policy: CpuSuppressPolicy | None = None
    memory_evict_threshold_percent: Percent | None = None
    memory_evict_lower_percent: Percent | None = None
    memory_allocatable_evict_threshold_percent: NotNegative | None = None
    memory_allocatable_evict_lower_percent: NotNegative | None = None
    cpu_evict_be_satisfaction_upper_percent: Percent | None = None
    cpu_evict_be_satisfaction_lower_percent: Percent | None = None
    cpu_evict_be_usage_threshold_percent: Percent | None = None
    cpu_evict_time_window_seconds: AboveZero | None = None
    cpu_evict_threshold_percent: Percent | None = None
    cpu_evict_lower_percent: Percent | None = None
    cpu_allocatable_evict_threshold_percent: NotNegative | None = None
    cpu_allocatable_evict_lower_percent: NotNegative | None = None
    cpu_evict_policy: CpuEvictPolicy | None = None
    evict_enabled_priority_threshold: Int32 | None = None
    allocatable_evict_priority_threshold: BelowProd | None = None


class CpuQos(Document, frozen=True, kw_only=True):
    """CPU priority of a class.

    enable: Whether these rules apply.
    group_identity: With the policy groupIdentity: 2 is the highest priority.
    sched_idle: With the policy coreSched: 1 runs pods only on idle CPUs.
    core_expeller: With the policy coreSched: share no core with idle-class tasks.
    """

    enable: bool | None = None
    group_identity: GroupIdentity | None = None
    sched_idle: Flag | None = None
    core_expeller: bool | None = None


class MemoryQos(Document, frozen=True, kw_only=True):
    """Memory protection and reclaim.

    enable: Whether these rules apply.
    min_limit_percent: Memory that is never reclaimed, in percent of the request.
    low_limit_percent: Memory that is reclaimed last, in percent of the request.
    throttling_percent: Threshold of throttling, in percent of the range from request to limit.
    wmark_ratio: Threshold of background reclaim, in percent of the limit.
    wmark_scale_permill: Memory reclaimed in the background at once, in permill of the limit.
    wmark_min_adj: Adjustment of the node's watermark; below 0 memory is reclaimed later.
    priority_enable: Whether the kernel kills by priority when memory runs out.
    priority: Order in which the kernel kills when memory runs out.
    oom_kill_group: Whether all processes of a group are killed together.
    page_cache_enable: Whether the page cache is limited.
    page_cache_limit_percent: Page cache in percent of the limit.
    page_cache_limit_size: Page cache in bytes; overrides the percentage.
    page_cache_reclaim_sync: Whether groups above the limit wait for reclaim.
    """

    enable: bool | None = None
    min_limit_percent: Percent | None = None
    low_limit_percent: Percent | None = None
    throttling_percent: Percent | None = None
    wmark_ratio: Percent | None = None
    wmark_scale_permill: Permill | None = None
    wmark_min_adj: MinAdjustment | None = None
    priority_enable: Flag | None = None
    priority: OomPriority | None = None
    oom_kill_group: Flag | None = None
    page_cache_enable: bool | None = None
    page_cache_limit_percent: Percent | None = None
    page_cache_limit_size: Quantity | None = None
    page_cache_reclaim_sync: bool | None = None


class IoConfig(Document, frozen=True, kw_only=True):
    """Limits of a block device, 0 is unlimited. Latencies and costs apply to the root group only.

    read_iops: Reads per second.
    write_iops: Writes per second.
    read_bps: Bytes read per second.
    write_bps: Bytes written per second.
    io_weight_percent: Weight of the class against others.
    read_latency: Target latency of reads, in microseconds.
    write_latency: Target latency of writes, in microseconds.
    read_latency_percent: Percentile of reads that should meet the target.
    write_latency_percent: Percentile of writes that should meet the target.
    enable_user_model: Whether the model* costs are used.
    model_read_bps: Bytes per second that the device can read.
    model_write_bps: Bytes per second that the device can write.
    model_read_seq_iops: Sequential reads per second that the device can do.
    model_write_seq_iops: Sequential writes per second that the device can do.
    model_read_rand_iops: Random reads per second that the device can do.
    model_write_rand_iops: Random writes per second that the device can do.
    """

    read_iops: NotNegative | None = None
    write_iops: NotNegative | None = None
    read_bps: NotNegative | None = None
    write_bps: NotNegative | None = None
    io_weight_percent: Weight | None = None
    read_latency: NotNegative | None = None
    write_latency: NotNegative | None = None
    read_latency_percent: Percent | None = None
    write_latency_percent: Percent | None = None
    enable_user_model: bool | None = None
    model_read_bps: AboveZero | None = None
    model_write_bps: AboveZero | None = None
    model_read_seq_iops: AboveZero | None = None
    model_write_seq_iops: AboveZero | None = None
    model_read_rand_iops: AboveZero | None = None
    model_write_rand_iops: AboveZero | None = None


class Block(Document, frozen=True, kw_only=True):
    """A device, a volume group or a volume of pods.

    name: Name of the device, the volume group or the volume.
    type: What the name refers to.
    """

    name: str | None = None
    type: BlockType | None = None
    io_cfg: IoConfig | None = None


class BlkioQos(Document, frozen=True, kw_only=True):
    """Sharing of block devices.

    enable: Whether these rules apply.
    blocks: Devices with limits.
    """

    enable: bool | None = None
    blocks: tuple[Block, ...] | None = None


class ResctrlQos(Document, frozen=True, kw_only=True):
    """Share of the last-level cache and of memory bandwidth that a class may use.

    enable: Whether these rules apply.
    cat_range_start_percent: Start of the range of the cache, in percent of its ways.
    cat_range_end_percent: End of the range of the cache, in percent of its ways.
    mba_percent: Memory bandwidth.
    """

    enable: bool | None = None
    cat_range_start_percent: Percent | None = None
    cat_range_end_percent: Percent | None = None
    mba_percent: Percent | None = None


class NetworkQos(Document, frozen=True, kw_only=True):
    """Bandwidth: an integer is a percentage of the node, a string an amount per second.

    enable: Whether these rules apply.
    ingress_request: Guaranteed bandwidth of received packets.
    ingress_limit: Highest bandwidth of received packets.
    egress_request: Guaranteed bandwidth of sent packets.
    egress_limit: Highest bandwidth of sent packets.
    """

    enable: bool | None = None
    ingress_request: PercentOrQuantity | None = None
    ingress_limit: PercentOrQuantity | None = None
    egress_request: PercentOrQuantity | None = None
    egress_limit: PercentOrQuantity | None = None


class QosClass(Document, frozen=True, kw_only=True):
    """Rules for the pods of a QoS class."""

    cpu_qos: CpuQos | None = None
    memory_qos: MemoryQos | None = None
    blkio_qos: BlkioQos | None = None
    resctrl_qos: ResctrlQos | None = None
    network_qos: NetworkQos | None = None


class QosPolicies(Document, frozen=True, kw_only=True):
    """Kernel mechanisms that enforce the rules.

    cpu_policy: Mechanism for CPU priorities.
    net_qos_policy: Mechanism for network bandwidth.
    """

    cpu_policy: CpuPolicy | None = None
    net_qos_policy: NetQosPolicy | None = None


class QosStrategy(Document, frozen=True, kw_only=True):
    """Rules by QoS class.

    lsr_class: Rules for LSR pods.
    ls_class: Rules for LS pods.
    be_class: Rules for BE pods.
    system_class: Rules for SYSTEM pods.
    cgroup_root: Rules for the root cgroup.
    """

    policies: QosPolicies | None = None
    lsr_class: QosClass | None = None
    ls_class: QosClass | None = None
    be_class: QosClass | None = None
    system_class: QosClass | None = None
    cgroup_root: QosClass | None = None


class BurstStrategy(Document, frozen=True, kw_only=True):
    """How far a container may exceed its CPU limit for a while.

    policy: Which mechanisms are used.
    cpu_burst_percent: CPU time that a container may accumulate, in percent of the limit.
    cfs_quota_burst_percent: Highest CPU quota, in percent of the limit.
    cfs_quota_burst_period_seconds: Longest time of a raised quota; -1 is unlimited.
    share_pool_threshold_percent: CPU usage of the shared cores that ends a raised quota.
    """

    policy: BurstPolicy | None = None
    cpu_burst_percent: BurstPercent | None = None
    cfs_quota_burst_percent: QuotaPercent | None = None
    cfs_quota_burst_period_seconds: OrUnlimited | None = None
    share_pool_threshold_percent: Percent | None = None


class SystemStrategy(Document, frozen=True, kw_only=True):
    """Kernel settings of the node.

    min_free_kbytes_factor: Memory kept free, in ten-thousandths.
    watermark_scale_factor: Value of vm.watermark_scale_factor.
    memcg_reap_back_ground: Whether deleted memory groups are reaped.
    sched_group_identity_enabled: Whether the kernel applies group identities.
    sched_idle_saver_wmark: Idle time, in nanoseconds, above which a CPU may take idle-class tasks.
    sched_features: Scheduler features to turn on or off, by name.
    page_cache_limit_enabled: Whether the kernel applies limits of the page cache.
    total_network_bandwidth: Bandwidth of the node; 0 is that of its network card.
    """

    min_free_kbytes_factor: AboveZero | None = None
    watermark_scale_factor: ScaleFactor | None = None
    memcg_reap_back_ground: Flag | None = None
    sched_group_identity_enabled: Flag | None = None
    sched_idle_saver_wmark: NotNegative | None = None
    sched_features: dict[str, bool] | None = None
    page_cache_limit_enabled: Flag | None = None
    total_network_bandwidth: Quantity | None = None


class CgroupPath(Document, frozen=True, kw_only=True):
    """Path of a host application's cgroup.

    base: Directory from which the path starts.
    parent_dir: Directory below base.
    relative_path: Directory below parentDir.
    """

    base: CgroupBase | None = None
    parent_dir: str | None = None
    relative_path: str | None = None


class HostApplicationStrategy(Document, frozen=True, kw_only=True):
    """Reserved."""


class HostApplication(Document, frozen=True, kw_only=True):
    """An application that runs outside of Kubernetes.

    name: Name of the application.
    priority: Class: koord-prod, koord-mid, koord-batch, koord-free.
    qos: LSE, LSR, LS, BE or SYSTEM.
    """

    name: str | None = None
    priority: str | None = None
    qos: str | None = None
    cgroup_path: CgroupPath | None = None
    strategy: HostApplicationStrategy | None = None


class NodeSLOSpec(Document, frozen=True, kw_only=True):
    """Rules of quality of service for a node.

    extensions: Rules of other programs, by name.
    """

    resource_used_threshold_with_be: ThresholdStrategy | None = None
    resource_qos_strategy: QosStrategy | None = None
    cpu_burst_strategy: BurstStrategy | None = None
    system_strategy: SystemStrategy | None = None
    host_applications: tuple[HostApplication, ...] | None = None
    extensions: Free | None = None


class NodeSLOStatus(Document, frozen=True, kw_only=True):
    """Reserved."""


class NodeSLO(Document, frozen=True, kw_only=True):
    """Rules of quality of service for the node of this name."""

    api_version: Literal["slo.koordinator.sh/v1alpha1"]
    kind: Literal["NodeSLO"]
    metadata: Free
    spec: NodeSLOSpec | None = None
    status: NodeSLOStatus | None = None
