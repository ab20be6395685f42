"""Batch: what is left of a node's capacity beside what Prod and Mid use, or asked for.

Formulas and names of the policies: colocation 9.
"""

from typing import NamedTuple

import numpy as np

from pipeline.processors.overcommit.facts import (
    MAX_USAGE_REQUEST,
    NO_LIMIT,
    REQUEST,
    IntArray,
    Nodes,
    Pods,
    Strategies,
    by_node,
    percent_of,
)


class Batch(NamedTuple):
    """The amounts (nodes, 2), and the terms that they come from.

    `outside` is what goes to those outside of Kubernetes, by what they use or what is reserved; one
    of `used`, `requested` and `larger` goes to Prod and Mid, as the policy has it.
    """

    amount: IntArray
    margin: IntArray
    outside: IntArray
    reserved: IntArray
    used: IntArray
    requested: IntArray
    larger: IntArray


def batch(nodes: Nodes, pods: Pods, strategies: Strategies) -> Batch:
    """What each node has for Batch.

    A pod without usage counts what it asked for, an LSE pod all the cpu that it asked for; a usage
    without a listed pod counts, too. Under maxUsageRequest pods without usage count their request:
    upstream leaves them out at the level of nodes, so that fresh pods open a gap (colocation 17).
    """
    count = len(nodes.capacity)
    high = ~pods.is_low
    listed, measured = high & pods.is_listed, high & pods.has_usage
    usage = np.where(pods.has_usage[:, None], pods.usage, pods.request)
    counted = usage.copy()
    held = pods.is_lse & pods.is_listed
    counted[held, 0] = pods.request[held, 0]
    larger = np.maximum(usage, np.where(pods.is_listed[:, None], pods.request, 0))
    counts = listed | measured
    margin = percent_of(nodes.capacity, 100 - strategies.reclaim_percent)
    reserved = nodes.reserved
    outside = np.maximum(nodes.system + nodes.prod_apps + nodes.mid_apps, reserved)
    used = by_node(count, pods, counted, counts)
    requested = by_node(count, pods, pods.request, listed)
    of_larger = by_node(count, pods, larger, counts)
    by_request = strategies.policy == REQUEST
    taken = np.select(
        [by_request, strategies.policy == MAX_USAGE_REQUEST],
        [reserved + requested, outside + of_larger],
        outside + used,
    )
    left = np.maximum(nodes.capacity - margin - taken, 0)
    limit = percent_of(nodes.capacity, strategies.batch_percent)
    amount = np.where(strategies.batch_percent == NO_LIMIT, left, np.minimum(left, limit))
    return Batch(amount, margin, outside, reserved, used, requested, of_larger)
