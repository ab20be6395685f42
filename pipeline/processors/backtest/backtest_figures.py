"""The figures of a backtest: savings against violations, and nodes over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.node_details import Details, NodeSeries, Violation
from pipeline.processors.figures import svg
from pipeline.processors.figures.lines import area_data, bars_data, line_data
from pipeline.processors.figures.scales import (
    Scale,
    bottom_axis,
    left_axis,
    round_ticks,
    time_text,
    time_ticks,
)

_PERCENTS: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0)
_WIDTH: Final = 700
_HEIGHT: Final = 400
_NODE_WIDTH: Final = 360
_NODE_HEIGHT: Final = 200
_LEFT: Final = 46
_TOP: Final = 50
_BOTTOM: Final = _HEIGHT - 52
_OUTSIDE: Final = 1000
"""A label that leaves the plot counts as this many covered ones."""
_DIRECTIONS: Final = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1))


class Point(NamedTuple):
    """A variant: its name, the label in the plot, shares of 0 to 1, and whether it is a predictor
    of another system."""

    name: str
    label: str
    violation: float
    savings: float
    is_peer: bool


def frontier_figure(title: str, points: Sequence[Point], oracle_savings: float) -> str:
    """Savings against the rate of violations, a point for each variant, and the savings of the
    oracle, NaN to leave them out. A line joins the points that no other beats in both."""
    shown = [point for point in points if not np.isnan(point.violation + point.savings)]
    violations = np.array([100 * point.violation for point in shown])
    savings = np.array([100 * point.savings for point in shown])
    limit = max(float(violations.max(initial=0.0)) * 1.1, 2.0)
    highest = np.fmax(savings.max(initial=0.0), 100 * oracle_savings)
    ticks = round_ticks(float(highest) * 1.02, 6)
    x = Scale(0.0, limit, _LEFT, _WIDTH - 16, by_roots=True)
    y = Scale(min(float(savings.min(initial=0.0)), 0.0), ticks[-1], _BOTTOM, _TOP)
    px, py = x(violations), y(savings)
    below = [tick for tick in _PERCENTS if tick <= limit]
    front = _front(violations, savings)
    line = [(float(px[i]), float(py[i])) for i in front]
    parts = [
        svg.text(10, 18, svg.fitted(title, _WIDTH - 20), "strong"),
        svg.text(10, 34, "savings, share of the requests", "faint"),
        *bottom_axis(x, below, [f"{tick:g}%" for tick in below], _TOP, _BOTTOM),
        *left_axis(y, ticks, [f"{tick:g}%" for tick in ticks], _LEFT, _WIDTH - 16),
        svg.text((_LEFT + _WIDTH) / 2, _HEIGHT - 12, _X_LABEL, "faint", "middle"),
        *_oracle_line(y, 100 * oracle_savings),
        svg.path(svg.polyline(line), "front-line"),
    ]
    for i, point in enumerate(shown):
        hint = f"{point.name}: violations {violations[i]:.1f}%, savings {savings[i]:.1f}%"
        kind, radius = ("hollow", 4) if point.is_peer else ("own", 5)
        parts.append(svg.circle(float(px[i]), float(py[i]), radius, kind, hint))
    parts += _labels(shown, px, py)
    named = (f"{shown[i].name} ({violations[i]:.1f}%, {savings[i]:.1f}%)" for i in front)
    description = (
        f"Violations and savings of {len(shown)} predictors. No other beats in both: "
        f"{', '.join(named) or 'none'}."
    )
    return svg.figure(_WIDTH, _HEIGHT, title, description, parts)


def _oracle_line(y: Scale, savings: float) -> Iterator[str]:
    if not np.isnan(savings):
        at = y.at(savings)
        yield svg.line(_LEFT, at, _WIDTH - 16, at, "limit-line")
        # At the left there is room: nothing saves much with few violations.
        yield svg.text(_LEFT + 6, at - 5, f"a perfect prediction saves {savings:.1f}%")


_X_LABEL: Final = "violations, share of the time (fewer is safer; small shares are drawn larger)"


def _front(violations: FloatArray, savings: FloatArray) -> list[int]:
    """The points with more savings than all that have no more violations, by violations."""
    best, front = -np.inf, []
    for i in np.lexsort((-savings, violations)).tolist():
        if savings[i] > best:
            best = savings[i]
            front.append(i)
    return front


def _labels(points: Sequence[Point], x: FloatArray, y: FloatArray) -> Iterator[str]:
    """A label near each point, where it covers fewest points and other labels."""
    boxes = np.stack([x - 5, y - 5, x + 5, y + 5], axis=1)
    # The variants of the backtest first: their labels are the longest.
    for i in sorted(range(len(points)), key=lambda i: points[i].is_peer):
        half = svg.width_of(points[i].label) / 2
        places = [
            (x[i] + dx * (half + 7 + extra), y[i] + dy * (11 + extra))
            for extra in (0, 7, 14)
            for dx, dy in _DIRECTIONS
        ]
        best, fewest = places[0], np.inf
        for at_x, at_y in places:
            box = np.array([at_x - half, at_y - 5, at_x + half, at_y + 5])
            covered = ((boxes[:, :2] < box[2:]) & (box[:2] < boxes[:, 2:])).all(axis=1).sum()
            outside = (box[:2] < (_LEFT, _TOP)).any() or (box[2:] > (_WIDTH, _BOTTOM)).any()
            if (cost := covered + _OUTSIDE * outside) < fewest:
                best, fewest = (at_x, at_y), cost
        at_x, at_y = best
        boxes = np.vstack([boxes, [at_x - half, at_y - 5, at_x + half, at_y + 5]])
        kind = "faint" if points[i].is_peer else "strong"
        yield svg.text(float(at_x), float(at_y) + 4, points[i].label, kind, "middle")


class Unit(NamedTuple):
    """How amounts of a resource are shown: how many of the trace's units make one, and its name."""

    size: float
    name: str


