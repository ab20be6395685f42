"""Write alerts about hot nodes that cannot be relieved to `springtide.alerts`."""

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

import msgspec

from actuators.planner.alert_outbox import AlertOutbox
from actuators.planner.hot_nodes import Alerts, pool_of
from actuators.planner.relief_policy import ReliefPolicy
from pipeline.extender.hopeless_nodes import hopeless_nodes
from pipeline.extender.plan_documents import ReliefPlan
from pipeline.metrics import gauge
from pipeline.processors.descheduling.cool_downs import Rests
from pipeline.processors.descheduling.low_node_load import NAME as LOW_NODE_LOAD
from pipeline.processors.descheduling.move_outcomes import FEWEST_HELPED, JUDGED_PLANS
from pipeline.processors.descheduling.relief_alerts import (
    Hopeless,
    ReliefAlerts,
    Subject,
)
from pipeline.table import Table
from pipeline.topics.alerts import AlertRecord, CloseReason

HOPELESS = gauge("planner_hopeless", "Open alerts about nodes and pools that cannot be relieved.")
_TOO_FEW: Final = (
    f"fewer than {FEWEST_HELPED} of the last {JUDGED_PLANS} judged plans helped: none is made for "
    "its hot nodes until these verdicts are an hour old"
)


class HopelessAlerts:
    """Opens and closes `alerts`. Their changes are written by `send`, in order, until they are
    delivered; `publish` raises `KafkaError`, `may_publish` is asked before each record."""

    def __init__(
        self, alerts: ReliefAlerts, table: Table,
        publish: Callable[[AlertRecord], Awaitable[None]], may_publish: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._alerts, self._table = alerts, table
        self._outbox = AlertOutbox(alerts, publish, may_publish)

    def note_plan(
        self, plan: ReliefPlan, hot: Iterable[str], held_back: Collection[str], rests: Rests,
        now: float,
    ) -> None:  # fmt: skip
        """Open alerts about the nodes of `hot` for which the plan does nothing, and close others.
        For nodes and targets in `held_back` a cool-down has to end first."""
        plan = _of_low_node_load(plan)
        pools = {node: pool_of(self._table, node) for node in hot}
        hopeless = [*hopeless_nodes(plan, pools, held_back)]
        subjects = {each.subject for each in hopeless}
        # Another attempt with pods that the evictor refused is no sign that something can be done.
        planned = {
            item.node for item in plan.items
            if not all(rests.was_refused(move.uid) for move in item.moves)
        }  # fmt: skip

        def reason(subject: Subject, pool: str) -> CloseReason | None:
            if subject in subjects:
                return None
            if subject.node:
                return "planned" if subject.node in planned else None
            is_about_targets = subject.rule == "all_nodes_hot"
            return "cooled" if is_about_targets and pool in pools.values() else None

        self._outbox.add(self._alerts.closed(reason, now))
        self._outbox.add(self._alerts.opened(hopeless, now))

    def note_paused(
        self, policy: ReliefPolicy, hot: Alerts, pools: Collection[str], now: float
    ) -> None:
        """Open an alert for each of the paused pools that has hot nodes, because no plans are made
        for them, and close others."""

        def reason(subject: Subject, pool: str) -> CloseReason | None:
            if subject.rule != "plans_do_not_help" or pool in pools:
                return None
            return "policy" if policy.why_not else "planned"

        self._outbox.add(self._alerts.closed(reason, now))
        hopeless = [
            Hopeless(Subject("plans_do_not_help", "", pool), pool, _TOO_FEW)
            for pool in sorted({pool_of(self._table, node) for node in hot}.intersection(pools))
        ]
        self._outbox.add(self._alerts.opened(hopeless, now))

    def close_ended(self, policy: ReliefPolicy, hot: Alerts, now: float) -> None:
        """Close the alerts that end without a plan."""

        def reason(subject: Subject, pool: str) -> CloseReason | None:
            if policy.why_not:
                return "policy"
            if not subject.node:
                has_hot = any(pool_of(self._table, node) == pool for node in hot)
                return None if has_hot else "cooled"
            if subject.node in hot:
                return None
            return "cooled" if self._table.snapshot(subject.node).node else "node deleted"

        self._outbox.add(self._alerts.closed(reason, now))

    async def send(self, now: float) -> None:
        """Write changes of alerts, and again those that have been open for long."""
        HOPELESS.set(len(self._alerts))
        await self._outbox.send(now)


def _of_low_node_load(plan: ReliefPlan) -> ReliefPlan:
    return msgspec.structs.replace(
        plan,
        strategies=tuple(each for each in plan.strategies if each.strategy == LOW_NODE_LOAD),
        items=tuple(each for each in plan.items if each.strategy == LOW_NODE_LOAD),
    )
