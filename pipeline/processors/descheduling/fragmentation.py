"""FragmentationAware: move the pod that makes a node's resources be requested in unequal shares."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import Arrival, Landing, LandingSimulator
from pipeline.processors.descheduling.move_counts import MoveCounts
from pipeline.processors.descheduling.strategy import (
    MOST_STAYS,
    Move,
    Plan,
    SourcePlan,
    Stay,
    projected,
    unchanged,
    with_pods,
)

NAME: Final = "FragmentationAware"
MOST_TRIED: Final = 5
"""Pods of a node that are tried, most gain first: each asks all targets."""


def imbalance(requested: FloatArray, allocatable: FloatArray) -> FloatArray:
    """The population standard deviation of the requested shares, (...,) of (..., resources).
    Resources of which a node has none do not count.

    >>> imbalance(np.array([500.0, 256.0]), np.array([1000.0, 1024.0])).item()
    0.125
    """
    known = np.broadcast_to(allocatable > 0, requested.shape)
    shares = np.zeros(requested.shape)
    np.divide(requested, allocatable, out=shares, where=known)
    counts = np.maximum(known.sum(axis=-1), 1)
    means = shares.sum(axis=-1) / counts
    squares = np.where(known, (shares - means[..., None]) ** 2, 0.0).sum(axis=-1)
    deviation: FloatArray = np.sqrt(squares / counts)
    return deviation


@dataclass(frozen=True, kw_only=True)
class FragmentationStrategy:
    """Moves at most one pod of each node whose imbalance is above a threshold. Only nodes that are
    members (n,) are sources; None is all."""

    resources: tuple[str, ...] = ("cpu", "memory")
    imbalance_threshold: float = 0.15
    min_improvement: float = 0.02
    node_fit: bool = True
    is_member: BoolArray | None = None
    is_paused: bool = False
    name: str = NAME

    def sources(self, nodes: ClusterNodes) -> IntArray:
        deviation = self._imbalance(nodes)
        above = np.greater(deviation, self.imbalance_threshold)
        sources = np.flatnonzero(above if self.is_member is None else above & self.is_member)
        order: IntArray = sources[np.lexsort((nodes.by_name[sources], -deviation[sources]))]
        return order

    def plan(self, nodes: ClusterNodes, pods: ClusterPods, landing: LandingSimulator) -> Plan:
        if self.is_paused:
            return unchanged(self.name, nodes, "the strategy is paused")
        sources = with_pods(self.sources(nodes), pods)
        if not len(sources):
            return unchanged(self.name, nodes, "no node is out of balance")
        arrivals: list[Arrival] = []
        counts = MoveCounts(pods)
        by_name = np.argsort(nodes.by_name)
        plans = []
        for node in sources.tolist():
            targets = by_name[by_name != node]
            plans.append(self._relieve(nodes, pods, node, targets, landing, arrivals, counts))
        moves = [move for plan in plans for move in plan.moves]
        usage, prod_usage = projected(nodes, pods, moves)
        reason = "" if moves else "no pod that may move improves the balance of its node"
        return Plan(self.name, tuple(plans), reason, usage, prod_usage, len(nodes) - 1)

    def _columns(self, nodes: ClusterNodes) -> list[int]:
        return [nodes.resources.index(name) for name in self.resources]

    def _imbalance(self, nodes: ClusterNodes) -> FloatArray:
        columns = self._columns(nodes)
        return imbalance(nodes.requested[:, columns], nodes.allocatable[:, columns])

    def gains(self, nodes: ClusterNodes, pods: ClusterPods, node: int) -> FloatArray:
        """How much the imbalance of a node falls without each of its pods, in their order."""
        columns = self._columns(nodes)
        requested, allocatable = nodes.requested[node, columns], nodes.allocatable[node, columns]
        wanted = pods.requests[pods.on(node)][:, columns]
        gains: FloatArray = imbalance(requested, allocatable) - imbalance(
            requested - wanted, np.tile(allocatable, (len(wanted), 1))
        )
        return gains

    def _relieve(
        self, nodes: ClusterNodes, pods: ClusterPods, node: int, targets: IntArray,
        landing: LandingSimulator, arrivals: list[Arrival], counts: MoveCounts,
    ) -> SourcePlan:  # fmt: skip
        here, gains = pods.on(node), self.gains(nodes, pods, node)
        helps = (gains > self.min_improvement) & pods.may_move[here]
        tried = 0
        stays: list[Stay] = []
        for index in np.argsort(-gains, kind="stable").tolist():
            pod = int(here[index])
            if not helps[index]:
                continue
            if (reason := counts.objection(pod)) is not None:
                stays.append(Stay(pod, reason))
                continue
            found = Landing(None)
            if self.node_fit:
                found = landing.land(pod, targets, arrivals)
                if found.node is None:
                    stays.append(Stay(pod, "no other node takes it", found))
                    tried += 1
                    if tried == MOST_TRIED:
                        break
                    continue
                arrivals.append(Arrival(pod, found.node))
            why = f"without it the shares of its node deviate by {gains[index]:.3f} less"
            counts.add(pod)
            move = Move(pod, node, found, why)
            return SourcePlan(node, "requests", (), (move,), tuple(stays[:MOST_STAYS]), True)
        return SourcePlan(node, "requests", (), (), tuple(stays[:MOST_STAYS]), False)
