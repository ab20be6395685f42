"""Keep targets below the high limits of their pools, for strategies that do not go by usage.

The limits are those of LowNodeLoad. Without this check a strategy that goes by requests could make
a node hot, which pods would have to leave again.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.descheduling.bookings import TargetLimits
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.configured_strategies import PoolNodes
from pipeline.processors.descheduling.landing import (
    MOST_REJECTED,
    Arrival,
    ArrivalChanges,
    Landing,
    LandingSimulator,
    Rejected,
)
from pipeline.processors.descheduling.node_limits import node_limits, watched_resources
from pipeline.processors.descheduling.resting_targets import land_elsewhere


def limits_of_pools(pools: Sequence[PoolNodes], nodes: ClusterNodes) -> TargetLimits:
    """The high limits of all nodes, (nodes, resources): infinity where no pool limits one."""
    shape = len(nodes), len(nodes.resources)
    high, prod_high = np.full(shape, np.inf), np.full(shape, np.inf)
    for pool, is_member in pools:
        resources = watched_resources(pool)
        columns = np.array([nodes.resources.index(name) for name in resources])
        of_pool = np.ix_(np.flatnonzero(is_member), columns)
        limits = node_limits(
            pool, resources, nodes.capacity[of_pool], nodes.usage[of_pool],
            nodes.prod_usage[of_pool],
        )  # fmt: skip
        high[of_pool] = limits.high
        named = {*pool.prod_low_percent, *pool.prod_high_percent}
        is_watched = np.array([name in named for name in resources], np.bool_)
        prod_high[of_pool] = np.where(is_watched, limits.prod_high, np.inf)
    is_prod_watched = ~np.isinf(prod_high).all(axis=0)
    return TargetLimits(high, prod_high, is_prod_watched)


class CoolTargets:
    """Lands each pod where `landing` does, among the targets that stay within their limits: usage,
    and for Prod pods usage of Prod, with the pod and all arrivals. What leaves a node in the same
    plan does not count. A node with limits and unknown usage takes no pod."""

    def __init__(
        self,
        landing: LandingSimulator,
        nodes: ClusterNodes,
        pods: ClusterPods,
        limits: TargetLimits,
    ) -> None:
        self._landing, self._nodes, self._pods, self._limits = landing, nodes, pods, limits
        self._usage, self._prod_usage = nodes.usage.copy(), nodes.prod_usage.copy()
        self._arrivals = ArrivalChanges()

    def land(self, pod: int, targets: IntArray, arrivals: Sequence[Arrival]) -> Landing:
        """Choose one of the targets that stay cool."""
        for arrival, count in self._arrivals.since_last(arrivals):
            added = count * self._pods.expected[arrival.pod]
            self._usage[arrival.node] += added
            if self._pods.is_prod[arrival.pod]:
                self._prod_usage[arrival.node] += added
        land = partial(self._land, pod, arrivals)
        return land_elsewhere(self._pods, pod, targets, land)

    def _land(self, pod: int, arrivals: Sequence[Arrival], targets: IntArray) -> Landing:
        exceeded = self._exceeded(pod, targets)
        is_hot: BoolArray = np.logical_or.reduce(exceeded, axis=1)
        refused = np.flatnonzero(is_hot)
        rejected = [
            Rejected(int(targets[place]), self._reason(int(targets[place]), exceeded[place]))
            for place in refused[:MOST_REJECTED].tolist()
        ]
        if len(refused) == len(targets):
            return Landing(None, None, tuple(rejected), len(refused))
        landing = self._landing.land(pod, targets[~is_hot], arrivals)
        return landing._replace(
            rejected=(*landing.rejected, *rejected)[:MOST_REJECTED],
            rejections=landing.rejections + len(refused),
        )

    def _exceeded(self, pod: int, targets: IntArray) -> BoolArray:
        """The resources of which each target would use too much, or unknown amounts."""
        expected, limits = self._pods.expected[pod], self._limits
        exceeded = _is_beyond(self._usage[targets] + expected, limits.high[targets])
        if self._pods.is_prod[pod] and limits.is_prod_watched.any():
            prod = self._prod_usage[targets] + expected
            exceeded |= _is_beyond(prod, limits.prod_high[targets])
        # A pod that uses nothing of a resource does not change what a target uses of it.
        used: BoolArray = np.not_equal(expected, 0)
        result: BoolArray = exceeded & used
        return result

    def _reason(self, node: int, exceeded: BoolArray) -> str:
        first = int(exceeded.argmax())
        name = self._nodes.resources[first]
        if np.isnan(self._usage[node, first]):
            return f"usage of {name} is unknown"
        return f"usage of {name} would exceed the high limit of its pool"


def _is_beyond(usage: FloatArray, limits: FloatArray) -> BoolArray:
    """Where usage is above a limit, or unknown where there is one."""
    beyond: BoolArray = ~(usage <= limits) & ~np.isinf(limits)
    return beyond
