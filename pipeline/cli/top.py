"""`springtide top`: every node with its usage, predicted peak and age, once or live.

Owes the rest: `render`, the table for a terminal as the demo shows it; `plain`, the same for a
pipe; one JSON document. What is known only partly is shown as `-`, never as 0.
"""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final, Literal, NamedTuple

import aiohttp
import click
import msgspec
import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from pipeline.cli.options import KAFKA_CLIENT, settings_options
from pipeline.clock import SystemClock
from pipeline.errors import KafkaError, NotReadyError, SpringtideError, TopicDriftError
from pipeline.processors.thresholds import is_fresh, usage_percent
from pipeline.settings import Settings
from pipeline.table import Feed, Table
from pipeline.table.document import node_list
from pipeline.topics.client import client_options
from pipeline.topics.node_state import NodeStateRecord

Sort = Literal["cpu", "memory", "peak", "name"]
Cell = tuple[str, str]  # text and style

REFRESH_SECONDS: Final = 1.0
STALE_AFTER_SECONDS: Final = 180.0
_PROGRESS_AFTER_SECONDS: Final = 2.0


class _Column(NamedTuple):
    title: str
    rank: int  # the highest go first where the terminal is too narrow; 0 always stays
    left: bool = False


COLUMNS: Final = (
    _Column("NODE", 0, left=True),
    _Column("AGE", 0),
    _Column("CPU", 2),
    _Column("CPU%", 0),
    _Column("MEMORY", 2),
    _Column("MEM%", 0),
    _Column("PEAK CPU", 1),
    _Column("PEAK MEM", 1),
    _Column("PREDICTOR", 5, left=True),
    _Column("PODS", 3),
    _Column("FREE CPU", 4),
    _Column("FREE MEM", 4),
    _Column("FLAGS", 0, left=True),
)
_GAP: Final = 2
RESOURCES: Final = ("cpu_cores", "memory_bytes")


class Line(NamedTuple):
    """One node, ready to be shown: a cell per entry of `COLUMNS`, and what lines are sorted by."""

    name: str
    cells: tuple[Cell, ...]
    stale: bool
    cpu_percent: float
    memory_percent: float
    peak_percent: float


