"""What of a policy cannot be meant together, found when it is set and not when it hurts.

All of it is taken: each part is good by itself, and whoever wrote it may know better.
"""

from collections.abc import Iterator

from pipeline.processors.policy.colocation import STATIC, Colocation
from pipeline.processors.policy.springtide import Own


def contradictions(strategy: Colocation, own: Own) -> Iterator[str]:
    """What of the cluster's strategy contradicts what."""
    if not strategy.enable:
        return
    if own.promise_once is False:
        yield (
            "promiseOnce is false: Mid and Batch may be promised the same idle capacity; leave it "
            "true, or set midCPUThresholdPercent and midMemoryThresholdPercent to 0"
        )
    for resource, reclaim, limit in (
        ("cpu", strategy.cpu_reclaim_threshold_percent, strategy.batch_cpu_threshold_percent),
        (
            "memory",
            strategy.memory_reclaim_threshold_percent,
            strategy.batch_memory_threshold_percent,
        ),
    ):
        if (reclaim or 0) > 100 and limit is None:
            yield (
                f"{resource}ReclaimThresholdPercent is {reclaim}: Batch may be promised more than "
                f"the node has; set batch{resource.upper() if resource == 'cpu' else 'Memory'}"
                "ThresholdPercent, too"
            )
    degrade_seconds = 60 * (strategy.degrade_time_minutes or 0)
    for name, seconds in (
        ("metricReportIntervalSeconds", strategy.metric_report_interval_seconds),
        ("updateTimeThresholdSeconds", strategy.update_time_threshold_seconds),
    ):
        if (seconds or 0) > degrade_seconds:
            yield (
                f"{name} is {seconds}, longer than degradeTimeMinutes, which is "
                f"{strategy.degrade_time_minutes}: Mid and Batch would come and go"
            )
    if strategy.mid_reclaim_mode == STATIC and not (
        strategy.mid_static_cpu_reserved_percent or strategy.mid_static_memory_reserved_percent
    ):
        yield (
            "midReclaimMode is static, and midStaticCPUReservedPercent and "
            "midStaticMemoryReservedPercent are 0: there is no Mid"
        )
