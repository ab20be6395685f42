"""The state table: what is known of every node, as numpy columns with a row per node.

Owes the rest: one declaration per column (`COLUMNS`: name, unit, dtype, where the value comes
from), a row number for each node name, and an order that older results cannot turn back.

Consistency: the table belongs to one event loop and every change of it is one plain call without
an await. Whoever looks up rows and takes their values (`table["usage_cpu_cores"][rows]` copies)
without an await in between has seen one moment, for as long as it likes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.clock import parse_time
from pipeline.errors import InvalidRecordError
from pipeline.processors.thresholds import is_fresh
from pipeline.topics.node_state import (
    AGGREGATED,
    DEVIATION,
    AggregatedUsage,
    NodeStateRecord,
    UsageDeviation,
)
from pipeline.topics.nodes import KnownNode
from pipeline.topics.resources import Resources, Usage
from pipeline.topics.results import supersedes

FloatArray = npt.NDArray[np.float64]
RowArray = npt.NDArray[np.intp]

UNKNOWN_ROW: Final = -1
"""Row of a name that the table does not know: every column holds its missing value there."""

_SMALLEST: Final = 64
_LONG_WINDOW_SECONDS: Final = 60.0
_WINDOWS_UNTIL_STALE: Final = 2
_BURIED_AT_MOST: Final = 100_000
_NOTHING: Final = Usage()


class TableNode(KnownNode, frozen=True, kw_only=True):
    """What the table reads of a `NodeRecord`."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)


