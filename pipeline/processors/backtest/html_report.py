"""The results of a backtest as an HTML page: a summary, figures, scores, and what went wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from pipeline.processors.backtest.backtest_figures import (
    UNITS,
    Point,
    Unit,
    amount_text,
    end_seconds,
    frontier_figure,
    node_figure,
    violation_figure,
)
from pipeline.processors.backtest.judge import Judgement, Summary, settings_hash, summaries
from pipeline.processors.backtest.node_details import Details, Violation
from pipeline.processors.backtest.peers import PEERS
from pipeline.processors.backtest.replay import Variant
from pipeline.processors.backtest.report import by_declared_text, percent
from pipeline.processors.figures import page, svg
from pipeline.processors.figures.scales import time_text

MOST_SUITES: Final = 40
"""Suites that are shown by themselves."""
MOST_VARIANTS: Final = 60
"""Variants that are shown, in tables and figures."""
MOST_DETAILED: Final = 2
"""Variants whose nodes are shown."""
_LABEL_PIXELS: Final = 130
_PEERS: Final = frozenset(variant.name for variant in PEERS)
_SUMMARY_HEAD: Final = (
    "#", "Variant", "Settings", "Worst suite", "Violations", "Mean", "p90 node", "Severity",
    "Savings", "Measured/declared",
)  # fmt: skip
_SUITE_HEAD: Final = (
    "#", "Variant", "Violations", "p90 node", "Severity", "Savings", "Of a perfect prediction",
    "Unknown",
)  # fmt: skip
_VIOLATION_HEAD: Final = (
    "#", "Node", "Predicted at (UTC)", "Peak at (UTC)", "What explains it", "Predicted",
    "Real peak", "Missing", "Requests",
)  # fmt: skip
_KEY: Final = (
    ("usage", "usage"),
    ("requests", "requests"),
    ("own", "prediction"),
    ("peak", "real peak: highest usage in the horizon of the pods of that moment"),
    ("missed", "violation: the real peak was above the prediction"),
)


def detailed_variants(variants: Sequence[Variant]) -> list[str]:
    """The names of the variants whose nodes are shown: calibrated ones first, peers if there is no
    other. The summary is about the first."""
    order = sorted(variants, key=lambda v: (v.name in _PEERS, v.declared_risk is None))
    return [variant.name for variant in order if variant.name not in _PEERS or order[0] is variant][
        :MOST_DETAILED
    ]


def html_report(judgements: Sequence[Judgement]) -> str:
    """The page. Judgements with `details` show nodes. Of many suites and variants it shows the
    first, and says so."""
    names = {
        name: str(n + 1) for n, name in enumerate(dict.fromkeys(j.variant.name for j in judgements))
    }
    suites: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        suites.setdefault(judgement.suite.name, []).append(judgement)
    return page.page("Backtest of peak predictions", _parts(judgements, suites, names))


def _parts(
    judgements: Sequence[Judgement],
    suites: dict[str, list[Judgement]],
    labels: dict[str, str],
) -> Iterator[str]:
    overall = summaries(judgements)
    yield page.paragraph(_lead(judgements, overall), "lead")
    yield page.paragraph(_TERMS, "note")
    if len(suites) > MOST_SUITES or len(labels) > MOST_VARIANTS:
        yield page.paragraph(
            f"Shown are the first {MOST_SUITES} of {len(suites)} suites and the first "
            f"{MOST_VARIANTS} of {len(labels)} variants; -o json has all.",
            "note",
        )
    if len(suites) > 1:
        yield from _all_suites(overall[:MOST_VARIANTS], labels)
    for name, own in [*suites.items()][:MOST_SUITES]:
        yield from _suite(name, own, labels)


_TERMS: Final = (
    "A violation is a moment at which the pods of a node, within the horizon that followed, needed "
    "more than was predicted. Savings are the share of the requests that the prediction leaves to "
    "others. Both are averages over nodes; p90 node is the rate that 90% of the nodes do not "
    "exceed. Severity is how much of the real peak was missing at violations. Blue are the "
    "variants of this backtest, grey the predictors of other systems."
)


def _lead(judgements: Sequence[Judgement], overall: Sequence[Summary]) -> str:
    """The summary, in whole sentences: what the first detailed variant did, against the others."""
    detailed = detailed_variants([summary.variant for summary in overall])
    lead = next((s for s in overall if s.variant.name in detailed[:1]), None)
    if lead is None:
        return "No prediction could be scored: no pod with a request ran at any scored step."
    suites = {j.suite.name: j.fleet for j in judgements if j.variant.name == lead.variant.name}
    where = lead.worst_suite
    if len(suites) > 1:
        where = f"the worst of {len(suites)} suites, {where}"
    risk = lead.variant.declared_risk
    declared = "" if risk is None else f", with a declared risk of {100 * risk:g}%"
    oracle = math.fsum(fleet.oracle_savings for fleet in suites.values()) / len(suites)
    sentences = [
        f"In {where}, {lead.variant.name} predicted too little {percent(lead.violation)} of the "
        f"time{declared}. On average it left {percent(lead.savings)} of the requests to others; a "
        f"perfect prediction would have left {percent(oracle)}."
    ]
    others = [s for s in overall if s.variant.name in _PEERS and s is not lead]
    safe = [s for s in others if s.violation <= lead.violation]
    if safe:
        best = max(safe, key=lambda s: s.savings)
        sentences.append(
            f"Of the {len(others)} predictors of other systems, {len(safe)} missed no more; the "
            f"best of them, {best.variant.name}, left {percent(best.savings)}."
        )
    elif others:
        sentences.append(f"All {len(others)} predictors of other systems missed more.")
    return " ".join(sentences)


def _all_suites(overall: Sequence[Summary], labels: dict[str, str]) -> Iterator[str]:
    yield page.heading("All suites")
    points = [
        _point(s.variant, labels, s.violation, s.savings) for s in overall
    ]  # fmt: skip
    title = "All suites: violations of the worst suite, average savings"
    yield page.figures([frontier_figure(title, points, math.nan)])
    rows = [
        (
            labels[s.variant.name], s.variant.name, settings_hash(s.variant), s.worst_suite,
            percent(s.violation), percent(s.mean_violation), percent(s.violation_p90),
            percent(s.severity), percent(s.savings), by_declared_text(s),
        )
        for s in overall
    ]  # fmt: skip
    yield page.table(_SUMMARY_HEAD, rows, texts=4, marked=[not p.is_peer for p in points])


def _point(variant: Variant, labels: dict[str, str], violation: float, savings: float) -> Point:
    is_peer = variant.name in _PEERS
    label = labels[variant.name]
    if not is_peer:
        label = svg.fitted(f"{label} {variant.name}", _LABEL_PIXELS)
    return Point(variant.name, label, violation, savings, is_peer)


def _suite(name: str, own: Sequence[Judgement], labels: dict[str, str]) -> Iterator[str]:
    suite, fleet, shown = own[0].suite, own[0].fleet, own[:MOST_VARIANTS]
    yield page.heading(name)
    yield page.paragraph(
        f"{suite.resource} of data set {suite.dataset}, scenario {suite.scenario}: "
        f"{fleet.machines:,} nodes, {fleet.points:,} predictions of the peak of the next "
        f"{suite.horizon_hours:g} h, scored after the first {suite.burn_in_hours:g} h."
    )
    points = [
        _point(j.variant, labels, j.fleet.violation, j.fleet.savings) for j in shown
    ]  # fmt: skip
    yield page.figures([frontier_figure(name, points, fleet.oracle_savings)])
    rows = [
        (
            labels[j.variant.name], j.variant.name, percent(j.fleet.violation),
            percent(j.fleet.violation_p90), percent(j.fleet.severity), percent(j.fleet.savings),
            percent(j.fleet.of_oracle), percent(j.fleet.unknown),
        )
        for j in shown
    ]  # fmt: skip
    yield page.table(_SUITE_HEAD, rows, texts=2, marked=[not p.is_peer for p in points])
    by_name = {j.variant.name: j for j in own}
    for name in detailed_variants([j.variant for j in own]):
        if (details := by_name[name].details) is not None:
            yield from _nodes(by_name[name], details, UNITS[suite.resource])


def _nodes(judgement: Judgement, details: Details, unit: Unit) -> Iterator[str]:
    name = judgement.variant.name
    yield page.heading(f"{name}: nodes with the worst, median and best rate of violations", 3)
    yield page.key(_KEY)
    yield page.figures(
        [
            node_figure(
                f"{node.role}: {node.series.node}",
                f"{percent(node.violation)} violations, {percent(node.savings)} saved",
                node.series,
                details,
                unit,
            )
            for node in details.nodes
        ]
    )
    yield page.heading(f"{name}: worst violations", 3)
    if not details.violations:
        yield page.paragraph("No prediction was too low.")
        return
    rows = [_violation_row(str(n + 1), v, details, unit) for n, v in enumerate(details.violations)]
    yield page.table(_VIOLATION_HEAD, rows, texts=5)
    yield page.figures(
        [
            violation_figure(f"{number + 1}: {violation.node}", violation, details, unit)
            for number, violation in enumerate(details.violations)
        ]
    )
    yield page.paragraph(_MARKS, "note")


_MARKS: Final = (
    "The figures have the numbers of the table. Their vertical lines are the prediction that was "
    "missed and the peak that missed it. Pods that came after the prediction count for usage and "
    "requests, but not for the real peak."
)


def _violation_row(
    number: str, violation: Violation, details: Details, unit: Unit
) -> Sequence[str | Sequence[str]]:
    missing = violation.real_peak - violation.predicted
    share = f" ({percent(missing / violation.real_peak)})"
    return (
        number,
        violation.node,
        time_text(end_seconds(details, violation.step)),
        time_text(end_seconds(details, violation.peak_step)),
        [*explanation(violation, details, unit)],
        amount_text(violation.predicted, unit),
        amount_text(violation.real_peak, unit),
        amount_text(missing, unit) + share,
        amount_text(violation.requests, unit),
    )


def explanation(violation: Violation, details: Details, unit: Unit) -> Iterator[str]:
    """What explains a violation: pods that rose, new pods, unknown usage."""
    for pod in violation.risen:
        above = amount_text(pod.usage - pod.past_peak, unit)
        yield (
            f"{pod.pod} used {amount_text(pod.usage, unit)}, {above} more than ever before "
            f"({amount_text(pod.past_peak, unit)})"
        )
    others = violation.risen_count - len(violation.risen)
    if others:
        total = amount_text(violation.risen_by, unit)
        yield f"{others} other pods used more than ever before; all rises add up to {total}"
    if not violation.risen:
        yield f"none of the {violation.pods} pods used more than ever before"
    for burst in violation.bursts:
        mean = amount_text(burst.past_mean, unit)
        yield f"{burst.pod} used {amount_text(burst.usage, unit)}; its mean before was {mean}"
    hours = f"{details.horizon_steps * details.step_seconds / 3600:g} h"
    if violation.new_pods:
        yield (
            f"{violation.new_pods} of {violation.pods} pods ran for less than {hours}; they used "
            f"{amount_text(violation.new_usage, unit)} at the peak"
        )
    if violation.unknown > 0.0:
        yield f"{percent(violation.unknown)} of the samples of the last {hours} were unknown"
