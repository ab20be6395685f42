"""Lay out rows of text as columns two spaces apart."""

import unicodedata
from collections.abc import Collection, Iterator, Sequence
from typing import Final

WIDEST: Final = 200
"""A cell that is wider moves only what follows it in its row: one record with a text of a megabyte
must not pad every other row to its width."""


def align_columns(
    rows: Sequence[Sequence[str]], right: Collection[int] = (), widest: int = WIDEST
) -> Iterator[str]:
    """Yield a line per row, each column as wide as its widest cell, or `widest`.

    Columns whose index is in `right` are aligned to the right. All rows have the same length.
    """
    widths = [min(max(map(_width, column)), widest) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = []
        for index, (text, width) in enumerate(zip(row, widths, strict=True)):
            padding = " " * (width - _width(text))
            cells.append(padding + text if index in right else text + padding)
        yield "  ".join(cells).rstrip()


def _width(text: str) -> int:
    """The columns of a terminal that a text takes: wide letters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(letter) in ("Mn", "Me", "Cf")
        else 2 if unicodedata.east_asian_width(letter) in "WF"
        else 1
        for letter in text
    )  # fmt: skip
