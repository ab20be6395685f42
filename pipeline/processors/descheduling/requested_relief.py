"""NodeRequests: move pods off nodes that ask for it.

A request says how much usage should leave, and of which classes of pods, or it names the pods. A
plan answers it under the same caps, cool-downs and limits as any other.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import LandingSimulator
from pipeline.processors.descheduling.node_requests import NodeRequest
from pipeline.processors.descheduling.planned_moves import PlannedMoves
from pipeline.processors.descheduling.pod_order import eviction_order, fit_scores
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

NAME: Final = "NodeRequests"
_COLUMNS: Final = ("cpu", "memory")


@dataclass(frozen=True, kw_only=True)
class RequestStrategy:
    """Moves the pods that fit a request best, in the order in which pods leave hot nodes. Only
    nodes that are members (n,) are sources; None is all."""

    node_fit: bool = True
    is_member: BoolArray | None = None
    name: str = NAME

    def sources(self, nodes: ClusterNodes) -> IntArray:
        """The nodes that ask, in the order of their requests."""
        sources: IntArray = np.array([*nodes.asked], np.int64)
        return sources if self.is_member is None else sources[self.is_member[sources]]

    def plan(self, nodes: ClusterNodes, pods: ClusterPods, landing: LandingSimulator) -> Plan:
        sources = with_pods(self.sources(nodes), pods)
        if not len(sources):
            return unchanged(self.name, nodes, "no node asks for relief")
        relief = _Relief(nodes, pods, landing, node_fit=self.node_fit)
        plans = [relief.relieve(node) for node in sources.tolist()]
        why_none = "no pod that may move fits on another node"
        return planned(self.name, nodes, pods, plans, why_none, len(nodes) - 1)


class _Relief:
    """Relieves one node after the other."""

    def __init__(
        self, nodes: ClusterNodes, pods: ClusterPods, landing: LandingSimulator, *, node_fit: bool
    ) -> None:
        self._nodes, self._pods = nodes, pods
        self._columns = [nodes.resources.index(name) for name in _COLUMNS]
        self._planned = PlannedMoves(nodes, pods, landing, node_fit=node_fit)

    def relieve(self, node: int) -> SourcePlan:
        pods, request = self._pods, self._nodes.asked[node]
        if request.pods:
            return self._relieve_of(node, request)
        wanted = np.array([request.cpu_millicores, request.memory_bytes], np.float64)
        left, why = wanted.copy(), _why(request)
        usage = pods.usage[:, self._columns]
        here = [*pods.on(node).tolist()]
        waiting = [pod for pod in here if self._may_help(pod, request.classes, usage, wanted)]
        moves: list[Move] = []
        stays = [
            Stay(pod, pods.objections[pod])
            for pod in here
            if pods.records[pod].pod_class in request.classes and pod in pods.objections
        ]
        while waiting and (left > 0).any() and len(moves) < MOST_MOVES:
            pod = self._next(waiting, usage, left)
            waiting.remove(pod)
            found = self._planned.add(pod, self._planned.others(node), why)
            if isinstance(found, Stay):
                stays.append(found)
                continue
            moves.append(found)
            left -= usage[pod]
        is_relieved = not (left > 0).any()
        self._give_back(moves, left, usage)
        return SourcePlan(node, "request", (), tuple(moves), tuple(stays[:MOST_STAYS]), is_relieved)

    def _relieve_of(self, node: int, request: NodeRequest) -> SourcePlan:
        """Move the pods that the request names, in its order. It names those that help: what they
        use is not compared with anything."""
        pods = self._pods
        here = {pods.records[pod].uid: pod for pod in pods.on(node).tolist()}
        named = [here[uid] for uid in dict.fromkeys(request.pods) if uid in here]
        moves: list[Move] = []
        stays: list[Stay] = []
        for pod in named:
            if pods.records[pod].pod_class not in request.classes:
                stays.append(Stay(pod, "its class is none of those that may leave"))
                continue
            if not pods.may_move[pod]:
                stays.append(Stay(pod, pods.objections[pod]))
                continue
            if len(moves) == MOST_MOVES:
                break
            found = self._planned.add(pod, self._planned.others(node), _why(request))
            if isinstance(found, Stay):
                stays.append(found)
            else:
                moves.append(found)
        is_relieved = len(moves) == len(named)
        return SourcePlan(node, "request", (), tuple(moves), tuple(stays[:MOST_STAYS]), is_relieved)

    def _may_help(
        self, pod: int, classes: Collection[str], usage: FloatArray, wanted: FloatArray
    ) -> bool:
        """Whether the pod may move, and is known to use a resource that is asked for."""
        is_known = not np.isnan(usage[pod]).any()
        helps = is_known and bool((usage[pod][wanted > 0] > 0).any())
        return (
            helps and bool(self._pods.may_move[pod])
            and self._pods.records[pod].pod_class in classes
        )  # fmt: skip

    def _next(self, waiting: list[int], usage: FloatArray, left: FloatArray) -> int:
        """The pod that leaves next: by rank, then by how well it fits what is left."""
        pods = np.array(waiting, np.int64)
        fits = fit_scores(usage[pods], left, (left > 0).astype(np.float64))
        return waiting[int(eviction_order(self._pods.ranks.take(pods), fits)[0])]

    def _give_back(self, moves: list[Move], left: FloatArray, usage: FloatArray) -> None:
        """Let pods stay without which the request would be met as well, the last ones first."""
        for move in reversed(moves[:]):
            if (left + usage[move.pod] <= 0).all():
                left += usage[move.pod]
                moves.remove(move)
                self._planned.remove(move)


def _why(request: NodeRequest) -> str:
    return f"the node asks for relief: {request.why}"
