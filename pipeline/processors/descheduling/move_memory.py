"""Plans of the last hour and what became of them.

They decide which nodes, workloads and pods rest (`cool_downs`), which plans are judged, and which
strategies are paused. The memory is rebuilt from the topics of plans and actions, in any order and
with repeats.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from pipeline.errors import InvalidRecordError
from pipeline.processors.descheduling.cool_downs import Rests
from pipeline.processors.descheduling.move_outcomes import (
    LANDING_SECONDS,
    SETTLE_SECONDS,
    EndedPlan,
    does_not_help,
)
from pipeline.processors.descheduling.remembered_moves import (
    EVICTED,
    NOT_FINAL,
    RememberedAction,
    RememberedPlan,
    RememberedPod,
)
from pipeline.processors.eviction.refusals import is_lasting as is_lasting_refusal
from pipeline.processors.kubernetes.pod_classes import COUNTED_AS_PROD
from pipeline.times import parse_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.eviction_plans import (
    LONGEST_VALID_SECONDS,
    EvictionPlanRecord,
    LeavingPod,
)
from pipeline.topics.resource_amounts import LARGEST_POD_AMOUNT

PLANNER: Final = "planner"
"""`planner` of its plans, and `actuator` of its actions."""
OUTCOME: Final = "outcome"
"""`action` of the verdict about a plan: it helped if the outcome is `done`."""
LOOK_BACK_SECONDS: Final = 3600.0
LASTING_SECONDS: Final = 7200.0
"""For how long refusals for a reason that lasts are remembered."""
LAST_ACTION_SECONDS: Final = 15.0
"""After the end of a plan: an eviction that was recorded just before is read by then."""
_EVICTOR: Final = "evictor"
_MOST_REASON: Final = 200
_MOST_PLANS: Final = 10_000
_MOST_ACTIONS: Final = 100_000
_MOST_PODS: Final = 1_000
"""Pods of a plan: no planner makes one with more."""
_MOST_PODS_IN_ALL: Final = 100_000
"""Pods of all plans that are remembered: the oldest plans are forgotten first."""


class PlannedPod(NamedTuple):
    """A pod of a plan, when it was planned (Unix time), and by which strategy."""

    node: str
    namespace: str
    at: float
    strategy: str


class _Verdict(NamedTuple):
    """`at` is its age at the latest, `dated` what its planner wrote: the same for a round. `order`
    is when the broker appended it, which is the same for all that read it, whatever the clocks of
    its planners were."""

    node: str
    strategy: str
    helped: bool
    at: float
    dated: str
    order: float


class MoveMemory:
    """Plans of the planner, and actions of the evictor. Times are Unix times, by this process's
    clock at most: other clocks may be ahead. They may be behind, too: a record is no older than the
    broker's append time, `appended_at`, where that is known. Call `shift` when the clock is set, so
    that no cool-down lasts longer or shorter for it."""

    def __init__(self) -> None:
        self._plans: OrderedDict[str, RememberedPlan] = OrderedDict()
        self._pods_in_all = 0
        # By what they are for: the evictor remembers names of plans for longer than an hour.
        self._last_ids: OrderedDict[str, str] = OrderedDict()
        self._actions: OrderedDict[tuple[str, str], RememberedAction] = OrderedDict()
        # Plans that were refused, or failed, as a whole.
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._verdicts: OrderedDict[str, _Verdict] = OrderedDict()
        # When a pod of a plan was evicted: only these plans can be judged.
        self._evicted_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._plans)

    def take_plan(
        self, plan: EvictionPlanRecord, now: float, appended_at: float | None = None
    ) -> bool:
        """Take a plan; False if it is of another planner, too old or known. Raises
        `InvalidRecordError`."""
        if plan.planner != PLANNER or plan.waiting is not None:
            return False
        if len(plan.pods) > _MOST_PODS:
            raise InvalidRecordError(f"the plan has {len(plan.pods)} pods, more than {_MOST_PODS}")
        amounts = [amount for pod in plan.pods for amount in (pod.cpu_millicores, pod.memory_bytes)]
        if amounts and min(amounts) < 0:
            raise InvalidRecordError("the usage of a pod is negative")
        if amounts and max(amounts) > LARGEST_POD_AMOUNT:
            raise InvalidRecordError(f"the usage of a pod is {max(amounts)}, more than any uses")
        made_at = _time(plan.at)
        at = _latest(made_at, now, appended_at)
        until = at + min(_time(plan.valid_until) - made_at, LONGEST_VALID_SECONDS)
        if (known := self._plans.get(plan.id)) is not None and until > known.until:
            # One that was just made is known before the broker's time of it.
            self._plans[plan.id] = known._replace(at=max(at, known.at), until=until)
        if known is not None:
            return False
        purpose = plan.id.rpartition("/")[0]
        self._last_ids[purpose] = plan.id
        self._last_ids.move_to_end(purpose)
        _limit(self._last_ids, _MOST_PLANS)
        if now - at > LOOK_BACK_SECONDS:
            return False
        pods = tuple(map(_remembered, plan.pods))
        self._plans[plan.id] = RememberedPlan(plan.node, plan.strategy, at, until, pods)
        self._pods_in_all += len(pods)
        while len(self._plans) > _MOST_PLANS or self._pods_in_all > _MOST_PODS_IN_ALL:
            self._drop_plan(next(iter(self._plans)))
        return True

    def take_action(
        self, action: ActionRecord, now: float, appended_at: float | None = None
    ) -> bool:
        """Take an action of the evictor or a verdict; False if it is another one or too old. Raises
        `InvalidRecordError`."""
        at = _latest(_time(action.at), now, appended_at)
        is_lasting = action.outcome == "refused" and is_lasting_refusal(action.error)
        if not action.plan or now - at > (LASTING_SECONDS if is_lasting else LOOK_BACK_SECONDS):
            return False
        if (action.actuator, action.action) == (PLANNER, OUTCOME):
            self._verdicts[action.plan] = _Verdict(
                action.node, action.strategy, action.outcome == "done", at, action.at,
                now if appended_at is None else appended_at,
            )  # fmt: skip
            _limit(self._verdicts, _MOST_PLANS)
            return True
        if action.actuator != _EVICTOR:
            return False
        if not action.before:
            self._ended[action.plan] = None
            _limit(self._ended, _MOST_PLANS)
        lasting = action.error[:_MOST_REASON] if is_lasting else ""
        for uid in action.before.values():
            if action.outcome == "done":
                self._evicted_at[action.plan] = at
            key = action.plan, uid or ""
            self._actions.pop(key, None)
            self._actions[key] = RememberedAction(
                action.node, action.workload, action.outcome, at, lasting
            )
        _limit(self._actions, _MOST_ACTIONS)
        _limit(self._evicted_at, _MOST_PLANS)
        return True

    def shift(self, seconds: float) -> None:
        """Let everything keep its age when the clock is set by so many seconds."""
        for plan_id, plan in self._plans.items():
            until = plan.until + seconds
            self._plans[plan_id] = plan._replace(at=plan.at + seconds, until=until)
        for key, action in self._actions.items():
            self._actions[key] = action._replace(at=action.at + seconds)
        for plan_id, found in self._verdicts.items():
            self._verdicts[plan_id] = found._replace(at=found.at + seconds)
        for plan_id in self._evicted_at:
            self._evicted_at[plan_id] += seconds

    def forget(self, now: float) -> None:
        """Drop plans and actions that are older than `LOOK_BACK_SECONDS`, or `LASTING_SECONDS`."""
        oldest = now - LOOK_BACK_SECONDS
        for plan_id in [i for i, plan in self._plans.items() if plan.at < oldest]:
            self._drop_plan(plan_id)
            self._ended.pop(plan_id, None)
        for plan_id in [i for i, at in self._evicted_at.items() if at < oldest]:
            del self._evicted_at[plan_id]
        oldest_lasting = now - LASTING_SECONDS
        for key, action in [*self._actions.items()]:
            if action.at < (oldest_lasting if action.lasting else oldest):
                del self._actions[key]
        for plan_id in [i for i, found in self._verdicts.items() if found.at < oldest]:
            del self._verdicts[plan_id]

    def _drop_plan(self, plan_id: str) -> None:
        self._pods_in_all -= len(self._plans.pop(plan_id).pods)

    def planned_pods(self, since: float) -> Iterator[PlannedPod]:
        """Yield the pods that were planned at this time or later."""
        for plan in self._plans.values():
            if plan.at >= since:
                for pod in plan.pods:
                    yield PlannedPod(plan.node, pod.namespace, plan.at, plan.strategy)

    def next_id(self, purpose: str, alert_hours: int) -> str:
        """A name for the next plan for this purpose (node, strategy and alert): the same for all
        planners that remember the same last plan for it or none, and another one after each plan.

        It depends on the name of the last plan, not on its time: clocks of nodes and planners
        differ, and are set. The age of the alert, by the node's clock, tells the first plan of a
        new leader from one that was made before all that it remembers.
        """
        last = self._last_ids.get(purpose)
        digest = "0" if last is None else hashlib.sha256(last.encode()).hexdigest()[:8]
        return f"{purpose}/{alert_hours}.{digest}"

    def unjudged(self, now: float, span_of: Callable[[str], float]) -> list[EndedPlan]:
        """The plans without a verdict whose last eviction the usage of their node shows; `span_of`
        is its span in seconds. Plans of which no eviction is known to have succeeded have none."""
        ended = []
        for plan_id in self._evicted_at:
            plan = self._plans.get(plan_id)
            if plan is None or plan_id in self._verdicts:
                continue
            if self._is_under_way(plan_id, plan, now):
                continue
            actions = [(pod, self._actions.get((plan_id, pod.uid))) for pod in plan.pods]
            if not any(action is not None and action.outcome == "done" for _, action in actions):
                continue
            left = [(pod, a.at) for pod, a in actions if a and a.outcome in EVICTED]
            evicted_at = max(at for _, at in left)
            shown_at = evicted_at + span_of(plan.node)
            if now >= shown_at + LANDING_SECONDS:
                ended.append(
                    EndedPlan(
                        plan_id, plan.node, plan.strategy, plan.at, evicted_at,
                        workloads=frozenset(pod.workload for pod, _ in left if pod.workload),
                        targets=tuple(pod.target for pod, _ in left if pod.target),
                        is_settled=now >= shown_at + SETTLE_SECONDS,
                    )
                )  # fmt: skip
        return ended

    def paused(
        self, strategy: str, now: float, group_of: Callable[[str], str] = lambda _: ""
    ) -> set[str]:
        """The groups of nodes for which the strategy did not help in the last hour; `group_of` is
        the group of a node, by default the same for all."""
        # The broker dates the verdicts of a round one after the other.
        rounds: dict[str, float] = {}
        for found in self._verdicts.values():
            rounds[found.dated] = max(found.order, rounds.get(found.dated, found.order))
        verdicts: dict[str, list[tuple[float, bool]]] = {}
        for found in self._verdicts.values():
            if found.strategy == strategy and now - found.at <= LOOK_BACK_SECONDS:
                verdict = rounds[found.dated], found.helped
                verdicts.setdefault(group_of(found.node), []).append(verdict)
        return {group for group, each in verdicts.items() if does_not_help(each)}

    def rests(self, now: float) -> Rests:
        """What may not be planned at this moment."""
        plans = (
            (plan_id, plan, self._is_under_way(plan_id, plan, now))
            for plan_id, plan in self._plans.items()
        )
        return Rests(plans, self._actions, now)

    def _is_under_way(self, plan_id: str, plan: RememberedPlan, now: float) -> bool:
        """Whether the plan has not expired, and some of its pods have no final action."""
        if now >= plan.until + LAST_ACTION_SECONDS or plan_id in self._ended:
            return False
        return not all(self._is_final(plan_id, pod) for pod in plan.pods)

    def _is_final(self, plan_id: str, pod: RememberedPod) -> bool:
        action = self._actions.get((plan_id, pod.uid))
        return action is not None and action.outcome not in NOT_FINAL


def _remembered(pod: LeavingPod) -> RememberedPod:
    return RememberedPod(
        pod.uid, pod.namespace, pod.workload, pod.target, pod.cpu_millicores, pod.memory_bytes,
        is_prod=pod.pod_class in COUNTED_AS_PROD,
    )  # fmt: skip


def _time(text: str) -> float:
    try:
        return parse_time(text)
    except ValueError as error:
        raise InvalidRecordError(f"invalid time: {error}") from error


def _latest(at: float, now: float, appended_at: float | None) -> float:
    """When a record was written at the latest, by a clock that may be behind or ahead."""
    return min(at if appended_at is None else max(at, appended_at), now)


def _limit(entries: "OrderedDict[Any, Any]", most: int) -> None:
    while len(entries) > most:
        entries.popitem(last=False)
