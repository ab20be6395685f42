"""Plan evictions of a replayed trace: LowNodeLoad for nodes with an open alert, as the planner.

The selection of pods is the planner's own, with its room of targets and its limits. Simplified is
where a pod lands: on the least used target with room for its requests, because a trace has no
scheduler. Every pod may be evicted, and a pod that moved rests as the workload of one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.backtest.what_if import Moment
from pipeline.processors.descheduling.cluster_columns import (
    ClusterNodes,
    ClusterPods,
    MoveCaps,
    PodRanks,
)
from pipeline.processors.descheduling.configured_strategies import (
    low_node_load_strategies,
    measured_pools,
    pools_of_configuration,
    why_off,
)
from pipeline.processors.descheduling.cool_downs import WORKLOAD_REST_SECONDS
from pipeline.processors.descheduling.descheduler_config import LOW_NODE_LOAD, Descheduling
from pipeline.processors.descheduling.eviction_policy import migration_policy
from pipeline.processors.descheduling.landing import Arrival, Landing
from pipeline.processors.descheduling.node_fit import FitSimulator
from pipeline.processors.descheduling.strategy import after_plan
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.model_config import RESOURCES
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources

_RESTS: Final = "it moved less than half an hour ago"


class ReplayedRelief:
    """Plans for the nodes `names`, which can hand out `capacity` (k, 2) millicores and bytes."""

    def __init__(
        self, names: Sequence[str], capacity: FloatArray, descheduling: Descheduling
    ) -> None:
        self._names: Final = names
        self._capacity: Final = capacity
        low = descheduling.low_node_load
        pools = [] if low is None else pools_of_configuration(
            low, [{}] * len(names), descheduling.node_selectors
        )  # fmt: skip
        self._pools, _ = measured_pools(pools, RESOURCES)
        self._low: Final = low
        profile = descheduling.detecting
        self._off: Final = "" if profile is None else why_off(profile, LOW_NODE_LOAD)
        limits = migration_policy(descheduling).limits
        self._caps: Final = MoveCaps(
            limits.cycle_total, limits.cycle_per_node, limits.cycle_per_namespace
        )

    def moves(self, moment: Moment) -> list[tuple[int, int]]:
        """The pods that would leave, by their place in `moment.pods`, each with its target."""
        if self._low is None or self._off or not moment.has_alert.any():
            return []
        nodes, pods = self._nodes(moment), self._cluster_pods(moment)
        moved: list[tuple[int, int]] = []
        for configured in low_node_load_strategies(
            self._pools, self._low.args, confirmed=moment.has_alert
        ):
            own = configured.pods.apply(pods)
            plan = configured.plan(nodes, own, _LeastUsed(nodes, own))
            moved += [(move.pod, move.target) for move in plan.moves if move.target is not None]
            nodes, pods = after_plan(nodes, pods, plan)
        return moved

    def _nodes(self, moment: Moment) -> ClusterNodes:
        requested = np.zeros_like(self._capacity)
        np.add.at(requested, moment.node, moment.requests)
        return ClusterNodes(
            names=self._names,
            resources=RESOURCES,
            capacity=self._capacity,
            usage=moment.usage,
            prod_usage=moment.usage,
            allocatable=self._capacity,
            requested=requested,
            is_cordoned=np.zeros(len(self._names), np.bool_),
            labels=[{}] * len(self._names),
            taints=[()] * len(self._names),
        )

    def _cluster_pods(self, moment: Moment) -> ClusterPods:
        count = len(moment.pods)
        rests = moment.seconds_since_move < WORKLOAD_REST_SECONDS
        records = [
            _record(pod, self._names[node], requests)
            for pod, node, requests in zip(
                moment.pods, moment.node.tolist(), moment.requests.tolist(), strict=True
            )
        ]
        return ClusterPods(
            node=moment.node,
            usage=moment.pod_usage,
            expected=np.where(np.isnan(moment.pod_usage), moment.requests, moment.pod_usage),
            requests=moment.requests,
            is_prod=np.ones(count, np.bool_),
            may_move=~rests,
            ranks=_equal_ranks(count),
            records=records,
            objections=dict.fromkeys(np.flatnonzero(rests).tolist(), _RESTS),
            caps=self._caps,
        )


class _LeastUsed:
    """Lands each pod on the least used target that has room for its requests."""

    def __init__(self, nodes: ClusterNodes, pods: ClusterPods) -> None:
        self._nodes, self._pods = nodes, pods
        self._fit = FitSimulator(nodes, pods)

    def land(self, pod: int, targets: IntArray, arrivals: Sequence[Arrival]) -> Landing:
        usage = self._nodes.usage.copy()
        for arrival in arrivals:
            usage[arrival.node] += self._pods.expected[arrival.pod]
        capacity = self._nodes.capacity[targets]
        shares = np.zeros_like(capacity)
        np.divide(usage[targets], capacity, out=shares, where=capacity > 0)
        order = np.lexsort((self._nodes.by_name[targets], shares.max(axis=1)))
        return self._fit.land(pod, targets[order], arrivals)


def _record(pod: str, node: str, requests: Sequence[float]) -> PodRecord:
    cpu, memory = requests
    return PodRecord(
        node=node, uid=pod, cgroup_uid=pod, namespace="default", name=pod, pod_class="prod",
        requests=Resources(cpu_millicores=round(cpu), memory_bytes=round(memory)),
        phase="Running",
    )  # fmt: skip


def _equal_ranks(count: int) -> PodRanks:
    """All pods are alike: how well their usage fits decides."""
    zeros = np.zeros(count, np.int64)
    return PodRanks(
        pod_class=np.full(count, CLASS_CODES["prod"], np.int64), priority=zeros, kube_qos=zeros,
        qos=zeros, deletion_cost=zeros, eviction_cost=zeros, created_seconds=np.zeros(count),
    )  # fmt: skip
