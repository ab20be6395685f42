"""From the rows of a window to arrays: what models learn from and what is reported as usage.

The one place that knows both the columns of `springtide.windows` and the arrays of the model bank.
Usage arrays have two columns, cpu in cores and memory in bytes; NaN is unknown.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.join.system_usage import remainder
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model.model_config import PLAUSIBLE, NodeWindow
from pipeline.processors.model.pairs import paired, pairs
from pipeline.processors.model.reclaimable import TO_KUBERNETES, sum_by
from pipeline.topics.known_columns import CREATED, Known
from pipeline.topics.resource_amounts import RATES, Resources
from pipeline.topics.sample_rows import Listing
from pipeline.topics.samples import KINDS, LIST_COLUMNS, SYSTEM_TIER
from pipeline.topics.windows import Window, WindowRows

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

_TIER, _HOST_APP = KINDS.index("tier"), KINDS.index("host_app")
_NO_POINTS: Final = np.zeros((0, 3))
_MOST_MILLICORES, _MOST_BYTES = (PLAUSIBLE * TO_KUBERNETES).tolist()


@dataclass(frozen=True, slots=True, eq=False)
class EntityFacts:
    """What the entities in `listing` and what is known of them say, n pods in order of their UIDs:
    `pods` (n,) are their rows, `hosts` those of host applications, `system` (0 or 1,) that of the
    system remainder. `created` (n,) is Unix time, None where `stated_ages` are all that is known.
    """

    listing: Listing
    pods: IntArray
    hosts: IntArray
    system: IntArray
    classes: npt.NDArray[np.int8]
    requests: FloatArray
    active: npt.NDArray[np.bool_]
    ended: npt.NDArray[np.bool_]
    listed: npt.NDArray[np.bool_]
    exclusive: npt.NDArray[np.bool_]
    created: FloatArray | None
    stated_ages: FloatArray

    def ages(self, end_ms: int) -> FloatArray:
        """Seconds from each pod's creation to the end of a window, (n,), NaN is unknown."""
        if self.created is None:
            return self.stated_ages
        return np.maximum(end_ms / 1000 - self.created, 0.0)


@dataclass(frozen=True, slots=True)
class WindowUsage:
    """Averages over the whole window: node (2,), pods (n, 2), host applications summed (2,) and
    the system remainder (2,). A pod that lived for half of it counts half of what it used then;
    `pods_seen` (n, 2) is what it used while it lived.

    `classes` (classes, 2) are the sums of what is known of the pods of each class, unknown if
    nothing is; `class_pods` (classes,) says how many there are. `hosts` (m, 2) are the host
    applications one by one, `rates` (4,) what else the node used, in the order of `RATES`, and
    `facts` what is known of the pods, n of them in the same order.
    """

    facts: EntityFacts

    node: FloatArray
    system: FloatArray
    pods: FloatArray
    pods_seen: FloatArray
    pod_classes: npt.NDArray[np.int8]
    classes: FloatArray
    class_pods: IntArray
    host_apps: FloatArray
    hosts: FloatArray
    rates: FloatArray
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
    whole = usage * pairs(rows.shares)
    pods, seen = whole.take(rows.pods, axis=0), usage.take(rows.pods, axis=0)
    sums, counts = _by_class(rows, pods)
    hosts = whole.take(rows.hosts, axis=0)
    node, host_apps = usage[rows.nodes], rows.sums(whole, rows.hosts)
    system = _system(rows, usage, usage, whole)
    rates = np.stack([rows.number(name)[rows.nodes] for name in RATES.values()], axis=1)
    coverages = rows.coverages.tolist()
    return [
        WindowUsage(
            facts=facts,
            node=node[i],
            system=system[i],
            pods=pods[own],
            pods_seen=seen[own],
            pod_classes=facts.classes,
            classes=sums[i],
            class_pods=counts[i],
            host_apps=host_apps[i],
            hosts=hosts[own_hosts],
            rates=rates[i],
            coverage=coverages[i],
        )
        for i, (facts, own, own_hosts) in enumerate(
            zip(rows.facts, rows.own_pods, rows.own_hosts, strict=True)
        )
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
    pods, seen = usage.take(rows.pods, axis=0), rows.seen.take(rows.pods)
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
            pod_classes=facts.classes,
            pods=pods[own],
            pod_coverages=seen[own],
            requests=facts.requests,
            pod_ages=facts.ages(window.header.window_end_ms),
            pod_active=facts.active,
            pod_ended=facts.ended,
        )
        for i, (window, facts, own) in enumerate(
            zip(windows, rows.facts, rows.own_pods, strict=True)
        )
    ]


