"""What nodes would offer to Mid and Batch at declared risks, by the formulas of workers."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.model.resource_pairs import group_sums
from pipeline.processors.overcommit.mid import DEFAULT_FORMULA, allocated, unmeasured
from pipeline.processors.overcommit.node_offers import mid_and_batch
from pipeline.processors.overcommit.resource_columns import NodeAmounts, PodAmounts, PolicyColumns
from pipeline.processors.policy.springtide_config import BUFFER_PERCENT
from pipeline.processors.report.cluster_usage import ClusterUsage
from pipeline.topics.overcommit_policy import Overcommit

POLICY: Final = Overcommit(buffer_percent=BUFFER_PERCENT)
"""The policy of a node without keys of its own."""


class TierOffers(NamedTuple):
    """Mid and Batch of each node by risk, (risks, k, 2), NaN where unknown."""

    mid: FloatArray
    batch: FloatArray


def tier_offers(usage: ClusterUsage, peaks: FloatArray) -> TierOffers:
    """The offers at `peaks` (risks, k, 2) of Prod.

    Usage of pods is the highest of the last hour. What other processes use is what the node used in
    that hour beyond its pods, on average; where that is unknown, what the kubelet reserves stands
    for it. The requests of Prod pods without usage are added to the peak. An offer is unknown where
    allocatable or the peak is.
    """
    pods = _pods(usage)
    k = len(usage.nodes)
    policies = PolicyColumns([POLICY] * k)
    requests, unmeasured_requests = allocated(k, pods), unmeasured(k, pods)
    mid, batch = np.full((2, *peaks.shape), np.nan)
    nodes = _nodes(usage, pods)
    for i, at_risk in enumerate(peaks):
        known = ~np.isnan(usage.allocatable) & ~np.isnan(at_risk)
        own = nodes._replace(
            prod_peak=_whole(at_risk) + unmeasured_requests, has_peak=known.any(axis=1)
        )
        tiers = mid_and_batch(own, pods, requests, policies, [DEFAULT_FORMULA] * k)
        mid[i, known], batch[i, known] = (tier.amount[known] for tier in tiers)
    return TierOffers(mid, batch)


def _pods(usage: ClusterUsage) -> PodAmounts:
    (running,) = usage.runs.nonzero()
    last = usage.highest[running, -1]
    is_measured = ~np.isnan(usage.highest).all(axis=(0, 1))
    count = len(running)
    return PodAmounts(
        node=usage.node_index[running],
        class_code=usage.classes[running],
        is_lse=np.zeros(count, np.bool_),
        is_listed=np.ones(count, np.bool_),
        has_usage=~np.isnan(last[:, is_measured]).any(axis=1),
        request=_whole(usage.requests[running]),
        usage=_whole(last),
    )


def _nodes(usage: ClusterUsage, pods: PodAmounts) -> NodeAmounts:
    k, allocatable = len(usage.nodes), _whole(usage.allocatable)
    capacity = np.maximum(_whole(usage.capacity), allocatable)
    reserved = capacity - allocatable
    of_pods = np.zeros((k, 2), np.int64)
    np.add.at(of_pods, pods.node[pods.has_usage], pods.usage[pods.has_usage])
    last = usage.node_usage[:, -1]
    is_measured: BoolArray = ~np.isnan(last)
    # The highest usage of all pods together would be more than the average of their node.
    means = group_sums(pods.node, np.nan_to_num(usage.last_mean[usage.runs]), k)
    system = np.where(is_measured, np.maximum(_whole(last) - _whole(means), 0), 0)
    nothing: IntArray = np.zeros((k, 2), np.int64)
    return NodeAmounts(
        capacity=capacity,
        allocatable=allocatable,
        kubelet_reserved=reserved,
        annotated_reserved=nothing,
        usage=of_pods + np.where(is_measured, system, reserved),
        has_usage=np.ones(k, np.bool_),
        system=system,
        prod_apps=nothing,
        mid_apps=nothing,
        reclaimable=nothing,
        prod_peak=nothing,
        has_peak=np.zeros(k, np.bool_),
    )


def _whole(amounts: FloatArray) -> IntArray:
    """Whole millicores and bytes, rounded up; 0 where unknown."""
    return np.ceil(np.nan_to_num(amounts)).astype(np.int64)
