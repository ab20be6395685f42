"""Make windows of the rows of an archive again: what `decode_window` returned for their records.

Windows of a batch share its columns, so that a month of history is read without a copy of each
number. Facts that repeat from window to window are one object, as in the log.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import InvalidRecordError
from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.processors.archive.archive_schema import ARCHIVE_SCHEMA, POD_NAMES
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.topics.entity_listings import Listing, listing_of
from pipeline.topics.pod_columns import DecodedPods, PodColumns, encode_pod_columns
from pipeline.topics.resource_amounts import first_gauges
from pipeline.topics.sample_rows import SampleRows, container_lists, encode_arrays
from pipeline.topics.samples import KINDS, LIST_COLUMNS, NUMBER_COLUMNS, SampleHeader
from pipeline.topics.windows import (
    Window,
    WindowRows,
    departure,
    read_node_facts,
    retraction,
)

_ROW_OF_STATISTIC: Final = {name: row for row, name in enumerate(NUMBER_COLUMNS)}
_NODE: Final = KINDS.index("node")
_json = msgspec.json.Decoder()
# What a window has, and the end of a node.
_OF_WINDOWS: Final = ("window_start", "window_end", "node_facts", "statistics")
_OF_ALL: Final = ("node", "sample_appended")
_PLACE: Final = ("log_partition", "log_offset")
_CONTAINER_COLUMNS: Final = ("container_cpu_cores", "container_memory_bytes")
# The columns of the node's row that windows are made of.
_OF_NODE: Final = (
    "type", "log_partition", "log_offset", "node", "window_start", "window_end", "node_facts",
    "machine_id", "source", "boot_id", "epoch", "sequence", "simulated", "sample_offset",
    "sample_appended", "statistics", "bad_values",
)  # fmt: skip


class _Numbers:
    """The statistics and points of all rows of a batch, each converted when first needed."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    @cached_property
    def values(self) -> FloatArray:
        """Statistics, (`NUMBER_COLUMNS`, rows); NaN where null or NaN."""
        arrays = [self._batch[name].to_numpy(zero_copy_only=False) for name in NUMBER_COLUMNS]
        return np.array(arrays, np.float64).reshape(len(NUMBER_COLUMNS), len(self._batch))

    @cached_property
    def null(self) -> BoolArray:
        """Whether each of `values` is null."""
        arrays = [_is_null(self._batch[name]) for name in NUMBER_COLUMNS]
        return np.array(arrays, np.bool_).reshape(len(NUMBER_COLUMNS), len(self._batch))

    @cached_property
    def points(self) -> FloatArray:
        """Points of all nodes, (points, 3); NaN where null or NaN."""
        arrays = [self._points_of(name).to_numpy(zero_copy_only=False) for name in LIST_COLUMNS]
        return np.stack(arrays, axis=1, dtype=np.float64)

    @cached_property
    def null_points(self) -> BoolArray:
        """Whether each of `points` is null."""
        return np.stack([_is_null(self._points_of(name)) for name in LIST_COLUMNS], axis=1)

    @cached_property
    def point_starts(self) -> IntArray:
        """The first point of each row, and the number of all, (rows + 1,)."""
        lengths = self._batch[LIST_COLUMNS[0]].value_lengths().fill_null(0)
        return np.cumsum([0, *lengths.to_numpy()])

    @cached_property
    def gauges(self) -> list[dict[str, float]]:
        """The gauges of each row that are not null."""
        return [dict(gauges or ()) for gauges in self._batch["gauges"].to_pylist()]

    @cached_property
    def container_usage(self) -> FloatArray:
        """Usage of all containers row by row, (containers, 2); NaN is unknown."""
        columns = [self._batch[name].flatten() for name in _CONTAINER_COLUMNS]
        if len({self.container_starts[-1], *map(len, columns)}) != 1:
            raise InvalidRecordError("lists of containers differ in length")
        values = [column.to_numpy(zero_copy_only=False) for column in columns]
        return np.stack(values, axis=1, dtype=np.float64)

    @cached_property
    def container_starts(self) -> IntArray:
        """The first container of each row, and the number of all, (rows + 1,)."""
        lengths = self._batch["container_ids"].value_lengths().fill_null(0)
        return np.cumsum([0, *lengths.to_numpy()])

    def _points_of(self, name: str) -> pa.Array:
        values = self._batch[name].flatten()
        if len(values) != self.point_starts[-1]:
            raise InvalidRecordError("lists of points differ in length")
        return values


