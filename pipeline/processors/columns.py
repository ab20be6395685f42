"""From the rows of a window to arrays: what models learn from and what is reported as usage.

The one place that knows both the columns of `springtide.windows` and the arrays of the model bank.
Usage arrays have two columns, cpu in cores and memory in bytes; NaN is unknown.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.processors.classes import CLASSES
from pipeline.processors.reclaimable import TO_KUBERNETES, sum_by
from pipeline.processors.system_usage import remainder
from pipeline.processors.window import PLAUSIBLE, NodeWindow
from pipeline.topics.resources import Resources
from pipeline.topics.samples import KINDS, LIST_COLUMNS, SYSTEM_TIER
from pipeline.topics.windows import Window, WindowRows

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MEMORY_COLUMNS: Final = {
    "usageWithoutPageCache": "memory_bytes",
    "usageWithPageCache": "memory_with_page_cache_bytes",
    "usageWithHotPageCache": "memory_with_hot_page_cache_bytes",
}
"""Column of each memory collect policy. Where a kernel does not give the one asked for, memory
without page cache stands in, as the field does."""

INSTEAD: Final = {
    "avg": ("last", "p90", "p95", "max"),
    "p90": ("p95", "max", "avg", "last"),
    "p95": ("max", "p90", "avg", "last"),
    "max": ("p95", "p90", "avg", "last"),
    "last": ("avg", "p90", "p95", "max"),
}
"""What stands in for a statistic that a source does not state, the first that it does: of a high
one the next that does not understate, then what is nearest."""

_MOST_MILLICORES, _MOST_BYTES = (PLAUSIBLE * TO_KUBERNETES).tolist()


@dataclass(frozen=True, slots=True)
class WindowUsage:
    """Averages over the whole window: node (2,), pods (n, 2), host applications summed (2,) and
    the system remainder (2,). A pod that lived for half of it counts half of what it used then.

    `classes` (classes, 2) are the sums of what is known of the pods of each class, unknown if
    nothing is; `class_pods` (classes,) says how many there are.
    """

    node: Floats
    system: Floats
    pods: Floats
    pod_classes: npt.NDArray[np.int8]
    classes: Floats
    class_pods: Ints
    host_apps: Floats
    coverage: float


def window_usage(window: Window, memory_policy: str) -> WindowUsage:
    """What was used on average in this window."""
    return window_usages([window], memory_policy)[0]


def window_usages(windows: Sequence[Window], memory_policy: str) -> list[WindowUsage]:
    """What was used on average in each of these windows, read side by side."""
    if not windows:
        return []
    rows = _Rows(windows)
    usage = rows.usage("avg", memory_policy)
    whole = usage * rows.shares[:, None]
    pods, classes = whole[rows.pods], rows.classes()
    sums, counts = _by_class(rows, pods, classes)
    node, host_apps = usage[rows.nodes], rows.sums(whole, rows.hosts)
    system = _system_usage(rows, usage, whole)
    coverages = rows.coverages.tolist()
    return [
        WindowUsage(
            node=node[i],
            system=system[i],
            pods=pods[own],
            pod_classes=classes[own],
            classes=sums[i],
            class_pods=counts[i],
            host_apps=host_apps[i],
            coverage=coverages[i],
        )
        for i, own in enumerate(rows.own_pods())
    ]


def node_window(window: Window, statistic: str, memory_policy: str) -> NodeWindow:
    """The window as the model bank takes it, with `statistic` as the sample of each entity."""
    return node_windows([window], statistic, memory_policy)[0]


def node_windows(windows: Sequence[Window], statistic: str, memory_policy: str) -> list[NodeWindow]:
    """The windows as the model bank takes them, read side by side."""
    if not windows:
        return []
    rows = _Rows(windows)
    usage = rows.usage(statistic, memory_policy)
    node, host_apps = usage[rows.nodes], rows.sums(usage, rows.hosts)
    system = _system_sample(rows, usage, memory_policy)
    coverages = rows.coverages.tolist()
    pods, classes = usage[rows.pods], rows.classes()
    requests = np.column_stack(
        [rows.number("request_cpu_millicores"), rows.number("request_memory_bytes")]
    )[rows.pods]
    seen, ages = rows.number("coverage")[rows.pods], rows.number("age_seconds")[rows.pods]
    ended, deleting = rows.ended(), rows.deleting()
    active = ~(ended | deleting)
    allocatable = np.array([amounts(window.node.allocatable) for window in windows])
    return [
        NodeWindow(
            node=window.header.node,
            machine_id=window.header.machine_id,
            epoch=window.header.epoch,
            start_ms=window.header.window_start_ms,
            end_ms=window.header.window_end_ms,
            coverage=coverages[i],
            node_usage=node[i],
            host_apps=host_apps[i],
            system_usage=system[i],
            points=_points(window.rows, memory_policy),
            allocatable=allocatable[i],
            strategy=window.node.strategy,
            pod_uids=window.rows.listing.uids,
            pod_classes=classes[own],
            pods=pods[own],
            pod_coverages=seen[own],
            requests=requests[own],
            pod_ages=ages[own],
            pod_active=active[own],
            pod_ended=ended[own],
        )
        for i, (window, own) in enumerate(zip(windows, rows.own_pods(), strict=True))
    ]


class _Rows:
    """The rows of some windows, one after the other.

    `window_of` (rows,) numbers the window of each; `nodes`, `pods` and `hosts` are the rows of
    these kinds, the pods of a window in order of their UIDs. `coverages` (windows,) is the part of
    its window in which each node was seen, `shares` (rows,) the part of its node's time in which
    each row was, 0..1.
    """

    def __init__(self, windows: Sequence[Window]) -> None:
        self._rows = [window.rows for window in windows]
        lengths = [rows.num_rows for rows in self._rows]
        self._starts = [0, *accumulate(lengths)]
        self.window_of = np.repeat(np.arange(len(lengths)), lengths)
        kinds = np.concatenate([rows.listing.kinds for rows in self._rows])
        self.nodes, _, self._tiers, self.hosts = (
            np.flatnonzero(kinds == code) for code in range(len(KINDS))
        )
        listings = zip(self._rows, self._starts[:-1], strict=True)
        # Sums run in this order: in which one a sample has its rows changes none.
        self.pods: Ints = np.concatenate(
            [rows.listing.pods + start for rows, start in listings], dtype=np.int64
        )
        coverages = self.number("coverage")
        own = coverages[self.nodes]
        self.coverages = np.where(np.isnan(own), 0.0, own)
        of_node = self.coverages[self.window_of]
        seen = np.minimum(np.where(np.isnan(coverages), of_node, coverages), of_node)
        self.shares = np.divide(seen, of_node, out=np.ones(len(seen)), where=of_node > 0.0)

    def __len__(self) -> int:
        """Windows."""
        return len(self._rows)

    def number(self, name: str) -> Floats:
        """A column of numbers (rows,), NaN is unknown."""
        return np.concatenate([rows.number(name) for rows in self._rows])

    def usage(self, statistic: str, memory_policy: str) -> Floats:
        """One statistic of every row, (rows, 2), or what stands in for it (`INSTEAD`)."""
        memory = self._stated("memory_bytes", statistic)
        if (asked := MEMORY_COLUMNS[memory_policy]) != "memory_bytes":
            found = self._stated(asked, statistic)
            memory = np.where(np.isnan(found), memory, found)
        return np.column_stack([self._stated("cpu_cores", statistic), memory])

    def _stated(self, usage: str, statistic: str) -> Floats:
        values = self.number(f"{usage}_{statistic}")
        for other in INSTEAD[statistic]:
            missing = np.isnan(values)
            if not missing.any():
                break
            values = np.where(missing, self.number(f"{usage}_{other}"), values)
        return values

    def sums(self, usage: Floats, at: Ints) -> Floats:
        """Of each window the sum (2,) of the rows `at` that it has, from the first to the last."""
        return sum_by(self.window_of[at], usage[at], len(self._rows))

    def classes(self) -> npt.NDArray[np.int8]:
        """The class of each pod, by code."""
        return np.concatenate([rows.known.classes for rows in self._rows]).take(self.pods)

    def deleting(self) -> npt.NDArray[np.bool_]:
        """Which pods are being deleted."""
        return np.concatenate([rows.known.deleting for rows in self._rows]).take(self.pods)

    def ended(self) -> npt.NDArray[np.bool_]:
        """Which pods have ended."""
        return np.concatenate([rows.known.ended for rows in self._rows]).take(self.pods)

    def own_pods(self) -> Iterator[slice]:
        """Of each window which of `pods` are its own."""
        ends = np.searchsorted(self.window_of[self.pods], np.arange(len(self._rows)), "right")
        return (slice(start, end) for start, end in pairwise([0, *ends.tolist()]))

    def system_rows(self) -> Ints:
        """The rows that are the system remainder as the exporter measured it, where they speak for
        at least half of the node's time; at most one of a window."""
        trusted = self._tiers[self.shares[self._tiers] >= 0.5]
        places = zip(trusted.tolist(), self.window_of[trusted].tolist(), strict=True)
        found = [
            row
            for row, window in places
            if self._rows[window].listing.ids[row - self._starts[window]] == SYSTEM_TIER
        ]
        return np.array(found, np.int64)


