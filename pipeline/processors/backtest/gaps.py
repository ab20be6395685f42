"""What pods leave unused: usage against requests and limits, and the pooling effect.

The pooling effect: pods do not peak at the same time, so that the peak of their sum is below the
sum of their peaks. Both gaps are those that overcommitment lives from (Bashir et al., Take it to
the limit, EuroSys 2021). Amounts are millicores and bytes.

A pod whose usage is never known is counted and left out. A step at which the usage of another pod
is unknown is left out: a sum without it would be too low.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.model.model_config import RESOURCES

QUANTILES: Final = (0.95, 0.99, 1.0)
"""The quantiles over time whose pooling is measured; the last one is the peak."""
Grouping = Literal["node", "workload", "pool"]

_USAGE, _OF_REQUESTS, _REQUESTS, _OF_LIMITS, _LIMITS, _PODS, _ALONE = range(7)
"""Rows of `_sums`: usage of all pods, of those with a request, of those with a limit, their
requests and limits; number of pods; from the last one on each quantile of the pods' own usage."""
_UNKNOWN: Final = np.full(len(QUANTILES), np.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Usage of the pods that have a request (or limit), by the sum of these: the totals over all
    steps divided, and the highest of a step. NaN if no pod has one."""

    mean: float
    peak: float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Gaps:
    """The gaps of one resource in a group of pods: the fleet, a node, a workload or a node pool.

    Counts: `pods` are stays with known usage, of which some are without request or limit (0);
    `unknown_pods` are the others. `steps` are those with a pod and known usage; at `unknown_steps`
    a pod ran whose usage was unknown then. Without steps all other values are NaN.

    `usage` (q,) are `QUANTILES` of the group's usage over time. `pods_alone` (q,) is the same of
    the sum of the quantiles that the pods present have each on its own. `nodes_alone` (q,) is the
    sum of the `usage` of each node, NaN unless the group is the fleet or a pool.
    """

    resource: str
    level: Literal["fleet"] | Grouping
    name: str
    pods: int
    unknown_pods: int
    pods_without_request: int
    pods_without_limit: int
    steps: int
    unknown_steps: int
    usage_mean: float
    requests_mean: float
    limits_mean: float
    of_requests: Share
    of_limits: Share
    usage: FloatArray
    pods_alone: FloatArray
    nodes_alone: FloatArray

    @property
    def pod_pooling(self) -> FloatArray:
        """`usage` by `pods_alone`, (q,): that of the peak is at most 1, and 1 for a single pod.
        Others may be above 1: rare peaks of many pods are not rare in the sum. NaN if nothing was
        used."""
        return _ratio(self.usage, self.pods_alone)

    @property
    def node_pooling(self) -> FloatArray:
        """`usage` by `nodes_alone`, (q,); that of the peak is at most 1. NaN unless it is the
        fleet or a pool."""
        return _ratio(self.usage, self.nodes_alone)


def measure_gaps(trace: Trace, grouping: Grouping = "node") -> Iterator[Gaps]:
    """Yield the gaps of the fleet, then of each node, workload or node pool by name, for each
    resource of which the usage of any pod is known. Pods without a workload, or on a node without a
    pool, are in no group but the fleet."""
    for r in range(len(RESOURCES)):
        quantiles = _own_quantiles(trace, r)
        if np.isnan(quantiles).all():
            continue
        fleet = np.zeros((_ALONE + len(QUANTILES), trace.steps))
        nodes = []
        for name, stays in _nodes(trace).items():
            # The fleet is the sum of its nodes, added in their order: no rounding puts the peak of
            # the sum above the sum of the peaks.
            sums = _sums(trace, r, quantiles, stays)
            fleet += sums
            nodes.append(_gaps(trace, r, quantiles, stays, sums, level="node", name=name))
        stays, alone = range(len(trace.pods)), _nodes_alone(nodes)
        yield _gaps(trace, r, quantiles, stays, fleet, level="fleet", nodes_alone=alone)
        if grouping == "node":
            yield from nodes
        elif grouping == "workload":
            for name, stays in _workloads(trace).items():
                sums = _sums(trace, r, quantiles, stays)
                yield _gaps(trace, r, quantiles, stays, sums, level="workload", name=name)
        else:
            for name in sorted({*trace.pools} - {""}):
                own = [number for number, pool in enumerate(trace.pools) if pool == name]
                stays = np.flatnonzero(np.isin(trace.node_index, own)).tolist()
                sums = _sums(trace, r, quantiles, stays)
                alone = _nodes_alone([nodes[number] for number in own])
                yield _gaps(
                    trace, r, quantiles, stays, sums, level="pool", name=name, nodes_alone=alone
                )


def _nodes_alone(nodes: Sequence[Gaps]) -> FloatArray:
    """The sum of the usage of these nodes, (q,)."""
    return sum((node.usage for node in nodes if node.steps), start=np.zeros(len(QUANTILES)))


def _nodes(trace: Trace) -> dict[str, Sequence[int]]:
    """The stays of each node."""
    bounds = pairwise(trace.node_starts.tolist())
    return {name: range(*ends) for name, ends in zip(trace.nodes, bounds, strict=True)}


def _workloads(trace: Trace) -> dict[str, Sequence[int]]:
    """The stays of each workload, by name."""
    stays: dict[str, list[int]] = {}
    for stay, name in enumerate(trace.workloads):
        if name:
            stays.setdefault(name, []).append(stay)
    return {name: stays[name] for name in sorted(stays)}


def _own_quantiles(trace: Trace, r: int) -> FloatArray:
    """`QUANTILES` of the known usage of each stay, (n, q); NaN if it is never known."""
    quantiles = np.full((len(trace.pods), len(QUANTILES)), np.nan)
    for stay in range(len(trace.pods)):
        usage = trace.stay_usage(stay)[:, r]
        known = usage[~np.isnan(usage)]
        if len(known):
            quantiles[stay] = _over_time(known)
    return quantiles


def _sums(trace: Trace, r: int, quantiles: FloatArray, stays: Sequence[int]) -> FloatArray:
    """Sums over the pods that run at each step, (rows, steps). All rows of a step at which
    a usage is unknown are NaN."""
    sums = np.zeros((_ALONE + len(QUANTILES), trace.steps))
    factors, constants = np.zeros((2, len(sums), 1))
    limits = trace.set_limits[:, r]
    factors[_USAGE] = constants[_PODS] = 1.0
    for stay in stays:
        if np.isnan(quantiles[stay, 0]):
            continue
        request, limit = trace.requests[stay, r], limits[stay]
        factors[_OF_REQUESTS], factors[_OF_LIMITS] = request > 0.0, limit > 0.0
        constants[_REQUESTS], constants[_LIMITS] = request, limit
        constants[_ALONE:, 0] = quantiles[stay]
        running = slice(int(trace.start[stay]), int(trace.end[stay]))
        sums[:, running] += factors * trace.stay_usage(stay)[:, r] + constants
    return sums


def _gaps(
    trace: Trace,
    r: int,
    quantiles: FloatArray,
    stays: Sequence[int],
    sums: FloatArray,
    *,
    level: Literal["fleet"] | Grouping,
    name: str = "",
    nodes_alone: FloatArray = _UNKNOWN,
) -> Gaps:
    is_known = ~np.isnan(quantiles[stays, 0])
    known = sums[:, sums[_PODS] > 0.0]  # NaN is not
    steps = known.shape[1]
    usage_mean, requests_mean, limits_mean = (
        known[[_USAGE, _REQUESTS, _LIMITS]].mean(axis=1).tolist() if steps else [math.nan] * 3
    )
    return Gaps(
        resource=RESOURCES[r],
        level=level,
        name=name,
        pods=int(is_known.sum()),
        unknown_pods=int((~is_known).sum()),
        pods_without_request=int((is_known & (trace.requests[stays, r] == 0.0)).sum()),
        pods_without_limit=int((is_known & (trace.set_limits[stays, r] == 0.0)).sum()),
        steps=steps,
        unknown_steps=int(np.isnan(sums[_PODS]).sum()),
        usage_mean=usage_mean,
        requests_mean=requests_mean,
        limits_mean=limits_mean,
        of_requests=_share(known[_OF_REQUESTS], known[_REQUESTS]),
        of_limits=_share(known[_OF_LIMITS], known[_LIMITS]),
        usage=_over_time(known[_USAGE]) if steps else _UNKNOWN,
        pods_alone=_each_over_time(known[_ALONE:]) if steps else _UNKNOWN,
        nodes_alone=nodes_alone,
    )


def _over_time(usage: FloatArray) -> FloatArray:
    """`QUANTILES` of known usage (m,), at least one sample, interpolated linearly, (q,)."""
    return np.asarray(np.quantile(usage, QUANTILES))


def _each_over_time(usages: FloatArray) -> FloatArray:
    """The quantile of its own of each of `QUANTILES`, of `usages` (q, m), (q,)."""
    pairs = zip(usages, QUANTILES, strict=True)
    return np.array([np.quantile(usage, quantile) for usage, quantile in pairs])


def _share(usage: FloatArray, amounts: FloatArray) -> Share:
    """Usage (m,) by amounts (m,), over the steps that have any."""
    some = amounts > 0.0
    if not some.any():
        return Share(mean=math.nan, peak=math.nan)
    usage, amounts = usage[some], amounts[some]
    return Share(mean=float(usage.sum() / amounts.sum()), peak=float((usage / amounts).max()))


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Part by whole, NaN where the latter is 0 or unknown."""
    ratio = np.full(len(part), np.nan)
    np.divide(part, whole, out=ratio, where=whole > 0.0)
    return ratio
