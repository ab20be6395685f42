"""`springtide accuracy`: show how predicted peaks compared with what happened."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import click
import msgspec

from pipeline.cli.help_sections import Command
from pipeline.cli.kafka_requests import run_requests
from pipeline.cli.options import KAFKA_CLIENT, output_option, settings_options, silence_logs
from pipeline.cli.past_records import records_since
from pipeline.cli.past_time_option import PastTime
from pipeline.cli.safe_output import print_lines
from pipeline.clock import SystemClock
from pipeline.errors import NotReadyError
from pipeline.processors.accuracy.accuracy_totals import AccuracyTotals, PeakGroup
from pipeline.processors.backtest.protocol import FleetScores
from pipeline.processors.explain.quantity_text import UNKNOWN, format_age
from pipeline.processors.explain.text_columns import align_columns
from pipeline.settings import Settings
from pipeline.times import format_time, parse_time
from pipeline.topics.accuracy import AccuracyRecord
from pipeline.topics.registry import ACCURACY

_HEADERS: Final = (
    "POOL", "PREDICTOR", "RESOURCE", "NODES", "JUDGED", "VIOLATION", "P90-NODE", "SEVERITY",
    "SAVINGS", "POSSIBLE", "UNJUDGED", "AGE",
)  # fmt: skip
_COLUMN_HELP: Final = {
    "Columns": [
        ("JUDGED", "Peaks whose horizon is over, with usage known for 90% of it."),
        ("VIOLATION", "Share of the time in which usage exceeded the peak, mean over nodes."),
        ("P90-NODE", "The share that nine of ten nodes stay below."),
        ("SEVERITY", "By how much of the usage a peak was too low, when it was."),
        ("SAVINGS", "Share of the requests of Prod that the predictor gave away."),
        ("POSSIBLE", "The share that could have been given away without a violation."),
        ("UNJUDGED", "Peaks that could not be judged, because usage or the peak was unknown."),
        ("AGE", "Time since the end of the newest judged peak; a current one is at most an hour."),
    ]
}


class AccuracyItem(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of a group of peaks as `-o json` shows them: shares of 0 to 1, null unknown.
    `judged_until` is when the newest judged peak ended, RFC 3339."""

    pool: str
    predictor: str
    resource: str
    nodes: int
    judged: int
    violation: float | None
    violation_p90: float | None
    severity: float | None
    savings: float | None
    possible_savings: float | None
    unjudged: int
    judged_until: str | None


class AccuracyList(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `-o json`."""

    items: Sequence[AccuracyItem]


@click.command(
    cls=Command,
    exit_codes={0: "shown", 3: "the topic is missing", 4: "no peak was judged in this time"},
    tables=_COLUMN_HELP,
)
@click.option(
    "--since", type=PastTime(kept_days=30), metavar="TIME", default="7d", show_default=True,
    help="Show the peaks that were judged since 2023-11-14T22:13:30Z, or since 12h ago; at most 30 "
    "days.",
)  # fmt: skip
@output_option
@click.option("--no-headers", is_flag=True, help="Omit the line of headers.")
@settings_options(*KAFKA_CLIENT, "kafka.partitions")
def command(settings: Settings, since: float, as_json: bool, no_headers: bool) -> None:
    """Show how predicted peaks of Prod compared with what happened.

    Workers remember a peak in an hour, and judge it when its horizon is over. All predictors that
    run are compared, not only the deciding one. Nothing is changed.

    \b
    Examples:
      springtide accuracy
      springtide accuracy --since 24h
      springtide accuracy -o json | jq '.items[] | select(.violation > 0.05)'
    """
    silence_logs(settings)
    now = SystemClock().now()
    totals = run_requests(settings.kafka, read_totals(settings, since))
    items = [_item(totals, group, scores) for group, scores in totals.scores()]
    if not items:
        raise NotReadyError(
            "no peak was judged in this time",
            hint="a peak is judged when its horizon (model.horizon_seconds, by default 24h) is "
            "over; `springtide doctor` says whether workers run",
        )
    if as_json:
        click.echo(msgspec.json.encode(AccuracyList(items=items)))
    else:
        print_lines(_lines(items, now, headers=not no_headers))


async def read_totals(settings: Settings, since: float) -> AccuracyTotals:
    """Add up the peaks that were judged since a time (Unix)."""
    totals = AccuracyTotals()
    async with records_since(settings.kafka, ACCURACY, AccuracyRecord, since) as records:
        async for record in records.each_to_end():
            totals.add(record)
    return totals


def _item(totals: AccuracyTotals, group: PeakGroup, scores: FleetScores) -> AccuracyItem:
    judged_until = totals.judged_until(group)
    return AccuracyItem(
        **group._asdict(),
        nodes=scores.machines,
        judged=scores.points,
        violation=_known(scores.violation),
        violation_p90=_known(scores.violation_p90),
        severity=_known(scores.severity),
        savings=_known(scores.savings),
        possible_savings=_known(scores.oracle_savings),
        unjudged=totals.unjudged(group),
        judged_until=None if math.isnan(judged_until) else format_time(judged_until),
    )


def _lines(items: Sequence[AccuracyItem], now: float, *, headers: bool) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [_HEADERS] if headers else []
    for item in items:
        shares = (
            item.violation, item.violation_p90, item.severity, item.savings, item.possible_savings,
        )  # fmt: skip
        age = None if item.judged_until is None else now - parse_time(item.judged_until)
        rows.append(
            (
                item.pool or "-", item.predictor, item.resource, str(item.nodes),
                str(item.judged), *map(_percent, shares), str(item.unjudged), format_age(age),
            )
        )  # fmt: skip
    yield from align_columns(rows, right=range(3, len(_HEADERS)))


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.1f}%"


def _known(share: float) -> float | None:
    return None if math.isnan(share) else share
