"""`springtide demo`: run all roles on this machine, and show what they report."""

import logging
import textwrap
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from pipeline.cli.duration_option import Duration
from pipeline.cli.help_sections import Command
from pipeline.cli.node_table import node_lines, plain_text, terminal_table
from pipeline.cli.options import global_options, store_global_options
from pipeline.cli.safe_output import print_progress
from pipeline.errors import UsageError
from pipeline.local.demo_run import DemoOptions, run_demo
from pipeline.local.demo_screen import PlacementReport, PodReport, Summary
from pipeline.local.demo_settings import (
    COLD_START_SECONDS,
    LOWERED_CPU_PERCENT,
    STALE_AFTER_SECONDS,
    WINDOW_SECONDS,
)
from pipeline.local.demo_suppression import BEST_EFFORT_POD, DEMANDING_POD, Suppression
from pipeline.local.hot_node_demo import run_hot_node_demo
from pipeline.local.load_process import BATCH_CORES
from pipeline.logs import configure_logging
from pipeline.processors.explain.quantity_text import format_bytes, format_cpu
from pipeline.processors.explain.text_columns import align_columns
from pipeline.settings import ExtenderSettings
from pipeline.sources.simulated_fleet import MAX_NODES
from pipeline.table import Table

_SNAPSHOT_SECONDS: Final = 10.0
_MAX_LINES: Final = 12
_MAX_SCORES: Final = 5
_MAX_REFUSALS: Final = 8
_PLAIN_WIDTH: Final = 120
_REASON_INDENT: Final = 15


@click.command(
    cls=Command,
    exit_codes={
        0: "the time is over, or interrupted; with --hot-node everything was seen",
        1: "a part did not start, or ended early; the end of its log is printed. With --hot-node "
        "also: something was not seen in time",
        130: "interrupted before the broker was ready, or with --hot-node",
    },
)
@click.option(
    "--for", "seconds", type=Duration(), metavar="DURATION",
    help="End this long after the first answer, such as 90s or 5m.  [default: until Ctrl-C]",
)  # fmt: skip
@click.option(
    "--fleet", type=click.IntRange(0, MAX_NODES), default=0, metavar="N",
    help="Also simulate N nodes, on the same topics.",
)  # fmt: skip
@click.option(
    "--hot-node", is_flag=True,
    help="Show instead how a hot node is relieved, on a local Kubernetes control plane.",
)  # fmt: skip
@click.option(
    "--keep", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Copy logs and settings to this directory at the end. Without it they are removed.",
)  # fmt: skip
@global_options
def command(
    seconds: float | None, fleet: int, hot_node: bool, keep: Path | None, **given: object
) -> None:  # fmt: skip
    """Run a broker, an exporter, a worker, an extender and a node actuator on this machine.

    The demo starts a real Kafka broker and the roles on free ports of 127.0.0.1. As root it runs
    five pods, real processes in cgroups of their own, and a node actuator that holds the
    best-effort pod down while another pod needs its CPU; otherwise it measures the cgroups that it
    can read. It shows the table of `springtide top`, then asks the extender where a small pod
    may run, and prints which nodes are refused and why. At the end it removes its processes,
    cgroups, topics and directories. Settings of files and variables do not apply.

    With --hot-node it starts a Kubernetes control plane instead of an exporter, and lets two nodes
    get hot. Of one a pod is evicted, and its replacement bound elsewhere; the disruption budget of
    the other allows no eviction. The demo prints each step as it is observed, and ends after
    three to four minutes. It builds the control plane if `make plane` has not.

    \b
    Examples:
      springtide demo
      springtide demo --fleet 200 --for 60s
      springtide demo --hot-node
      springtide demo --for 30s --keep /tmp/demo-logs
    """
    store_global_options(click.get_current_context(), **given)
    for option, is_given in (("--for", seconds is not None), ("--fleet", fleet > 0)):
        if hot_node and is_given:
            raise UsageError(
                f"--hot-node and {option} exclude each other",
                hint="--hot-node has nodes of its own, and ends when everything was seen",
            )
    # The roles log to files; this process prints to the screen.
    configure_logging("error", "auto")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a broker that ends is an error
    screen = TerminalScreen() if Console().is_terminal else PlainScreen(has_table=not hot_node)
    try:
        if hot_node:
            run_hot_node_demo(keep, screen)
            return
        screen.print(
            f"windows of {WINDOW_SECONDS} s, cold start of {COLD_START_SECONDS} s (defaults: 30 s "
            "and a day), extender in mode act"
        )
        run_demo(DemoOptions(fleet, seconds, keep), screen)
    finally:
        screen.close()


