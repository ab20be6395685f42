"""Execute plans of both kinds under one set of limits, also those of former leaders."""

from actuators.eviction.departures import look_for_departures
from actuators.eviction.eviction_gate import EvictionGate, Mode
from actuators.eviction.plan_execution import PlanExecutor
from actuators.eviction.plan_limits import EVICTOR, PlanLimits
from actuators.eviction.relief import ReliefExecutor
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.topics.actions import ActionRecord
from pipeline.topics.eviction_plans import EvictionPlanRecord

log = get_logger(__name__)

PLANS = counter(
    "evictor_plans",
    "Plans by outcome: observed, recommended, done, refused (a check failed), failed, late, "
    "repeated, too_many (for one pod), early (the pod was just given room), taken (its pods wait "
    "for their turn).",
    ["outcome"],
)


class PlanWorker:
    """The plans of one leader: call `learn` for each action of former leaders, then `begin`."""

    def __init__(self, gate: EvictionGate, mode: Mode) -> None:
        self._gate = gate
        self._executor = PlanExecutor(gate, mode)
        self._relief = ReliefExecutor(gate, mode)
        self._limits = PlanLimits()

    def learn(self, action: ActionRecord) -> None:
        """Take an action; those of other actuators are ignored. Raises ValueError if it is
        invalid."""
        if action.actuator == EVICTOR:
            self._limits.learn(action)
            self._gate.history.learn(action, self._gate.clock.now())

    async def begin(self) -> None:
        """Look which evicted pods still exist, and continue at the pace of the former leader."""
        last = self._gate.history.last_at
        if last is not None:
            self._gate.rate.happened(self._gate.clock.now() - last)
        await look_for_departures(self._gate)

    async def start(self, plan: EvictionPlanRecord) -> None:
        """Take up a plan: make room at once, let pods of a relief plan wait for their turn."""
        outcome = self._limits.start(plan, self._gate.clock.now())
        if outcome is None and plan.waiting is None:
            outcome = await self._relief.take(plan)
        elif outcome is None:
            outcome, made_room = await self._executor.execute(plan)
            if made_room:
                self._limits.made_room(plan, self._gate.clock.now())
        PLANS.labels(outcome).inc()
        log.info("plan", id=plan.id, node=plan.node, outcome=outcome, why=plan.why)

    async def step(self) -> None:
        """Evict at most one pod of the relief plans."""
        await self._relief.step()
