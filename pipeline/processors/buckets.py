"""Bucket weights of one resource for many rows, of which only the span in use is kept.

Owes the rest: the bits of a dense array (rows, buckets) in a fraction of its memory and time. An
entity's usage stays within a few dozen of the layout's buckets, so a row lies in one of several
slabs of growing width, at the place where its span begins, and moves to a wider one when a sample
falls outside. Buckets outside the span are 0 and add nothing to a running sum, so where a row
lies never shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.processors.histogram import (
    FloatArray,
    IntArray,
    Layout,
    is_empty,
    quantile_buckets,
)

ByteArray = npt.NDArray[np.int8]

_NARROW: Final = (16, 32, 64)
_NOWHERE: Final = -1
_FIRST_CAPACITY: Final = 256


class Slab:
    """Slots of one width: `data` float64 (slots, width); whoever takes one writes all of it."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.data: FloatArray = np.zeros((0, width))
        self._free: list[int] = []

    def take(self, count: int) -> IntArray:
        if count > len(self._free):
            size = len(self.data)
            capacity = max(size + count - len(self._free), size * 5 // 4, _FIRST_CAPACITY)
            grown = np.zeros((capacity, self.width))
            grown[:size] = self.data
            self.data = grown
            self._free[:0] = range(capacity - 1, size - 1, -1)
        split = len(self._free) - count
        taken = self._free[split:]
        del self._free[split:]
        return np.array(taken[::-1], dtype=np.int64)

    def give_back(self, slots: IntArray) -> None:
        self._free.extend(slots[::-1].tolist())


class Buckets:
    """Histograms by row number; rows have nothing until a sample comes.

    Each row has one of `layouts`, given by number (its profile) with the first sample.
    """

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self.layouts = tuple(layouts)
        most = max(layout.num_buckets for layout in layouts)
        widths = [width for width in _NARROW if width < most]
        self._slabs = [Slab(width) for width in (*widths, most)]
        # Of a row that is nowhere (-1) the width is 0: whatever it gets falls outside.
        self._widths = np.array([*(slab.width for slab in self._slabs), 0], dtype=np.int64)
        # A slab may reach beyond the last bucket of a small layout; nothing ever lies there.
        self._ends = np.full((len(layouts), most + 1), np.nan)
        for ends, layout in zip(self._ends, layouts, strict=True):
            ends[: layout.num_buckets] = layout.ends
        self.epsilon: FloatArray = np.array([layout.epsilon for layout in layouts])
        self._slab: npt.NDArray[np.int8] = np.zeros(0, np.int8)
        self._slot: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        self._base: npt.NDArray[np.int16] = np.zeros(0, np.int16)

    @property
    def nbytes(self) -> int:
        slabs = sum(slab.data.nbytes for slab in self._slabs)
        return slabs + self._slab.nbytes + self._slot.nbytes + self._base.nbytes

    def grow(self, rows: int) -> None:
        """Make room for row numbers below `rows`."""
        more = rows - len(self._slab)
        self._slab = np.concatenate([self._slab, np.full(more, _NOWHERE, np.int8)])
        self._slot = np.concatenate([self._slot, np.zeros(more, np.int32)])
        self._base = np.concatenate([self._base, np.zeros(more, np.int16)])

    def add(
        self, rows: IntArray, values: FloatArray, weights: FloatArray, profiles: ByteArray
    ) -> None:
        """One sample per row; `rows` are distinct, no value is NaN, weights are >= epsilon."""
        found = self._find(values, profiles)
        offset = found - self._base[rows]
        outside = (offset < 0) | (offset >= self._widths[self._slab[rows]])
        if outside.any():
            moved = rows[outside]
            self._make_room(moved, found[outside], found[outside])
            offset = found - self._base[rows]
        for slab, at in self._by_slab(rows):
            cells = self._slot[rows[at]] * np.int64(slab.width) + offset[at]
            slab.data.reshape(-1)[cells] += weights[at]

    def quantile(self, rows: IntArray, fractions: FloatArray, profiles: ByteArray) -> FloatArray:
        """A quantile of each row, `fractions` (n,) one for each; NaN where it is empty."""
        answer = np.full(len(rows), np.nan)
        for slab, at in self._by_slab(rows):
            found = quantile_buckets(slab.data[self._slot[rows[at]]], (fractions[at],))[0]
            end = self._ends[profiles[at], self._base[rows[at]] + found]
            answer[at] = np.where(found < 0, np.nan, end)
        return answer

    def scale(self, rows: IntArray, factor: float, profiles: ByteArray) -> npt.NDArray[np.bool_]:
        """Multiply all weights of these rows; what falls below epsilon becomes 0.

        Gives which rows still hold something, (n,).
        """
        filled = np.zeros(len(rows), np.bool_)
        for slab, at in self._by_slab(rows):
            slots = self._slot[rows[at]]
            weights = slab.data[slots] * factor
            weights[weights < self.epsilon[profiles[at]][:, None]] = 0.0
            slab.data[slots] = weights
            filled[at] = ~is_empty(weights)
        return filled

    def clear(self, rows: IntArray) -> None:
        """Leave nothing in these rows."""
        for slab, at in self._by_slab(rows):
            slab.give_back(self._slot[rows[at]].astype(np.int64))
        self._slab[rows] = _NOWHERE
        self._base[rows] = 0

    def dense(self, rows: IntArray) -> FloatArray:
        """All weights of these rows, (n, buckets of the largest layout)."""
        weights = np.zeros((len(rows), self._slabs[-1].width))
        for slab, at in self._by_slab(rows):
            columns = self._base[rows[at]][:, None] + np.arange(slab.width)
            weights[at[:, None], columns] = slab.data[self._slot[rows[at]]]
        return weights

    def load(self, rows: IntArray, counts: IntArray, buckets: IntArray, kept: FloatArray) -> None:
        """Fill empty rows: `counts` (n,) of the ascending `buckets` and weights `kept` each has."""
        filled = counts > 0
        ends = np.cumsum(counts)[filled]
        self._make_room(rows[filled], buckets[ends - counts[filled]], buckets[ends - 1])
        row_of = np.repeat(rows, counts)
        offset = buckets - self._base[row_of]
        for slab, at in self._by_slab(row_of):
            slab.data[self._slot[row_of[at]], offset[at]] = kept[at]

    def _find(self, values: FloatArray, profiles: ByteArray) -> IntArray:
        if len(self.layouts) == 1:
            return self.layouts[0].find(values)
        found = np.zeros(len(values), np.int64)
        for profile, layout in enumerate(self.layouts):
            at = np.flatnonzero(profiles == profile)
            found[at] = layout.find(values[at])
        return found

    def _by_slab(self, rows: IntArray) -> list[tuple[Slab, IntArray]]:
        """The slabs that hold some of these rows, and the positions in `rows` of those."""
        which = self._slab[rows]
        groups = ((slab, np.flatnonzero(which == k)) for k, slab in enumerate(self._slabs))
        return [(slab, at) for slab, at in groups if len(at)]

    def _make_room(self, rows: IntArray, low: IntArray, high: IntArray) -> None:
        """Move these rows so that buckets `low` to `high` lie inside, besides what they hold."""
        weights = self.dense(rows)
        held = weights > 0.0
        some = held.any(axis=1)
        last = self._slabs[-1].width - 1
        low = np.where(some, np.minimum(low, held.argmax(axis=1)), low)
        high = np.where(some, np.maximum(high, last - held[:, ::-1].argmax(axis=1)), high)
        self.clear(rows)
        span = high - low + 1
        target = np.searchsorted(self._widths[:-1], span)
        width = self._widths[target]
        self._slab[rows] = target
        self._base[rows] = np.clip(low - (width - span) // 2, 0, last + 1 - width)
        for slab, at in self._by_slab(rows):
            slots = slab.take(len(at))
            self._slot[rows[at]] = slots
            columns = self._base[rows[at]][:, None] + np.arange(slab.width)
            slab.data[slots] = weights[at[:, None], columns]
