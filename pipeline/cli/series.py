"""`springtide series`: show the usage of a node or pod over a time range."""

import asyncio
import difflib
from collections.abc import AsyncIterator, Iterator
from typing import Final, NamedTuple

import click
import msgspec

from pipeline.cli.help_sections import Command
from pipeline.cli.kafka_requests import run_requests
from pipeline.cli.node_errors import missing_record_error
from pipeline.cli.options import KAFKA_CLIENT, output_option, settings_options, silence_logs
from pipeline.cli.past_time_option import PastTime
from pipeline.cli.safe_output import print_lines, print_progress, printable, suggestion
from pipeline.clock import SystemClock
from pipeline.errors import RecordError, UsageError
from pipeline.kafka.newest import appended
from pipeline.kafka.topic_admin import require_topics
from pipeline.processors.explain.quantity_text import format_bytes, format_cpu, format_percent
from pipeline.processors.explain.text_columns import align_columns
from pipeline.processors.explain.usage_series import (
    PodSelector,
    UsageSeries,
    WindowPoints,
    pod_names,
    usage_series,
    window_points,
)
from pipeline.settings import KafkaSettings, Settings
from pipeline.tasks import cancel_tasks
from pipeline.times import format_time
from pipeline.topics.registry import NODE_STATE, WINDOWS
from pipeline.topics.windows import Window, decode_window

_PROGRESS_SECONDS: Final = 2.0
# A window is appended when it has ended: earlier if the node's clock is ahead, later if a worker or
# the network was unavailable.
_MAX_EARLY_SECONDS: Final = 600.0
_MAX_LATE_SECONDS: Final = 3600.0

_STATISTICS: Final = ("avg", "p95", "max")
_COLUMN_HELP: Final = {
    "Columns": [
        ("CPU", "Average of the window."),
        ("MEMORY", "Average of the window, without page cache."),
        (
            "P95, MAX",
            "Percentile and maximum of the seconds of the window. Percentiles follow Koordinator's "
            "rank rule: of few points they may be below the average.",
        ),
        ("SEEN", "Share of the window that was observed."),
    ]
}
_HEADERS: Final = ("END", "CPU", "P95", "MAX", "MEMORY", "P95", "MAX", "SEEN")


class TimeRange(NamedTuple):
    """Unix times, both inclusive."""

    first: float
    last: float


_HELP: Final = f"""
Show the usage of NODE, or of one pod on it, window by window and summarized.

The command reads the node's partition of springtide.windows, which retains
{WINDOWS.retention_text}, from the start of the range on. Fifteen minutes of a large cluster are
some hundred megabytes.

\b
Examples:
  springtide series node-1
  springtide series node-1 --pod shop/web-0 --since 2h
  springtide series node-1 --since 2023-11-14T22:00:00Z --until 2023-11-14T22:15:00Z
  springtide series node-1 -o json | jq .statistics.cpu_cores.p95
"""