class ArchivedSample(SampleRows):
    """The rows of one sample, in the columns of a batch of an archive."""

    def __init__(
        self, header: SampleHeader, listing: Listing, statistics: Mapping[str, int],
        numbers: _Numbers, rows: slice, qos: list[str],
    ) -> None:  # fmt: skip
        self.header, self.listing, self.statistic_rows = header, listing, statistics
        self._numbers, self._rows = numbers, rows
        self.__dict__["qos"] = qos

    @cached_property
    def data(self) -> bytes:  # type: ignore[override]  # made when somebody asks
        """The record of `springtide.samples`, encoded again."""
        return encode_arrays(
            self.header,
            kinds=[KINDS[code] for code in self.listing.kinds],
            ids=self.listing.ids,
            qos=self.qos,
            statistics={
                name: pa.array(self.numbers[row], mask=self.null[row])
                for name, row in self.statistic_rows.items()
            },
            points=pa.array(self.points.ravel(), mask=self.null_points.ravel()),
            containers=self.container_lists,
        )

    @cached_property
    def container_lists(self) -> pa.ListArray | None:  # type: ignore[override]  # likewise
        """The containers of each row, None without any."""
        usage = self.container_usage
        return container_lists(self.listing, usage, np.isnan(usage))

    @cached_property
    def container_usage(self) -> FloatArray:
        """Usage of the containers of `listing.container_ids`, (containers, 2) cores and bytes."""
        if not self.listing.container_ids:
            return np.zeros((0, 2))
        first, end = self._numbers.container_starts[[self._rows.start, self._rows.stop]].tolist()
        usage: FloatArray = self._numbers.container_usage[first:end][self.listing.container_order]
        return usage

    @cached_property
    def numbers(self) -> FloatArray:
        """All statistics, (statistics, rows); NaN where null or NaN."""
        values: FloatArray = self._select(self._numbers.values, np.nan)
        for name in self._other_names:
            own = [gauges.get(name, np.nan) for gauges in self._numbers.gauges[self._rows]]
            values[self.statistic_rows[name]] = own
        return values

    @cached_property
    def null(self) -> BoolArray:
        """Whether each of `numbers` is null, (statistics, rows)."""
        null: BoolArray = self._select(self._numbers.null, True)
        for name in self._other_names:
            own = [name not in gauges for gauges in self._numbers.gauges[self._rows]]
            null[self.statistic_rows[name]] = own
        return null

    @property
    def null_count(self) -> int:
        """Number of nulls in `numbers`."""
        return int(np.count_nonzero(self.null))

    @property
    def gauges(self) -> dict[str, float]:
        """The gauges of the node that are known."""
        if not self._other_names:
            return {}
        of_node = self._numbers.gauges[self._rows][self.listing.node]
        names = first_gauges(self.statistic_rows)
        return {name: of_node[name] for name in names if not np.isnan(of_node.get(name, np.nan))}

    @property
    def surplus_gauges(self) -> int:
        """Gauges that were ignored: the log has none."""
        return 0

    @cached_property
    def points(self) -> FloatArray:
        """Raw measurements of the node, (points, 3) in order of `LIST_COLUMNS`."""
        return self._numbers.points[self._point_rows].copy()

    @cached_property
    def null_points(self) -> BoolArray:
        """Whether each of `points` is null, (points, 3)."""
        return self._numbers.null_points[self._point_rows]

    @cached_property
    def _point_rows(self) -> slice:
        row = self._rows.start + self.listing.node
        return slice(*self._numbers.point_starts[row : row + 2].tolist())

    @property
    def _other_names(self) -> tuple[str, ...]:
        return _places(tuple(self.statistic_rows)).others

    def _select(self, values: Any, missing: Any) -> Any:
        places = _places(tuple(self.statistic_rows))
        if not places.others:
            return values[places.sources, self._rows]
        selected = np.full((len(self.statistic_rows), len(self)), missing)
        selected[places.targets] = values[places.sources, self._rows]
        return selected


