"""`springtide report`: show what a cluster wastes, before anything is installed."""

import asyncio
import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click
import msgspec

from pipeline.cli.duration_option import Duration
from pipeline.cli.help_sections import Command, SecondaryOption
from pipeline.cli.malloc import keep_freed_memory
from pipeline.cli.model_export import require_new, write_atomically
from pipeline.cli.options import output_formats, settings_options, silence_logs
from pipeline.cli.past_time_option import PastTime
from pipeline.cli.safe_output import print_lines, printable
from pipeline.cli.trace_inputs import folder_input, progress_report
from pipeline.clock import SystemClock
from pipeline.errors import UsageError
from pipeline.processors.report.cluster_report import ClusterReport, cluster_report
from pipeline.processors.report.cluster_usage import (
    HOUR_SECONDS,
    WEEK_HOURS,
    ClusterUsage,
    usage_of_trace,
)
from pipeline.processors.report.hot_hours import DEFAULT_PERCENTS
from pipeline.processors.report.prometheus_history import POOL_LABELS, cluster_usage
from pipeline.processors.report.report_page import report_page
from pipeline.processors.report.report_rows import LEVELS, ReportDocument, csv_lines, rows
from pipeline.processors.report.report_text import text_lines
from pipeline.processors.report.watched_usage import MOST_SECONDS, watched_usage
from pipeline.settings import Settings
from pipeline.sources.logged_traces import Span
from pipeline.sources.metrics_server_watch import watch_cluster
from pipeline.sources.prometheus_access import PrometheusAccess
from pipeline.sources.prometheus_history import open_history
from pipeline.times import format_time

_VERSION: Final = 1
_LONGEST_HOURS: Final = 14 * 24
_WATCH_SECONDS: Final = 60
_COLUMN_HELP: Final = {
    "Columns": [
        ("REQ", "Requests of running pods."),
        ("USED, %", "Mean usage of those with known usage, and as a share of their requests."),
        ("PEAK", "Highest usage of Prod predicted for the next day: at 2% risk; of a workload by "
         "the predictor percentile."),
        ("MID, BATCH", "What nodes would offer at this risk."),
        ("TARGET, SAVED", "Recommended request of each pod, and what all pods would save."),
        ("HOT", "Hours above the threshold, and whether the last one was."),
    ]
}  # fmt: skip


