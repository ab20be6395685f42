"""Judge plans after their evictions, and publish on `springtide.actions` whether they helped."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from pipeline.errors import KafkaError
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.descheduling.move_memory import OUTCOME, PLANNER, MoveMemory
from pipeline.processors.descheduling.move_outcomes import (
    EndedPlan,
    Verdict,
    is_still_hot,
    landed_on,
    opening_times,
    verdict,
)
from pipeline.table import Table
from pipeline.table.node_pods import NodePods
from pipeline.times import format_time, parse_time
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

    async def judge(self, now: float) -> None:
        """Publish the verdicts that are due. One that cannot be delivered is tried again."""
        due = [
            (plan, is_still_hot(plan, opened))
            for plan in self._memory.unjudged(now, self._span_of)
            if (opened := self._opened(plan.node, now)) is not None
        ]
        if not due or not self._may_publish():
            return
        try:
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
        await self._publish(record)
        self._memory.take_action(record, now)
        OUTCOMES.labels("yes" if found.helped else "no").inc()
        log.info("outcome", plan=record.plan, node=record.node, helped=found.helped, why=found.why)

    async def _heated(self, plans: Sequence[EndedPlan], now: float) -> dict[str, set[str]]:
        """The nodes that got hot after each of these plans, and where a pod of it landed. Of more
        than `_MOST_READ` nodes that got hot, those where pods were expected come first."""
        if not plans:
            return {}
        last_opened = {
            node: max(opened)
            for node in self._table
            if (opened := self._opened(node, now))
        }  # fmt: skip
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

    def _opened(self, node: str, now: float) -> list[float] | None:
        """When the open alerts of a node opened (Unix time), None if its usage is not fresh or has
        no thresholds."""
        record, state = self._table.snapshot(node).node, self._table.snapshot(node).state
        if record is None or record.hot_nodes is None:
            return None
        if state is None or now - parse_time(state.as_of) > _FRESH_SECONDS:
            return None
        return opening_times(state.alerts, state.as_of, now)

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
