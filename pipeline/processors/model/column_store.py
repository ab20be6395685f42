"""Named columns by row number that models and predictors declare and the bank stores.

Columns grow, are cleared and are saved together: a declared column has checkpoints, expiry and
restarts without further code. Growing must not move a large column, or a worker would stop for
seconds and need twice the memory: address space is reserved ahead, and used page by page.
"""

from __future__ import annotations

import math
import mmap
import resource
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.errors import CheckpointError
from pipeline.processors.arrays import IntArray

_SMALL_BYTES: Final = 1_048_576
"""Columns up to this size are moved when they grow."""
RESERVE_FACTOR: Final = 16
"""Address space is reserved for so many times the rows that are needed."""
# Rows of padding between the items of a column that is not by row. A stride of a power of two
# would put all items of a row into a few sets of the processor's cache.
_PADDING: Final = 1056
_NO_RESERVE: Final = 0x4000  # MAP_NORESERVE, which mmap names from Python 3.13 on


class Packable(Protocol):
    """The value of a row of an `object_column`."""

    def pack(self) -> bytes:
        """All of its state; equal states are equal bytes."""


@dataclass(frozen=True, slots=True)
class Column:
    """The value of one row: an array of `shape` and `dtype` (little-endian), `empty` at first.

    In memory rows follow each other; if not `by_row`, the same item of all rows does. Columns of
    objects are made by `object_column`.
    """

    shape: tuple[int, ...] = ()
    dtype: Literal["<f8", "<f4", "<i8", "<i4", "<u2", "<u1", "<i1", "O"] = "<f8"
    empty: float | None = 0.0
    by_row: bool = field(default=True, repr=False)
    restore: Callable[[bytes], Packable] | None = field(default=None, repr=False)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row; of an object its reference alone."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)

    def allocate(self, rows: int) -> npt.NDArray[Any]:
        """Zeros, (rows or more, *shape), which take memory only as they are written. Large columns
        get address space for many more rows, so that they rarely move."""
        dtype = np.dtype(self.dtype)
        array: npt.NDArray[Any] | None = None
        if self.restore is None and rows * self.row_bytes > _SMALL_BYTES:
            array = reserve(self._shape(RESERVE_FACTOR * rows + _PADDING), dtype)
        if array is None:
            array = np.zeros(self._shape(rows), dtype)
        return array if self.by_row else np.moveaxis(array, -1, 0)

    def _shape(self, rows: int) -> tuple[int, ...]:
        return (rows, *self.shape) if self.by_row else (*self.shape, rows)

    def move(self, old: npt.NDArray[Any], new: npt.NDArray[Any]) -> None:
        """Copy `old` into the first rows of `new`, which are zeros."""
        if self.by_row:
            new[: len(old)] = old
            return
        # To copy zeros would claim the pages of items that no row has filled yet.
        for item in np.ndindex(self.shape):
            values = old[:, *item]
            if values.view(f"u{values.itemsize}").any():
                new[: len(old), *item] = values

    def pack(self, values: npt.NDArray[Any]) -> bytes:
        """The bytes of the values of some rows, in an order that compresses well."""
        if self.restore is None:
            return _to_bytes(values)
        return msgspec.msgpack.encode([None if one is None else one.pack() for one in values])

    def unpack(self, data: bytes, rows: int) -> npt.NDArray[Any]:
        """The values of so many rows in the bytes of `pack`. Raises CheckpointError if they are
        damaged."""
        if self.restore is None:
            size = rows * self.row_bytes
            if len(data) != size:
                raise CheckpointError(f"it has {len(data)} bytes instead of {size}")
            return _from_bytes(data, np.dtype(self.dtype), (rows, *self.shape))
        try:
            packed = msgspec.msgpack.decode(data, type=list[bytes | None])
        except msgspec.MsgspecError as error:
            raise CheckpointError(f"it is damaged: {error}") from error
        if len(packed) != rows:
            raise CheckpointError(f"it has {len(packed)} objects instead of {rows}")
        restored = (None if one is None else self.restore(one) for one in packed)
        return np.fromiter(restored, np.object_, rows)


def object_column(restore: Callable[[bytes], Packable]) -> Column:
    """A column with an object in each row, None at first, for state of no fixed size. `restore`
    makes an object of the bytes of its `pack`; it raises CheckpointError if they are damaged."""
    return Column((), "O", None, restore=restore)


