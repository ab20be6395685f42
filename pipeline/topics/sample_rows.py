"""The rows of a sample as the worker's hot path reads them: once, and as arrays.

`read_rows` promises what `arrow.read_samples` does, and refuses what that refuses; it only makes
nothing that is not there. A column that a sample does not have is not filled with nulls, and
numbers come as one array. A sample that is like one before (in its head, its layout, its texts) is
not decoded again: what is asked for is taken from where it lies in the bytes, and Arrow reads them
only for who asks for Arrow. Only workers import this module: the exporter carries no numpy.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.topics.arrow import (
    SAMPLE_FIELDS,
    SAMPLE_SCHEMA,
    batch_at,
    known_columns,
    open_sample,
    read_batch,
    write_stream,
)
from pipeline.topics.entity_listings import MOST_ROWS_KEPT, known_listing, listing_of
from pipeline.topics.entity_listings import Listing as Listing
from pipeline.topics.sample_heads import Columns, columns_of, keep_head, known_head, own_columns
from pipeline.topics.sample_layouts import Gaps, Layout, keep_layout, known_layout
from pipeline.topics.samples import SampleHeader

Floats = npt.NDArray[np.float64]

_FIELDS: Final = {field.name: field for field in SAMPLE_FIELDS}


class _Rows(Protocol):
    """Where the rows of a sample are taken from."""

    columns: Columns
    count: int

    @property
    def batch(self) -> pa.RecordBatch: ...

    @property
    def listing(self) -> Listing: ...

    def nulls(self) -> int: ...

    def numbers(self) -> Floats: ...

    def points(self, name: str, row: int) -> Floats: ...

    def all_points(self, name: str) -> Floats: ...


class SampleRows:
    """The rows of one sample: `batch` has the columns that it has, each as `SAMPLE_FIELDS` says.

    `data` is the sample as an Arrow stream that holds these and no other columns.
    """

    def __init__(self, header: SampleHeader, rows: _Rows, data: bytes | None = None) -> None:
        self.header = header
        self._rows = rows
        self._data = data

    def __len__(self) -> int:
        return self._rows.count

    @cached_property
    def batch(self) -> pa.RecordBatch:
        return self._rows.batch

    @cached_property
    def data(self) -> bytes:
        return self._data or write_stream(self.batch, self.header.metadata())

    @property
    def listing(self) -> Listing:
        """Which entities the rows are; raises `InvalidRecordError` if they do not say."""
        return self._rows.listing

    @property
    def places(self) -> Mapping[str, int]:
        """The columns of numbers, and which row of `numbers` each is."""
        return self._rows.columns.rows

    @cached_property
    def numbers(self) -> Floats:
        """All columns of numbers, (columns, rows); NaN where null, and where the sample says so."""
        return self._rows.numbers()

    @property
    def nulls(self) -> int:
        """How many of `numbers` are null."""
        return self._rows.nulls()

    def number(self, name: str) -> Floats:
        """One column of numbers, (rows,); NaN is unknown."""
        place = self.places.get(name)
        return np.full(len(self), np.nan) if place is None else self.numbers[place]

    def points(self, name: str) -> Floats:
        """What the node's row has in a column of lists, (points,); NaN is unknown."""
        return self._rows.points(name, self.listing.node) if self.has(name) else np.empty(0)

    def all_points(self, name: str) -> Floats:
        """What all rows have in a column of lists, (points,). In the place of a null is anything,
        and there may be more that no row has: enough to see that nothing is wrong."""
        return self._rows.all_points(name) if self.has(name) else np.empty(0)

    def has(self, name: str) -> bool:
        """Whether the sample has this column."""
        return name in self._rows.columns.at

    def column(self, name: str) -> pa.Array:
        """A column of `SAMPLE_FIELDS`; nulls if the sample does not have it."""
        at = self._rows.columns.at.get(name)
        return pa.nulls(len(self), _FIELDS[name].type) if at is None else self.batch.column(at)


