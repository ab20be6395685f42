"""Collections into windows: which window a tick belongs to, and what its rows say. Pure.

A window (start, end] lies on the UTC grid and is named by its end. CPU averages are counter growth
over time observed, so that no CPU time is lost between two windows; percentiles are taken by rank
over the collections.
"""

import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

from node_exporter.collection import NODE, Collection, Entity, Stall, Usage
from node_exporter.kernel.formulas import average, rank_percentile
from node_exporter.kernel.parse_files import Throttling
from pipeline.settings.base import SECONDS_OF_A_DAY

_PERCENTILES: Final = (("p90", Fraction(9, 10)), ("p95", Fraction(19, 20)))
_MEMORIES: Final = (
    "memory_bytes",
    "memory_with_page_cache_bytes",
    "memory_with_hot_page_cache_bytes",
)
# A hot node wakes us up late, and must not be trained on the less for it.
_GAP_INTERVALS_MOST: Final = 3
# Whatever is decided by windows is decided as often as they end.
_WINDOW_SECONDS_MOST: Final = 300

Row = dict[str, Any]


def window_end_ms(at_ms: int, window_ms: int) -> int:
    """End of the window that the moment belongs to; a moment on the grid ends its window."""
    return -(-at_ms // window_ms) * window_ms


def window_seconds_by(asked_seconds: float | None, usual_seconds: int) -> int:
    """Length of the windows of a node whose policy asks for a report so often, None for nothing.

    The usual one doubled as often as it is not longer than asked, nor than five minutes: each grid
    lies in the next coarser one, so that any length follows any other at once.
    """
    length = usual_seconds
    most = min(asked_seconds or 0.0, _WINDOW_SECONDS_MOST)
    while 2 * length <= most and SECONDS_OF_A_DAY % (2 * length) == 0:
        length *= 2
    return length


class Window:
    """The window in hand: takes collections, gives rows."""

    def __init__(self, end_ms: int, window_ms: int, interval_ms: int) -> None:
        self.start_ms = end_ms - window_ms
        self.end_ms = end_ms
        self._interval_seconds = interval_ms / 1000
        self._series: dict[Entity, _Series] = {}
        self._points: list[tuple[float, float | None, float | None]] = []
        self._rates = {name: _Mean() for name in _RATES}

    def cut(self, end_ms: int) -> None:
        """End the window here, which is before its end."""
        self.end_ms = end_ms

    def add(self, collection: Collection) -> None:
        """Count a collection in; its tick belongs to this window."""
        offset = (collection.at_ms - self.start_ms) / 1000
        # What is before the start was seen by the window before, and a reading after a long pause
        # is one value for all of it.
        observed_most = min(offset, _GAP_INTERVALS_MOST * self._interval_seconds)
        for usage in collection.usages:
            self._add(usage, observed_most)
            if usage.entity == NODE:
                # Without a reading of the node its remainder is that of the second before.
                if collection.system is not None:
                    self._add(collection.system, observed_most)
                memory = None if usage.memory_bytes is None else float(usage.memory_bytes)
                self._points.append((offset, usage.cpu_cores, memory))
        if (rates := collection.rates) is not None:
            for traffic, names in ((rates.network, _RATES[:2]), (rates.disk, _RATES[2:])):
                for moved, name in zip(traffic or (), names, strict=False):
                    self._rates[name].add(moved, rates.seconds)

    def _add(self, usage: Usage, observed_most: float) -> None:
        series = self._series.get(usage.entity)
        if series is None:
            series = self._series[usage.entity] = _Series()
        series.add(usage, observed_most)

    def rows(self, capacity_cpu_cores: int | None, capacity_memory_bytes: int | None) -> list[Row]:
        """A row per entity: the node first, then tiers, host applications and pods by id."""
        node = self._row(NODE, self._series.get(NODE, _Series()))
        node |= {
            "capacity_cpu_cores": _float(capacity_cpu_cores),
            "capacity_memory_bytes": _float(capacity_memory_bytes),
            **{name: mean.value() for name, mean in self._rates.items()},
        }
        offsets, cores, memory = zip(*self._points, strict=True) if self._points else ((), (), ())
        node["points_offset_seconds"] = list(offsets)
        node["points_cpu_cores"] = list(cores)
        node["points_memory_bytes"] = list(memory)
        others = sorted((e for e in self._series if e != NODE), key=_order)
        return [node, *(self._row(entity, self._series[entity]) for entity in others)]

    def _row(self, entity: Entity, series: "_Series") -> Row:
        length = (self.end_ms - self.start_ms) / 1000
        # Less than half an interval short: a reading that came some milliseconds early or late.
        whole = length - series.observed_seconds < self._interval_seconds / 2
        coverage = 1.0 if whole else series.observed_seconds / length
        row: Row = {"kind": entity.kind, "id": entity.id, "qos": entity.qos, "coverage": coverage}
        return row | series.statistics()


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


class _Mean:
    """Growth over the time observed, None while nothing was observed."""

    __slots__ = ("_grown", "_seconds")

    def __init__(self) -> None:
        self._grown = 0
        self._seconds = 0.0

    def add(self, grown: int, seconds: float) -> None:
        self._grown += grown
        self._seconds += seconds

    def value(self, unit: float = 1.0) -> float | None:
        return self._grown * unit / self._seconds if self._seconds > 0 else None


class _Series:
    """One entity within the window."""

    __slots__ = ("_cores", "_cpu", "_memory", "_stalls", "_throttling", "observed_seconds")

    def __init__(self) -> None:
        self.observed_seconds = 0.0
        self._cpu = _Mean()
        self._cores: list[float] = []
        self._memory: tuple[list[int], ...] = ([], [], [])
        self._throttling: dict[str, Throttling] = {}  # of the cgroup itself (""), of containers
        self._stalls: dict[str, _Mean] = {}

    def add(self, usage: Usage, observed_most: float) -> None:
        cores = usage.cpu_cores
        if cores is not None and usage.cpu_ns is not None and usage.elapsed_seconds is not None:
            self.observed_seconds += min(usage.elapsed_seconds, observed_most)
            self._cpu.add(usage.cpu_ns, usage.elapsed_seconds)
            self._cores.append(cores)
        for name, values in zip(_MEMORIES, self._memory, strict=True):
            value = getattr(usage, name)
            if value is not None:
                values.append(value)
        if usage.throttling is not None:
            self._add_throttling("", usage.throttling)
        for id, grown in (usage.containers or {}).items():
            self._add_throttling(id, grown)
        if usage.stall is not None:
            self._add_stall(usage.stall)

    def _add_throttling(self, id: str, grown: Throttling) -> None:
        sums = self._throttling.get(id)
        self._throttling[id] = (
            grown if sums is None else Throttling(*map(operator.add, sums, grown))
        )

    def _add_stall(self, stall: Stall) -> None:
        for name, microseconds in zip(_STALLS, stall[1:], strict=True):
            if microseconds is not None:
                self._stalls.setdefault(name, _Mean()).add(microseconds, stall.seconds)

    def statistics(self) -> Row:
        row = _summary("cpu_cores", self._cores, self._cpu.value(1e-9))
        for name, values in zip(_MEMORIES, self._memory, strict=True):
            row |= _summary(name, values, average(values) if values else None)
        if limits := self._throttling.values():
            # Each has a quota of its own: the one that waits most is what a pod suffers from.
            row["cpu_throttled_ratio"] = max(
                min(1.0, t.throttled_periods / t.periods) if t.periods > 0 else 0.0 for t in limits
            )
            row["cpu_throttled_seconds"] = sum(t.throttled_ns for t in limits) / 1e9
        for name, mean in self._stalls.items():
            share = mean.value(1e-6)
            row[name] = None if share is None else min(1.0, share)
        return row


def _summary(name: str, values: Sequence[float], mean: float | None) -> Row:
    """The statistics of one usage, None where nothing is known."""
    if not values:
        return dict.fromkeys(f"{name}_{s}" for s in ("avg", "p90", "p95", "max", "last"))
    ascending = sorted(values)
    return {
        f"{name}_avg": mean,
        **{f"{name}_{label}": float(rank_percentile(ascending, p)) for label, p in _PERCENTILES},
        f"{name}_max": float(ascending[-1]),
        f"{name}_last": float(values[-1]),
    }


def _order(entity: Entity) -> tuple[int, str]:
    return ("node", "tier", "host_app", "pod").index(entity.kind), entity.id


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


class Emitted:
    """Times that windows were given out about: none is twice, however the clock is moved, and
    however long windows are.

    Windows follow one another, so that all of them are a few runs: a clock that was set back by a
    minute silences us for a minute, one that was a day ahead not for a day.
    """

    _RUNS_MAX: Final = 64  # one per step of the clock; the oldest are forgotten

    def __init__(self) -> None:
        self._runs: list[list[int]] = []

    def claim(self, start_ms: int, end_ms: int) -> bool:
        """True for a window of which no part was given out."""
        if any(start_ms < end and start < end_ms for start, end in self._runs):
            return False
        for run in self._runs:
            if run[1] == start_ms:
                run[1] = end_ms
                return True
        self._runs.append([start_ms, end_ms])
        del self._runs[: -self._RUNS_MAX]
        return True
