"""Detect changes of level: ADWIN over every entity and resource of a node, as columns.

A series is one entity and resource of a node; pods have none. The result depends on the node's own
windows alone, to the last bit.

Method: A. Bifet and R. Gavalda, Learning from time-changing data with adaptive windowing (2007).
The values of a series are kept as sums in buckets. At a check the series is cut at every bucket; if
the means of both sides differ by more than `epsilon_cut` of the paper, the level changed, and the
series starts again. Up to 10,235 values since the last change, each decision equals that of
`drift.ADWIN` of the `river` library: tests/processors/model/test_drift.py compares decisions, sums
and variances bit by bit. After that river's window grows on; this one drops its oldest 2,048
values and estimates the variance of the rest, so that a node has columns of a fixed size.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.model.column_store import Column, Columns
from pipeline.processors.model.model_config import ENTITIES, MAX_USAGE, RESOURCES

DELTA: Final = 0.002
"""Probability of a false alarm at one check: delta of the paper."""
CLOCK: Final = 32
"""Number of values between two checks."""
MIN_SIDE_VALUES: Final = 5
"""Fewest values on either side of a cut."""

BUCKETS: Final = 5
"""Most buckets of one size; when one more is inserted, the oldest two become one of twice the
size."""
LEVELS: Final = 11
"""Sizes of buckets: level i has sums of 2**i values. All levels hold 8,188 to 10,235 values."""

PUBLISHED_HALF_LIVES: Final = 4
"""A change is published for so long; after that, earlier samples weigh a sixteenth anyway."""
SHORTEN_FACTOR: Final = 2.0**-PUBLISHED_HALF_LIVES
"""Factor of the past where a change shortens it: as if that time had passed."""

_SERIES: Final = (len(ENTITIES), len(RESOURCES))
_PLACES: Final = BUCKETS * LEVELS

COLUMNS: Final = {
    "drift_buckets": Column((*_SERIES, _PLACES)),
    "drift_total": Column(_SERIES),
    "drift_squares": Column(_SERIES),
    "drift_values": Column(_SERIES, "<i4"),
    "drift_scale": Column((len(RESOURCES),), "<f8", 1.0),
    "drift_ms": Column(_SERIES, "<i8", -1),
    "drift_count": Column(_SERIES, "<i4"),
}
"""Columns per node, 7.4 KiB.

