"""Usage of one window as any source gives it: columns of samples, by node and by pod.

Owes the rest: what is not known is not there, or null; a number that no machine can have is null
and counted. Percentiles are by rank, as those of the exporter.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pipeline.processors.model.model_config import PLAUSIBLE

MAX_CPU_CORES, MAX_BYTES = float(PLAUSIBLE[0]), float(PLAUSIBLE[1])
_PERCENTILES: Final = (("p90", 90), ("p95", 95))

Columns = dict[str, Any]
Points = Mapping[int, float]
"""Values by their time in milliseconds, in the order of time."""


class Window(NamedTuple):
    """The span (start, end] in milliseconds since 1970; it lies on the grid of its length."""

    start_ms: int
    end_ms: int

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.end_ms - self.start_ms) / 1000

    def has(self, at_ms: int) -> bool:
        """Whether a moment belongs to it."""
        return self.start_ms < at_ms <= self.end_ms


class PodName(NamedTuple):
    """A pod as a source names it, "" where it does not: `uid` is that of its cgroup."""

    namespace: str
    name: str
    uid: str = ""
    node: str = ""


@dataclass(slots=True)
class Fetched:
    """What a source gives of one window.

    `nodes` and `pods` are columns of samples by who has them. `bad_values` counts, by column, the
    numbers that were made null; `left_out` counts entities and readings that are not used, by
    reason; `failed` says why a column could not be had. Without `knows_pods` nothing was learned of
    any pod, which is not to say that there are none.
    """

    nodes: dict[str, Columns] = field(default_factory=dict)
    pods: dict[PodName, Columns] = field(default_factory=dict)
    bad_values: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    unknown_nodes: set[str] = field(default_factory=set)
    knows_pods: bool = True


def window_before(at_ms: int, length_ms: int) -> Window:
    """The last window of this length that has ended.

    >>> window_before(125_000, 60_000)
    Window(start_ms=60000, end_ms=120000)
    """
    end_ms = at_ms // length_ms * length_ms
    return Window(end_ms - length_ms, end_ms)


def largest(column: str) -> float:
    """The most that is believed of a column of samples."""
    if column.startswith("pressure_") or column.endswith("_ratio"):
        return 1.0
    return MAX_CPU_CORES if "cpu_cores" in column else MAX_BYTES


def believed(value: float, most: float) -> float | None:
    """`value`, or None if no machine can have it.

    >>> believed(0.5, 1e6), believed(-1.0, 1e6), believed(float("nan"), 1e6)
    (0.5, None, None)
    """
    return value if 0.0 <= value <= most else None


def statistics(usage: str, values: Sequence[float], average: float | None = None) -> Columns:
    """The statistics of `values`, in the order of time. Of a single value there is neither a
    percentile nor a maximum: what it is the average of is not known."""
    if not values:
        return {}
    mean = math.fsum(values) / len(values) if average is None else average
    found = {f"{usage}_avg": mean, f"{usage}_last": values[-1]}
    if len(values) > 1:
        ascending = sorted(values)
        found[f"{usage}_max"] = ascending[-1]
        for label, percent in _PERCENTILES:
            rank = len(ascending) * percent // 100
            found[f"{usage}_{label}"] = ascending[max(0, rank - 1)]
    return found


def points(window: Window, cpu_cores: Points, memory_bytes: Points) -> Columns:
    """The points of a node, seconds after the window's start, null where one of both is missing."""
    times = sorted(cpu_cores.keys() | memory_bytes.keys())
    return {
        "points_offset_seconds": [(at - window.start_ms) / 1000 for at in times],
        "points_cpu_cores": [cpu_cores.get(at) for at in times],
        "points_memory_bytes": [memory_bytes.get(at) for at in times],
    }