@click.command(
    cls=Command,
    exit_codes={
        0: "shown",
        1: "failure: Prometheus or metrics-server does not answer, or lacks series",
    },
    tables=_COLUMN_HELP,
)
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--prometheus", "url", metavar="URL", help="Ask this Prometheus.")
@click.option(
    "--metrics-server", is_flag=True,
    help="Watch metrics-server for a while, through the API server of the kubeconfig.",
)  # fmt: skip
@click.option(
    "--for", "seconds", type=Duration(), metavar="DURATION",
    help="How long to watch, up to 10m.  [default: 1m]",
)  # fmt: skip
@click.option(
    "--token-file",
    cls=SecondaryOption,
    type=click.Path(path_type=Path),
    help="File with a bearer token for it.",
)
@click.option(
    "--basic-auth-file", cls=SecondaryOption, type=click.Path(path_type=Path),
    help="File with user:password for it.",
)  # fmt: skip
@click.option(
    "--ca-file",
    cls=SecondaryOption,
    type=click.Path(path_type=Path),
    help="CA certificates for it, in PEM format.",
)
@click.option(
    "--match", "matchers", multiple=True, metavar="MATCHER",
    help="Only series with this label, such as 'cluster=\"prod\"'; may be repeated.",
)  # fmt: skip
@click.option(
    "--pool-label", cls=SecondaryOption, metavar="KEY",
    help="Label of nodes whose value is the pool; by default that of the cloud or Karpenter.",
)  # fmt: skip
@click.option(
    "--since", type=PastTime(), metavar="TIME",
    help="Only usage after this time, such as 3d (ago) or 2023-11-14T22:00:00Z; by default a week, "
    "of a folder all.",
)  # fmt: skip
@click.option("--until", type=PastTime(), metavar="TIME", help="Only usage up to this time.")
@click.option(
    "--hot-cpu", cls=SecondaryOption, type=click.FloatRange(0, 100),
    default=DEFAULT_PERCENTS["cpu"],
    show_default=True, help="A node is hot above this percentage of cpu in an hour.",
)  # fmt: skip
@click.option(
    "--hot-memory", cls=SecondaryOption, type=click.FloatRange(0, 100),
    default=DEFAULT_PERCENTS["memory"],
    show_default=True, help="The same for memory.",
)  # fmt: skip
@click.option(
    "--by", "level", type=click.Choice(LEVELS), help="Show only these groups, and all of them."
)
@output_formats("csv")
@click.option(
    "--html", "html_file", type=click.Path(path_type=Path),
    help="Write a page with figures here: one file, to open in a browser.",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@settings_options("kubernetes.kubeconfig", "kubernetes.context")
def command(
    settings: Settings,
    folder: Path | None,
    url: str | None,
    metrics_server: bool,
    seconds: float | None,
    token_file: Path | None,
    basic_auth_file: Path | None,
    ca_file: Path | None,
    matchers: Sequence[str],
    pool_label: str | None,
    since: float | None,
    until: float | None,
    hot_cpu: float,
    hot_memory: float,
    level: str | None,
    output: str,
    html_file: Path | None,
    overwrite: bool,
) -> None:
    """Show what a cluster wastes: requests against usage and predicted peaks by node pool, node and
    workload, what Mid and Batch would offer, hot nodes, and right-sized requests.

    The history is that of a Prometheus with the series of kube-state-metrics and cAdvisor, or a
    FOLDER with range exports, other traces or an archive, as for `springtide backtest`. Without
    one, metrics-server shows the present. Nothing else is needed, and nothing is changed.
    docs/how-to/report.md describes the result. Unknown values are `-`.

    \b
    Examples:
      springtide report --prometheus http://localhost:9090
      springtide report --prometheus https://prometheus.example --token-file token -o json
      springtide report --prometheus http://localhost:9090 --by workload -o csv > workloads.csv
      springtide report traces --html report.html
      springtide report --metrics-server --for 5m
    """  # fmt: skip
    if (folder is not None) + (url is not None) + metrics_server != 1:
        raise UsageError(
            "give one of --prometheus URL, --metrics-server and FOLDER",
            hint="FOLDER has traces, such as range exports of Prometheus, or is an archive",
        )
    _check_watch(metrics_server, seconds, since, until)
    if html_file is not None:
        require_new(html_file, overwrite=overwrite)
    keep_freed_memory()
    labels = POOL_LABELS if pool_label is None else (pool_label,)
    with _cycles_kept():
        if metrics_server:
            usage = _watched_usage(settings, int(seconds or _WATCH_SECONDS), labels)
        elif url is not None:
            access = PrometheusAccess(_checked_url(url), token_file, basic_auth_file, ca_file)
            usage = _prometheus_usage(access, matchers, labels, since, until)
        else:
            assert folder is not None
            usage = _folder_usage(folder, Span(since, until))
        high_percent = {"cpu": hot_cpu, "memory": hot_memory}
        report = cluster_report(usage, high_percent=high_percent)
        _print(report, level, output)
        if html_file is not None:
            write_atomically(html_file, report_page(report).encode())


@contextmanager
def _cycles_kept() -> Iterator[None]:
    """Do not look for garbage in cycles: among millions of labels that took a seventh of the
    time, and there is hardly any."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _check_watch(
    metrics_server: bool, seconds: float | None, since: float | None, until: float | None
) -> None:
    if not metrics_server and seconds is not None:
        raise UsageError("--for is only for --metrics-server", hint="--since and --until select")
    if metrics_server and not since is until is None:
        raise UsageError(
            "metrics-server has no history to select from by --since and --until",
            hint="--for says how long to watch it",
        )
    if seconds is not None and seconds > MOST_SECONDS:
        raise UsageError(
            "--for is longer than 10m",
            hint="for more usage ask a Prometheus by --prometheus, or install Springtide",
        )


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_valid = bool(parts.scheme in ("http", "https") and parts.hostname and parts.port != 0)
    except ValueError:
        is_valid = False
    if not is_valid or any(character in url for character in "?@#"):
        raise UsageError(
            f"{url!r:.200} is not the URL of a Prometheus",
            hint="http:// or https://, a host, and an optional path, without credentials",
        )
    return url


def _prometheus_usage(
    access: PrometheusAccess,
    matchers: Sequence[str],
    pool_labels: Sequence[str],
    since: float | None,
    until: float | None,
) -> ClusterUsage:
    clock = SystemClock()
    # The hour that runs is not over.
    end = math.floor((clock.now() if until is None else until) / HOUR_SECONDS) * HOUR_SECONDS
    hours = WEEK_HOURS if since is None else math.floor((end - since) / HOUR_SECONDS)
    if not 1 <= hours <= _LONGEST_HOURS:
        raise UsageError(
            f"there are {hours} whole hours between --since and --until",
            hint="give an hour to 14 days",
        )

    def tell(text: str) -> None:
        click.echo(printable(f"note: {text}"), err=True)

    async def read() -> ClusterUsage:
        async with open_history(access, clock, tell) as session:
            history = await session.read(
                end, hours, matchers, progress_report(f"reading {access.url}")
            )
        return cluster_usage(history, pool_labels)

    return asyncio.run(read())


def _watched_usage(settings: Settings, seconds: int, pool_labels: Sequence[str]) -> ClusterUsage:
    silence_logs(settings)  # notes and errors have the failures
    watching = progress_report("watching metrics-server")
    clock = SystemClock()
    watched = asyncio.run(watch_cluster(settings.kubernetes, clock, seconds, watching))
    return watched_usage(watched, pool_labels)


def _folder_usage(folder: Path, span: Span) -> ClusterUsage:
    inputs = folder_input(folder, span=span)
    if len(inputs.names) > 1:
        raise UsageError(
            f"{folder} has several data sets: {', '.join(inputs.names[:10])}",
            hint="give a folder with one",
        )
    (trace, *others) = inputs.read(inputs.names[0])
    if others:
        raise UsageError(f"{folder} has several scenarios", hint="give a folder with one")
    return usage_of_trace(trace)


def _print(report: ClusterReport, level: str | None, output: str) -> None:
    if output == "json":
        document = ReportDocument(
            version=_VERSION,
            end=format_time(report.end_seconds),
            hours=report.hours,
            watched_seconds=report.watched_seconds,
            notes=report.notes,
            items=[*rows(report, level)],
        )
        click.echo(msgspec.json.encode(document))
        return
    print_lines(csv_lines(report, level) if output == "csv" else text_lines(report, level))
    if output == "csv":
        for note in report.notes:
            click.echo(printable(f"note: {note}"), err=True)