_facts: WeakKeyDictionary[Known, EntityFacts] = WeakKeyDictionary()


def _facts_of(rows: WindowRows) -> EntityFacts:
    """The facts of a window's rows: the same object for windows that share what is known, as those
    of a node do until a pod of it changes."""
    listing, known = rows.listing, rows.known
    found = _facts.get(known)
    if found is None or found.listing is not listing:
        found = _facts[known] = _read_facts(listing, known)
    return found


def _read_facts(listing: Listing, known: Known) -> EntityFacts:
    # Sums run in this order: in which one a sample has its rows changes none.
    pods = listing.pods.astype(np.int64)
    tiers = np.flatnonzero(listing.kinds == _TIER).tolist()
    ended = known.ended.take(pods)
    has_times = CREATED.name in known.batch.schema.names
    return EntityFacts(
        listing=listing,
        pods=pods,
        hosts=np.flatnonzero(listing.kinds == _HOST_APP),
        system=np.array([row for row in tiers if listing.ids[row] == SYSTEM_TIER], np.int64),
        classes=known.classes.take(pods),
        requests=paired(
            known.number("request_cpu_millicores").take(pods),
            known.number("request_memory_bytes").take(pods),
        ),
        active=~(ended | known.deleting.take(pods)),
        ended=ended,
        listed=known.listed.take(pods),
        exclusive=known.exclusive.take(pods),
        created=known.number(CREATED.name).take(pods) if has_times else None,
        stated_ages=known.number("age_seconds").take(pods),
    )


class _Rows:
    """The rows of some windows, one after the other.

    `window_of` (rows,) numbers the window of each, `facts` are those of each window; `nodes`,
    `pods` and `hosts` are the rows of these kinds, the pods of a window in order of their UIDs, and
    `own_pods` and `own_hosts` which of these are of each window. `seen` (rows,) is the part of its
    window in which each entity was seen, `coverages` (windows,) that of the nodes, 0 where it is
    unknown; `shares` (rows,) is the part of its node's time in which each row was, 0..1.
    """

    def __init__(self, windows: Sequence[Window]) -> None:
        self._rows = [window.rows for window in windows]
        self._places = self._rows[0].sample.places
        self._alike = all(rows.sample.places is self._places for rows in self._rows)
        self.facts = [_facts_of(rows) for rows in self._rows]
        lengths = [rows.num_rows for rows in self._rows]
        self._starts = np.array([0, *accumulate(lengths[:-1])], np.int64)
        self.window_of = np.arange(len(lengths)).repeat(lengths)
        self.nodes = self._starts + [facts.listing.node for facts in self.facts]
        self.pods = self._placed([facts.pods for facts in self.facts])
        self.hosts = self._placed([facts.hosts for facts in self.facts])
        self.own_pods = _slices([len(facts.pods) for facts in self.facts])
        self.own_hosts = _slices([len(facts.hosts) for facts in self.facts])
        self.seen = self.number("coverage")
        own = self.seen[self.nodes]
        self.coverages = np.where(np.isnan(own), 0.0, own)
        of_node = self.coverages.take(self.window_of)
        # As long as the node where it is not known.
        seen = np.fmin(self.seen, of_node)
        self.shares = np.divide(seen, of_node, out=np.ones(len(seen)), where=of_node > 0.0)

    def __len__(self) -> int:
        """Windows."""
        return len(self._rows)

    def _placed(self, rows: list[IntArray]) -> IntArray:
        """Rows of each window as rows of all."""
        return np.concatenate(rows) + self._starts.repeat([len(own) for own in rows])

    def number(self, name: str) -> FloatArray:
        """A column of the samples' numbers (rows,), NaN is unknown."""
        if not self._alike:
            return np.concatenate([rows.sample.number(name) for rows in self._rows])
        place = self._places.get(name)
        if place is None:
            return np.full(len(self.window_of), np.nan)
        return np.concatenate([rows.sample.numbers[place] for rows in self._rows])

    def usage(self, statistic: str, memory_policy: str) -> FloatArray:
        """One statistic of every row, (rows, 2), or what stands in for it (`INSTEAD`)."""
        memory = self._stated("memory_bytes", statistic)
        if (asked := MEMORY_COLUMNS[memory_policy]) != "memory_bytes":
            found = self._stated(asked, statistic)
            memory = np.where(np.isnan(found), memory, found)
        return paired(self._stated("cpu_cores", statistic), memory)

    def _stated(self, usage: str, statistic: str) -> FloatArray:
        values = self.number(f"{usage}_{statistic}")
        for other in INSTEAD[statistic]:
            missing = np.isnan(values)
            if not missing.any():
                break
            values = np.where(missing, self.number(f"{usage}_{other}"), values)
        return values

    def sums(self, usage: FloatArray, at: IntArray) -> FloatArray:
        """Of each window the sum (2,) of the rows `at` that it has, from the first to the last."""
        return sum_by(self.window_of.take(at), usage.take(at, axis=0), len(self))

    def system_rows(self) -> IntArray:
        """The rows that are the system remainder as the exporter measured it, where they speak for
        at least half of the node's time; at most one of a window."""
        found = self._placed([facts.system for facts in self.facts])
        return found[self.shares[found] >= 0.5]


