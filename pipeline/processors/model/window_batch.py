"""Read decoded windows into columns: samples for the models, average usage for the results.

Only this module knows both the columns of `springtide.windows` and those of the model bank, so that
either may change alone. Windows are read once: models, node states and resources share the arrays.
Usage arrays have two columns, cpu in cores and memory in bytes; NaN is unknown.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise, repeat
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model.model_config import MAX_USAGE
from pipeline.processors.model.resource_pairs import (
    TO_KUBERNETES,
    column_pair,
    group_sums,
    per_resource,
)
from pipeline.processors.model.training_batch import (
    ListedPods,
    TrainingBatch,
    WindowHead,
    listed_pods,
    system_remainder,
)
from pipeline.topics.pod_columns import PodColumns
from pipeline.topics.resource_amounts import RATES, Resources
from pipeline.topics.sample_rows import Listing
from pipeline.topics.samples import KINDS, SYSTEM_TIER
from pipeline.topics.windows import Window, WindowRows

MEMORY_COLUMNS: Final = {
    "usageWithoutPageCache": "memory_bytes",
    "usageWithPageCache": "memory_with_page_cache_bytes",
    "usageWithHotPageCache": "memory_with_hot_page_cache_bytes",
}
"""Column of each memory collect policy. Where a kernel does not measure it, memory without page
cache stands in, as in Koordinator."""

SUBSTITUTES: Final = {
    "avg": ("last", "p90", "p95", "max"),
    "p90": ("p95", "max", "avg", "last"),
    "p95": ("max", "p90", "avg", "last"),
    "max": ("p95", "p90", "avg", "last"),
    "last": ("avg", "p90", "p95", "max"),
}
"""Statistics that stand in for one that a source does not state, in this order: first those that
do not understate a high statistic, then the nearest."""

_TIER, _HOST_APP = KINDS.index("tier"), KINDS.index("host_app")
_MOST_MILLICORES, _MOST_BYTES = (MAX_USAGE * TO_KUBERNETES).tolist()


@dataclass(frozen=True, slots=True, eq=False)
class EntityFacts:
    """Row numbers of the entities in a sample, and what is known of its n pods, by UID.

    `rows` (n,) are the pods' rows, `hosts` those of host applications, `system` (0 or 1,) that of
    the system remainder. `running` (n,) marks pods that run or are about to, `exclusive` (n,)
    those with CPUs of their own. `created` (n,) is Unix time, NaN is unknown.
    """

    listing: Listing
    rows: IntArray
    hosts: IntArray
    system: IntArray
    pods: ListedPods
    running: BoolArray
    exclusive: BoolArray
    created: FloatArray

    def ages(self, end_ms: int) -> FloatArray:
        """Seconds from each pod's creation to the end of a window, (n,)."""
        return np.maximum(end_ms / 1000 - self.created, 0.0)


_facts: WeakKeyDictionary[PodColumns, EntityFacts] = WeakKeyDictionary()


def _facts_of(rows: WindowRows) -> EntityFacts:
    """The facts of a window's rows; one object for windows that share their `PodColumns`, as
    those of a node do until one of its pods changes."""
    listing, pods = rows.listing, rows.pods
    facts = _facts.get(pods)
    if facts is None or facts.listing is not listing:
        facts = _facts[pods] = _read_facts(listing, pods)
    return facts


def _read_facts(listing: Listing, pods: PodColumns) -> EntityFacts:
    tiers = np.flatnonzero(listing.kinds == _TIER).tolist()
    return EntityFacts(
        listing=listing,
        rows=listing.pods.astype(np.int64, copy=False),
        hosts=np.flatnonzero(listing.kinds == _HOST_APP),
        system=np.array([row for row in tiers if listing.ids[row] == SYSTEM_TIER], np.int64),
        pods=listed_pods(
            listing.uids,
            pods.classes,
            pods.requests,
            ~(pods.ended | pods.terminating),
            pods.ended,
            pods.workloads,
            *_containers(listing, pods),
        ),
        running=pods.listed,
        exclusive=pods.exclusive,
        created=pods.created,
    )


