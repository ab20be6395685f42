"""Default NodeSLO strategies: thresholds, CPU burst, system and QoS classes, as in Koordinator.

Everything that changes a node is off. The node agent decides values without a default.
"""

from typing import Final

from pipeline.processors.slo.nodeslo import (
    BlkioQos,
    BurstStrategy,
    CpuQos,
    MemoryQos,
    NetworkQos,
    QosClass,
    QosPolicies,
    QosStrategy,
    ResctrlQos,
    SystemStrategy,
    ThresholdStrategy,
)

THRESHOLD: Final = ThresholdStrategy(
    enable=False,
    cpu_suppress_threshold_percent=65,
    cpu_suppress_policy="cpuset",
    memory_evict_threshold_percent=70,
    cpu_evict_policy="evictByRealLimit",
)
BURST: Final = BurstStrategy(
    policy="none",
    cpu_burst_percent=1000,
    cfs_quota_burst_percent=300,
    cfs_quota_burst_period_seconds=-1,
    share_pool_threshold_percent=50,
)
SYSTEM: Final = SystemStrategy(total_network_bandwidth="0")

_LATENCY_SENSITIVE: Final = CpuQos(enable=False, group_identity=2, sched_idle=0, core_expeller=True)
_BEST_EFFORT: Final = CpuQos(enable=False, group_identity=-1, sched_idle=0, core_expeller=False)
_SYSTEM_CLASS: Final = CpuQos(enable=False, group_identity=0, sched_idle=0, core_expeller=False)


def _qos_class(
    cpu: CpuQos, watermarks: tuple[int, int, int], cache_end_percent: int = 100
) -> QosClass:
    """Build a QoS class from CPU settings, memory watermarks (ratio, scale, adjustment) and the end
    of its range of the last-level cache in percent."""
    ratio, scale, adjustment = watermarks
    memory = MemoryQos(
        enable=False,
        min_limit_percent=0,
        low_limit_percent=0,
        throttling_percent=0,
        wmark_ratio=ratio,
        wmark_scale_permill=scale,
        wmark_min_adj=adjustment,
        priority_enable=0,
        priority=0,
        oom_kill_group=0,
    )
    return QosClass(
        cpu_qos=cpu,
        memory_qos=memory,
        blkio_qos=BlkioQos(enable=False),
        resctrl_qos=ResctrlQos(
            enable=False,
            cat_range_start_percent=0,
            cat_range_end_percent=cache_end_percent,
            mba_percent=100,
        ),
        network_qos=NetworkQos(enable=False),
    )


QOS: Final = QosStrategy(
    policies=QosPolicies(cpu_policy="groupIdentity", net_qos_policy="tc"),
    lsr_class=_qos_class(_LATENCY_SENSITIVE, (95, 20, -25)),
    ls_class=_qos_class(_LATENCY_SENSITIVE, (95, 20, -25)),
    be_class=_qos_class(_BEST_EFFORT, (95, 20, 50), cache_end_percent=30),
    system_class=_qos_class(_SYSTEM_CLASS, (0, 50, 0)),
    cgroup_root=QosClass(blkio_qos=BlkioQos(enable=False)),
)
