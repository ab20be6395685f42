"""A report as an HTML page with figures: one file, which loads and runs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pipeline.processors.figures import page
from pipeline.processors.figures.bars import Bar, BarRow, bars_figure
from pipeline.processors.model.model_config import RESOURCES
from pipeline.processors.report.cluster_report import ClusterReport, Waste
from pipeline.processors.report.report_rows import levels
from pipeline.processors.report.report_text import (
    AMOUNT_COLUMNS,
    amount,
    by_unused,
    cells,
    chosen_risk,
    head_of,
    heading,
    share,
)

MOST_BARS: Final = 25
"""Groups in a figure, those that leave most unused."""
MOST_ROWS: Final = 300
"""Groups in a table."""
_SIZES: Final = (1000.0, 2.0**30)
_UNITS: Final = ("cores", "Gi")
_TITLES: Final = {"pool": "Node pools", "node": "Nodes", "workload": "Workloads"}
_TERMS: Final = (
    "Requests are those of the pods that run at the end, usage is their mean. Peaks are predicted "
    "for the next day, for pods of Prod; usage exceeds them with the given risk. Of a workload, "
    "the peak is that of all its pods together, the target the recommended request of each pod."
)


def report_page(report: ClusterReport) -> str:
    """The page of a report."""
    return page.page("What the cluster wastes", _parts(report))


def _parts(report: ClusterReport) -> Iterator[str]:
    waste = report.cluster
    used = " and ".join(
        f"{share(waste.usage[0, r], waste.requests_of_known[0, r])} of the {resource}"
        for r, resource in enumerate(RESOURCES)
    )
    yield page.paragraph(f"{heading(report)}. Pods use {used} that they request.", "lead")
    yield page.paragraph(_TERMS, "note")
    yield from (page.paragraph(note, "note") for note in report.notes)
    for r in range(2):
        yield page.figures([_cluster_figure(report, r)])
    yield page.table(
        ("Risk", *(f"{name}, {part}" for name in RESOURCES for part in ("peak", "Mid", "Batch"))),
        [
            (
                f"{100 * risk:g}%",
                *(
                    amount(part[i, 0, r], r)
                    for r in range(2)
                    for part in (waste.peaks, waste.mid, waste.batch)
                ),
            )
            for i, risk in enumerate(report.risks)
        ],
        texts=1,
    )
    for level, title in _TITLES.items():
        groups = levels(report)[level]
        if len(groups.names):
            yield page.heading(title)
            for r in range(2):
                yield page.figures([_groups_figure(report, groups, title, r)])
            yield from _group_tables(report, groups)


def _group_tables(report: ClusterReport, groups: Waste) -> Iterator[str]:
    """A table for each resource: both beside each other are wider than a screen."""
    head, texts = head_of(groups.level)
    shown = by_unused(groups).tolist()[:MOST_ROWS]
    rows = [cells(report, groups, group) for group in shown]
    others = len(head) - 2 * AMOUNT_COLUMNS
    for r in range(2):
        first = others + r * AMOUNT_COLUMNS
        columns = [*range(others), *range(first, first + AMOUNT_COLUMNS)]
        yield page.table(
            [head[column].capitalize() for column in columns],
            [[row[column] for column in columns] for row in rows],
            texts=texts,
        )
    if len(shown) < len(groups.names):
        yield page.paragraph(
            f"{len(groups.names) - len(shown):,} of {len(groups.names):,} {groups.level}s are left "
            "out, those that leave least unused; -o csv has all.",
            "note",
        )


def _cluster_figure(report: ClusterReport, r: int) -> str:
    """From allocatable down to mean usage: each step is a gap."""
    waste, middle = report.cluster, chosen_risk(report)
    risk = f"{100 * report.risks[middle]:g}%"
    values = [
        ("allocatable", waste.allocatable[0, r], "other"),
        ("requests", waste.requests[0, r], "other"),
        (f"peak of Prod at {risk}", waste.peaks[middle, 0, r], "usage"),
        ("usage, mean", waste.usage[0, r], "own"),
        (f"Mid at {risk}", waste.mid[middle, 0, r], "usage"),
        (f"Batch at {risk}", waste.batch[middle, 0, r], "usage"),
    ]
    bars = [
        BarRow(label, [Bar(value / _SIZES[r], kind)], amount(value, r).replace("-", "unknown"))
        for label, value, kind in values
    ]
    return bars_figure(f"{RESOURCES[r]} of the cluster", _UNITS[r], bars, lambda tick: f"{tick:g}")


def _groups_figure(report: ClusterReport, groups: Waste, title: str, r: int) -> str:
    """Mean usage of the groups that leave most unused, against their requests."""
    shown = by_unused(groups).tolist()[:MOST_BARS]
    bars = []
    for group in shown:
        requests, usage = groups.requests[group, r], groups.usage[group, r]
        text = (
            f"{share(usage, groups.requests_of_known[group, r])} of {amount(requests, r)} requested"
        )
        drawn = [Bar(requests / _SIZES[r], "other"), Bar(usage / _SIZES[r], "own")]
        bars.append(BarRow(groups.names[group], drawn, text))
    note = f"{_UNITS[r]}: requests (grey) and mean usage (blue)"
    return bars_figure(f"{title}: {RESOURCES[r]}", note, bars, lambda tick: f"{tick:g}")
