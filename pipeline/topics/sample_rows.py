"""The rows of a sample as the worker's hot path reads them: once, and as arrays.

`read_rows` promises what `arrow.read_samples` does, and refuses what that refuses; it only makes
nothing that is not there. A column that a sample does not have is not filled with nulls, numbers
come as one array, and the *listing* (which entities the rows are) is decoded once while a node's
samples repeat it. Only workers import this module: the exporter carries no numpy.
"""

import sys
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import InvalidRecordError
from pipeline.topics import samples
from pipeline.topics.arrow import (
    SAMPLE_FIELDS,
    SAMPLE_SCHEMA,
    check_entities,
    check_schema,
    known_columns,
    read_batch,
    read_header,
    read_metadata,
    write_stream,
)
from pipeline.topics.samples import KINDS, NUMBER_COLUMNS, SampleHeader

Floats = npt.NDArray[np.float64]

_FIELDS: Final = {field.name: field for field in SAMPLE_FIELDS}
# A listing of more rows or bytes is decoded each time: what is kept must have a bound. A text's
# buffer may hold far more than its rows use.
_MOST_ROWS_KEPT: Final = 512
_MOST_BYTES_KEPT: Final = 64 * 1024
_LISTINGS_KEPT: Final = 16_384
_SCHEMAS_KEPT: Final = 256
_NUMBERS: Final = frozenset(NUMBER_COLUMNS)
_CODES: Final = {kind: code for code, kind in enumerate(KINDS)}


class Listing(NamedTuple):
    """Which entities the rows of a sample are: `kinds` by code of `KINDS`, `ids` as texts.

    `node` is the row of the node, `pods` are the rows of pods, `uids` their ids, both in order of
    the ids. Equal listings of a node's windows are mostly one object; nobody may write to it.
    """

    kinds: npt.NDArray[np.int8]
    ids: tuple[str, ...]
    node: int
    pods: npt.NDArray[np.intp]
    uids: tuple[str, ...]


class _Layout(NamedTuple):
    """Where columns lie: `at` in a batch of this schema; of numbers, `numbers` in a batch and their
    `rows` among themselves."""

    schema: pa.Schema
    at: Mapping[str, int]
    numbers: list[int]
    rows: Mapping[str, int]


class SampleRows:
    """The rows of one sample: `batch` has the columns that it has, each as `SAMPLE_FIELDS` says.

    `data` is the sample as an Arrow stream that holds these and no other columns.
    """

    def __init__(
        self,
        header: SampleHeader,
        batch: pa.RecordBatch,
        data: bytes | None = None,
        layout: _Layout | None = None,
    ) -> None:
        self.header = header
        self.batch = batch
        self._data = data
        self._layout = layout or _layout(tuple(batch.schema.names))

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @cached_property
    def data(self) -> bytes:
        return self._data or write_stream(self.batch, self.header.metadata())

    @cached_property
    def listing(self) -> Listing:
        """Which entities the rows are; raises `InvalidRecordError` if they do not say."""
        columns = (self.column("kind"), self.column("id"))
        buffers = [buffer for column in columns for buffer in column.buffers()]
        size = sum(buffer.size for buffer in buffers if buffer is not None)
        is_large = len(self) > _MOST_ROWS_KEPT or size > _MOST_BYTES_KEPT
        if is_large or any(column.offset for column in columns):
            return _listing(*(column.to_pylist() for column in columns))
        return _kept_listing(len(self), *(b if b is None else b.to_pybytes() for b in buffers))

    @property
    def places(self) -> Mapping[str, int]:
        """The columns of numbers, and which row of `numbers` each is."""
        return self._layout.rows

    @cached_property
    def numbers(self) -> Floats:
        """All columns of numbers, (columns, rows); NaN where null, and where the sample says so."""
        if not self._layout.numbers:
            return np.empty((0, len(self)))
        columns = self.batch.select(self._layout.numbers)
        found: Floats = columns.to_tensor(null_to_nan=True, row_major=False).to_numpy().T
        return found

    def number(self, name: str) -> Floats:
        """One column of numbers, (rows,); NaN is unknown."""
        place = self.places.get(name)
        return np.full(len(self), np.nan) if place is None else self.numbers[place]

    def points(self, name: str) -> Floats:
        """What the node's row has in a column of lists, (points,); NaN is unknown."""
        values = self.column(name)[self.listing.node].values if self.has(name) else None
        if values is None:
            return np.empty(0)
        found: Floats = values.to_numpy(zero_copy_only=False)
        return found

    def has(self, name: str) -> bool:
        """Whether the sample has this column."""
        return name in self._layout.at

    def column(self, name: str) -> pa.Array:
        """A column of `SAMPLE_FIELDS`; nulls if the sample does not have it."""
        at = self._layout.at.get(name)
        return pa.nulls(len(self), _FIELDS[name].type) if at is None else self.batch.column(at)


def read_rows(data: bytes) -> SampleRows:
    """The rows of a record of `springtide.samples`; raises the errors of `read_samples`."""
    batch = read_batch(data)
    metadata = read_metadata(batch)
    check_schema(metadata, samples.SCHEMA_NAME, samples.VERSION)
    header = read_header(metadata)
    if batch.num_rows == 0:
        raise InvalidRecordError("batch has no rows")
    layout = _known_layout(batch.schema)
    if layout is None:
        rows = rows_of(header, known_columns(batch, SAMPLE_SCHEMA))
    else:
        rows = SampleRows(header, batch, data, layout)
    _ = rows.listing
    return rows


def rows_of(header: SampleHeader, batch: pa.RecordBatch) -> SampleRows:
    """The columns of `SAMPLE_SCHEMA` that `batch` has and that are not null throughout."""
    names = [
        name
        for name in batch.schema.names
        if name in ("kind", "id")
        or (name in _FIELDS and batch.column(name).null_count < batch.num_rows)
    ]
    return SampleRows(header, batch.select(names).replace_schema_metadata(None))


def _known_layout(schema: pa.Schema) -> _Layout | None:
    """The layout of a schema that has some of our columns, each of its type, and no others."""
    try:
        names = tuple(schema.names)
    except UnicodeDecodeError:
        return None
    if not _FIELDS.keys() >= set(names):
        return None
    layout = _layout(names)
    return layout if schema.equals(layout.schema) else None


@lru_cache(maxsize=_SCHEMAS_KEPT)
def _layout(names: tuple[str, ...]) -> _Layout:
    at = {name: place for place, name in enumerate(names)}
    numbers = [place for name, place in at.items() if name in _NUMBERS]
    rows = {names[place]: row for row, place in enumerate(numbers)}
    return _Layout(pa.schema([_FIELDS[name] for name in at]), at, numbers, rows)


@lru_cache(maxsize=_LISTINGS_KEPT)
def _kept_listing(rows: int, *buffers: bytes | None) -> Listing:
    found = [b if b is None else pa.py_buffer(b) for b in buffers]
    arrays = (pa.Array.from_buffers(pa.string(), rows, of) for of in (found[:3], found[3:]))
    return _listing(*(array.to_pylist() for array in arrays))


def _listing(kinds: list[str | None], ids: list[str | None]) -> Listing:
    check_entities(kinds, ids)
    codes = np.array([_CODES[kind or ""] for kind in kinds], np.int8)
    # Whoever keeps a pod's uid keeps this text.
    names = tuple(sys.intern(name or "") for name in ids)
    node = kinds.index("node")
    pods = sorted(np.flatnonzero(codes == _CODES["pod"]).tolist(), key=names.__getitem__)
    return Listing(codes, names, node, np.array(pods, np.intp), tuple(names[row] for row in pods))