def lines(
    table: Table,
    now: float,
    *,
    sort: Sort = "cpu",
    stale_after_seconds: float = STALE_AFTER_SECONDS,
) -> list[Line]:
    """A line per node of the table; the most used first, unknown last, or by name."""
    names = list(table)
    rows = table.lookup(names)
    ages = table.ages(rows, now)
    fresh = is_fresh(ages, stale_after_seconds)
    values = {column.name: table[column.name][rows] for column in table.columns}

    def share(kind: str, resource: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        return usage_percent(values[f"{kind}_{resource}"], values[f"allocatable_{resource}"])

    cpu, memory = share("usage", "cpu_cores"), share("usage", "memory_bytes")
    peaks = {f"peak_{resource}": share("peak", resource) for resource in RESOURCES}
    found = []
    for i, name in enumerate(names):
        row = {column: float(array[i]) for column, array in values.items()}
        state = table.snapshot(name).state
        peak_shares = [float(percent[i]) for percent in peaks.values()]
        found.append(
            Line(
                name,
                (
                    (name, "bold"),
                    (_age(float(ages[i])), "" if fresh[i] else "yellow"),
                    (_cores(row["usage_cpu_cores"]), ""),
                    _percent(float(cpu[i])),
                    (_bytes(row["usage_memory_bytes"]), ""),
                    _percent(float(memory[i])),
                    *(
                        (_with_share(key, row[key], percent), "cyan")
                        for key, percent in zip(peaks, peak_shares, strict=True)
                    ),
                    (state.predictor if state else "", ""),
                    (_count(row["pods"]), ""),
                    (_cores(row["prod_reclaimable_cpu_cores"]), "green"),
                    (_bytes(row["prod_reclaimable_memory_bytes"]), "green"),
                    (_flags(row, bool(fresh[i])), "yellow"),
                ),
                stale=not fresh[i],
                cpu_percent=float(cpu[i]),
                memory_percent=float(memory[i]),
                peak_percent=max((p for p in peak_shares if p == p), default=np.nan),
            )
        )
    return sorted(found, key=_sort_key(sort))


def render(
    table: Table,
    now: float,
    *,
    sort: Sort = "cpu",
    stale_after_seconds: float = STALE_AFTER_SECONDS,
    width: int = 200,
    height: int | None = None,
    headers: bool = True,
) -> RichTable:
    """The table for a terminal: columns that fit into `width`, nodes that fit into `height`."""
    all_lines = lines(table, now, sort=sort, stale_after_seconds=stale_after_seconds)
    shown = _fitting(all_lines, width)
    room = len(all_lines) if height is None else max(1, height - 3)
    rich = RichTable(
        box=None,
        pad_edge=False,
        show_header=headers,
        header_style="bold",
        caption_justify="left",
        caption_style="dim",
    )
    for i in shown:
        rich.add_column(
            COLUMNS[i].title,
            justify="left" if COLUMNS[i].left else "right",
            no_wrap=True,
            overflow="ellipsis",
        )
    for line in all_lines[:room]:
        cells = (line.cells[i] for i in shown)
        rich.add_row(*(Text(text, style) for text, style in cells), style="dim" * line.stale)
    if not all_lines:
        rich.caption = "no node has published a window yet"
    elif len(all_lines) > room:
        rich.caption = f"and {len(all_lines) - room} more"
    return rich


def plain(all_lines: Sequence[Line], *, headers: bool = True) -> str:
    """All columns, two spaces apart, nothing cut: for pipes. Spaces in titles become dashes."""
    grid = [[text or "-" for text, _ in line.cells] for line in all_lines]
    if headers:
        grid.insert(0, [column.title.replace(" ", "-") for column in COLUMNS])
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    padded = (
        "  ".join(
            text.ljust(width) if column.left else text.rjust(width)
            for text, width, column in zip(row, widths, COLUMNS, strict=True)
        ).rstrip()
        for row in grid
    )
    return "".join(f"{row}\n" for row in padded)


def _fitting(all_lines: Sequence[Line], width: int) -> list[int]:
    """The columns that have room, ranks of lesser interest left out as a whole."""
    needs = [
        max(len(column.title), *(len(line.cells[i][0]) for line in all_lines), 0)
        for i, column in enumerate(COLUMNS)
    ]
    for most in range(max(column.rank for column in COLUMNS), -1, -1):
        shown = [i for i, column in enumerate(COLUMNS) if column.rank <= most]
        if sum(needs[i] + _GAP for i in shown) - _GAP <= width:
            break
    return shown


def _sort_key(sort: Sort) -> Callable[[Line], tuple[float, str]]:
    def key(line: Line) -> tuple[float, str]:
        if sort == "name":
            return 0.0, line.name
        percent: float = getattr(line, f"{sort}_percent")
        return (np.inf if np.isnan(percent) else -percent), line.name

    return key


def _age(seconds: float) -> str:
    if np.isnan(seconds):
        return "-"
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m"
    return f"{whole // 3600}h" if whole < 172_800 else f"{whole // 86_400}d"


def _cores(cores: float) -> str:
    if np.isnan(cores):
        return "-"
    return f"{cores:.2f}" if cores < 1000 else f"{cores:.4g}"


def _bytes(amount: float) -> str:
    if np.isnan(amount):
        return "-"
    for unit in ("Mi", "Gi", "Ti", "Pi"):
        amount /= 1024 if unit != "Mi" else 1024**2
        if amount < 999.5 or unit == "Pi":
            break
    digits = 0 if unit == "Mi" or amount >= 99.95 else 1
    return f"{amount:.{digits}f}{unit}" if amount < 1e6 else f"{amount:.3g}{unit}"


def _share(percent: float) -> str:
    if np.isnan(percent):
        return "-"
    return f"{percent:.0f}%" if percent < 1e5 else f"{percent:.2g}%"


def _percent(percent: float) -> Cell:
    return _share(percent), "red" if percent >= 90 else "yellow" if percent >= 65 else ""


def _with_share(key: str, amount: float, percent: float) -> str:
    if np.isnan(amount):
        return "-"
    text = _cores(amount) if key.endswith("cores") else _bytes(amount)
    return text if np.isnan(percent) else f"{text} {_share(percent)}"


def _count(number: float) -> str:
    return "-" if np.isnan(number) else f"{number:.0f}"


def _flags(row: dict[str, float], fresh: bool) -> str:
    """In words, so that colour is never the only signal."""
    if np.isnan(row["as_of_seconds"]):
        return "no-data"
    flags = {
        "stale": not fresh,
        "simulated": row["simulated"],
        "no-node": not row["node_known"],
        f"gaps={row['gaps']:.0f}": row["gaps"] > 0,
        f"unknown-pods={row['unknown_pods']:.0f}": row["unknown_pods"] > 0,
        f"coverage={row['coverage']:.0%}": row["coverage"] < 0.5,
    }
    return ",".join(flag for flag, raised in flags.items() if raised)


@click.command(
    epilog="Exit codes: 0 shown, 1 failure, 2 usage, 4 no data, or all of it stale. AGE is since "
    "the end of the last window. PEAK is what usage will stay under, by the PREDICTOR that decides "
    "on that node; FREE what Prod asked for and will not use. FLAGS: "
    "stale, simulated, no-node (only its samples speak of it), gaps, unknown-pods, coverage."
)
@click.option("-w", "--watch", is_flag=True, help="Stay and refresh every second, until Ctrl-C.")
@click.option(
    "--sort",
    type=click.Choice(["cpu", "memory", "peak", "name"]),
    default="cpu",
    show_default=True,
    help="By share of allocatable, highest first; or by name.",
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@click.option("--no-headers", is_flag=True, help="Leave out the line with the titles.")
@click.option("--extender", "url", metavar="URL", help="Ask this extender, not Kafka.")
@settings_options(*KAFKA_CLIENT, "extender.stale_after_seconds")
def command(
    settings: Settings, watch: bool, sort: Sort, output: str, no_headers: bool, url: str | None
) -> None:
    """Show every node with usage, predicted peak and age.

    A terminal gets a table that fits its width; a pipe gets all columns as plain text. NO_COLOR is
    obeyed. The JSON document has stable keys; it is the one of the extender's GET /v1/nodes.

    \b
    Examples:
      springtide top --watch
      springtide top --sort peak --no-headers | head -3
      springtide top -o json | jq '.items[] | select(.stale) | .node'
      springtide top --extender http://localhost:8888
    """
    if settings.log.level != "debug":
        # What went wrong is said once, at the end or on the screen; the log would cut through it.
        logging.getLogger().setLevel(logging.CRITICAL)
    view = _View(sort, settings.extender.stale_after_seconds, output == "json", not no_headers)
    source = _from_extender(url) if url else _from_kafka(settings, patient=watch)
    if not watch:
        asyncio.run(_once(source, view))
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else the screen is left as it is
    with suppress(KeyboardInterrupt):
        asyncio.run(_live(source, view))


class _View(NamedTuple):
    sort: Sort
    stale_after_seconds: float
    json: bool
    headers: bool

    def show(self, table: Table, now: float, console: Console) -> None:
        if self.json:
            document = node_list(table, now, self.stale_after_seconds)
            click.echo(msgspec.json.encode(document))
        elif console.is_terminal:
            console.print(self.renderable(table, now, console))
        else:
            found = lines(table, now, sort=self.sort, stale_after_seconds=self.stale_after_seconds)
            click.echo(plain(found, headers=self.headers), nl=False)

    def renderable(
        self, table: Table, now: float, console: Console, *, height: int | None = None
    ) -> RichTable:
        return render(
            table,
            now,
            sort=self.sort,
            stale_after_seconds=self.stale_after_seconds,
            width=console.width,
            height=height,
            headers=self.headers,
        )


class Seen(NamedTuple):
    """The table as it is, and what is wrong with how it is fed, if anything is."""

    table: Table
    trouble: str = ""


Source = AsyncGenerator[Seen, None]


async def _once(source: Source, view: _View) -> None:
    now = SystemClock().now()
    async for table, _ in source:
        if not any(table.snapshot(name).state for name in table):
            raise NotReadyError(
                "no node has published a window yet",
                hint="start `springtide exporter` on a node and one `springtide worker`",
            )
        view.show(table, now, Console())
        found = lines(table, now, stale_after_seconds=view.stale_after_seconds)
        if all(line.stale for line in found):
            raise NotReadyError(
                f"all {len(found)} nodes are stale: no window in the last "
                f"{view.stale_after_seconds:g} s",
                hint="see whether exporters and worker run: `springtide doctor`",
            )
        break
    await source.aclose()


async def _live(source: Source, view: _View) -> None:
    console, clock = Console(), SystemClock()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(source.aclose)
        live = None
        if console.is_terminal and not view.json:
            live = stack.enter_context(Live(console=console, auto_refresh=False, screen=True))
        async for table, trouble in source:
            if live is None:
                view.show(table, clock.now(), console)
            else:
                shown = view.renderable(table, clock.now(), console, height=console.height)
                live.update(Group(shown, Text(trouble, "yellow")), refresh=True)
            await clock.sleep(REFRESH_SECONDS)


async def _from_kafka(settings: Settings, *, patient: bool) -> Source:
    """The table of the topics, again and again; raises what keeps it from being read.

    A patient reader waits for a broker that is away.
    """
    feed = Feed(
        Table(),
        client=client_options(settings.kafka),
        prefix=settings.kafka.topic_prefix,
        clock=SystemClock(),
    )
    async with _running(feed):
        began = time.monotonic()
        while not feed.state.caught_up:
            caught_up = asyncio.create_task(feed.wait_caught_up())
            failure = asyncio.create_task(feed.wait_failure())
            waits = {caught_up} if patient else {caught_up, failure}
            done, _ = await asyncio.wait(
                waits, timeout=_PROGRESS_AFTER_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            for task in (caught_up, failure):
                task.cancel()
            if failure in done:
                raise _why_not(failure.result())
            if not done:
                waited = time.monotonic() - began
                click.echo(f"reading node states ({feed.state.message}, {waited:.0f} s)", err=True)
        while True:
            yield Seen(feed.table, "" if feed.state.connected else feed.state.message)


def _why_not(failure: KafkaError) -> SpringtideError:
    if isinstance(failure, TopicDriftError):
        return NotReadyError(
            f"there are no node states: {failure.message}",
            hint="`springtide topics apply` makes the topics, `springtide worker` fills them",
        )
    return failure


@asynccontextmanager
async def _running(feed: Feed) -> AsyncIterator[None]:
    task = asyncio.create_task(feed.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class _NodeStateList(msgspec.Struct):
    items: list[NodeStateRecord]


async def _from_extender(url: str) -> Source:
    """What an extender says of its nodes, asked again and again."""
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            yield Seen(await _asked(session, f"{url.rstrip('/')}/v1/nodes"))


async def _asked(session: aiohttp.ClientSession, url: str) -> Table:
    try:
        async with session.get(url) as response:
            body = await response.read()
            if response.status == 503:
                raise NotReadyError(f"the extender at {url} is not ready: {body[:300]!r}")
            if response.status != 200:
                raise SpringtideError(f"GET {url} was answered with {response.status}")
            states = msgspec.json.decode(body, type=_NodeStateList)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise SpringtideError(
            f"no extender answers at {url}: {error or type(error).__name__}",
            hint="give the address of `springtide extender`, as http://host:8888",
        ) from error
    except msgspec.MsgspecError as error:
        raise SpringtideError(f"GET {url} was not answered as by an extender: {error}") from error
    table = Table()
    for state in states.items:
        table.put_state(state)
    return table
