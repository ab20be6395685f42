"""The full-screen view of `springtide top`: all nodes, and a node with its pods and terms."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Input, Static

from pipeline.cli.node_details import LEFT_ALIGNED, POD_HEADERS, NodeDetails
from pipeline.cli.node_table import node_line, node_rows, sort_rows
from pipeline.cli.row_table import Heading, Line, RowTable
from pipeline.cli.safe_output import printable
from pipeline.cli.top_columns import COLUMNS, FLAGS, NO_DATA, SORT_KEYS, NodeRow
from pipeline.cli.top_source import Source, TableReading
from pipeline.clock import Clock
from pipeline.errors import SpringtideError
from pipeline.processors.explain.quantity_text import format_age
from pipeline.table import Table
from pipeline.tasks import cancel_tasks
from pipeline.times import format_time

REFRESH_SECONDS: Final = 1.0
DETAILS_SECONDS: Final = 10.0
"""Between two readings of a node that is shown: its predictions change with its windows."""
_SIGNS: Final = {"red": "!!", "yellow": "!"}
"""Before the text of a number that is too high or too old, for those who see no colours."""
_TEXT_COLUMNS: Final = tuple(column for column in COLUMNS if column.is_left_aligned)
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


ReadNode = Callable[[str], Awaitable[NodeDetails]]


class TopApp(App[Exception]):
    """Shows the table that `source` yields, and pods and terms that `read_node` reads. Returns the
    error that ended the source."""

    ENABLE_COMMAND_PALETTE = False
    # Rows come first: on a small terminal other lines are cut.
    CSS = """
    Screen { overflow: hidden; }
    Static { height: 1; }
    RowTable { height: 1fr; overflow-x: hidden; }
    #keys { text-style: dim; }
    #problem { height: auto; max-height: 40%; text-style: reverse; display: none; }
    #filter { display: none; height: 1; border: none; padding: 0; }
    #terms { border-top: solid; }
    #terms, #help { scrollbar-gutter: stable; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit"),
        Binding("ctrl+c", "quit", priority=True),
        Binding("ctrl+z", "suspend_process", priority=True),
        Binding("question_mark", "help"),
        Binding("slash", "filter"),
        Binding("escape", "clear"),
        *(Binding(sort.key, f"sort('{name}')") for name, sort in SORT_KEYS.items()),
    ]

    def __init__(
        self, source: Source, read_node: ReadNode, clock: Clock, *,
        sort: str, stale_after_seconds: float,
    ) -> None:  # fmt: skip
        super().__init__(ansi_color=True)  # the terminal's own colours, and none with NO_COLOR
        self.theme = "ansi-dark"
        self._source = source
        self._read_node = read_node
        self._clock = clock
        self._sort = sort
        self._stale_after = stale_after_seconds
        self._filter = ""
        self._reading = TableReading(Table(), problem="connecting")
        self._fed_at: float | None = None
        self._follower: asyncio.Task[None] | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="status", markup=False)
        yield Static(id="problem", markup=False)
        yield RowTable([Heading(c.header, c.is_left_aligned, c.drop_order) for c in COLUMNS],
                       id="nodes")  # fmt: skip
        yield Input(id="filter", placeholder="text in a name, predictor, alert or flag")
        yield Static(_KEYS, id="keys", markup=False)

    def on_mount(self) -> None:
        self._follower = asyncio.create_task(self._follow())
        self.set_interval(REFRESH_SECONDS, self._show)  # ages grow while nothing comes
        self.query_one("#nodes").focus()

    async def close(self) -> None:
        """Stop reading."""
        if self._follower is not None:
            await cancel_tasks(self._follower)
        await self._source.aclose()

    async def _follow(self) -> None:
        try:
            async for reading in self._source:
                is_first = self._fed_at is None
                self._reading = reading
                if not reading.problem:
                    self._fed_at = self._clock.now()
                if is_first:
                    self._show()
                await self._clock.sleep(REFRESH_SECONDS)
        except Exception as error:
            self.exit(error)

    def _show(self) -> None:
        """Show the table as it is now."""
        now, reading = self._clock.now(), self._reading
        rows = node_rows(reading.table, now, self._stale_after, reading.facts, reading.judged)
        shown = sort_rows(filter(self._is_wanted, rows), self._sort)
        base = self.screen_stack[0]
        base.query_one("#nodes", RowTable).show(shown, _line, lambda row: row.name)
        base.query_one("#status", Static).update(self._status(rows, len(shown), now))
        problem = base.query_one("#problem", Static)
        problem.display = bool(reading.problem) or not rows
        problem.update(printable(self._problem(now)))

    def _is_wanted(self, row: NodeRow) -> bool:
        return not self._filter or any(
            self._filter in column.cell(row)[0].casefold() for column in _TEXT_COLUMNS
        )

    def _status(self, rows: Sequence[NodeRow], shown: int, now: float) -> str:
        hot = sum(bool(row.state and row.state.alerts) for row in rows)
        stale = sum(not row.is_fresh for row in rows)
        parts = [f"{len(rows)} nodes, {hot} hot, {stale} stale", f"sorted by {self._sort}"]
        if self._filter:
            parts.append(f"{shown} with {self._filter!r}, Escape shows all")
        return "; ".join([*parts, _clock_time(now)])

    def _problem(self, now: float) -> str:
        if not self._reading.problem:
            return "no node has published a window yet"
        if self._fed_at is None:
            return f"no node yet: {self._reading.problem}"
        age = format_age(now - self._fed_at)
        return f"not up to date: the last picture, {age} old: {self._reading.problem}"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Whether a key acts now: those of the table of nodes do only while that is shown."""
        return action not in ("sort", "filter", "clear") or len(self.screen_stack) == 1

    def action_sort(self, name: str) -> None:
        self._sort = name
        self._show()

    def action_help(self) -> None:
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen())

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def action_clear(self) -> None:
        """Show all nodes again."""
        self.query_one("#filter", Input).value = ""
        self._end_filter()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter = event.value.casefold()
        self._show()

    def on_input_submitted(self) -> None:
        self._end_filter()

    def _end_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.query_one("#nodes").focus()

    def on_row_table_opened(self, event: RowTable.Opened) -> None:
        if isinstance(event.row, NodeRow):
            self.push_screen(NodeScreen(event.row.name, self._read_node, self._clock))


class NodeScreen(Screen[None]):
    """A node: its pods, and the terms of its peaks."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "app.pop_screen")]

    def __init__(self, node: str, read_node: ReadNode, clock: Clock) -> None:
        super().__init__()
        self._node = node
        self._read_node = read_node
        self._clock = clock
        self._reader: asyncio.Task[None] | None = None
        self._read_at: float | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="status", markup=False)
        yield Static(id="problem", markup=False)
        yield RowTable([Heading(text, text in LEFT_ALIGNED) for text in POD_HEADERS], id="pods")
        yield RowTable(id="terms")
        yield Static("Escape back   Tab other part   ? help   q quit", id="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one("#status", Static).update(f"node {printable(self._node)}: reading ...")
        self._reader = asyncio.create_task(self._read())

    async def on_unmount(self) -> None:
        if self._reader is not None:
            await cancel_tasks(self._reader)

    async def _read(self) -> None:
        try:
            while True:
                await self._read_once()
                await self._clock.sleep(DETAILS_SECONDS)
        except Exception as error:
            self.app.exit(error)

    async def _read_once(self) -> None:
        problem = self.query_one("#problem", Static)
        try:
            details = await self._read_node(self._node)
        except SpringtideError as error:
            age = "" if self._read_at is None else format_age(self._clock.now() - self._read_at)
            what = f"not up to date, {age} old" if age else "not read"
            problem.update(printable(f"{what}: {error.message}"))
            problem.display = True
            return
        self._read_at = self._clock.now()
        problem.display = False
        status = f"node {self._node}: {len(details.pods)} pods; {_clock_time(self._read_at)}"
        self.query_one("#status", Static).update(printable(status))
        self.query_one("#pods", RowTable).show(details.pods, _plain_line, lambda pod: pod[0])
        self.query_one("#terms", RowTable).show_texts(details.terms)


class HelpScreen(Screen[None]):
    """Keys, signs, columns and flags."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark", "app.pop_screen")]

    def compose(self) -> ComposeResult:
        yield RowTable(id="help")
        yield Static("Escape back   q quit", id="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(RowTable).show_texts(_help())


_KEYS: Final = "   ".join(
    ["q quit", "? help", "/ filter", "Enter node",
     *(f"{sort.key} {name}" for name, sort in SORT_KEYS.items())]
)  # fmt: skip


def _help() -> list[str]:
    keys = [
        *((sort.key, f"sort by {name}") for name, sort in SORT_KEYS.items()),
        ("/", "filter by a text; Enter keeps the filter, Escape shows all nodes"),
        ("Enter", "pods of the node, and how its peaks were computed"),
        ("Escape", "back"),
        ("arrows, PgUp, PgDn, Home, End", "move"),
        ("q, Ctrl-C", "quit"),
        ("Ctrl-Z", "suspend; `fg` continues"),
    ]
    signs = [
        ("!", "yellow: from 65% of allocatable, or too old"),
        ("!!", "red: from 90% of allocatable; in HOT, ! is a critical alert"),
    ]
    columns = [(column.header, column.help) for column in COLUMNS]
    flags = [(flag.name, flag.help) for flag in (NO_DATA, *FLAGS)]
    lines = []
    for title, terms in (("Keys", keys), ("Signs", signs), ("Columns", columns), ("Flags", flags)):
        width = max(len(term) for term, _ in terms)
        lines += [title, *(f"  {term:{width}}  {text}" for term, text in terms), ""]
    return lines


def _clock_time(now: float) -> str:
    """The time of the day, UTC."""
    return f"{format_time(now)[11:19]}Z"


def _line(row: NodeRow) -> Line:
    """The cells of a node; numbers that have a colour have a sign, too."""
    line = node_line(row)
    cells = [
        (text if column.is_left_aligned else f"{_SIGNS.get(style, '')}{text}", style)
        for column, (text, style) in zip(COLUMNS, line.cells, strict=True)
    ]
    return Line(cells, line.is_stale)


def _plain_line(texts: Sequence[str]) -> Line:
    return Line([(text, "") for text in texts])


async def run_screen(app: TopApp) -> None:
    """Run until the user or a signal ends it, and restore the terminal. Raises the error that ended
    the app's source."""
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, partial(app.exit))
    try:
        error = await app.run_async(mouse=False)
    finally:
        await app.close()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    if error is not None:
        raise error
