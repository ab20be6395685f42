"""Decode records of `springtide.samples` into arrays.

Only workers import this module: numpy and pyarrow are too large for the exporter.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import InvalidRecordError, UndecodableRecordError
from pipeline.topics.arrow import read_batch, read_schema, schema_end
from pipeline.topics.codec import check_readable, decode_json, encode_json
from pipeline.topics.entity_listings import Listing as Listing
from pipeline.topics.entity_listings import listing_of
from pipeline.topics.nodes import check_node_name
from pipeline.topics.resource_amounts import first_gauges
from pipeline.topics.samples import (
    CONTAINERS,
    KINDS,
    LIST_COLUMNS,
    NUMBER_COLUMNS,
    SampleBatch,
    SampleContainer,
    SampleHeader,
    sample_metadata,
)

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]

_LAST_MS: Final = 253_402_300_799_000
_MAX_WINDOW_MS: Final = 86_400_000
_TRIPLE: Final = len(LIST_COLUMNS)
_TEXT: Final = pa.string()
_CONTAINER: Final = pa.struct(
    {"id": _TEXT, "cpu_cores": pa.float64(), "memory_bytes": pa.float64()}
)
# Not `pa.array`, which imports pandas if it is installed: a third of the start of every role.
_NO_NUMBERS: Final = pa.nulls(0, pa.float64())
_CACHED_BYTES: Final = 16 * 1024

_names = msgspec.json.Decoder(list[str])
_check_node_name = lru_cache(maxsize=16_384)(check_node_name)


class _Layout(NamedTuple):
    """Positions of the columns in `schema`, -1 where missing. A row has `size` statistics, of which
    the topic knows those at `known` (None: all). `statistic_rows` maps their names to their rows in
    `SampleRows.numbers`; `gauges` are those among them, and `surplus_gauges` counts what looks like
    a gauge and is ignored."""

    schema: pa.Schema
    kind: int
    id: int
    qos: int
    statistics: int
    points: int
    containers: int
    size: int
    known: list[int] | None
    statistic_rows: Mapping[str, int]
    gauges: tuple[str, ...]
    surplus_gauges: int


class SampleRows:
    """The rows of one sample, made by `read_rows`.

    `data` is the record and `listing` the entities of its rows. `statistic_rows` maps the name of
    each statistic to its row in `numbers`; samples with equal statistics share it.
    `container_lists` are the containers of each row, None without any. Nobody may write to the
    arrays, because cached samples share them.
    """

    def __init__(
        self, data: bytes, header: SampleHeader, batch: pa.RecordBatch, layout: _Layout
    ) -> None:
        self.data = data
        self.header = header
        self.statistic_rows = layout.statistic_rows
        self.container_lists = batch.column(layout.containers) if layout.containers >= 0 else None
        lists = self.container_lists
        if lists is not None and (lists.null_count or lists.values.null_count):
            raise InvalidRecordError("containers of a row are null")
        self.listing = listing_of(
            batch.column(layout.kind),
            batch.column(layout.id),
            None
            if lists is None
            else pa.ListArray.from_arrays(lists.offsets, lists.values.field("id")),
        )
        self._batch = batch
        self._layout = layout
        self._values = _items(batch.column(layout.statistics), layout.size)
        self._points = batch.column(layout.points) if layout.points >= 0 else None
        if self._points is not None:
            _items(self._points.values, _TRIPLE)
            if self._points.null_count:
                raise InvalidRecordError("points of a row are null")

    def __len__(self) -> int:
        return len(self.listing.ids)

    @cached_property
    def numbers(self) -> FloatArray:
        """All statistics, (statistics, rows); NaN where null or NaN."""
        return self._by_statistic(self._values.to_numpy(zero_copy_only=False))

    @cached_property
    def null(self) -> BoolArray:
        """Whether each of `numbers` is null, (statistics, rows)."""
        return self._by_statistic(_null(self._values))

    @property
    def null_count(self) -> int:
        """Number of nulls in `numbers`."""
        if self._layout.known is None:
            return int(self._values.null_count)
        return int(np.count_nonzero(self.null))

    @property
    def gauges(self) -> dict[str, float]:
        """The gauges of the node that are known."""
        if not self._layout.gauges:
            return {}
        of_node = self.numbers[:, self.listing.node]
        values = {name: float(of_node[self.statistic_rows[name]]) for name in self._layout.gauges}
        return {name: value for name, value in values.items() if not math.isnan(value)}

    @property
    def surplus_gauges(self) -> int:
        """Gauges that were ignored: beyond `MAX_GAUGES`, or of invalid names."""
        return self._layout.surplus_gauges

    def number(self, name: str) -> FloatArray:
        """One statistic, (rows,); NaN is unknown."""
        row = self.statistic_rows.get(name)
        return np.full(len(self), np.nan) if row is None else self.numbers[row]

    @cached_property
    def points(self) -> FloatArray:
        """Raw measurements of the node, (points, 3) in order of `LIST_COLUMNS`; NaN where null or
        NaN."""
        # Copied, because sums of unaligned numbers may differ in the last bit.
        values: FloatArray = np.array(self._node_points.to_numpy(zero_copy_only=False))
        return values.reshape(-1, _TRIPLE)

    @cached_property
    def null_points(self) -> BoolArray:
        """Whether each of `points` is null, (points, 3)."""
        return _null(self._node_points).reshape(-1, _TRIPLE)

    @cached_property
    def container_usage(self) -> FloatArray:
        """Usage of the containers of `listing.container_ids` one after the other, (containers, 2)
        cores and bytes; NaN is unknown."""
        lists = self.container_lists
        if lists is None or not self.listing.container_ids:
            return np.zeros((0, 2))
        columns = [lists.flatten().field(name) for name in ("cpu_cores", "memory_bytes")]
        values = [column.to_numpy(zero_copy_only=False) for column in columns]
        return np.stack(values, axis=1, dtype=np.float64)[self.listing.container_order]

    @cached_property
    def qos(self) -> list[str]:
        """Kubernetes QoS of each row, empty where unknown."""
        if self._layout.qos < 0:
            return [""] * len(self)
        return [qos or "" for qos in self._batch.column(self._layout.qos).to_pylist()]

    @cached_property
    def _node_points(self) -> pa.DoubleArray:
        points = self._points
        if points is None or not len(points.values):
            return _NO_NUMBERS
        start, end = points.offsets.to_numpy()[self.listing.node :][:2].tolist()
        return points.values.values[start * _TRIPLE : end * _TRIPLE]

    def _by_statistic(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        rows = values.reshape(len(self), self._layout.size)
        return (rows if self._layout.known is None else rows[:, self._layout.known]).T

    def replace(
        self, numbers: FloatArray, points: FloatArray, container_usage: FloatArray
    ) -> "SampleRows":
        """This sample with other `numbers`, `points` and `container_usage`, in which NaN becomes
        null."""
        listing = self.listing
        data = encode_arrays(
            self.header,
            kinds=[KINDS[code] for code in self.listing.kinds],
            ids=self.listing.ids,
            qos=self.qos,
            statistics={
                name: pa.array(numbers[row], from_pandas=True)
                for name, row in self.statistic_rows.items()
            },
            points=pa.array(points.ravel(), from_pandas=True),
            containers=container_lists(listing, container_usage, np.isnan(container_usage)),
        )
        return read_rows(data)


def read_rows(data: bytes) -> SampleRows:
    """Decode a record of `springtide.samples`.

    Ignores unknown columns and statistics. Raises `UndecodableRecordError`, `InvalidRecordError` or
    `UnsupportedVersionError`.
    """
    check_readable(data)
    if not data:
        raise UndecodableRecordError("record is empty")
    start = data.find(b"\n") + 1
    stream = memoryview(data)[start:]
    if not start or not stream:
        raise UndecodableRecordError("record has no line of JSON before an Arrow stream")
    header = _decode_header(data[: start - 1])
    message = bytes(stream[: schema_end(stream)])
    layout = _cached_layout(message) if len(message) <= _CACHED_BYTES else _layout(message)
    return SampleRows(data, header, read_batch(stream, layout.schema), layout)


def read_header(data: bytes) -> SampleHeader:
    """Decode only the header of a record of `springtide.samples`; raises as `read_rows`."""
    check_readable(data)
    return _decode_header(data[: max(data.find(b"\n"), 0)])


def read_samples(data: bytes) -> SampleBatch:
    """Decode a record of `springtide.samples` into what `encode_samples` takes.

    Leaves out of each row what is unknown. Raises as `read_rows`.
    """
    sample = read_rows(data)
    rows: list[dict[str, Any]] = [
        {"kind": KINDS[code], "id": name}
        for code, name in zip(sample.listing.kinds, sample.listing.ids, strict=True)
    ]
    for row, qos in zip(rows, sample.qos, strict=True):
        row |= {"qos": qos} if qos else {}
    for name, index in sample.statistic_rows.items():
        values = zip(rows, sample.numbers[index].tolist(), sample.null[index], strict=True)
        for row, value, null in values:
            row |= {} if null else {name: value}
    if len(sample.points):
        points = sample.points.astype(object)
        points[sample.null_points] = None
        rows[sample.listing.node] |= dict(zip(LIST_COLUMNS, points.T.tolist(), strict=True))
    if sample.container_lists is not None:
        for row, containers in zip(rows, sample.container_lists.to_pylist(), strict=True):
            if containers:
                row[CONTAINERS] = [SampleContainer(**container) for container in containers]
    return SampleBatch(sample.header, rows)


def encode_arrays(
    header: SampleHeader,
    *,
    kinds: Sequence[str],
    ids: Sequence[str],
    statistics: Mapping[str, pa.DoubleArray],
    points: pa.DoubleArray = _NO_NUMBERS,
    qos: Sequence[str] = (),
    containers: pa.ListArray | None = None,
) -> bytes:
    """Encode a sample from an array for each statistic, (rows,), the triples of the node's points
    one after the other, (3 * points,), and what `container_lists` returned. Equal arguments give
    equal bytes."""
    rows, size = len(kinds), len(statistics)
    by_row = np.arange(size * rows).reshape(size, rows).T.ravel()
    numbers = pa.concat_arrays([_NO_NUMBERS, *statistics.values()]).take(pa.array(by_row))
    triples = pa.FixedSizeListArray.from_arrays(points, _TRIPLE)
    node = list(kinds).index("node") if "node" in kinds else 0
    ends = np.where(np.arange(rows + 1) > node, len(triples), 0)
    columns = {
        "kind": pa.array(kinds, _TEXT),
        "id": pa.array(ids, _TEXT),
        "qos": pa.array(qos or [""] * rows, _TEXT),
        # `from_arrays` refuses lists of no statistics.
        "statistics": pa.Array.from_buffers(
            pa.list_(pa.float64(), size), rows, [None], children=[numbers]
        ),
        "points": pa.ListArray.from_arrays(pa.array(ends, pa.int32()), triples),
    }
    if containers is not None:
        columns[CONTAINERS] = containers
    batch = pa.record_batch(columns, metadata=sample_metadata(tuple(statistics)))
    sink = pa.BufferOutputStream()
    sink.write(encode_json(header) + b"\n")
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def container_lists(listing: Listing, usage: FloatArray, is_null: BoolArray) -> pa.ListArray | None:
    """The containers of each row for `encode_arrays`, from their usage in the order of
    `SampleRows.container_usage` (containers, 2); None without any."""
    if not listing.container_ids:
        return None
    by_row = dict(zip(listing.pods.tolist(), listing.container_ids, strict=True))
    rows = [by_row.get(row, ()) for row in range(len(listing.ids))]
    order = np.argsort(listing.container_order)
    cpu, memory = (
        pa.array(usage[order, column].copy(), mask=is_null[order, column].copy())
        for column in range(2)
    )
    ids = pa.array([*chain.from_iterable(rows)], _TEXT)
    offsets = pa.array([0, *accumulate(map(len, rows))], pa.int32())
    fields = [*_CONTAINER]
    return pa.ListArray.from_arrays(
        offsets, pa.StructArray.from_arrays([ids, cpu, memory], fields=fields)
    )


def _decode_header(line: bytes) -> SampleHeader:
    header = decode_json(SampleHeader, line)
    _check_node_name(header.node)
    if not 0 < header.window_end_ms - header.window_start_ms <= _MAX_WINDOW_MS:
        raise InvalidRecordError("window is not longer than 0 s and at most a day")
    if header.window_end_ms > _LAST_MS:
        raise InvalidRecordError("window ends after the year 9999")
    return header


def _layout(message: bytes) -> _Layout:
    schema = read_schema(message)
    metadata = schema.metadata or {}
    if b"statistics" not in metadata:
        raise InvalidRecordError("the schema does not name its statistics")
    names = _statistics(metadata[b"statistics"])
    fields = {
        "kind": _TEXT,
        "id": _TEXT,
        "qos": _TEXT,
        "statistics": pa.list_(pa.float64(), len(names)),
        "points": pa.list_(pa.list_(pa.float64(), _TRIPLE)),
        CONTAINERS: pa.list_(_CONTAINER),
    }
    positions = {name: _position(schema, name, kind) for name, kind in fields.items()}
    for name in ("kind", "id", "statistics"):
        if positions[name] < 0:
            raise InvalidRecordError(f"column {name!r} is missing")
    gauges = first_gauges(names)
    known = [i for i, name in enumerate(names) if name in NUMBER_COLUMNS or name in gauges]
    return _Layout(
        schema=schema,
        **positions,
        size=len(names),
        known=None if len(known) == len(names) else known,
        statistic_rows={names[index]: row for row, index in enumerate(known)},
        gauges=gauges,
        surplus_gauges=sum("/" in name for name in names) - len(gauges),
    )


# All exporters of a version and kernel have the same schema.
_cached_layout = lru_cache(maxsize=64)(_layout)


def _statistics(data: bytes) -> list[str]:
    try:
        names: list[str] = _names.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRecordError(f"names of statistics cannot be decoded: {error}") from error
    if len(set(names)) < len(names):
        raise InvalidRecordError("two statistics have the same name")
    return names


def _position(schema: pa.Schema, name: str, kind: pa.DataType) -> int:
    """Position of the column `name`, which must have this type; -1 if it is missing."""
    positions = schema.get_all_field_indices(name)
    if len(positions) > 1:
        raise InvalidRecordError(f"two columns have the name {name!r}")
    if not positions:
        return -1
    found = schema.field(positions[0]).type
    if found != kind:
        # A nested type may contain names of any length that are not UTF-8.
        text = type(found).__name__ if pa.types.is_nested(found) else str(found)
        raise InvalidRecordError(f"column {name!r} is {text[:80]}, not {kind}")
    return int(positions[0])


def _items(lists: pa.FixedSizeListArray, size: int) -> pa.DoubleArray:
    """The numbers in lists of `size` each; raises `InvalidRecordError` if a list is null."""
    values = lists.values
    if lists.null_count or len(values) != len(lists) * size:
        raise InvalidRecordError("statistics or points of a row are null")
    return values


def _null(values: pa.DoubleArray) -> BoolArray:
    null: BoolArray = values.is_null().to_numpy(zero_copy_only=False)
    return null
