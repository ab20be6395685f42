"""The nodes of a request, as columns of the state table at one moment.

A filter or scorer reads the columns that it needs; each is read from the table at its first use and
cached, so all of them see the same numbers. Before a `CandidateNodes` is used again in a later
request, compare `Table.version`: columns that were not read yet would be newer than the others.

The nodes are in the order of the table, not of the request: a scheduler names most nodes of the
cluster in another order for each pod, and columns that are read from one end to the other cost half
as much. In the order of the request, 10,000 nodes take 1.7 times the processor time per pod.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from itertools import compress
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.extender import limits
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.scorers.scorer import MetadataSource, Texts
from pipeline.table import UNKNOWN_ROW, NodeNames, NodeRecords, RowArray, Rows, Table
from pipeline.table.pod_arrays import EvictablePods
from pipeline.topics.node_state import DEVIATION
from pipeline.topics.resource_amounts import RATES

NodePositions = npt.NDArray[np.intp]
"""Indexes into the candidate nodes."""

Array = TypeVar("Array", bound=npt.NDArray[Any])


class CandidateNodes:
    """The nodes `requested` (each once) at the time `now`. Arrays are (nodes,), in the order of the
    table; `order` has the position of each node in `requested`.

    `in_flight` says whether pods count that are not in the usage of their node yet.
    """

    def __init__(
        self, table: Table, requested: Sequence[str], now: float, *, in_flight: bool = True
    ) -> None:
        table.bring_up_to_date(now)
        self._table, self._in_flight, self.now = table, in_flight, now
        rows = table.lookup(requested)
        order = _by_row(rows)
        self._select(requested, order, rows[order])

    def _select(self, requested: Sequence[str], order: NodePositions, rows: RowArray) -> None:
        self.requested, self.order, self.rows = requested, order, rows
        self._names: list[str] | None = None
        self._index = _as_slice(rows)
        self._cache: dict[str, npt.NDArray[Any]] = {}
        self._freed: dict[str, FloatArray] = {}
        self._fewer: IntArray | None = None
        self._whole: tuple[CandidateNodes, Rows] | None = None
        self._packed: npt.NDArray[np.void] | None = None
        self._is_reduced = False

    def __len__(self) -> int:
        return len(self.rows)

    def __copy__(self) -> "CandidateNodes":
        other = object.__new__(CandidateNodes)
        other.__dict__.update(self.__dict__)
        return other

    @property
    def names(self) -> Sequence[str]:
        """The name of each node."""
        if self._names is None:
            names = [*self.requested]
            self._names = [names[position] for position in self.order.tolist()]
        return self._names

    def are_named(self, names: Collection[str]) -> BoolArray:
        """Whether each node has one of these names, (nodes,)."""
        rows = self._table.lookup([*names])
        return np.isin(self.rows, rows[rows != UNKNOWN_ROW])

    @property
    def positions(self) -> NodePositions:
        """The position of each node of `requested` in the order of the table."""
        return self.in_requested_order(np.arange(len(self)))

    def in_requested_order(self, values: Array) -> Array:
        """Values (nodes,) in the order of `requested`."""
        reordered: Array = np.empty_like(values)
        reordered[self.order] = values
        return reordered

    def among(self, positions: NodePositions) -> "CandidateNodes":
        """A part of these nodes, at the same moment."""
        if len(positions) == len(self) and np.array_equal(positions, np.arange(len(self))):
            return self
        order = self.order[positions]
        is_part = np.zeros(len(self.requested), np.bool_)
        is_part[order] = True
        if isinstance(self.requested, NodeNames):
            requested: Sequence[str] = self.requested.take(is_part)
        else:
            requested = [*compress(self.requested, is_part.tolist())]
        return self._part(positions, requested, (np.cumsum(is_part) - 1)[order])

    def in_order(self, positions: NodePositions) -> "CandidateNodes":
        """A few of these nodes, at the same moment, requested and read in the order of `positions`:
        a few rows cost the same in any order."""
        names = self.names
        requested = [names[position] for position in positions.tolist()]
        part = self._part(positions, requested, np.arange(len(positions)))
        values = self._all_cached().take(positions)
        values.flags.writeable = False
        part._cache = {name: values[name] for name in self._cache}
        return part

    def _all_cached(self) -> npt.NDArray[np.void]:
        """The cached arrays as fields, one record a node: a few nodes are read in one step."""
        packed, cache = self._packed, self._cache
        if packed is None or len(packed.dtype.names or ()) != len(cache):
            fields = [(name, values.dtype, values.shape[1:]) for name, values in cache.items()]
            packed = self._packed = np.empty(len(self), np.dtype(fields, align=True))
            for name, values in cache.items():
                packed[name] = values
        return packed

    def _part(
        self, positions: NodePositions, requested: Sequence[str], order: NodePositions
    ) -> "CandidateNodes":
        part = copy(self)
        part._select(requested, order, self.rows[positions])
        part._whole = self, positions
        part._freed = {name: values[positions] for name, values in self._freed.items()}
        part._fewer = None if self._fewer is None else self._fewer[positions]
        return part

    def read_again(self, now: float) -> "CandidateNodes":
        """The same nodes at a later time; valid while the table's `names_version` is the same."""
        self._table.bring_up_to_date(now)
        later = copy(self)
        later._select(self.requested, self.order, self.rows)
        later.now = now
        return later

    def cached(self, name: str, compute: Callable[[], Array]) -> Array:
        """An array (nodes, ..), computed at its first use in the request and cached under a name.
        It is read-only: it may be a view of the table."""
        values = self._cache.get(name)
        if values is None:
            values = self._known(name)
        if values is None:
            values = self._cache[name] = compute().view()
            values.flags.writeable = False
        return values  # type: ignore[return-value]

    def _known(self, name: str) -> npt.NDArray[Any] | None:
        """A cached array, or the part of an array that is cached for the nodes that these are a
        part of."""
        values = self._cache.get(name)
        if values is None and self._whole is not None and self._is_shared(name):
            whole, positions = self._whole
            of_whole = whole._known(name)
            if of_whole is not None:
                values = self._cache[name] = _taken(of_whole, positions)
                values.flags.writeable = False
        return values

    def _is_shared(self, name: str) -> bool:
        """Whether an array is that of the whole: lower sums and usage are not."""
        return not (self._is_reduced and name.startswith(_REDUCED))

    def column(self, name: str) -> FloatArray:
        """A column of the table, NaN is unknown. Raises KeyError for an unknown name."""
        return self.cached(name, lambda: _taken(self._table[name], self._index))

    def allocatable(self, resource: str, kind: str = "allocatable") -> IntArray:
        """Allocatable of a resource in whole units, 0 for none; `kind` may also be `capacity`, or
        `raw`: before amplification."""
        column = _COLUMNS.get(resource)
        if column is not None:
            name = f"{kind}_{column}"
            whole = self._table.whole(name)
            return self.cached(f"whole {name}", lambda: _taken(whole, self._index))
        return self.cached(f"scalar {resource}", lambda: self._table.scalar(resource, self.rows))

    @property
    def scalars(self) -> tuple[str, ...]:
        """The resources other than cpu and memory that any node has."""
        return self._table.scalars

    def usage(self, column: str, resources: Sequence[str]) -> FloatArray:
        """Usage (nodes, resources) in millicores, bytes and bytes a second, NaN is unknown.
        `column` is a prefix of columns: `usage`, `usage_mean_15m`, `peak`, `prod_usage`, ..."""
        return by_node([self._used(column, resource) for resource in resources])

    def _used(self, column: str, resource: str) -> FloatArray:
        if not (
            resource in _COLUMNS
            or (resource in RATES and column in _RATE_COLUMNS)
            or (resource in self._table.gauges and column == "usage")
        ):
            return np.full(len(self), np.nan)
        return self.cached(f"used {column} {resource}", lambda: self._read_used(column, resource))

    def _read_used(self, column: str, resource: str) -> FloatArray:
        used = self.column(f"{column}_{_COLUMNS.get(resource, resource)}")
        used = used * 1000.0 if resource == "cpu" else used
        kind = _OF_ALL_PODS if column.startswith(_OF_ALL_PODS) else column
        freed = self._freed.get(f"{kind} {resource}")
        return used if freed is None else np.maximum(used - freed, 0.0)

    def has_usage(self, column: str, resources: Sequence[str]) -> BoolArray:
        """Where usage of any of the resources is known."""
        return self.cached(
            f"has {column} {resources}",
            lambda: np.logical_or.reduce(np.isfinite(self.usage(column, resources)), axis=1),
        )

    def counted(self, name: str) -> IntArray:
        """Sum of an amount over the pods of each node, pods on their way included."""
        return self.cached(f"sum {name}", lambda: self._read_sums(name))

    def _read_sums(self, name: str) -> IntArray:
        sums = self._table.pods.sums_of(name, self._index)
        if self._fewer is None:
            return sums
        return sums - self._fewer[:, self.counted_names.index(name)]

    @property
    def counted_names(self) -> tuple[str, ...]:
        """The names that `counted` takes, in the order of amounts."""
        return self._table.pods.counting.names

    def without_pods(self, uids: Sequence[Sequence[str]]) -> "CandidateNodes":
        """The nodes as they would be without some of their pods: `uids` lists them per node. Usage
        that was measured stays."""
        pods = self._table.pods
        amounts = [
            pods.amounts_of(of_node, row)
            for of_node, row in zip(uids, self.rows.tolist(), strict=True)
        ]
        shape = len(self), len(self.counted_names)
        part = self.reduced(np.array(amounts, np.int64).reshape(shape), {})
        flights = self._table.flight_without(self.rows, uids)
        for is_prod, flight in zip((False, True), flights, strict=True):
            part._cache[f"flight {is_prod}"] = flight * self._in_flight
        return part

    def reduced(
        self,
        amounts: IntArray,
        used: Mapping[str, FloatArray],
        prod_used: Mapping[str, FloatArray] = MappingProxyType({}),
    ) -> "CandidateNodes":
        """The nodes as they would be with lower sums, by `amounts` (nodes, amounts), and with lower
        usage, in all and of Prod, by resource in millicores and bytes; negative amounts add. Cached
        arrays that depend on usage are dropped, the others are shared."""
        part = copy(self)
        part._packed, part._is_reduced = None, True
        part._cache = {
            name: values for name, values in self._cache.items() if not name.startswith(_REDUCED)
        }
        part._fewer = amounts if self._fewer is None else self._fewer + amounts
        part._freed = {f"{_OF_ALL_PODS} {name}": freed for name, freed in used.items()}
        part._freed |= {f"{_OF_PROD} {name}": freed for name, freed in prod_used.items()}
        return part

    def evictable(self) -> EvictablePods:
        """The pods of these nodes of lower classes than Prod that the last window measured."""
        began = self.column("as_of_seconds") - np.nan_to_num(self.column("window_seconds"))
        return self._table.pods.evictable(self.rows, began)

    def uid_at(self, slot: int) -> str:
        """The UID of a pod by its slot in `EvictablePods`."""
        return self._table.pods.uid_at(slot)

    def in_flight_usage(self, *, prod: bool = False) -> IntArray:
        """What pods in flight add to usage, (nodes, resources of LoadAwareScheduling)."""
        pods = self._table.pods
        return self._added(f"flight {prod}", pods.prod_flight if prod else pods.flight)

    def unreported_usage(self) -> IntArray:
        """Estimates of pods that the last window does not have, (nodes, resources of
        LoadAwareScheduling)."""
        return self._added("unreported", self._table.pods.unreported)

    def unmeasured(self) -> IntArray:
        """Millicores of pods that the average usage does not include yet."""
        return self._added("unmeasured", self._table.pods.unmeasured)

    def unseen(self) -> IntArray:
        """Millicores of pods that started after the last window began."""
        return self._added("unseen", self._table.pods.unseen)

    def _added(self, name: str, of_rows: IntArray) -> IntArray:
        if not self._in_flight:
            return self.cached(name, lambda: np.zeros_like(_taken(of_rows, self._index)))
        return self.cached(name, lambda: _taken(of_rows, self._index))

    def ages(self) -> FloatArray:
        """Seconds since the end of the last window, NaN for none."""
        return self.now - self.column("as_of_seconds")

    def is_fresh(self, expiration_seconds: float) -> BoolArray:
        """Where usage is younger than this, and where a node is new."""
        return self.cached(
            f"fresh {float(expiration_seconds)}",
            lambda: self._table.fresh(self._index, self.now, expiration_seconds) | self.is_new(),
        )

    def is_new(self) -> BoolArray:
        """Where a node never reported and all of its pods are young: it uses nothing yet."""
        return self.cached("new", self._is_new)

    def _is_new(self) -> BoolArray:
        oldest = self._table.pods.oldest[self._index]
        exists = np.isfinite(self.column("allocatable_cpu_cores"))
        never = np.isnan(self.column("as_of_seconds")) & (self.rows != UNKNOWN_ROW)
        is_new: BoolArray = exists & never & (oldest > self.now - limits.NEW_NODE_SECONDS)
        return is_new

    def metadata(self, source: MetadataSource, key: str) -> Texts:
        """A label or an annotation of each node."""
        return self._table.texts(source, key, self._index)

    def by_name(self, values: Mapping[str, Any], fields: Sequence[str]) -> FloatArray:
        """Fields of the value of each node, (fields, nodes), from `values` by name; NaN for a node
        without a value, and for one that is not in the table. `values` must not change."""
        return self._table.by_name(values, fields, self._index)

    def remembered(
        self, name: str, inputs: FloatArray, compute: Callable[[FloatArray], FloatArray]
    ) -> FloatArray:
        """`compute(inputs)`, (nodes,), computed only for nodes whose `inputs` (n, nodes) are not
        those of the last call under this name."""
        memory = self._table.memory(name, len(inputs) + 1)
        before = memory[:, self._index]
        # Bits are compared: NaN is equal to itself.
        bits = np.ascontiguousarray(inputs).view(np.int64)
        is_new = np.logical_or.reduce(bits != before[:-1].view(np.int64), axis=0)
        changed = np.flatnonzero(is_new)
        result: FloatArray = before[-1].copy()
        if len(changed):
            result[changed] = compute(inputs[:, changed])
            rows = self.rows[changed]
            memory[:-1, rows], memory[-1, rows] = inputs[:, changed], result[changed]
        return result

    def records(self, position: int) -> NodeRecords:
        """The newest records of one of these nodes."""
        return self._table.records(int(self.rows[position]))


