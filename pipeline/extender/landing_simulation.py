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
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
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
_ASKED_IN_GROUPS: Final = 128
"""Targets that are asked before all others are asked at once which of them may take the pod: that
costs as much as some groups, and a pod that no target takes would ask all groups."""
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
        # What arrivals take from each node, which is negative, in the order of the table: counted
        # amounts; usage, in all and of Prod, of each resource.
        names = decisions.rules.counting.names
        self._amounts = np.zeros((len(nodes), len(names)), np.int64)
        self._used: FloatArray = np.zeros((2, len(_USED), len(nodes)))
        if incoming is not None:
            added = np.array([incoming.used.T, incoming.prod_used.T])
            self._used -= added[:, :, self._cluster.order]
        self._has_more: BoolArray = np.logical_or.reduce(self._used, axis=(0, 1))
        self._cluster_with_arrivals = self._with_arrivals()
        for arrival in earlier:
            self._add(arrival, 1)

    def land(self, pod: int, targets: IntArray, arrivals: Sequence[Arrival]) -> Landing:
        """Choose one of the targets for a pod; the first of them are compared first."""
        for arrival, count in self._arrivals.since_last(arrivals):
            self._add(arrival, count)
        rejected: tuple[Rejected, ...] = ()
        rejections = first = 0
        refusing: BoolArray | None = None
        while first < len(targets):
            if rejections >= MOST_REJECTED:
                # Nodes that no pod like this may run on stay the coolest: they are passed over.
                is_refused = self._fit.is_refused(pod)[targets[first:]]
                if refusing is None and first >= _ASKED_IN_GROUPS:
                    refusing = self._fit.has_no_room(pod) | self._refused_by_filters(pod)
                if refusing is not None:
                    is_refused = is_refused | refusing[targets[first:]]
                passed_over = first_false(is_refused)
                if passed_over < len(is_refused):
                    passed_over -= passed_over % COMPARED_TARGETS
                rejections += passed_over
                first += passed_over
            compared = targets[first : first + COMPARED_TARGETS]
            first += COMPARED_TARGETS
            is_unfit = self._fit.refused(pod, compared, arrivals)
            if np.count_nonzero(is_unfit):
                unfit, compared = compared[is_unfit], compared[~is_unfit]
                rejected += self._fit.rejected(pod, unfit[: MOST_REJECTED - len(rejected)])
                rejections += len(unfit)
            best, refused, count = self._best(pod, compared, MOST_REJECTED - len(rejected))
            rejections += count
            rejected += refused
            if best is not None:
                return Landing(*best, rejected, rejections)
        return Landing(None, None, rejected, rejections)

    def _best(
        self, pod: int, nodes: IntArray, named: int
    ) -> tuple[tuple[int, int] | None, tuple[Rejected, ...], int]:
        """The node with the highest score and its score, None if all refuse the pod; the first
        nodes that refuse it, at most `named`; and how many refuse it. Of equal scores the first of
        `nodes` counts."""
        if not len(nodes):
            return None, (), 0
        demand = self._demand(pod)
        candidates = self._candidates(nodes)
        refusals = self._decisions.refusals(candidates, demand)
        is_refused = refusals.is_refused
        refused = np.flatnonzero(is_refused)
        reasons = tuple(
            Rejected(int(nodes[index]), refusals.detail(index))
            for index in refused[:named].tolist()
        )
        if len(refused) == len(nodes):
            return None, reasons, len(refused)
        if len(refused):
            passed = np.flatnonzero(~is_refused)
            nodes, candidates = nodes[passed], candidates.among(passed)
        scores, _ = self._decisions.plugin_scores.weighted(candidates, demand)
        best = int(scores.argmax())
        return (int(nodes[best]), int(scores[best])), reasons, len(refused)

    def _candidates(self, nodes: IntArray) -> CandidateNodes:
        """The nodes with the pods that the plan has put on them: their amounts, and their usage."""
        places = self._places[nodes]
        has_more = np.count_nonzero(self._has_more[places])
        return (self._cluster_with_arrivals if has_more else self._cluster).in_order(places)

    def _with_arrivals(self) -> CandidateNodes:
        """All nodes with the pods that the plan has put on them. Later arrivals count in parts that
        are taken after them."""
        of_all, of_prod = (dict(zip(_USED, less, strict=True)) for less in self._used)
        return self._cluster.reduced(self._amounts, of_all, of_prod)

    def _refused_by_filters(self, pod: int) -> BoolArray:
        """The nodes that filters refuse whichever others there are, (nodes,)."""
        nodes = self._with_arrivals()
        refusals = self._decisions.own_refusals(nodes, self._demand(pod))
        return nodes.in_requested_order(refusals.is_refused)

    def _add(self, arrival: Arrival, count: int) -> None:
        """Count an arrival (1), or count it no longer (-1)."""
        pod, place = arrival.pod, self._places[arrival.node]
        demand = self._demand(pod)
        self._amounts[place] -= count * np.fromiter(demand.counted.values(), np.int64)
        used = count * self._pods.expected[pod, self._columns]
        self._used[: 1 + demand.is_prod, :, place] -= used
        self._has_more[place] = True

    def _demand(self, pod: int) -> PodDemand:
        if pod not in self._demands:
            demand = self._demands[pod] = self._decisions.demand(self._pods.records[pod])
            if demand.is_prod not in self._read:
                # Parts of the nodes share what is read and compared once of all.
                self._read.add(demand.is_prod)
                self._decisions.refusals(self._cluster, demand)
                self._decisions.plugin_scores.weighted(self._cluster, demand)
                self._cluster_with_arrivals = self._with_arrivals()
        return self._demands[pod]