def _containers(
    listing: Listing, pods: PodColumns
) -> tuple[tuple[tuple[str, str | None], ...], tuple[str | None, ...]]:
    """`containers` and `only_containers` of `ListedPods`."""
    measured: list[tuple[str, str | None]] = []
    only: list[str | None] = []
    names_of = pods.container_names or repeat(None)
    ids_of = listing.container_ids or repeat(())
    for uid, ids, names in zip(listing.uids, ids_of, names_of, strict=False):
        measured += zip(repeat(uid), names or repeat(None, len(ids)), strict=False) if ids else ()
        only.append(names[0] if names and not ids else None)
    return tuple(measured), tuple(only) if any(only) else ()


@dataclass(frozen=True, slots=True)
class AverageUsage:
    """Averages over whole windows: a pod that lived for half of one counts half of its usage.

    `node`, `system` (the remainder) and `host_apps` (their sum) are (n, 2), `rates` (n, 4) in the
    order of `RATES`, `gauges` those of each node that are known. `classes` (n, classes, 2) are the
    sums over those pods of a class whose usage is known, NaN if there are none; `class_pods` (n,
    classes) counts all its pods. `pods` (p, 2) and `hosts` (h, 2) are of all windows in their
    order; `pods_alive` (p, 2) is what a pod used while it lived.
    """

    node: FloatArray
    system: FloatArray
    host_apps: FloatArray
    rates: FloatArray
    gauges: Sequence[Mapping[str, float]]
    classes: FloatArray
    class_pods: IntArray
    pods: FloatArray
    pods_alive: FloatArray
    hosts: FloatArray


