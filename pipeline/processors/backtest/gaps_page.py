"""The gaps between limits, requests, peaks and usage as an HTML page with figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pipeline.processors.backtest.backtest_figures import UNITS, Unit, amount_text
from pipeline.processors.backtest.gaps import Gaps
from pipeline.processors.backtest.report import percent
from pipeline.processors.figures import page
from pipeline.processors.figures.bars import Bar, BarRow, bars_figure

MOST_GROUPS: Final = 30
"""Groups in a figure, those that leave most unused."""
MOST_ROWS: Final = 300
"""Groups in a table."""
_SUMMARIES: Final = 4
_HEAD: Final = (
    "Group", "Pods", "Requests, mean", "Of requests, mean", "Of requests, peak",
    "Of limits, mean", "Of limits, peak", "Pooled peak", "Pooled p99",
)  # fmt: skip
_TERMS: Final = (
    "Requests and limits are averages over time of the pods that ran. The pooled peak is the "
    "highest usage of all pods together, as a share of the sum of the peaks that the pods have "
    "each on its own: what is missing to 100% is what pooling saves."
)


class MeasuredGaps(NamedTuple):
    """The fleet of one trace and resource, and its groups, nodes or workloads."""

    title: str
    fleet: Gaps
    groups: Sequence[Gaps]


def gaps_page(measured: Sequence[MeasuredGaps]) -> str:
    """The page: what the fleet of each trace and resource and its groups left unused."""
    return page.page("Gaps between requests, limits and usage", _parts(measured))


def _parts(measured: Sequence[MeasuredGaps]) -> Iterator[str]:
    yield page.paragraph(" ".join(_summary(each) for each in measured[:_SUMMARIES]), "lead")
    yield page.paragraph(_TERMS, "note")
    for each in measured:
        unit = UNITS[each.fleet.resource]
        yield page.heading(f"{each.title}, {each.fleet.resource}")
        yield from (page.paragraph(note, "note") for note in not_counted(each.fleet))
        yield page.figures([fleet_figure(each, unit)])
        if each.groups:
            yield page.figures([groups_figure(each, unit)])
        shown = [each.fleet, *_by_unused(each.groups)[:MOST_ROWS]]
        yield page.table(_HEAD, [_row(gaps, unit) for gaps in shown], texts=1)
        if len(each.groups) > MOST_ROWS:
            yield page.paragraph(
                f"{len(each.groups) - MOST_ROWS} of {len(each.groups)} groups are left out, those "
                "that leave least unused; -o json has all.",
                "note",
            )


def _summary(measured: MeasuredGaps) -> str:
    fleet = measured.fleet
    kind, share = ("requested", fleet.of_requests)
    if math.isnan(share.mean):
        kind, share = ("may use by their limits", fleet.of_limits)
    return (
        f"In {measured.title}, {fleet.pods:,} pods used {percent(share.mean)} of the "
        f"{fleet.resource} that they {kind}, and {percent(share.peak)} at the busiest moment; "
        f"together they never needed more than {percent(fleet.pod_pooling[-1])} of the sum of "
        "their peaks."
    )


def fleet_figure(measured: MeasuredGaps, unit: Unit) -> str:
    """From limits down to mean usage of a fleet: each step is a gap."""
    fleet = measured.fleet
    rows = [
        ("limits, mean", fleet.limits_mean, "other"),
        ("requests, mean", fleet.requests_mean, "other"),
        ("each pod at its peak", float(fleet.pods_alone[-1]), "usage"),
        ("each node at its peak", float(fleet.nodes_alone[-1]), "usage"),
        ("all pods, peak", float(fleet.usage[-1]), "own"),
        ("all pods, mean", fleet.usage_mean, "own"),
    ]
    title = f"{measured.title}: {fleet.resource} of the fleet"
    return bars_figure(
        title,
        f"{unit.name}; in brackets shares of the requests",
        [
            BarRow(label, [Bar(value / unit.size, kind)], _amount(value, fleet, unit))
            for label, value, kind in rows
        ],
        lambda tick: f"{tick:g}",
    )


def _amount(value: float, fleet: Gaps, unit: Unit) -> str:
    if math.isnan(value):
        return "unknown"
    share = f" ({percent(value / fleet.requests_mean)})" if fleet.requests_mean > 0.0 else ""
    return amount_text(value, unit) + share


def groups_figure(measured: MeasuredGaps, unit: Unit) -> str:
    """Usage of the groups that leave most unused, as shares of their requests; where nothing is
    requested, of their limits."""
    by_requests = not math.isnan(measured.fleet.of_requests.mean)
    kind = "requests" if by_requests else "limits"
    shown = _by_unused(measured.groups)[:MOST_GROUPS]
    rows = []
    for gaps in shown:
        share = gaps.of_requests if by_requests else gaps.of_limits
        amount = gaps.requests_mean if by_requests else gaps.limits_mean
        text = f"{percent(share.mean)} to {percent(share.peak)}"
        text += "" if math.isnan(amount) else f" of {amount_text(amount, unit)}"
        bars = [Bar(100 * share.peak, "usage"), Bar(100 * share.mean, "own")]
        rows.append(BarRow(gaps.name, bars, text))
    level = measured.groups[0].level
    title = f"{measured.title}: {measured.fleet.resource} of {len(shown)} {level}s"
    if len(shown) < len(measured.groups):
        title += f" of {len(measured.groups)}, those that leave most unused"
    note = f"mean (blue) and highest (grey) share of the {kind} that was used"
    return bars_figure(title, note, rows, lambda tick: f"{tick:g}%")


def _by_unused(groups: Sequence[Gaps]) -> list[Gaps]:
    """Groups by the amount of requests that they left unused, or of limits without requests."""

    def unused(gaps: Gaps) -> float:
        amount = gaps.requests_mean if gaps.requests_mean > 0.0 else gaps.limits_mean
        return -math.inf if math.isnan(amount) else amount - gaps.usage_mean

    return sorted(groups, key=unused, reverse=True)


def _row(gaps: Gaps, unit: Unit) -> Sequence[str]:
    _, p99, peak = gaps.pod_pooling.tolist()
    shares = (
        gaps.of_requests.mean, gaps.of_requests.peak, gaps.of_limits.mean, gaps.of_limits.peak,
        peak, p99,
    )  # fmt: skip
    requests = "-" if math.isnan(gaps.requests_mean) else amount_text(gaps.requests_mean, unit)
    return (gaps.name or gaps.level, f"{gaps.pods:,}", requests, *map(percent, shares))


def not_counted(gaps: Gaps) -> Iterator[str]:
    """What the shares of a fleet leave out."""
    if gaps.unknown_pods:
        yield f"pods not counted, because their usage is unknown: {gaps.unknown_pods}"
    if gaps.unknown_steps:
        yield f"steps not counted, because the usage of a pod is unknown: {gaps.unknown_steps}"
    if gaps.pods_without_request:
        yield f"pods without a request, left out of shares of requests: {gaps.pods_without_request}"
    if gaps.pods_without_limit:
        yield f"pods without a limit, left out of shares of limits: {gaps.pods_without_limit}"
