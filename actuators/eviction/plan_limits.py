"""How often plans may be executed: once each, and a few for one pending pod, with time in between.

The limits hold across a change of the leader: each eviction is on `springtide.actions` before it
happens, and a new leader learns the last hour or more from there.
"""

import math
from collections import OrderedDict
from typing import Final, TypeVar

from actuators.eviction.received_plans import ReceivedPlan
from pipeline.processors.placement.victim_selection import SETTLE_SECONDS
from pipeline.topics.actions import ActionRecord
from pipeline.topics.eviction_plans import EvictionPlanRecord

EVICTOR: Final = "evictor"
"""`actuator` of its actions."""
PLANS_OF_A_POD: Final = 3
LOOK_BACK_SECONDS: Final = 3600.0
"""How far back a new leader reads actions at least."""

_REMEMBERED: Final = 10_000

Value = TypeVar("Value")


class PlanLimits:
    """The plans that were executed, and what they did for the pods that waited. Times are
    monotonic."""

    def __init__(self) -> None:
        self._executed: OrderedDict[str, None] = OrderedDict()
        self._plans_per_pod: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._settled_at: OrderedDict[str, float] = OrderedDict()

    def learn(self, action: ActionRecord, at: float) -> None:
        """Take an action of a former leader, of this time; others are ignored."""
        if action.actuator != EVICTOR or not action.plan:
            return
        _remember(self._executed, action.plan, None)
        if action.outcome in ("intended", "done"):
            self._count(action.waiting, action.plan)
            self._settle(action.waiting, at)

    def start(
        self, received: ReceivedPlan, now: float, known_since: float = -math.inf
    ) -> str | None:
        """Remember a plan, so that it is executed once at most; return None, or the reason why it
        must not be executed. What happened before `known_since` is unknown."""
        plan = received.plan
        if plan.id in self._executed:
            return "repeated"
        _remember(self._executed, plan.id, None)
        if now >= received.expires_at:
            return "late"
        if plan.waiting is None:
            return None
        uid = plan.waiting.uid
        if len(self._plans_per_pod.get(uid, ())) >= PLANS_OF_A_POD:
            return "too_many"
        if received.made_at < self._settled_at.get(uid, known_since + SETTLE_SECONDS):
            return "early"
        return None

    def tried(self, plan: EvictionPlanRecord) -> None:
        """Note that a plan has asked for evictions. Its pod gets a few such plans in all."""
        if plan.waiting is not None:
            self._count(plan.waiting.uid, plan.id)

    def made_room(self, plan: EvictionPlanRecord, now: float) -> None:
        """Note that a plan has evicted by now: its pod gets no other plan for a while."""
        if plan.waiting is not None:
            self._settle(plan.waiting.uid, now)

    def _count(self, uid: str, plan_id: str) -> None:
        plans = self._plans_per_pod.get(uid, frozenset())
        if uid and len(plans) < PLANS_OF_A_POD:
            _remember(self._plans_per_pod, uid, plans | {plan_id})

    def _settle(self, uid: str, at: float) -> None:
        if not uid:
            return
        settled_at = max(at + SETTLE_SECONDS, self._settled_at.get(uid, -math.inf))
        _remember(self._settled_at, uid, settled_at)


def _remember(entries: "OrderedDict[str, Value]", key: str, value: Value) -> None:
    entries[key] = value
    entries.move_to_end(key)
    while len(entries) > _REMEMBERED:
        entries.popitem(last=False)
