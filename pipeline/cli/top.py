"""`springtide top`: show usage, predicted peak and age of every node, once or live."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress
from typing import Final, NamedTuple

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pipeline.cli.extender_client import ExtenderClient, extender_options
from pipeline.cli.help_sections import Command
from pipeline.cli.node_table import JudgedPeaks, NodeLine, node_lines, plain_text, terminal_table
from pipeline.cli.options import KAFKA_CLIENT, output_formats, settings_options, silence_logs
from pipeline.cli.past_records import records_since
from pipeline.cli.table_reading import read_table
from pipeline.cli.top_columns import COLUMNS, DEFAULT_SORT, FLAGS, NO_DATA, SORT_KEYS
from pipeline.clock import SystemClock
from pipeline.errors import NotReadyError, UsageError
from pipeline.processors.accuracy.accuracy_totals import AccuracyTotals
from pipeline.settings import Settings
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.table.node_documents import NO_FACTS, NodeFacts, NodeItem, node_facts, node_list
from pipeline.table.table_feed import NODE_TOPICS
from pipeline.topics.accuracy import AccuracyRecord
from pipeline.topics.registry import ACCURACY, PODS

REFRESH_SECONDS: Final = 1.0
ACCURACY_SECONDS: Final = 7 * 86_400.0
"""Peaks that were judged in this time before the command started, and since then, count."""


@click.command(
    cls=Command,
    exit_codes={0: "nodes shown", 4: "no data, or all data is stale"},
    tables={
        "Columns": [(column.header, column.help) for column in COLUMNS],
        "Flags": [(flag.name, flag.help) for flag in (NO_DATA, *FLAGS)],
    },
)
@click.option("-w", "--watch", is_flag=True, help="Refresh every second until Ctrl-C.")
@click.option(
    "--sort", type=click.Choice(list(SORT_KEYS)), default=DEFAULT_SORT, show_default=True,
    help="Sort by name, or by percent of allocatable, highest first.",
)  # fmt: skip
@output_formats()
@click.option("--no-headers", is_flag=True, help="Omit the line of headers.")
@click.option(
    "--limits", "with_limits", is_flag=True,
    help="Also read the topic of pods, for LIM CPU% and LIM MEM%. A million pods take a minute.",
)  # fmt: skip
@click.option(
    "--accuracy", "with_accuracy", is_flag=True,
    help="Also read the peaks that were judged in the last 7 days, for VIOL%.",
)  # fmt: skip
@extender_options
@settings_options(
    *KAFKA_CLIENT, "kafka.partitions", "extender.stale_after_seconds",
    "model.accuracy_interval_seconds",
)  # fmt: skip
def command(
    settings: Settings, watch: bool, sort: str, output: str, no_headers: bool, with_limits: bool,
    with_accuracy: bool, extender: ExtenderClient | None,
) -> None:  # fmt: skip
    """Show usage, predicted peak and age of every node.

    The state table is read from Kafka, or from a running extender with --extender. A terminal gets
    the columns that fit its width; -o wide and a pipe get all columns as plain text. NO_COLOR is
    respected. The JSON document is that of the extender's GET /v1/nodes; its keys are stable.

    \b
    Examples:
      springtide top --watch
      springtide top --sort peak --no-headers | head -3
      springtide top --accuracy --sort violation
      springtide top -o wide
      springtide top -o json | jq '.items[] | select(.stale) | .node'
      springtide top --extender http://localhost:8888
    """
    silence_logs(settings)
    if with_accuracy and (extender or output == "json"):
        raise UsageError(
            "--accuracy reads Kafka, and is not in the JSON document",
            hint="leave out --extender and -o json; `springtide accuracy -o json` has all scores",
        )
    if sort == "violation" and not with_accuracy:
        raise UsageError("--sort violation needs --accuracy", hint="add --accuracy")
    view = View(sort, settings.extender.stale_after_seconds, output, not no_headers)
    source = (
        _read_extender(extender)
        if extender
        else _read_kafka(settings, waits_for_broker=watch, pods=with_limits, accuracy=with_accuracy)
    )
    if not watch:
        asyncio.run(_show_once(source, view))
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else the screen is not restored
    with suppress(KeyboardInterrupt):
        asyncio.run(_show_live(source, view))


class TableReading(NamedTuple):
    """The state table, facts about its nodes from other records, why its feed is disconnected
    (empty while it is connected), and judged peaks if they are read."""

    table: Table
    facts: NodeFacts = NO_FACTS
    feed_problem: str = ""
    judged: JudgedPeaks | None = None


Source = AsyncGenerator[TableReading, None]


class View(NamedTuple):
    """How `top` shows a table: the command's options."""

    sort: str
    stale_after_seconds: float
    output: str
    headers: bool

    def lines(self, reading: TableReading, now: float) -> list[NodeLine]:
        return node_lines(
            reading.table, now, sort=self.sort, facts=reading.facts,
            stale_after_seconds=self.stale_after_seconds, judged=reading.judged,
        )  # fmt: skip

    def show(self, reading: TableReading, now: float, console: Console) -> None:
        """Print the table: as JSON, as columns that fit the terminal, or as plain text
        with all columns."""
        if self.output == "json":
            document = node_list(reading.table, now, self.stale_after_seconds, reading.facts)
            click.echo(msgspec.json.encode(document))
        elif console.is_terminal and self.output == "table":
            lines = self.lines(reading, now)
            console.print(terminal_table(lines, width=console.width, headers=self.headers))
        else:
            click.echo(plain_text(self.lines(reading, now), headers=self.headers), nl=False)


