"""Compare rules that find changes of level on traces: false alarms and delays.

    python -m benchmarks.level_changes DIR

DIR has `<name>.series.parquet` files (columns series, start, cpu_request_m, cpu_limit_m, cpu_m
every five minutes). A series stands for a workload; groups of 25 series stand for pools. Prints,
for each data set and rule: alarms per week on the traces as they are, how many of them are gone a
day later (`returned`: the day after is within 20% of the day before), and for levels that are
changed by x1.5, x2 and x0.5 at a random hour the share that is found within a day and the median
delay. An alarm on the traces may be right: their levels do change. All rules see the same hours.
Detectors of river see the logarithm of the ratio to the same hour a day, two days and a week
before, the one nearest to 0, and an alarm needs means that differ as much as in the product's rule.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from river import drift

from pipeline.processors.arrays import FloatArray
from pipeline.processors.usage_levels.level_changes import (
    HOLD_HOURS,
    KEPT_HOURS,
    LAG_HOURS,
    RATIO,
    level_changes,
)

STEPS: Final = 12
GROUP: Final = 25
FACTORS: Final = (1.5, 2.0, 0.5)
SMALLEST: Final = 0.05
DAY: Final = 24
Rule = Callable[[FloatArray], list[int]]
"""Hours of alarms in a series of hourly usage, with at most one alarm a day."""


class Stream(NamedTuple):
    """Hourly usage and limit as shares of requests, (hours,)."""

    usage: FloatArray
    limit: FloatArray


def streams(path: Path, group: int) -> list[Stream]:
    """Streams of `group` series each that fill the hours of a week and more."""
    rows = pq.read_table(path).to_pylist()
    rows = [row for row in rows if row["cpu_request_m"] > 0 and row["cpu_m"]]
    steps = max(row["start"] + len(row["cpu_m"]) for row in rows) // STEPS * STEPS
    order = np.random.default_rng(3).permutation(len(rows))
    count = max(len(rows) // group, 1)
    result = []
    for first in range(count):
        sums = np.zeros((3, steps))
        for index in order[first::count]:
            row = rows[index]
            place = slice(row["start"], min(row["start"] + len(row["cpu_m"]), steps))
            sums[0, place] += row["cpu_m"][: place.stop - place.start]
            sums[1:, place] += [[row["cpu_request_m"]], [row["cpu_limit_m"]]]
        used, requests, limit = sums.reshape(3, -1, STEPS).mean(axis=2)
        known = np.flatnonzero(requests > 0)
        own = slice(known[0], known[-1] + 1)
        if len(known) >= KEPT_HOURS + DAY:
            with np.errstate(invalid="ignore", divide="ignore"):
                result.append(Stream((used / requests)[own], (limit / requests)[own]))
    return result


def spaced(hours: Iterator[int] | Sequence[int]) -> list[int]:
    """These hours without those within a day of an earlier one."""
    result: list[int] = []
    for hour in hours:
        if not result or hour >= result[-1] + DAY:
            result.append(hour)
    return result


def held(usage: FloatArray) -> list[int]:
    """The rule of the product."""
    places = range(KEPT_HOURS, len(usage) + 1)
    hours = np.stack([usage[end - KEPT_HOURS : end] for end in places])[:, None, :].repeat(
        2, axis=1
    )
    changes = level_changes(hours, np.full((len(hours), 2), SMALLEST))
    return spaced([KEPT_HOURS - 1 + int(i) for i in np.flatnonzero(changes.direction[:, 0])])


def with_river(make: Callable[[], Any]) -> Rule:
    """A rule by a detector of river, which starts again after an alarm."""

    def rule(usage: FloatArray) -> list[int]:
        logs = np.log(usage + 0.02)
        ratios = np.stack([logs[KEPT_HOURS:] - logs[KEPT_HOURS - lag : -lag] for lag in LAG_HOURS])
        same_side = (ratios > 0).all(axis=0) | (ratios < 0).all(axis=0)
        nearest = np.where(same_side, np.sign(ratios[0]) * np.abs(ratios).min(axis=0), 0.0)
        detector, alarms = make(), []
        for hour, value in enumerate(nearest.tolist(), KEPT_HOURS):
            if value != value:
                continue
            detector.update(value)
            if detector.drift_detected and differs(usage, hour):
                alarms.append(hour)
                detector = make()
        return spaced(alarms)

    return rule


def differs(usage: FloatArray, hour: int) -> bool:
    """Whether the last hours differ from those of each earlier day, all on one side."""
    last = slice(hour - HOLD_HOURS + 1, hour + 1)
    now = float(usage[last].mean())
    olds = [float(usage[last.start - lag : last.stop - lag].mean()) for lag in LAG_HOURS]
    up = all(now - old >= SMALLEST and now >= RATIO * old for old in olds)
    return up or all(old - now >= SMALLEST and old >= RATIO * now for old in olds)


RULES: Final[dict[str, Rule]] = {
    "held": held,
    "adwin 1e-2": with_river(
        lambda: drift.ADWIN(delta=1e-2, clock=1, min_window_length=2, grace_period=4)
    ),
    "adwin 1e-3": with_river(
        lambda: drift.ADWIN(delta=1e-3, clock=1, min_window_length=2, grace_period=4)
    ),
    "page-hinkley": with_river(
        lambda: drift.PageHinkley(min_instances=4, delta=0.2, threshold=1.5, alpha=1 - 1 / 48)
    ),
    "kswin": with_river(lambda: drift.KSWIN(alpha=1e-3, window_size=48, stat_size=8, seed=1)),
}


class Score(NamedTuple):
    weeks: float
    alarms: int
    returned: int
    delays: dict[float, list[float]]


def score(streams_: Sequence[Stream], rule: Rule, injections: int) -> Score:
    rng = np.random.default_rng(7)
    weeks, alarms, returned = 0.0, 0, 0
    delays: dict[float, list[float]] = {factor: [] for factor in FACTORS}
    for usage, limit in streams_:
        own = rule(usage)
        weeks += (len(usage) - KEPT_HOURS) / (7 * DAY)
        alarms += len(own)
        returned += sum(is_gone(usage, hour) for hour in own)
        for factor in FACTORS:
            for _ in range(injections):
                begin = int(rng.integers(KEPT_HOURS, len(usage) - DAY))
                delay = delay_of(usage, limit, rule, own, begin, factor)
                if delay is not None:
                    delays[factor].append(delay)
    return Score(weeks, alarms, returned, delays)


def is_gone(usage: FloatArray, hour: int) -> bool:
    """Whether the day after an alarm is near the day before the change."""
    if hour + DAY > len(usage):
        return False
    after = usage[hour : hour + DAY].mean()
    before = usage[hour - HOLD_HOURS - DAY : hour - HOLD_HOURS].mean()
    return bool(1 / 1.2 <= after / max(before, 1e-9) <= 1.2)


def delay_of(
    usage: FloatArray, limit: FloatArray, rule: Rule, own: Sequence[int], begin: int, factor: float
) -> float | None:
    """Hours until a change is found, infinite if not within a day. None where the trace has an
    alarm of its own, uses too little, or where the limit cuts the change off."""
    if usage[begin - DAY : begin].mean() < 0.1 or any(abs(hour - begin) < DAY for hour in own):
        return None
    changed = usage[: begin + DAY].copy()
    changed[begin:] = np.minimum(factor * changed[begin:], limit[begin : begin + DAY])
    ratio = changed[begin:].mean() / usage[begin : begin + DAY].mean()
    if abs(ratio - factor) > 0.2 * abs(factor - 1):
        return None
    found = [hour for hour in rule(changed) if hour >= begin]
    return found[0] + 1.0 - begin if found else np.inf


def main(folder: Path) -> None:
    print("data set        unit     rule          weeks  alarms/week  returned/week  "
          + "  ".join(f"x{factor:g}: n, found, delay" for factor in FACTORS))  # fmt: skip
    for path in sorted(folder.glob("*.series.parquet")):
        for unit, group, injections in (("workload", 1, 2), ("pool", GROUP, 8)):
            own = streams(path, group)
            for name, rule in RULES.items() if own else ():
                weeks, alarms, returned, delays = score(own, rule, injections)
                cells = [
                    f"{len(each):4d} {100 * np.isfinite(each).mean() if each else 0:4.0f}% "
                    f"{np.median(each) if each else np.nan:5.1f} h"
                    for each in delays.values()
                ]
                print(f"{path.name.partition('.')[0]:15} {unit:8} {name:12} {weeks:6.0f} "
                      f"{alarms / weeks:12.2f} {returned / weeks:14.2f}  "
                      + "   ".join(cells), flush=True)  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