class PlainScreen:
    """Prints lines of text, and every ten seconds the table, if it `has_table`, else the status on
    a terminal's standard error: a log has no use for it."""

    def __init__(self, *, has_table: bool = True) -> None:
        self._has_table = has_table
        self._last_shown = float("-inf")

    def print(self, text: str, *, indent: int | None = 0) -> None:
        click.echo(broken_lines(text, _PLAIN_WIDTH, indent))

    def show_nodes(
        self, table: Table, now: float, status: str, suppression: Suppression | None = None
    ) -> None:
        if not self._has_table:
            if now - self._last_shown >= _SNAPSHOT_SECONDS:
                self._last_shown = now
                print_progress(f"  ({status})", is_first=False)
            return
        real, simulated = (
            node_lines(part, now, stale_after_seconds=STALE_AFTER_SECONDS)
            for part in split_by_origin(table)
        )
        if not (real or simulated) or now - self._last_shown < _SNAPSHOT_SECONDS:
            return
        self._last_shown = now
        self.print(f"\n{status}")
        self.print(plain_text([*real, *simulated[:_MAX_LINES]]).rstrip(), indent=None)
        if (more := len(simulated) - _MAX_LINES) > 0:
            self.print(f"and {more} more")
        for line in suppression_lines(suppression):
            self.print(line, indent=None)

    def show_placement(self, placement: PlacementReport) -> None:
        self.print("\n".join(["", *pod_lines(placement.pods)]), indent=None)
        self.print("\n".join(placement_lines(placement)), indent=_REASON_INDENT)

    def show_summary(self, summary: Summary) -> None:
        self.print("\n" + summary_line(summary))

    def close(self) -> None:
        """Nothing is open."""


