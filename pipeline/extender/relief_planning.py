"""Plan at one moment of the state table which pods should leave hot nodes."""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.extender.decisions import Decisions
from pipeline.extender.landing_simulation import ExtenderLanding
from pipeline.extender.plan_documents import ReliefPlan, StrategyRun, relief_plan
from pipeline.processors.arrays import BoolArray
from pipeline.processors.descheduling.configured_strategies import (
    PoolNodes,
    low_node_load_strategies,
    measured_pools,
    other_strategies,
    pools_of_configuration,
    pools_of_policies,
)
from pipeline.processors.descheduling.descheduler_config import Descheduling
from pipeline.processors.descheduling.low_node_load import NodePool
from pipeline.processors.descheduling.low_node_load_args import LowNodeLoadArgs
from pipeline.processors.descheduling.strategy import after_plan
from pipeline.processors.eviction.evictability import protections_of
from pipeline.processors.eviction.migration_policy import Protections
from pipeline.table import Table
from pipeline.table.pod_history import PodHistory
from pipeline.table.strategy_inputs import MEASURED, cluster_nodes, cluster_pods
from pipeline.topics.pod_columns import ENDED
from pipeline.topics.pods import PodRecord


class ReliefPlanning:
    """A plan in two steps: `sources` are the nodes of which `plan` needs all pods.

    The pools are those of `descheduling`, and every node above its thresholds is hot. If that is
    None, thresholds are those in the records of the nodes, and nodes with an open alert are hot.
    Thresholds of `ignored_resources` are ignored, because usage of these is not measured.
    """

    def __init__(
        self, table: Table, decisions: Decisions, descheduling: Descheduling | None, now: float
    ) -> None:
        self._decisions, self._now = decisions, now
        low = None if descheduling is None else descheduling.low_node_load
        args = LowNodeLoadArgs() if low is None else low.args
        names = tuple(table)
        self._pools: list[PoolNodes] = []
        self.ignored_resources: list[str] = []

        def pools(labels: Sequence[Mapping[str, str]]) -> Sequence[PoolNodes]:
            if descheduling is not None:
                selector = descheduling.keys.node_selector
                found = [] if low is None else pools_of_configuration(low, labels, selector)
            else:
                records = [table.snapshot(name).node for name in names]
                found = pools_of_policies(
                    [None if record is None else record.hot_nodes for record in records]
                )
            self._pools, self.ignored_resources = measured_pools(found, MEASURED)
            return self._pools

        expiration = float(args.usage_expiration_seconds)
        self._nodes = cluster_nodes(table, names, now, expiration, pools)
        self._strategies = low_node_load_strategies(
            self._pools,
            args,
            confirmed=_with_alert(table, names) if descheduling is None else None,
            most_per_node=descheduling and descheduling.keys.most_evictions_per_node,
        )
        if descheduling is not None:
            self._strategies += other_strategies(descheduling, self._nodes.labels)
        is_source = np.zeros(len(names), np.bool_)
        for configured in self._strategies:
            is_source |= configured.strategy.sources(self._nodes)
        self.sources = frozenset(names[index] for index in np.flatnonzero(is_source).tolist())

    def plan(self, records: Sequence[PodRecord], history: PodHistory) -> ReliefPlan:
        """The plan for these pods, whose usage is in `history`."""
        pool_of: list[NodePool | None] = [None] * len(self._nodes)
        for pool, is_member in self._pools:
            for index in np.flatnonzero(is_member).tolist():
                pool_of[index] = pool
        pods = cluster_pods(records, self._nodes, history, pool_of, _objection)
        nodes, runs = self._nodes, []
        for strategy, pod_filter, is_member, name in self._strategies:
            own = pod_filter.apply(pods)
            landing = ExtenderLanding(self._decisions, nodes, own, self._now)
            plan = strategy.plan(nodes, own, landing)
            known = int(np.isfinite(nodes.usage[is_member, :2]).all(axis=1).sum())
            runs.append(StrategyRun(plan, nodes, own, name, int(is_member.sum()), known))
            # The next strategy sees the moves of this one.
            nodes, pods = after_plan(nodes, pods, plan)
        return relief_plan(runs, self._now)


def _objection(pod: PodRecord) -> str | None:
    """Why no strategy moves the pod; None if one may."""
    if pod.phase in ENDED:
        return "the pod has ended"
    refusal = next(protections_of(pod, Protections()), None)
    return None if refusal is None else refusal.text


def _with_alert(table: Table, names: Sequence[str]) -> BoolArray:
    """The nodes with an open alert, (nodes,)."""
    states = (table.snapshot(name).state for name in names)
    alerts = (state is not None and bool(state.alerts) for state in states)
    return np.fromiter(alerts, np.bool_, len(names))