class _Places(msgspec.Struct, frozen=True):
    """Rows `targets` of a sample are `NUMBER_COLUMNS` at `sources`; `others` are gauges."""

    targets: list[int]
    sources: list[int]
    others: tuple[str, ...]


@lru_cache(maxsize=256)
def _places(names: tuple[str, ...]) -> _Places:
    known = [(row, name) for row, name in enumerate(names) if name in _ROW_OF_STATISTIC]
    return _Places(
        [row for row, _ in known],
        [_ROW_OF_STATISTIC[name] for _, name in known],
        tuple(name for name in names if name not in _ROW_OF_STATISTIC),
    )


@lru_cache(maxsize=256)
def _statistic_rows(text: str) -> Mapping[str, int]:
    """One object for all samples with these statistics, as in the log."""
    return {name: row for row, name in enumerate(cast(list[str], _decoded("statistics", text)))}


def _decoded(column: str, text: str) -> Any:
    try:
        return _json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidRecordError(f"{column} of a window is no JSON: {error}") from error


def archived_windows(batch: pa.RecordBatch) -> Iterator[LoggedWindow]:
    """Yield the windows of these rows, in their order; all rows of a window must be there.

    Raises `InvalidRecordError` if the columns are not those of `ARCHIVE_SCHEMA`, or rows do not
    make a window.
    """
    if batch.schema.names != ARCHIVE_SCHEMA.names:
        raise InvalidRecordError("columns are not those of an archive")
    if not len(batch):
        return
    starts = _window_starts(batch)
    rows = [slice(*bounds) for bounds in zip(starts, [*starts[1:], len(batch)], strict=True)]
    listings = _Listings(batch)
    numbers = _Numbers(batch)
    qos = batch["qos"].to_pylist()
    for head, place in zip(_heads(batch, len(rows)), rows, strict=True):
        yield LoggedWindow(
            head["log_partition"],
            head["log_offset"],
            _window(head, place, listings, numbers, qos[place]),
        )


def _window_starts(batch: pa.RecordBatch) -> list[int]:
    """The first row of each window."""
    for name in _PLACE:
        if batch[name].null_count:
            raise InvalidRecordError(f"a row has no {name}")
    partitions, offsets = (batch[name].to_numpy() for name in _PLACE)
    is_new = (offsets[1:] != offsets[:-1]) | (partitions[1:] != partitions[:-1])
    return [0, *(np.flatnonzero(is_new) + 1).tolist()]


def _heads(batch: pa.RecordBatch, windows: int) -> list[dict[str, Any]]:
    """The columns of each window's node row, times in milliseconds."""
    is_node = pa.compute.equal(batch["kind"], KINDS[_NODE])
    columns = {}
    for name in _OF_NODE:
        values = batch[name].filter(is_node)
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.int64())
        if len(values) != windows:
            raise InvalidRecordError(f"{windows} windows have {len(values)} rows of nodes")
        columns[name] = values.to_pylist()
    heads = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for head in heads:
        needed = (*_OF_ALL, *_OF_WINDOWS) if head["type"] == "window" else _OF_ALL
        if missing := [name for name in needed if head[name] is None]:
            raise InvalidRecordError(f"the row of a node has no {missing[0]}")
    return heads


