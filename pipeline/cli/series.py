"""`springtide series`: what a node or a pod used over a range, out of the log of windows."""

import asyncio
import difflib
from collections.abc import AsyncIterator, Iterator
from typing import Final, NamedTuple

import click
import msgspec

from pipeline.cli.explain import no_node
from pipeline.cli.options import KAFKA_CLIENT, quiet_client, settings_options
from pipeline.cli.safe_output import printable, say
from pipeline.clock import SystemClock
from pipeline.errors import RecordError, UsageError
from pipeline.kafka.newest import appended
from pipeline.kafka.topic_admin import require_topics
from pipeline.processors.explain.usage_series import (
    PodSought,
    SeenWindow,
    UsageSeries,
    pod_names,
    seen,
    usage_series,
)
from pipeline.processors.kubernetes.durations import seconds_of
from pipeline.settings import KafkaSettings, Settings
from pipeline.tasks import cancel_tasks
from pipeline.times import format_time, parse_time
from pipeline.topics.registry import NODE_STATE, WINDOWS
from pipeline.topics.windows import Window, decode_window

_PROGRESS_SECONDS: Final = 2.0
# A window is appended when it has ended: before that by a node's clock that is ahead, long after by
# a worker or a network that was away.
_AHEAD_SECONDS: Final = 600.0
_BEHIND_SECONDS: Final = 3600.0

_SHOWN: Final = ("avg", "p95", "max")
_HEADERS: Final = ("END", "CPU", "P95", "MAX", "MEMORY", "P95", "MAX", "SEEN")


class _Range(NamedTuple):
    """Unix time, both ends belong to it."""

    first: float
    last: float


@click.command(
    epilog="Exit codes: 0 shown, 1 failure, 2 usage, or the pod is not known there, 3 topics are "
    "missing, 4 no window of this node in the range. CPU is in cores, MEMORY in MiB, without page "
    "cache: the average of each window, then P95 and MAX of the seconds in it. SEEN is the share "
    "of the window that was observed. The last lines are of the windows' averages."
)
@click.argument("node")
@click.option("--pod", metavar="NAMESPACE/NAME", help="This pod on the node, not the node.")
@click.option("--pod-uid", metavar="UID", help="The pod with this UID, as its cgroup is named.")
@click.option("--last", metavar="DURATION", help="So long, up to now.  [default: 15m]")
@click.option(
    "--from", "since", metavar="TIME", help="Windows that ended then, as 2023-11-14T22:13:30Z."
)
@click.option("--to", "until", metavar="TIME", help="Up to those that ended then.  [default: now]")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@settings_options(*KAFKA_CLIENT, "kafka.partitions")
def command(
    settings: Settings, node: str, pod: str | None, pod_uid: str | None, last: str | None,
    since: str | None, until: str | None, output: str,
) -> None:  # fmt: skip
    """Show what NODE used, or one pod on it, window by window, and in all.

    Out of the topic of windows, which keeps what was measured for three days, whatever has become
    of pod, node or worker since. Read is the node's partition from the range on: a quarter of an
    hour of a large cluster is some hundred megabytes.

    \b
    Examples:
      springtide series node-1
      springtide series node-1 --pod shop/web-0 --last 2h
      springtide series node-1 --from 2023-11-14T22:00:00Z --to 2023-11-14T22:15:00Z
      springtide series node-1 -o json | jq .statistics.cpu_cores.p95
    """
    quiet_client(settings)
    wanted = _range(last, since, until, SystemClock().now())
    found = asyncio.run(_read(settings.kafka, node, _sought(pod, pod_uid), wanted))
    if output == "json":
        click.echo(msgspec.json.encode(found))
    else:
        say(lines(found))


def _range(last: str | None, since: str | None, until: str | None, now: float) -> _Range:
    if last is not None or since is None:
        if since is not None or until is not None:
            raise UsageError(
                "--last goes with neither --from nor --to, and --to not without --from",
                hint="give --from and --to, or --last alone",
            )
        seconds = seconds_of(last or "15m")
        if seconds is None:
            raise UsageError(
                f"--last {last!r:.80} is no duration", hint="give one such as 90s or 2h"
            )
        return _Range(now - float(seconds), now)
    try:
        found = _Range(parse_time(since), now if until is None else parse_time(until))
    except ValueError as error:
        raise UsageError(str(error), hint="give times such as 2023-11-14T22:13:30Z") from error
    if until is None and found.first > now:
        raise UsageError(f"--from {since} is in the future", hint="give a time that has passed")
    if found.first > found.last:
        raise UsageError("the range ends before it begins", hint="give --from before --to")
    return found


