"""NodeReservation: move pods off CPUs that their node reserves for processes outside of Kubernetes.

A scheduler gives no pod a reserved CPU. But an annotation that was written, or changed, while pods
had these CPUs for themselves leaves both on the same ones.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import Arrival, Landing, LandingSimulator
from pipeline.processors.descheduling.move_counts import MoveCounts
from pipeline.processors.descheduling.pod_order import eviction_order
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
from pipeline.processors.kubernetes.node_reservation import RESOURCE_STATUS, pinned_cpus

NAME: Final = "NodeReservation"
MOST_MOVES: Final = 32
"""Pods that a plan takes off one node."""
_MOST_SHOWN: Final = 10


@dataclass(frozen=True, kw_only=True)
class ReservationStrategy:
    """Moves the pods that have reserved CPUs of their node for themselves, in the order in which
    pods leave hot nodes. Only nodes that are members (n,) are sources; None is all."""

    node_fit: bool = True
    is_member: BoolArray | None = None
    is_paused: bool = False
    name: str = NAME

    def sources(self, nodes: ClusterNodes) -> IntArray:
        sources = np.array([*nodes.taken_cpus], np.int64)
        if self.is_member is not None:
            sources = sources[self.is_member[sources]]
        counts = np.array([len(nodes.taken_cpus[node]) for node in sources.tolist()], np.int64)
        order: IntArray = sources[np.lexsort((nodes.by_name[sources], -counts))]
        return order

    def plan(self, nodes: ClusterNodes, pods: ClusterPods, landing: LandingSimulator) -> Plan:
        if self.is_paused:
            return unchanged(self.name, nodes, "the strategy is paused")
        sources = with_pods(self.sources(nodes), pods)
        if not len(sources):
            return unchanged(self.name, nodes, "no pod has a reserved CPU for itself")
        arrivals: list[Arrival] = []
        counts = MoveCounts(pods)
        by_name = np.argsort(nodes.by_name)
        plans = [
            self._clear(nodes, pods, node, by_name[by_name != node], landing, arrivals, counts)
            for node in sources.tolist()
        ]
        moves = [move for plan in plans for move in plan.moves]
        usage, prod_usage = projected(nodes, pods, moves)
        reason = "" if moves else "no pod with a reserved CPU may move and fits on another node"
        return Plan(self.name, tuple(plans), reason, usage, prod_usage, len(nodes) - 1)

    def _clear(
        self, nodes: ClusterNodes, pods: ClusterPods, node: int, targets: IntArray,
        landing: LandingSimulator, arrivals: list[Arrival], counts: MoveCounts,
    ) -> SourcePlan:  # fmt: skip
        here, taken = pods.on(node), nodes.taken_cpus[node]
        here = here[eviction_order(pods.ranks.take(here), np.full(len(here), np.nan))]
        moves: list[Move] = []
        stays: list[Stay] = []
        for pod in here.tolist():
            own = taken & pinned_cpus(pods.records[pod].annotations.get(RESOURCE_STATUS, ""))
            if not own:
                continue
            objection = counts.objection(pod)
            if not pods.may_move[pod]:
                objection = pods.objections.get(pod, "it may not move")
            elif len(moves) == MOST_MOVES:
                objection = f"{MOST_MOVES} pods leave the node already"
            if objection is not None:
                stays.append(Stay(pod, objection))
                continue
            found = Landing(None)
            if self.node_fit:
                found = landing.land(pod, targets, arrivals)
                if found.node is None:
                    stays.append(Stay(pod, "no other node takes it", found))
                    continue
                arrivals.append(Arrival(pod, found.node))
            counts.add(pod)
            moves.append(Move(pod, node, found, f"its node reserves {_cpus_text(own)}"))
        is_relieved = bool(moves) and not stays
        return SourcePlan(node, "cpus", (), tuple(moves), tuple(stays[:MOST_STAYS]), is_relieved)


def _cpus_text(cpus: frozenset[int]) -> str:
    first = ", ".join(map(str, sorted(cpus)[:_MOST_SHOWN]))
    more = len(cpus) - _MOST_SHOWN
    return f"CPU {first}" + (f" and {more} more" if more > 0 else "")
