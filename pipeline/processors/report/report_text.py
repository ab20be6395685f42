"""A report as tables of text: the cluster, and the groups that leave most unused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Final

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.explain.quantity_text import UNKNOWN, format_bytes, format_cpu
from pipeline.processors.explain.text_columns import align_columns
from pipeline.processors.kubernetes.durations import duration_text
from pipeline.processors.model.model_config import RESOURCES
from pipeline.processors.report.cluster_report import ClusterReport, Waste
from pipeline.processors.report.report_rows import levels, saved
from pipeline.times import format_time

MOST_ROWS: Final = 10
"""Groups of a level, unless the level is asked for."""
_TITLES: Final = {
    "pool": "Node pools", "node": "Nodes", "workload": "Workloads",
}  # fmt: skip
AMOUNT_COLUMNS: Final = 6
"""Columns of a resource in the table of a level."""


def amount(value: float, r: int) -> str:
    """Millicores or bytes as a quantity; `-` is unknown."""
    return format_cpu(value / 1000) if r == 0 else format_bytes(value)


def share(value: float, whole: float) -> str:
    """A whole percentage; `-` is unknown."""
    if math.isnan(value) or not whole > 0.0:
        return UNKNOWN
    return f"{100.0 * value / whole:.0f}%"


def text_lines(report: ClusterReport, level: str | None = None) -> Iterator[str]:
    """The report; with a `level` only its table, with every group."""
    if level not in (None, "cluster"):
        assert level is not None
        yield from _table(report, level, None)
        return
    yield from cluster_lines(report)
    if level is None:
        for name, title in _TITLES.items():
            if len(levels(report)[name].names):
                yield from ["", title, *_table(report, name, MOST_ROWS)]
    if report.notes:
        yield from ["", *(f"note: {note}" for note in report.notes)]


def heading(report: ClusterReport) -> str:
    """What the report covers."""
    cluster, watched = report.cluster, report.watched_seconds
    span = f"{report.hours} hours" if watched is None else duration_text(Decimal(watched))
    return (
        f"{int(cluster.nodes[0]):,} nodes, {int(cluster.pods[0]):,} running pods, "
        f"{span} until {format_time(report.end_seconds)}"
    )


def cluster_lines(report: ClusterReport) -> Iterator[str]:
    """The cluster: requests against usage, then peaks and offers by risk."""
    waste = report.cluster
    yield heading(report)
    yield ""
    head: tuple[str, ...] = (
        "RESOURCE",
        "ALLOCATABLE",
        "REQUESTED",
        "USED",
        "OF REQUESTS",
        "UNUSED",
    )
    lines: list[Sequence[str]] = [head]
    for r, resource in enumerate(RESOURCES):
        lines.append(
            (
                resource,
                amount(waste.allocatable[0, r], r),
                requested(waste, 0, r),
                _used(waste, 0, r),
                share(waste.usage[0, r], waste.requests_of_known[0, r]),
                amount(waste.unused[0, r], r),
            )
        )
    yield from align_columns(lines, right=range(1, len(head)))
    yield ""
    head = ("RISK", *(f"{name} {part}" for name in ("CPU", "MEM") for part in _RISK_HEAD))
    lines = [head]
    for i, risk in enumerate(report.risks):
        parts = (waste.peaks, waste.mid, waste.batch)
        cells = [amount(part[i, 0, r], r) for r in range(2) for part in parts]
        lines.append((f"{100 * risk:g}%", *cells))
    yield from align_columns(lines, right=range(1, len(head)))


_RISK_HEAD: Final = ("PEAK", "MID", "BATCH")


def requested(waste: Waste, group: int, r: int) -> str:
    """The requests of a group; `-` if no pod has one."""
    has_any = waste.without_request[group, r] < waste.pods[group]
    return amount(waste.requests[group, r], r) if has_any else UNKNOWN


def _used(waste: Waste, group: int, r: int) -> str:
    """Mean usage of pods with a request; `-` if no pod has known usage and a request."""
    is_known = waste.requests_of_known[group, r] > 0.0
    return amount(waste.usage[group, r], r) if is_known else UNKNOWN


def by_unused(waste: Waste) -> IntArray:
    """Groups by what they leave unused: the mean of their shares of the cluster's requests of cpu
    and memory, most first."""
    whole = np.maximum(waste.requests_of_known.sum(axis=0), 1.0)
    weight = (np.nan_to_num(waste.unused) / whole).sum(axis=1)
    return np.argsort(-weight, kind="stable")


def _table(report: ClusterReport, level: str, most: int | None) -> Iterator[str]:
    waste = levels(report)[level]
    order = by_unused(waste).tolist()[:most]
    head, texts = head_of(level)
    lines = [head, *(cells(report, waste, group) for group in order)]
    yield from align_columns(lines, right=range(texts, len(head)))
    if most is not None and len(waste.names) > most:
        yield (f"{len(waste.names) - most:,} more {level}s, which leave less unused: --by {level}")


def chosen_risk(report: ClusterReport) -> int:
    """The place of the risk in tables that have room for one: the middle one."""
    return len(report.risks) // 2


def head_of(level: str) -> tuple[Sequence[str], int]:
    """The headers of a level, and how many of its columns are text."""
    texts = {"pool": ("POOL", "NODES"), "node": ("NODE", "POOL", "HOT")}.get(level, ("WORKLOAD",))
    parts = ("REQ", "USED", "%", "PEAK", "MID", "BATCH")
    if level == "workload":
        parts = ("REQ", "USED", "%", "PEAK", "TARGET", "SAVED")
    columns = (f"{name} {part}" for name in ("CPU", "MEM") for part in parts)
    return (*texts, "PODS", *columns), len(texts) - (level == "pool")


def cells(report: ClusterReport, waste: Waste, group: int) -> Sequence[str]:
    """The cells of a group, below `head_of`."""
    name, pods = waste.names[group], f"{int(waste.pods[group]):,}"
    texts: tuple[str, ...] = (name,)
    if waste.level == "pool":
        texts = (name, f"{int(waste.nodes[group]):,}")
    elif waste.level == "node":
        texts = (name, report.pool_of_node[group] or UNKNOWN, hot_text(report, group))
    return (*texts, pods, *(cell for r in range(2) for cell in _amounts(report, waste, group, r)))


def _amounts(report: ClusterReport, waste: Waste, group: int, r: int) -> Iterator[str]:
    yield requested(waste, group, r)
    yield _used(waste, group, r)
    yield share(waste.usage[group, r], waste.requests_of_known[group, r])
    if waste.level == "workload":
        target = float(report.sized.target[group, r])
        yield amount(report.sized.peaks[group, r], r)
        yield amount(target, r)
        yield amount(saved(waste, target, group, r), r)
        return
    at = chosen_risk(report), group, r
    for part in (waste.peaks, waste.mid, waste.batch):
        yield amount(part[at], r)


def hot_text(report: ClusterReport, node: int) -> str:
    """Which resources of a node are hot in the last hour, or were in how many hours; `-` if none
    was, and usage of a resource is unknown."""
    hot, words = report.hot, []
    for r, resource in enumerate(RESOURCES):
        level, hours = int(hot.level[node, r]), int(hot.hot_hours[node, r])
        if hours:
            state = {0: "", 1: " hot", 2: " critical"}[level]
            words.append(f"{resource}{state} {hours}h")
    return ", ".join(words) or ("no" if hot.known_hours[node].all() else UNKNOWN)