def read_rows(data: bytes) -> SampleRows:
    """The rows of a record of `springtide.samples`; raises the errors of `read_samples`."""
    alike = _read_alike(data)
    return _read(data) if alike is None else alike


def rows_of(header: SampleHeader, batch: pa.RecordBatch) -> SampleRows:
    """The columns of `SAMPLE_SCHEMA` that `batch` has and that are not null throughout."""
    names = tuple(
        name
        for name in batch.schema.names
        if name in ("kind", "id")
        or (name in _FIELDS and batch.column(name).null_count < batch.num_rows)
    )
    batch = batch.select(names).replace_schema_metadata(None)
    return SampleRows(header, _Decoded(batch, columns_of(names)))


def _read(data: bytes) -> SampleRows:
    """The rows of any sample. One like it may be read by `_read_alike`, then."""
    header, batch = open_sample(data)
    columns = own_columns(batch.schema)
    if columns is None:
        rows = rows_of(header, known_columns(batch, SAMPLE_SCHEMA))
        _ = rows.listing
        return rows
    decoded = _Decoded(batch, columns)
    _ = decoded.listing
    if batch.num_rows <= MOST_ROWS_KEPT and keep_layout(columns, data, batch) is not None:
        keep_head(data[: batch_at(data)], batch.schema, columns)
    return SampleRows(header, decoded, data)


def _read_alike(data: bytes) -> SampleRows | None:
    """The rows of a sample all of whose parts are like those of samples that `_read` has read. None
    for any other, good or not: nothing is refused here."""
    at = batch_at(data)
    head = known_head(data[:at])
    if head is None:
        return None
    columns, header = head
    layout = known_layout(columns, data, at)
    if layout is None:
        return None
    listing, gaps = known_listing(layout.listing.key(data)), layout.gaps(data)
    if listing is None or gaps is None or not layout.is_proven(data):
        return None
    return SampleRows(header, _Encoded(data, layout, gaps, listing), data)


class _Decoded:
    """Rows that Arrow has read."""

    def __init__(self, batch: pa.RecordBatch, columns: Columns) -> None:
        self.batch = batch
        self.columns = columns
        self.count = int(batch.num_rows)

    @cached_property
    def listing(self) -> Listing:
        none = pa.nulls(self.count, pa.string())
        places = (self.columns.at.get(name) for name in ("kind", "id"))
        return listing_of(*(none if at is None else self.batch.column(at) for at in places))

    def nulls(self) -> int:
        return sum(self.batch.column(at).null_count for at in self.columns.numbers)

    def numbers(self) -> Floats:
        if not self.columns.numbers:
            return np.empty((0, self.count))
        numbers = self.batch.select(self.columns.numbers)
        found: Floats = numbers.to_tensor(null_to_nan=True, row_major=False).to_numpy().T
        return found

    def points(self, name: str, row: int) -> Floats:
        values = self.batch.column(self.columns.at[name])[row].values
        if values is None:
            return np.empty(0)
        found: Floats = values.to_numpy(zero_copy_only=False)
        return found

    def all_points(self, name: str) -> Floats:
        flat = self.batch.column(self.columns.at[name]).flatten()
        return np.frombuffer(flat.buffers()[1], np.float64, len(flat), flat.offset * 8)


class _Encoded:
    """Rows that stay in the bytes of their sample."""

    def __init__(self, data: bytes, layout: Layout, gaps: Gaps, listing: Listing) -> None:
        self.columns = layout.columns
        self.count = layout.rows
        self.listing = listing
        self._data = data
        self._layout = layout
        self._gaps = gaps

    @property
    def batch(self) -> pa.RecordBatch:
        return read_batch(self._data)

    def nulls(self) -> int:
        return self._gaps.flat.size

    def numbers(self) -> Floats:
        return self._layout.numbers(self._data, self._gaps)

    def points(self, name: str, row: int) -> Floats:
        return self._layout.items_of(self._data, name, row)

    def all_points(self, name: str) -> Floats:
        return self._layout.all_items(self._data, name)
