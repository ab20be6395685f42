"""Two readings into usage: the definitions of the field, pure.

Counters only grow. One that went backwards means another cgroup under the same name, or a counter
that was reset; what was used in between is unknown then, so the answer is None, never a wrapped or
a negative number.
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from node_exporter.kernel.parse import Throttling


def cpu_cores(usage_ns: int, previous_ns: int, elapsed_ns: int) -> float | None:
    """Cores used between two readings of a CPU time counter; None if it or time went backwards."""
    if usage_ns < previous_ns or elapsed_ns <= 0:
        return None
    return (usage_ns - previous_ns) / elapsed_ns


def node_cpu_cores(
    ticks: int, previous_ticks: int, elapsed_seconds: float, ticks_per_second: int
) -> float | None:
    """Cores used by the node between two readings of /proc/stat."""
    if ticks < previous_ticks or elapsed_seconds <= 0:
        return None
    return (ticks - previous_ticks) / ticks_per_second / elapsed_seconds


def throttled_ratio(now: Throttling, previous: Throttling) -> float:
    """Share of CFS periods that were throttled, 0 where none passed."""
    periods = now.periods - previous.periods
    if periods <= 0:
        return 0.0
    return (now.throttled_periods - previous.throttled_periods) / periods


def best_effort_usage_millicores(usage_ns: int, previous_ns: int, elapsed_ms: int) -> int:
    """CPU of the best-effort tier as Koordinator reports it: whole milliseconds, truncated."""
    return (usage_ns - previous_ns) // 1_000_000 * 1000 // elapsed_ms


def best_effort_limit_millicores(cpus: Sequence[int], quota_us: int, period_us: int) -> int:
    """What the best-effort tier may use at most: its CPUs or its quota, whichever is less."""
    by_cpus = 1000 * len(cpus)
    if quota_us < 0 or period_us <= 0:
        return by_cpus
    return min(by_cpus, 1000 * quota_us // period_us)


def system_usage(node: float, pods: Iterable[float], host_apps: Iterable[float]) -> float:
    """What is left of the node's usage after pods and host applications, never below 0."""
    return max(0.0, node - sum(pods) - sum(host_apps))


def hot_bytes(with_page_cache_bytes: int, cold_bytes: int) -> int:
    """Usage with hot page cache only, never below 0."""
    return max(0, with_page_cache_bytes - cold_bytes)


def average(values: Sequence[float]) -> float:
    """Arithmetic mean, rounded once. Raises `ValueError` for no values."""
    if not values:
        raise ValueError("an average of no values")
    return math.fsum(values) / len(values)


def rank_percentile(ascending: Sequence[float], p: Fraction) -> float:
    """The value at rank floor(n*p), counted from 1 and at least 1, of values in ascending order.

    `p` is a fraction, so that floor(n * 9/10) is never a rounding error short. Raises `ValueError`
    for no values.
    """
    if not ascending:
        raise ValueError("a percentile of no values")
    rank = len(ascending) * p.numerator // p.denominator
    return ascending[max(0, rank - 1)]
