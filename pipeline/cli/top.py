"""`springtide top`: show usage, predicted peak and age of every node, on a full screen or once."""

import asyncio
import os
import sys
from functools import partial
from typing import NamedTuple

import click
import msgspec
from rich.console import Console

from pipeline.cli.extender_client import ExtenderClient, extender_options
from pipeline.cli.help_sections import Command
from pipeline.cli.node_details import details_from_extender, details_from_kafka
from pipeline.cli.node_table import NodeLine, node_lines, plain_text, terminal_table
from pipeline.cli.options import KAFKA_CLIENT, output_formats, settings_options, silence_logs
from pipeline.cli.top_columns import COLUMNS, DEFAULT_SORT, FLAGS, NO_DATA, SORT_KEYS
from pipeline.cli.top_source import Source, TableReading, read_extender, read_kafka
from pipeline.clock import SystemClock
from pipeline.errors import NotReadyError, UsageError
from pipeline.settings import Settings
from pipeline.table.node_documents import node_list


@click.command(
    cls=Command,
    exit_codes={0: "nodes shown", 4: "no data, or all data is stale"},
    tables={
        "Columns": [(column.header, column.help) for column in COLUMNS],
        "Values of FLAGS": [(flag.name, flag.help) for flag in (NO_DATA, *FLAGS)],
    },
)
@click.option("--once", is_flag=True, help="Print the table once, also on a terminal.")
@click.option(
    "--sort", type=click.Choice(list(SORT_KEYS)), default=DEFAULT_SORT, show_default=True,
    help="Sort by name, or by percent of allocatable, highest first.",
)  # fmt: skip
@output_formats()
@click.option("--no-headers", is_flag=True, help="Print the table once without headers.")
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
    settings: Settings, once: bool, sort: str, output: str, no_headers: bool, with_limits: bool,
    with_accuracy: bool, extender: ExtenderClient | None,
) -> None:  # fmt: skip
    """Show usage, predicted peak and age of every node.

    On a terminal the table fills the screen and is refreshed every second: keys sort and filter it,
    Enter shows the pods of a node and how its peaks were computed, ? all keys, q quits. While
    nothing can be read, the last picture stays, with its age. NO_COLOR is respected.

    With --once, -o or a pipe it is printed once: on a terminal the columns that fit its width, with
    -o wide and in a pipe all columns as plain text. The JSON document is that of the extender's GET
    /v1/nodes; its keys are stable. The state table is read from Kafka, or from a running extender
    with --extender.

    \b
    Examples:
      springtide top
      springtide top --once --sort memory
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
    is_live = not (once or no_headers) and output == "table" and _is_full_terminal()
    source = (
        read_extender(extender, is_live=is_live)
        if extender
        else read_kafka(settings, is_live=is_live, pods=with_limits, accuracy=with_accuracy)
    )
    asyncio.run(
        _show_live(source, view, settings, extender) if is_live else _show_once(source, view)
    )


def _is_full_terminal() -> bool:
    """Whether a person sees the output and can press keys."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


class View(NamedTuple):
    """How `top` prints a table: the command's options."""

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


async def _show_live(
    source: Source, view: View, settings: Settings, extender: ExtenderClient | None
) -> None:
    from pipeline.cli.top_screen import TopApp, run_screen  # Textual, which takes 0.2 s to import

    read_node = (
        partial(details_from_extender, extender)
        if extender
        else partial(details_from_kafka, settings.kafka)
    )
    stale_after = view.stale_after_seconds
    app = TopApp(source, read_node, SystemClock(), sort=view.sort, stale_after_seconds=stale_after)
    await run_screen(app)
