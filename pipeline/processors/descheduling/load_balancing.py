"""LowNodeLoad: choose the pods that leave hot nodes, as few as relieve them.

The nodes of a pool are relieved one by one, the hottest first, and give their pods in Koordinator's
order. What Koordinator's own algorithm gets wrong is done on purpose in another way:

- Pods are taken until the node is relieved, then those that turned out to be unnecessary stay.
  Relieved is a node whose alert can close: usage is below the limit by the hysteresis.
- Only pods that leave are booked on targets, in the order in which they leave.
- Each target is held below its limits for all usage and for usage of Prod, in both passes.
- A resource that targets have no more room for stops only the pods that use it.
- A pod that no target could take, even an empty-handed one, is reported and not tried again.
- A pod of unknown usage never moves, and a node of unknown usage takes no pod.
- A plan takes a bounded number of pods off a node.
- Nodes between the thresholds do not count as low when no threshold for Prod is set.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.descheduling.bookings import Bookings, TargetLimits
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import Landing, LandingSimulator
from pipeline.processors.descheduling.low_node_load import NAME, NodePool
from pipeline.processors.descheduling.move_counts import MoveCounts
from pipeline.processors.descheduling.node_limits import (
    BOTH_LOW,
    HIGH,
    LOW,
    NORMAL,
    PROD_HIGH,
    PROD_LOW,
    Limits,
    classify,
    is_over,
    node_limits,
    over_use,
    static_limits,
    watched_resources,
)
from pipeline.processors.descheduling.pod_order import (
    eviction_order,
    fit_scores,
    node_scores,
    weights_of,
)
from pipeline.processors.descheduling.strategy import (
    MOST_FAILED_LANDINGS,
    MOST_MOVES,
    MOST_STAYS,
    Move,
    Plan,
    SourcePlan,
    Stay,
    planned,
    unchanged,
)

Scope = Literal["node", "prod"]
_PASSES: Final[tuple[tuple[Scope, int, int], ...]] = (
    ("node", HIGH, LOW), ("prod", PROD_HIGH, PROD_LOW),
)  # fmt: skip
"""The class of sources and of targets, beside those that are low in both ways, of each pass."""
NO_ALERT: Final = "no node has been hot for long enough: none has an open alert"
MOST_WITHOUT_ROOM: Final = 100
"""Pods of one node that may find no target with room for their usage: cheaper, but each looks at
all targets, too."""


@dataclass(frozen=True, kw_only=True)
class LowNodeLoadStrategy:
    """Relieves the hot nodes of one pool.

    `is_member` (n,) are the nodes of the pool, None for all. Of the hot nodes only those that are
    `confirmed` (n,) are relieved, None for all; `why_unconfirmed` says why others are not. Nothing
    moves unless more than `number_of_nodes`
    nodes are low. Without `node_fit` no target has to pass the scheduler's rules, but usage still
    has to fit.
    """

    pool: NodePool
    is_member: BoolArray | None = None
    confirmed: BoolArray | None = None
    why_unconfirmed: str = NO_ALERT
    node_fit: bool = True
    number_of_nodes: int = 0
    name: str = NAME

    def sources(self, nodes: ClusterNodes) -> IntArray:
        view = _View(self, nodes)
        hot = np.flatnonzero(np.isin(view.classes, (HIGH, PROD_HIGH)))
        return _hottest_first(
            view, nodes, hot if self.confirmed is None else hot[self.confirmed[hot]]
        )

    def plan(self, nodes: ClusterNodes, pods: ClusterPods, landing: LandingSimulator) -> Plan:
        view = _View(self, nodes)
        hot = np.isin(view.classes, (HIGH, PROD_HIGH))
        sources = hot if self.confirmed is None else hot & self.confirmed
        low = view.low_nodes()
        if reason := _reason_to_stop(self, view, hot, sources, low):
            return unchanged(self.name, nodes, reason, targets=len(low))
        relief = _Relief(self, nodes, pods, landing, view)
        plans: list[SourcePlan] = []
        for scope, hot_class, target_class in _PASSES:
            of_scope = np.flatnonzero(sources & (view.classes == hot_class))
            targets = np.flatnonzero(np.isin(view.classes, (target_class, BOTH_LOW)))
            for node in _hottest_first(view, nodes, of_scope).tolist():
                plans.append(relief.relieve(node, scope, targets))
        return planned(self.name, nodes, pods, plans, _reason_of_stays(plans), len(low))


class _View:
    """The watched columns of the nodes of a pool, their limits and classes."""

    def __init__(self, strategy: LowNodeLoadStrategy, nodes: ClusterNodes) -> None:
        pool = strategy.pool
        columns = [nodes.resources.index(name) for name in watched_resources(pool)]
        self.pool, self.columns = pool, columns
        self.resources = [nodes.resources[column] for column in columns]
        self.capacity = nodes.capacity[:, columns]
        self.is_member = (
            np.ones(len(nodes), np.bool_) if strategy.is_member is None else strategy.is_member
        )
        outside = ~self.is_member[:, None]
        self.usage: FloatArray = np.where(outside, np.nan, nodes.usage[:, columns])
        self.prod_usage: FloatArray = np.where(outside, np.nan, nodes.prod_usage[:, columns])
        named_of_prod = {*pool.prod_low_percent, *pool.prod_high_percent}
        self.is_prod_watched = np.array([name in named_of_prod for name in self.resources])
        # Unknown usage of Prod matters only where a threshold compares it.
        compared = np.where(self.is_prod_watched, self.prod_usage, 0.0)
        self.limits: Limits = node_limits(
            pool, self.resources, self.capacity, self.usage, self.prod_usage
        )
        classes = classify(self.usage, compared, self.limits, nodes.is_cordoned)
        self.classes: IntArray = np.where(self.is_member, classes, NORMAL)
        self.weights = weights_of(self.resources, pool.resource_weights)

    def low_nodes(self) -> IntArray:
        """The nodes that may take pods. Any node counts as low by Prod if no threshold for Prod is
        set, which says nothing."""
        codes = (LOW, BOTH_LOW, PROD_LOW) if self.is_prod_watched.any() else (LOW, BOTH_LOW)
        return np.flatnonzero(np.isin(self.classes, codes))


def _hottest_first(view: _View, nodes: ClusterNodes, hot: IntArray) -> IntArray:
    scores = node_scores(view.usage[hot], view.capacity[hot], view.weights)
    order: IntArray = hot[np.lexsort((nodes.by_name[hot], -scores))]
    return order


def _reason_to_stop(
    strategy: LowNodeLoadStrategy, view: _View, hot: BoolArray, sources: BoolArray, low: IntArray
) -> str:
    """Why nothing moves; empty if something may."""
    if not view.is_member.any():
        return "the pool has no nodes"
    if not hot.any():
        unknown = np.isnan(view.usage[view.is_member]).any(axis=1)
        if unknown.all():
            return "usage of no node is known: there are no windows, or they are too old"
        return "no node is hot"
    if not sources.any():
        return strategy.why_unconfirmed
    if not len(low):
        return "no node is low: there is no target"
    if len(low) <= strategy.number_of_nodes:
        return f"{len(low)} low nodes are not more than numberOfNodes, {strategy.number_of_nodes}"
    return ""


def _reason_of_stays(plans: Sequence[SourcePlan]) -> str:
    if all(stay.landing is None for plan in plans for stay in plan.stays):
        return "no pod of a hot node may move"
    return "no target takes a pod of a hot node"


class _Relief:
    """Relieves one node after the other; moves of each are booked before the next."""

    def __init__(
        self, strategy: LowNodeLoadStrategy, nodes: ClusterNodes, pods: ClusterPods,
        landing: LandingSimulator, view: _View,
    ) -> None:  # fmt: skip
        self._strategy, self._pods, self._view = strategy, pods, view
        limits = TargetLimits(view.limits.high, view.limits.prod_high, view.is_prod_watched)
        self._bookings = Bookings(
            nodes, pods, landing, view.columns, limits, node_fit=strategy.node_fit
        )
        self._used = self._bookings.used
        self._counts = MoveCounts(pods)

    def relieve(self, node: int, scope: Scope, targets: IntArray) -> SourcePlan:
        """Book the moves that relieve a hot node, or as many as there is room for."""
        view, pool, bookings = self._view, self._view.pool, self._bookings
        pods = self._pods.on(node)
        if scope == "prod":
            pods = pods[self._pods.is_prod[pods]]
            usage, high = bookings.prod_usage[node].copy(), view.limits.prod_hot[node]
            thresholds = pool.prod_high_percent
        else:
            usage, high = bookings.usage[node].copy(), view.limits.hot[node]
            thresholds = pool.high_percent
        source = _Source(usage, _goal(usage, high, pool, view.capacity[node]))
        over = [
            *over_use(
                scope, view.resources, usage, high, view.capacity[node],
                {} if pool.use_deviation_thresholds else thresholds,
            )
        ]  # fmt: skip
        candidates, stays = self._candidates(pods, source)
        chosen = self._choose(source, candidates, targets, stays)
        moves = self._book_again(self._needed(source, chosen), chosen, targets)
        for pod, _ in moves:
            bookings.leave(pod, node)
        why = "; ".join(map(str, over))
        return SourcePlan(
            node,
            scope,
            tuple(over),
            tuple(Move(pod, node, landing, why) for pod, landing in moves),
            tuple(stays[:MOST_STAYS]),
            not source.is_hot,
        )

    def _candidates(self, pods: IntArray, source: "_Source") -> tuple[IntArray, list[Stay]]:
        """The pods that could relieve the node, and why others of its pods stay, best fit first."""
        used = self._used[pods]
        unknown: BoolArray = np.logical_or.reduce(np.isnan(used), axis=1)
        helps: BoolArray = np.logical_or.reduce(used[:, source.over] > 0, axis=1) | unknown
        may_move = self._pods.may_move[pods]
        fits = fit_scores(used, source.excess, self._view.weights)
        best_first = np.argsort(-np.nan_to_num(fits, nan=-1.0), kind="stable")
        staying = best_first[(helps & (unknown | ~may_move))[best_first]][:MOST_STAYS]
        stays = []
        for index in staying.tolist():
            pod, reason = int(pods[index]), "usage of the pod is unknown"
            if not may_move[index]:
                reason = self._pods.objections.get(pod, "the pod may not be evicted")
            stays.append(Stay(pod, reason))
        return pods[helps & may_move & ~unknown], stays

    def _choose(
        self, source: "_Source", pods: IntArray, targets: IntArray, stays: list[Stay]
    ) -> list[tuple[int, Landing]]:
        """Book pods in their order until the node is relieved. After each pod the others are put in
        order anew, by how well they fit what is left."""
        chosen: list[tuple[int, Landing]] = []
        failed = without_room = 0
        # Copies of what is read over and over: rows of all pods are far apart.
        ranks, used, left = self._pods.ranks.take(pods), self._used[pods], np.arange(len(pods))
        while len(left) and source.is_hot:
            weights = self._view.weights * source.over
            fits = fit_scores(used[left], source.excess, weights)
            left = left[eviction_order(ranks.take(left), fits)]
            if len(chosen) == MOST_MOVES:
                stays.append(Stay(int(pods[left[0]]), f"{MOST_MOVES} pods leave the node already"))
                return chosen
            tried = 0
            for index in left.tolist():
                tried += 1
                if not (used[index][source.over] > 0).any():
                    continue
                pod = int(pods[index])
                if (reason := self._counts.objection(pod)) is not None:
                    stays.append(Stay(pod, reason))
                    continue
                landing = self._bookings.land(pod, targets)
                if landing.node is not None:
                    self._bookings.book(pod, landing)
                    self._counts.add(pod)
                    source.add(-self._used[pod])
                    chosen.append((pod, landing))
                    break
                why = self._bookings.why_nowhere(pod, targets, landing)
                stays.append(Stay(pod, why, landing))
                failed += landing.rejections > 0
                without_room += landing.rejections == 0
                if failed >= MOST_FAILED_LANDINGS or without_room >= MOST_WITHOUT_ROOM:
                    return chosen
            else:
                return chosen
            left = left[tried:]
        return chosen

    def _needed(
        self, source: "_Source", chosen: Sequence[tuple[int, Landing]]
    ) -> list[tuple[int, Landing]]:
        """The pods without which the node would still be hot; of the others, those that would leave
        last stay first. If the node stays hot, all are needed."""
        kept = [*chosen]
        if source.is_hot or len(chosen) < 2:
            return kept
        ranks = self._pods.ranks.take(np.array([pod for pod, _ in chosen]))
        order = eviction_order(ranks, np.zeros(len(chosen)))
        for index in order[::-1].tolist():
            with_pod = source.usage + self._used[chosen[index][0]]
            if not is_over(with_pod, source.goal).any():
                source.add(self._used[chosen[index][0]])
                kept.remove(chosen[index])
                self._counts.remove(chosen[index][0])
        return kept

    def _book_again(
        self,
        kept: Sequence[tuple[int, Landing]],
        chosen: Sequence[tuple[int, Landing]],
        targets: IntArray,
    ) -> Sequence[tuple[int, Landing]]:
        """Land the pods that leave once more, if others that had been booked stay."""
        if len(kept) == len(chosen):
            return kept
        self._bookings.unbook(chosen)
        again: list[tuple[int, Landing]] = []
        for pod, _ in kept:
            landing = self._bookings.land(pod, targets)
            if landing.node is None:
                self._bookings.unbook(again)
                for each in kept:
                    self._bookings.book(*each)
                return kept
            self._bookings.book(pod, landing)
            again.append((pod, landing))
        return again


def _goal(usage: FloatArray, high: FloatArray, pool: NodePool, capacity: FloatArray) -> FloatArray:
    """The usage at which a hot node is relieved, (watched,): where detection calls it calm for
    resources above their limit, the limit for others. A resource just below its limit is not hot.
    """
    hysteresis = static_limits(pool.hysteresis_percent, capacity)
    goal: FloatArray = np.where(
        is_over(usage, high), np.maximum(high - hysteresis, np.trunc(high / 2.0)), high
    )
    return goal


class _Source:
    """Usage of a hot node as its pods leave, and where it is relieved, (watched,). `over` are the
    resources above the goal, `excess` what is used above it, 0 where nothing is."""

    def __init__(self, usage: FloatArray, goal: FloatArray) -> None:
        self.usage, self.goal = usage, goal
        self.add(np.zeros_like(usage))

    def add(self, used: FloatArray) -> None:
        """Add the usage of a pod; a negative one leaves."""
        self.usage = self.usage + used
        self.over: BoolArray = is_over(self.usage, self.goal)
        self.excess: FloatArray = np.where(self.over, self.usage - self.goal, 0.0)

    @property
    def is_hot(self) -> bool:
        return bool(self.over.any())
