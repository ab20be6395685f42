"""A table of any length for a screen of Textual: only the cells of visible rows are made."""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import Any, ClassVar, Final, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from pipeline.cli.node_table import GAP, fitting_columns

_HEADER: Final = Style(bold=True)
_CURSOR: Final = Style(reverse=True)
_DIM: Final = Style(dim=True)
_NARROWEST_NAME: Final = 20
_NARROWEST_TEXT: Final = 20


class Heading(NamedTuple):
    """The header of a column, and the order in which a narrow terminal drops it; 0: never."""

    text: str
    is_left_aligned: bool = True
    drop_order: int = 0


class Line(NamedTuple):
    """The cells of a row: text without invisible characters, and a style of rich."""

    cells: Sequence[tuple[str, str]]
    is_dim: bool = False


class _Layout(NamedTuple):
    """The visible rows, and the columns (index, width) that fit."""

    lines: Sequence[Line]
    columns: Sequence[tuple[int, int]]


class RowTable(ScrollView, can_focus=True):
    """Rows with a cursor. Without `headings` there is one column and no header.

    Until a key moves the cursor it stays on the first row; then it stays on its row (by `key`),
    wherever that moves.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)"),
        Binding("down,j", "move(1)"),
        Binding("pageup", "page(-1)"),
        Binding("pagedown,space", "page(1)"),
        Binding("home,g", "first"),
        Binding("end,G", "last"),
        Binding("enter", "open"),
    ]

    class Opened(Message):
        """Enter was pressed on a row."""

        def __init__(self, row: Any) -> None:
            super().__init__()
            self.row = row

    def __init__(self, headings: Sequence[Heading] = (), *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._headings = headings
        self._rows: Sequence[Any] = ()
        self._texts: Sequence[str] = ()
        self._line: Callable[[Any], Line] = Line
        self._key: Callable[[Any], object] = id_of
        self._cursor = 0
        self._is_pinned = False
        self._version = 0
        self._widths: list[int] = []
        self._layout_of: tuple[int, ...] = ()
        self._layout = _Layout((), ())

    @property
    def row(self) -> Any:
        """The row of the cursor; None without rows."""
        return self._rows[self._cursor] if self._rows else None

    def show(
        self, rows: Sequence[Any], line: Callable[[Any], Line],
        key: Callable[[Any], object] | None = None,
    ) -> None:  # fmt: skip
        """Show these rows in place of the present ones. `line` makes the cells of a row."""
        if self._is_pinned and key is not None and self._rows:
            pinned = self._key(self.row)
            places = (index for index, row in enumerate(rows) if key(row) == pinned)
            self._cursor = next(places, self._cursor)
        self._rows, self._line, self._key = rows, line, key or id_of
        self._version += 1
        self.virtual_size = Size(self.scrollable_size.width, len(rows) + self._head)
        self._go(self._cursor if self._is_pinned else 0, is_pinned=self._is_pinned)

    def show_texts(self, texts: Sequence[str]) -> None:
        """Show these lines in place of the present ones, in a table without headings. Long lines
        are wrapped, and continue further to the right than they begin."""
        self._texts = texts
        width = max(self.scrollable_size.width, _NARROWEST_TEXT)
        parts = [part for text in texts for part in _wrapped(text, width)]
        self.show(parts, lambda text: Line([(text, "")]))

    @property
    def _head(self) -> int:
        return 1 if self._headings else 0

    @property
    def _page(self) -> int:
        return max(self.size.height - self._head, 1)

    def _go(self, index: int, *, is_pinned: bool = True) -> None:
        """Put the cursor on a row, and scroll until it is visible."""
        self._cursor = max(min(index, len(self._rows) - 1), 0)
        self._is_pinned = is_pinned
        first = round(self.scroll_y)
        lowest = self._cursor - self._page + 1
        if not lowest <= first <= self._cursor:
            self.scroll_to(y=max(min(first, self._cursor), lowest), animate=False)
        self.refresh()

    def action_move(self, rows: int) -> None:
        self._go(self._cursor + rows)

    def action_page(self, pages: int) -> None:
        self._go(self._cursor + pages * self._page)

    def action_first(self) -> None:
        self._go(0, is_pinned=False)

    def action_last(self) -> None:
        self._go(len(self._rows) - 1)

    def action_open(self) -> None:
        if self._rows:
            self.post_message(self.Opened(self.row))

    def on_resize(self) -> None:
        self._widths = []
        if self._texts:
            self.show_texts(self._texts)
        self._go(self._cursor, is_pinned=self._is_pinned)

    def render_line(self, y: int) -> Strip:
        """The header, or a row."""
        width, first = self.scrollable_size.width, round(self.scroll_y)
        layout = self._layout_from(first, width)
        if y < self._head:
            return self._strip([(heading.text, "") for heading in self._headings], layout, _HEADER)
        index = y - self._head
        if index >= len(layout.lines):
            return Strip.blank(width, Style.null())
        line = layout.lines[index]
        base = _DIM if line.is_dim else Style.null()
        if first + index == self._cursor and self.has_focus:
            base += _CURSOR
        return self._strip(line.cells, layout, base)

    def _layout_from(self, first: int, width: int) -> _Layout:
        """The layout of the rows from `first` on; columns keep the width that they once had, so
        that they do not move with each row."""
        layout_of = (first, width, self._page, self._version)
        if self._layout_of != layout_of:
            lines = [self._line(row) for row in self._rows[first : first + self._page]]
            self._layout, self._layout_of = _Layout(lines, self._columns(lines, width)), layout_of
        return self._layout

    def _columns(self, lines: Sequence[Line], width: int) -> list[tuple[int, int]]:
        if not self._headings:
            return [(0, width)]
        texts = [[heading.text for heading in self._headings]]
        texts += [[text for text, _ in line.cells] for line in lines]
        widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
        self._widths = [max(pair) for pair in zip_longest(self._widths, widths, fillvalue=0)]
        # A long name must not push everything else off the screen.
        shown_widths = [min(self._widths[0], max(_NARROWEST_NAME, width // 3)), *self._widths[1:]]
        drop_orders = [heading.drop_order for heading in self._headings]
        shown = fitting_columns(shown_widths, drop_orders, width)
        return [(index, shown_widths[index]) for index in shown]

    def _strip(self, cells: Sequence[tuple[str, str]], layout: _Layout, base: Style) -> Strip:
        segments = []
        for index, width in layout.columns:
            text, style = cells[index]
            is_left_aligned = not self._headings or self._headings[index].is_left_aligned
            segments.append(
                Segment(_fitted(text, width, is_left_aligned), Style.parse(style) + base)
            )
            segments.append(Segment(" " * GAP, base))
        return Strip(segments).adjust_cell_length(self.scrollable_size.width, base)


def id_of(row: Any) -> object:
    """The identity of a row without a name."""
    return id(row)


def _wrapped(text: str, width: int) -> list[str]:
    indent = " " * (len(text) - len(text.lstrip()) + 4)
    return wrap(text, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _fitted(text: str, width: int, is_left_aligned: bool) -> str:
    """The text in exactly `width` columns."""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…"
    return text + " " * (width - length) if is_left_aligned else " " * (width - length) + text
