"""Elements of a figure as SVG text, and the escaping of every text in it.

A figure is a whole SVG document: it can be a file, or stand in an HTML page. Colours are those of
classes in `STYLE`, for light and dark screens and for paper. Coordinates are pixels from the top
left corner.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final

from pipeline.printable_text import printable

FONT_PIXELS: Final = 11
_WIDE: Final = frozenset("mwMW@%&")
_NARROWEST: Final = 0.72
"""The width of most characters, as a share of the height of the font."""
_LIGHT: Final = (
    "--ink:#1f2328;--faint:#57606a;--grid:#e2e6ea;--own:#1b62c4;--other:#8a949e;--usage:#aebccb;"
    "--peak:#a05a00;--bad:#c62f26;--back:#ffffff"
)
_DARK: Final = (
    "--ink:#e6edf3;--faint:#9aa6b2;--grid:#2f3842;--own:#6fb1ff;--other:#7d8894;--usage:#4b5c6e;"
    "--peak:#e5a64b;--bad:#ff7066;--back:#12171d"
)
PALETTE: Final = (
    f":root{{{_LIGHT}}}@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
)
"""Custom properties with the colours. Paper is always light."""
STYLE: Final = PALETTE + (
    "svg{background:var(--back)}"
    f"svg text{{font:{FONT_PIXELS}px sans-serif;fill:var(--ink);"
    # Lines below a text stop short of it.
    "stroke:var(--back);stroke-width:3px;stroke-linejoin:round;paint-order:stroke}"
    "svg .faint{fill:var(--faint)}"
    "svg .strong{font-weight:bold}"
    "svg .grid{stroke:var(--grid);fill:none}"
    "svg .own{fill:var(--own)}"
    "svg .other{fill:var(--other)}"
    "svg .usage{fill:var(--usage)}"
    "svg .bad{fill:var(--bad)}"
    "svg .hollow{fill:var(--back);stroke:var(--other);stroke-width:1.5}"
    "svg .missed-bars{stroke:var(--bad);stroke-opacity:.45;fill:none}"
    "svg .own-line{stroke:var(--own);stroke-width:1.7;fill:none}"
    "svg .peak-line{stroke:var(--peak);stroke-width:1.2;fill:none}"
    "svg .requests-line{stroke:var(--faint);stroke-width:1;stroke-dasharray:4 3;fill:none}"
    "svg .front-line{stroke:var(--own);stroke-width:1;stroke-opacity:.5;fill:none}"
    "svg .limit-line{stroke:var(--peak);stroke-width:1;stroke-dasharray:4 3;fill:none}"
    "svg .mark-line{stroke:var(--bad);stroke-width:1;stroke-dasharray:2 2;fill:none}"
)


def escaped(text: str) -> str:
    """The text for HTML and SVG, also inside an attribute.

    >>> escaped('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(printable(text))


def figure(width: int, height: int, title: str, description: str, parts: Iterable[str]) -> str:
    """A figure of these parts. Screen readers read its title and description."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">\n'
        f"<title>{escaped(title)}</title>\n<desc>{escaped(description)}</desc>\n"
        f"<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "") -> str:
    """A line of text whose baseline is at y; `anchor` is "middle" or "end" if not the start."""
    attributes = f' class="{kind}"' if kind else ""
    attributes += f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{number(x)}" y="{number(y)}"{attributes}>{escaped(content)}</text>'


def rectangle(x: float, y: float, width: float, height: float, kind: str, hint: str = "") -> str:
    """A filled rectangle; `hint` is shown where the pointer rests."""
    place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    return f'<rect {place} class="{kind}">{_hint(hint)}</rect>'


def circle(x: float, y: float, radius: float, kind: str, hint: str = "") -> str:
    """A filled circle; `hint` is shown where the pointer rests."""
    place = f'cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"'
    return f'<circle {place} class="{kind}">{_hint(hint)}</circle>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<path d="M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}" class="{kind}"/>'


def path(data: str, kind: str) -> str:
    """A path, or nothing if it has no data."""
    return f'<path d="{data}" class="{kind}"/>' if data else ""


def polyline(points: Sequence[tuple[float, float]]) -> str:
    """The data of a path along these points."""
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points) if points else ""


def _hint(hint: str) -> str:
    return f"<title>{escaped(hint)}</title>" if hint else ""


def number(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def width_of(content: str) -> float:
    """About how many pixels a text takes at most, bold, in a wide font (DejaVu Sans)."""
    return FONT_PIXELS * sum(
        1.2 if ord(c) > 126 else 1.12 if c in _WIDE else 0.85 if c.isupper() else _NARROWEST
        for c in content
    )


def fitted(content: str, pixels: float) -> str:
    """The text, without its middle if it is wider than this: names often differ at their ends."""
    content = printable(content)
    if width_of(content) <= pixels:
        return content
    # A name may be long: no more than these characters have room, of the narrowest.
    most = int(pixels / (FONT_PIXELS * _NARROWEST))
    for kept in range(min(len(content) - 1, most), 1, -1):
        short = content[: kept - kept // 2] + "…" + content[len(content) - kept // 2 :]
        if width_of(short) <= pixels:
            return short
    return "…"