def _window(
    head: dict[str, Any], rows: slice, listings: "_Listings", numbers: _Numbers, qos: list[str]
) -> Window:
    if head["type"] != "window":
        end = departure if head["type"] == "departure" else retraction
        return end(head["node"], head["sample_appended"])
    header = SampleHeader(
        node=head["node"], machine_id=head["machine_id"], boot_id=head["boot_id"],
        epoch=head["epoch"], sequence=head["sequence"], simulated=head["simulated"],
        source=head["source"],
        window_start_ms=head["window_start"], window_end_ms=head["window_end"],
    )  # fmt: skip
    listing, pods = listings.of(rows)
    sample = ArchivedSample(
        header, listing, _statistic_rows(head["statistics"]), numbers, rows, qos
    )
    return Window(
        type="window",
        header=header,
        rows=WindowRows(sample, pods),
        node=read_node_facts(head["node_facts"].encode()),
        sample_offset=head["sample_offset"],
        appended_ms=head["sample_appended"],
        bad_values=_decoded("bad_values", head["bad_values"] or "{}"),
    )


class _Listings:
    """The entities of windows and the facts about their pods, made once for windows that repeat
    them."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._entities = [batch[name] for name in ("kind", "id")]
        self._container_ids = batch["container_ids"]
        self._facts = {name: batch[column] for name, column in POD_NAMES.items()}
        self._entity_codes = _codes([*self._entities, self._container_ids])
        self._fact_codes = _codes([*self._facts.values()])
        self._listings: dict[bytes, Listing] = {}
        self._pods: dict[tuple[int, bytes], PodColumns] = {}

    def of(self, rows: slice) -> tuple[Listing, PodColumns]:
        """The listing of these rows, and the facts about its pods."""
        entities = self._entity_codes[rows].tobytes()
        listing = self._listings.get(entities)
        if listing is None:
            # A slice shares the buffers of its array, from which `listing_of` reads.
            kinds, ids = (pa.concat_arrays([each[rows]]) for each in self._entities)
            containers = _filled(self._container_ids[rows])
            listing = self._listings[entities] = listing_of(kinds, ids, containers)
        facts = id(listing), self._fact_codes[rows].tobytes()
        pods = self._pods.get(facts)
        if pods is None:
            pods = self._pods[facts] = self._read_pods(listing, rows)
        return listing, pods

    def _read_pods(self, listing: Listing, rows: slice) -> PodColumns:
        index = pa.array(listing.pods + rows.start)
        columns = {
            name: tuple(values.take(index).to_pylist()) for name, values in self._facts.items()
        }
        known = {
            name: values
            for name, values in columns.items()
            if name == "pod_class" or any(value is not None for value in values)
        }
        return encode_pod_columns(DecodedPods(**known))


def _codes(columns: Sequence[pa.Array]) -> Any:
    """A whole number for each value of these columns, (rows, columns): equal ones for equal values,
    -1 for null."""
    return np.stack([_codes_of(column) for column in columns], axis=1)


def _codes_of(column: pa.Array) -> npt.NDArray[np.int32]:
    if not pa.types.is_list(column.type):
        indices = column.dictionary_encode().indices
        return np.asarray(indices.fill_null(-1).to_numpy().astype(np.int32))
    known: dict[tuple[Any, ...], int] = {}
    values = column.to_pylist() if column.null_count < len(column) else [None] * len(column)
    return np.array(
        [-1 if each is None else known.setdefault(tuple(each), len(known)) for each in values],
        np.int32,
    )


def _filled(lists: pa.ListArray) -> pa.ListArray:
    """The lists, empty ones in place of nulls."""
    lengths = lists.value_lengths().fill_null(0).to_numpy()
    offsets = pa.array(np.cumsum([0, *lengths]), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.concat_arrays([lists.flatten()]))


def _is_null(values: pa.Array) -> BoolArray:
    null: BoolArray = values.is_null().to_numpy(zero_copy_only=False)
    return null
