"""The full-screen view of `springtide top`: keys, signs, hostile names, an absent source, size."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from pipeline.cli.node_details import NodeDetails
from pipeline.cli.row_table import Line, RowTable
from pipeline.cli.top_columns import SORT_KEYS
from pipeline.cli.top_screen import TopApp
from pipeline.cli.top_source import TableReading
from pipeline.errors import NotReadyError, SpringtideError
from pipeline.table import Table
from tests.cli.test_top import PEAKS, some_nodes
from tests.processes import until
from tests.table.records import GIB, NOW, node_state, table_of

DETAILS = NodeDetails(
    [["shop/web", "prod", "500m", "700m", "1.0Gi", "2.0Gi", "2h", ""]], ["peak: 1.0", "raw: 0.9"]
)


class StillClock:
    """A clock whose time a test sets; it really sleeps, but a twentieth."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


class Screen:
    """The app on a screen without a terminal, with a source and details that a test sets."""

    def __init__(self, table: Table, sort: str = "cpu") -> None:
        self.reading: TableReading | Exception = TableReading(table)
        self.details: NodeDetails | SpringtideError = DETAILS
        self.asked: list[str] = []
        self.clock = StillClock()
        self.app = TopApp(
            self._source(), self._read_node, self.clock, sort=sort, stale_after_seconds=180.0
        )
        self.pilot: Pilot[Any]

    async def _source(self) -> AsyncGenerator[TableReading, None]:
        while True:
            if isinstance(self.reading, Exception):
                raise self.reading
            yield self.reading

    async def _read_node(self, node: str) -> NodeDetails:
        self.asked.append(node)
        if isinstance(self.details, SpringtideError):
            raise self.details
        return self.details

    def lines(self) -> list[str]:
        """The text of the screen."""
        width, height = self.app.size
        strips = self.app.screen._compositor.render_strips(self.app.size)
        assert len(strips) == height
        assert all(strip.cell_length == width for strip in strips)
        return [strip.text.rstrip() for strip in strips]

    def names(self) -> list[str]:
        """The names of the nodes on the screen, from above."""
        table = self.app.query_one("#nodes", RowTable)
        return [row.name for row in table._rows]

    def text(self, widget: str) -> str:
        return str(self.app.screen.query_one(widget, Static).render())

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()


@asynccontextmanager
async def shown(
    table: Table, *, size: tuple[int, int] = (120, 24), sort: str = "cpu"
) -> AsyncIterator[Screen]:
    screen = Screen(table, sort)
    try:
        async with screen.app.run_test(size=size) as screen.pilot:
            await screen.pilot.pause()
            yield screen
    finally:
        await screen.app.close()


async def test_keys_sort_filter_and_quit() -> None:
    async with shown(some_nodes()) as screen:
        assert screen.names() == ["busy", "old", "calm", "blind", "silent"]
        for key, order in (
            ("m", ["old", "busy", "calm", "blind", "silent"]),
            ("p", ["calm", "blind", "busy", "old", "silent"]),
            ("n", ["blind", "busy", "calm", "old", "silent"]),
        ):
            await screen.press(key)
            assert (screen.names(), screen.lines()[2].split()[0]) == (order, order[0])
        await screen.press("slash", *"STALE", "enter")
        assert screen.names() == ["old"]
        assert "1 with 'stale'" in screen.text("#status")
        await screen.press("c")
        assert screen.names() == ["old"]
        await screen.press("escape")
        assert screen.names() == ["busy", "old", "calm", "blind", "silent"]
        await screen.press("slash", *"q?/")
        assert screen.app.query_one(Input).value == "q?/"
        assert screen.names() == []
        await screen.press("escape", "q")
    assert screen.app.return_value is None
    assert not screen.app.is_running


async def test_ctrl_c_quits_also_from_the_filter_and_from_a_node() -> None:
    for keys in (("slash", "x"), ("enter",), ("question_mark",)):
        async with shown(some_nodes()) as screen:
            await screen.press(*keys, "ctrl+c")
        assert not screen.app.is_running


