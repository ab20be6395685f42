"""`springtide gaps`: show what pods leave unused, and how much pooling them saves."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from pipeline.cli.help_sections import Command
from pipeline.cli.model_export import write_atomically
from pipeline.cli.options import output_option, settings_options
from pipeline.cli.safe_output import print_lines
from pipeline.cli.trace_inputs import INPUT_SETTINGS, TraceInput, trace_input_options
from pipeline.errors import UsageError
from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.gaps import Gaps, Grouping, Share, measure_gaps
from pipeline.processors.backtest.gaps_page import MeasuredGaps, gaps_page, not_counted
from pipeline.processors.backtest.report import percent
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.explain.text_columns import align_columns
from pipeline.settings import Settings

_UNITS: Final = {"cpu": "millicores", "memory": "bytes"}
_HEADERS: Final = (
    "TRACE", "RESOURCE", "GROUP", "PODS", "REQUESTS", "PEAK", "LIMITS", "PEAK", "POOLED", "P99",
    "NODES",
)  # fmt: skip
_MISSING: Final = {
    "workload": "add the column workload to tables of placement; windows have workloads while "
    "`springtide watcher` runs",
    "pool": "windows have the pools of the policy for hot nodes: docs/explanation/hot-nodes.md",
}
_COLUMN_HELP: Final = {
    "Columns": [
        ("PODS", "Stays of pods on nodes, with known usage."),
        ("REQUESTS, PEAK", "Usage as a share of requests: over the whole time, and at most."),
        ("LIMITS, PEAK", "The same for limits."),
        ("POOLED", "Peak of the sum of all pods, as a share of the sum of their peaks."),
        ("P99", "The same with the 99th percentile over time in place of the peak."),
        ("NODES", "Peak of the fleet or pool, as a share of the sum of the peaks of its nodes."),
    ]
}


class ShareItem(msgspec.Struct, frozen=True, kw_only=True):
    """Usage as a share of an amount: over the whole time, and the highest of a step."""

    mean: float | None
    peak: float | None


class OverTime(msgspec.Struct, frozen=True, kw_only=True):
    """A value at each quantile over time."""

    p95: float | None
    p99: float | None
    peak: float | None


class GapsItem(msgspec.Struct, frozen=True, kw_only=True):
    """The gaps of a group of pods as `-o json` shows them: amounts in `unit`, shares of 0 to 1 or
    more, null unknown."""

    dataset: str
    scenario: str
    step_seconds: int
    resource: str
    unit: str
    level: str
    name: str | None
    pods: int
    unknown_pods: int
    pods_without_request: int
    pods_without_limit: int
    steps: int
    unknown_steps: int
    usage_mean: float | None
    requests_mean: float | None
    limits_mean: float | None
    usage_of_requests: ShareItem
    usage_of_limits: ShareItem
    usage: OverTime
    pods_alone: OverTime
    nodes_alone: OverTime
    pod_pooling: OverTime
    node_pooling: OverTime


class GapsList(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `-o json`."""

    items: Sequence[GapsItem]


