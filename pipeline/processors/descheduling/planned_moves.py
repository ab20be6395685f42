"""The moves that a strategy has planned so far: each takes room on its target, and counts."""

from collections import Counter
from typing import Final

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import Arrival, Landing, LandingSimulator
from pipeline.processors.descheduling.move_counts import MoveCounts
from pipeline.processors.descheduling.strategy import MOST_FAILED_LANDINGS, Move, Stay

_NOT_TRIED: Final = f"not tried: no node takes {MOST_FAILED_LANDINGS} other pods of its node"


class PlannedMoves:
    """Lands pods one after the other, as far as the caps allow. Without `node_fit` no target is
    looked for."""

    def __init__(
        self, nodes: ClusterNodes, pods: ClusterPods, landing: LandingSimulator, *,
        node_fit: bool = True,
    ) -> None:  # fmt: skip
        self._pods, self._landing, self._node_fit = pods, landing, node_fit
        self._by_name = np.argsort(nodes.by_name)
        self._arrivals: list[Arrival] = []
        self._counts = MoveCounts(pods)
        self._failed: Counter[int] = Counter()

    def others(self, node: int) -> IntArray:
        """All nodes but this one, in the order of their names."""
        order: IntArray = self._by_name[self._by_name != node]
        return order

    def add(
        self, pod: int, targets: IntArray, why: str, nowhere: str = "no other node takes it"
    ) -> Move | Stay:
        """Move a pod to one of the targets, best first, because of `why`; or say why it stays."""
        if (reason := self._counts.objection(pod)) is not None:
            return Stay(pod, reason)
        node = int(self._pods.node[pod])
        if self._failed[node] == MOST_FAILED_LANDINGS:
            return Stay(pod, _NOT_TRIED)
        found = Landing(None)
        if self._node_fit:
            found = self._landing.land(pod, targets, self._arrivals)
            if found.node is None:
                self._failed[node] += 1
                return Stay(pod, nowhere, found)
            self._arrivals.append(Arrival(pod, found.node))
        self._counts.add(pod)
        return Move(pod, node, found, why)

    def remove(self, move: Move) -> None:
        """Let a pod stay after all."""
        self._counts.remove(move.pod)
        self._arrivals[:] = [each for each in self._arrivals if each.pod != move.pod]
