"""CustomPriority: move pods from expensive tiers of nodes to cheaper ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from pipeline.processors.arrays import BoolArray, IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import LandingSimulator
from pipeline.processors.descheduling.planned_moves import PlannedMoves
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
from pipeline.processors.policy.selectors import Selector

NAME: Final = "CustomPriority"
MOST_MISSES: Final = 5
"""Pods in a row that fit nowhere, after which the larger ones of the node are not tried."""
MOST_DRAINED: Final = 250
"""Pods that may move of a node that is drained: twice what a node has by default. A node with more
keeps them."""
NO_TIER: Final = -1


def tiers_of(labels: Sequence[Mapping[str, str]], selectors: Sequence[Selector | None]) -> IntArray:
    """The index of each node's first matching tier, (nodes,); `NO_TIER` where none matches."""
    return np.array(
        [
            next(
                (i for i, each in enumerate(selectors) if each is not None and each.matches(of)),
                NO_TIER,
            )
            for of in labels
        ],
        np.int64,
    )


def smallest_first(pods: ClusterPods, here: IntArray, resources: Sequence[str]) -> IntArray:
    """The pods by requests of cpu, then memory, then by namespace and name."""
    cpu, memory = (pods.requests[:, resources.index(name)] for name in ("cpu", "memory"))

    def key(pod: int) -> tuple[float, float, str, str]:
        record = pods.records[pod]
        return float(cpu[pod]), float(memory[pod]), record.namespace, record.name

    return np.array(sorted(here.tolist(), key=key), np.int64)


@dataclass(frozen=True, kw_only=True)
class TierStrategy:
    """Moves pods of each tier but the last to nodes of cheaper tiers, the smallest pod first.

    `BestEffort` moves what fits, `DrainNode` all pods of a node that may move or none of them.
    Other than in Koordinator, every pod that moves takes room on its target in both modes. Only
    nodes that are members (n,) count; None is all.
    """

    selectors: tuple[Selector | None, ...]
    mode: Literal["BestEffort", "DrainNode"] = "BestEffort"
    node_fit: bool = True
    is_member: BoolArray | None = None
    name: str = NAME

    def sources(self, nodes: ClusterNodes) -> IntArray:
        tiers = self._tiers(nodes)
        cheapest = int(tiers.max(initial=NO_TIER))
        sources = np.flatnonzero((tiers != NO_TIER) & (tiers < cheapest))
        order: IntArray = sources[np.lexsort((nodes.by_name[sources], tiers[sources]))]
        return order

    def _tiers(self, nodes: ClusterNodes) -> IntArray:
        tiers = tiers_of(nodes.labels, self.selectors)
        return tiers if self.is_member is None else np.where(self.is_member, tiers, NO_TIER)

    def plan(self, nodes: ClusterNodes, pods: ClusterPods, landing: LandingSimulator) -> Plan:
        tiers = self._tiers(nodes)
        sources = self.sources(nodes)
        if len(self.selectors) < 2 or not len(sources):
            return unchanged(self.name, nodes, "fewer than two tiers have nodes")
        planned_moves = PlannedMoves(nodes, pods, landing, node_fit=self.node_fit)
        plans = []
        for node in with_pods(sources, pods).tolist():
            targets = np.flatnonzero(tiers > tiers[node])
            targets = targets[np.argsort(nodes.by_name[targets], kind="stable")]
            plans.append(self._move(nodes, pods, node, targets, planned_moves))
        why_none = "no pod that may move fits on a cheaper tier"
        return planned(self.name, nodes, pods, plans, why_none, len(nodes) - len(sources))

    def _move(
        self, nodes: ClusterNodes, pods: ClusterPods, node: int, targets: IntArray,
        planned: PlannedMoves,
    ) -> SourcePlan:  # fmt: skip
        here = pods.on(node)
        candidates = smallest_first(pods, here[pods.may_move[here]], nodes.resources)
        if self.mode == "DrainNode" and len(candidates) > MOST_DRAINED:
            why = f"{len(candidates)} pods would leave the node, more than {MOST_DRAINED}"
            return SourcePlan(node, "tier", (), (), (Stay(int(candidates[0]), why),), False)
        moves, stays = self.place(candidates, targets, planned)
        if self.mode == "DrainNode" and len(moves) < len(candidates):
            for move in reversed(moves):
                planned.remove(move)
            moves = []
        is_relieved = len(moves) == len(candidates)
        return SourcePlan(
            node, "tier", (), tuple(moves), tuple(stays[:MOST_STAYS]), is_relieved,
            all_or_none=self.mode == "DrainNode",
        )  # fmt: skip

    def place(
        self, candidates: IntArray, targets: IntArray, planned: PlannedMoves
    ) -> tuple[list[Move], list[Stay]]:
        """Land the candidates one by one, in their order."""
        moves: list[Move] = []
        stays: list[Stay] = []
        misses = 0
        for pod in candidates.tolist():
            if len(moves) == MOST_MOVES and self.mode == "BestEffort":
                stays.append(Stay(pod, f"{MOST_MOVES} pods leave the node already"))
                break
            found = planned.add(
                pod, targets, "a node of a cheaper tier can run it",
                nowhere="no node of a cheaper tier takes it",
            )  # fmt: skip
            if isinstance(found, Move):
                moves.append(found)
                misses = 0
                continue
            stays.append(found)
            misses += found.landing is not None
            if misses == MOST_MISSES or self.mode == "DrainNode":
                break
        return moves, stays
