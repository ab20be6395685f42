"""Defaults of the rules of quality of service.

Everything that changes a node is off. The node's agent decides values without a default.
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
_SYSTEM: Final = CpuQos(enable=False, group_identity=0, sched_idle=0, core_expeller=False)


def _class(cpu: CpuQos, wmark: tuple[int, int, int], cat_end: int = 100) -> QosClass:
    """A class by its CPU, watermarks of memory (ratio, scale, adjustment) and share of cache."""
    ratio, scale, adjustment = wmark
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
            enable=False, cat_range_start_percent=0, cat_range_end_percent=cat_end, mba_percent=100
        ),
        network_qos=NetworkQos(enable=False),
    )


QOS: Final = QosStrategy(
    policies=QosPolicies(cpu_policy="groupIdentity", net_qos_policy="tc"),
    lsr_class=_class(_LATENCY_SENSITIVE, (95, 20, -25)),
    ls_class=_class(_LATENCY_SENSITIVE, (95, 20, -25)),
    be_class=_class(_BEST_EFFORT, (95, 20, 50), cat_end=30),
    system_class=_class(_SYSTEM, (0, 50, 0)),
    cgroup_root=QosClass(blkio_qos=BlkioQos(enable=False)),
)