`drift_buckets` are sums of values, the oldest first: five places for each size from 1,024 down to
1, 0 if unused. `drift_total` is their sum, `drift_squares` the sum of squared deviations from their
mean. `drift_values`, the number of values since the series began, determines which places are in
use. Usage is divided by `drift_scale`. `drift_ms` and `drift_count` are the time of the last change
and the number of changes."""

_BUCKET_LEVEL: Final = np.arange(LEVELS - 1, -1, -1).repeat(BUCKETS)
_BUCKET_SIZE: Final = 1 << _BUCKET_LEVEL
_BUCKET_PLACE: Final = np.tile(np.arange(BUCKETS), LEVELS)

# ln(2/delta') of the paper by the number of values in the window, which is a multiple of CLOCK at
# every check. By the C library's logarithm: the last bit of numpy's may depend on the kind of CPU.
_CONFIDENCE: Final = np.array(
    [math.nan, *(math.log(2.0 * math.log(n) / DELTA) for n in range(CLOCK, 1 << 14, CLOCK))]
)


def observe(
    columns: Columns, slots: IntArray, usage: FloatArray, allocatable: FloatArray, end_ms: IntArray
) -> BoolArray:
    """Learn one window of each of the distinct node `slots` (k,), which ends at `end_ms` (k,).

    `usage` (k, entities, 2) and `allocatable` (k, 2) are cores and bytes; NaN usage is no value.
    Returns whether each series changed, (k, entities, 2).
    """
    values = _scaled(columns, slots, usage, allocatable).ravel()
    series = (slots[:, None] * math.prod(_SERIES) + np.arange(math.prod(_SERIES))).ravel()
    known = np.flatnonzero(~np.isnan(values))
    changed = np.zeros(usage.shape, np.bool_)
    changed.reshape(-1)[known] = update(columns, series[known], values[known])
    if changed.any():
        nodes, entity, resource = np.nonzero(changed)
        columns["drift_ms"][slots[nodes], entity, resource] = end_ms[nodes]
        columns["drift_count"][slots[nodes], entity, resource] += 1
    return changed


def changes(
    columns: Columns, slots: IntArray, end_ms: IntArray, published_ms: IntArray
) -> tuple[IntArray, IntArray]:
    """The time of the last change of each series, and the number of changes, (k, entities, 2) each.

    The time is -1 if there was none within `published_ms` (entities, 2) before `end_ms` (k,), the
    end of the node's last window.
    """
    time_ms = columns["drift_ms"].take(slots, axis=0)
    recent = (time_ms >= 0) & (end_ms[:, None, None] - time_ms <= published_ms)
    return np.where(recent, time_ms, -1), columns["drift_count"].take(slots, axis=0)


def update(columns: Columns, series: IntArray, values: FloatArray) -> BoolArray:
    """Add one of `values` (n,), 0..1, to each of the distinct `series` (n,), numbered by slot,
    entity and resource. Returns whether each changed, (n,); a changed series starts again."""
    buckets = columns["drift_buckets"].reshape(-1, _PLACES)
    total, squares, count = (
        columns[name].reshape(-1) for name in ("drift_total", "drift_squares", "drift_values")
    )
    before = count.take(series).astype(np.int64)
    width = window_width(before)
    deviations = values - total.take(series) / np.maximum(width, 1)
    squares[series] += width * deviations * deviations / (width + 1)
    total[series] += values
    count[series] = before + 1
    full, dropped = _insert(buckets, series, values, before)
    if len(full):
        total[full] -= dropped
        # The squares of dropped values are not stored: assume that all values deviate alike.
        left = window_width(count[full].astype(np.int64))
        squares[full] *= left / (left + (1 << LEVELS))
    changed = np.zeros(len(series), np.bool_)
    if len(due := ((before + 1) % CLOCK == 0).nonzero()[0]):
        checked = series[due]
        changed[due] = _has_cut(buckets[checked], total[checked], squares[checked], before[due] + 1)
        for column in (buckets, total, squares, count):
            column[series[changed]] = 0
    return changed


def _scaled(
    columns: Columns, slots: IntArray, usage: FloatArray, allocatable: FloatArray
) -> FloatArray:
    """Divide usage by the scale of its node and resource; the result is 0..1, as ADWIN requires.

    The scale is the power of two, at least 1, at or above allocatable. Where allocatable is unknown
    or implausible, it is the larger of the old scale and the one of the highest usage. When a scale
    changes, stored values change by a power of two, which rounds nothing.
    """
    known = (allocatable > 0.0) & (allocatable <= MAX_USAGE)
    highest = np.fmax.reduce(usage, axis=1, initial=0.0)
    mantissa, exponent = np.frexp(np.where(known, allocatable, highest))
    old = columns["drift_scale"].take(slots, axis=0)
    # The scale also follows allocatable down: one wrong value must not blind a series for good.
    lower_bound = np.where(known, 1.0, old)
    scale = np.maximum(lower_bound, np.ldexp(1.0, exponent - (mantissa == 0.5)))
    other = np.flatnonzero((scale != old).any(axis=1))
    if len(other):
        rows, factor = slots[other], (old / scale)[other, None]
        columns["drift_buckets"][rows] *= factor[..., None]
        columns["drift_total"][rows] *= factor
        columns["drift_squares"][rows] *= factor * factor
        columns["drift_scale"][rows] = scale[other]
    values: FloatArray = np.minimum(usage / scale[:, None], 1.0)
    return values


def _inserted(values: IntArray, level: int | IntArray) -> IntArray:
    """The number of buckets that were inserted at a level once a series has had `values`.

    Level 0 gets every value. Of n buckets inserted at a level, (n - 4) // 2 pairs moved up: the
    6th insertion moves the first pair and leaves 4, then every second one moves another. So n + 4
    halves from level to level, rounded down.
    """
    remaining = BUCKETS - 1
    inserted: IntArray = np.maximum(((values + remaining) >> level) - remaining, 0)
    return inserted


def _filled(values: IntArray, level: int | IntArray) -> IntArray:
    """The number of buckets in use at a level: all that were inserted, then 4 and 5 by turns."""
    inserted, remaining = _inserted(values, level), BUCKETS - 1
    filled: IntArray = np.minimum(inserted, remaining + ((inserted - remaining) & 1))
    return filled


def window_width(values: IntArray) -> IntArray:
    """The number of values in the buckets of a series that has had `values`.

    What would be inserted above the highest level is dropped.
    """
    return values - (_inserted(values, LEVELS) << LEVELS)


def _insert(
    buckets: FloatArray, series: IntArray, sums: FloatArray, before: IntArray
) -> tuple[IntArray, FloatArray]:
    """Add `sums` (n,) as the newest buckets of the smallest size in their series, which have had
    `before` values. Returns the series whose oldest values were dropped, and their sums."""
    for level in range(LEVELS):
        first = _PLACES - (level + 1) * BUCKETS
        filled = _filled(before, level)
        full = filled == BUCKETS
        buckets[series[~full], first + filled[~full]] = sums[~full]
        series, sums, before = series[full], sums[full], before[full]
        if not len(series):
            break
        place = slice(first, first + BUCKETS)
        old = buckets[series, place]
        buckets[series, place] = np.concatenate(
            [old[:, 2:], sums[:, None], np.zeros((len(sums), 1))], axis=1
        )
        sums = old[:, 0] + old[:, 1]
    return series, sums


def _has_cut(
    buckets: FloatArray, total: FloatArray, squares: FloatArray, values: IntArray
) -> BoolArray:
    """Whether each series, by its columns (n, ..), falls into two parts with different means.

    Names and formula of the paper: a cut leaves `older` and `newer` values on its sides, 1/m is
    1/older + 1/newer (river counts both without the `MIN_SIDE_VALUES` - 1 that every side needs),
    and `epsilon_cut` is sqrt(2/m * variance * confidence) + 2/3 * 1/m * confidence.
    """
    # All that does not depend on usage follows from the number of values, which most series share.
    distinct, group = np.unique(values, return_inverse=True)
    width = window_width(distinct)
    filled = _filled(distinct[:, None], _BUCKET_LEVEL)
    older = np.cumsum(np.where(filled > _BUCKET_PLACE, _BUCKET_SIZE, 0.0), axis=1)
    newer = width[:, None] - older
    allowed = (older >= MIN_SIDE_VALUES) & (newer >= MIN_SIDE_VALUES)
    older, newer = np.maximum(older, MIN_SIDE_VALUES), np.maximum(newer, MIN_SIDE_VALUES)
    inverse_m = 1.0 / (older - MIN_SIDE_VALUES + 1.0) + 1.0 / (newer - MIN_SIDE_VALUES + 1.0)
    confidence = _CONFIDENCE[width // CLOCK][:, None]
    constant_part = np.where(allowed, 2.0 / 3.0 * confidence * inverse_m, np.inf)

    newer_sum = np.subtract.accumulate(np.column_stack([total, buckets]), axis=1)[:, 1:]
    difference = np.abs(np.cumsum(buckets, axis=1) / older[group] - newer_sum / newer[group])
    variance = (squares / width[group])[:, None]
    noise = 2.0 * inverse_m[group] * variance * confidence[group]
    epsilon_cut = np.sqrt(noise) + constant_part[group]
    return np.asarray((difference > epsilon_cut).any(axis=1))
