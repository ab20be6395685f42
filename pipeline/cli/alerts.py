"""`springtide alerts`: show the open alerts of hot nodes, or what happened to alerts."""

import asyncio
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import Final, NamedTuple

import click
import msgspec

from pipeline.cli.help_sections import Command
from pipeline.cli.kafka_requests import run_requests
from pipeline.cli.options import KAFKA_CLIENT, output_option, settings_options, silence_logs
from pipeline.cli.past_records import records_since
from pipeline.cli.past_time_option import PastTime
from pipeline.cli.safe_output import print_lines, print_progress
from pipeline.cli.table_reading import read_table
from pipeline.clock import SystemClock
from pipeline.errors import NotReadyError, UsageError
from pipeline.processors.descheduling.relief_alerts import ReliefAlerts
from pipeline.processors.explain.quantity_text import UNKNOWN, format_age, format_percent
from pipeline.processors.explain.text_columns import align_columns
from pipeline.settings import Settings
from pipeline.table import Table
from pipeline.table.relief_alert_feed import read_relief_alerts
from pipeline.times import parse_time
from pipeline.topics.alerts import (
    PLANNER_RULES,
    AlertRecord,
    OpenAlert,
    alert_id,
)
from pipeline.topics.registry import ALERTS

REFRESH_SECONDS: Final = 1.0

_OPEN_HEADERS: Final = ("NODE", "RULE", "SEVERITY", "OPEN", "USAGE", "THRESHOLD", "AGE")
_CHANGE_HEADERS: Final = (
    "TIME", "NODE", "RULE", "CHANGE", "SEVERITY", "USAGE", "THRESHOLD", "OPEN", "REASON",
)  # fmt: skip
_COLUMN_HELP: Final = {
    "Columns": [
        (
            "RULE",
            "node_cpu, node_memory, prod_cpu or prod_memory: usage of the node, or of Prod. "
            "all_nodes_hot, nothing_can_be_done and plans_do_not_help: the planner cannot relieve "
            "a pool or a node, for the reason below the table. pool_cpu_level, "
            "workload_memory_level and so on: usage changed its level, from and to what is below "
            "the table.",
        ),
        ("OPEN", "How long the alert has been open, at the time of a change."),
        ("USAGE", "The compared usage in percent of allocatable."),
        (
            "THRESHOLD",
            "Usage above it is hot. Of critical alerts, and of changes to critical and back, usage "
            "above it is critical.",
        ),
        ("AGE", "Time since the end of the node's last window; (stale) if it is too long."),
        ("CHANGE", "opened, escalated (to critical), eased (to warning) or closed."),
    ]
}


class OpenAlertItem(msgspec.Struct, frozen=True, kw_only=True):
    """An open alert as `-o json` shows it; `stale`: the node's last window is too old."""

    id: str
    node: str
    as_of: str
    stale: bool
    alert: OpenAlert | AlertRecord


class AlertList(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `-o json`."""

    items: Sequence[OpenAlertItem] | Sequence[AlertRecord]


class View(NamedTuple):
    """How alerts are shown: the command's options."""

    as_json: bool
    headers: bool
    stale_after_seconds: float

    def show(
        self, items: Sequence[OpenAlertItem] | Sequence[AlertRecord], lines: Iterable[str], *,
        none: str = "no alert", is_first: bool = True,
    ) -> None:  # fmt: skip
        """Print the lines, or the text `none` if there are no items: again only on a terminal,
        unless `is_first`."""
        if self.as_json:
            click.echo(msgspec.json.encode(AlertList(items=items)))
        elif items:
            print_lines(lines)
        if not items:
            print_progress(none, is_first=is_first)


@click.command(
    cls=Command,
    exit_codes={
        0: "shown, also if there are none",
        3: "with --since: the topic is missing",
        4: "no data, or topics are missing",
    },
    tables=_COLUMN_HELP,
)
@click.option("-w", "--watch", is_flag=True, help="Show them again every second until Ctrl-C.")
@click.option(
    "--since", type=PastTime(kept_days=7), metavar="TIME",
    help="Show the changes since 2023-11-14T22:13:30Z, or since 2h ago, instead; at most a week.",
)  # fmt: skip
@output_option
@click.option("--no-headers", is_flag=True, help="Omit the line of headers.")
@settings_options(*KAFKA_CLIENT, "kafka.partitions", "extender.stale_after_seconds")
def command(
    settings: Settings, watch: bool, since: float | None, as_json: bool, no_headers: bool
) -> None:
    """Show the alerts of hot nodes that are open, or what happened to alerts.

    A node is hot while its usage is above the thresholds of its pool for several windows. Nothing
    is changed.

    \b
    Examples:
      springtide alerts
      springtide alerts --watch
      springtide alerts --since 1h
      springtide alerts -o json | jq '.items[] | select(.alert.severity == "critical") | .node'
    """
    silence_logs(settings)
    view = View(as_json, not no_headers, settings.extender.stale_after_seconds)
    if since is not None:
        if watch:
            raise UsageError(
                "--watch and --since exclude each other",
                hint="--watch shows open alerts, --since the changes of the past",
            )
        changes = run_requests(settings.kafka, read_changes(settings, since))
        lines = change_lines(changes, headers=view.headers)
        # An alert that opened before may still be open.
        view.show(changes, lines, none="no alert opened, changed or closed in this time")
        return
    if watch:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt) if watch else nullcontext():
        asyncio.run(_show_open(settings, view, watch=watch))


