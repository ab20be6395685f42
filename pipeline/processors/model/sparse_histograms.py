"""Bucket weights of one resource for many rows, stored only for the span in use.

Usage of an entity stays within a few dozen buckets, so a row has a *stretch* of cells for these,
and moves to a wider stretch when a sample falls outside. A dense array (rows, buckets) would need a
multiple of memory and time. The results are the same to the last bit: buckets outside the stretch
are 0 and add nothing to a running sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import ByteArray, FloatArray, IntArray
from pipeline.processors.model.histogram import Layout, is_empty, quantile_buckets

_Units = npt.NDArray[np.int32]

_NARROW: Final = (16, 32, 64)
_UNIT: Final = 16
"""Stretches are whole units of cells, so that stretches of all widths fit into one array."""
_FIRST_CAPACITY: Final = 256

BUCKET_TERMS: Final = ("bucket", "first", "ratio", "start", "end")
"""Terms that explain a bucket: its number, first size and growth of its layout, its start and end.
The last bucket has no end."""


class Cells:
    """Allocates stretches of float64 cells by width; the content of a new stretch is undefined."""

    def __init__(self, widths: Sequence[int]) -> None:
        self.units: FloatArray = np.zeros((0, _UNIT))
        self._used = 0
        self._free: dict[int, list[int]] = {width: [] for width in widths}

    @property
    def flat(self) -> FloatArray:
        """All cells in one array, to be read and written in place until the next `allocate`."""
        return self.units.reshape(-1)

    def allocate(self, count: int, width: int) -> _Units:
        """Return the first unit of each of `count` stretches, unused ones first."""
        free, length = self._free[width], width // _UNIT
        split = max(len(free) - count, 0)
        reused = np.array(free[split:][::-1], dtype=np.int32)
        del free[split:]
        num_new = count - len(reused)
        first = self._used
        self._used += num_new * length
        if self._used > len(self.units):
            capacity = max(self._used, len(self.units) * 5 // 4, _FIRST_CAPACITY)
            grown = np.zeros((capacity, _UNIT))
            grown[:first] = self.units[:first]
            self.units = grown
        new = np.arange(first, self._used, length, dtype=np.int32)
        return np.concatenate([reused, new])

    def release(self, units: _Units, width: int) -> None:
        self._free[width].extend(units[::-1].tolist())

    def read(self, units: _Units, width: int) -> FloatArray:
        """The cells of stretches of one width, (n, width)."""
        unit_rows = units[:, None] + np.arange(width // _UNIT)
        return self.units.take(unit_rows, axis=0).reshape(len(units), width)

    def write(self, units: _Units, cells: FloatArray) -> None:
        """Write `cells` (n, width) into stretches of that width."""
        unit_rows = units[:, None] + np.arange(cells.shape[1] // _UNIT)
        self.units[unit_rows] = cells.reshape(*unit_rows.shape, _UNIT)

    def empty(self, units: _Units, width: int) -> None:
        """Set the cells of stretches of that width to 0."""
        self.units[units[:, None] + np.arange(width // _UNIT)] = 0.0


class Histograms:
    """Histograms by row number, without cells until the first sample.

    Each row has one of `layouts`, its profile, which comes by number with each sample.
    """

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self.layouts = tuple(layouts)
        self._max_buckets = max(layout.num_buckets for layout in layouts)
        widest = -(-self._max_buckets // _UNIT) * _UNIT
        self._widths = np.array([*(width for width in _NARROW if width < widest), widest], np.int64)
        self.cells = Cells(self._widths.tolist())
        # Position 0 stands for bucket -1. Layouts with fewer buckets leave positions unused.
        self._ends = np.full((len(layouts), 1 + self._max_buckets), np.nan)
        for ends, layout in zip(self._ends, layouts, strict=True):
            ends[1 : 1 + layout.num_buckets] = layout.ends
        self._terms = np.full((*self._ends.shape, len(BUCKET_TERMS)), np.nan)
        for terms, layout in zip(self._terms, layouts, strict=True):
            terms[1 : 1 + layout.num_buckets] = _layout_terms(layout)
        self.epsilon: FloatArray = np.array([layout.epsilon for layout in layouts])
        # A row without cells has width 0, so that every sample falls outside.
        self._width: npt.NDArray[np.uint16] = np.zeros(0, np.uint16)
        self._unit: _Units = np.zeros(0, np.int32)
        self._base: npt.NDArray[np.uint16] = np.zeros(0, np.uint16)

    @property
    def nbytes(self) -> int:
        return self.cells.units.nbytes + self._width.nbytes + self._unit.nbytes + self._base.nbytes

    def grow(self, rows: int) -> None:
        """Make room for row numbers below `rows`."""
        for name in ("_width", "_unit", "_base"):
            column = getattr(self, name)
            more = np.zeros(rows - len(column), column.dtype)
            setattr(self, name, np.concatenate([column, more]))

    def add(
        self, rows: IntArray, values: FloatArray, weights: FloatArray, profiles: ByteArray
    ) -> None:
        """One sample per row; `rows` are distinct, no value is NaN, weights are >= epsilon."""
        cells = self._cells_of(rows, self._bucket_indices(values, profiles))
        self.cells.flat[cells] += weights

    def add_repeated(self, rows: IntArray, buckets: IntArray, weights: FloatArray) -> None:
        """Add `weights` to `buckets` of rows that may repeat, one after the other."""
        cells = self._cells_of(rows, buckets)
        np.add.at(self.cells.flat, cells, weights)

    def subtract(self, rows: IntArray, buckets: IntArray, weights: FloatArray) -> None:
        """Take back weights that were added to rows of the first layout, which may repeat; what is
        left below its epsilon becomes 0."""
        offset = buckets.astype(np.uint16) - self._base.take(rows)
        # A weight that has decayed since may have lost its cell.
        inside = offset < self._width.take(rows)
        cells = self._unit[rows[inside]] * np.int64(_UNIT) + offset[inside]
        flat = self.cells.flat
        np.subtract.at(flat, cells, weights[inside])
        flat[cells] = np.where(flat[cells] < self.epsilon[0], 0.0, flat[cells])

    def _cells_of(self, rows: IntArray, buckets: IntArray) -> IntArray:
        """The cell of a bucket of each row; rows without one move to a wider stretch."""
        codes = buckets.astype(np.uint16)
        # Below the base the difference wraps around to more than any width.
        offset = codes - self._base.take(rows)
        outside = (offset >= self._width.take(rows)).nonzero()[0]
        if len(outside):
            moving = np.zeros(len(self._width), np.bool_)
            moving[rows.take(outside)] = True
            # Rows that repeat also need room for buckets that are within the present stretch.
            outside = moving.take(rows).nonzero()[0]
            self._make_room(rows.take(outside), buckets.take(outside))
            offset = codes - self._base.take(rows)
        return self._unit.take(rows) * np.int64(_UNIT) + offset

    def quantile_buckets(self, rows: IntArray, fractions: FloatArray) -> IntArray:
        """The bucket of a quantile of each row, of `fractions` (n,); -1 where the row is empty."""
        result = np.full(len(rows), -1)
        for width, positions in self._by_width(rows):
            selected = rows.take(positions)
            weights = self.cells.read(self._unit.take(selected), width)
            buckets = quantile_buckets(weights, (fractions.take(positions),))[0]
            result[positions] = np.where(buckets < 0, -1, self._base.take(selected) + buckets)
        return result

    def ends(self, buckets: IntArray, profiles: ByteArray) -> FloatArray:
        """The quantile in these buckets; NaN for the bucket -1."""
        return self._ends.take(self._table_positions(buckets, profiles))

    def bucket_terms(self, buckets: IntArray, profiles: ByteArray) -> FloatArray:
        """`BUCKET_TERMS` of these buckets, (.., 5); NaN for the bucket -1."""
        terms = self._terms.reshape(-1, len(BUCKET_TERMS))
        return terms.take(self._table_positions(buckets, profiles), axis=0)

    def _table_positions(self, buckets: IntArray, profiles: ByteArray) -> IntArray:
        """Positions of buckets of these profiles in a flat table of all layouts."""
        return profiles * np.int64(1 + self._max_buckets) + 1 + buckets

    def scale(self, rows: IntArray, factor: float, profiles: ByteArray) -> npt.NDArray[np.bool_]:
        """Multiply all weights of these rows; weights below epsilon become 0.

        Returns whether each row still has weights, (n,).
        """
        filled = np.zeros(len(rows), np.bool_)
        for width, positions in self._by_width(rows):
            units = self._unit[rows[positions]]
            weights = self.cells.read(units, width) * factor
            weights[weights < self.epsilon[profiles[positions]][:, None]] = 0.0
            self.cells.write(units, weights)
            filled[positions] = ~is_empty(weights)
        return filled

    def clear(self, rows: IntArray) -> None:
        """Remove all weights of these rows."""
        for width, positions in self._by_width(rows):
            self.cells.release(self._unit[rows[positions]], width)
        self._width[rows] = 0
        self._base[rows] = 0

    def dense(self, rows: IntArray) -> FloatArray:
        """All weights of these rows, (n, buckets of the largest layout)."""
        weights = np.zeros((len(rows), self._max_buckets))
        positions, buckets, filled = self._nonzero_buckets(rows)
        weights[positions, buckets] = filled
        return weights

    def load(
        self, rows: IntArray, counts: IntArray, buckets: IntArray, weights: FloatArray
    ) -> None:
        """Fill empty rows: each has `counts` (n,) of the ascending `buckets` and of `weights`."""
        filled = counts > 0
        ends = np.cumsum(counts)[filled]
        self._allocate(rows[filled], buckets[ends - counts[filled]], buckets[ends - 1])
        self._set_weights(rows.repeat(counts), buckets, weights)

    def _nonzero_buckets(self, rows: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
        """Buckets with a weight, in any order: position in `rows`, bucket and weight."""
        parts = []
        for width, positions in self._by_width(rows):
            selected = rows.take(positions)
            cells = self.cells.read(self._unit.take(selected), width).reshape(-1)
            filled = (cells > 0.0).nonzero()[0]
            row_index, column = np.divmod(filled, width)
            buckets = np.add(self._base.take(selected).take(row_index), column)
            parts.append((positions.take(row_index), buckets, cells.take(filled)))
        if len(parts) == 1:
            return parts[0]
        nothing = np.zeros(0, np.int64)
        columns = zip((nothing, nothing, np.zeros(0)), *parts, strict=True)
        positions, buckets, weights = map(np.concatenate, columns)
        return positions, buckets, weights

    def _set_weights(self, rows: IntArray, buckets: IntArray, weights: FloatArray) -> None:
        """Set weights of buckets that are within the rows' stretches."""
        cells = self._unit.take(rows) * np.int64(_UNIT) + (buckets - self._base.take(rows))
        self.cells.flat[cells] = weights

    def _bucket_indices(self, values: FloatArray, profiles: ByteArray) -> IntArray:
        if len(self.layouts) == 1:
            return self.layouts[0].digitize(values)
        buckets = np.zeros(len(values), np.int64)
        for profile, layout in enumerate(self.layouts):
            positions = np.flatnonzero(profiles == profile)
            buckets[positions] = layout.digitize(values[positions])
        return buckets

    def _by_width(self, rows: IntArray) -> Iterator[tuple[int, IntArray]]:
        """Each width that occurs, with the positions in `rows` of the rows that have it."""
        widths, left = self._width.take(rows), len(rows)
        for width in self._widths.tolist():
            if left == 0:
                break
            positions = (widths == width).nonzero()[0]
            if len(positions):
                left -= len(positions)
                yield width, positions

    def _make_room(self, rows: IntArray, buckets: IntArray) -> None:
        """Move these rows to stretches with room for their weights and `buckets`."""
        rows, index = np.unique(rows, return_inverse=True)
        low, high = np.full(len(rows), self._max_buckets), np.full(len(rows), -1)
        np.minimum.at(low, index, buckets)
        np.maximum.at(high, index, buckets)
        positions, filled, weights = self._nonzero_buckets(rows)
        np.minimum.at(low, positions, filled)
        np.maximum.at(high, positions, filled)
        self.clear(rows)
        self._allocate(rows, low, high)
        self._set_weights(rows.take(positions), filled, weights)

    def _allocate(self, rows: IntArray, low: IntArray, high: IntArray) -> None:
        """Give rows without cells stretches of zeros for buckets `low` to `high`."""
        span = high - low + 1
        widths = self._widths.take(self._widths.searchsorted(span))
        base = np.minimum(low - (widths - span) // 2, self._max_buckets - widths)
        self._width[rows] = widths
        self._base[rows] = np.maximum(base, 0)
        for width, positions in self._by_width(rows):
            units = self.cells.allocate(len(positions), width)
            self.cells.empty(units, width)
            self._unit[rows.take(positions)] = units


def _layout_terms(layout: Layout) -> FloatArray:
    """`BUCKET_TERMS` of every bucket, (buckets, 5)."""
    first, ratio, _ = layout.buckets or (np.nan, np.nan, np.nan)
    numbers = np.arange(layout.num_buckets, dtype=np.float64)
    ends = np.append(layout.starts[1:], np.nan)
    sizes = np.broadcast_to([[first], [ratio]], (2, len(numbers)))
    return np.stack([numbers, *sizes, layout.starts, ends], axis=1)
