"""Where a moved pod would land: the extender's filters and scores, with the moves planned so far.

Of the nodes that kube-scheduler could choose by its own recorded rules, the one with the highest
score among the coolest is chosen, as a scheduler that asks this extender would. Pods that the plan
puts on a node count with their usage, and where that is unknown with the estimate that filters use.
What leaves a node does not count: it still runs there while the next pod is placed.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.extender.candidate_nodes import CandidateNodes
from pipeline.extender.decisions import Decisions
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import (
    MOST_REJECTED,
    Arrival,
    ArrivalChanges,
    Landing,
    Rejected,
)
from pipeline.processors.descheduling.node_fit import FitSimulator, first_false
from pipeline.processors.scorers.scorer import PodDemand

COMPARED_TARGETS: Final = 64
"""Targets that are filtered and scored at once. kube-scheduler, too, scores only a part of the
nodes of a large cluster."""
_USED: Final = ("cpu", "memory")


class AddedUsage(NamedTuple):
    """What is added to usage of nodes, in all and of Prod, (nodes, 2): cpu in millicores, memory in
    bytes."""

    used: FloatArray
    prod_used: FloatArray


class ExtenderLanding:
    """Lands pods at one moment of the table of `decisions`. `earlier` are the arrivals of earlier
    strategies of the same plan, which the requests of `nodes` include; `incoming` is what pods of
    former plans will use, which may not be on their nodes yet."""

    def __init__(
        self,
        decisions: Decisions,
        nodes: ClusterNodes,
        pods: ClusterPods,
        now: float,
        earlier: Sequence[Arrival] = (),
        incoming: AddedUsage | None = None,
    ) -> None:
        self._decisions, self._nodes, self._pods = decisions, nodes, pods
        self._fit = FitSimulator(nodes, pods)
        self._cluster = decisions.candidates(nodes.names, now)
        self._places = self._cluster.positions
        self._read = set[bool]()
        self._demands: dict[int, PodDemand] = {}
        self._columns = [nodes.resources.index(name) for name in _USED]
        self._arrivals = ArrivalChanges()
        # What arrivals add to each node: counted amounts, usage, and usage of Prod.
        self._names = decisions.rules.counting.names
        self._amounts = np.zeros((len(nodes), len(self._names)), np.int64)
        self._used: FloatArray = np.zeros((len(nodes), len(_USED)))
        self._prod_used: FloatArray = np.zeros_like(self._used)
        if incoming is not None:
            self._used += incoming.used
            self._prod_used += incoming.prod_used
        for arrival in earlier:
            self._add(arrival, 1)

    def land(self, pod: int, targets: IntArray, arrivals: Sequence[Arrival]) -> Landing:
        """Choose one of the targets for a pod; the first of them are compared first."""
        for arrival, count in self._arrivals.since_last(arrivals):
            self._add(arrival, count)
        rejected: tuple[Rejected, ...] = ()
        rejections = first = 0
        while first < len(targets):
            if rejections >= MOST_REJECTED:
                # Nodes that no pod like this may run on stay the coolest: they are passed over.
                is_refused = self._fit.is_refused(pod)[targets[first:]]
                blocks = first_false(is_refused) // COMPARED_TARGETS
                rejections += blocks * COMPARED_TARGETS
                first += blocks * COMPARED_TARGETS
            compared = targets[first : first + COMPARED_TARGETS]
            first += COMPARED_TARGETS
            is_unfit = self._fit.refused(pod, compared, arrivals)
            if is_unfit.any():
                unfit, compared = compared[is_unfit], compared[~is_unfit]
                rejected += self._fit.rejected(pod, unfit)
                rejections += len(unfit)
            best, refused, count = self._best(pod, compared)
            rejections += count
            rejected = (*rejected, *refused)[:MOST_REJECTED]
            if best is not None:
                return Landing(*best, rejected, rejections)
        return Landing(None, None, rejected, rejections)

    def _best(
        self, pod: int, nodes: IntArray
    ) -> tuple[tuple[int, int] | None, list[Rejected], int]:
        """The node with the highest score and its score, None if all refuse the pod, and the nodes
        that refuse it. Of equal scores the first of `nodes` counts."""
        if not len(nodes):
            return None, [], 0
        demand = self._demand(pod)
        candidates = self._with_arrivals(self._cluster.in_order(self._places[nodes]), nodes)
        refusals = self._decisions.refusals(candidates, demand)
        is_refused = candidates.in_requested_order(refusals.is_refused)
        refused = np.flatnonzero(is_refused)
        reasons = [
            Rejected(int(nodes[index]), refusals.detail(int(candidates.positions[index])))
            for index in refused[:MOST_REJECTED].tolist()
        ]
        if len(refused) == len(nodes):
            return None, reasons, len(refused)
        part = candidates.among(np.flatnonzero(~refusals.is_refused))
        scores = self._decisions.scores(part, demand).percent
        best = int(scores.argmax())
        node = int(nodes[~is_refused][best])
        return (node, int(scores[best])), reasons, len(refused)

    def _with_arrivals(self, part: CandidateNodes, nodes: IntArray) -> CandidateNodes:
        """The nodes with the pods that the plan has put on them: their amounts, and their usage."""
        here = nodes[part.order]
        amounts = self._amounts[here]
        if not (amounts.any() or self._used[here].any()):
            return part
        used, prod_used = -self._used[here], -self._prod_used[here]
        return part.reduced(
            -amounts,
            {name: used[:, i] for i, name in enumerate(_USED)},
            {name: prod_used[:, i] for i, name in enumerate(_USED)},
        )

    def _add(self, arrival: Arrival, count: int) -> None:
        """Count an arrival (1), or count it no longer (-1)."""
        pod, node = arrival
        demand = self._demand(pod)
        self._amounts[node] += count * np.fromiter(demand.counted.values(), np.int64)
        used = count * self._pods.expected[pod, self._columns]
        self._used[node] += used
        if demand.is_prod:
            self._prod_used[node] += used

    def _demand(self, pod: int) -> PodDemand:
        if pod not in self._demands:
            demand = self._demands[pod] = self._decisions.demand(self._pods.records[pod])
            if demand.is_prod not in self._read:
                # Parts of the nodes share what is read and compared once of all.
                self._read.add(demand.is_prod)
                self._decisions.refusals(self._cluster, demand)
        return self._demands[pod]