async def _show_open(settings: Settings, view: View, *, watch: bool) -> None:
    clock = SystemClock()
    relief, is_first = ReliefAlerts(), True
    async with (
        read_table(settings, Table(), waits_for_broker=watch) as feed,
        read_relief_alerts(settings.kafka, relief, clock, waits=not watch),
    ):
        while True:
            table, now = feed.table, clock.now()
            if not watch and not any(table.snapshot(name).state for name in table):
                raise NotReadyError(
                    "no usage of any node is known, so nothing is known of alerts",
                    hint="start `springtide exporter` on a node and one `springtide worker`; "
                    "if both run, `springtide doctor` says what is wrong",
                )
            items = open_alerts(table, now, view.stale_after_seconds)
            items += [relief_item(alert) for alert in relief.open(clock.monotonic())]
            if watch and not view.as_json:
                click.clear()  # only a terminal
            lines = open_lines(items, now, headers=view.headers)
            view.show(items, lines, none=no_alert_text(table), is_first=is_first)
            if not watch:
                return
            is_first = bool(items)
            if not feed.state.connected:
                click.echo(feed.state.message, err=True)
            await clock.sleep(REFRESH_SECONDS)


def open_alerts(table: Table, now: float, stale_after_seconds: float) -> list[OpenAlertItem]:
    """The open alerts of all nodes of the table, critical ones first, then by age."""
    items = []
    for name in table:
        state = table.snapshot(name).state
        if state is None:
            continue
        for alert in state.alerts:
            items.append(
                OpenAlertItem(
                    id=alert_id(name, alert.rule, alert.since),
                    node=name,
                    as_of=state.as_of,
                    stale=now - parse_time(state.as_of) > stale_after_seconds,
                    alert=alert,
                )
            )
    return sorted(
        items, key=lambda item: (item.alert.severity, item.alert.since, item.node, item.alert.rule)
    )


def no_alert_text(table: Table) -> str:
    """The text in place of alerts; it says so if none can open because no node has thresholds."""
    nodes = [node for name in table if (node := table.snapshot(name).node) is not None]
    if not nodes or any(node.hot_nodes for node in nodes):
        return "no alert"
    return "no alert, because no node has thresholds: set them in a DeschedulerConfiguration"


def relief_item(alert: AlertRecord) -> OpenAlertItem:
    """An open alert of the planner."""
    return OpenAlertItem(id=alert.id, node=alert.node, as_of=alert.as_of, stale=False, alert=alert)


def open_lines(items: Iterable[OpenAlertItem], now: float, *, headers: bool) -> Iterator[str]:
    """Yield the table of open alerts."""
    rows = [_OPEN_HEADERS] if headers else []
    whys = []
    for item in items:
        alert, age = item.alert, format_age(now - parse_time(item.as_of))
        what = _subject(item.node, alert), alert.rule, alert.severity
        opened = format_age(now - parse_time(alert.since))
        if isinstance(alert, AlertRecord):
            rows.append((*what, opened, UNKNOWN, UNKNOWN, UNKNOWN))
            whys.append(f"{what[0]}: {alert.why}")
            continue
        rows.append(
            (
                *what, opened, _percent(alert.usage_percent), _percent(alert.severity_percent),
                f"{age} (stale)" if item.stale else age,
            )
        )  # fmt: skip
    yield from align_columns(rows)
    yield from whys


async def read_changes(settings: Settings, since: float) -> list[AlertRecord]:
    """The changes that were published since a time (Unix), each once, oldest first."""
    async with records_since(settings.kafka, ALERTS, AlertRecord, since) as records:
        # The planner repeats what is open: that is no change of this time.
        return without_repeats(
            change
            for change in await records.to_end()
            if change.rule not in PLANNER_RULES or parse_time(change.as_of) >= since
        )


def without_repeats(changes: Iterable[AlertRecord]) -> list[AlertRecord]:
    """Each change once, by time, node, and position in the log."""
    unique = {(change.id, change.position): change for change in changes}
    return sorted(
        unique.values(), key=lambda change: (change.as_of, change.node, change.position, change.id)
    )


def change_lines(changes: Iterable[AlertRecord], *, headers: bool) -> Iterator[str]:
    """Yield the table of changes."""
    rows = [_CHANGE_HEADERS] if headers else []
    rows += [
        (
            change.as_of, _subject(change.node, change), change.rule, change.transition,
            change.severity,
            _percent(change.evidence.usage_percent), _percent(change.crossed_percent),
            format_age(change.duration_seconds), change.reason or "",
        )
        for change in changes
    ]  # fmt: skip
    yield from align_columns(rows)


def _subject(node: str, alert: OpenAlert | AlertRecord) -> str:
    """The node that an alert is about, the workload, or the pool."""
    if node or isinstance(alert, OpenAlert):
        return node
    return alert.workload or f"pool {alert.pool}"


def _percent(percent: float | None) -> str:
    return UNKNOWN if percent is None else format_percent(percent)
