"""What strategies would move, as a JSON document: printed by `springtide plan`.

Keys are stable: more may come, none will be removed. None is unknown or does not apply.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from pipeline import API_VERSION
from pipeline.processors.arrays import FloatArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import Landing
from pipeline.processors.descheduling.node_limits import percents
from pipeline.processors.descheduling.strategy import Move, Plan, SourcePlan
from pipeline.times import format_time

KIND: Final = "ReliefPlan"

Percents = dict[str, float]
"""Percent of capacity by resource; unknown ones are missing."""


class RejectedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target that does not take a pod.

    node: Name of the node.
    reason: Why it does not.
    """

    node: str
    reason: str


class PlannedMove(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that would leave its node.

    namespace: Namespace.
    name: Name.
    uid: UID.
    pod_class: Class of the pod: prod, mid, batch, free or none.
    workload: Kind and name of its controller.
    usage: What it uses by resource: cpu in millicores, memory in bytes.
    target: The node where it would land.
    score: Its score there, 0 to 100.
    target_usage_before: Usage of the target in percent before the moves of the strategy, with pods
        that are on their way.
    target_usage: Usage of the target in percent after all moves of the strategy.
    target_peak: Predicted peak of the target in percent with this plan's pods.
    rejected: The first targets with room that refused the pod.
    rejections: How many targets refused it.
    """

    namespace: str
    name: str
    uid: str
    pod_class: str
    workload: str | None
    usage: dict[str, float]
    target: str | None
    score: int | None
    target_usage_before: Percents
    target_usage: Percents
    target_peak: Percents
    rejected: tuple[RejectedTarget, ...] = ()
    rejections: int = 0


class StayingPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that could relieve its node and stays.

    namespace: Namespace.
    name: Name.
    reason: Why it stays.
    rejected: The first targets with room that refused the pod.
    rejections: How many targets refused it.
    """

    namespace: str
    name: str
    reason: str
    rejected: tuple[RejectedTarget, ...] = ()
    rejections: int = 0


class PlannedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that pods would leave.

    node: Name of the node.
    strategy: Name of the strategy.
    pool: Node pool; empty for strategies without pools.
    why: What is above a threshold, or why the first pod would leave.
    usage: Usage in percent now.
    projected_usage: Usage in percent after all moves.
    relieved: Whether its alert could close: usage would be below each threshold that it was above,
        by the hysteresis.
    all_or_none: Whether the moves help only together, as in CustomPriority's mode DrainNode.
    moves: Pods that would leave, in this order.
    stays: Pods that could help and stay, best fit first.
    """

    node: str
    strategy: str
    pool: str
    why: str
    usage: Percents
    projected_usage: Percents
    relieved: bool
    moves: tuple[PlannedMove, ...]
    stays: tuple[StayingPod, ...]
    all_or_none: bool = False


class StrategyOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a strategy did.

    strategy: Name of the strategy.
    pool: Node pool; empty for strategies without pools.
    nodes: Nodes of the pool.
    known: Nodes of the pool whose usage is known.
    hot: Nodes that pods should leave; None if the strategy does not run.
    targets: Nodes that may take pods; likewise.
    moves: Pods that would move.
    reason: Why nothing would move; empty if something would.
    """

    strategy: str
    pool: str
    nodes: int
    known: int
    hot: int | None
    targets: int | None
    moves: int
    reason: str


class ReliefPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What would be moved now.

    now: Time of the plan.
    strategies: The strategies, in the order in which they ran.
    items: Nodes that pods would leave, in the order of their relief.
    """

    apiVersion: str = API_VERSION
    kind: str = KIND
    now: str
    strategies: tuple[StrategyOutcome, ...]
    items: tuple[PlannedNode, ...]


class StrategyRun(NamedTuple):
    """A plan with the nodes and pods that the strategy was given, and its pool. `is_off`: the
    strategy does not run, and looked at no node."""

    plan: Plan
    nodes: ClusterNodes
    pods: ClusterPods
    pool: str
    members: int
    known: int
    is_off: bool


def relief_plan(runs: Sequence[StrategyRun], now: float) -> ReliefPlan:
    """The document of these runs."""
    return ReliefPlan(
        now=format_time(now),
        strategies=tuple(map(_outcome, runs)),
        items=tuple(_node(run, source) for run in runs for source in run.plan.sources),
    )


def _outcome(run: StrategyRun) -> StrategyOutcome:
    plan = run.plan
    return StrategyOutcome(
        strategy=plan.strategy, pool=run.pool, nodes=run.members, known=run.known,
        hot=None if run.is_off else len(plan.sources),
        targets=None if run.is_off else plan.targets,
        moves=len(plan.moves), reason=plan.reason,
    )  # fmt: skip


def _node(run: StrategyRun, source: SourcePlan) -> PlannedNode:
    nodes, node = run.nodes, source.node
    reasons = [str(over) for over in source.over] or [move.why for move in source.moves[:1]]
    return PlannedNode(
        node=nodes.names[node],
        strategy=run.plan.strategy,
        pool=run.pool,
        why="; ".join(reasons),
        usage=_percents(nodes, node, nodes.usage[node]),
        projected_usage=_percents(nodes, node, run.plan.usage[node]),
        relieved=source.is_relieved,
        all_or_none=source.all_or_none,
        moves=tuple(_move(run, move) for move in source.moves),
        stays=tuple(
            StayingPod(
                namespace=run.pods.records[stay.pod].namespace,
                name=run.pods.records[stay.pod].name,
                reason=stay.reason,
                rejected=_rejected(nodes, stay.landing),
                rejections=stay.landing.rejections if stay.landing else 0,
            )
            for stay in source.stays
        ),
    )


def _move(run: StrategyRun, move: Move) -> PlannedMove:
    nodes, record, target = run.nodes, run.pods.records[move.pod], move.target
    target_usage_before: Percents = {}
    target_usage: Percents = {}
    target_peak: Percents = {}
    if target is not None:
        target_usage_before = _percents(nodes, target, nodes.usage[target])
        target_usage = _percents(nodes, target, run.plan.usage[target])
        if nodes.peak is not None:
            added = run.plan.usage[target] - nodes.usage[target]
            target_peak = _percents(nodes, target, nodes.peak[target] + added)
    return PlannedMove(
        namespace=record.namespace,
        name=record.name,
        uid=record.uid,
        pod_class=record.pod_class,
        workload=None if record.owner is None else f"{record.owner.kind}/{record.owner.name}",
        usage={
            name: amount
            for name, amount in zip(nodes.resources, run.pods.usage[move.pod].tolist(), strict=True)
            if name != "pods" and math.isfinite(amount)
        },
        target=None if target is None else nodes.names[target],
        score=move.landing.score,
        target_usage_before=target_usage_before,
        target_usage=target_usage,
        target_peak=target_peak,
        rejected=_rejected(nodes, move.landing),
        rejections=move.landing.rejections,
    )


def _rejected(nodes: ClusterNodes, landing: Landing | None) -> tuple[RejectedTarget, ...]:
    rejected = () if landing is None else landing.rejected
    return tuple(RejectedTarget(node=nodes.names[r.node], reason=r.reason) for r in rejected)


def _percents(nodes: ClusterNodes, node: int, amounts: FloatArray) -> Percents:
    shares = percents(amounts, nodes.capacity[node])
    known = np.flatnonzero(np.isfinite(shares)).tolist()
    return {nodes.resources[index]: round(float(shares[index]), 2) for index in known}