class TerminalScreen(PlainScreen):
    """Prints lines of text, and keeps the table below them up to date."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or Console(highlight=False)
        self._live: Live | None = None

    def print(self, text: str, *, indent: int | None = 0) -> None:
        text = broken_lines(text, self._console.width, indent)
        self._console.print(text, markup=False, soft_wrap=True)  # commands stay one line

    def show_nodes(
        self, table: Table, now: float, status: str, suppression: Suppression | None = None
    ) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        real, simulated = split_by_origin(table)
        parts: list[RenderableType] = []
        if len(real) or not len(simulated):
            parts += [Text(""), self._render(real, now, height=None)]
        if len(simulated):
            parts += [Text(""), self._render(simulated, now, height=self._console.height // 2)]
        parts += [Text(line) for line in suppression_lines(suppression)]
        self._live.update(Group(*parts, Text(f"{status}; Ctrl-C ends it", "dim")), refresh=True)

    def _render(self, table: Table, now: float, *, height: int | None) -> Any:
        lines = node_lines(table, now, stale_after_seconds=STALE_AFTER_SECONDS)
        return terminal_table(lines, width=self._console.width, height=height)

    def show_summary(self, summary: Summary) -> None:
        self.close()
        super().show_summary(summary)

    def close(self) -> None:
        if self._live is not None:
            with suppress(Exception):
                self._live.stop()
            self._live = None


def broken_lines(text: str, width: int, indent: int | None) -> str:
    """Break lines that are wider than `width` between words, and indent what follows by `indent`
    columns; not at all if it is None."""
    if indent is None:
        return text
    return "\n".join(
        "\n".join(
            textwrap.wrap(
                line, max(width, 2 * indent), subsequent_indent=" " * indent,
                break_long_words=False, break_on_hyphens=False,
            )
        )
        for line in text.split("\n")
    )  # fmt: skip


def split_by_origin(table: Table) -> tuple[Table, Table]:
    """Split the nodes that have a state into real and simulated ones."""
    parts = Table(), Table()
    for name in table:
        row = table.snapshot(name)
        if row.state is not None:
            parts[row.state.simulated].put_state(row.state)
            if row.node is not None:
                parts[row.state.simulated].put_node(row.node)
    return parts


def placement_lines(placement: PlacementReport) -> list[str]:
    """Describe thresholds, refusals with their reasons, and the best scores."""
    answer = placement.answer
    defaults = ExtenderSettings()

    def real_first(name: str) -> tuple[bool, str]:
        return name not in placement.real, name

    cpu, memory = placement.thresholds["CPU"], placement.thresholds["memory"]
    lines = [
        f"asked {placement.url}: where may a small pod (250m, 128Mi) run?",
        f"  thresholds: CPU {cpu:g}%, memory {memory:g}% of allocatable, in the last window",
    ]
    if cpu == LOWERED_CPU_PERCENT != defaults.cpu_threshold_percent:
        lines.append(
            f"  (CPU lowered for this demo from {defaults.cpu_threshold_percent:g}%, so that one "
            "idle machine can show a refusal)"
        )
    if placement.catching_up:
        lines.append(
            f"  {placement.catching_up} simulated nodes are still catching up with the present: "
            "they pass with score 0"
        )
    lines.append(f"  /filter: {len(answer.passed)} pass, {len(answer.refused)} refused")
    reasons = [f"{name}: {answer.refused[name]}" for name in sorted(answer.refused, key=real_first)]
    lines += [f"    refused  {reason}" for reason in reasons[:_MAX_REFUSALS]]
    if (more := len(reasons) - _MAX_REFUSALS) > 0:
        lines.append(f"    and {more} more")
    lines.append("  /prioritize (0 to 10, least used first; unknown or stale: 0)")
    best = sorted(answer.scores, key=lambda name: (-answer.scores[name], real_first(name)))
    shown = best if len(best) <= _MAX_SCORES else [*best[:_MAX_SCORES], best[-1]]
    return lines + [f"    {answer.scores[name]:2}  {name}" for name in shown]


def pod_lines(pods: Iterable[PodReport]) -> list[str]:
    """Describe usage and predicted peaks of the demo's own pods; empty without any."""
    rows = [("POD", "CLASS", "REQUEST", "CPU", "PEAK CPU", "MEMORY", "PEAK MEM", "WHAT IT DOES")]
    for report in pods:
        rows.append(
            (
                report.pod.name,
                report.pod_class,
                f"{report.pod.cpu} {report.pod.memory}".strip() or "-",
                format_cpu(report.usage.cpu_cores),
                format_cpu(report.peak.cpu_cores) + " cold" * report.cold,
                format_bytes(report.usage.memory_bytes),
                format_bytes(report.peak.memory_bytes),
                report.pod.description,
            )
        )
    if len(rows) == 1:
        return []
    title = "pods of this machine: usage of the last 15 s, and predicted peak"
    return [title, *align_columns(rows), ""]


def suppression_lines(suppression: Suppression | None) -> list[str]:
    """Describe what best-effort pods may use, and what the pods use that it is about."""
    if suppression is None:
        return []
    cpus = _count(suppression.cpus, "CPU")
    allowed = "have no limit yet"
    if suppression.allowed_cores is not None:
        allowed = f"may use {format_cpu(suppression.allowed_cores)} of {cpus}"
    return [
        f"node actuator: best-effort pods {allowed}",
        *align_columns(
            [
                (f"  {DEMANDING_POD}", f"uses {format_cpu(suppression.demanding_cores)}"),
                (
                    f"  {BEST_EFFORT_POD}",
                    f"uses {format_cpu(suppression.best_effort_cores)} of the "
                    f"{format_cpu(BATCH_CORES)} that it wants",
                ),
            ]
        ),
    ]


def summary_line(summary: Summary) -> str:
    simulated = f" ({summary.simulated} simulated)" if summary.simulated else ""
    return (
        f"{summary.seconds:.0f} s: {_count(summary.nodes, 'node')}{simulated}, "
        f"{summary.with_peaks} with peaks, {_count(summary.windows, 'window')} applied, "
        f"{_count(summary.gaps, 'gap')}, {_count(summary.dead_letters, 'dead letter')}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
