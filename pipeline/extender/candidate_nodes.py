"""The nodes of one question as they are at one moment: columns of the table, read once.

Owes the rest: the same numbers to every filter and score that looks at a question. A column is
read when it is first asked for: whoever keeps a moment looks at `Table.version` before it is used
again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.loadaware.pod_amounts import Counting, by_name
from pipeline.table import UNKNOWN_ROW, NodeRecords, RowArray, Rows, Table
from pipeline.table.name_index import Names
from pipeline.table.pod_columns import EvictablePods
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import RATES

NEW_SECONDS: Final = 300.0
"""A node without any report is new while none of its pods is there for longer."""

NodePositions = npt.NDArray[np.intp]
"""Where some nodes lie among others, (nodes,)."""

Array = TypeVar("Array", bound=npt.NDArray[Any])


class PodDemand(NamedTuple):
    """The pod of a question, and what would count of it on a node, by the names of `Counting`."""

    pod: PodRecord
    counted: dict[str, int]

    @property
    def is_prod(self) -> bool:
        return self.pod.pod_class == "prod"

    def amounts(self, kind: str, resources: Sequence[str]) -> IntArray:
        """What counts of some resources, such as `estimate` of each, (resources,)."""
        return np.array([self.counted[f"{kind}:{name}"] for name in resources], np.int64)

    @property
    def requests(self) -> dict[str, int]:
        return by_name(self.pod.requests, self.pod.scalars)


def pod_demand(pod: PodRecord, counting: Counting) -> PodDemand:
    """What `counting` counts of this pod."""
    return PodDemand(pod, dict(zip(counting.names, counting.amounts(pod), strict=True)))


class CandidateNodes:
    """The nodes `names` (each once) at `now`; arrays are (nodes,), in their order."""

    def __init__(
        self,
        table: Table,
        names: Sequence[str],
        now: float,
        *,
        in_flight: bool = True,
        rows: RowArray | None = None,
    ) -> None:
        table.bring_up_to_date(now)
        self._in_flight = in_flight
        self.names = names
        self.now = now
        self.rows = table.lookup(names) if rows is None else rows
        self._at = _side_by_side(self.rows)
        self._table = table
        self._seen: dict[str, npt.NDArray[Any]] = {}
        self._freed: dict[str, FloatArray] = {}

    def __len__(self) -> int:
        return len(self.names)

    def among(self, places: NodePositions) -> "CandidateNodes":
        """Some of these nodes, as they were at the same moment."""
        if len(places) == len(self) and np.array_equal(places, np.arange(len(self))):
            return self
        part = CandidateNodes.__new__(CandidateNodes)
        part.names = some_of(self.names, places)
        part.now, part.rows, part._table = self.now, self.rows[places], self._table
        part._at = _side_by_side(part.rows)
        part._in_flight = self._in_flight
        part._seen = {name: values[places] for name, values in self._seen.items()}
        part._freed = {name: values[places] for name, values in self._freed.items()}
        return part

    def once(self, name: str, found: Callable[[], Array]) -> Array:
        """What `found` gives for these nodes, (nodes, ..), asked for once under this name. It may
        lie in the table itself: it is not to be written to."""
        if name not in self._seen:
            self._seen[name] = found().view()
            self._seen[name].flags.writeable = False
        values: Array = self._seen[name]  # type: ignore[assignment]
        return values

    def column(self, name: str) -> FloatArray:
        """A column of the table; NaN where nothing is known. KeyError for one that is none."""
        return self.once(name, lambda: self._table[name][self._at])

    def allocatable(self, resource: str, kind: str = "allocatable") -> IntArray:
        """What pods may ask for, whole, 0 for nothing; as `kind` `raw` before amplification."""
        column = _COLUMNS.get(resource)
        if column is not None:
            name = f"{kind}_{column}"
            return self.once(f"whole {name}", lambda: self._table.whole(name)[self._at])
        return self.once(f"scalar {resource}", lambda: self._table.scalar(resource, self.rows))

    @property
    def scalars(self) -> tuple[str, ...]:
        """The resources that any node of the table has but cpu and memory."""
        return self._table.scalars

    def usage(self, column: str, resources: Sequence[str]) -> FloatArray:
        """What is used as the columns that begin so have it, (nodes, resources) in millicores,
        bytes and bytes a second; NaN where that is not known."""
        return by_node([self._used(column, resource) for resource in resources])

    def _used(self, column: str, resource: str) -> FloatArray:
        if resource not in _COLUMNS and not (resource in RATES and column == "usage"):
            return np.full(len(self), np.nan)
        return self.once(f"used {column} {resource}", lambda: self._read_used(column, resource))

    def _read_used(self, column: str, resource: str) -> FloatArray:
        used = self.column(f"{column}_{_COLUMNS.get(resource, resource)}")
        if resource == "cpu":
            used = used * 1000.0
        if resource in self._freed and column.startswith(_OF_ALL):
            used = np.maximum(used - self._freed[resource], 0.0)
        return used

    def has_usage(self, column: str, resources: Sequence[str]) -> BoolArray:
        """Where any of that is known."""
        return self.once(f"has {column} {resources}", lambda: self._has_usage(column, resources))

    def _has_usage(self, column: str, resources: Sequence[str]) -> BoolArray:
        found = np.zeros(len(self), np.bool_)
        for resource in resources:
            found |= np.isfinite(self._used(column, resource))
        return found

    def counted(self, name: str) -> IntArray:
        """What counts of the pods of each node, those on their way to it, too."""
        return self.once(name, lambda: self._table.pods.named(name, self._at))

    def without(self, gone: Sequence[Sequence[str]]) -> "CandidateNodes":
        """Each of these nodes as it would be if the pods of these UIDs were not there, `gone` by
        place. What was measured of them stays measured."""
        pods, names = self._table.pods, self.counted_names
        each = [
            pods.amounts_of(uids, row) for uids, row in zip(gone, self.rows.tolist(), strict=True)
        ]
        part = self.less(np.array(each, np.int64).reshape(len(self), len(names)), {})
        flights = self._table.flight_without(self.rows, gone)
        for is_prod, flight in zip((False, True), flights, strict=True):
            part._seen[f"flight {is_prod}"] = flight * self._in_flight
        return part

    def less(self, amounts: IntArray, used: Mapping[str, FloatArray]) -> "CandidateNodes":
        """These nodes as they would be if pods of lower classes than Prod were gone: less of what
        counts of pods, (nodes, amounts), and less usage, by resource in millicores and bytes."""
        part = CandidateNodes.__new__(CandidateNodes)
        part.names, part.now, part.rows, part._table = self.names, self.now, self.rows, self._table
        part._at = self._at
        part._in_flight = self._in_flight
        stays = {name: of for name, of in self._seen.items() if not name.startswith(_GOES)}
        part._seen, part._freed = stays, dict(used)
        for at, name in enumerate(self._table.pods.counting.names):
            part._seen[name] = self.counted(name) - amounts[:, at]
        return part

    @property
    def counted_names(self) -> tuple[str, ...]:
        """What `counted` can be asked for, in the order of amounts."""
        return self._table.pods.counting.names

    def uid_at(self, place: int) -> str:
        """The UID of the pod in this place of the ledger."""
        return self._table.pods.uid_at(place)

    def evictable(self) -> EvictablePods:
        """The pods of these nodes that are of lower classes than Prod, and were measured."""
        began = self.column("as_of_seconds") - np.nan_to_num(self.column("window_seconds"))
        return self._table.pods.evictable(self.rows, began)

    def flight(self, *, prod: bool = False) -> IntArray:
        """What of the pods in flight is to be added to usage, (nodes, resources of LoadAware)."""
        pods = self._table.pods
        source = pods.prod_flight if prod else pods.flight
        if not self._in_flight:
            return self.once(f"flight {prod}", lambda: np.zeros_like(source[self._at]))
        return self.once(f"flight {prod}", lambda: source[self._at])

    def unmeasured(self) -> IntArray:
        """The millicores that TargetLoadPacking adds to averages, for pods that are not in them."""
        return self._added("unmeasured", self._table.pods.unmeasured)

    def unseen(self) -> IntArray:
        """Those that it adds to the last window, for pods that came after that began."""
        return self._added("unseen", self._table.pods.unseen)

    def _added(self, name: str, of_rows: IntArray) -> IntArray:
        if not self._in_flight:
            return self.once(name, lambda: np.zeros_like(of_rows[self._at]))
        return self.once(name, lambda: of_rows[self._at])

    def ages(self) -> FloatArray:
        """Seconds since the end of the last window, NaN for none."""
        return self.now - self.column("as_of_seconds")

    def is_fresh(self, expiration_seconds: float) -> BoolArray:
        """Where usage is young enough to speak for the present; so is that of a new node."""
        return (
            self.once(
                f"fresh {expiration_seconds}",
                lambda: self._table.fresh(self._at, self.now, expiration_seconds),
            )
            | self.is_new()
        )

    def is_new(self) -> BoolArray:
        """Nodes that nobody has reported yet, and that have no pod for long: they use nothing but
        what is on its way to them."""
        return self.once("new", self._is_new)

    def _is_new(self) -> BoolArray:
        oldest = self._table.pods.oldest[self._at]
        there = np.isfinite(self.column("allocatable_cpu_cores"))
        never = np.isnan(self.column("as_of_seconds")) & (self.rows != UNKNOWN_ROW)
        found: BoolArray = there & never & (oldest > self.now - NEW_SECONDS)
        return found

    def metadata(self, source: Literal["Label", "Annotation"], key: str) -> list[str | None]:
        """A label or an annotation of each node, None where a node has none."""
        nodes = [self.node(place).node for place in range(len(self))]
        return [
            None
            if node is None
            else (node.labels if source == "Label" else node.annotations).get(key)
            for node in nodes
        ]

    def node(self, place: int) -> NodeRecords:
        """The records of one of these nodes."""
        return self._table.snapshot(self.names[place])


def _side_by_side(rows: RowArray) -> Rows:
    """A slice instead of rows that lie so: what is there is not copied then."""
    first, count = int(rows[0]) if len(rows) else 0, len(rows)
    if first >= 0 and np.array_equal(rows, np.arange(first, first + count)):
        return slice(first, first + count)
    return rows


def by_row(rows: RowArray) -> NodePositions:
    """The places of rows, the lowest row first; each is there once, but for that of no node.

    >>> by_row(np.array([4, 0, -1, 3]))
    array([1, 3, 0, 2])
    """
    place_of: NodePositions = np.full(int(rows.max(initial=0)) + 2, -1, np.intp)
    place_of[rows] = np.arange(len(rows))
    places = place_of[place_of >= 0]
    return places if len(places) == len(rows) else np.argsort(rows, kind="stable")


def some_of(names: Sequence[str], places: NodePositions) -> Sequence[str]:
    """The names in these places."""
    if isinstance(names, Names):
        return names.take(places)
    return [names[place] for place in places.tolist()]


def by_node(columns: Sequence[Array]) -> Array:
    """Columns (nodes,) side by side, (nodes, columns). Each lies in one piece: so sums over the few
    columns are as fast as over the many nodes."""
    found: Array = np.array(columns).T  # type: ignore[assignment]
    return found


_OF_ALL: Final = "usage"
# What of a moment is worked out of usage.
_GOES: Final = ("used ", "compared ")
_COLUMNS: Final = {"cpu": "cpu_cores", "memory": "memory_bytes"}
