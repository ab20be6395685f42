"""`springtide top`: every node with its usage, predicted peak and age, once or live.

The table comes from Kafka or from an extender, and is shown as `node_lines` puts it, or as one JSON
document.
"""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress
from typing import Final, NamedTuple

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from pipeline.cli.extender_client import AskedExtender, extender_options
from pipeline.cli.node_lines import Sort, lines, plain, render
from pipeline.cli.options import KAFKA_CLIENT, quiet, settings_options
from pipeline.cli.table_reading import read_table
from pipeline.clock import SystemClock
from pipeline.errors import NotReadyError, SpringtideError
from pipeline.processors.model.usage_anomalies import ODDITIES
from pipeline.settings import Settings
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.table.node_documents import NOTHING_BESIDE, Beside, LimitsRatio, beside, node_list
from pipeline.table.table_feed import FED_BY
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.registry import PODS

REFRESH_SECONDS: Final = 1.0


@click.command(
    epilog="Exit codes: 0 shown, 1 failure, 2 usage, 4 no data, or all of it stale. AGE is since "
    "the end of the last window. PEAK is what usage will stay under, by the PREDICTOR that decides "
    "on that node; FREE what Prod asked for and will not use. LIM is limits over allocatable: "
    "an extender tells them, --limits reads them. FLAGS: simulated, "
    "no-node (only its samples speak of it), unknown-pods, thresholds (its annotation of them is "
    "of no use), and what is odd: "
    + ", ".join(f"{name} ({what})" for name, what in ODDITIES.items())
    + "."
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
@click.option(
    "--limits",
    "with_limits",
    is_flag=True,
    help="Read the topic of pods, too, for LIM: of a million pods it takes a minute.",
)
@extender_options
@settings_options(*KAFKA_CLIENT, "extender.stale_after_seconds")
def command(
    settings: Settings, watch: bool, sort: Sort, output: str, no_headers: bool, with_limits: bool,
    extender: AskedExtender | None,
) -> None:  # fmt: skip
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
    quiet(settings)
    view = _View(sort, settings.extender.stale_after_seconds, output == "json", not no_headers)
    source = (
        _from_extender(extender)
        if extender
        else _from_kafka(settings, patient=watch, pods=with_limits)
    )
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

    def show(self, seen: "Seen", now: float, console: Console) -> None:
        if self.json:
            document = node_list(seen.table, now, self.stale_after_seconds, seen.beside)
            click.echo(msgspec.json.encode(document))
        elif console.is_terminal:
            console.print(self.renderable(seen, now, console))
        else:
            found = lines(
                seen.table, now, sort=self.sort, beside=seen.beside,
                stale_after_seconds=self.stale_after_seconds,
            )  # fmt: skip
            click.echo(plain(found, headers=self.headers), nl=False)

    def renderable(
        self, seen: "Seen", now: float, console: Console, *, height: int | None = None
    ) -> RichTable:
        return render(
            seen.table,
            now,
            beside=seen.beside,
            sort=self.sort,
            stale_after_seconds=self.stale_after_seconds,
            width=console.width,
            height=height,
            headers=self.headers,
        )


class Seen(NamedTuple):
    """The table as it is, what is known beside the states of its nodes, and what is wrong with how
    it is fed, if anything is."""

    table: Table
    beside: Beside = NOTHING_BESIDE
    trouble: str = ""


Source = AsyncGenerator[Seen, None]


async def _once(source: Source, view: _View) -> None:
    now = SystemClock().now()
    async for seen in source:
        table = seen.table
        if not any(table.snapshot(name).state for name in table):
            raise NotReadyError(
                "no node has published a window yet",
                hint="start `springtide exporter` on a node and one `springtide worker`",
            )
        view.show(seen, now, Console())
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
        async for seen in source:
            if live is None:
                view.show(seen, clock.now(), console)
            else:
                shown = view.renderable(seen, clock.now(), console, height=console.height)
                live.update(Group(shown, Text(seen.trouble, "yellow")), refresh=True)
            await clock.sleep(REFRESH_SECONDS)


async def _from_kafka(settings: Settings, *, patient: bool, pods: bool) -> Source:
    """The table of the topics, again and again; a patient reader waits for a broker."""
    topics = (*FED_BY, PODS) if pods else FED_BY
    async with read_table(settings, Table(), topics, patient=patient) as feed:
        while True:
            table, names = feed.table, tuple(feed.table)
            yield Seen(
                table,
                beside(table, names, has_pods=pods),
                "" if feed.state.connected else feed.state.message,
            )


class _Item(NodeStateRecord, frozen=True, kw_only=True):
    limits_ratio: LimitsRatio | None = None
    usage_thresholds_problem: str | None = None


class _NodeStateList(msgspec.Struct):
    items: list[_Item]
    without_state: list[str] = []


async def _from_extender(extender: AskedExtender) -> Source:
    """What an extender says of its nodes, asked again and again."""
    async with extender.session() as session:
        while True:
            yield _seen(await extender.ask(session, "/v1/nodes"), extender.url)


def _seen(answer: bytes, url: str) -> Seen:
    try:
        states = msgspec.json.decode(answer, type=_NodeStateList)
    except msgspec.MsgspecError as error:
        raise SpringtideError(f"{url} does not answer as an extender: {error}") from error
    table = Table()
    for state in states.items:
        table.put_state(state)
    for name in states.without_state:
        table.put_node(TableNode(node=name))
    # An extender of before says nothing of either.
    limits = {one.node: one.limits_ratio for one in states.items if one.limits_ratio}
    problems = {
        one.node: one.usage_thresholds_problem
        for one in states.items
        if one.usage_thresholds_problem
    }
    return Seen(table, Beside(limits, problems))
