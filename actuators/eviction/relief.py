"""Evict the pods of relief plans and of PodMigrationJobs: each stands alone and waits for its turn.

All of them are judged together, in the order of the arbitration. A pod that may never be evicted is
refused at once; one that exceeds a limit, or that a disruption budget protects, waits until its
plan expires. Every refusal is an action with its reason.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final, NamedTuple

import msgspec

from actuators.eviction.eviction_calls import NO_OPTIONS, Options, find_pod, pods_on_node
from actuators.eviction.eviction_gate import EvictionGate, Mode, Objection
from actuators.eviction.received_plans import ReceivedPlan
from pipeline.errors import SpringtideError
from pipeline.kube.event_reporter import EventReporter
from pipeline.processors.eviction.arbitration import (
    Request,
    arbitration_order,
    judge,
    pod_rank,
)
from pipeline.processors.eviction.evictability import protections_of
from pipeline.processors.eviction.live_pods import POLICY_LABEL, LivePod
from pipeline.processors.eviction.migration_limits import IN_TIME, OF_STATE
from pipeline.processors.eviction.migration_policy import Gate
from pipeline.processors.eviction.refusals import Verdict, verdict
from pipeline.times import parse_time
from pipeline.topics.actions import ActionRecord, Outcome
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod

MOST_WAITING: Final = 1000
"""Pods that wait at the same time; further ones are refused. Those of PodMigrationJobs, which may
wait for long, take half of the room at most."""
_OUTCOMES: Final[dict[Mode, Outcome]] = {"observe": "observed", "recommend": "recommended"}
_MOST_JUDGED: Final = 200
_MOST_READ: Final = 20
"""Pods of one step that are compared with the limits, and for which the API server is asked."""
_PAUSE_SECONDS: Final = 2.0
_FIRST_WAIT_SECONDS: Final = 5.0
_LONGEST_WAIT_SECONDS: Final = 30.0


async def _no_objection() -> None:
    """Pods of plans wait for nothing but their turn."""


class Terms(NamedTuple):
    """Terms of an eviction beyond its plan. `is_wanted` is asked while the pod waits, `objection`
    directly before each call. `evict_policy` counts if the pod has no such label. `ignored` are
    reasons of limits that do not hold."""

    is_wanted: Callable[[], bool] = lambda: True
    objection: Objection = _no_objection
    delete_options: Options = NO_OPTIONS
    evict_policy: str = ""
    ignored: Collection[str] = ()

    def applied_to(self, pod: LivePod) -> LivePod:
        """The pod with the grace period and the policy of its eviction."""
        record, grace = pod.record, self.delete_options.get("gracePeriodSeconds")
        if self.evict_policy and POLICY_LABEL not in record.labels:
            labels = record.labels | {POLICY_LABEL: self.evict_policy}
            record = msgspec.structs.replace(record, labels=labels)
        seconds = pod.grace_seconds if grace is None else float(grace)
        return msgspec.structs.replace(pod, record=record, grace_seconds=seconds)


_PLAN_TERMS: Final = Terms()


@dataclass
class _Waiting:
    """A pod that waits for its eviction until its plan expires: `not_before` is when it is judged
    next (monotonic), `reason` why it was not evicted yet."""

    received: ReceivedPlan
    pod: LivePod
    terms: Terms = _PLAN_TERMS
    not_before: float = -math.inf
    reason: str = "Expired: it was not the pod's turn"
    attempts: int = 0


class ReliefExecutor:
    """The pods of relief plans that wait for their eviction."""

    def __init__(self, gate: EvictionGate, mode: Mode) -> None:
        self._gate = gate
        self._mode = mode
        self._events = EventReporter(gate.api, "springtide-evictor")
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def take(self, received: ReceivedPlan) -> str:
        """Take the pods of a plan; return its outcome for the metric."""
        plan = received.plan
        try:
            uids = {pod.uid for pod in plan.pods}
            live = await pods_on_node(self._gate.api, plan.node, uids)
        except SpringtideError as error:
            self._gate.actions.put(self._gate.action(plan, None, "failed", error.message))
            return "failed"
        for gone in {pod.uid: pod for pod in plan.pods if pod.uid not in live}.values():
            self._gate.actions.put(_gone(self._gate.action(plan, None, "refused"), gone))
        outcomes = {await self.take_pod(received, pod) for _, pod in sorted(live.items())}
        return next((o for o in ("taken", *_OUTCOMES.values()) if o in outcomes), "refused")

    async def take_pod(
        self, received: ReceivedPlan, pod: LivePod, terms: Terms = _PLAN_TERMS
    ) -> str:
        """Take one pod of a plan; return the outcome."""
        plan, uid = received.plan, pod.record.uid
        refusal, skipped = self._protections(pod)
        if refusal is not None:
            return self._refuse(plan, pod, str(refusal))
        if self._mode != "act" or self._gate.policy.is_dry:
            return await self._observe(plan, pod, skipped, terms)
        if uid in self._waiting or self._gate.history.is_leaving(uid):
            return self._refuse(plan, pod, "Repeated: another plan evicts the pod")
        if len(self._waiting) >= (MOST_WAITING if terms is _PLAN_TERMS else MOST_WAITING // 2):
            return self._refuse(plan, pod, f"Overload: {len(self._waiting)} pods wait")
        self._waiting[uid] = _Waiting(received, pod, terms)
        return "taken"

    async def _observe(
        self, plan: EvictionPlanRecord, pod: LivePod, skipped: tuple[Gate, ...], terms: Terms
    ) -> str:
        """Say what would become of the pod now. It counts for no limit, as it stays."""
        try:
            state, fit = await self._gate.state_of(pod), await self._gate.fits_elsewhere(pod)
        except SpringtideError as error:
            wait = f"Unknown: {error.message}"
        else:
            replicas = self._gate.replicas_allow(state)
            limits = self._gate.limits_now(pod, state, ignored=terms.ignored)
            if (hard := replicas.refusal or fit.refusal) is not None:
                return self._refuse(plan, pod, str(hard))
            skipped = (*skipped, *replicas.skipped, *limits.skipped, *fit.skipped)
            wait = str(limits.refusal or "")
        outcome = _OUTCOMES.get(self._mode, "observed")
        reason = f"would wait: {wait}" if wait else ""
        self._gate.actions.put(self._gate.action(plan, pod, outcome, reason, skipped))
        if self._mode == "recommend":
            await self._write_event(plan, pod, "WouldDeschedule")
        return outcome

    def waits_for(self, plan_id: str, uid: str) -> str | None:
        """Why a pod of a plan still waits, as "reason: text"; None if it does not."""
        waiting = self._waiting.get(uid)
        if waiting is None or waiting.received.plan.id != plan_id:
            return None
        return waiting.reason.replace("Expired:", "Arbitration:", 1)

    async def step(self) -> None:
        """Refuse pods that nobody wants to evict any more or whose plans have expired, and evict at
        most one pod."""
        now = self._gate.clock.monotonic()
        for uid, waiting in [*self._waiting.items()]:
            if not waiting.terms.is_wanted():
                del self._waiting[uid]
                text = "Withdrawn: the request has changed"
                self._refuse(waiting.received.plan, waiting.pod, text)
            elif now >= waiting.received.expires_at:
                del self._waiting[uid]
                self._refuse(waiting.received.plan, waiting.pod, waiting.reason)
        if self._gate.pause_seconds() > 0 or self._gate.policy.is_dry:
            return
        read = 0
        for waiting in self._in_order(now):
            # The state of a workload is read for few pods at a time.
            refusal = self._gate.limits_now(waiting.pod, None, ignored=OF_STATE | IN_TIME).refusal
            if refusal is not None:
                waiting.reason, waiting.not_before = str(refusal), now + _PAUSE_SECONDS
                continue
            read += 1
            if await self._try(waiting) or read == _MOST_READ:
                return

    def _in_order(self, now: float) -> Iterator[_Waiting]:
        """The pods that may be judged now, as arbitrated; if there are too many, those whose turn
        is due for the longest."""
        ready = [waiting for waiting in self._waiting.values() if waiting.not_before <= now]
        ready = nsmallest(_MOST_JUDGED, ready, key=lambda waiting: waiting.not_before)
        requests = [
            Request(
                parse_time(waiting.received.plan.at),
                pod_rank(waiting.pod.record, waiting.pod.kube_qos),
                _batch_job(waiting.pod),
            )
            for waiting in ready
        ]
        moving = Counter(str(e.pod.workload) for e in self._gate.history.leaving)
        for position in arbitration_order(requests, moving):
            yield ready[position]

    async def _try(self, waiting: _Waiting) -> bool:
        """Evict a pod if everything allows it; return whether its eviction was asked for."""
        plan, uid, record = waiting.received.plan, waiting.pod.record.uid, waiting.pod.record
        try:
            pod = await find_pod(self._gate.api, record.namespace, record.name)
            exists = pod is not None and pod.record.uid == uid
            pod = waiting.terms.applied_to(pod if pod is not None and exists else waiting.pod)
            state = await self._gate.state_of(pod) if exists else None
        except SpringtideError as error:
            self._wait(waiting, f"Unknown: {error.message}")
            return False
        protections, replicas = self._protections(pod), self._gate.replicas_allow(state)
        limits = self._gate.limits_now(pod, state, ignored=waiting.terms.ignored)
        hard = protections.refusal or replicas.refusal
        match judge(exists=exists, is_evictable=hard is None, is_within_limits=not limits.refusal):
            case "fail":
                del self._waiting[uid]
                self._refuse(plan, pod, str(hard))
                return False
            case "wait":
                self._wait(waiting, str(limits.refusal))
                return False
        if not exists:
            del self._waiting[uid]
            self._refuse(plan, pod, "Gone: the pod was deleted")
            return False
        try:
            fit = await self._gate.fits_elsewhere(pod)
        except SpringtideError as error:
            self._wait(waiting, f"Unknown: {error.message}")
            return False
        if fit.refusal is not None:
            del self._waiting[uid]
            self._refuse(plan, pod, str(fit.refusal))
            return False
        forbidden = await self._gate.forbidden([pod])
        if forbidden is not None:
            text = f"Forbidden: {forbidden.error}"
            if forbidden.retry_seconds is not None:
                self._wait(waiting, text, forbidden.retry_seconds)
            else:
                del self._waiting[uid]
                self._refuse(plan, pod, text)
            return False
        skipped = (*protections.skipped, *replicas.skipped, *limits.skipped, *fit.skipped)
        terms = waiting.terms
        result = await self._gate.evict(
            waiting.received, pod, terms.objection, skipped, terms.delete_options
        )
        if result.retry_seconds is not None and not result.may_leave:
            self._wait(waiting, result.error, result.retry_seconds)
            return True
        del self._waiting[uid]
        if result.outcome == "done":
            await self._write_event(plan, pod, "Descheduled")
        return True

    def _protections(self, pod: LivePod) -> Verdict:
        policy = self._gate.policy
        return verdict(protections_of(pod.record, policy.protections), policy.skipped_gates)

    def _wait(self, waiting: _Waiting, reason: str, at_least_seconds: float = 0.0) -> None:
        seconds = min(_FIRST_WAIT_SECONDS * 2**waiting.attempts, _LONGEST_WAIT_SECONDS)
        waiting.reason = reason
        waiting.attempts = min(waiting.attempts + 1, 8)
        waiting.not_before = self._gate.clock.monotonic() + max(seconds, at_least_seconds)

    def _refuse(self, plan: EvictionPlanRecord, pod: LivePod, reason: str) -> str:
        self._gate.actions.put(self._gate.action(plan, pod, "refused", reason))
        return "refused"

    async def _write_event(self, plan: EvictionPlanRecord, pod: LivePod, reason: str) -> None:
        record = pod.record
        names = {"namespace": record.namespace, "name": record.name, "uid": record.uid}
        await self._events.write({"metadata": names}, "Pod", reason, plan.why, severity="Normal")


def _gone(action: ActionRecord, pod: LeavingPod) -> ActionRecord:
    """The action about a pod of a plan that is not on the node any more, or never was."""
    names = {f"{pod.namespace}/{pod.name}": pod.uid}
    text = f"Gone: no pod of the UID {pod.uid:.80} is on the node"
    return msgspec.structs.replace(
        action, before=dict(names), after=dict.fromkeys(names), error=text, workload=pod.workload
    )


def _batch_job(pod: LivePod) -> str | None:
    """The batch Job of a pod, by its workload."""
    owner = pod.record.owner
    return str(pod.workload) if owner is not None and owner.kind == "Job" else None