@click.command(
    cls=Command,
    help=_HELP,
    exit_codes={
        0: "shown",
        2: "invalid usage or settings, or the pod is unknown on the node",
        3: "topics are missing",
        4: "no window of the node in the range",
    },
    tables=_COLUMN_HELP,
)
@click.argument("node")
@click.option("--pod", metavar="NAMESPACE/NAME", help="Show this pod on the node.")
@click.option(
    "--pod-uid", metavar="UID", help="Show the pod with this UID, as its cgroup is named."
)
@click.option(
    "--since", type=PastTime(), metavar="TIME", default="15m", show_default=True,
    help="Show windows that ended at or after this time: 2023-11-14T22:13:30Z, or 2h ago.",
)  # fmt: skip
@click.option(
    "--until", type=PastTime(), metavar="TIME",
    help="Show windows that ended at or before this time.  [default: now]",
)  # fmt: skip
@output_option
@settings_options(*KAFKA_CLIENT, "kafka.partitions")
def command(
    settings: Settings, node: str, pod: str | None, pod_uid: str | None, since: float,
    until: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Print the series."""
    silence_logs(settings, "aiokafka")
    requested = time_range(since, until, SystemClock().now())
    series = run_requests(
        settings.kafka, _read(settings.kafka, node, _selected_pod(pod, pod_uid), requested)
    )
    if as_json:
        click.echo(msgspec.json.encode(series))
    else:
        print_lines(series_lines(series))


def time_range(since: float, until: float | None, now: float) -> TimeRange:
    """The range of the options. Raises `UsageError` if it ends before it begins."""
    requested = TimeRange(since, now if until is None else until)
    if requested.first > requested.last:
        raise UsageError("the range ends before it begins", hint="give --since before --until")
    return requested


def _selected_pod(pod: str | None, uid: str | None) -> PodSelector | None:
    if pod is not None and uid is not None:
        raise UsageError("--pod and --pod-uid exclude each other", hint="give one of them")
    if uid is not None:
        return PodSelector(uid=uid)
    if pod is None:
        return None
    namespace, _, name = pod.rpartition("/")
    return PodSelector(namespace or "default", name)


async def _read(
    kafka: KafkaSettings, node: str, pod: PodSelector | None, requested: TimeRange
) -> UsageSeries:
    await require_topics(kafka, (WINDOWS, NODE_STATE))
    windows: list[WindowPoints] = []
    names: set[str] = set()
    progress = asyncio.create_task(_print_progress(node, windows))
    try:
        async for window in _windows(kafka, node, requested):
            windows.append(window_points(window, pod))
            if pod is not None and not windows[-1].points:
                names |= pod_names(window)
    finally:
        await cancel_tasks(progress)
    if not windows:
        bounds = f"from {format_time(requested.first)} to {format_time(requested.last)}"
        raise await missing_record_error(
            kafka, node, "window", f"none ended {bounds}, or retention has removed them"
        )
    series = usage_series(node, pod, windows)
    if pod is not None and not series.items:
        raise _unknown_pod_error(node, pod, sorted(names))
    return series


async def _windows(kafka: KafkaSettings, node: str, requested: TimeRange) -> AsyncIterator[Window]:
    undecodable = 0
    begin, end = requested.first - _MAX_EARLY_SECONDS, requested.last + _MAX_LATE_SECONDS
    async for value in appended(kafka, WINDOWS, node, begin, end):
        try:
            window = decode_window(value or b"")
        except RecordError:
            undecodable += 1
            continue
        ended = window.header.window_end_ms / 1000
        if window.type == "window" and requested.first <= ended <= requested.last:
            yield window
    if undecodable:
        click.echo(f"skipped {undecodable} records of the node that cannot be decoded", err=True)


async def _print_progress(node: str, windows: list[WindowPoints]) -> None:
    is_first = True
    while True:
        await asyncio.sleep(_PROGRESS_SECONDS)
        print_progress(f"reading windows of {node}: {len(windows)} so far", is_first=is_first)
        is_first = False


def _unknown_pod_error(node: str, pod: PodSelector, names: list[str]) -> UsageError:
    similar = difflib.get_close_matches(str(pod), names, n=3)
    if names:
        default_hint = f"the node has {len(names)} pods, such as {printable(', '.join(names[:3]))}"
    else:
        default_hint = (
            "no pod of the node has a name: start `springtide watcher`, set worker.pods_file, or "
            "give --pod-uid"
        )
    return UsageError(
        f"no window of node {node!r:.100} in the range has pod {str(pod)!r:.300}",
        hint=suggestion(similar, default_hint),
    )


def series_lines(series: UsageSeries) -> Iterator[str]:
    """Yield a line per window, then the statistics over all of them."""
    rows = [list(_HEADERS)]
    for item in series.items:
        cpu = [format_cpu(item.cpu_cores[name]) for name in _STATISTICS]
        memory = [format_bytes(item.memory_bytes[name]) for name in _STATISTICS]
        coverage = None if item.coverage is None else 100 * item.coverage
        rows.append([item.end, *cpu, *memory, format_percent(coverage)])
    yield from align_columns(rows, right=range(1, len(_HEADERS)))
    yield ""
    formats = (("cpu_cores", "CPU", format_cpu), ("memory_bytes", "memory", format_bytes))
    for name, title, text in formats:
        statistics = series.statistics[name]
        parts = [
            f"{part} {text(getattr(statistics, part))}"
            for part in ("avg", "p50", "p90", "p95", "p99", "max")
        ]
        yield f"{title}: {', '.join(parts)} of {statistics.points} windows"
    uids = {item.uid for item in series.items}
    if len(uids) > 1:
        yield f"{len(uids)} pods had this name, one after the other: --pod-uid selects one"
    if series.missing_windows:
        yield f"windows missing in between: {series.missing_windows}"
