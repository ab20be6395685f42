"""A figure of horizontal bars, one row below the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pipeline.processors.figures import svg
from pipeline.processors.figures.scales import Scale, bottom_axis, round_ticks

_WIDTH: Final = 700
_LEFT: Final = 190
_RIGHT: Final = 215
_TOP: Final = 44
_ROW: Final = 22
_BAR: Final = 14


class Bar(NamedTuple):
    """A bar from zero to a value, of a kind that is a class of `svg.STYLE`."""

    value: float
    kind: str


class BarRow(NamedTuple):
    """A row: its label, its bars, of which later ones cover earlier ones, and a text beside."""

    label: str
    bars: Sequence[Bar]
    text: str


def bars_figure(
    title: str, note: str, rows: Sequence[BarRow], tick_text: Callable[[float], str]
) -> str:
    """Rows of bars on one scale from zero; NaN is no bar. `note` says what they are."""
    values = [bar.value for row in rows for bar in row.bars if bar.value > 0.0]  # NaN is not
    ticks = round_ticks(max(values, default=0.0), 5)
    scale = Scale(0.0, ticks[-1], _LEFT, _WIDTH - _RIGHT)
    bottom = _TOP + _ROW * len(rows)
    parts = [
        svg.text(8, 18, svg.fitted(title, _WIDTH - 16), "strong"),
        svg.text(8, 34, svg.fitted(note, _WIDTH - 16), "faint"),
        *bottom_axis(scale, ticks, [tick_text(tick) for tick in ticks], _TOP, bottom, _RIGHT),
    ]
    for number, row in enumerate(rows):
        top = _TOP + _ROW * number + (_ROW - _BAR) / 2
        base = top + _BAR - 3
        parts.append(svg.text(_LEFT - 8, base, svg.fitted(row.label, _LEFT - 16), anchor="end"))
        ends = [float(_LEFT)]
        for bar in row.bars:
            if bar.value > 0.0:
                width = max(scale.at(bar.value) - _LEFT, 1.0)
                hint = f"{row.label}: {row.text}"
                parts.append(svg.rectangle(_LEFT, top, width, _BAR, bar.kind, hint))
                ends.append(_LEFT + width)
        end = max(ends) + 6
        parts.append(svg.text(end, base, svg.fitted(row.text, _WIDTH - 4 - end), "faint"))
    described = "; ".join(f"{row.label}: {row.text}" for row in rows)
    return svg.figure(_WIDTH, bottom + 26, title, f"{note}. {described}", parts)
