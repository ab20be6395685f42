"""The state table: what is known of every node, as numpy columns with a row per node.

Owes the rest: a row number for each node name, and an order that older results cannot turn back.

Consistency: the table belongs to one event loop and every change of it is one plain call without
an await. Whoever looks up rows and takes their values (`table["usage_cpu_cores"][rows]` copies)
without an await in between has seen one moment, for as long as it likes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs, with_defaults
from pipeline.processors.loadaware.pod_amounts import Counting, Pod
from pipeline.processors.loadaware.usage_thresholds import is_fresh
from pipeline.table.compressed_views import NodeViewStore
from pipeline.table.name_index import NameIndex, Names
from pipeline.table.node_columns import (
    COLUMNS,
    COUNTED_WHOLE,
    Column,
    NodeRecords,
    OfferedResources,
    TableNode,
    value_of,
    whole,
)
from pipeline.table.pod_columns import PodArrays, ReportedUsage
from pipeline.table.pod_table import PodTable
from pipeline.table.tentative_pods import TENTATIVE_SECONDS
from pipeline.table.usage_history import History
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.result_header import supersedes

RowArray = npt.NDArray[np.intp]
Rows = RowArray | slice

UNKNOWN_ROW: Final = -1
"""Row of a name that the table does not know: every column holds its missing value there."""
USUAL_COUNTING: Final = Counting(with_defaults(LoadAwareArgs()))

_SMALLEST: Final = 64
_LONG_WINDOW_SECONDS: Final = 60.0
_WINDOWS_UNTIL_STALE: Final = 2
_BURIED_AT_MOST: Final = 100_000
_LARGEST: Final = 2**53


class Table:
    """Rows by node name. Grows by itself; rows of nodes that left are used again."""

    def __init__(
        self, columns: Sequence[Column] = COLUMNS, counting: Counting = USUAL_COUNTING
    ) -> None:
        self.columns = tuple(columns)
        self._kept = (*columns, *(whole(one) for one in columns if one.name in COUNTED_WHOLE))
        self.version = 0
        """Another number whenever anything of a row, or whose it is, may be another."""
        self.names_version = 0
        """Another number whenever it may be another whose a row is."""
        self.pod_events = 0
        """How many pods came, changed, went or were placed."""
        self.recomputed_rows = 0
        """How often it was worked out anew what is in flight on a row."""
        self.views = NodeViewStore()
        self.history = History()
        self._clear(counting)

    def _clear(self, counting: Counting) -> None:
        self.pods = PodTable(counting)
        self._index: dict[str, int] = {}
        self._names: list[str] = []
        self._by_name: NameIndex | None = None
        self._rows: list[NodeRecords] = []
        self._states: list[NodeStateRecord | None] = []
        self._scalars: dict[str, npt.NDArray[np.int64]] = {}
        self._capacity = _SMALLEST
        self._free: list[int] = []
        self._arrays: dict[str, npt.NDArray[Any]] = {
            column.name: np.full(_SMALLEST, column.missing, column.dtype) for column in self._kept
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

    def whole(self, column: str) -> npt.NDArray[np.int64]:
        """A column of what nodes have in whole millicores or bytes, 0 where nothing is known, as
        above. KeyError for one that is none of `COUNTED_WHOLE`."""
        return self._arrays[f"whole {column}"]

    def lookup(self, names: Sequence[str]) -> RowArray:
        """The row of each name, in their order; `UNKNOWN_ROW` for a name not in the table."""
        if isinstance(names, Names):
            if self._by_name is None:
                self._by_name = NameIndex(self._names)
            return self._by_name.rows(names)
        found = map(self._index.get, names, repeat(UNKNOWN_ROW))
        return np.fromiter(found, np.intp, len(names))

    def may_repeat(self, names: Names) -> bool:
        """Whether one may be there twice; rarely so where none is. What was looked up for it is
        known when it is asked for."""
        rows = self.lookup(names)
        is_there = np.zeros(len(self._names), np.bool_)
        known = rows[rows != UNKNOWN_ROW]
        is_there[known] = True
        if np.count_nonzero(is_there) < len(known):
            return True
        return (
            len(known) < len(rows) and names.take(np.flatnonzero(rows == UNKNOWN_ROW)).may_repeat()
        )

    def snapshot(self, name: str) -> NodeRecords:
        """The records of one node; a row of Nones if it is not in the table."""
        row = self._index.get(name, UNKNOWN_ROW)
        return NodeRecords() if row == UNKNOWN_ROW else self._rows[row]

    def ages(self, rows: Rows, now: float) -> FloatArray:
        """Seconds from the end of each row's last window to `now`; NaN where there is none."""
        ages: FloatArray = now - self._arrays["as_of_seconds"][rows]
        return ages

    def fresh(self, rows: Rows, now: float, stale_after_seconds: float) -> npt.NDArray[np.bool_]:
        """Whether each row's last window is young enough to speak for the present: younger than
        `stale_after_seconds`, or than two of its windows where these are long."""
        window = self._arrays["window_seconds"][rows]
        long = window > _LONG_WINDOW_SECONDS
        if not long.any():
            return is_fresh(self.ages(rows, now), stale_after_seconds)
        longest = np.fmax(stale_after_seconds, _WINDOWS_UNTIL_STALE * window)
        stale_after = np.where(long, longest, stale_after_seconds)
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

    def put_resources(self, record: OfferedResources) -> bool:
        """Take what a node has for Mid and Batch; False if a newer one is there, which stays."""
        old = self.snapshot(record.node)
        if not supersedes(record, old.resources):
            return False
        self._write(record.node, old._replace(resources=record))
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
        self.pods.unreported(self._index[name])
        self._write(name, old._replace(state=None))

    def drop_node(self, name: str) -> None:
        """The Node is deleted (tombstone)."""
        if name in self._index:
            self._write(name, self.snapshot(name)._replace(node=None))

    def drop_resources(self, name: str) -> None:
        """The node has nothing for Mid and Batch any more (tombstone)."""
        if name in self._index:
            self._write(name, self.snapshot(name)._replace(resources=None))

    def put_pod(self, pod: Pod) -> bool:
        """Take what a pod is; always newer than what was there. True, for symmetry."""
        if pod.node:
            self._pods_change()
            row = self._row(pod.node)
            self._leave(self.pods.put(row, pod))
            self._leave(row)
        return True

    def drop_pod(self, node: str, uid: str) -> None:
        """The pod is gone from this node (tombstone): it may be on another by now."""
        row = self._index.get(node, UNKNOWN_ROW)
        if row != UNKNOWN_ROW and self.pods.row_of(uid) == row:
            self._pods_change()
            self._leave(self.pods.remove(uid))

    def place(self, pod: Pod, node: str, now: float, seconds: float = TENTATIVE_SECONDS) -> None:
        """A pod is about to be on this node, of the table or not; it counts until it is seen there,
        or so many `seconds` have passed. One that is seen somewhere stays there, whoever asks."""
        if node in self._index and not self.pods.is_seen(pod.uid):
            self._pods_change()
            self._leave(self.pods.put(self._index[node], pod, now, seconds))

    def withdraw(self, uid: str) -> bool:
        """A pod is to be placed anew, wherever it was to be before; whether it was to be any."""
        row = self.pods.withdraw(uid)
        if row is None:
            return False
        self._pods_change()
        self._leave(row)
        return True

    @contextmanager
    def aside(self, uid: str, now: float) -> Iterator[None]:
        """While it lasts a pod that was placed and is not seen yet counts nowhere, as when it is to
        be placed anew; afterwards it counts as before. No await may be inside."""
        self.bring_up_to_date(now)
        with self.pods.aside(uid):
            yield

    def bring_up_to_date(self, now: float) -> None:
        """Know what is in flight, as of `now`."""
        for uid in self.pods.expired(now):
            self._pods_change()
            self._leave(self.pods.remove(uid))
        self.recomputed_rows += self.pods.refresh(self._reported())

    def flight_without(
        self, rows: RowArray, gone: Sequence[Sequence[str]]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """What would be in flight on these rows, in all and of Prod, without these pods of each."""
        return self.pods.flight_without(rows, gone, self._reported())

    def _reported(self) -> ReportedUsage:
        return ReportedUsage(self["as_of_seconds"], self["window_seconds"], self._states)

    def scalar(self, name: str, rows: RowArray) -> npt.NDArray[np.int64]:
        """What the nodes have of a resource but cpu and memory, (rows,) in whole units."""
        known = self._scalars.get(name)
        return np.zeros(len(rows), np.int64) if known is None else known[rows]

    @property
    def scalars(self) -> tuple[str, ...]:
        """The resources that any node has but cpu and memory."""
        return tuple(self._scalars)

    def rows(self) -> tuple[list[str], list[NodeRecords]]:
        """The name and the records of every row, a copy; a row that is nobody's has no name."""
        return self._names[:], self._rows[:]

    def restore(self, names: Sequence[str], rows: Sequence[NodeRecords], pods: PodArrays) -> None:
        """Take what `rows` and `pods.columns` gave; the table is empty before. Raises ValueError,
        IndexError and `InvalidRecordError` for what does not fit."""
        row_of = np.full(len(names), UNKNOWN_ROW, np.intp)
        for at, (name, records) in enumerate(zip(names, rows, strict=True)):
            if name:
                row_of[at] = self._row(name)
                self._write(name, records, keep=True)
        self.pods.restore(pods, row_of)
        for name in [name for name in names if name]:
            self._leave(self._index[name])

    def adopt(self, other: "Table") -> None:
        """Become `other` in one step: what a fresh reading of the topics gave. `other` is spent."""
        self.columns, self._kept = other.columns, other._kept
        self._index, self._rows = other._index, other._rows
        self._free, self._arrays, self._buried = other._free, other._arrays, other._buried
        self._names, self._states, self._scalars = other._names, other._states, other._scalars
        self._capacity, self.pods = other._capacity, other.pods
        self.views.adopt(other.views)
        self.history.adopt(other.history)
        self.pod_events += other.pod_events
        self.recomputed_rows += other.recomputed_rows
        self.version += 1
        self._renamed()
        other._clear(self.pods.counting)

    def _pods_change(self) -> None:
        self.version += 1
        self.pod_events += 1

    def _write(self, name: str, records: NodeRecords, *, keep: bool = False) -> None:
        before = self.snapshot(name)
        # What reads only records that are as before is as before.
        same = {
            part for part in NodeRecords._fields if getattr(before, part) is getattr(records, part)
        }
        columns = [column for column in self._kept if column.of not in same]
        values = [value_of(column, records) for column in columns]
        self.version += 1
        row = self._row(name)
        self._rows[row], self._states[row] = records, records.state
        for column, value in zip(columns, values, strict=True):
            self._arrays[column.name][row] = value
        if "node" not in same:
            self._write_scalars(row, (records.node.scalars if records.node else None) or {})
        self.pods.reported(row)
        if not keep:
            self._leave(row)

    def _write_scalars(self, row: int, scalars: Mapping[str, int]) -> None:
        for kind in scalars.keys() - self._scalars.keys():
            self._scalars[kind] = np.zeros(self._capacity, np.int64)
        for kind, amounts in self._scalars.items():
            amounts[row] = min(max(scalars.get(kind, 0), 0), _LARGEST)

    def _row(self, name: str) -> int:
        row = self._index.get(name, UNKNOWN_ROW)
        if row == UNKNOWN_ROW:
            row = self._index[name] = self._new_row()
            self._names[row] = name
            self._renamed()
        return row

    def _renamed(self) -> None:
        self.names_version += 1
        self._by_name = None

    def _leave(self, row: int | None) -> None:
        """Give a row back of which nothing is known any more."""
        if row is None or any(record is not None for record in self._rows[row]):
            return
        if not self.pods.named("pods", np.array([row]))[0]:
            self._release(self._names[row])

    def _new_row(self) -> int:
        if self._free:
            return self._free.pop()
        self._rows.append(NodeRecords())
        self._names.append("")
        self._states.append(None)
        self.pods.reserve(len(self._rows) + 1)
        # The last place of every array is the unknown row, so it is never given away.
        if len(self._rows) >= self._capacity:
            for column in self._kept:
                empty: npt.NDArray[Any] = np.full(self._capacity, column.missing, column.dtype)
                self._arrays[column.name] = np.concatenate([self._arrays[column.name], empty])
            for kind, amounts in self._scalars.items():
                self._scalars[kind] = np.concatenate([amounts, np.zeros_like(amounts)])
            self._capacity *= 2
        return len(self._rows) - 1

    def _release(self, name: str) -> None:
        row = self._index.get(name, UNKNOWN_ROW)
        if row == UNKNOWN_ROW:
            return
        del self._index[name]
        self.version += 1
        self._renamed()
        self._names[row], self._rows[row], self._states[row] = "", NodeRecords(), None
        self._free.append(row)
        for amounts in self._scalars.values():
            amounts[row] = 0
        for column in self._kept:
            self._arrays[column.name][row] = column.missing