def reserve(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """Zeros in address space that does not count against the machine's memory; None where it
    would, or where the process may not map so much."""
    if not is_address_space_free():
        return None
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    try:
        area = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags)
    except OSError:
        return None
    # Most of a huge page would be memory that no row uses.
    with suppress(OSError):  # a kernel without them
        area.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(area, dtype).reshape(shape)


@cache
def is_address_space_free() -> bool:
    """Whether the kernel counts memory only when it is used, and sets this process no limit."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return False
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text().strip() != "2"
    except OSError:
        return False


class Columns:
    """The arrays (rows, *shape) of some columns, by name."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns = dict(columns)
        self.reserved = {name: column.allocate(0) for name, column in columns.items()}
        self._arrays: dict[str, npt.NDArray[Any]] = dict(self.reserved)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """The array of one column, to be read and written in place until the next `grow`."""
        return self._arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())

    @property
    def fingerprint(self) -> str:
        """The columns and all that shapes their bytes, as text."""
        return ";".join(f"{name}={column}" for name, column in sorted(self.columns.items()))

    def renamed(self, names: Mapping[str, str]) -> Columns:
        """The same arrays until the next `grow`, with additional names: `names` maps each to the
        name here."""
        other = Columns({})
        other._arrays = self._arrays | {name: self._arrays[here] for name, here in names.items()}
        return other

    def grow(self, rows: int) -> None:
        """Make room for row numbers below `rows`, usually without moving existing rows."""
        for name, column in self.columns.items():
            old = self._arrays[name]
            if rows > len(self.reserved[name]):
                self.reserved[name] = column.allocate(rows)
                column.move(old, self.reserved[name])
            self._arrays[name] = self.reserved[name][:rows]
            if column.empty != 0.0:
                self._arrays[name][len(old) :] = column.empty

    def clear(self, rows: IntArray) -> None:
        """Reset these rows to `empty`."""
        for name, column in self.columns.items():
            self._arrays[name][rows] = column.empty

    def pack(self, rows: IntArray) -> dict[str, bytes]:
        """The bytes of these rows, by column."""
        index = _as_slice(rows)
        columns = sorted(self.columns.items())
        return {name: column.pack(self._arrays[name][index]) for name, column in columns}

    def unpack(self, packed: Mapping[str, bytes], rows: int) -> dict[str, npt.NDArray[Any]]:
        """The values of so many rows in the bytes that `pack` gave, for `write`. Raises
        CheckpointError unless they are those of these columns, undamaged."""
        values = {}
        for name, column in self.columns.items():
            try:
                values[name] = column.unpack(packed.get(name, b""), rows)
            except CheckpointError as error:
                raise CheckpointError(
                    f"column {name!r} of the node state: {error.message}",
                    hint="rebuild the node from the windows log",
                ) from error
        return values

    def write(self, rows: IntArray, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write values that `unpack` gave into these rows."""
        index = _as_slice(rows)
        for name in self.columns:
            self._arrays[name][index] = values[name]


def _as_slice(rows: IntArray) -> IntArray | slice:
    """Consecutive rows as a slice, which numpy copies several times as fast."""
    first = int(rows[0]) if len(rows) else 0
    follow = (rows == np.arange(first, first + len(rows))).all()
    return slice(first, first + len(rows)) if follow else rows


def _to_bytes(values: npt.NDArray[Any]) -> bytes:
    """The first bytes of all items, then the second ones, and so on; series of integers as
    differences. So similar bytes are neighbours, which compresses well."""
    values = np.ascontiguousarray(values)
    if _is_series(values.dtype, values.shape):
        steps = values.copy()
        steps[..., 1:] -= values[..., :-1]
        values = steps
    items = values.view(np.uint8).reshape(-1, values.dtype.itemsize)
    return b"".join(items[:, i].tobytes() for i in range(values.dtype.itemsize))


def _from_bytes(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The inverse of `_to_bytes`."""
    by_position = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1)
    items = np.empty(by_position.shape[::-1], np.uint8)
    for i, position in enumerate(by_position):
        items[:, i] = position
    values = items.view(dtype).reshape(shape)
    return np.cumsum(values, axis=-1, dtype=dtype) if _is_series(dtype, shape) else values


def _is_series(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    return len(shape) > 1 and dtype.kind in "iu"
