"""Execute plans of both kinds under one set of limits, also those of former leaders."""

import math
from typing import Final

from actuators.eviction.departures import look_at_all_pods
from actuators.eviction.eviction_gate import EvictionGate, Mode
from actuators.eviction.former_actions import Learn
from actuators.eviction.plan_execution import PlanExecutor
from actuators.eviction.plan_limits import EVICTOR, PLANS_OF_A_POD, PlanLimits
from actuators.eviction.received_plans import ReceivedPlan
from actuators.eviction.relief import ReliefExecutor
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.eviction.eviction_history import EvictionHistory
from pipeline.processors.placement.victim_selection import SETTLE_SECONDS
from pipeline.times import parse_time
from pipeline.topics.actions import ActionRecord

log = get_logger(__name__)

PLANS = counter(
    "evictor_plans",
    "Plans by outcome: observed, recommended, done, refused (a check failed), failed, late, "
    "repeated, too_many (for one pod), early (the pod was just given room), taken (its pods wait "
    "for their turn).",
    ["outcome"],
)

_REASONS: Final = {
    "late": "Late: the plan was valid from {} until {}",
    "too_many": f"TooMany: {PLANS_OF_A_POD} plans were executed for the pod",
    "early": f"Early: room may have been made for the pod {SETTLE_SECONDS:g} s before, or less",
}
"""Why a plan is not executed. A repeated plan has an action already."""
_LOOK_AGAIN_SECONDS: Final = 2.0


class PlanWorker:
    """The plans of one leader: call `learn` for each action of former leaders, then `begin`."""

    def __init__(self, gate: EvictionGate, mode: Mode) -> None:
        self._gate = gate
        self._executor = PlanExecutor(gate, mode)
        self.relief = ReliefExecutor(gate, mode)
        self._limits = PlanLimits()

    def learn(self, action: ActionRecord, appended_at: float | None = None) -> None:
        """Take an action, and when the broker appended it (Unix time); those of other actuators are
        ignored. Raises ValueError if it is invalid."""
        if action.actuator == EVICTOR:
            at, now = self._time_of(action, appended_at), self._gate.clock.monotonic()
            self._limits.learn(action, at)
            self._gate.history.learn(action, at, now)
            for uid in action.before.values():
                self._gate.marked.pop(uid or "", None)
                if action.outcome == "marked":
                    self._gate.marked[uid or ""] = action

    def older_history(self, seconds: float) -> tuple[EvictionHistory, Learn]:
        """A history of the last `seconds` for `EvictionHistory.extend`, and what it learns by."""
        history = EvictionHistory(seconds, self._gate.policy.limits.ttl_seconds)

        def learn(action: ActionRecord, appended_at: float) -> None:
            if action.actuator == EVICTOR:
                at, now = self._time_of(action, appended_at), self._gate.clock.monotonic()
                history.learn(action, at, now)

        return history, learn

    def _time_of(self, action: ActionRecord, appended_at: float | None) -> float:
        """When an action happened at the latest (monotonic): the clock of the former leader may be
        behind or ahead."""
        at = max(parse_time(action.at), -math.inf if appended_at is None else appended_at)
        return self._gate.clock.monotonic() - max(self._gate.clock.now() - at, 0.0)

    async def begin(self, known_since: float = -math.inf) -> None:
        """Begin after all actions since this time (monotonic) were learnt: look which pods are
        being deleted, and continue at the pace of the former leader."""
        history, clock = self._gate.history, self._gate.clock
        history.known_since = known_since
        last = known_since if history.last_at is None else max(history.last_at, known_since)
        for rate in (self._gate.rate, self._gate.policy_rate):
            rate.happened(clock.monotonic() - last)
        while not await look_at_all_pods(self._gate):
            await clock.sleep(_LOOK_AGAIN_SECONDS)

    async def start(self, received: ReceivedPlan) -> None:
        """Take up a plan: make room at once, let pods of a relief plan wait for their turn."""
        plan, clock = received.plan, self._gate.clock
        known_since = self._gate.history.known_since
        outcome = self._limits.start(received, clock.monotonic(), known_since)
        if outcome is None and plan.waiting is None:
            outcome = await self.relief.take(received)
        elif outcome is None:
            outcome, made_room, has_tried = await self._executor.execute(received)
            if has_tried:
                self._limits.tried(plan)
            if made_room:
                self._limits.made_room(plan, clock.monotonic())
        elif outcome in _REASONS:
            reason = _REASONS[outcome].format(plan.at, plan.valid_until)
            self._gate.actions.put(self._gate.action(plan, None, "refused", reason))
        PLANS.labels(outcome).inc()
        log.info("plan", id=plan.id, node=plan.node, outcome=outcome, why=plan.why[:300])

    async def step(self) -> None:
        """Evict at most one pod of the relief plans."""
        await self.relief.step()
