"""Usage of one window from any source: columns of samples, by node and by pod.

Unknown values are missing or null. An impossible value becomes null and is counted. Percentiles are
by rank, as in the exporter.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pipeline.processors.model.model_config import MAX_USAGE
from pipeline.topics.resource_amounts import LARGEST_AMOUNT, is_gauge

MAX_CPU_CORES, MAX_BYTES = float(MAX_USAGE[0]), float(MAX_USAGE[1])
_PERCENTILES: Final = (("p90", 90), ("p95", 95))

SampleColumns = dict[str, Any]
TimedValues = Mapping[int, float]
"""Values by time in milliseconds, ascending."""


class TimeWindow(NamedTuple):
    """The span (start, end] in milliseconds since 1970, aligned to multiples of its length."""

    start_ms: int
    end_ms: int

    @property
    def seconds(self) -> float:
        return (self.end_ms - self.start_ms) / 1000

    def has(self, time_ms: int) -> bool:
        return self.start_ms < time_ms <= self.end_ms


class PodName(NamedTuple):
    """A pod as a source names it, "" where it does not; `uid` is the uid of its cgroup."""

    namespace: str
    name: str
    uid: str = ""
    node: str = ""


@dataclass(slots=True)
class FetchedUsage:
    """Usage of one window from a source.

    `nodes` and `pods` are columns of samples by node and pod. `bad_values` counts values that were
    made null, by column. `left_out` counts unused entities and readings, by reason. `failed` has
    the error of each column that could not be fetched. Without `knows_pods` the source reported
    nothing about pods; there may be some.
    """

    nodes: dict[str, SampleColumns] = field(default_factory=dict)
    pods: dict[PodName, SampleColumns] = field(default_factory=dict)
    bad_values: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    unknown_nodes: set[str] = field(default_factory=set)
    knows_pods: bool = True


def window_before(time_ms: int, length_ms: int) -> TimeWindow:
    """The last window of this length that has ended at a time.

    >>> window_before(125_000, 60_000)
    TimeWindow(start_ms=60000, end_ms=120000)
    """
    end_ms = time_ms // length_ms * length_ms
    return TimeWindow(end_ms - length_ms, end_ms)


def largest(column: str) -> float:
    """The largest plausible value of a column of samples."""
    if is_gauge(column):
        return float(LARGEST_AMOUNT)
    if column.startswith("pressure_") or column.endswith("_ratio"):
        return 1.0
    return MAX_CPU_CORES if "cpu_cores" in column else MAX_BYTES


def plausible(value: float, most: float) -> float | None:
    """`value`, or None if no machine can have it.

    >>> plausible(0.5, 1e6), plausible(-1.0, 1e6), plausible(float("nan"), 1e6)
    (0.5, None, None)
    """
    return value if 0.0 <= value <= most else None


def statistics(usage: str, values: Sequence[float], average: float | None = None) -> SampleColumns:
    """The statistics of `values`, which are in order of time. A single value has no percentile and
    no maximum, because it may be an average itself."""
    if not values:
        return {}
    mean = math.fsum(values) / len(values) if average is None else average
    columns = {f"{usage}_avg": mean, f"{usage}_last": values[-1]}
    if len(values) > 1:
        ascending = sorted(values)
        columns[f"{usage}_max"] = ascending[-1]
        for label, percent in _PERCENTILES:
            rank = len(ascending) * percent // 100
            columns[f"{usage}_{label}"] = ascending[max(0, rank - 1)]
    return columns


def points(window: TimeWindow, cpu_cores: TimedValues, memory_bytes: TimedValues) -> SampleColumns:
    """The points of a node, by seconds after the window's start; null where one is missing."""
    times = sorted(cpu_cores.keys() | memory_bytes.keys())
    return {
        "points_offset_seconds": [(time_ms - window.start_ms) / 1000 for time_ms in times],
        "points_cpu_cores": [cpu_cores.get(time_ms) for time_ms in times],
        "points_memory_bytes": [memory_bytes.get(time_ms) for time_ms in times],
    }
