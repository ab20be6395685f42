"""Judge plans after their evictions, and publish on `springtide.actions` whether they helped."""

from collections.abc import Awaitable, Callable
from typing import Final

from pipeline.errors import KafkaError
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.descheduling.move_memory import OUTCOME, PLANNER, MoveMemory
from pipeline.processors.descheduling.move_outcomes import Alerts, EndedPlan, Verdict, verdict
from pipeline.table import Table
from pipeline.times import format_time, parse_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.node_state import NodeStateRecord

log = get_logger(__name__)

OUTCOMES = counter(
    "planner_outcomes", "Plans that evicted, by whether they helped: yes or no.", ["helped"]
)
_FRESH_SECONDS: Final = 180.0


class PlanOutcomes:
    """The verdicts of one leader. `span_of` is the span of usage of a node; `may_publish` is asked
    before each record. `publish` raises `KafkaError`."""

    def __init__(
        self, table: Table, memory: MoveMemory, publish: Callable[[ActionRecord], Awaitable[None]],
        may_publish: Callable[[], bool], span_of: Callable[[str], float],
    ) -> None:  # fmt: skip
        self._table, self._memory, self._span_of = table, memory, span_of
        self._publish, self._may_publish = publish, may_publish

    async def judge(self, now: float) -> None:
        """Publish the verdicts that are due. One that cannot be delivered is tried again."""
        for plan in self._memory.unjudged(now, self._span_of):
            found = verdict(plan, lambda node: self._alerts(node, now))
            if found is None:
                continue
            if not self._may_publish():
                return
            record = self._record(plan, found, now)
            try:
                await self._publish(record)
            except KafkaError as error:
                log.warning("outcome is not delivered, trying again", plan=plan.plan_id,
                            why=error.message)  # fmt: skip
                return
            self._memory.take_action(record, now)
            OUTCOMES.labels("yes" if found.helped else "no").inc()
            log.info("outcome", plan=plan.plan_id, node=plan.node, helped=found.helped,
                     why=found.why)  # fmt: skip

    def _alerts(self, node: str, now: float) -> Alerts | None:
        """The open alerts of a node, None if its usage is not fresh or has no thresholds."""
        record, state = self._table.snapshot(node).node, self._table.snapshot(node).state
        if record is None or record.hot_nodes is None:
            return None
        if state is None or now - parse_time(state.as_of) > _FRESH_SECONDS:
            return None
        return state.alerts

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
