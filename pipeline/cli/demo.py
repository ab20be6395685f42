"""`springtide demo`: the demo on the screen, live on a terminal and as plain text elsewhere."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pipeline.cli.node_lines import lines, plain, render
from pipeline.cli.options import global_options, remember_globals
from pipeline.local.demo_run import Plan, run_demo
from pipeline.local.demo_screen import Asked, PodLine, Summary
from pipeline.local.demo_stage import (
    COLD_START_SECONDS,
    LOWERED_CPU_PERCENT,
    STALE_AFTER_SECONDS,
    WINDOW_SECONDS,
)
from pipeline.logs import configure_logging
from pipeline.settings import ExtenderSettings
from pipeline.sources.simulated_fleet import MAX_NODES
from pipeline.table import Table

_SNAPSHOT_SECONDS: Final = 10.0
_LINES_SHOWN: Final = 12
_SCORES_SHOWN: Final = 5
_REFUSALS_SHOWN: Final = 8


class _Duration(click.ParamType):
    """`90`, `90s`, `5m` or `1h`, in seconds."""

    name = "duration"
    _units: Final = {"": 1, "s": 1, "m": 60, "h": 3600}

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
        if not match or float(match[1]) == 0:
            self.fail(f"{value!r} is no duration: 90s, 5m, 1h", param, ctx)
        return float(match[1]) * self._units[match[2]]


@click.command(
    epilog="Exit codes: 0 the time was over or it was interrupted, 1 a part did not come up or "
    "ended (its log is shown), 130 interrupted before the broker was there."
)
@click.option(
    "--for",
    "seconds",
    type=_Duration(),
    metavar="DURATION",
    help="End this long after the first answer: 90s, 5m. [default: Ctrl-C]",
)
@click.option(
    "--fleet",
    type=click.IntRange(0, MAX_NODES),
    default=0,
    metavar="N",
    help="Simulate N nodes beside this machine, over the same topics.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Copy logs and settings there at the end; else they go.",
)
@global_options
def command(
    seconds: float | None, fleet: int, keep: Path | None, **given: object
) -> None:  # fmt: skip
    """See it all run on this machine: broker, exporter, worker, extender.

    A real Kafka broker, a real exporter reading real cgroups with processes in them (as root; else
    what may be read), a worker and an extender, all on 127.0.0.1 and on free ports. Shows what
    `springtide top` shows, then asks the extender where a small pod may go and says who was refused
    and why. At the end everything is gone: processes, cgroups, topics, folders.

    \b
    Examples:
      springtide demo
      springtide demo --fleet 200 --for 60s
      springtide demo --for 30s --keep /tmp/demo-logs
    """
    remember_globals(click.get_current_context(), **given)
    # The roles log into files; what this process has to say is on the screen.
    configure_logging("error", "auto")
    screen = _Terminal() if Console().is_terminal else _Plain()
    screen.say(
        f"windows of {WINDOW_SECONDS} s, a cold start of {COLD_START_SECONDS} s (30 s and a day "
        "outside the demo), extender in mode act"
    )
    try:
        run_demo(Plan(fleet, seconds, keep), screen)
    finally:
        screen.close()


class _Plain:
    """Text that can be read later: a snapshot every ten seconds, nothing moves."""

    def __init__(self) -> None:
        self._shown = float("-inf")

    def say(self, text: str) -> None:
        click.echo(text)

    def show(self, table: Table, now: float, status: str) -> None:
        both = [lines(t, now, stale_after_seconds=STALE_AFTER_SECONDS) for t in split(table)]
        if not any(both) or now - self._shown < _SNAPSHOT_SECONDS:
            return
        self._shown = now
        self.say(f"\n{status}")
        real, simulated = both
        self.say(plain([*real, *simulated[:_LINES_SHOWN]]).rstrip())
        if (more := len(simulated) - _LINES_SHOWN) > 0:
            self.say(f"and {more} more")

    def asked(self, asked: Asked) -> None:
        self.say("\n" + "\n".join(answer_lines(asked)))

    def ended(self, summary: Summary) -> None:
        self.say("\n" + summary_line(summary))

    def close(self) -> None:
        """Nothing is open."""


class _Terminal(_Plain):
    """The table stands below what has been said, and moves."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console(highlight=False)
        self._live: Live | None = None

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def show(self, table: Table, now: float, status: str) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        real, simulated = split(table)
        parts = [Text(""), self._render(real, now, height=None)]
        if len(simulated):
            parts += [Text(""), self._render(simulated, now, height=self._console.height // 2)]
        self._live.update(Group(*parts, Text(f"{status}; Ctrl-C ends it", "dim")), refresh=True)

    def _render(self, table: Table, now: float, *, height: int | None) -> Any:
        return render(
            table,
            now,
            stale_after_seconds=STALE_AFTER_SECONDS,
            width=self._console.width,
            height=height,
        )

    def ended(self, summary: Summary) -> None:
        self.close()
        super().ended(summary)

    def close(self) -> None:
        if self._live is not None:
            with suppress(Exception):
                self._live.stop()
            self._live = None


def split(table: Table) -> tuple[Table, Table]:
    """The nodes of which something is known: the real ones, and the simulated."""
    both = Table(), Table()
    for name in table:
        row = table.snapshot(name)
        if row.state is not None:
            both[row.state.simulated].put_state(row.state)
            if row.node is not None:
                both[row.state.simulated].put_node(row.node)
    return both


def answer_lines(asked: Asked) -> list[str]:
    """Who was refused and why, who would be best, and by which thresholds."""
    answer = asked.answer
    usual = ExtenderSettings()

    def real_first(name: str) -> tuple[bool, str]:
        return name not in asked.real, name

    cpu, memory = asked.thresholds["CPU"], asked.thresholds["memory"]
    told = [
        *pod_lines(asked.pods),
        f"asked {asked.url}: where may a small pod (250m, 128Mi) go?",
        f"  thresholds: CPU {cpu:g} %, memory {memory:g} % of allocatable, by the last window",
    ]
    if cpu == LOWERED_CPU_PERCENT != usual.cpu_threshold_percent:
        told.append(
            f"  (CPU lowered for this demo from {usual.cpu_threshold_percent:g} %, so that one "
            "quiet machine can show a refusal)"
        )
    if asked.late:
        told.append(
            f"  {asked.late} simulated nodes are still on their way to the present: they pass "
            "unjudged, with score 0"
        )
    told.append(f"  /filter: {len(answer.passed)} pass, {len(answer.refused)} refused")
    reasons = [answer.refused[name] for name in sorted(answer.refused, key=real_first)]
    told += [f"    refused  {reason}" for reason in reasons[:_REFUSALS_SHOWN]]
    if (more := len(reasons) - _REFUSALS_SHOWN) > 0:
        told.append(f"    and {more} more")
    told.append("  /prioritize (0 to 10, the least used first; unknown or stale: 0)")
    best = sorted(answer.scores, key=lambda name: (-answer.scores[name], real_first(name)))
    told += [f"    {answer.scores[name]:2}  {name}" for name in _ends(best)]
    return told


def _ends(items: Sequence[str]) -> Sequence[str]:
    """The best and, of many, the worst one."""
    return items if len(items) <= _SCORES_SHOWN else [*items[:_SCORES_SHOWN], items[-1]]


def pod_lines(pods: Iterable[PodLine]) -> list[str]:
    """The demo's own pods: what they were seen to use, and what is predicted."""
    rows = [("POD", "CLASS", "REQUEST", "CPU", "PEAK CPU", "MEMORY", "PEAK MEM", "WHAT IT DOES")]
    for line in pods:
        rows.append(
            (
                line.pod.name,
                line.pod_class,
                f"{line.pod.cpu} {line.pod.memory}".strip() or "-",
                _number(line.usage.cpu_cores, 1.0),
                _number(line.peak.cpu_cores, 1.0) + " cold" * line.cold,
                _number(line.usage.memory_bytes, 2.0**20, "Mi"),
                _number(line.peak.memory_bytes, 2.0**20, "Mi"),
                line.pod.about,
            )
        )
    if len(rows) == 1:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return ["pods of this machine: usage of the last 15 s, and the predicted peak", *padded, ""]


def _number(value: float | None, unit: float, suffix: str = "") -> str:
    if value is None:
        return "-"
    return f"{value / unit:.2f}" if not suffix else f"{value / unit:.0f}{suffix}"


def summary_line(summary: Summary) -> str:
    """What happened, in one line."""
    simulated = f" ({summary.simulated} simulated)" if summary.simulated else ""
    return (
        f"{summary.seconds:.0f} s: {_count(summary.nodes, 'node')}{simulated}, "
        f"{summary.with_peaks} with peaks, {_count(summary.windows, 'window')} applied, "
        f"{_count(summary.gaps, 'gap')}, {_count(summary.dead_letters, 'dead letter')}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
