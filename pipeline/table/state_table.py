"""The state table: the newest records of every node, as numpy columns with a row per node.

Older results never replace newer ones: replays and paused workers write them again. The table
belongs to one event loop, and each change is one call without an await: code that looks up rows and
copies their values (`table["usage_cpu_cores"][rows]`) without an await sees one moment of it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs, with_defaults
from pipeline.processors.loadaware.pod_amounts import Counting, Pod
from pipeline.processors.loadaware.usage_readings import (
    LONG_WINDOW_SECONDS,
    is_fresh,
    seconds_until_stale,
)
from pipeline.processors.scorers.scorer import MetadataSource, Texts
from pipeline.table import limits
from pipeline.table.compressed_views import NodeViewStore
from pipeline.table.derived_columns import DerivedColumns
from pipeline.table.dropped_results import DroppedResults
from pipeline.table.extended_resources import ExtendedResources
from pipeline.table.node_columns import (
    COLUMNS,
    COUNTED_WHOLE,
    Column,
    NodeRecords,
    OfferedResources,
    TableNode,
    gauge_column,
    limited,
    scalars_of,
    value_of,
    whole,
)
from pipeline.table.node_names import UNKNOWN_ROW, NameIndex, NodeNames, RowArray, Rows
from pipeline.table.pinned_pods import PinnedPods
from pipeline.table.pod_arrays import PodArrays, ReportedUsage
from pipeline.table.pod_history import PodHistory
from pipeline.table.pod_table import PodTable
from pipeline.table.recent_rates import with_state
from pipeline.table.usage_history import History
from pipeline.topics.heartbeats import Heartbeats
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.resource_amounts import is_gauge
from pipeline.topics.result_header import Position, supersedes

USUAL_COUNTING: Final = Counting(with_defaults(LoadAwareArgs()))


class Table:
    """Rows by node name. The table grows as needed, and reuses the rows of departed nodes.

    `version` changes with every change of the table, `names_version` whenever a row gets or loses
    its node. `pod_events` counts pods that came, changed, left or were placed, `recomputed_rows`
    how often the pods in flight of a row were computed. `heartbeats` are those of the watcher,
    `pending` the UIDs of pods that are on no node. `gauges` are the extended resources whose usage
    LoadAware may judge, and which have a column `usage_<name>`.
    """

    def __init__(
        self,
        columns: Sequence[Column] = COLUMNS,
        counting: Counting = USUAL_COUNTING,
        *,
        node_windows: int = limits.POINTS,
        pod_windows: int = 1,
    ) -> None:
        self.columns = tuple(columns)
        self.gauges = tuple(filter(is_gauge, counting.load_aware.resources))
        self._stored = (
            *columns,
            *map(gauge_column, self.gauges),
            *(whole(column) for column in columns if column.name in COUNTED_WHOLE),
        )
        self.version = 0
        self.names_version = 0
        self.pod_events = 0
        self.recomputed_rows = 0
        self.views = NodeViewStore()
        self.history = History(node_windows)
        self.pod_history = PodHistory(pod_windows)
        self._clear(counting)

    def _clear(self, counting: Counting) -> None:
        self.pods = PodTable(counting)
        self.heartbeats = Heartbeats()
        self.pending: set[str] = set()
        self._index: dict[str, int] = {}
        self._names: list[str] = []
        self._name_index: NameIndex | None = None
        self._rows: list[NodeRecords] = []
        self._states: list[NodeStateRecord | None] = []
        self._scalars = ExtendedResources()
        self._pinned = PinnedPods()
        self._derived = DerivedColumns()
        self._capacity = limits.FIRST_ROWS
        self._free: list[int] = []
        self._arrays: dict[str, npt.NDArray[Any]] = {
            column.name: np.full(limits.FIRST_ROWS, column.missing, column.dtype)
            for column in self._stored
        }
        self.dropped_states = DroppedResults()
        self.dropped_resources = DroppedResults()

    def emptied(self) -> "Table":
        """An empty table of the same columns, amounts and lengths of histories."""
        return Table(
            self.columns,
            self.pods.counting,
            node_windows=self.history.windows,
            pod_windows=self.pod_history.windows,
        )

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __iter__(self) -> Iterator[str]:
        """The names of all nodes, sorted."""
        return iter(sorted(self._index))

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        """The column, to be indexed with rows at once: it changes, and is replaced as the table
        grows. Raises KeyError for an unknown column."""
        return self._arrays[column]

    def whole(self, column: str) -> IntArray:
        """A column of `COUNTED_WHOLE` in whole millicores or bytes, 0 is unknown. Raises KeyError
        for any other."""
        return self._arrays[f"whole {column}"]

    @property
    def known_rows(self) -> RowArray:
        """The rows of all nodes, in any order."""
        return np.fromiter(self._index.values(), np.intp, len(self._index))

    def lookup(self, names: Sequence[str]) -> RowArray:
        """The row of each name, in their order; `UNKNOWN_ROW` for a name not in the table."""
        return self._current_index().lookup(names)

    def read_names(self, json: bytes) -> NodeNames | None:
        """The names of a JSON array; None for a list that needs a full decoder."""
        return self._current_index().read(json)

    def _current_index(self) -> NameIndex:
        if self._name_index is None:
            self._name_index = NameIndex(self._index)
        return self._name_index

    def snapshot(self, name: str) -> NodeRecords:
        """The records of one node; all None if it is not in the table."""
        return self.records(self._index.get(name, UNKNOWN_ROW))

    def records(self, row: int) -> NodeRecords:
        """The records of a row; all None for `UNKNOWN_ROW`."""
        return NodeRecords() if row == UNKNOWN_ROW else self._rows[row]

    def ages(self, rows: Rows, now: float) -> FloatArray:
        """Seconds from the end of each row's last window to `now`; NaN where there is none."""
        ages: FloatArray = now - self._arrays["as_of_seconds"][rows]
        return ages

    def fresh(self, rows: Rows, now: float, stale_after_seconds: float) -> BoolArray:
        """Whether each row's last window is younger than `stale_after_seconds`, or than twice its
        length where windows are longer than a minute."""
        window = self._arrays["window_seconds"][rows]
        if not (window > LONG_WINDOW_SECONDS).any():
            return is_fresh(self.ages(rows, now), stale_after_seconds)
        return is_fresh(self.ages(rows, now), seconds_until_stale(window, stale_after_seconds))

    def put_state(self, record: NodeStateRecord) -> bool:
        """Take a node's result; False if the table has a newer one.

        Raises `InvalidRecordError` for an invalid time, and leaves the table as it was.
        """
        old = self.snapshot(record.node)
        dropped = self.dropped_states
        if not supersedes(record, old.state) or dropped.covers(record.node, record.position):
            return False
        window = self._last_window(record.node)
        rates = with_state(old.rates, record)
        self._write(record.node, old._replace(state=record, rates=rates))
        dropped.forget(record.node)
        if (self._last_window(record.node) < window).any():
            # A clock was set back: pods that the window before measured may be younger than this.
            self.pods.usage_lost(self._index[record.node])
        return True

    def _last_window(self, name: str) -> FloatArray:
        """The end and the begin of the last window of a node, (2,); NaN where there is none."""
        row = self._index.get(name, UNKNOWN_ROW)
        end = self["as_of_seconds"][row]
        return np.array([end, end - np.fmax(self["window_seconds"][row], 0.0)])

    def put_resources(self, record: OfferedResources) -> bool:
        """Take what a node offers to Mid and Batch; False if the table has a newer record."""
        old = self.snapshot(record.node)
        dropped = self.dropped_resources
        if not supersedes(record, old.resources) or dropped.covers(record.node, record.position):
            return False
        self._write(record.node, old._replace(resources=record))
        dropped.forget(record.node)
        return True

    def put_node(self, record: TableNode) -> bool:
        """Take the record of a Node, which is always the newest. Returns True."""
        self._pinned.node_changes(record.node)
        self._write(record.node, self.snapshot(record.node)._replace(node=limited(record)))
        return True

    def drop_state(self, name: str, position: Position | None = None) -> bool:
        """Remove the node's result (a tombstone at this position); False if it is newer."""
        old = self.snapshot(name)
        if not self.dropped_states.drop(name, old.state, position):
            return False
        if old.state is not None:
            self.pods.usage_lost(self._index[name])
            self._write(name, old._replace(state=None, rates=None))
        return True

    def drop_node(self, name: str) -> None:
        """Remove the Node (tombstone)."""
        self._pinned.node_changes(name)
        if name in self._index:
            self._write(name, self.snapshot(name)._replace(node=None))

    def drop_resources(self, name: str, position: Position | None = None) -> bool:
        """Remove what the node offers to Mid and Batch (a tombstone at this position); False if it
        is newer."""
        old = self.snapshot(name)
        if not self.dropped_resources.drop(name, old.resources, position):
            return False
        if old.resources is not None:
            self._write(name, old._replace(resources=None))
        return True

    def put_pod(self, pod: Pod) -> bool:
        """Take the record of a pod, which is always the newest. Returns True."""
        if pod.node:
            self._pinned.put(pod)
            self._pods_change()
            row = self._row(pod.node)
            self._release_if_unused(self.pods.put(row, pod))
            self._release_if_unused(row)
            self.pending.discard(pod.uid)
        else:
            self.pending.add(pod.uid)
        return True

    def taken_cpus(self) -> Mapping[str, frozenset[int]]:
        """By node the CPUs that its annotation reserves by number and that pods on it have for
        themselves, of nodes with any."""
        return self._pinned.taken(self._annotations_of)

    def _annotations_of(self, name: str) -> Mapping[str, str]:
        node = self.snapshot(name).node
        return {} if node is None else node.annotations

    def drop_pod(self, node: str, uid: str) -> None:
        """Remove the pod from this node (tombstone), unless it is on another by now."""
        if not node:
            self.pending.discard(uid)
        self._pinned.drop(node, uid)
        row = self._index.get(node, UNKNOWN_ROW)
        if row != UNKNOWN_ROW and self.pods.row_of(uid) == row:
            self._pods_change()
            self._release_if_unused(self.pods.remove(uid))

    def place(
        self, pod: Pod, node: str, now: float, seconds: float = limits.TENTATIVE_SECONDS
    ) -> None:
        """Count a pod on a node until its record arrives, or so many `seconds` have passed. Ignored
        for an unknown node, and for a pod whose record is in the table."""
        if node in self._index and not self.pods.is_seen(pod.uid):
            self._pods_change()
            self._release_if_unused(self.pods.put(self._index[node], pod, now, seconds))

    def withdraw(self, uid: str) -> bool:
        """Undo `place`; whether the pod was placed."""
        row = self.pods.withdraw(uid)
        if row is None:
            return False
        self._pods_change()
        self._release_if_unused(row)
        return True

    @contextmanager
    def set_aside(self, uid: str, now: float) -> Iterator[None]:
        """A context in which a placed pod counts on no node; afterwards it counts as before. There
        must be no await inside, or other requests would miss the pod."""
        self.bring_up_to_date(now)
        with self.pods.set_aside(uid):
            yield

    def bring_up_to_date(self, now: float) -> None:
        """Expire placed pods and recompute pods in flight, as of `now`.

        While the watcher is dead no record of a bound pod arrives. So a placed pod expires only
        when a later heartbeat shows that its record would be here, or after a long time.
        """
        self.heartbeats.observe(now)
        seen_until = now
        if self.heartbeats.have_come and self.is_watched:
            # A clock of the watcher that is ahead shows nothing about the time after it.
            until = self.heartbeats.complete_until
            seen_until = -math.inf if until is None else min(until, self.heartbeats.complete_at)
        for uid in self.pods.expired(max(seen_until, now - limits.LONGEST_UNCONFIRMED_SECONDS)):
            self._pods_change()
            self._release_if_unused(self.pods.remove(uid))
        self.recomputed_rows += self.pods.refresh(self._reported())

    @property
    def is_watched(self) -> bool:
        """Whether the watcher writes Nodes and Pods: it wrote the newest record of any Node, or
        there are heartbeats and no Nodes."""
        if self["is_watched"].any():
            return True
        return self.heartbeats.have_come and not self["has_node"].any()

    def flight_without(
        self, rows: RowArray, uids: Sequence[Sequence[str]]
    ) -> tuple[IntArray, IntArray]:
        """What would be in flight on these rows without some of their pods, in all and of Prod."""
        return self.pods.flight_without(rows, uids, self._reported())

    def _reported(self) -> ReportedUsage:
        return ReportedUsage(self["as_of_seconds"], self["window_seconds"], self._states)

    def scalar(self, name: str, rows: RowArray) -> IntArray:
        """Allocatable of a resource other than cpu and memory, (rows,) in whole units."""
        amounts: IntArray = self._scalars.column(name, self._capacity)[rows]
        return amounts

    @property
    def scalars(self) -> tuple[str, ...]:
        """The resources other than cpu and memory that nodes have."""
        return self._scalars.names

    def texts(self, source: MetadataSource, key: str, rows: Rows) -> Texts:
        """A label or an annotation of the Node of each row."""
        codes, texts = self._derived.texts(source, key, self._rows, self._capacity)
        return Texts(codes[rows], texts)

    def by_name(self, values: Mapping[str, Any], fields: Sequence[str], rows: Rows) -> FloatArray:
        """Fields of the value of each row's node, (fields, rows), from `values` by name; NaN for a
        node without a value. `values` must not change."""
        columns = self._derived.by_name(values, fields, self._index, self._capacity)
        return columns[:, rows]

    def memory(self, name: str, values: int) -> FloatArray:
        """Numbers (values, all rows) that stay as they were last written; at first they are equal,
        by their bits, to no number that occurs."""
        return self._derived.memory(name, values, self._capacity)

    def rows(self) -> tuple[list[str], list[NodeRecords]]:
        """A copy of the name and records of every row; a free row has no name."""
        return self._names[:], self._rows[:]

    def restore(self, names: Sequence[str], rows: Sequence[NodeRecords], pods: PodArrays) -> None:
        """Fill an empty table with what `rows` and `pods.columns` returned. Raises ValueError,
        IndexError and `InvalidRecordError` for invalid values."""
        row_of = np.full(len(names), UNKNOWN_ROW, np.intp)
        for index, (name, records) in enumerate(zip(names, rows, strict=True)):
            if name:
                row_of[index] = self._row(name)
                self._write(name, records, release=False)
        self.pods.restore(pods, row_of)
        for name in [name for name in names if name]:
            self._release_if_unused(self._index[name])

    def adopt(self, other: "Table") -> None:
        """Become `other`, a table filled from the topics, in one step; `other` gets empty."""
        self.columns, self._stored = other.columns, other._stored
        self._index, self._rows = other._index, other._rows
        self._free, self._arrays = other._free, other._arrays
        self.dropped_states = other.dropped_states
        self.dropped_resources = other.dropped_resources
        self._names, self._states, self._scalars = other._names, other._states, other._scalars
        self._derived = other._derived
        self._capacity, self.pods = other._capacity, other.pods
        self.pending = other.pending
        if not self.heartbeats.is_same(other.heartbeats):
            self.heartbeats = other.heartbeats
        self.views.adopt(other.views)
        self.history.adopt(other.history)
        self.pod_history.adopt(other.pod_history)
        self.pod_events += other.pod_events
        self.recomputed_rows += other.recomputed_rows
        self.version += 1
        self._renamed()
        other._clear(self.pods.counting)

    def _pods_change(self) -> None:
        self.version += 1
        self.pod_events += 1

    def _write(self, name: str, records: NodeRecords, *, release: bool = True) -> None:
        before = self.snapshot(name)
        # Columns that read only unchanged records keep their values.
        same = {
            part for part in NodeRecords._fields if getattr(before, part) is getattr(records, part)
        }
        columns = [column for column in self._stored if column.record not in same]
        values = [value_of(column, records) for column in columns]
        self.version += 1
        row = self._row(name)
        self._rows[row], self._states[row] = records, records.state
        for column, value in zip(columns, values, strict=True):
            self._arrays[column.name][row] = value
        if "node" not in same:
            self._derived.put(row, records.node)
        if not same >= {"node", "resources"}:
            self._scalars.put(row, scalars_of(records))
        self.pods.usage_changed(row)
        if release:
            self._release_if_unused(row)

    def _row(self, name: str) -> int:
        row = self._index.get(name, UNKNOWN_ROW)
        if row == UNKNOWN_ROW:
            row = self._index[name] = self._new_row()
            self._names[row] = name
            self._renamed()
        return row

    def _renamed(self) -> None:
        self.names_version += 1
        self._name_index = None
        self._derived.renamed()

    def _release_if_unused(self, row: int | None) -> None:
        """Free a row without records and pods."""
        if row is None or any(record is not None for record in self._rows[row]):
            return
        if not self.pods.sums_of("pods", np.array([row]))[0]:
            self._release(self._names[row])

    def _new_row(self) -> int:
        if self._free:
            return self._free.pop()
        self._rows.append(NodeRecords())
        self._names.append("")
        self._states.append(None)
        self.pods.reserve(len(self._rows) + 1)
        # The last element of every array is the unknown row, so it never gets a node.
        if len(self._rows) >= self._capacity:
            for column in self._stored:
                empty: npt.NDArray[Any] = np.full(self._capacity, column.missing, column.dtype)
                self._arrays[column.name] = np.concatenate([self._arrays[column.name], empty])
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
        self._scalars.put(row, {})
        self._derived.put(row, None)
        for column in self._stored:
            self._arrays[column.name][row] = column.missing
