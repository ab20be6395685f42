"""The last day of each row: its highest usage in each of 288 slots of five minutes.

A day takes 576 bytes per row and resource. A slot holds the highest sample that ended in it, as a
code of 16 bits on a logarithmic scale, rounded up by less than 0.12% (a peak must not be
understated); 0 is exact. Values below 1e-4 cores or 100 bytes read as these.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.column_store import Column

Codes = npt.NDArray[np.uint16]

SLOT_MS: Final = 300_000
SLOTS: Final = 288

# Code 0 is no value, 1 is zero, the others lie on lowest * exp(step * (code - 2)).
LOWEST: Final = np.array([1e-4, 100.0])
_HIGHEST: Final = np.array([1.01e6, 1.01 * 2.0**60])
_CODES: Final = 65_533
STEP: Final = np.log(_HIGHEST / LOWEST) / _CODES
_RESOURCES: Final = np.arange(2)[:, None]
CODE_VALUES: Final = np.stack(
    [
        np.concatenate([[np.nan, 0.0], low * np.exp(step * np.arange(_CODES + 1))])
        for low, step in zip(LOWEST, STEP, strict=True)
    ]
)

COLUMNS: Final = {
    "recent": Column((2, SLOTS), "<u2", by_row=False),
    "recent_slot": Column((), "<i8", -1),
}
"""`recent` are codes by slot number modulo `SLOTS`, `recent_slot` is the newest slot of a row."""


def observe(
    recent: Codes, newest: IntArray, rows: IntArray, values: FloatArray, end_ms: IntArray
) -> None:
    """Store one sample per row, `values` (n, 2); NaN is no sample. `rows` are distinct, and
    their windows never go back in time."""
    # A window that ends on a boundary belongs to the slot that ends there.
    slot = (end_ms - 1) // SLOT_MS
    before = newest.take(rows)
    passed = slot - before
    if passed.any():
        # A row without a slot is empty: to empty it again would touch a day of every new pod.
        _forget(recent, rows, slot, np.where(before < 0, 0, passed))
        newest[rows] = slot
    codes = encode(np.ascontiguousarray(values.T), _RESOURCES)
    for number, positions in _by_value(slot):
        slot_rows = rows[positions]
        for r in range(2):
            # The column is not by row: one slot of all rows is contiguous.
            column = recent[:, r, number % SLOTS]
            column[slot_rows] = np.maximum(column.take(slot_rows), codes[r][positions])


def _forget(recent: Codes, rows: IntArray, slot: IntArray, passed: IntArray) -> None:
    """Clear the `passed` newest slots of each row, up to `slot`."""
    for steps, stepped in _by_value(passed):
        for now, positions in _by_value(slot[stepped]):
            for old in range(now - min(steps, SLOTS) + 1, now + 1):
                recent[rows[stepped][positions], :, old % SLOTS] = 0


def _by_value(values: IntArray) -> list[tuple[int, IntArray | slice]]:
    """The distinct values, and where each is."""
    if len(values) and values.min() == values.max():
        return [(int(values[0]), slice(None))]
    return [(int(value), np.flatnonzero(values == value)) for value in np.unique(values)]


def maximum(
    recent: Codes, newest: IntArray, rows: IntArray, resource: int, slots: int
) -> FloatArray:
    """The highest value in the last `slots` slots of each of these rows, (n,); NaN without one."""
    codes = _codes_of(recent, newest, rows, resource, slots)
    return np.asarray(CODE_VALUES[resource][codes.max(axis=1, initial=0)])


def percentile(
    recent: Codes,
    newest: IntArray,
    rows: IntArray,
    resource: int,
    slots: int,
    ranks: IntArray,
    shares: FloatArray | None = None,
) -> FloatArray:
    """One of the values in the last `slots` slots of each of these rows, (n,): of c ascending
    values the one at `ranks[c]`; NaN without one. With `shares`, it lies so far on the way from
    that value to the next one: by the share `shares[c]`."""
    codes = _codes_of(recent, newest, rows, resource, slots)
    # Codes ascend as values do. For 16 bits numpy's stable sort is a radix sort.
    codes.sort(axis=1, kind="stable")
    empty = (codes == 0).sum(axis=1)
    place = np.minimum(empty + ranks[SLOTS - empty], SLOTS - 1)
    row = np.arange(len(rows))
    values = np.asarray(CODE_VALUES[resource][codes[row, place]])
    if shares is None:
        return values
    following = CODE_VALUES[resource][codes[row, np.minimum(place + 1, SLOTS - 1)]]
    return np.asarray(values + shares[SLOTS - empty] * (following - values))


def _codes_of(recent: Codes, newest: IntArray, rows: IntArray, resource: int, slots: int) -> Codes:
    """The codes of these rows in no order of time, (n, SLOTS), 0 in all but the last `slots`."""
    codes = np.empty((len(rows), SLOTS), np.uint16)
    for place in range(SLOTS):
        codes[:, place] = recent[:, resource, place].take(rows)
    if slots < SLOTS:
        codes[(newest[rows][:, None] - np.arange(SLOTS)) % SLOTS >= slots] = 0
    return codes


def encode(values: FloatArray, resource: int | IntArray) -> Codes:
    """The lowest code that does not understate each value; 0 for NaN. `resource` is that of all
    values, or broadcasts to that of each."""
    known = ~np.isnan(values)
    safe = np.where(known, values, 0.0)
    with np.errstate(divide="ignore"):
        steps = np.log(safe / LOWEST[resource]) / STEP[resource]
    codes = np.minimum(np.maximum(np.ceil(steps), 0.0), _CODES).astype(np.int64) + 2
    # Rounding of logarithm and exponential may leave a code one too low or one too high, and not on
    # every kind of CPU alike.
    first = resource * CODE_VALUES.shape[1]
    codes += (codes < _CODES + 2) & (CODE_VALUES.take(codes + first) < safe)
    codes -= (codes > 2) & (CODE_VALUES.take(codes + (first - 1)) >= safe)
    codes[safe == 0.0] = 1
    return np.where(known, codes, 0).astype(np.uint16)