class WindowBatch:
    """Columns of n windows, at least one, read once for learning, node states and resources.

    `facts` are those of each window, `coverage` (n,) the share of each that was measured, 0 where
    it is unknown. Pods of all windows follow each other, those of one window by UID: `window_index`
    (p,) is the window of each, `pod_slices` are the places of each window's pods, `host_slices`
    those of its host applications. Memory is the figure that the strategy of each window selects.
    """

    def __init__(self, windows: Sequence[Window]) -> None:
        self.windows = windows
        self._memory_policies = [w.node.strategy.memory_collect_policy for w in windows]
        self._samples = [window.rows.sample for window in windows]
        self._statistic_rows = rows = self._samples[0].statistic_rows
        self._share_statistics = all(sample.statistic_rows is rows for sample in self._samples)
        self.facts = [_facts_of(window.rows) for window in windows]
        lengths = [len(sample) for sample in self._samples]
        self._starts = np.array([0, *accumulate(lengths[:-1])], np.int64)
        self._window_index_of_row = np.arange(len(lengths)).repeat(lengths)
        self.node_rows = self._starts + [facts.listing.node for facts in self.facts]
        self.pod_rows = self._batch_rows([facts.rows for facts in self.facts])
        self._hosts = self._batch_rows([facts.hosts for facts in self.facts])
        self.window_index = self._window_index_of_row.take(self.pod_rows)
        self.pod_slices = _slices([len(facts.rows) for facts in self.facts])
        self.host_slices = _slices([len(facts.hosts) for facts in self.facts])
        self._seen = self.number("coverage")
        node_coverage = self._seen[self.node_rows]
        self.coverage = np.where(np.isnan(node_coverage), 0.0, node_coverage)
        coverage = self.coverage.take(self._window_index_of_row)
        # A row of unknown coverage was seen as long as the node.
        seen = np.fmin(self._seen, coverage)
        self._shares = np.divide(seen, coverage, out=np.ones(len(seen)), where=coverage > 0.0)

    def number(self, name: str) -> FloatArray:
        """One of `NUMBER_COLUMNS`, (rows,), NaN unknown: take its `node_rows` or `pod_rows`."""
        if not self._share_statistics:
            return np.concatenate([sample.number(name) for sample in self._samples])
        row = self._statistic_rows.get(name)
        if row is None:
            return np.full(len(self._window_index_of_row), np.nan)
        return np.concatenate([sample.numbers[row] for sample in self._samples])

    def __len__(self) -> int:
        """Windows."""
        return len(self.windows)

    def training(self, statistic: str) -> TrainingBatch:
        """The columns that the model bank takes, with `statistic` as the sample of each entity."""
        usage = self._usage(statistic)
        coverage = self.coverage.tolist()
        return TrainingBatch(
            heads=[
                WindowHead(
                    node=window.header.node,
                    machine_id=window.header.machine_id,
                    source=window.header.source,
                    epoch=window.header.epoch,
                    start_ms=window.header.window_start_ms,
                    end_ms=window.header.window_end_ms,
                    appended_ms=window.appended_ms,
                    coverage=coverage[i],
                    strategy=window.node.strategy,
                    points=_points(window.rows, self._memory_policies[i]),
                    pods=facts.pods,
                    pool_outcomes=window.node.pool_outcomes,
                    workload_histories=window.node.workload_histories,
                    oom_kills=window.node.oom_kills,
                )
                for i, (window, facts) in enumerate(zip(self.windows, self.facts, strict=True))
            ],
            allocatable=amounts([window.node.allocatable for window in self.windows]),
            node_usage=usage[self.node_rows],
            host_apps=self._sums(usage, self._hosts),
            system=self._system(usage),
            window_index=self.window_index,
            pod_usage=usage.take(self.pod_rows, axis=0),
            pod_coverage=self._seen.take(self.pod_rows),
            pod_ages=np.concatenate(
                [
                    facts.ages(window.header.window_end_ms)
                    for window, facts in zip(self.windows, self.facts, strict=True)
                ]
            ),
            container_usage=[sample.container_usage for sample in self._samples],
        )

    @cached_property
    def average(self) -> AverageUsage:
        """Average usage of the node, its pods and everything else."""
        usage, whole = self._average_rows, self._whole_rows
        pods = whole.take(self.pod_rows, axis=0)
        classes, class_pods = self._by_class(pods)
        return AverageUsage(
            node=usage[self.node_rows],
            system=self._system(usage),
            host_apps=self._sums(whole, self._hosts),
            rates=np.stack([self.number(name)[self.node_rows] for name in RATES.values()], axis=1),
            gauges=[sample.gauges for sample in self._samples],
            classes=classes,
            class_pods=class_pods,
            pods=pods,
            pods_alive=usage.take(self.pod_rows, axis=0),
            hosts=whole.take(self._hosts, axis=0),
        )

    def node_and_system(self, statistic: str) -> FloatArray:
        """One statistic of the node and of its system in each window, (n, 2, 2)."""
        usage = self._usage(statistic)
        return np.stack([usage[self.node_rows], self._system(usage)], axis=1)

    def select(self, positions: Sequence[int]) -> "WindowBatch":
        """The windows at these positions; this batch where these are all of them in order."""
        if [*positions] == [*range(len(self))]:
            return self
        return WindowBatch([self.windows[position] for position in positions])

    @cached_property
    def _average_rows(self) -> FloatArray:
        return self._usage("avg")

    @cached_property
    def _whole_rows(self) -> FloatArray:
        return np.asarray(self._average_rows * per_resource(self._shares))

    def _batch_rows(self, rows: list[IntArray]) -> IntArray:
        """Row numbers within each window as row numbers within all."""
        return np.concatenate(rows) + self._starts.repeat([len(own) for own in rows])

    def _usage(self, statistic: str) -> FloatArray:
        """One statistic of every row, (rows, 2), or what stands in for it."""
        return usage_of_rows(
            self.number, statistic, self._memory_policies, self._window_index_of_row
        )

    def _sums(self, usage: FloatArray, rows: IntArray) -> FloatArray:
        """The sum (n, 2) of these rows in each window, from the first to the last."""
        return group_sums(self._window_index_of_row.take(rows), usage.take(rows, axis=0), len(self))

    def _by_class(self, pods: FloatArray) -> tuple[FloatArray, IntArray]:
        """`classes` and `class_pods` of `AverageUsage`."""
        shape = (len(self), len(CLASSES))
        size = shape[0] * shape[1]
        classes = np.concatenate([facts.pods.classes for facts in self.facts])
        groups = self.window_index * len(CLASSES) + classes
        counts = np.bincount(groups, minlength=size)
        known = ~np.isnan(pods)
        if known.all():
            sums, some = group_sums(groups, pods, size), counts[:, None] > 0
        else:
            sums = group_sums(groups, np.where(known, pods, 0.0), size)
            some = group_sums(groups, known.astype(np.float64), size) > 0.0
        return np.where(some, sums, np.nan).reshape(*shape, 2), counts.reshape(shape)

    def _system(self, usage: FloatArray) -> FloatArray:
        """Usage of the system, (n, 2): its row of `usage` where the exporter measured it for at
        least half of the node's time, else what averages leave, for percentiles do not add.

        A pod of unknown usage leaves the rest unknown: its part would pass for the system's.
        """
        rows = self._batch_rows([facts.system for facts in self.facts])
        measured = rows[self._shares[rows] >= 0.5]
        if len(measured) == len(self):
            return usage[measured]
        whole = self._whole_rows
        pods, hosts = self._sums(whole, self.pod_rows), self._sums(whole, self._hosts)
        system = system_remainder(self._average_rows[self.node_rows], pods, hosts)
        system[self._window_index_of_row[measured]] = usage[measured]
        return system


