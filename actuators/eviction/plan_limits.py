"""How often plans may be executed: once each, and a few for one pending pod, with time in between.

The limits hold across a change of the leader: each eviction is on `springtide.actions` before it
happens, and a new leader learns the last hour or more from there.
"""

from collections import OrderedDict
from typing import Final, TypeVar

from pipeline.processors.placement.victim_selection import SETTLE_SECONDS
from pipeline.times import parse_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.eviction_plans import EvictionPlanRecord

EVICTOR: Final = "evictor"
"""`actuator` of its actions."""
PLANS_OF_A_POD: Final = 3
LONGEST_VALID_SECONDS: Final = 300.0
LOOK_BACK_SECONDS: Final = 3600.0
"""How far back a new leader reads actions at least."""

_REMEMBERED: Final = 10_000

Value = TypeVar("Value")


def expires_at(plan: EvictionPlanRecord) -> float:
    """When a plan expires (Unix time), whatever it says itself. Raises ValueError if its times are
    invalid."""
    return min(parse_time(plan.valid_until), parse_time(plan.at) + LONGEST_VALID_SECONDS)


class PlanLimits:
    """The plans that were executed, and what they did for the pods that waited."""

    def __init__(self) -> None:
        self._executed: OrderedDict[str, None] = OrderedDict()
        self._plans_per_pod: OrderedDict[str, int] = OrderedDict()
        self._settled_at: OrderedDict[str, float] = OrderedDict()

    def learn(self, action: ActionRecord) -> None:
        """Take an action of a former leader; others are ignored. Raises ValueError if its time is
        invalid."""
        if action.actuator != EVICTOR or not action.plan:
            return
        at = parse_time(action.at)
        if action.plan not in self._executed:
            self._start(action.plan, action.waiting)
        if action.outcome in ("intended", "done"):
            self._settle(action.waiting, at)

    def start(self, plan: EvictionPlanRecord, now: float) -> str | None:
        """Count a plan as executed; return None, or the reason why it must not be executed."""
        at = parse_time(plan.at)
        if not (at - LONGEST_VALID_SECONDS <= now < expires_at(plan)):
            return "late"
        if plan.id in self._executed:
            return "repeated"
        if plan.waiting is None:
            _remember(self._executed, plan.id, None)
            return None
        uid = plan.waiting.uid
        if self._plans_per_pod.get(uid, 0) >= PLANS_OF_A_POD:
            _remember(self._executed, plan.id, None)
            return "too_many"
        # The time of the plan is its writer's: it may be ahead, but not let the pod wait less.
        if min(at, now) < self._settled_at.get(uid, 0.0):
            _remember(self._executed, plan.id, None)
            return "early"
        self._start(plan.id, uid)
        return None

    def made_room(self, plan: EvictionPlanRecord, now: float) -> None:
        """Note that a plan has evicted by now: its pod gets no other plan for a while."""
        if plan.waiting is not None:
            self._settle(plan.waiting.uid, now)

    def _start(self, plan_id: str, uid: str) -> None:
        _remember(self._executed, plan_id, None)
        if uid:
            _remember(self._plans_per_pod, uid, self._plans_per_pod.get(uid, 0) + 1)

    def _settle(self, uid: str, at: float) -> None:
        if not uid:
            return
        settled_at = max(at + SETTLE_SECONDS, self._settled_at.get(uid, 0.0))
        _remember(self._settled_at, uid, settled_at)


def _remember(entries: "OrderedDict[str, Value]", key: str, value: Value) -> None:
    entries[key] = value
    entries.move_to_end(key)
    while len(entries) > _REMEMBERED:
        entries.popitem(last=False)
