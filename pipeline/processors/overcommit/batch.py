"""Batch: the capacity of a node that usage or requests of Prod and Mid leave.

Formulas and names of the policies are those of
[Koordinator](https://koordinator.sh/docs/architecture/resource-model).
"""

from typing import NamedTuple

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.pairs import pairs
from pipeline.processors.overcommit.resource_columns import (
    MAX_USAGE_REQUEST,
    NO_LIMIT,
    REQUEST,
    NodeAmounts,
    PodAmounts,
    Strategies,
    by_node,
    percent_of,
)


class Batch(NamedTuple):
    """The amounts (nodes, 2) and their terms.

    `outside` is for processes outside of Kubernetes: their usage or reservation. The policy takes
    `used`, `requested` or `larger` for Prod and Mid; `promised` goes to Mid beyond that.
    """

    amount: IntArray
    margin: IntArray
    outside: IntArray
    reserved: IntArray
    used: IntArray
    requested: IntArray
    larger: IntArray
    promised: IntArray


def batch(
    nodes: NodeAmounts, pods: PodAmounts, strategies: Strategies, mid: IntArray | None = None
) -> Batch:
    """Compute Batch of each node; `mid` (nodes, 2) is the amount promised to Mid.

    Idle capacity is promised once, and first to Mid, which Batch yields to anyway. The policy
    already counts usage or requests of Mid's pods; the rest of `mid` is not left for Batch. Without
    `mid` both tiers are computed independently, as Koordinator does.

    A pod without usage counts its request, an LSE pod always its request of cpu. Usage without a
    listed pod counts, too. Under maxUsageRequest pods without usage count their request;
    Koordinator leaves them out at the level of nodes, so that new pods cause a gap.
    """
    count = len(nodes.capacity)
    pods = pods.of(~pods.is_low & (pods.is_listed | pods.has_usage))
    listed, every = pods.is_listed, np.ones(len(pods.node), bool)
    usage = np.where(pairs(pods.has_usage), pods.usage, pods.request)
    counted = usage.copy()
    held = pods.is_lse & listed
    counted[held, 0] = pods.request[held, 0]
    larger = np.maximum(usage, np.where(pairs(listed), pods.request, 0))
    margin = percent_of(nodes.capacity, 100 - strategies.reclaim_percent)
    reserved = nodes.reserved
    outside = np.maximum(nodes.system + nodes.prod_apps + nodes.mid_apps, reserved)
    used = by_node(count, pods, counted, every)
    requested = by_node(count, pods, pods.request, listed)
    of_larger = by_node(count, pods, larger, every)
    by_request = strategies.policy == REQUEST
    by_larger = strategies.policy == MAX_USAGE_REQUEST

    def as_policy(of_requests: IntArray, of_larger: IntArray, of_usage: IntArray) -> IntArray:
        return np.select([by_request, by_larger], [of_requests, of_larger], of_usage)

    taken = as_policy(reserved + requested, outside + of_larger, outside + used)
    promised = np.zeros_like(taken)
    if mid is not None:
        is_mid = pods.class_code == CLASS_CODES["mid"]
        counted_of_mid = as_policy(
            by_node(count, pods, pods.request, listed & is_mid),
            by_node(count, pods, larger, is_mid),
            by_node(count, pods, counted, is_mid),
        )
        promised = np.maximum(mid - counted_of_mid, 0)
    left = np.maximum(nodes.capacity - margin - taken - promised, 0)
    limit = percent_of(nodes.capacity, strategies.batch_percent)
    amount = np.where(strategies.batch_percent == NO_LIMIT, left, np.minimum(left, limit))
    return Batch(amount, margin, outside, reserved, used, requested, of_larger, promised)
