"""Find changes of level in hourly usage: a rule of ratios that have to hold.

An hour is above its level if its usage is more than `RATIO` times that of the same hour one day,
two days and a week before, and below it if it is less by as much. So neither the rhythm of a day
nor that of a week is a change. The level changed if `HELD_HOURS` of the last `HOLD_HOURS` are on
one side, and the means over these hours differ by as much. An unknown hour is on no side.

The rule has no state: it sees the last `KEPT_HOURS` alone. benchmarks/level_changes.py compares it
with ADWIN, Page-Hinkley and KSWIN of the library river, and docs/explanation/drift.md has the
numbers.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray

LAG_HOURS: Final = (24, 48, 168)
HOLD_HOURS: Final = 6
HELD_HOURS: Final = 5
RATIO: Final = 1.3
AGE_HOURS: Final = LAG_HOURS[0] + HOLD_HOURS - HELD_HOURS + 1
"""A change is traced back for so long. From then on so many hours of the day before are on the new
level, too, that the rule sees no change any more."""
KEPT_HOURS: Final = max(LAG_HOURS) + AGE_HOURS
_FLOOR_SHARE: Final = 0.4
"""Part of the smallest change that is added to both sides of a ratio."""
DETECTOR: Final = f"ratio {RATIO:g} held for {HELD_HOURS} of {HOLD_HOURS} hours"

Directions = npt.NDArray[np.int8]


class LevelChanges(NamedTuple):
    """By series and resource, (n, 2): `direction` is 1 (usage rose), -1 (it fell) or 0 (no change,
    or unknown). `is_calm`: the last hours are known, and not on another level. `age_hours` is how
    many hours ago the first hour of the change began, `after` is mean usage in the hours since
    then, at most a day, and `before` in the same hours of the day before; NaN without a change."""

    direction: Directions
    is_calm: BoolArray
    age_hours: IntArray
    before: FloatArray
    after: FloatArray


def level_changes(hours: FloatArray, smallest: FloatArray) -> LevelChanges:
    """The changes of n series as of their last hour.

    `hours` (n, 2, KEPT_HOURS) is the mean usage of each hour, cpu and memory, the newest last, NaN
    unknown; `smallest` (n, 2) is the smallest difference that counts, in the unit of `hours`.
    """
    newest = hours.shape[-1]
    lagged = [hours[..., newest - lag - AGE_HOURS : newest - lag] for lag in LAG_HOURS]
    recent = hours[..., newest - AGE_HOURS :]
    floor = _FLOOR_SHARE * smallest[..., None]
    with np.errstate(invalid="ignore"):
        above = np.logical_and.reduce([recent + floor > RATIO * (old + floor) for old in lagged])
        below = np.logical_and.reduce([RATIO * (recent + floor) < old + floor for old in lagged])
    known = np.logical_and.reduce([~np.isnan(each) for each in (recent, *lagged)])
    held = [known[..., -HOLD_HOURS:] & side[..., -HOLD_HOURS:] for side in (above, below)]
    rose, fell = (each.sum(axis=-1) >= HELD_HOURS for each in held)
    now = _mean(recent[..., -HOLD_HOURS:], known[..., -HOLD_HOURS:])
    olds = [_mean(each[..., -HOLD_HOURS:], known[..., -HOLD_HOURS:]) for each in lagged]
    with np.errstate(invalid="ignore"):
        rose &= np.logical_and.reduce([_exceeds(now, old, smallest) for old in olds])
        fell &= np.logical_and.reduce([_exceeds(old, now, smallest) for old in olds])
    direction = rose.astype(np.int8) - fell.astype(np.int8)
    day_known = ~np.isnan(recent[..., -HOLD_HOURS:]) & ~np.isnan(lagged[0][..., -HOLD_HOURS:])
    is_calm = day_known.sum(axis=-1) >= HELD_HOURS
    for side in held:
        is_calm &= side.sum(axis=-1) <= HOLD_HOURS - HELD_HOURS
    age = _age(np.where(rose[..., None], above, below & fell[..., None]))
    back = np.arange(AGE_HOURS - 1, -1, -1)  # hours before the newest one
    counts = (back <= age[..., None]) & (back > age[..., None] - LAG_HOURS[0])
    counts &= ~np.isnan(recent) & ~np.isnan(lagged[0]) & (direction != 0)[..., None]
    return LevelChanges(
        direction, is_calm, np.where(direction != 0, age + 1, 0),
        before=_mean(lagged[0], counts), after=_mean(recent, counts),
    )  # fmt: skip


def _exceeds(high: FloatArray, low: FloatArray, smallest: FloatArray) -> BoolArray:
    return (high - low >= smallest) & (high >= RATIO * low)


def _mean(values: FloatArray, counts: BoolArray) -> FloatArray:
    """The mean of those that count along the last axis; NaN without any."""
    number = counts.sum(axis=-1)
    total = np.where(counts, values, 0.0).sum(axis=-1)
    mean: FloatArray = np.full(number.shape, np.nan)
    np.divide(total, number, out=mean, where=number > 0)
    return mean


def _age(matches: BoolArray) -> IntArray:
    """How many hours before the newest one the first hour of a run is; single hours that do not
    match do not end it."""
    hours = matches.shape[-1]
    age = np.zeros(matches.shape[:-1], np.int64)
    misses = np.zeros(matches.shape[:-1], np.int64)
    runs = np.ones(matches.shape[:-1], np.bool_)
    for back in range(hours):
        match = matches[..., hours - 1 - back]
        misses = np.where(match, 0, misses + 1)
        runs &= misses < 2
        age = np.where(runs & match, back, age)
    return age