def _taken(values: Array, index: Rows) -> Array:
    """The values at these rows; columns stay contiguous, which indexing does not care for."""
    if isinstance(index, slice):
        return values[index]  # type: ignore[return-value]
    return values.T.take(index, axis=-1).T  # type: ignore[return-value]


def _as_slice(rows: RowArray) -> Rows:
    """The slice of consecutive rows, which needs no copy of a column; else the rows."""
    if not len(rows):
        return slice(0)
    first, end = int(rows[0]), int(rows[-1]) + 1
    # The ends alone tell in most cases: rows are mostly ascending, and occur once each.
    if first < 0 or end - first != len(rows) or not np.array_equal(rows, np.arange(first, end)):
        return rows
    return slice(first, end)


def _by_row(rows: RowArray) -> NodePositions:
    """The positions of rows in ascending order of the rows. Known rows occur once each, so many of
    them need no sort: each position is put where its row is."""
    places = int(rows.max(initial=0)) + 2
    if _FEW * len(rows) < places:
        return np.argsort(rows, kind="stable")
    position_of: NodePositions = np.full(places, -1, np.intp)
    position_of[rows] = np.arange(len(rows))
    positions = position_of[position_of >= 0]
    return positions if len(positions) == len(rows) else np.argsort(rows, kind="stable")


def by_node(columns: Sequence[Array]) -> Array:
    """Columns (nodes,) side by side, (nodes, columns). Each stays contiguous, so that reductions
    over the few columns are as fast as those over the many nodes."""
    table: Array = np.array(columns).T  # type: ignore[assignment]
    return table


_FEW: Final = 16
"""Fewer than one of so many rows are sorted faster than all rows are passed over."""
_OF_ALL_PODS: Final = "usage"
_OF_PROD: Final = "prod_usage"
# How the names of cached arrays begin that depend on sums or on usage.
_REDUCED: Final = ("sum ", "compared ", f"used {_OF_ALL_PODS}", f"used {_OF_PROD}")
_COLUMNS: Final = {"cpu": "cpu_cores", "memory": "memory_bytes"}
_RATE_COLUMNS: Final = frozenset(
    {"usage", *(f"usage_{name}_{span}" for name in ("mean", "stdev") for span in DEVIATION)}
)
