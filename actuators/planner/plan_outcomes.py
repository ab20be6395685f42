"""Judge plans after their evictions, and publish on `springtide.actions` whether they helped."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from actuators.planner.hot_nodes import open_alerts
from pipeline.errors import KafkaError
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.descheduling.move_memory import OUTCOME, PLANNER, MoveMemory
from pipeline.processors.descheduling.move_outcomes import (
    DatedAlert,
    EndedPlan,
    Verdict,
    dated_alerts,
    is_still_hot,
    landed_on,
    verdict,
)
from pipeline.table import Table
from pipeline.table.node_pods import NodePods
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.node_state import NodeStateRecord

log = get_logger(__name__)

OUTCOMES = counter(
    "planner_outcomes", "Plans that evicted, by whether they helped: yes or no.", ["helped"]
)
_FRESH_SECONDS: Final = 180.0
_MOST_READ: Final = 100

ReadPods = Callable[[Collection[str], float], Awaitable[NodePods]]
"""Reads the pods of these nodes, with windows of so many seconds. Raises `KafkaError`."""


class PlanOutcomes:
    """The verdicts of one leader. `span_of` is the span of usage of a node; `may_publish` is asked
    before each record. `read_pods` and `publish` raise `KafkaError`."""

    def __init__(
        self, table: Table, memory: MoveMemory, read_pods: ReadPods,
        publish: Callable[[ActionRecord], Awaitable[None]], may_publish: Callable[[], bool],
        span_of: Callable[[str], float],
    ) -> None:  # fmt: skip
        self._table, self._memory, self._span_of = table, memory, span_of
        self._read_pods, self._publish, self._may_publish = read_pods, publish, may_publish
        # By plan: they may have arrived.
        self._unconfirmed: dict[str, tuple[ActionRecord, Verdict]] = {}

    async def judge(self, now: float) -> None:
        """Publish the verdicts that are due. One whose delivery is not confirmed is published again
        as it was: another one, by what is known later, could contradict it."""
        unjudged = self._memory.unjudged(now, self._span_of)
        names = {plan.plan_id for plan in unjudged}
        self._unconfirmed = {
            plan_id: each for plan_id, each in self._unconfirmed.items() if plan_id in names
        }
        due = [
            (plan, still_hot)
            for plan in unjudged
            if plan.plan_id not in self._unconfirmed
            and (still_hot := self._is_still_hot(plan, now)) is not None
        ]
        if not (due or self._unconfirmed) or not self._may_publish():
            return
        try:
            for record, known in [*self._unconfirmed.values()]:
                if not self._may_publish():
                    return
                await self._write(record, known, now)
            heated = await self._heated([plan for plan, still_hot in due if not still_hot], now)
            for plan, still_hot in due:
                found = verdict(plan, still_hot=still_hot, heated=heated.get(plan.plan_id, ()))
                if found is None:
                    continue
                if not self._may_publish():
                    return
                await self._write(self._record(plan, found, now), found, now)
        except KafkaError as error:
            log.warning("outcomes are not published, trying again", why=error.message)

    async def _write(self, record: ActionRecord, found: Verdict, now: float) -> None:
        self._unconfirmed[record.plan] = record, found
        await self._publish(record)
        del self._unconfirmed[record.plan]
        self._memory.take_action(record, now)
        OUTCOMES.labels("yes" if found.helped else "no").inc()
        log.info("outcome", plan=record.plan, node=record.node, helped=found.helped, why=found.why)

    async def _heated(self, plans: Sequence[EndedPlan], now: float) -> dict[str, set[str]]:
        """The nodes that got hot after each of these plans, and where a pod of it landed. Of more
        than `_MOST_READ` nodes that got hot, those where pods were expected come first."""
        if not plans:
            return {}
        last_opened = {
            node: max(opened_at for opened_at, _ in alerts)
            for node in open_alerts(self._table)
            if (alerts := self._alerts(node, now))
        }
        oldest = min(plan.at for plan in plans)
        hot = {node for node, at in last_opened.items() if at > oldest}
        expected = [target for plan in plans for target in plan.targets if target in hot]
        nodes = [*dict.fromkeys([*expected, *sorted(hot)])][:_MOST_READ]
        pods = (await self._read_pods(nodes, 0.0)).records if nodes else []
        return {
            plan.plan_id: {
                node for node in landed_on(plan, pods) if last_opened.get(node, 0.0) > plan.at
            }
            for plan in plans
        }

    def _is_still_hot(self, plan: EndedPlan, now: float) -> bool | None:
        """Whether the plan's node is still hot; None if that is not known."""
        alerts, node = self._alerts(plan.node, now), self._table.snapshot(plan.node).node
        if alerts is None or node is None or node.hot_nodes is None:
            return None
        return is_still_hot(plan, alerts, node.hot_nodes.hysteresis_percent)

    def _alerts(self, node: str, now: float) -> list[DatedAlert] | None:
        """The open alerts of a node, None if its usage is not fresh or has no thresholds."""
        record, state = self._table.snapshot(node).node, self._table.snapshot(node).state
        if record is None or record.hot_nodes is None or state is None:
            return None
        if not self._table.fresh(self._table.lookup([node]), now, _FRESH_SECONDS)[0]:
            return None
        return dated_alerts(state.alerts, state.as_of, now)

    def _record(self, plan: EndedPlan, found: Verdict, now: float) -> ActionRecord:
        state = self._table.snapshot(plan.node).state
        return ActionRecord(
            node=plan.node,
            at=format_time(now),
            actuator=PLANNER,
            action=OUTCOME,
            outcome="done" if found.helped else "failed",
            why=found.why,
            after={} if state is None else _usage_percent(state),
            error="" if found.helped else found.why,
            plan=plan.plan_id,
            strategy=plan.strategy,
        )


def _usage_percent(state: NodeStateRecord) -> dict[str, str | None]:
    """Usage of the last window in percent of allocatable, where both are known."""
    used, room = state.usage, state.allocatable
    pairs = {
        "cpu": (used.cpu_cores, room.cpu_cores), "memory": (used.memory_bytes, room.memory_bytes)
    }  # fmt: skip
    return {
        f"{name}_percent": f"{100.0 * amount / whole:.1f}"
        for name, (amount, whole) in pairs.items()
        if amount is not None and whole
    }