class Row(NamedTuple):
    """The newest record of each topic about one node; None where there is none."""

    state: NodeStateRecord | None = None
    node: TableNode | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `get` reads its value out of a row's records, None is unknown.

    A column of floats holds NaN where nothing is known, one of flags False.
    """

    name: str
    unit: str
    get: Callable[[Row], float | bool | None]
    dtype: type = np.float64

    @property
    def missing(self) -> float | bool:
        return False if self.dtype is np.bool_ else np.nan


def _of_state(name: str, unit: str, get: Callable[[NodeStateRecord], Any]) -> Column:
    return Column(name, unit, lambda row: None if row.state is None else get(row.state))


def _flag(name: str, get: Callable[[NodeStateRecord], bool]) -> Column:
    return Column(name, "flag", lambda row: row.state is not None and get(row.state), np.bool_)


def _usage(name: str, get: Callable[[NodeStateRecord], Usage]) -> tuple[Column, Column]:
    return (
        _of_state(f"{name}_cpu_cores", "cores", lambda state: get(state).cpu_cores),
        _of_state(f"{name}_memory_bytes", "bytes", lambda state: get(state).memory_bytes),
    )


def _aggregated(statistic: str, span: str) -> tuple[Column, Column]:
    nothing = AggregatedUsage()
    return _usage(
        f"usage_{statistic}_{span}",
        lambda state: getattr(state.aggregated.get(span, nothing), statistic),
    )


def _deviation(statistic: str, span: str) -> tuple[Column, Column]:
    nothing = UsageDeviation()
    return _usage(
        f"usage_{statistic}_{span}",
        lambda state: getattr(state.deviation.get(span, nothing), statistic),
    )


def _peak(state: NodeStateRecord) -> Usage:
    return state.peaks.get(state.predictor, _NOTHING)


def allocatable(row: Row) -> Usage:
    """What pods may use: as the Node says now, else as the last window was told, else capacity.

    Each resource by itself; unknown where no source has it.
    """
    node = row.node.allocatable if row.node else None
    cpu = node.cpu_millicores / 1000 if node and node.cpu_millicores is not None else None
    memory: float | None = node.memory_bytes if node else None
    for said in (row.state.allocatable, row.state.capacity) if row.state else ():
        cpu = said.cpu_cores if cpu is None else cpu
        memory = said.memory_bytes if memory is None else memory
    return Usage(cpu_cores=cpu, memory_bytes=memory)


def capacity(row: Row) -> Usage:
    """What the machine has: as the Node says now, else as the last window was told."""
    node = row.node.capacity if row.node else Resources()
    told = row.state.capacity if row.state else Usage()
    cpu, memory = node.cpu_millicores, node.memory_bytes
    return Usage(
        cpu_cores=told.cpu_cores if cpu is None else cpu / 1000,
        memory_bytes=told.memory_bytes if memory is None else memory,
    )


COLUMNS: Final[tuple[Column, ...]] = (
    _of_state("as_of_seconds", "seconds since 1970", lambda state: parse_time(state.as_of)),
    _of_state("window_seconds", "seconds", lambda state: state.window_seconds),
    _of_state("coverage", "share, 0 to 1", lambda state: state.coverage),
    Column("allocatable_cpu_cores", "cores", lambda row: allocatable(row).cpu_cores),
    Column("allocatable_memory_bytes", "bytes", lambda row: allocatable(row).memory_bytes),
    Column("capacity_cpu_cores", "cores", lambda row: capacity(row).cpu_cores),
    Column("capacity_memory_bytes", "bytes", lambda row: capacity(row).memory_bytes),
    *_usage("usage", lambda state: state.usage),
    *_usage("system_usage", lambda state: state.system_usage),
    *(
        column
        for span in AGGREGATED
        for statistic in AggregatedUsage.__struct_fields__
        for column in _aggregated(statistic, span)
    ),
    *(
        column
        for span in DEVIATION
        for statistic in ("mean", "stdev")
        for column in _deviation(statistic, span)
    ),
    *_usage("peak", _peak),
    *_usage("prod_peak", lambda state: state.prod_peak),
    *_usage("prod_reclaimable", lambda state: state.prod_reclaimable),
    _of_state("pods", "pods", lambda state: state.pods),
    _of_state("unknown_pods", "pods", lambda state: state.unknown_pods),
    _of_state("gaps", "windows", lambda state: state.counters.gaps),
    _flag("simulated", lambda state: state.simulated),
    _flag("node_known", lambda state: state.node_known),
)
"""Every column of the table. A new one is one line here, and a field of `Row` if it is read from
a topic that was not read before."""


def _value(column: Column, records: Row) -> float | bool:
    try:
        value = column.get(records)
        if value is None:
            return column.missing
        number = float(value)
    except (ValueError, OverflowError) as error:
        raise InvalidRecordError(f"{column.name} is not readable: {error}") from error
    return number if math.isfinite(number) else column.missing


class _Index(dict[str, int]):
    """Row of each name; `index[name]` of an unknown name is the unknown row."""

    def __missing__(self, name: str) -> int:
        return UNKNOWN_ROW


class Table:
    """Rows by node name. Grows by itself; rows of nodes that left are used again."""

    def __init__(self, columns: Sequence[Column] = COLUMNS) -> None:
        self.columns = tuple(columns)
        self._clear()

    def _clear(self) -> None:
        self._index = _Index()
        self._rows: list[Row] = []
        self._free: list[int] = []
        self._arrays: dict[str, npt.NDArray[Any]] = {
            column.name: np.full(_SMALLEST, column.missing, column.dtype) for column in self.columns
        }
        # Where the last result lay of a node that has left: a paused worker that wakes up and
        # writes it again must not bring the node back.
        self._buried: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __iter__(self) -> Iterator[str]:
        """The names of all nodes, in the order of the alphabet."""
        return iter(sorted(self._index))

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        """The column as it is now, to be indexed with rows. KeyError for an unknown column.

        Index it at once and keep the result, not the column: it changes and is replaced.
        """
        return self._arrays[column]

    def lookup(self, names: Sequence[str]) -> RowArray:
        """The row of each name, in their order; `UNKNOWN_ROW` for a name not in the table."""
        return np.fromiter(map(self._index.__getitem__, names), np.intp, len(names))

    def snapshot(self, name: str) -> Row:
        """The records of one node; a row of Nones if it is not in the table."""
        row = self._index[name]
        return Row() if row == UNKNOWN_ROW else self._rows[row]

    def ages(self, rows: RowArray, now: float) -> FloatArray:
        """Seconds from the end of each row's last window to `now`; NaN where there is none."""
        ages: FloatArray = now - self._arrays["as_of_seconds"][rows]
        return ages

    def fresh(
        self, rows: RowArray, now: float, stale_after_seconds: float
    ) -> npt.NDArray[np.bool_]:
        """Whether each row's last window is young enough to speak for the present: younger than
        `stale_after_seconds`, or than two of its windows where these are long."""
        window = self._arrays["window_seconds"][rows]
        longest = np.fmax(stale_after_seconds, _WINDOWS_UNTIL_STALE * window)
        stale_after = np.where(window > _LONG_WINDOW_SECONDS, longest, stale_after_seconds)
        return is_fresh(self.ages(rows, now), stale_after)

    def put_state(self, record: NodeStateRecord) -> bool:
        """Take a node's result; False if a newer one is there, which stays.

        Raises `InvalidRecordError` for a time that is none; the table is then as before.
        """
        old = self.snapshot(record.node)
        position = (record.generation, record.offset)
        if not supersedes(record, old.state) or position <= self._buried.get(record.node, (-1, -1)):
            return False
        self._write(record.node, old._replace(state=record))
        self._buried.pop(record.node, None)
        return True

    def put_node(self, record: TableNode) -> bool:
        """Take what a node is; always newer than what was there. True, for symmetry."""
        self._write(record.node, self.snapshot(record.node)._replace(node=record))
        return True

    def drop_state(self, name: str) -> None:
        """The node's results are gone (tombstone)."""
        old = self.snapshot(name)
        if old.state is None:
            return
        if len(self._buried) >= _BURIED_AT_MOST:
            del self._buried[next(iter(self._buried))]
        self._buried[name] = (old.state.generation, old.state.offset)
        self._write(name, old._replace(state=None))

    def drop_node(self, name: str) -> None:
        """The Node is deleted (tombstone)."""
        if name in self._index:
            self._write(name, self.snapshot(name)._replace(node=None))

    def adopt(self, other: "Table") -> None:
        """Become `other` in one step: what a fresh reading of the topics gave. `other` is spent."""
        self.columns, self._index, self._rows = other.columns, other._index, other._rows
        self._free, self._arrays, self._buried = other._free, other._arrays, other._buried
        other._clear()

    def _write(self, name: str, records: Row) -> None:
        if all(record is None for record in records):
            self._release(name)
            return
        values = [_value(column, records) for column in self.columns]
        row = self._index[name]
        if row == UNKNOWN_ROW:
            row = self._index[name] = self._new_row()
        self._rows[row] = records
        for column, value in zip(self.columns, values, strict=True):
            self._arrays[column.name][row] = value

    def _new_row(self) -> int:
        if self._free:
            return self._free.pop()
        self._rows.append(Row())
        # The last place of every array is the unknown row, so it is never given away.
        if len(self._rows) >= len(self._arrays[self.columns[0].name]):
            for column in self.columns:
                room: npt.NDArray[Any] = np.full(2 * len(self._rows), column.missing, column.dtype)
                room[: len(self._rows) - 1] = self._arrays[column.name][: len(self._rows) - 1]
                self._arrays[column.name] = room
        return len(self._rows) - 1

    def _release(self, name: str) -> None:
        row = self._index[name]
        if row == UNKNOWN_ROW:
            return
        del self._index[name]
        self._rows[row] = Row()
        self._free.append(row)
        for column in self.columns:
            self._arrays[column.name][row] = column.missing
