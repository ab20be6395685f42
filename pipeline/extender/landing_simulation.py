"""Where a moved pod would land: the extender's filters and scores, with the moves planned so far.

Of the nodes that kube-scheduler could choose by its own recorded rules, the one with the highest
score among the coolest is chosen, as a scheduler that asks this extender would.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from pipeline.extender.candidate_nodes import CandidateNodes
from pipeline.extender.decisions import Decisions
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import MOST_REJECTED, Arrival, Landing, Rejected
from pipeline.processors.descheduling.node_fit import FitSimulator
from pipeline.processors.scorers.scorer import PodDemand

COMPARED_TARGETS: Final = 64
"""Targets that are filtered and scored at once. kube-scheduler, too, scores only a part of the
nodes of a large cluster."""
_USED: Final = ("cpu", "memory")


class ExtenderLanding:
    """Lands pods at one moment of the table of `decisions`."""

    def __init__(
        self, decisions: Decisions, nodes: ClusterNodes, pods: ClusterPods, now: float
    ) -> None:
        self._decisions, self._nodes, self._pods = decisions, nodes, pods
        self._fit = FitSimulator(nodes, pods)
        self._now = now
        self._demands: dict[int, PodDemand] = {}

    def land(self, pod: int, targets: IntArray, arrivals: Sequence[Arrival]) -> Landing:
        """Choose one of the targets for a pod; the first of them are compared first."""
        rejected: list[Rejected] = []
        rejections = 0
        for first in range(0, len(targets), COMPARED_TARGETS):
            compared = targets[first : first + COMPARED_TARGETS]
            reasons = self._fit.objections(pod, compared, arrivals)
            nodes = compared.tolist()
            feasible = [n for n, reason in zip(nodes, reasons, strict=True) if reason is None]
            unfit = [
                Rejected(n, reason) for n, reason in zip(nodes, reasons, strict=True) if reason
            ]
            best, refused, count = self._best(pod, feasible, arrivals)
            rejections += len(unfit) + count
            rejected = [*rejected, *unfit, *refused][:MOST_REJECTED]
            if best is not None:
                return Landing(*best, tuple(rejected), rejections)
        return Landing(None, None, tuple(rejected), rejections)

    def _best(
        self, pod: int, nodes: Sequence[int], arrivals: Sequence[Arrival]
    ) -> tuple[tuple[int, int] | None, list[Rejected], int]:
        """The node with the highest score and its score, None if all refuse the pod, and the nodes
        that refuse it. Of equal scores the first of `nodes` counts."""
        if not nodes:
            return None, [], 0
        names = [self._nodes.names[node] for node in nodes]
        candidates = self._decisions.candidates(names, self._now)
        candidates = self._with_arrivals(candidates, nodes, arrivals)
        demand = self._demand(pod)
        refusals = self._decisions.refusals(candidates, demand)
        passes = np.flatnonzero(~refusals.is_refused)
        of_node = refusals.take(candidates.positions)
        refused = np.flatnonzero(of_node.is_refused).tolist()
        reasons = [
            Rejected(nodes[position], of_node.detail(position))
            for position in refused[:MOST_REJECTED]
        ]
        if not len(passes):
            return None, reasons, len(refused)
        scores = self._decisions.scores(candidates.among(passes), demand).percent
        best = int(scores.argmax())
        node = nodes[int(np.flatnonzero(~of_node.is_refused)[best])]
        return (node, int(scores[best])), reasons, len(refused)

    def _with_arrivals(
        self, part: CandidateNodes, nodes: Sequence[int], arrivals: Sequence[Arrival]
    ) -> CandidateNodes:
        """The nodes with the pods that the plan has put on them: their amounts, and their usage."""
        place_of = {node: place for place, node in enumerate(nodes)}
        here = [arrival for arrival in arrivals if arrival.node in place_of]
        if not here:
            return part
        names = part.counted_names
        amounts = np.zeros((len(nodes), len(names)), np.int64)
        used: FloatArray = np.zeros((len(nodes), len(_USED)))
        columns = [self._nodes.resources.index(name) for name in _USED]
        positions = part.positions
        for arrival in here:
            position = positions[place_of[arrival.node]]
            counted = self._demand(arrival.pod).counted
            amounts[position] -= [counted[name] for name in names]
            used[position] -= np.nan_to_num(self._pods.usage[arrival.pod, columns])
        return part.reduced(amounts, {name: used[:, i] for i, name in enumerate(_USED)})

    def _demand(self, pod: int) -> PodDemand:
        if pod not in self._demands:
            self._demands[pod] = self._decisions.demand(self._pods.records[pod])
        return self._demands[pod]