def _slices(lengths: Sequence[int]) -> list[slice]:
    """Where each of these lengths lies, one after the other."""
    return [slice(start, end) for start, end in pairwise(accumulate(lengths, initial=0))]


def _by_class(rows: _Rows, pods: FloatArray) -> tuple[FloatArray, IntArray]:
    """Of each window and class what is known of its pods in sum, (windows, classes, 2), NaN where
    nothing is, and how many pods there are, (windows, classes)."""
    shape = (len(rows), len(CLASSES))
    size = shape[0] * shape[1]
    classes = np.concatenate([facts.classes for facts in rows.facts])
    groups = rows.window_of.take(rows.pods) * len(CLASSES) + classes
    counts = np.bincount(groups, minlength=size)
    known = ~np.isnan(pods)
    if known.all():
        sums, some = sum_by(groups, pods, size), counts[:, None] > 0
    else:
        sums = sum_by(groups, np.where(known, pods, 0.0), size)
        some = sum_by(groups, known.astype(np.float64), size) > 0.0
    return np.where(some, sums, np.nan).reshape(*shape, 2), counts.reshape(shape)


def _system(rows: _Rows, usage: FloatArray, average: FloatArray, whole: FloatArray) -> FloatArray:
    """What the system used, (windows, 2): its `usage` as it was measured, else what of the node's
    `average` pods and host applications leave over the `whole` window. Where a pod's usage is
    unknown so is the rest: its part would pass for the system's."""
    pods, hosts = rows.sums(whole, rows.pods), rows.sums(whole, rows.hosts)
    used = remainder(average[rows.nodes], pods, hosts)
    measured = rows.system_rows()
    used[rows.window_of[measured]] = usage[measured]
    return used


def _system_sample(rows: _Rows, usage: FloatArray, memory_policy: str) -> FloatArray:
    """The system's statistic, (windows, 2). Percentiles do not add: where it was not measured, it
    is what averages leave."""
    measured = rows.system_rows()
    if len(measured) == len(rows):
        return usage[measured]
    average = rows.usage("avg", memory_policy)
    return _system(rows, usage, average, average * pairs(rows.shares))


def amounts(resources: Resources) -> tuple[float, float]:
    """Millicores and bytes; NaN where not stated, negative or beyond belief."""
    millicores, size = resources.cpu_millicores, resources.memory_bytes
    return _believed(millicores, _MOST_MILLICORES), _believed(size, _MOST_BYTES)


def _believed(amount: int | None, most: float) -> float:
    return math.nan if amount is None or not 0 <= amount <= most else float(amount)


def _points(rows: WindowRows, memory_policy: str) -> FloatArray:
    """What was measured of the node itself, (m, 3): seconds after the window's start, cores, bytes.

    Points know memory without page cache; where the window reports another figure, they know none.
    """
    offsets = rows.sample.points(LIST_COLUMNS[0])
    if len(offsets) == 0:
        return _NO_POINTS
    usages = [rows.sample.points(name) for name in LIST_COLUMNS[1:]]
    points = np.full((len(offsets), 3), np.nan)
    points[:, 0] = offsets
    asked = MEMORY_COLUMNS[memory_policy]
    plain = asked == "memory_bytes" or np.isnan(rows.number(f"{asked}_avg")[rows.listing.node])
    for r, usage in enumerate(usages if plain else usages[:1]):
        if len(usage) == len(offsets):
            points[:, r + 1] = usage
    return points
