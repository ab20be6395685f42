"""Execute a plan that makes room for a pod that waits: all of its pods leave, or none.

Every limit is enforced here, whatever a plan says. The executor reads the pods again, checks the
limits and the disruption budgets for all of them together, predicts by their grace periods whether
all can leave before the plan expires, and tries all evictions with dryRun first. Before each
eviction it checks the pending pod and the limits again. A change between two evictions, or a pod
that does not end in its grace period, may still leave a plan half executed.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

from actuators.eviction.eviction_calls import find_pod, pods_on_node
from actuators.eviction.eviction_gate import EvictionGate, Mode
from actuators.eviction.received_plans import ReceivedPlan
from pipeline.errors import SpringtideError
from pipeline.kube.event_reporter import EventReporter
from pipeline.processors.eviction.departure_schedule import (
    Departure,
    Terms,
    objection_to_schedule,
)
from pipeline.processors.eviction.eviction_objections import objection, pods_to_evict
from pipeline.processors.eviction.live_pods import LivePod
from pipeline.processors.eviction.migration_limits import IN_TIME, PASSING, WorkloadState
from pipeline.processors.eviction.migration_policy import Gate
from pipeline.topics.actions import Outcome
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.pods import PodRecord
from pipeline.topics.workloads import Workload

_ALREADY_DELETED: Final = "all pods of the plan are deleted, or being deleted"
_OUTCOMES: Final[dict[Mode, Outcome]] = {"observe": "observed", "recommend": "recommended"}
_LOOK_SECONDS: Final = 1.0


class PlanResult(NamedTuple):
    """The outcome of a plan, whether a pod of it left the node, is about to, or may have, and
    whether an eviction was asked for."""

    outcome: Outcome
    made_room: bool = False
    has_tried: bool = False


class PlanExecutor:
    """Executes plans that make room, one at a time."""

    def __init__(self, gate: EvictionGate, mode: Mode) -> None:
        self._gate = gate
        self._mode = mode
        self._events = EventReporter(gate.api, "springtide-evictor")

    async def execute(self, received: ReceivedPlan) -> PlanResult:
        """Execute a plan, and report the outcome of each pod."""
        plan = received.plan
        try:
            pods = await self._victims(plan)
        except SpringtideError as error:
            return self._report(plan, "failed", error.message)
        if isinstance(pods, str):
            self._report(plan, "refused", pods)
            return PlanResult("refused", pods == _ALREADY_DELETED)
        try:
            reason = await self._limit_reason(pods, received.expires_at)
        except SpringtideError as error:
            reason = error.message
        if reason is not None:
            return self._report(plan, "refused", reason)
        if self._mode == "act":
            return await self._evict_all(received, pods)
        outcome = _OUTCOMES[self._mode]
        for pod in pods:
            self._gate.actions.put(self._gate.action(plan, pod, outcome))
        if self._mode == "recommend" and plan.waiting is not None:
            waiting = plan.waiting
            names = {"namespace": waiting.namespace, "name": waiting.name, "uid": waiting.uid}
            text = _sentence(plan, pods)
            await self._events.write(
                {"metadata": names}, "Pod", "WouldPushOut", text, severity="Normal"
            )
        return PlanResult(outcome)

    async def _victims(self, plan: EvictionPlanRecord) -> list[LivePod] | str:
        """The pods of the plan that still exist, or the reason against it."""
        uids = {pod.uid for pod in plan.pods}
        live = await pods_on_node(self._gate.api, plan.node, uids)
        on_node = {uid: pod.record for uid, pod in live.items()}
        waiting = await self._waiting(plan)
        reason = _objection(plan, waiting, on_node)
        if reason is not None:
            return reason
        return [live[pod.uid] for pod in pods_to_evict(plan, on_node)] or _ALREADY_DELETED

    async def _waiting(self, plan: EvictionPlanRecord) -> LivePod | None:
        """The pending pod of the plan."""
        waiting = plan.waiting
        if waiting is None:
            return None
        return await find_pod(self._gate.api, waiting.namespace, waiting.name)

    async def _evict_all(self, received: ReceivedPlan, pods: list[LivePod]) -> PlanResult:
        plan = received.plan
        if (forbidden := await self._gate.forbidden(pods)) is not None:
            return self._report(plan, "refused", forbidden.error)
        made_room = has_tried = False
        begun: set[Workload | None] = set()
        for pod in pods:
            reason, skipped = await self._wait_for_limits(received, pod, begun)
            begun.add(pod.workload)
            if reason is not None:
                self._gate.actions.put(self._gate.action(plan, pod, "refused", reason))
                return PlanResult("refused", made_room, has_tried)
            result = await self._gate.evict(received, pod, lambda: self._wait_reason(plan), skipped)
            made_room = made_room or result.may_leave
            has_tried = has_tried or result.was_asked
            if result.outcome != "done":
                return PlanResult(result.outcome, made_room, has_tried)
            record = pod.record
            names = {"namespace": record.namespace, "name": record.name, "uid": record.uid}
            self._events.warn_soon({"metadata": names}, "Pod", "PushedOut", plan.why)
        return PlanResult("done", made_room=True, has_tried=True)

    async def _limit_reason(self, pods: list[LivePod], until: float) -> str | None:
        """Why the limits do not allow to evict all of these pods before the plan expires."""
        gate, departures = self._gate, list[Departure]()
        states = dict[Workload | None, WorkloadState | None]()
        for pod in pods:
            if gate.is_soft(pod):
                name = f"{pod.record.namespace}/{pod.record.name}"
                return f"{name} would only be marked (SoftEviction), which makes no room in time"
            # The limit of evictions in time counts the pods of a workload once for each plan.
            ignored = IN_TIME if pod.workload and pod.workload in states else ()
            if pod.workload not in states:
                states[pod.workload] = await gate.state_of(pod)
            state = states[pod.workload]
            departures.append(Departure(pod.candidate, gate.grace_seconds(pod), state, ignored))
        first_seconds, all_seconds = gate.pause_seconds(), gate.pause_seconds(len(pods))
        terms = Terms(
            limits=gate.policy.limits,
            skipped_gates=gate.policy.skipped_gates,
            pause_seconds=(all_seconds - first_seconds) / max(len(pods) - 1, 1),
            first_at=gate.clock.monotonic() + first_seconds,
        )
        return objection_to_schedule(departures, gate.history.copy(), terms, until)

    async def _wait_for_limits(
        self, received: ReceivedPlan, pod: LivePod, begun: Collection[Workload | None]
    ) -> tuple[str | None, tuple[Gate, ...]]:
        """Wait until the limits allow to evict the pod; return why they do not before the plan
        expires, or why no pod waits for room any more, and which limits are skipped. The plan has
        evicted pods of the workloads that are `begun`."""
        ignored = IN_TIME if pod.workload and pod.workload in begun else ()
        clock = self._gate.clock
        while True:
            try:
                state = await self._gate.state_of(pod)
            except SpringtideError as error:
                return error.message, ()
            refusal, skipped = self._gate.limits_now(pod, state, ignored=ignored)
            if refusal is None:
                return None, skipped
            if refusal.reason not in PASSING:
                return str(refusal), ()
            if clock.monotonic() >= received.expires_at:
                return f"Expired: {refusal}", ()
            await clock.sleep(_LOOK_SECONDS)
            if (reason := await self._wait_reason(received.plan)) is not None:
                return reason, ()

    async def _wait_reason(self, plan: EvictionPlanRecord) -> str | None:
        """Why the pending pod needs no room now, None if it does."""
        try:
            return _objection(plan, await self._waiting(plan), {})
        except SpringtideError as error:
            return f"cannot read the pending pod: {error.message}"

    def _report(self, plan: EvictionPlanRecord, outcome: Outcome, error: str) -> PlanResult:
        self._gate.actions.put(self._gate.action(plan, None, outcome, error))
        return PlanResult(outcome)


def _objection(
    plan: EvictionPlanRecord, waiting: LivePod | None, on_node: dict[str, PodRecord]
) -> str | None:
    pending = waiting.record if waiting is not None else None
    may_preempt = waiting is None or waiting.may_preempt
    return objection(plan, pending, on_node, may_push_out=may_preempt)


def _sentence(plan: EvictionPlanRecord, pods: list[LivePod]) -> str:
    names = ", ".join(f"{pod.record.namespace}/{pod.record.name}" for pod in pods)
    return f"would fit on {plan.node} without {names}; no pod is evicted in mode recommend"
