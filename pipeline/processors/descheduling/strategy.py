"""What every strategy gets and gives: one protocol, so that one suite of laws tests all of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import Landing, LandingSimulator
from pipeline.processors.descheduling.node_limits import OverUse

MOST_MOVES: Final = 32
"""Pods that a plan takes off one node, if these do not help only together."""
MOST_FAILED_LANDINGS: Final = 10
"""Landings that may fail on one node before its other pods are not tried any more: each asks all
targets."""
MOST_STAYS: Final = 10
"""Pods of a node of which a plan says why they stay."""


class Move(NamedTuple):
    """A pod that leaves its node, where it would land (None: not simulated), and why it leaves."""

    pod: int
    source: int
    landing: Landing
    why: str

    @property
    def target(self) -> int | None:
        return self.landing.node


class Stay(NamedTuple):
    """A pod that could have helped and stays, and why."""

    pod: int
    reason: str
    landing: Landing | None = None


class SourcePlan(NamedTuple):
    """The plan for one node. `over` is what it uses above its limits, empty for strategies that do
    not go by usage; `is_relieved` says whether the moves suffice. Moves that are `all_or_none`
    help only together."""

    node: int
    scope: str
    over: tuple[OverUse, ...]
    moves: tuple[Move, ...]
    stays: tuple[Stay, ...]
    is_relieved: bool
    all_or_none: bool = False


class Plan(NamedTuple):
    """The plan of a strategy: sources in the order in which they are relieved, and if nothing moves
    the reason. `usage` and `prod_usage` (nodes, resources) are projected, after all moves."""

    strategy: str
    sources: tuple[SourcePlan, ...]
    reason: str
    usage: FloatArray
    prod_usage: FloatArray
    targets: int = 0

    @property
    def moves(self) -> tuple[Move, ...]:
        """All moves, in the order in which they are made."""
        return tuple(move for source in self.sources for move in source.moves)


class Strategy(Protocol):
    """Chooses pods that leave their nodes."""

    @property
    def name(self) -> str: ...

    def sources(self, nodes: ClusterNodes) -> IntArray:
        """The nodes whose pods may move, the most urgent first."""

    def plan(self, nodes: ClusterNodes, pods: ClusterPods, landing: LandingSimulator) -> Plan:
        """Choose moves. Gives the reason if nothing moves. Sources without `pods` are left out: a
        planner reads the pods of a part of them at a time."""


def with_pods(sources: IntArray, pods: ClusterPods) -> IntArray:
    """The sources that have pods, in their order."""
    own: IntArray = sources[np.isin(sources, pods.node)]
    return own


def unchanged(strategy: str, nodes: ClusterNodes, reason: str, targets: int = 0) -> Plan:
    """A plan that moves nothing."""
    return Plan(strategy, (), reason, nodes.usage, nodes.prod_usage, targets)


def planned(
    strategy: str, nodes: ClusterNodes, pods: ClusterPods, sources: Sequence[SourcePlan],
    why_none: str, targets: int,
) -> Plan:  # fmt: skip
    """The plan for these sources; `why_none` is the reason if nothing moves."""
    usage, prod_usage = nodes.usage.copy(), nodes.prod_usage.copy()
    moves = [move for source in sources for move in source.moves]
    # Where usage of a pod is unknown, nothing is known to leave its node, and its estimate arrives.
    known = np.nan_to_num(pods.usage[[move.pod for move in moves]])
    for move, leaving in zip(moves, known, strict=True):
        for used in [usage, prod_usage] if pods.is_prod[move.pod] else [usage]:
            used[move.source] -= leaving
            if move.target is not None:
                used[move.target] += pods.expected[move.pod]
    reason = "" if moves else why_none
    return Plan(strategy, tuple(sources), reason, usage, prod_usage, targets)


def after_plan(
    nodes: ClusterNodes, pods: ClusterPods, plan: Plan
) -> tuple[ClusterNodes, ClusterPods]:
    """Nodes and pods as they are after a plan. Pods that have moved once do not move again."""
    requested, may_move = nodes.requested.copy(), pods.may_move.copy()
    for move in plan.moves:
        requested[move.source] -= pods.requests[move.pod]
        if move.target is not None:
            requested[move.target] += pods.requests[move.pod]
        may_move[move.pod] = False
    moved = {move.pod: f"{plan.strategy} moves it" for move in plan.moves}
    return (
        replace(nodes, usage=plan.usage, prod_usage=plan.prod_usage, requested=requested),
        replace(
            pods,
            may_move=may_move,
            objections={**pods.objections, **moved},
            moved=(*pods.moved, *moved),
        ),
    )
