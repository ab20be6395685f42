"""Where the values of a sample lie in its bytes.

Two samples of the same columns whose record batches begin with the same bytes have the same
*layout*: each buffer lies where it lay. It is taken from a sample that pyarrow has read and fully
validated. What validation looks at and the layout does not say (texts, offsets of lists, validity)
must be *proven* again for each sample: the very bytes were validated before, or are counted here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.topics.arrow import END, MARK, batch_at, usual_message
from pipeline.topics.byte_cache import Kept
from pipeline.topics.sample_heads import Columns
from pipeline.topics.samples import LIST_COLUMNS

Floats = npt.NDArray[np.float64]
Key: TypeAlias = tuple[int | bytes, ...]

_NUMBER_BYTES: Final = 8
_OFFSET_BYTES: Final = 4
_MOST_BYTES_PROVEN: Final = 64 * 1024


class Part(NamedTuple):
    """Bytes of a sample that hold together if those in the same places of another did which was
    `like` it (as many rows, as many of them null, and so on). The bits in `valid`, if it is not
    None, say which rows are not null."""

    like: tuple[int, ...]
    valid: slice | None
    places: tuple[slice, ...]

    def key(self, data: bytes) -> Key:
        """What is the same for two samples in which this part is the same."""
        pieces = map(data.__getitem__, self.places)
        if self.valid is None:
            return *self.like, *pieces
        # Writers leave anything in the bits behind the last row.
        return *self.like, _valid(data, self.valid, self.like[0]), *pieces

    def has_its_nulls(self, data: bytes) -> bool:
        """Whether as many rows are null as in what this is `like`."""
        if self.valid is None:
            return True
        rows, nulls = self.like[:2]
        return rows - _valid(data, self.valid, rows).bit_count() == nulls


class Run(NamedTuple):
    """Columns of numbers that lie evenly spaced: from `first` up to `end` among the numbers, the
    first at `start` and each `stride` bytes after the one before."""

    first: int
    end: int
    start: int
    stride: int


class Items(NamedTuple):
    """What the rows of a column of lists hold altogether: `length` numbers at `start`. `valid` are
    the bits of the rows, `items_valid` those of the numbers (None is all), `offsets` say where each
    row begins."""

    start: int
    length: int
    offsets: int
    valid: slice | None
    items_valid: slice | None
    nulls: int

    def has_its_nulls(self, data: bytes) -> bool:
        """Whether as many of the numbers are null as the layout says."""
        if self.items_valid is None:
            return True
        valid = _valid(data, self.items_valid, self.length)
        return self.length - valid.bit_count() == self.nulls


class Gaps(NamedTuple):
    """The nulls of some columns: how many each has, and the places of all of them in an array of
    all numbers laid out flat."""

    counts: tuple[int, ...]
    flat: npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where the values of a sample of `size` bytes lie: kinds and ids in `listing`, all else that
    must have been validated before in `others`. `sparse` are the numbers that have bits of validity
    (`valid`, in which `valid_rows` are those of rows), and `nulls` is how many each has."""

    size: int
    rows: int
    columns: Columns
    listing: Part
    others: tuple[Part, ...]
    runs: tuple[Run, ...]
    sparse: tuple[int, ...]
    valid: tuple[slice, ...]
    valid_rows: int
    nulls: tuple[int, ...]
    items: Mapping[str, Items]

    def is_proven(self, data: bytes) -> bool:
        """Whether all texts and lists but those of the listing are known to hold together."""
        return all(_proven.get(part.key(data)) for part in self.others) and all(
            of.has_its_nulls(data) for of in self.items.values()
        )

    def prove(self, data: bytes) -> None:
        """Keep that texts and lists hold together in `data`, which pyarrow has validated."""
        for part in self.others:
            key = part.key(data)
            size = sum(len(piece) for piece in key if isinstance(piece, bytes))
            # A writer may leave nulls to be counted by the reader: one layout, several counts.
            if size <= _MOST_BYTES_PROVEN and part.has_its_nulls(data):
                _proven.put(key, True, size + 100 * len(key))

    def gaps(self, data: bytes) -> Gaps | None:
        """Where numbers are null; None if those are not as many as the layout says."""
        if not self.sparse:
            return _NO_GAPS
        valid = _number(b"".join(map(data.__getitem__, self.valid))) & self.valid_rows
        key = (self.rows, self.sparse, valid)
        found = _gaps.get(key)
        if found is None:
            found = _find_gaps(self.rows, self.sparse, valid)
            _gaps.put(key, found, found.flat.nbytes + len(self.sparse) * (100 + self.rows // 8))
        return found if found.counts == self.nulls else None

    def numbers(self, data: bytes, gaps: Gaps) -> Floats:
        """All columns of numbers, (columns, rows); NaN where null."""
        found = np.empty((len(self.columns.numbers), self.rows))
        for first, end, start, stride in self.runs:
            shape, strides = (end - first, self.rows), (stride, _NUMBER_BYTES)
            found[first:end] = np.ndarray(shape, np.float64, data, start, strides)
        if gaps.flat.size:
            found.reshape(-1)[gaps.flat] = np.nan
        return found

    def all_items(self, data: bytes, name: str) -> Floats:
        """The numbers of all rows of a column of lists, (items,): what lies in the place of a null
        is among them, and may be anything."""
        of = self.items[name]
        return np.frombuffer(data, np.float64, of.length, of.start)

    def items_of(self, data: bytes, name: str, row: int) -> Floats:
        """What a row has in a column of lists, (items,); NaN is null, a null row has none."""
        of = self.items[name]
        if of.valid is not None and not _bits(data[of.valid], self.rows)[row]:
            return np.empty(0)
        first, end = np.frombuffer(data, np.int32, 2, of.offsets + row * _OFFSET_BYTES).tolist()
        items = self.all_items(data, name)[first:end]
        if of.items_valid is None:
            return items
        return np.where(_bits(data[of.items_valid], of.length)[first:end], items, np.nan)


_layouts: Kept[tuple[Columns, int, bytes], Layout] = Kept(most_bytes=64 << 20)
_proven: Kept[Key, bool] = Kept(most_bytes=64 << 20)
_gaps: Kept[tuple[int, tuple[int, ...], int], Gaps] = Kept(most_bytes=32 << 20)
_NO_GAPS: Final = Gaps((), np.empty(0, np.intp))


def known_layout(columns: Columns, data: bytes, at: int) -> Layout | None:
    """The layout of a sample with these columns whose record batch begins at `at`, if it is kept
    and the sample has its frame."""
    if not (data.startswith(MARK) and data.startswith(MARK, at) and data.endswith(END)):
        return None
    found = _layouts.get((columns, at, _beginning(data, at)))
    return found if found is not None and found.size == len(data) else None


def keep_layout(columns: Columns, data: bytes, batch: pa.RecordBatch) -> Layout | None:
    """Keep the layout of `data`, from which pyarrow has read and validated `batch`; None if
    anything in it is unusual."""
    layout = known_layout(columns, data, batch_at(data))
    if layout is None or layout.gaps(data) is None:
        if usual_message(data) is None:
            return None
        at = batch_at(data)
        beginning = _beginning(data, at)
        layout = _layout(columns, data, at + len(beginning), batch)
        if layout is None:
            return None
        _layouts.put((columns, at, beginning), layout, 4 * len(beginning) + 4096)
    layout.prove(data)
    return layout


def _beginning(data: bytes, at: int) -> bytes:
    """The record batch's message at `at`, up to its body."""
    return data[at : at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")]


def _layout(columns: Columns, data: bytes, body: int, batch: pa.RecordBatch) -> Layout | None:
    place = _Places(data, body)
    try:
        kind, name = (place.text(batch.column(columns.at[text])) for text in ("kind", "id"))
        if kind.valid is not None or name.valid is not None:
            return None
        others = [place.text(batch.column(columns.at["qos"]))] if "qos" in columns.at else []
        items = {}
        for column in LIST_COLUMNS:
            if column in columns.at:
                part, items[column] = place.lists(batch.column(columns.at[column]))
                others.append(part)
        numbers = [place.numbers(batch.column(at)) for at in columns.numbers]
    except _UnusualError:
        return None
    rows = batch.num_rows
    sparse = [row for row, (_, valid, _) in enumerate(numbers) if valid is not None]
    return Layout(
        size=len(data),
        rows=rows,
        columns=columns,
        listing=Part((rows,), None, kind.places + name.places),
        others=tuple(others),
        runs=_runs([start for start, _, _ in numbers]),
        sparse=tuple(sparse),
        valid=tuple(valid for _, valid, _ in numbers if valid is not None),
        valid_rows=_number(_ones(rows).to_bytes(-(-rows // 8), "little") * len(sparse)),
        nulls=tuple(numbers[row][2] for row in sparse),
        items=items,
    )


class _UnusualError(Exception):
    """A buffer lies where no good writer puts it."""


class _Places:
    """Finds the buffers of columns in the body of `data`, which begins at `body`."""

    def __init__(self, data: bytes, body: int) -> None:
        self._zero = pa.py_buffer(data).address
        self._body, self._end = body, len(data) - len(END)

    def text(self, column: pa.Array) -> Part:
        valid, offsets, texts = column.buffers()
        bits = self._bits(valid, len(column))
        places = (self._slice(offsets, (len(column) + 1) * _OFFSET_BYTES), self._slice(texts))
        return _part(column, -1, bits, places)

    def lists(self, column: pa.Array) -> tuple[Part, Items]:
        valid, offsets, items_valid, items = column.buffers()
        values = column.values
        bits = self._bits(valid, len(column))
        begins = self._slice(offsets, (len(column) + 1) * _OFFSET_BYTES)
        of = Items(
            start=self._slice(items, len(values) * _NUMBER_BYTES).start,
            length=len(values),
            offsets=begins.start,
            valid=bits,
            items_valid=self._bits(items_valid, len(values)),
            nulls=values.null_count,
        )
        return _part(column, len(values), bits, (begins,)), of

    def numbers(self, column: pa.Array) -> tuple[int, slice | None, int]:
        """Where they begin, where their bits of validity lie, and how many are null."""
        valid, values = column.buffers()
        start = self._slice(values, len(column) * _NUMBER_BYTES).start
        return start, self._bits(valid, len(column)), column.null_count

    def _bits(self, buffer: pa.Buffer | None, count: int) -> slice | None:
        return None if buffer is None else self._slice(buffer, -(-count // 8))

    def _slice(self, buffer: pa.Buffer | None, size: int | None = None) -> slice:
        """Where the first `size` bytes of a buffer lie, or all of them."""
        size = (0 if buffer is None else buffer.size) if size is None else size
        if size == 0:
            return slice(self._body, self._body)
        if buffer is None or buffer.size < size:
            raise _UnusualError
        start = buffer.address - self._zero
        if not self._body <= start <= start + size <= self._end:
            raise _UnusualError
        return slice(start, start + size)


def _part(column: pa.Array, items: int, bits: slice | None, places: tuple[slice, ...]) -> Part:
    like = (len(column), column.null_count, items, bits is not None)
    return Part(like, bits, places)


def _runs(starts: Sequence[int]) -> tuple[Run, ...]:
    """Columns that begin at `starts`, as few runs of them as there are."""
    runs: list[Run] = []
    for place, start in enumerate(starts):
        if runs:
            first, end, begin, stride = runs[-1]
            step = start - starts[place - 1]
            if step > 0 and (step == stride or end - first == 1):
                runs[-1] = Run(first, place + 1, begin, step)
                continue
        runs.append(Run(place, place + 1, start, 0))
    return tuple(runs)


def _find_gaps(rows: int, sparse: tuple[int, ...], valid: int) -> Gaps:
    each = -(-rows // 8)
    bits = np.frombuffer(valid.to_bytes(each * len(sparse), "little"), np.uint8).reshape(-1, each)
    null = np.unpackbits(bits, axis=1, count=rows, bitorder="little") == 0
    column, row = np.nonzero(null)
    counts = tuple(np.count_nonzero(null, axis=1).tolist())
    return Gaps(counts, np.array(sparse, np.intp)[column] * rows + row)


def _bits(data: bytes, count: int) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=count, bitorder="little")
    return bits.view(np.bool_)


def _valid(data: bytes, valid: slice, count: int) -> int:
    return _number(data[valid]) & _ones(count)


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


@lru_cache(maxsize=1024)
def _ones(count: int) -> int:
    return (1 << count) - 1
