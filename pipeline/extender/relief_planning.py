"""Plan at one moment of the state table which pods should leave hot nodes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from pipeline.extender.candidate_nodes import CandidateNodes
from pipeline.extender.decisions import Decisions
from pipeline.extender.landing_simulation import AddedUsage, ExtenderLanding
from pipeline.extender.plan_documents import ReliefPlan, StrategyRun, relief_plan
from pipeline.processors.arrays import BoolArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods, MoveCaps
from pipeline.processors.descheduling.configured_strategies import (
    ConfiguredStrategy,
    PoolNodes,
    low_node_load_strategies,
    measured_pools,
    other_strategies,
    pools_of_configuration,
    pools_of_policies,
    selected_nodes,
    why_off,
    with_node_fit,
)
from pipeline.processors.descheduling.cool_downs import IncomingUsage
from pipeline.processors.descheduling.cool_targets import CoolTargets, limits_of_pools
from pipeline.processors.descheduling.descheduler_config import (
    LOW_NODE_LOAD,
    NO_DESCHEDULING,
    Descheduling,
)
from pipeline.processors.descheduling.eviction_policy import migration_policy
from pipeline.processors.descheduling.landing import Arrival, LandingSimulator
from pipeline.processors.descheduling.load_balancing import NO_ALERT
from pipeline.processors.descheduling.low_node_load import NodePool
from pipeline.processors.descheduling.low_node_load_args import LowNodeLoadArgs
from pipeline.processors.descheduling.migration_fit import SelectedFit
from pipeline.processors.descheduling.node_requests import NodeRequest
from pipeline.processors.descheduling.strategy import Plan, after_plan
from pipeline.processors.eviction.evictability import protections_of
from pipeline.processors.eviction.migration_limits import WorkloadState, replica_guard
from pipeline.processors.eviction.migration_policy import MigrationPolicy
from pipeline.processors.eviction.refusals import verdict
from pipeline.processors.loadaware.pod_amounts import Counting
from pipeline.table import Table
from pipeline.table.pod_history import PodHistory
from pipeline.table.strategy_inputs import MEASURED, cluster_nodes, cluster_pods
from pipeline.topics.node_state import AGGREGATED
from pipeline.topics.pod_columns import ENDED
from pipeline.topics.pods import PodRecord

_USUAL_ARGS: Final = LowNodeLoadArgs()
_USED: Final = ("cpu", "memory")
_USUAL_POLICY: Final = MigrationPolicy()
_USUAL_SPAN: Final = AGGREGATED["5m"]
"""Seconds of the span of usage of pods on nodes without a pool."""
_PAUSED: Final = "of its last plans too few helped"
_COOL_ITSELF: Final = "no node is hot by its own usage, without pods on their way to it"


def _no_objection(pod: PodRecord) -> str | None:
    return None


def _unknown_state(pod: PodRecord) -> WorkloadState | None:
    return None


class AlertRelief(NamedTuple):
    """How nodes with an open alert are relieved: by these arguments of LowNodeLoad, protections and
    caps, the weights of `pools` by name, and their thresholds of resources that have no alerts. Of
    these nodes only `hot` are (None: all). The strategies of `others` run beside it, except for
    those that are `paused`; LowNodeLoad does not run in `paused_pools`. Pods with an `objection`,
    for the reason that it returns, stay; so do those whose workload has too few replicas by what
    `state_of` a pod knows.
    `incoming` are pods of former plans that usage of their target does not show yet.
    `resting_targets` are, by node, the nodes to which none of its pods may go, `asked` the requests
    of nodes for relief."""

    args: LowNodeLoadArgs = _USUAL_ARGS
    pools: Sequence[NodePool] = ()
    policy: MigrationPolicy = _USUAL_POLICY
    hot: Collection[str] | None = None
    others: Descheduling = NO_DESCHEDULING
    paused: Collection[str] = ()
    paused_pools: Collection[str] = ()
    objection: Callable[[PodRecord], str | None] = _no_objection
    state_of: Callable[[PodRecord], WorkloadState | None] = _unknown_state
    incoming: Sequence[IncomingUsage] = ()
    resting_targets: Mapping[str, Collection[str]] = MappingProxyType({})
    asked: Mapping[str, NodeRequest] = MappingProxyType({})


_ALL_ALERTS: Final = AlertRelief()


class ReliefPlanning:
    """A plan in two steps: `sources` are the nodes of which `plan` needs all pods, with windows of
    the last `span_seconds`. They are the `hot` nodes of LowNodeLoad and those of `others`, the most
    urgent first of each strategy in turn. A plan moves no pods of nodes whose pods are not given.

    Pools, strategies, protections and caps are those of `descheduling`, and every node above its
    thresholds is hot. If that is None, thresholds are those in the records of the nodes, and nodes
    with an open alert are hot; `relief` says how they are relieved, by default as Koordinator's
    defaults say. Thresholds of `ignored_resources` are ignored, because usage of these is not
    measured.

    Pods on their way to a node take room there: those of former plans, and pods in flight, as the
    extender counts them. They make no node hot, and a hot node gives what its own usage shows.
    """

    def __init__(
        self,
        table: Table,
        decisions: Decisions,
        descheduling: Descheduling | None,
        now: float,
        relief: AlertRelief = _ALL_ALERTS,
    ) -> None:
        self._decisions, self._now, self._relief = decisions, now, relief
        self._policy = relief.policy if descheduling is None else migration_policy(descheduling)
        low = None if descheduling is None else descheduling.low_node_load
        args = relief.args if low is None else low.args
        names = tuple(table)
        self._pools: list[PoolNodes] = []
        self.ignored_resources: list[str] = []

        def pools(labels: Sequence[Mapping[str, str]]) -> Sequence[PoolNodes]:
            if descheduling is not None:
                selectors = descheduling.node_selectors
                found = [] if low is None else pools_of_configuration(low, labels, selectors)
            else:
                records = [table.snapshot(name).node for name in names]
                found = pools_of_policies(
                    [None if record is None else record.hot_nodes for record in records],
                    relief.pools,
                )
            self._pools, self.ignored_resources = measured_pools(found, MEASURED)
            return self._pools

        expiration = float(args.usage_expiration_seconds)
        by_alerts = descheduling is None
        nodes = cluster_nodes(table, names, now, expiration, pools, by_alerts=by_alerts)
        places = {name: place for place, name in enumerate(names) if name in relief.asked}
        asked = {places[name]: each for name, each in relief.asked.items() if name in places}
        nodes = replace(nodes, asked=asked)
        detecting = None if descheduling is None else descheduling.detecting

        def relieving(confirmed: BoolArray | None) -> list[ConfiguredStrategy]:
            strategies = low_node_load_strategies(
                self._pools,
                args,
                confirmed=confirmed,
                why_unconfirmed=NO_ALERT if by_alerts else _COOL_ITSELF,
                off="" if detecting is None else why_off(detecting, LOW_NODE_LOAD),
            )
            return [
                each._replace(off=each.off or _PAUSED) if each.pool in relief.paused_pools else each
                for each in strategies
            ]

        is_hot = np.zeros(len(names), np.bool_)
        for configured in relieving(_with_alert(table, names, relief) if by_alerts else None):
            is_hot[configured.strategy.sources(nodes)] = True
        self._strategies = relieving(is_hot)
        self._incoming = _incoming_usage(nodes, relief.incoming)
        in_flight = _usage_in_flight(decisions.candidates(names, now), decisions.rules.counting)
        self._nodes = _with_arriving(nodes, is_hot, (self._incoming, in_flight))
        others = relief.others if descheduling is None else descheduling
        self._strategies += [
            each._replace(off=_PAUSED) if each.strategy.name in relief.paused else each
            for each in other_strategies(others, self._nodes.labels, self._nodes.resources)
        ]
        needs_fit = self._policy.node_fit and "NodeFit" not in self._policy.skipped_gates
        if needs_fit:
            self._strategies = [*map(with_node_fit, self._strategies)]
        selector = self._policy.node_selector if needs_fit else None
        self._fit_nodes = None if selector is None else selected_nodes(nodes.labels, selector)
        self.hot = frozenset[str]()
        urgent: list[list[str]] = []
        for configured in self._strategies:
            if configured.off:
                continue
            sources = [names[index] for index in configured.strategy.sources(self._nodes).tolist()]
            if configured.pool:
                self.hot = self.hot.union(sources)
            else:
                urgent.append(sources)
        in_turn = chain.from_iterable(zip_longest(*urgent))
        self.others = tuple(dict.fromkeys(name for name in in_turn if name is not None))
        self.sources = self.hot.union(self.others)
        spans = (pool.span_seconds for pool, _ in self._pools)
        self.span_seconds = float(max(spans, default=_USUAL_SPAN))

    def plan(self, records: Sequence[PodRecord], history: PodHistory) -> ReliefPlan:
        """The plan for these pods, whose usage is in `history`."""
        return relief_plan(self.runs(records, history), self._now)

    def runs(self, records: Sequence[PodRecord], history: PodHistory) -> list[StrategyRun]:
        """The plan of each strategy, with the nodes and pods that it was given."""
        nodes, pods = self._nodes, self._columns(records, history)
        limits = limits_of_pools(self._pools, nodes)
        runs: list[StrategyRun] = []
        earlier: list[Arrival] = []
        for configured in self._strategies:
            own = configured.pods.apply(pods)
            landing: LandingSimulator = ExtenderLanding(
                self._decisions, nodes, own, self._now, earlier, self._incoming
            )
            if self._fit_nodes is not None:
                landing = SelectedFit(landing, nodes, own, self._fit_nodes)
            # LowNodeLoad books usage of its targets itself.
            if not configured.pool:
                landing = CoolTargets(landing, nodes, own, limits)
            plan = configured.plan(nodes, own, landing)
            runs.append(_documented(configured, plan, nodes, own))
            # The next strategy sees the moves of this one.
            earlier += [Arrival(m.pod, m.target) for m in plan.moves if m.target is not None]
            nodes, pods = after_plan(nodes, pods, plan)
        return runs

    def _columns(self, records: Sequence[PodRecord], history: PodHistory) -> ClusterPods:
        pool_of: list[NodePool | None] = [None] * len(self._nodes)
        for pool, is_member in self._pools:
            for index in np.flatnonzero(is_member).tolist():
                pool_of[index] = pool
        limits = self._policy.limits
        pods = cluster_pods(
            records,
            self._nodes,
            history,
            pool_of,
            _objections(self._policy, self._relief),
            self._decisions.rules.counting,
            MoveCaps(limits.cycle_total, limits.cycle_per_node, limits.cycle_per_namespace),
        )
        resting = _by_place(self._nodes, self._relief.resting_targets)
        return replace(pods, resting_targets=resting) if resting else pods


def _documented(
    configured: ConfiguredStrategy, plan: Plan, nodes: ClusterNodes, pods: ClusterPods
) -> StrategyRun:
    members = configured.is_member
    known = int(np.isfinite(nodes.usage[members, :2]).all(axis=1).sum())
    return StrategyRun(
        plan, nodes, pods, configured.pool, int(members.sum()), known, bool(configured.off)
    )


def _objections(policy: MigrationPolicy, relief: AlertRelief) -> Callable[[PodRecord], str | None]:
    """Why no strategy moves a pod; None if one may."""

    def objection(pod: PodRecord) -> str | None:
        if pod.phase in ENDED:
            return "the pod has ended"
        refusals = chain(
            protections_of(pod, policy.protections),
            replica_guard(relief.state_of(pod), policy.limits),
        )
        refusal = verdict(refusals, policy.skipped_gates).refusal
        return relief.objection(pod) if refusal is None else refusal.text

    return objection


def _by_place(
    nodes: ClusterNodes, targets: Mapping[str, Collection[str]]
) -> dict[int, frozenset[int]]:
    """Names of nodes, by node, as indexes."""
    if not targets:
        return {}
    place = {name: index for index, name in enumerate(nodes.names)}
    return {
        place[node]: frozenset(place[name] for name in names if name in place)
        for node, names in targets.items()
        if node in place
    }


def _incoming_usage(nodes: ClusterNodes, incoming: Sequence[IncomingUsage]) -> AddedUsage:
    """What pods of former plans add to usage of their targets, which these do not show yet."""
    added = AddedUsage(*np.zeros((2, len(nodes), len(_USED))))
    if not incoming:
        return added
    place = {name: index for index, name in enumerate(nodes.names)}
    for node, cpu, memory, is_prod in incoming:
        if node in place:
            added.used[place[node]] += (cpu, memory)
            added.prod_used[place[node]] += (cpu * is_prod, memory * is_prod)
    return added


def _usage_in_flight(nodes: CandidateNodes, counting: Counting) -> AddedUsage:
    """What pods in flight add to usage of their nodes, by the rules of the extender."""
    added = AddedUsage(*np.zeros((2, len(nodes), len(_USED))))
    counted = counting.load_aware.resources
    for column, name in enumerate(_USED):
        if name not in counted:
            continue
        index = counted.index(name)
        for is_prod, of_nodes in ((False, added.used), (True, added.prod_used)):
            flight = nodes.in_flight_usage(prod=is_prod)[:, index]
            of_nodes[:, column] = nodes.in_requested_order(flight)
    return added


def _with_arriving(
    nodes: ClusterNodes, is_hot: BoolArray, arriving: Sequence[AddedUsage]
) -> ClusterNodes:
    """The nodes with what arrives at those of them that are not hot, (nodes,)."""
    usage, prod_usage = nodes.usage.copy(), nodes.prod_usage.copy()
    columns = [nodes.resources.index(name) for name in _USED]
    for added in arriving:
        usage[:, columns] += np.where(is_hot[:, None], 0.0, added.used)
        prod_usage[:, columns] += np.where(is_hot[:, None], 0.0, added.prod_used)
    return replace(nodes, usage=usage, prod_usage=prod_usage)


def _with_alert(table: Table, names: Sequence[str], relief: AlertRelief) -> BoolArray:
    """The nodes with an open alert that are to be relieved, (nodes,)."""
    states = (table.snapshot(name).state for name in names)
    alerts = np.fromiter(
        (state is not None and bool(state.alerts) for state in states), np.bool_, len(names)
    )
    if relief.hot is None:
        return alerts
    return alerts & np.fromiter((name in relief.hot for name in names), np.bool_, len(names))