async def _show_once(source: Source, view: View) -> None:
    now = SystemClock().now()
    async for reading in source:
        table = reading.table
        if not any(table.snapshot(name).state for name in table):
            raise NotReadyError(
                "no usage of any node is known",
                hint="start `springtide exporter` on a node and one `springtide worker`; "
                "if both run, `springtide doctor` says what is wrong",
            )
        view.show(reading, now, Console())
        lines = view.lines(reading, now)
        if all(line.is_stale for line in lines):
            raise NotReadyError(
                f"all {len(lines)} nodes are stale: no window in the last "
                f"{view.stale_after_seconds:g} s",
                hint="check exporters and workers with `springtide doctor`",
            )
        break
    await source.aclose()


async def _show_live(source: Source, view: View) -> None:
    console, clock = Console(), SystemClock()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(source.aclose)
        live = None
        if console.is_terminal and view.output == "table":
            live = stack.enter_context(Live(console=console, auto_refresh=False, screen=True))
        async for reading in source:
            if live is None:
                view.show(reading, clock.now(), console)
            else:
                table = terminal_table(
                    view.lines(reading, clock.now()), headers=view.headers,
                    width=console.width, height=console.height,
                )  # fmt: skip
                live.update(Group(table, Text(reading.feed_problem, "yellow")), refresh=True)
            await clock.sleep(REFRESH_SECONDS)


async def _read_kafka(
    settings: Settings, *, waits_for_broker: bool, pods: bool, accuracy: bool
) -> Source:
    """Yield the table of the topics, and judged peaks, again and again."""
    topics = (*NODE_TOPICS, PODS) if pods else NODE_TOPICS
    async with AsyncExitStack() as stack:
        feed = await stack.enter_async_context(
            read_table(settings, Table(), topics, waits_for_broker=waits_for_broker)
        )
        judged = None
        if accuracy:
            since = SystemClock().now() - ACCURACY_SECONDS
            records = await stack.enter_async_context(
                records_since(settings.kafka, ACCURACY, AccuracyRecord, since)
            )
            judged = JudgedPeaks(AccuracyTotals(), settings.model.accuracy_interval_seconds)
            async for record in records.each_to_end():
                judged.totals.add(record)
        while True:
            table, names = feed.table, tuple(feed.table)
            yield TableReading(
                table,
                node_facts(table, names, has_pods=pods),
                "" if feed.state.connected else feed.state.message,
                judged,
            )
            if judged:
                for record in await records.next(timeout_seconds=0.0):
                    judged.totals.add(record)


class NodeStateList(msgspec.Struct):
    """The extender's answer to GET /v1/nodes."""

    items: list[NodeItem]
    without_state: list[str] = []


async def _read_extender(extender: ExtenderClient) -> Source:
    """Request the nodes from an extender again and again, and yield them as a table."""
    async with extender.session() as session:
        while True:
            yield build_table(await extender.request(session, "/v1/nodes", NodeStateList))


def build_table(nodes: NodeStateList) -> TableReading:
    table = Table()
    for item in nodes.items:
        table.put_state(item)
    for name in nodes.without_state:
        table.put_node(TableNode(node=name))
    limits = {item.node: item.limits_ratio for item in nodes.items if item.limits_ratio}
    problems = {
        item.node: item.usage_thresholds_problem
        for item in nodes.items
        if item.usage_thresholds_problem
    }
    return TableReading(table, NodeFacts(limits, problems))