def _sought(pod: str | None, uid: str | None) -> PodSought | None:
    if pod is not None and uid is not None:
        raise UsageError("--pod and --pod-uid say the same", hint="give one of them")
    if uid is not None:
        return PodSought(uid=uid)
    if pod is None:
        return None
    namespace, _, name = pod.rpartition("/")
    return PodSought(namespace or "default", name)


async def _read(
    kafka: KafkaSettings, node: str, pod: PodSought | None, wanted: _Range
) -> UsageSeries:
    await require_topics(kafka, (WINDOWS, NODE_STATE))
    windows: list[SeenWindow] = []
    names: set[str] = set()
    saying = asyncio.create_task(_say_so(node, windows))
    try:
        async for window in _windows(kafka, node, wanted):
            windows.append(seen(window, pod))
            if pod is not None and not windows[-1].points:
                names |= pod_names(window)
    finally:
        await cancel_tasks(saying)
    if not windows:
        range_ = f"from {format_time(wanted.first)} to {format_time(wanted.last)}"
        raise await no_node(
            kafka, node, "window", f"no window ended {range_}, or none is kept that long"
        )
    found = usage_series(node, pod, windows)
    if pod is not None and not found.items:
        raise _no_pod(node, pod, sorted(names))
    return found


async def _windows(kafka: KafkaSettings, node: str, wanted: _Range) -> AsyncIterator[Window]:
    unreadable = 0
    begin, end = wanted.first - _AHEAD_SECONDS, wanted.last + _BEHIND_SECONDS
    async for value in appended(kafka, WINDOWS, node, begin, end):
        try:
            window = decode_window(value or b"")
        except RecordError:
            unreadable += 1
            continue
        ended = window.header.window_end_ms / 1000
        if window.type == "window" and wanted.first <= ended <= wanted.last:
            yield window
    if unreadable:
        click.echo(f"{unreadable} records of the node could not be read", err=True)


async def _say_so(node: str, windows: list[SeenWindow]) -> None:
    while True:
        await asyncio.sleep(_PROGRESS_SECONDS)
        click.echo(f"reading windows of {printable(node)}: {len(windows)} so far", err=True)


def _no_pod(node: str, pod: PodSought, names: list[str]) -> UsageError:
    near = difflib.get_close_matches(str(pod), names, n=3)
    return UsageError(
        f"no window of node {node!r:.100} in the range has pod {str(pod)!r:.300}",
        hint=f"did you mean {printable(', '.join(near))}?"
        if near
        else f"pods there: {len(names)}, such as {printable(', '.join(names[:3]))}"
        if names
        else "no pod there has a name: these are `springtide watcher`'s, or stand in the file "
        "`worker.pods_file`; --pod-uid needs none",
    )


def lines(found: UsageSeries) -> Iterator[str]:
    """A line per window, columns two spaces apart; then what all of them come to."""
    grid = [list(_HEADERS)]
    for item in found.items:
        cpu = [_amount(item.cpu_cores[name], 1.0, 3) for name in _SHOWN]
        memory = [_amount(item.memory_bytes[name], 2.0**20, 1) for name in _SHOWN]
        grid.append([item.end, *cpu, *memory, _amount(item.coverage, 0.01, 0) + "%"])
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    for row in grid:
        cells = (text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join([row[0].ljust(widths[0]), *cells])
    yield ""
    units = (("cpu_cores", "CPU, cores", 1.0, 3), ("memory_bytes", "memory, MiB", 2.0**20, 1))
    for name, title, unit, digits in units:
        of = found.statistics[name]
        parts = [
            f"{part} {_amount(getattr(of, part), unit, digits)}"
            for part in ("avg", "p50", "p90", "p95", "p99", "max")
        ]
        yield f"{title}: {', '.join(parts)} of {of.points} windows"
    uids = {item.uid for item in found.items}
    if len(uids) > 1:
        yield f"{len(uids)} pods of this name, one after the other: --pod-uid tells them apart"
    if found.missing_windows:
        yield f"windows missing in between: {found.missing_windows}"


def _amount(value: float | None, unit: float, digits: int) -> str:
    return "-" if value is None else f"{value / unit:.{digits}f}"