UNITS: Final = {"cpu": Unit(1000.0, "cores"), "memory": Unit(2.0**30, "GiB")}


def amount_text(amount: float, unit: Unit) -> str:
    """An amount with three digits and its unit."""
    return f"{amount / unit.size:.3g} {unit.name}"


def node_figure(title: str, note: str, series: NodeSeries, details: Details, unit: Unit) -> str:
    """Usage, requests, prediction and real peak of a node over time, violations filled."""
    description = (
        f"{series.node}: {int(series.is_missed.sum())} of {len(series.at)} predictions too low; "
        f"highest usage {amount_text(_highest(series.usage), unit)}, "
        f"requests up to {amount_text(_highest(series.requests), unit)}"
    )
    parts = _node_parts(title, note, series, details, unit)
    return svg.figure(_NODE_WIDTH, _NODE_HEIGHT, title, description, parts)


def violation_figure(title: str, violation: Violation, details: Details, unit: Unit) -> str:
    """A node around a violation, with lines at the prediction and at the peak that it missed."""
    description = (
        f"{violation.node}: predicted {amount_text(violation.predicted, unit)} at "
        f"{time_text(end_seconds(details, violation.step))}, reached "
        f"{amount_text(violation.real_peak, unit)} at "
        f"{time_text(end_seconds(details, violation.peak_step))}"
    )
    missing = violation.real_peak - violation.predicted
    note = f"{amount_text(missing, unit)} above the prediction"
    marks = (violation.step, violation.peak_step)
    parts = _node_parts(title, note, violation.series, details, unit, marks)
    return svg.figure(_NODE_WIDTH, _NODE_HEIGHT, title, description, parts)


def end_seconds(details: Details, step: int) -> float:
    """The time at which a step ends."""
    return details.start_seconds + (step + 1) * details.step_seconds


def _highest(values: FloatArray) -> float:
    return float(np.fmax.reduce(values, initial=0.0))


def _node_parts(
    title: str,
    note: str,
    series: NodeSeries,
    details: Details,
    unit: Unit,
    marks: Sequence[int] = (),
) -> Iterator[str]:
    left, right, top, bottom = 40, _NODE_WIDTH - 8, 44, _NODE_HEIGHT - 24
    steps = series.first_step + np.arange(len(series.usage))
    seconds = np.asarray(details.start_seconds + (steps + 1) * details.step_seconds, np.float64)
    x = Scale(float(seconds[0]) - details.step_seconds, float(seconds[-1]), left, right)
    highest = max(map(_highest, (series.usage, series.requests, series.real_peak)))
    ticks = round_ticks(highest / unit.size, 4)
    y = Scale(0.0, ticks[-1] * unit.size, bottom, top)
    px = x(seconds)
    at = x(seconds[series.at - series.first_step])
    predicted, real_peak = y(series.predicted), y(series.real_peak)
    yield svg.text(6, 14, svg.fitted(title, _NODE_WIDTH - 12), "strong")
    yield svg.text(6, 29, svg.fitted(f"{unit.name}; {note}", _NODE_WIDTH - 12), "faint")
    times, labels = time_ticks(x.low, x.high, 6)
    yield from bottom_axis(x, times, labels, top, bottom)
    scaled = Scale(0.0, ticks[-1], bottom, top)
    yield from left_axis(scaled, ticks, [f"{tick:g}" for tick in ticks], left, right)
    yield svg.path(area_data(px, y(series.usage), bottom), "usage")
    yield svg.path(line_data(px, y(series.requests)), "requests-line")
    missed = series.is_missed
    width = max(1.0, float(np.diff(at).min(initial=np.inf))) if len(at) > 1 else 1.0
    bars = bars_data(at[missed], predicted[missed], real_peak[missed])
    if bars:
        yield f'<path d="{bars}" class="missed-bars" stroke-width="{svg.number(width)}"/>'
    yield svg.path(line_data(at, real_peak), "peak-line")
    yield svg.path(line_data(at, predicted), "own-line")
    for mark in marks:
        place = x.at(end_seconds(details, mark))
        yield svg.line(place, top, place, bottom, "mark-line")
