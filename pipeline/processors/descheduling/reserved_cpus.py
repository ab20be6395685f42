"""NodeReservation: move pods off CPUs that their node reserves for processes outside of Kubernetes.

A scheduler gives no pod a reserved CPU. But an annotation that was written, or changed, while pods
had these CPUs for themselves leaves both on the same ones.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import LandingSimulator
from pipeline.processors.descheduling.planned_moves import PlannedMoves
from pipeline.processors.descheduling.pod_order import eviction_order
from pipeline.processors.descheduling.strategy import (
    MOST_MOVES,
    MOST_STAYS,
    Move,
    Plan,
    SourcePlan,
    Stay,
    planned,
    unchanged,
    with_pods,
)
from pipeline.processors.kubernetes.node_reservation import RESOURCE_STATUS, pinned_cpus

NAME: Final = "NodeReservation"
_MOST_SHOWN: Final = 10


@dataclass(frozen=True, kw_only=True)
class ReservationStrategy:
    """Moves the pods that have reserved CPUs of their node for themselves, in the order in which
    pods leave hot nodes. Only nodes that are members (n,) are sources; None is all."""

    node_fit: bool = True
    is_member: BoolArray | None = None
    name: str = NAME

    def sources(self, nodes: ClusterNodes) -> IntArray:
        sources = np.array([*nodes.taken_cpus], np.int64)
        if self.is_member is not None:
            sources = sources[self.is_member[sources]]
        counts = np.array([len(nodes.taken_cpus[node]) for node in sources.tolist()], np.int64)
        order: IntArray = sources[np.lexsort((nodes.by_name[sources], -counts))]
        return order

    def plan(self, nodes: ClusterNodes, pods: ClusterPods, landing: LandingSimulator) -> Plan:
        sources = with_pods(self.sources(nodes), pods)
        if not len(sources):
            return unchanged(self.name, nodes, "no pod has a reserved CPU for itself")
        planned_moves = PlannedMoves(nodes, pods, landing, node_fit=self.node_fit)
        plans = [_clear(nodes, pods, node, planned_moves) for node in sources.tolist()]
        why_none = "no pod with a reserved CPU may move and fits on another node"
        return planned(self.name, nodes, pods, plans, why_none, len(nodes) - 1)


def _clear(nodes: ClusterNodes, pods: ClusterPods, node: int, planned: PlannedMoves) -> SourcePlan:
    here, taken = pods.on(node), nodes.taken_cpus[node]
    here = here[eviction_order(pods.ranks.take(here), np.full(len(here), np.nan))]
    moves: list[Move] = []
    stays: list[Stay] = []
    for pod in here.tolist():
        own = taken & pinned_cpus(pods.records[pod].annotations.get(RESOURCE_STATUS, ""))
        if not own:
            continue
        if not pods.may_move[pod]:
            stays.append(Stay(pod, pods.objections.get(pod, "it may not move")))
        elif len(moves) == MOST_MOVES:
            stays.append(Stay(pod, f"{MOST_MOVES} pods leave the node already"))
        else:
            why = f"its node reserves {_cpus_text(own)}"
            found = planned.add(pod, planned.others(node), why)
            moves.append(found) if isinstance(found, Move) else stays.append(found)
    is_relieved = bool(moves) and not stays
    return SourcePlan(node, "cpus", (), tuple(moves), tuple(stays[:MOST_STAYS]), is_relieved)


def _cpus_text(cpus: frozenset[int]) -> str:
    first = ", ".join(map(str, sorted(cpus)[:_MOST_SHOWN]))
    more = len(cpus) - _MOST_SHOWN
    return f"CPU {first}" + (f" and {more} more" if more > 0 else "")
