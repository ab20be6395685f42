"""The report: requests against usage and peaks of the cluster, its pools, nodes and workloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.model.model_config import RESOURCES
from pipeline.processors.model.resource_pairs import group_sums
from pipeline.processors.report.cluster_usage import WEEK_HOURS, ClusterUsage
from pipeline.processors.report.hot_hours import DEFAULT_PERCENTS, HotHours, hot_hours
from pipeline.processors.report.prod_peaks import RISKS, is_prod, prod_peaks
from pipeline.processors.report.sized_workloads import SizedWorkloads, sized_workloads
from pipeline.processors.report.tier_offers import tier_offers

Level = Literal["cluster", "pool", "node", "workload"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Waste:
    """Groups of one level, g of them: the cluster, node pools, nodes or workloads.

    Counts are of pods that run at the end: `pods` (g,), and those `without_request` and
    `without_usage` (g, 2) of a resource. Amounts (g, 2) are millicores and bytes: `requests`,
    `requests_of_known` of the pods whose usage is known, too, and `usage`, the mean usage of these;
    `usage_without_request` is that of pods without a request. `allocatable` (g, 2) is NaN for
    workloads. `peaks`, `mid` and `batch` (risks, g, 2) are sums over nodes: the peak of Prod, and
    what is offered; NaN for workloads, and if it is unknown for all nodes. `nodes_without_offer`
    (g, 2) are left out of the offers.
    """

    level: Level
    names: tuple[str, ...]
    nodes: IntArray
    pods: IntArray
    without_request: IntArray
    without_usage: IntArray
    allocatable: FloatArray
    requests: FloatArray
    requests_of_known: FloatArray
    usage: FloatArray
    usage_without_request: FloatArray
    peaks: FloatArray
    mid: FloatArray
    batch: FloatArray
    nodes_without_offer: IntArray

    @property
    def unused(self) -> FloatArray:
        """Requests above the mean usage of the same pods, (g, 2); NaN without any."""
        has_any = self.requests_of_known > 0.0
        unused: FloatArray = np.where(has_any, self.requests_of_known - self.usage, np.nan)
        return unused

    @property
    def used_share(self) -> FloatArray:
        """Mean usage by the requests of the same pods, (g, 2); NaN without any."""
        shares = np.full_like(self.usage, np.nan)
        np.divide(self.usage, self.requests_of_known, out=shares, where=self.requests_of_known > 0)
        return shares


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ClusterReport:
    """All parts of a report. `watched_seconds` is that of `ClusterUsage`; `pool_of_node` is ""
    where unknown."""

    end_seconds: int
    hours: int
    watched_seconds: int | None
    risks: tuple[float, ...]
    high_percent: Mapping[str, float]
    cluster: Waste
    pools: Waste
    nodes: Waste
    workloads: Waste
    pool_of_node: tuple[str, ...]
    hot: HotHours
    sized: SizedWorkloads
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _NodeParts:
    """Amounts of nodes: allocatable (k, 2), and by risk (risks, k, 2)."""

    allocatable: FloatArray
    peaks: FloatArray
    mid: FloatArray
    batch: FloatArray


_CLUSTER_NAME: Final = "cluster"


def cluster_report(
    usage: ClusterUsage,
    *,
    risks: Sequence[float] = RISKS,
    high_percent: Mapping[str, float] = DEFAULT_PERCENTS,
) -> ClusterReport:
    """Compute the report of `usage` at these risks, ascending, and thresholds of hot nodes."""
    # Most of the work is numpy's, which leaves the other thread the interpreter.
    with ThreadPoolExecutor(1) as thread:
        sizing = thread.submit(sized_workloads, usage)
        peaks = prod_peaks(usage, risks)
    sized = sizing.result()
    offers = tier_offers(usage, peaks)
    parts = _NodeParts(usage.allocatable, peaks, offers.mid, offers.batch)
    pools = tuple(sorted({*usage.pools} - {""}))
    pool_number = {name: i for i, name in enumerate(pools)}
    pool_index = np.array([pool_number.get(name, -1) for name in usage.pools], np.int64)
    node_numbers = np.arange(len(usage.nodes))
    return ClusterReport(
        end_seconds=usage.end_seconds,
        hours=usage.hours,
        watched_seconds=usage.watched_seconds,
        risks=tuple(risks),
        high_percent=high_percent,
        cluster=_waste(
            usage, "cluster", (_CLUSTER_NAME,), np.zeros(len(usage.pods), np.int64), parts,
            np.zeros(len(usage.nodes), np.int64),
        ),
        pools=_waste(usage, "pool", pools, pool_index[usage.node_index], parts, pool_index),
        nodes=_waste(usage, "node", usage.nodes, usage.node_index, parts, node_numbers),
        workloads=_waste(usage, "workload", sized.names, sized.workload_index, parts, None),
        pool_of_node=usage.pools,
        hot=hot_hours(usage, high_percent),
        sized=sized,
        notes=tuple(_notes(usage, peaks)),
    )  # fmt: skip


def _waste(
    usage: ClusterUsage,
    level: Level,
    names: tuple[str, ...],
    group_of_pod: IntArray,
    parts: _NodeParts,
    group_of_node: IntArray | None,
) -> Waste:
    """The groups of a level. -1 in `group_of_pod` (n,) and `group_of_node` (k,) is no group; None
    leaves out the parts of nodes."""
    count = len(names)
    (own,) = (usage.runs & (group_of_pod >= 0)).nonzero()
    group, requests, mean = group_of_pod[own], usage.requests[own], usage.mean[own]
    has_request, has_usage = requests > 0.0, ~np.isnan(mean)
    is_compared = has_request & has_usage

    def total(values: FloatArray, counted: BoolArray) -> FloatArray:
        return group_sums(group, np.where(counted, values, 0.0), count)

    def counts(counted: BoolArray) -> IntArray:
        return group_sums(group, counted.astype(np.float64), count).astype(np.int64)

    risks = len(parts.peaks)
    unknown = np.full((risks, count, 2), np.nan)
    of_nodes = {"peaks": unknown, "mid": unknown, "batch": unknown}
    allocatable, nodes = np.full((count, 2), np.nan), np.zeros(count, np.int64)
    without_offer = np.zeros((count, 2), np.int64)
    if group_of_node is not None:
        in_group = np.flatnonzero(group_of_node >= 0)
        groups = group_of_node[in_group]
        nodes = np.bincount(groups, minlength=count)
        allocatable = _known_sums(parts.allocatable[in_group], groups, count)
        of_nodes = {
            name: np.stack(
                [_known_sums(amounts[in_group], groups, count) for amounts in getattr(parts, name)]
            )
            for name in of_nodes
        }
        is_unknown = np.isnan(parts.mid[0, in_group])
        without_offer = group_sums(groups, is_unknown.astype(np.float64), count).astype(np.int64)
    return Waste(
        level=level,
        names=names,
        nodes=nodes,
        pods=np.bincount(group, minlength=count),
        without_request=counts(~has_request),
        without_usage=counts(~has_usage),
        allocatable=allocatable,
        requests=total(requests, has_request),
        requests_of_known=total(requests, is_compared),
        usage=total(mean, is_compared),
        usage_without_request=total(mean, ~has_request & has_usage),
        nodes_without_offer=without_offer,
        **of_nodes,
    )


def _known_sums(values: FloatArray, groups: IntArray, count: int) -> FloatArray:
    """Sums of the known values (m, 2) by group, (count, 2); NaN for a group without any."""
    known = ~np.isnan(values)
    sums = group_sums(groups, np.where(known, values, 0.0), count)
    return np.where(group_sums(groups, known.astype(np.float64), count) > 0.0, sums, np.nan)


def _notes(usage: ClusterUsage, peaks: FloatArray) -> list[str]:
    """What is unknown, and what the figures leave out."""
    notes = [*usage.notes]
    running = usage.runs
    hours = int((~np.isnan(usage.highest)).any(axis=(0, 2)).sum())
    if usage.watched_seconds is None and hours < WEEK_HOURS:
        notes.append(
            f"usage is known in {hours} of {usage.hours} hours, less than a week: peaks and "
            "requests are less certain"
        )
    for r, resource in enumerate(RESOURCES):
        without = int((running & ~usage.has_usage[:, r]).sum())
        if without:
            notes.append(f"{without:,} running pods have no known {resource} usage")
        without = int((running & (usage.requests[:, r] <= 0.0)).sum())
        if without:
            notes.append(f"{without:,} running pods request no {resource}")
    for r, resource in enumerate(RESOURCES):
        without = int(np.isnan(usage.allocatable[:, r]).sum())
        if without:
            notes.append(
                f"{without:,} nodes have no known allocatable {resource}: their offers of it are "
                "unknown"
            )
    has_prod = np.zeros(len(usage.nodes), np.bool_)
    has_prod[usage.node_index[running & is_prod(usage)]] = True
    for r, resource in enumerate(RESOURCES):
        without = int((has_prod & np.isnan(peaks[0, :, r])).sum())
        if without:
            notes.append(f"{without:,} nodes have no {resource} peak: no usage of Prod is known")
    without = int(np.isnan(usage.node_usage[:, -1]).any(axis=1).sum())
    if without:
        notes.append(
            f"{without:,} nodes have no known usage of their own: whether they are hot is unknown, "
            "and for Batch the reservation of the kubelet stands for other processes"
        )
    without = int((running & np.array([not name for name in usage.workloads], np.bool_)).sum())
    if without:
        notes.append(f"{without:,} running pods have no known workload")
    return notes
