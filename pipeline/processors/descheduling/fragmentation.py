"""FragmentationAware: move the pod that makes a node's resources be requested in unequal shares."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import LandingSimulator
from pipeline.processors.descheduling.planned_moves import PlannedMoves
from pipeline.processors.descheduling.strategy import (
    MOST_STAYS,
    Move,
    Plan,
    SourcePlan,
    Stay,
    planned,
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
    name: str = NAME

    def sources(self, nodes: ClusterNodes) -> IntArray:
        deviation = self._imbalance(nodes)
        above = np.greater(deviation, self.imbalance_threshold)
        sources = np.flatnonzero(above if self.is_member is None else above & self.is_member)
        order: IntArray = sources[np.lexsort((nodes.by_name[sources], -deviation[sources]))]
        return order

    def plan(self, nodes: ClusterNodes, pods: ClusterPods, landing: LandingSimulator) -> Plan:
        sources = with_pods(self.sources(nodes), pods)
        if not len(sources):
            return unchanged(self.name, nodes, "no node is out of balance")
        planned_moves = PlannedMoves(nodes, pods, landing, node_fit=self.node_fit)
        plans = [self._relieve(nodes, pods, node, planned_moves) for node in sources.tolist()]
        why_none = "no pod that may move improves the balance of its node"
        return planned(self.name, nodes, pods, plans, why_none, len(nodes) - 1)

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
        self, nodes: ClusterNodes, pods: ClusterPods, node: int, planned: PlannedMoves
    ) -> SourcePlan:
        here, gains = pods.on(node), self.gains(nodes, pods, node)
        helps = (gains > self.min_improvement) & pods.may_move[here]
        moves: list[Move] = []
        stays: list[Stay] = []
        tried = 0
        for index in np.argsort(-gains, kind="stable").tolist():
            if moves or tried == MOST_TRIED:
                break
            if not helps[index]:
                continue
            why = f"without it the shares of its node deviate by {gains[index]:.3f} less"
            found = planned.add(int(here[index]), planned.others(node), why)
            if isinstance(found, Move):
                moves.append(found)
            else:
                stays.append(found)
                tried += found.landing is not None
        return SourcePlan(
            node, "requests", (), tuple(moves), tuple(stays[:MOST_STAYS]), bool(moves)
        )
