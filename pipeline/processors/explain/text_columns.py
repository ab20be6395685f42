"""Lay out rows of text as columns two spaces apart."""

from collections.abc import Collection, Iterator, Sequence


def align_columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """Yield a line per row, each column as wide as its widest cell.

    Columns whose index is in `right` are aligned to the right. All rows have the same length.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            text.rjust(width) if index in right else text.ljust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