def usage_of_rows(
    number: Callable[[str], FloatArray],
    statistic: str,
    memory_policies: Sequence[str],
    window_index: IntArray,
) -> FloatArray:
    """One statistic of m rows in cores and bytes, (m, 2), or what stands in for it (`SUBSTITUTES`).

    `number` returns one of `NUMBER_COLUMNS` (m,), NaN unknown. The policy of each window, to which
    `window_index` (m,) points, selects the figure of memory.
    """
    memory = _statistic(number, "memory_bytes", statistic)
    for policy in {*memory_policies} - {"usageWithoutPageCache"}:
        measured = _statistic(number, MEMORY_COLUMNS[policy], statistic)
        selected = np.array([own == policy for own in memory_policies])
        of_policy = selected.take(window_index) & ~np.isnan(measured)
        memory = np.where(of_policy, measured, memory)
    return column_pair(_statistic(number, "cpu_cores", statistic), memory)


def _statistic(number: Callable[[str], FloatArray], usage: str, statistic: str) -> FloatArray:
    """A statistic of one usage column, (m,), or what stands in for it."""
    values = number(f"{usage}_{statistic}")
    for other in SUBSTITUTES[statistic]:
        missing = np.isnan(values)
        if not missing.any():
            break
        values = np.where(missing, number(f"{usage}_{other}"), values)
    return values


def _slices(lengths: Sequence[int]) -> list[slice]:
    """The places of runs of these lengths, one after the other."""
    return [slice(start, end) for start, end in pairwise(accumulate(lengths, initial=0))]


def amounts(stated: Sequence[Resources]) -> FloatArray:
    """Millicores and bytes, (n, 2); NaN where not stated, negative or implausible."""
    return np.array([_amounts(resources) for resources in stated]).reshape(-1, 2)


@lru_cache(maxsize=1024)
def _amounts(resources: Resources) -> tuple[float, float]:
    millicores, size = resources.cpu_millicores, resources.memory_bytes
    return _plausible(millicores, _MOST_MILLICORES), _plausible(size, _MOST_BYTES)


def _plausible(amount: int | None, most: float) -> float:
    return math.nan if amount is None or not 0 <= amount <= most else float(amount)


def _points(rows: WindowRows, memory_policy: str) -> FloatArray:
    """Points measured of the node, (m, 3): seconds after the window's start, cores, bytes.

    The exporter measures points of memory without page cache only: bytes are NaN where the window
    reports another figure.
    """
    points = rows.sample.points
    column = MEMORY_COLUMNS[memory_policy]
    if column != "memory_bytes" and len(points):
        node = rows.sample.number(f"{column}_avg")[rows.listing.node]
        if not np.isnan(node):
            points = points.copy()
            points[:, 2] = np.nan
    return points
