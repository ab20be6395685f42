"""A report as rows, one for each group and resource, for JSON and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from typing import Final

import msgspec

from pipeline.processors.model.model_config import RESOURCES
from pipeline.processors.report.cluster_report import ClusterReport, Level, Waste

UNITS: Final = {"cpu": "millicores", "memory": "bytes"}
LEVELS: Final = ("cluster", "pool", "node", "workload")
_HOT: Final = ("", "hot", "critical")


class RiskRow(msgspec.Struct, frozen=True, kw_only=True):
    """The peak of Prod at a risk, and what would be offered then."""

    risk: float
    peak: float | None
    mid: float | None
    batch: float | None


class ReportRow(msgspec.Struct, frozen=True, kw_only=True):
    """One resource of a group: amounts in `unit`, null unknown. Fields of nodes or workloads are
    null for other levels."""

    level: Level
    name: str
    pool: str | None
    resource: str
    unit: str
    nodes: int | None
    pods: int
    pods_without_request: int
    pods_without_usage: int
    allocatable: float | None
    requests: float
    requests_of_pods_with_usage: float
    usage_mean: float | None
    usage_mean_without_request: float | None
    unused: float | None
    nodes_without_offer: int | None
    risks: list[RiskRow]
    last_hour_percent: float | None
    highest_hour_percent: float | None
    hot_hours: int | None
    hot: str | None
    pod_request_lower: float | None
    pod_request_target: float | None
    pod_request_upper: float | None
    workload_peak: float | None
    saved: float | None


class ReportDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `-o json`."""

    version: int
    end: str
    hours: int
    watched_seconds: int | None
    notes: tuple[str, ...]
    items: list[ReportRow]


def levels(report: ClusterReport) -> dict[str, Waste]:
    """The groups of each level, by `LEVELS`."""
    parts = report.cluster, report.pools, report.nodes, report.workloads
    return dict(zip(LEVELS, parts, strict=True))


def rows(report: ClusterReport, level: str | None = None) -> Iterator[ReportRow]:
    """The rows of a level, by default of all."""
    for name, waste in levels(report).items():
        if level in (None, name):
            unused = waste.unused
            for group in range(len(waste.names)):
                for r in range(len(RESOURCES)):
                    yield _row(report, waste, float(unused[group, r]), group, r)


def _row(report: ClusterReport, waste: Waste, unused: float, group: int, r: int) -> ReportRow:
    of_nodes, of_workloads = waste.level == "node", waste.level == "workload"
    hot, sized, at = report.hot, report.sized, (group, r)
    is_hot_known = of_nodes and hot.known_hours[at] > 0
    target = float(sized.target[at]) if of_workloads else math.nan
    without_usage, has_known = int(waste.without_usage[at]), waste.requests_of_known[at] > 0
    return ReportRow(
        level=waste.level,
        name=waste.names[group],
        pool=(report.pool_of_node[group] or None) if of_nodes else None,
        resource=RESOURCES[r],
        unit=UNITS[RESOURCES[r]],
        nodes=None if of_workloads else int(waste.nodes[group]),
        pods=int(waste.pods[group]),
        pods_without_request=int(waste.without_request[at]),
        pods_without_usage=without_usage,
        allocatable=_known(waste.allocatable[at]),
        requests=float(waste.requests[at]),
        requests_of_pods_with_usage=float(waste.requests_of_known[at]),
        usage_mean=float(waste.usage[at]) if has_known or not without_usage else None,
        usage_mean_without_request=None
        if 0 < without_usage == waste.pods[group]
        else float(waste.usage_without_request[at]),
        unused=_known(unused),
        nodes_without_offer=None if of_workloads else int(waste.nodes_without_offer[at]),
        risks=[]
        if of_workloads
        else [
            RiskRow(
                risk=risk,
                peak=_known(waste.peaks[i, group, r]),
                mid=_known(waste.mid[i, group, r]),
                batch=_known(waste.batch[i, group, r]),
            )
            for i, risk in enumerate(report.risks)
        ],
        last_hour_percent=_known(hot.last_percent[at]) if of_nodes else None,
        highest_hour_percent=_known(hot.highest_percent[at]) if of_nodes else None,
        hot_hours=int(hot.hot_hours[at]) if is_hot_known else None,
        hot=_HOT[hot.level[at]] if is_hot_known and not math.isnan(hot.last_percent[at]) else None,
        pod_request_lower=_known(sized.lower[at]) if of_workloads else None,
        pod_request_target=_known(target),
        pod_request_upper=_known(sized.upper[at]) if of_workloads else None,
        workload_peak=_known(sized.peaks[at]) if of_workloads else None,
        saved=_known(saved(waste, target, group, r)),
    )


def saved(waste: Waste, target: float, group: int, r: int) -> float:
    """What a workload's pods with a request would request less at this target each; negative for
    more. NaN if the target is unknown or no pod has a request."""
    requesting = int(waste.pods[group] - waste.without_request[group, r])
    return float(waste.requests[group, r]) - target * requesting if requesting else math.nan


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def csv_lines(report: ClusterReport, level: str | None = None) -> Iterator[str]:
    """The rows as CSV with a header; unknown is empty. The values of each risk have columns of
    their own, such as `peak_at_0.02`."""
    risks = [f"{name}_at_{risk:g}" for risk in report.risks for name in ("peak", "mid", "batch")]
    fields = [name for name in ReportRow.__struct_fields__ if name != "risks"]
    yield _csv_line([*fields, *risks])
    for row in rows(report, level):
        of_risks = [value for each in row.risks for value in (each.peak, each.mid, each.batch)]
        values = [getattr(row, name) for name in fields]
        yield _csv_line([*values, *(of_risks or [None] * len(risks))])


def _csv_line(values: list[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(map(_csv_cell, values))
    return line.getvalue()


def _csv_cell(value: object) -> object:
    """A name that a spreadsheet would run as a formula gets an apostrophe in front."""
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if is_formula else value
