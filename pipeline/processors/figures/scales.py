"""Scales from values to pixels, their ticks, and the axes of a plot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.figures import svg

_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR
_TIME_STEPS: Final = (
    300, 900, 1800, _HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY,
    14 * _DAY, 28 * _DAY, 56 * _DAY, 112 * _DAY, 364 * _DAY,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from `low` to `high` at pixels from `start` to `end`, linear, or by square roots from
    `low` on, which leaves more room for small values."""

    low: float
    high: float
    start: float
    end: float
    by_roots: bool = False

    def __call__(self, values: FloatArray) -> FloatArray:
        """The pixels of values; those outside are moved to the ends, NaN stays."""
        share = (np.clip(values, self.low, self.high) - self.low) / (self.high - self.low)
        if self.by_roots:
            share = np.sqrt(share)
        return self.start + share * (self.end - self.start)

    def at(self, value: float) -> float:
        """The pixel of one value."""
        return float(self(np.array(value)))


def round_ticks(highest: float, count: int) -> list[float]:
    """From 0 to at least `highest`, at most `count` + 1 values at distances of 1, 2 or 5 times a
    power of ten.

    >>> round_ticks(7.3, 4)
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    if not highest > 0.0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(highest / count))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor * count >= highest)
    return [step * tick for tick in range(math.ceil(highest / step - 1e-9) + 1)]


def time_ticks(start: float, end: float, count: int) -> tuple[list[float], list[str]]:
    """At most about `count` Unix times at whole hours or days (UTC), and their labels."""
    step = next((s for s in _TIME_STEPS if s * count >= end - start), _TIME_STEPS[-1])
    first = math.ceil(start / step)
    # Also beyond a year there are not more ticks.
    every = max(1, math.ceil((end / step - first + 1) / (2 * count)))
    ticks = [float(step * tick) for tick in range(first, math.floor(end / step) + 1, every)]
    return ticks, [_time_label(tick, step) for tick in ticks]


def _time_label(seconds: float, step: int) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    if step >= _DAY or (moment.hour, moment.minute) == (0, 0):
        return f"{moment:%b} {moment.day}"
    return f"{moment:%H:%M}"


def time_text(seconds: float) -> str:
    """A Unix time as date and time, UTC.

    >>> time_text(1_700_000_100)
    '2023-11-14 22:15'
    """
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def bottom_axis(
    scale: Scale,
    ticks: Sequence[float],
    labels: Sequence[str],
    top: float,
    bottom: float,
    margin: float = 8,
) -> Iterator[str]:
    """Grid lines from `top` to `bottom`, and below them the labels for which there is room, also
    in the `margin` at the right."""
    free = -math.inf
    for tick, label in zip(ticks, labels, strict=True):
        x = scale.at(tick)
        yield svg.line(x, top, x, bottom, "grid")
        half = svg.width_of(label) / 2
        if x - half > free and x + half < scale.end + margin:
            yield svg.text(x, bottom + 14, label, "faint", "middle")
            free = x + half + 4


def left_axis(
    scale: Scale, ticks: Sequence[float], labels: Sequence[str], left: float, right: float
) -> Iterator[str]:
    """Grid lines from `left` to `right` and labels to the left."""
    for tick, label in zip(ticks, labels, strict=True):
        y = scale.at(tick)
        yield svg.line(left, y, right, y, "grid")
        yield svg.text(left - 5, y + 4, label, "faint", "end")