async def test_enter_shows_pods_and_terms_of_the_chosen_node_and_escape_goes_back() -> None:
    async with shown(some_nodes()) as screen:
        await screen.press("down", "enter")
        text = "\n".join(screen.lines())
        assert screen.asked[0] == "old"
        assert all(part in text for part in ("node old: 1 pods", "shop/web", "700m", "peak: 1.0"))
        await screen.press("m", "slash", "tab", "down")
        assert "node old" in screen.text("#status")
        screen.details = NotReadyError("there is no prediction")
        await until(lambda: "there is no prediction" in screen.text("#problem"))
        assert "shop/web" in "\n".join(screen.lines())
        await screen.press("escape")
        assert screen.names()[0] == "busy"
        asked = len(screen.asked)
        await screen.pilot.pause(0.3)
        assert len(screen.asked) == asked


async def test_cursor_stays_on_its_node_and_the_first_row_without_one() -> None:
    async with shown(some_nodes()) as screen:
        table = screen.app.query_one("#nodes", RowTable)
        await screen.press("n")
        assert table.row.name == "blind"
        await screen.press("down", "m")
        assert (table.row.name, screen.names()[:2]) == ("busy", ["old", "busy"])
        await screen.press("c")
        assert (table.row.name, screen.names()[0]) == ("busy", "busy")
        await screen.press("home", "m")
        assert table.row.name == "old"
        await screen.press("p")
        assert table.row.name == "calm"


async def test_help_lists_every_sort_key_and_sign() -> None:
    async with shown(some_nodes(), size=(120, 60)) as screen:
        await screen.press("question_mark")
        text = "\n".join(screen.lines())
        assert all(f"sort by {name}" in text for name in SORT_KEYS)
        assert all(part in text for part in ("!!", "PEAK CPU", "partial", "q, Ctrl-C"))
        await screen.press("escape")
        assert "busy" in "\n".join(screen.lines())


def test_each_sort_key_is_a_letter_of_its_own() -> None:
    keys = [sort.key for sort in SORT_KEYS.values()]
    assert len({*keys, *"qkjgG/?"}) == len(keys) + 7


async def test_severity_has_a_sign_beside_its_colour() -> None:
    table = table_of(
        node_state("calm", cpu=0.4), node_state("full", cpu=2.8), node_state("hot", cpu=3.9)
    )
    async with shown(table) as screen:
        rows = [line.split() for line in screen.lines()[2:5]]
        assert [(row[0], row[3]) for row in rows] == [
            ("hot", "!!98%"), ("full", "!70%"), ("calm", "10%")
        ]  # fmt: skip


HOSTILE = ("[red]n1[/red]", "\x1b[31mn2\x1b[2J", "n3\nfake 100%", "\u202en4", "節点" * 40)


async def test_hostile_names_style_and_break_nothing() -> None:
    async with shown(table_of(*map(node_state, HOSTILE)), sort="name") as screen:
        lines = screen.lines()
        text = "\n".join(lines)
        for name in (r"\x1b[31mn2\x1b[2J", "[red]n1[/red]", r"n3\nfake", r"\u202en4"):
            assert name in text
        assert "\x1b" not in text
        assert sum("10s" in line for line in lines) == len(HOSTILE)
        screen.details = NodeDetails([], [])
        await screen.press("enter")
        assert rf"node {screen.asked[0]}".encode("unicode_escape").decode() in screen.text(
            "#status"
        )
        screen.reading = TableReading(Table(), problem="[bold]\x1b[2Jaway")
        await screen.press("escape")
        await until(lambda: "away" in screen.text("#problem"))
        assert r"[bold]\x1b[2Jaway" in screen.text("#problem")


async def test_last_picture_stays_with_its_age_while_the_source_is_away() -> None:
    table = some_nodes()
    async with shown(table) as screen:
        screen.clock.time = NOW + 300
        screen.reading = TableReading(table, problem="the broker is away: no answer")
        reason = "not up to date: the last picture, 5m old: the broker is away: no answer"
        await until(lambda: screen.text("#problem") == reason)
        lines = "\n".join(screen.lines())
        assert "busy" in lines
        assert "!5m" in lines
        screen.reading = TableReading(table)
        problem = screen.app.query_one("#problem")
        await until(lambda: not problem.display)


