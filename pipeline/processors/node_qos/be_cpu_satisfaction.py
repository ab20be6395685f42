"""How much CPU best-effort pods must stop asking for, because too little of it is left for them.

Koordinator's `BECPUEvict`: satisfaction is what best-effort pods may use, divided by their
requests of batch-cpu. If it is at most the lower percentage while they use nearly all they may,
pods leave until it is the upper percentage. Both the means of a window and the present values must
call for it, and the smaller release counts. All amounts are millicores.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from pipeline.processors.node_qos.cgroup_values import PERIOD_US, UNLIMITED, CpuSet
from pipeline.processors.slo.nodeslo import CpuEvictPolicy, ThresholdStrategy

_USAGE_THRESHOLD_PERCENT: Final = 90
_LARGEST_LOWER_PERCENT: Final = 60
_FULLY_USED_BELOW_MILLICORES: Final = 1000
"""A smaller limit counts as fully used: usage cannot come near it with whole time slices."""


class SatisfactionRule(NamedTuple):
    """When pods leave, in percent."""

    lower_percent: int
    upper_percent: int
    usage_threshold_percent: int = _USAGE_THRESHOLD_PERCENT


class BestEffortCpu(NamedTuple):
    """What best-effort pods may use, use and request."""

    limit_millicores: int
    usage_millicores: int
    request_millicores: int


def satisfaction_rule(thresholds: ThresholdStrategy) -> SatisfactionRule | None:
    """The rule of a policy; None if it has none, or an invalid one."""
    lower = thresholds.cpu_evict_be_satisfaction_lower_percent
    upper = thresholds.cpu_evict_be_satisfaction_upper_percent
    usage = thresholds.cpu_evict_be_usage_threshold_percent
    if lower is None or upper is None:
        return None
    if not (0 < lower <= _LARGEST_LOWER_PERCENT and lower <= upper < 100):
        return None
    return SatisfactionRule(lower, upper, _USAGE_THRESHOLD_PERCENT if usage is None else usage)


def limit_millicores(
    policy: CpuEvictPolicy | None, real_limit: int | None, offered: int | None
) -> int | None:
    """What best-effort pods may use by a policy: what the kernel allows, or with
    `evictByAllocatable` the node's batch-cpu, where 0 counts as 1. None if it is unknown."""
    if policy == "evictByAllocatable":
        return None if offered is None else max(offered, 1)
    return real_limit


def real_limit_millicores(cpu_sets: Iterable[CpuSet], quota_us: int) -> int | None:
    """What the kernel allows: the quota of the best-effort directory, and the smallest of the CPU
    sets of this directory and of its containers. None if neither limits anything."""
    limits = [1000 * len(cpus) for cpus in cpu_sets if cpus]
    if quota_us < UNLIMITED:
        limits.append(1000 * quota_us // PERIOD_US)
    return min(limits, default=None)


def release_millicores(rule: SatisfactionRule, mean: BestEffortCpu, current: BestEffortCpu) -> int:
    """Requests of batch-cpu that should leave the node; 0 if none."""
    return min(_release(rule, mean), _release(rule, current))


def remaining_millicores(rule: SatisfactionRule, current: BestEffortCpu) -> int:
    """Requests that are still to leave after an eviction began: down to the upper percentage,
    whatever usage and the lower percentage say."""
    return max(current.request_millicores * rule.upper_percent // 100 - current.limit_millicores, 0)


def _release(rule: SatisfactionRule, cpu: BestEffortCpu) -> int:
    limit, usage, request = cpu
    if limit <= 0 or request <= 0:
        return 0
    is_busy = usage * 100 >= rule.usage_threshold_percent * limit
    if limit >= _FULLY_USED_BELOW_MILLICORES and not is_busy:
        return 0
    if limit * 100 > rule.lower_percent * request:
        return 0
    return remaining_millicores(rule, cpu)
