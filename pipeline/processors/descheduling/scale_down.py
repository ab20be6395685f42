"""ScaleDownBinPack: move pods off the nodes that become empty first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import LandingSimulator
from pipeline.processors.descheduling.planned_moves import PlannedMoves
from pipeline.processors.descheduling.strategy import Move, Plan, SourcePlan, Stay, planned

NAME: Final = "ScaleDownBinPack"
MOST_TRIED: Final = 100
"""Pods that are tried in a plan: each asks all targets."""


class Ranking(NamedTuple):
    """Pods in the order in which they leave, and the score (nodes,) of the nodes: what would keep a
    node in use, in parts of what may leave it; NaN for nodes that no pod may leave."""

    pods: IntArray
    scores: FloatArray


def rank(
    nodes: ClusterNodes, pods: ClusterPods, resources: Sequence[str], weights: Mapping[str, float]
) -> Ranking:
    """Rank the pods that may move: of the node with the lowest score first, then of the node with
    the fewest of them; on a node the largest share first, then the newest."""
    columns = [nodes.resources.index(name) for name in resources]
    weight = np.array([weights.get(name, 1.0) for name in resources])
    allocatable = nodes.allocatable[:, columns]
    shares = np.zeros((len(pods), len(columns)))
    of_node = allocatable[pods.node]
    np.divide(pods.requests[:, columns], of_node, out=shares, where=of_node > 0)
    share = shares @ weight
    leaving = np.bincount(pods.node, share * pods.may_move, minlength=len(nodes))
    staying = np.bincount(pods.node, share * ~pods.may_move, minlength=len(nodes))
    counts = np.bincount(pods.node[pods.may_move], minlength=len(nodes))
    scores = np.where(staying > 0, np.inf, 0.0)
    np.divide(staying, leaving, out=scores, where=leaving > 0)
    scores[counts == 0] = np.nan
    names = pods.records

    def key(pod: int) -> tuple[float | int | str, ...]:
        node, record = int(pods.node[pod]), names[pod]
        return (
            float(scores[node]), int(counts[node]), int(nodes.by_name[node]), -float(share[pod]),
            -float(pods.ranks.created_seconds[pod]), record.namespace, record.name,
        )  # fmt: skip

    order = sorted(np.flatnonzero(pods.may_move).tolist(), key=key)
    return Ranking(np.array(order, np.int64), scores)


@dataclass(frozen=True, kw_only=True)
class ScaleDownStrategy:
    """Moves the first `most_pods` pods of the ranking that another node takes."""

    most_pods: int
    resources: tuple[str, ...] = ("cpu", "memory")
    weights: Mapping[str, float] = field(default_factory=dict)
    is_member: BoolArray | None = None
    name: str = NAME

    def sources(self, nodes: ClusterNodes) -> IntArray:
        is_used = nodes.requested[:, nodes.resources.index("pods")] > 0
        members = np.flatnonzero(is_used if self.is_member is None else is_used & self.is_member)
        shares = self._requested_shares(nodes)[members]
        emptiest_first: IntArray = members[np.lexsort((nodes.by_name[members], shares))]
        return emptiest_first

    def _requested_shares(self, nodes: ClusterNodes) -> FloatArray:
        """The weighted shares that pods request of each node, in sum, (nodes,)."""
        columns = [nodes.resources.index(name) for name in self.resources]
        weights = np.array([self.weights.get(name, 1.0) for name in self.resources])
        allocatable = nodes.allocatable[:, columns]
        shares = np.zeros(allocatable.shape)
        np.divide(nodes.requested[:, columns], allocatable, out=shares, where=allocatable > 0)
        sums: FloatArray = shares @ weights
        return sums

    def plan(self, nodes: ClusterNodes, pods: ClusterPods, landing: LandingSimulator) -> Plan:
        ranked, scores = rank(nodes, pods, self.resources, self.weights)
        # Nodes that stay in use take pods first, those that become empty last.
        stay = np.nan_to_num(scores, nan=np.inf, posinf=1e300)
        stays_long = np.lexsort((-nodes.by_name, -self._requested_shares(nodes), -stay))
        ranked = ranked[np.isin(pods.node[ranked], self.sources(nodes))]
        # Nodes that pods left are no targets: they are to become empty.
        left: dict[int, None] = {}
        planned_moves = PlannedMoves(nodes, pods, landing)
        moves: list[Move] = []
        stays: list[Stay] = []
        for pod in ranked[:MOST_TRIED].tolist():
            if len(moves) == self.most_pods:
                break
            source = int(pods.node[pod])
            if any(move.target == source for move in moves):
                continue
            targets = [node for node in stays_long.tolist() if node != source and node not in left]
            found = planned_moves.add(
                pod, np.array(targets, np.int64), "its node becomes empty first"
            )
            if isinstance(found, Stay):
                stays.append(found)
                continue
            left[source] = None
            moves.append(found)
        plans = tuple(
            SourcePlan(
                node, "requests", (), tuple(move for move in moves if move.source == node),
                tuple(stay for stay in stays if pods.node[stay.pod] == node), True,
            )
            for node in left
        )  # fmt: skip
        why_none = "no other node takes a pod that may move"
        return planned(self.name, nodes, pods, plans, why_none, len(nodes) - len(left))