async def test_error_of_the_source_ends_the_view_and_is_returned() -> None:
    error = SpringtideError("topic accuracy is missing")
    async with shown(some_nodes()) as screen:
        screen.reading = error
        await until(lambda: not screen.app.is_running)
    assert screen.app.return_value is error


@pytest.mark.parametrize("width", [20, 60, 100, 240])
async def test_narrow_terminals_drop_columns_and_resizing_brings_them_back(width: int) -> None:
    async with shown(some_nodes(), size=(width, 12)) as screen:
        (headers,) = [line.split() for line in screen.lines() if line.startswith("NODE")]
        assert ("PREDICTOR" in headers) == (width > 100)
        await screen.pilot.resize_terminal(240, 8)
        await screen.pilot.pause()
        assert screen.lines()[1].split()[-1] == "FLAGS"
        await screen.pilot.resize_terminal(40, 3)
        await screen.pilot.pause()
        assert len(screen.lines()) == 3


async def test_all_rows_and_columns_are_reachable_beside_the_scroll_bar() -> None:
    for size in ((80, 24), (118, 24)):
        async with shown(large_table(60), size=size, sort="name") as screen:
            await screen.press("n", "n")  # the table is shown again, beside its scroll bar
            table = screen.app.query_one("#nodes", RowTable)
            assert not table.show_horizontal_scrollbar
            assert table.scrollable_size.height == table.size.height
            await screen.press("end")
            assert screen.lines()[-2].split()[0] == "node-00059"
    flagged = table_of(*(node_state(f"n{number:02}") for number in range(60)))
    async with shown(flagged, size=(80, 24)) as screen:
        await screen.press("n", "n")
        row = next(line for line in screen.lines() if line.startswith("n00"))
        assert row.rstrip("▁▂▃▄▅▆▇█ ").endswith("no-node")


async def test_smallest_terminals_show_nodes_first() -> None:
    async with shown(large_table(60), size=(20, 5)) as screen:
        lines = screen.lines()
        assert [line.split()[0] for line in lines[:2]] == ["60", "NODE"]
        assert all(line.startswith("node-") for line in lines[2:4])
        table = screen.app.query_one("#nodes", RowTable)
        screen.reading = TableReading(large_table(60), problem="away " * 50)
        await until(lambda: "away" in screen.text("#problem"))
        await screen.pilot.pause()
        assert table.size.height >= 1
    async with shown(large_table(60), size=(1, 1)) as screen:
        await screen.press("enter", "question_mark", "q")


async def test_long_terms_and_help_are_wrapped_also_after_a_resize() -> None:
    term = "    peak: " + " + ".join(f"part-{number}" for number in range(30)) + " = 1250 m"
    async with shown(some_nodes(), size=(80, 30)) as screen:
        screen.details = NodeDetails(DETAILS.pods, ["", term])
        await screen.press("enter")
        for width in (80, 30, 200):
            await screen.pilot.resize_terminal(width, 40)
            await screen.pilot.pause()
            text = " ".join("\n".join(screen.lines()).split())
            assert all(f"part-{number}" in text for number in range(30))
            assert "= 1250 m" in text
        await screen.pilot.resize_terminal(40, 200)
        await screen.press("question_mark")
        await screen.pilot.pause()
        assert not any("…" in line for line in screen.lines())


def large_table(nodes: int) -> Table:
    return table_of(*(
        node_state(f"node-{number:05}", cpu=(number * 37 % 4000) / 1000, memory=4 * GIB,
                   peaks=PEAKS, predictor="percentile", node_known=True)
        for number in range(nodes)
    ))  # fmt: skip


async def test_ten_thousand_nodes_cost_the_cells_of_the_visible_rows_alone() -> None:
    async with shown(large_table(10_000)) as screen:
        await screen.press("end")
        assert screen.lines()[-2].split()[0] == screen.names()[-1]
        made = 0
        table = screen.app.query_one("#nodes", RowTable)
        line = table._line

        def counted(row: Any) -> Line:
            nonlocal made
            made += 1
            return line(row)

        table.show(table._rows, counted, lambda row: row.name)
        screen.lines()
        assert 0 < made <= screen.app.size.height