@click.command(
    cls=Command,
    exit_codes={
        0: "shown",
        1: "failure: an input is damaged or too large, or Kafka is unavailable",
        3: "with --live: the topic is missing",
    },
    tables=_COLUMN_HELP,
)
@click.option(
    "--by", "grouping", type=click.Choice(["node", "workload", "pool"]), default="node",
    show_default=True, help="Groups to show below the fleet.",
)  # fmt: skip
@output_option
@click.option("--no-headers", is_flag=True, help="Omit the line of headers.")
@click.option(
    "--html", "html_file", type=click.Path(path_type=Path),
    help="Write a page with figures here: one file, to open in a browser.",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@settings_options(*INPUT_SETTINGS)
@trace_input_options
def command(
    settings: Settings,
    inputs: TraceInput,
    grouping: Grouping,
    as_json: bool,
    no_headers: bool,
    html_file: Path | None,
    overwrite: bool,
) -> None:
    """Show what pods left unused: usage against requests and limits, and the peak of a sum against
    the sum of the peaks.

    Low shares are what overcommitment may give to others. FOLDER has traces or is an archive, as
    for `springtide backtest`; --live reads the log of a running cluster.
    docs/how-to/measure-gaps.md describes the result. Unknown values are `-`.

    \b
    Examples:
      springtide gaps traces
      springtide gaps traces --by workload --html gaps.html
      springtide gaps --live --since 24h
      springtide gaps traces -o json | jq '.items[] | select(.level == "fleet") | .pod_pooling'
    """  # fmt: skip
    inputs.require_new([html_file], overwrite=overwrite)
    measured: list[tuple[Trace, Gaps]] = []
    for name in inputs.names:
        for trace in inputs.read(name):
            measured += [(trace, gaps) for gaps in measure_gaps(trace, grouping)]
    if not measured:
        raise UsageError(
            f"no pod of {inputs.title} has known usage",
            hint="usage is known of a resource that has a limit: docs/reference/backtest.md",
        )
    if grouping != "node" and all(gaps.level == "fleet" for _, gaps in measured):
        raise UsageError(f"no pod of {inputs.title} has a {grouping}", hint=_MISSING[grouping])
    if as_json:
        click.echo(msgspec.json.encode(GapsList(items=[_item(*each) for each in measured])))
    else:
        print_lines(text_lines(measured, headers=not no_headers))
    if html_file is not None:
        write_atomically(html_file, gaps_page(_fleets(measured)).encode())


def _fleets(measured: Sequence[tuple[Trace, Gaps]]) -> list[MeasuredGaps]:
    """Each fleet with the groups that follow it."""
    starts = [n for n, (_, gaps) in enumerate(measured) if gaps.level == "fleet"]
    return [
        MeasuredGaps(
            f"{trace.dataset}/{trace.scenario}",
            measured[start][1],
            [gaps for _, gaps in measured[start + 1 : end]],
        )
        for start, end in zip(starts, [*starts[1:], len(measured)], strict=True)
        for trace in (measured[start][0],)
    ]


def _item(trace: Trace, gaps: Gaps) -> GapsItem:
    return GapsItem(
        dataset=trace.dataset,
        scenario=trace.scenario,
        step_seconds=trace.step_seconds,
        resource=gaps.resource,
        unit=_UNITS[gaps.resource],
        level=gaps.level,
        name=gaps.name or None,
        pods=gaps.pods,
        unknown_pods=gaps.unknown_pods,
        pods_without_request=gaps.pods_without_request,
        pods_without_limit=gaps.pods_without_limit,
        steps=gaps.steps,
        unknown_steps=gaps.unknown_steps,
        usage_mean=_known(gaps.usage_mean),
        requests_mean=_known(gaps.requests_mean),
        limits_mean=_known(gaps.limits_mean),
        usage_of_requests=_share(gaps.of_requests),
        usage_of_limits=_share(gaps.of_limits),
        usage=_over_time(gaps.usage),
        pods_alone=_over_time(gaps.pods_alone),
        nodes_alone=_over_time(gaps.nodes_alone),
        pod_pooling=_over_time(gaps.pod_pooling),
        node_pooling=_over_time(gaps.node_pooling),
    )


def _share(share: Share) -> ShareItem:
    return ShareItem(mean=_known(share.mean), peak=_known(share.peak))


def _over_time(values: FloatArray) -> OverTime:
    """Values at `QUANTILES`, (q,)."""
    p95, p99, peak = map(_known, values.tolist())
    return OverTime(p95=p95, p99=p99, peak=peak)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def text_lines(measured: Sequence[tuple[Trace, Gaps]], *, headers: bool) -> Iterator[str]:
    """The result as a table, the fleet of each trace and resource above its groups."""
    rows: list[tuple[str, ...]] = [_HEADERS] if headers else []
    for trace, gaps in measured:
        _, p99, peak = gaps.pod_pooling.tolist()
        shares = (
            gaps.of_requests.mean, gaps.of_requests.peak, gaps.of_limits.mean, gaps.of_limits.peak,
            peak, p99, gaps.node_pooling[-1],
        )  # fmt: skip
        rows.append(
            (
                f"{trace.dataset}/{trace.scenario}", gaps.resource, gaps.name or gaps.level,
                str(gaps.pods), *map(percent, shares),
            )
        )  # fmt: skip
    yield from align_columns(rows, right=range(3, len(_HEADERS)))
    notes = [
        f"{trace.dataset}/{trace.scenario} {gaps.resource}: {note}"
        for trace, gaps in measured
        if gaps.level == "fleet"
        for note in not_counted(gaps)
    ]
    yield from ["", *notes] if notes else []
