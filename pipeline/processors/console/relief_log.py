"""Plans of the last hours with what became of each of their pods, from records in any order and
with repeats."""

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from pipeline.processors.console import limits
from pipeline.topics.actions import ActionRecord, Outcome
from pipeline.topics.eviction_plans import LONGEST_NAME, MOST_PODS, EvictionPlanRecord

_EVICTOR: Final = "evictor"
_PLANNER: Final = "planner"


class LastAction(NamedTuple):
    """The last action about a pod or a plan, at a time (Unix) by the broker's clock. `error` is the
    reason of a refusal or failure."""

    outcome: Outcome
    at: float
    error: str
    why: str


@dataclass(slots=True)
class LoggedPlan:
    """A plan, made `at` by the broker's clock (Unix time), and the last actions: by UID about its
    pods, about it as a whole, and the planner's verdict. The `plan` has its first pods, and
    `more_pods` others; without a `plan` only actions are known."""

    at: float
    plan: EvictionPlanRecord | None = None
    more_pods: int = 0
    of_pods: dict[str, LastAction] = field(default_factory=dict)
    of_plan: LastAction | None = None
    verdict: LastAction | None = None


class ReliefLog:
    """The newest plans, at most `limits.PLANS` of the last `limits.KEPT_SECONDS`. Times are Unix
    times by the broker's clock."""

    def __init__(self) -> None:
        self._plans: dict[str, LoggedPlan] = {}
        self._crowded_out_at = -math.inf  # when the newest was made that others crowded out

    def take_plan(self, plan: EvictionPlanRecord, appended_at: float, now: float) -> bool:
        """Take a plan; False if it is known, or too old."""
        logged = self._entry(plan.id, appended_at, now)
        if logged is None or logged.plan is not None:
            return False
        logged.plan, logged.at = _shortened(plan), min(appended_at, now)
        logged.more_pods = max(len(plan.pods) - limits.PODS_OF_A_PLAN, 0)
        known, listed = logged.of_pods, (pod.uid for pod in logged.plan.pods)
        logged.of_pods = {uid: known[uid] for uid in listed if uid in known}
        return True

    def take_action(self, action: ActionRecord, appended_at: float, now: float) -> bool:
        """Take an action; False if it is about no plan, too old, or older than what is known."""
        if not action.plan or action.actuator not in (_EVICTOR, _PLANNER):
            return False
        logged = self._entry(action.plan, appended_at, now)
        if logged is None:
            return False
        texts = (action.error, action.why)
        error, why = (text[: limits.TEXT_CHARACTERS] for text in texts)
        last = LastAction(action.outcome, min(appended_at, now), error, why)
        if action.actuator == _PLANNER:
            is_new = _is_newer(last, logged.verdict)
            logged.verdict = last if is_new else logged.verdict
            return is_new
        uids = [uid for uid in action.before.values() if uid]
        if not uids:
            is_new = _is_newer(last, logged.of_plan)
            logged.of_plan = last if is_new else logged.of_plan
            return is_new
        if logged.plan is not None:
            listed = {pod.uid for pod in logged.plan.pods}
            uids = [uid for uid in uids if uid in listed]
        newer = [uid for uid in uids if _is_newer(last, logged.of_pods.get(uid))]
        for uid in newer:
            # Before the plan is known, any of its pods may be among those that are listed.
            if uid in logged.of_pods or len(logged.of_pods) < MOST_PODS:
                logged.of_pods[uid] = last
        return bool(newer)

    def plans(self, now: float) -> list[LoggedPlan]:
        """The plans whose record is known, newest first."""
        self._forget(now)
        known = [logged for logged in self._plans.values() if logged.plan is not None]
        return sorted(known, key=lambda logged: -logged.at)

    def is_complete(self, now: float) -> bool:
        """Whether `plans` has every plan that is young enough."""
        return now - self._crowded_out_at > limits.KEPT_SECONDS

    def _entry(self, plan_id: str, appended_at: float, now: float) -> LoggedPlan | None:
        """The entry of a plan; None for a plan that is too old, or has an impossible id."""
        if now - appended_at > limits.KEPT_SECONDS or not 0 < len(plan_id) <= LONGEST_NAME:
            return None
        if plan_id not in self._plans:
            self._plans[plan_id] = LoggedPlan(min(appended_at, now))
            self._forget(now)
        return self._plans.get(plan_id)

    def _forget(self, now: float) -> None:
        """Drop plans that are too old, and of too many the oldest."""
        self._plans = {
            plan_id: logged
            for plan_id, logged in self._plans.items()
            if now - logged.at <= limits.KEPT_SECONDS
        }
        while len(self._plans) > limits.PLANS:
            oldest = min(self._plans, key=lambda plan_id: self._plans[plan_id].at)
            self._crowded_out_at = max(self._crowded_out_at, self._plans.pop(oldest).at)


def _shortened(plan: EvictionPlanRecord) -> EvictionPlanRecord:
    """The plan without the pods and texts that are not shown: anybody may have written it."""
    pods = (msgspec.structs.replace(pod, why_not=()) for pod in plan.pods[: limits.PODS_OF_A_PLAN])
    why = plan.why[: limits.TEXT_CHARACTERS]
    return msgspec.structs.replace(plan, why=why, pods=tuple(pods))


def _is_newer(action: LastAction, known: LastAction | None) -> bool:
    return known is None or action.at >= known.at
