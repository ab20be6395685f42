"""Changes of level: the rule against a slow reference, and what is no change."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.arrays import FloatArray
from pipeline.processors.usage_levels.level_changes import (
    AGE_HOURS,
    HELD_HOURS,
    HOLD_HOURS,
    KEPT_HOURS,
    LAG_HOURS,
    RATIO,
    LevelChanges,
    level_changes,
)

SMALLEST = 0.05


def of_series(*series: FloatArray) -> LevelChanges:
    """The changes of these series (hours,), taken as cpu and as memory."""
    hours = np.stack([np.stack([each[-KEPT_HOURS:]] * 2) for each in series])
    return level_changes(hours, np.full((len(series), 2), SMALLEST))


def rhythm(hours: int = KEPT_HOURS + 240, weekend: float = 0.3) -> FloatArray:
    """A service of office hours: three times the usage by day, little at weekends."""
    hour = np.arange(hours)
    by_day = 1.0 + 2.0 * ((hour % 24 >= 8) & (hour % 24 < 18))
    return np.asarray(0.1 * by_day * np.where(hour // 24 % 7 < 5, 1.0, weekend))


def reference(series: list[float]) -> tuple[int, bool]:
    """Direction and calm by the text of the module, hour by hour."""

    def side(hour: int) -> int | None:
        now, olds = series[hour], [series[hour - lag] for lag in LAG_HOURS]
        if any(map(math.isnan, (now, *olds))):
            return None
        floor = 0.4 * SMALLEST
        if all(now + floor > RATIO * (old + floor) for old in olds):
            return 1
        return -1 if all(RATIO * (now + floor) < old + floor for old in olds) else 0

    last = range(len(series) - HOLD_HOURS, len(series))
    sides = [side(hour) for hour in last]
    known = [hour for hour, each in zip(last, sides, strict=True) if each is not None]
    means = [
        sum(series[hour - lag] for hour in known) / len(known) if known else math.nan
        for lag in (0, *LAG_HOURS)
    ]
    direction = 0
    for sign in (1, -1):
        if sides.count(sign) >= HELD_HOURS and all(
            sign * (means[0] - old) >= SMALLEST and max(means[0], old) >= RATIO * min(means[0], old)
            for old in means[1:]
        ):
            direction = sign
    day_known = sum(not math.isnan(series[h] + series[h - LAG_HOURS[0]]) for h in last)
    few = HOLD_HOURS - HELD_HOURS
    return direction, day_known >= HELD_HOURS and max(sides.count(1), sides.count(-1)) <= few


@given(st.integers(0, 10_000), st.floats(0.3, 3.0), st.floats(0.0, 0.3), st.floats(0.0, 0.5))
def test_the_rule_is_that_of_the_reference(
    seed: int, factor: float, noise: float, missing: float
) -> None:
    random = np.random.default_rng(seed)
    series = rhythm()[-KEPT_HOURS:] * np.exp(noise * random.standard_normal(KEPT_HOURS))
    series[-HOLD_HOURS + int(random.integers(-2, 2)) :] *= factor
    series[random.random(KEPT_HOURS) < missing * random.random()] = np.nan
    changes = of_series(series)
    assert (changes.direction[0, 0], changes.is_calm[0, 0]) == reference(series.tolist())
    assert not (changes.direction[0, 0] and changes.is_calm[0, 0])


def test_neither_days_nor_weeks_are_changes() -> None:
    series = rhythm()
    for end in range(KEPT_HOURS, len(series)):
        changes = of_series(series[:end])
        assert not changes.direction.any()
        assert changes.is_calm.all()


@pytest.mark.parametrize("factor", [1.5, 2.0, 0.5])
@pytest.mark.parametrize("begin", range(KEPT_HOURS, KEPT_HOURS + 168, 13))
def test_a_change_is_found_within_a_day_with_its_levels_and_its_begin(
    factor: float, begin: int
) -> None:
    series = rhythm(weekend=1.0) + 0.1
    series[begin:] *= factor
    ends = [end for end in range(begin, begin + AGE_HOURS)
            if of_series(series[:end]).direction[0, 0]]  # fmt: skip
    assert ends[0] == begin + HELD_HOURS
    changes = of_series(series[: ends[0]])
    assert changes.direction[0, 0] == (1 if factor > 1 else -1)
    assert changes.age_hours[0, 0] == HELD_HOURS
    assert changes.after[0, 0] == pytest.approx(series[begin : ends[0]].mean())
    assert changes.after[0, 0] / changes.before[0, 0] == pytest.approx(factor)
    # A day later the new level is the one of the day before.
    assert not of_series(series[: begin + AGE_HOURS]).direction.any()


@pytest.mark.parametrize("length", range(1, HELD_HOURS))
def test_a_short_peak_is_no_change(length: int) -> None:
    series = rhythm() + 0.1
    series[-length:] *= 5.0
    assert not of_series(series).direction.any()


def test_unknown_hours_are_not_zero() -> None:
    """Scaled to nothing for some time, and back on the level of before."""
    series = rhythm() + 0.1
    for gap in (3, 30, 100, 190):
        holed = series.copy()
        holed[-gap - 5 : -5] = np.nan
        assert not of_series(holed).direction.any()
    assert not of_series(np.full(KEPT_HOURS, np.nan)).direction.any()
    assert not of_series(np.full(KEPT_HOURS, np.nan)).is_calm.any()
    young = series.copy()
    young[:-100] = np.nan
    young[-6:] *= 3.0
    assert not of_series(young).direction.any()


def test_changes_smaller_than_the_smallest_do_not_count() -> None:
    series = np.full(KEPT_HOURS, 0.02)
    series[-HOLD_HOURS:] = 0.02 + 0.9 * SMALLEST
    assert not of_series(series).direction.any()
    series[-HOLD_HOURS:] = 0.02 + 1.1 * SMALLEST
    assert (of_series(series).direction == 1).all()


def test_series_and_resources_do_not_affect_each_other() -> None:
    calm, risen, fallen = rhythm() + 0.1, rhythm() + 0.1, rhythm() + 0.1
    risen[-6:] *= 2.0
    fallen[-6:] *= 0.4
    assert of_series(calm, risen, fallen).direction.tolist() == [[0, 0], [1, 1], [-1, -1]]
    hours = np.stack([np.stack([risen, calm])[:, -KEPT_HOURS:]])
    mixed = level_changes(hours, np.full((1, 2), SMALLEST))
    assert mixed.direction.tolist() == [[1, 0]]
    assert np.isnan(mixed.after[0, 1])