def _by_class(rows: _Rows, pods: Floats, classes: npt.NDArray[np.int8]) -> tuple[Floats, Ints]:
    """Of each window and class what is known of its pods in sum, (windows, classes, 2), NaN where
    nothing is, and how many pods there are, (windows, classes)."""
    shape = (len(rows), len(CLASSES))
    groups, size = rows.window_of[rows.pods] * len(CLASSES) + classes, shape[0] * shape[1]
    known = ~np.isnan(pods)
    sums = sum_by(groups, np.where(known, pods, 0.0), size)
    some = sum_by(groups, known.astype(np.float64), size) > 0.0
    counts = np.bincount(groups, minlength=size)
    return np.where(some, sums, np.nan).reshape(*shape, 2), counts.reshape(shape)


def _system_usage(rows: _Rows, usage: Floats, whole: Floats) -> Floats:
    """The average of the system remainder, (windows, 2): as it was measured, else what the averages
    leave. Where a pod's usage is unknown so is the rest: its part would pass for the system's."""
    used = remainder(usage[rows.nodes], rows.sums(whole, rows.pods), rows.sums(whole, rows.hosts))
    measured = rows.system_rows()
    used[rows.window_of[measured]] = usage[measured]
    return used


def _system_sample(rows: _Rows, usage: Floats, memory_policy: str) -> Floats:
    """The system's statistic, (windows, 2). Percentiles do not add: where it was not measured, it
    is what averages leave."""
    measured = rows.system_rows()
    if len(measured) == len(rows):
        return usage[measured]
    average = rows.usage("avg", memory_policy)
    used = _system_usage(rows, average, average * rows.shares[:, None])
    used[rows.window_of[measured]] = usage[measured]
    return used


def amounts(resources: Resources) -> tuple[float, float]:
    """Millicores and bytes; NaN where not stated, negative or beyond belief."""
    millicores, size = resources.cpu_millicores, resources.memory_bytes
    return _believed(millicores, _MOST_MILLICORES), _believed(size, _MOST_BYTES)


def _believed(amount: int | None, most: float) -> float:
    return math.nan if amount is None or not 0 <= amount <= most else float(amount)


def _points(rows: WindowRows, memory_policy: str) -> Floats:
    """What was measured of the node itself, (m, 3): seconds after the window's start, cores, bytes.

    Points know memory without page cache; where the window reports another figure, they know none.
    """
    offsets, *usages = (rows.sample.points(name) for name in LIST_COLUMNS)
    points = np.full((len(offsets), 3), np.nan)
    points[:, 0] = offsets
    asked = MEMORY_COLUMNS[memory_policy]
    plain = asked == "memory_bytes" or np.isnan(rows.number(f"{asked}_avg")[rows.listing.node])
    for r, usage in enumerate(usages if plain else usages[:1]):
        if len(usage) == len(offsets):
            points[:, r + 1] = usage
    return points
