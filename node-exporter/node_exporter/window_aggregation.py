"""Aggregate collections into windows and their rows.

A window (start, end] lies on the UTC grid and is identified by its end. CPU averages are counter
growth over observed time, so that no CPU time between two windows is lost; percentiles are taken by
rank over the collections.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from node_exporter.collection import NODE, Collection, ContainerGrowth, Entity, Stall, Usage
from node_exporter.kernel.formulas import average, rank_percentile
from node_exporter.kernel.parse_files import Throttling
from pipeline.settings.base import SECONDS_OF_A_DAY
from pipeline.topics.samples import (
    CONTAINERS,
    MAX_CONTAINERS,
    MAX_CONTAINERS_PER_POD,
    SampleContainer,
)

_PERCENTILES: Final = (("p90", Fraction(9, 10)), ("p95", Fraction(19, 20)))
_MEMORY_FIELDS: Final = (
    "memory_bytes",
    "memory_with_page_cache_bytes",
    "memory_with_hot_page_cache_bytes",
)
# A busy node wakes the exporter late; its windows must not lose coverage for it.
_MAX_GAP_INTERVALS: Final = 3
# Workers decide when windows end; longer windows would delay decisions.
_MAX_WINDOW_SECONDS: Final = 300

Row = dict[str, Any]


def window_end_ms(at_ms: int, window_ms: int) -> int:
    """End of the window that contains `at_ms`; a time on the grid is the end of its window."""
    return -(-at_ms // window_ms) * window_ms


def window_seconds_for(interval_seconds: float | None, default_seconds: int) -> int:
    """Window length for the report interval of the policy; None without a policy.

    It is the longest divisor of the interval and of a day, from the default length to five minutes,
    so that a window ends at every report. If there is none, the default is doubled while the result
    exceeds neither the interval nor five minutes.
    """
    length = default_seconds
    interval = interval_seconds or 0.0
    limit = min(interval, _MAX_WINDOW_SECONDS)
    if limit >= default_seconds:
        for seconds in range(int(limit), default_seconds - 1, -1):
            if interval % seconds == 0 and SECONDS_OF_A_DAY % seconds == 0:
                return seconds
    while 2 * length <= limit and SECONDS_OF_A_DAY % (2 * length) == 0:
        length *= 2
    return length


class OpenWindow:
    """Aggregates the collections of a window into rows until the window ends."""

    def __init__(self, end_ms: int, window_ms: int, interval_ms: int) -> None:
        self.start_ms = end_ms - window_ms
        self.end_ms = end_ms
        self._interval_seconds = interval_ms / 1000
        self._series: dict[Entity, _Series] = {}
        self._points: list[tuple[float, float | None, float | None]] = []
        self._rates = {name: _Mean() for name in _RATES}
        self._gauges: dict[str, _Mean] = {}

    def cut(self, end_ms: int) -> None:
        """Cut the window: `end_ms` is before its present end."""
        self.end_ms = end_ms

    def add(self, collection: Collection) -> None:
        """Add a collection of a tick within this window."""
        offset = (collection.at_ms - self.start_ms) / 1000
        # Time before the start belongs to the previous window. A reading after a long pause is a
        # single value and does not cover the whole pause.
        max_observed = min(offset, _MAX_GAP_INTERVALS * self._interval_seconds)
        for usage in collection.usages:
            self._add(usage, max_observed)
            if usage.entity == NODE:
                # Without a reading of the node the system usage is that of the previous tick.
                if collection.system is not None:
                    self._add(collection.system, max_observed)
                memory = None if usage.memory_bytes is None else float(usage.memory_bytes)
                self._points.append((offset, usage.cpu_cores, memory))
        if (rates := collection.rates) is not None:
            for traffic, names in ((rates.network, _RATES[:2]), (rates.disk, _RATES[2:])):
                for transferred, name in zip(traffic or (), names, strict=False):
                    self._rates[name].add(transferred, rates.seconds)
        for name, value in collection.gauges.items():
            self._gauges.setdefault(name, _Mean()).add(value, 1.0)

    def _add(self, usage: Usage, max_observed: float) -> None:
        series = self._series.get(usage.entity)
        if series is None:
            series = self._series[usage.entity] = _Series()
        series.add(usage, max_observed)

    def rows(self, capacity_cpu_cores: int | None, capacity_memory_bytes: int | None) -> list[Row]:
        """One row per entity: the node, then tiers, host applications and pods, each by id."""
        node = self._row(NODE, self._series.get(NODE, _Series()))
        node |= {
            "capacity_cpu_cores": _float(capacity_cpu_cores),
            "capacity_memory_bytes": _float(capacity_memory_bytes),
            **{name: mean.value() for name, mean in (self._rates | self._gauges).items()},
        }
        offsets, cores, memory = zip(*self._points, strict=True) if self._points else ((), (), ())
        node["points_offset_seconds"] = list(offsets)
        node["points_cpu_cores"] = list(cores)
        node["points_memory_bytes"] = list(memory)
        others = sorted(
            (entity for entity in self._series if entity != NODE),
            key=lambda entity: (_ORDER.index(entity.kind), entity.id),
        )
        rows = [node, *(self._row(entity, self._series[entity]) for entity in others)]
        _limit_containers(rows)
        return rows

    def _row(self, entity: Entity, series: "_Series") -> Row:
        length = (self.end_ms - self.start_ms) / 1000
        # Readings are some milliseconds early or late.
        complete = length - series.observed_seconds < self._interval_seconds / 2
        coverage = 1.0 if complete else series.observed_seconds / length
        row: Row = {"kind": entity.kind, "id": entity.id, "qos": entity.qos, "coverage": coverage}
        return row | series.statistics()


_ORDER: Final = ("tier", "host_app", "pod")
_RATES: Final = (
    "network_receive_bytes_per_second",
    "network_transmit_bytes_per_second",
    "disk_read_bytes_per_second",
    "disk_write_bytes_per_second",
)
_STALLS: Final = (
    "pressure_cpu_some",
    "pressure_memory_some",
    "pressure_memory_full",
    "pressure_io_some",
    "pressure_io_full",
)


def _limit_containers(rows: Iterable[Row]) -> None:
    """Leave out the containers of pods for which a sample has no room."""
    room = MAX_CONTAINERS
    for row in rows:
        room -= len(row.get(CONTAINERS, ()))
        if room < 0:
            row.pop(CONTAINERS, None)


class _Mean:
    """Growth per observed second, or the mean of readings; None without any."""

    __slots__ = ("_seconds", "_total")

    def __init__(self) -> None:
        self._total: float = 0  # counters stay whole
        self._seconds = 0.0

    def add(self, growth: float, seconds: float) -> None:
        self._total += growth
        self._seconds += seconds

    def value(self, unit: float = 1.0) -> float | None:
        return self._total * unit / self._seconds if self._seconds > 0 else None


class _Series:
    """Readings of one entity within the window."""

    __slots__ = (
        "_containers", "_cores", "_cpu", "_memory", "_stalls", "_throttling", "observed_seconds",
    )  # fmt: skip

    def __init__(self) -> None:
        self.observed_seconds = 0.0
        self._cpu = _Mean()
        self._cores: list[float] = []
        self._memory: tuple[list[int], list[int], list[int]] = ([], [], [])
        self._throttling: dict[str, Throttling] = {}  # the cgroup itself ("") and containers
        self._stalls: dict[str, _Mean] = {}
        self._containers = _Containers()

    def add(self, usage: Usage, max_observed: float) -> None:
        cores = usage.cpu_cores
        if cores is not None and usage.cpu_ns is not None and usage.elapsed_seconds is not None:
            self.observed_seconds += min(usage.elapsed_seconds, max_observed)
            self._cpu.add(usage.cpu_ns, usage.elapsed_seconds)
            self._cores.append(cores)
        memory, with_page_cache, with_hot_page_cache = self._memory
        if usage.memory_bytes is not None:
            memory.append(usage.memory_bytes)
        if usage.memory_with_page_cache_bytes is not None:
            with_page_cache.append(usage.memory_with_page_cache_bytes)
        if usage.memory_with_hot_page_cache_bytes is not None:
            with_hot_page_cache.append(usage.memory_with_hot_page_cache_bytes)
        if usage.throttling is not None:
            self._add_throttling("", usage.throttling)
        if usage.containers is not None:
            self._containers.add(usage.containers)
            for id, container in usage.containers.items():
                if container.throttling is not None:
                    self._add_throttling(id, container.throttling)
        if usage.stall is not None:
            self._add_stall(usage.stall)

    def _add_throttling(self, id: str, delta: Throttling) -> None:
        sums = self._throttling.get(id)
        if sums is None:
            self._throttling[id] = delta
        elif any(delta):
            self._throttling[id] = Throttling(*map(operator.add, sums, delta))

    def _add_stall(self, stall: Stall) -> None:
        for name, microseconds in zip(_STALLS, stall[1:], strict=True):
            if microseconds is not None:
                self._stalls.setdefault(name, _Mean()).add(microseconds, stall.seconds)

    def statistics(self) -> Row:
        row = _summary("cpu_cores", self._cores, self._cpu.value(1e-9))
        for name, values in zip(_MEMORY_FIELDS, self._memory, strict=True):
            row |= _summary(name, values, average(values) if values else None)
        if limits := self._throttling.values():
            # Each cgroup has its own quota; the most throttled container slows the pod down.
            row["cpu_throttled_ratio"] = max(
                min(1.0, t.throttled_periods / t.periods) if t.periods > 0 else 0.0 for t in limits
            )
            row["cpu_throttled_seconds"] = sum(t.throttled_ns for t in limits) / 1e9
        for name, mean in self._stalls.items():
            share = mean.value(1e-6)
            row[name] = None if share is None else min(1.0, share)
        if containers := self._containers.usage():
            row[CONTAINERS] = containers
        return row


class _Containers:
    """Readings of the containers of a pod within the window: those whose memory is read."""

    __slots__ = ("_cpu", "_memory", "_present")

    def __init__(self) -> None:
        self._cpu: dict[str, _Mean] = {}
        self._memory: dict[str, int] = {}
        self._present: frozenset[str] = frozenset()

    def add(self, containers: Mapping[str, ContainerGrowth]) -> None:
        present = [id for id, growth in containers.items() if growth.memory_bytes is not None]
        if present:
            self._present = frozenset(present)
        for id in self._present & containers.keys():
            _, elapsed, _, memory = container = containers[id]
            if container.cpu_ns is not None and elapsed is not None:
                self._cpu.setdefault(id, _Mean()).add(container.cpu_ns, elapsed)
            if memory is not None:
                self._memory[id] = max(memory, self._memory.get(id, 0))

    def usage(self) -> list[SampleContainer]:
        """By id; none of containers that ended before others were read again."""
        return [
            SampleContainer(
                id,
                self._cpu[id].value(1e-9) if id in self._cpu else None,
                float(self._memory[id]),
            )
            for id in sorted(self._present)[:MAX_CONTAINERS_PER_POD]
        ]


def _summary(name: str, values: Sequence[float], mean: float | None) -> Row:
    """Statistics of one usage; all None without values."""
    if not values:
        return dict.fromkeys(f"{name}_{s}" for s in ("avg", "p90", "p95", "max", "last"))
    ascending = sorted(values)
    return {
        f"{name}_avg": mean,
        **{f"{name}_{label}": float(rank_percentile(ascending, p)) for label, p in _PERCENTILES},
        f"{name}_max": float(ascending[-1]),
        f"{name}_last": float(values[-1]),
    }


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


class EmittedRanges:
    """Time ranges of emitted windows: no time is emitted twice, whatever the clock does.

    Consecutive windows merge into one range. A clock that is set back by a minute suppresses
    windows for a minute; a clock that was a day ahead does not suppress them for a day.
    """

    _RANGES_MAX: Final = 64  # one per step of the clock; the oldest is dropped

    def __init__(self) -> None:
        self._ranges: list[list[int]] = []

    def claim(self, start_ms: int, end_ms: int) -> bool:
        """Reserve a window; False if any part of it was emitted before."""
        if any(start_ms < end and start < end_ms for start, end in self._ranges):
            return False
        for range_ in self._ranges:
            if range_[1] == start_ms:
                range_[1] = end_ms
                return True
        self._ranges.append([start_ms, end_ms])
        del self._ranges[: -self._RANGES_MAX]
        return True
