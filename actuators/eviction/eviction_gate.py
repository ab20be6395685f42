"""The only way to a pod's eviction: limits, records, kill switch, call, and what the answer means.

Before each call the gate waits until the eviction is recorded as intended, and then checks the kill
switch and the lease, directly before the call. A call always names the UID, and a refused eviction
never becomes a DELETE.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import msgspec

from actuators.eviction.eviction_calls import (
    NO_OPTIONS,
    Options,
    annotate_for_eviction,
    budgets_of,
    evict,
    find_pod,
    status_of,
    workload_state,
)
from actuators.eviction.eviction_records import (
    SHOWN_CHARACTERS,
    ActionLog,
    count_eviction,
    eviction_action,
)
from actuators.eviction.kill_switch import SwitchAnswer, ask_kill_switch
from actuators.eviction.other_nodes import no_other_node
from actuators.eviction.received_plans import ReceivedPlan
from actuators.eviction.scales import ScaleReader
from actuators.rate_limit import LONGEST_SLEEP_SECONDS, RateLimit
from pipeline.clock import Clock
from pipeline.errors import (
    ApiUnavailableError,
    KafkaError,
    KubernetesError,
    NotFoundError,
    SpringtideError,
)
from pipeline.kube.api_client import Api
from pipeline.processors.eviction.disruption_budgets import refused_by_budgets
from pipeline.processors.eviction.eviction_answers import (
    BUDGET_CAUSE,
    DEFAULT_WAIT_SECONDS,
    action_for,
    may_have_happened,
    meaning_of,
    next_step,
    wait_seconds,
)
from pipeline.processors.eviction.eviction_history import EvictionHistory
from pipeline.processors.eviction.live_pods import POLICY_LABEL, LivePod
from pipeline.processors.eviction.migration_limits import (
    IN_TIME,
    PASSING,
    WorkloadState,
    limits_reached,
    replica_guard,
)
from pipeline.processors.eviction.migration_policy import Gate, MigrationPolicy
from pipeline.processors.eviction.refusals import Verdict, verdict
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord, Outcome
from pipeline.topics.eviction_plans import EvictionPlanRecord

Mode = Literal["observe", "recommend", "act"]
Objection = Callable[[], Awaitable[str | None]]
"""Why the eviction is not wanted any more, None if it is."""

RETRY_SECONDS: Final = 30.0
"""The longest time for which one eviction is tried again; the record of a call is no older."""
_LEAST_WAIT_SECONDS: Final = 1.0
"""The least pause before that, whatever a server asks for."""


class _Checks(NamedTuple):
    """What is asked before each call: the objection, and whether the plan is still valid (monotonic
    seconds); and the options of the call."""

    objection: Objection
    until: float
    delete_options: Options


class Result(NamedTuple):
    """What became of an eviction. `may_leave`: the pod left the node, is about to, or may have.
    `retry_seconds`: the pod may be evicted after this time; None if it may never. `was_asked`: the
    API server was asked for it."""

    outcome: Outcome
    error: str = ""
    may_leave: bool = False
    retry_seconds: float | None = None
    was_asked: bool = False


@dataclass
class EvictionGate:
    """Evicts one pod at a time. `may_evict` is asked before each eviction."""

    api: Api
    stop_path: str
    rate: RateLimit
    clock: Clock
    actions: ActionLog
    may_evict: Callable[[], bool]
    policy: MigrationPolicy = field(default_factory=MigrationPolicy)
    history: EvictionHistory = field(init=False)
    scales: ScaleReader = field(init=False)
    policy_rate: RateLimit = field(init=False)
    """The rate of the policy, which holds beside the evictor's own `rate`."""
    marked: dict[str, ActionRecord] = field(default_factory=dict)
    """The actions about pods that another agent was asked to evict, by UID, until these leave."""

    _switch: SwitchAnswer = field(default=SwitchAnswer(None), init=False)
    """The last answer about the kill switch."""

    def __post_init__(self) -> None:
        limits = self.policy.limits
        self.history = EvictionHistory(limits.history_seconds, limits.ttl_seconds)
        self.scales = ScaleReader(self.api)
        self.policy_rate = RateLimit(limits.evict_qps, self.clock, limits.evict_burst)

    def take_policy(self, policy: MigrationPolicy) -> None:
        """Put another policy in force from the next decision on."""
        self.policy = policy
        limits = policy.limits
        self.history.keep(limits.history_seconds, limits.ttl_seconds)
        self.policy_rate.per_second, self.policy_rate.burst = limits.evict_qps, limits.evict_burst

    # -- questions

    def pause_seconds(self, count: int = 1) -> float:
        """How long until the rates allow so many further evictions."""
        return max(rate.seconds_until(count) for rate in self._rates)

    @property
    def _rates(self) -> tuple[RateLimit, RateLimit]:
        return self.rate, self.policy_rate

    def limits_now(
        self,
        pod: LivePod,
        state: WorkloadState | None,
        history: EvictionHistory | None = None,
        ignored: Collection[str] = (),
    ) -> Verdict:
        """Whether the limits, apart from `ignored` ones, allow to evict the pod now; `history`
        replaces the evictor's own."""
        known = self.history if history is None else history
        situation = known.situation(pod.candidate, self.clock.monotonic(), state)
        refusals = limits_reached(pod.candidate, situation, self.policy.limits)
        counted = (refusal for refusal in refusals if refusal.reason not in ignored)
        return verdict(counted, self.policy.skipped_gates)

    def replicas_allow(self, state: WorkloadState | None) -> Verdict:
        """Whether the workload has enough replicas to lose one at all."""
        return verdict(replica_guard(state, self.policy.limits), self.policy.skipped_gates)

    async def state_of(self, pod: LivePod) -> WorkloadState | None:
        """The state of the pod's workload. Raises `SpringtideError`."""
        return await workload_state(self.api, pod, self.scales)

    async def fits_elsewhere(self, pod: LivePod) -> Verdict:
        """Whether another node could run the pod, if the policy asks for that. Raises
        `SpringtideError`, also if it is not known."""
        policy = self.policy
        if not policy.node_fit:
            return Verdict(None)
        if "NodeFit" in policy.skipped_gates:
            return Verdict(None, ("NodeFit",))
        return Verdict(await no_other_node(self.api, pod.record, policy.node_selector))

    async def forbidden(self, pods: list[LivePod]) -> Result | None:
        """Why the API server would not evict all of these pods now; None if it would. Budgets are
        added up first, then each eviction is tried without effect."""
        try:
            for namespace in sorted({pod.record.namespace for pod in pods}):
                budgets = await budgets_of(self.api, namespace)
                if (reason := refused_by_budgets(pods, budgets)) is not None:
                    return Result("refused", reason, retry_seconds=DEFAULT_WAIT_SECONDS)
        except SpringtideError as error:
            return Result("refused", error.message, retry_seconds=DEFAULT_WAIT_SECONDS)
        for pod in pods:
            if self.is_soft(pod):
                continue
            try:
                await evict(self.api, pod, self.default_options, dry_run=True)
            except KubernetesError as error:
                wait = next_step(status_of(error), _retry_after(error)).wait_seconds
                return Result("refused", _text(error), retry_seconds=wait)
        return None

    # -- eviction

    async def evict(
        self, received: ReceivedPlan, pod: LivePod, objection: Objection,
        skipped: tuple[Gate, ...] = (), delete_options: Options = NO_OPTIONS,
    ) -> Result:  # fmt: skip
        """Evict a pod that the limits allow, and report the outcome. No call begins after the end
        of the plan. The limits must be asked again before the next pod."""
        plan, uid = received.plan, pod.record.uid
        options = delete_options or self.default_options
        checks = _Checks(objection, received.expires_at, options)
        if await self._waited_for_rates(checks.until):
            refusal = await self._refusal_now(pod, checks)
        else:
            refusal = _refused("Expired: the rate of evictions leaves no time")
        if refusal is None:
            written_at = self.clock.monotonic()
            intended = self.action(plan, pod, "intended", skipped=skipped)
            try:
                appended_at = await self.actions.write(intended)
            except KafkaError as error:
                # The next leader would not know of the eviction.
                text = f"NotRecorded: {error.message}"
                return self._report(plan, pod, Result("failed", text), skipped)
            if appended_at is not None:
                # The end of the plan by the clock that also dated the plan: ours may be behind.
                left_seconds = received.ends_at - appended_at
                checks = checks._replace(until=min(checks.until, written_at + left_seconds))
            refusal = await self._refusal_now(pod, checks)
        if refusal is not None:
            return self._report(plan, pod, refusal, skipped)
        # From here on the answer may be lost.
        self.history.note(pod.candidate, self.clock.monotonic(), self.grace_seconds(pod, options))
        result = (await self._ask(plan, pod, checks))._replace(was_asked=True)
        if not result.may_leave:
            self.history.stays(uid)
        elif result.outcome == "refused":
            # An earlier call without an answer may have evicted the pod.
            result = result._replace(outcome="failed")
        return self._report(plan, pod, result, skipped)

    async def _waited_for_rates(self, until: float) -> bool:
        """Wait until the rates, which may change, allow an eviction; False if that is too late."""
        while (left := self.pause_seconds()) > 0:
            if self.clock.monotonic() + left >= until:
                return False
            await self.clock.sleep(min(left, LONGEST_SLEEP_SECONDS))
        for rate in self._rates:
            rate.take()
        return True

    async def _refusal_now(self, pod: LivePod, checks: "_Checks") -> Result | None:
        """Why the eviction must not be asked for now, None if it may. Waits, records and repeated
        calls take time: the workload may have lost other pods since the limits were asked."""
        if (reason := await checks.objection()) is not None:
            return _refused(reason)
        try:
            state = await self.state_of(pod)
        except SpringtideError as error:
            return _refused(f"Unknown: {error.message}", DEFAULT_WAIT_SECONDS)
        limits = self.limits_now(pod, state, ignored=PASSING | IN_TIME)
        if limits.refusal is not None:
            return _refused(str(limits.refusal), DEFAULT_WAIT_SECONDS)
        self._switch = await self._ask_kill_switch()
        if self._switch.reason is not None:
            return _refused(f"Stopped: {self._switch.reason}")
        if self.clock.monotonic() >= checks.until:
            return _refused("Expired: the plan is no longer valid")
        return None

    async def stop_reason(self) -> str | None:
        """Why no pod may be evicted at this moment: the kill switch, or the lease; None if one
        may."""
        return (await self._ask_kill_switch()).reason

    async def _ask_kill_switch(self) -> SwitchAnswer:
        return await ask_kill_switch(self.api, self.stop_path, self.clock, self.may_evict)

    async def _ask(self, plan: EvictionPlanRecord, pod: LivePod, checks: "_Checks") -> Result:
        """Ask for the eviction until there is an answer, for a limited time."""
        began, may_leave = self.clock.monotonic(), False
        while True:
            is_soft = self.is_soft(pod)
            failure = await self._call(plan, pod, checks.delete_options)
            # The checks took time: the next eviction keeps its distance from this one.
            for rate in self._rates:
                rate.happens_now()
            grace_seconds = self.grace_seconds(pod, checks.delete_options)
            self.history.note(pod.candidate, self.clock.monotonic(), grace_seconds)
            if failure is None:
                return Result("marked" if is_soft else "done", may_leave=True)
            # A proxy's 404 has no reason, and says nothing about the pod.
            is_of_proxy = isinstance(failure, NotFoundError) and failure.reason != "NotFound"
            status = None if is_of_proxy else status_of(failure)
            if action_for(status) == "done":
                self.history.left(pod.record.uid)
                return Result("done", may_leave=True)
            may_leave = may_leave or may_have_happened(status)
            if BUDGET_CAUSE in failure.causes:
                wait = wait_seconds(_retry_after(failure))
                return Result("refused", _text(failure), may_leave, wait)
            step = next_step(
                status,
                _retry_after(failure),
                waited_seconds=self.clock.monotonic() - began,
                deadline_seconds=RETRY_SECONDS,
            )
            if step.wait_seconds is None:
                is_temporary = step.action in ("retry_later", "unknown")
                text = f"Unavailable: {_text(failure)}" if is_temporary else _text(failure)
                return Result("failed", text, may_leave)
            await self.clock.sleep(max(step.wait_seconds, _LEAST_WAIT_SECONDS))
            try:
                current = await find_pod(self.api, pod.record.namespace, pod.record.name)
            except SpringtideError as error:
                text = f"Unavailable: {_text(failure)}; {error.message}"
                return Result("failed", text, may_leave)
            if current is None or current.record.uid != pod.record.uid or current.is_deleted:
                return Result("done", may_leave=True)
            if (refusal := await self._refusal_now(pod, checks)) is not None:
                text = f"{refusal.error}; {_text(failure)}"
                return refusal._replace(error=text, may_leave=may_leave)
            if self.clock.monotonic() - began > RETRY_SECONDS:
                return Result("failed", f"Unavailable: {_text(failure)}", may_leave)

    async def _call(
        self, plan: EvictionPlanRecord, pod: LivePod, options: Options
    ) -> KubernetesError | None:
        # A server that accepts no connections must not get the call long after the kill switch.
        seconds = self._switch.fresh_until - self.clock.monotonic()
        try:
            if self.is_soft(pod):
                why = plan.why[:SHOWN_CHARACTERS]
                await annotate_for_eviction(
                    self.api, pod, plan.planner, why, options, connect_seconds=seconds
                )
            else:
                await evict(self.api, pod, options, connect_seconds=seconds)
        except KubernetesError as error:
            return error
        return None

    @property
    def default_options(self) -> Options:
        """The options of evictions that have none of their own."""
        options: Options = msgspec.to_builtins(self.policy.delete_options)
        return options

    def grace_seconds(self, pod: LivePod, options: Options = NO_OPTIONS) -> float:
        """How long the pod may take to end after its eviction."""
        given = (options or self.default_options).get("gracePeriodSeconds")
        return pod.grace_seconds if given is None else float(given)

    def is_soft(self, pod: LivePod) -> bool:
        """Whether the pod is only marked, for another agent to evict."""
        label = pod.record.labels.get(POLICY_LABEL)
        mode = label if label in ("Eviction", "SoftEviction") else self.policy.mode
        return mode == "SoftEviction"

    # -- reports

    def action(
        self, plan: EvictionPlanRecord, pod: LivePod | None, outcome: Outcome, error: str = "",
        skipped: tuple[Gate, ...] = (),
    ) -> ActionRecord:  # fmt: skip
        """The action about a pod of a plan, or about the whole plan."""
        return eviction_action(plan, pod, outcome, self.clock.now(), error, skipped)

    def _report(
        self, plan: EvictionPlanRecord, pod: LivePod, result: Result, skipped: tuple[Gate, ...]
    ) -> Result:
        action = self.action(plan, pod, result.outcome, result.error, skipped)
        if result.outcome == "marked":
            self.marked[pod.record.uid] = action
        self._put(action, pod.record.namespace)
        return result

    def end_mark(self, uid: str, outcome: Outcome, error: str = "") -> None:
        """Report what became of a pod, if another agent was asked to evict it."""
        action = self.marked.pop(uid, None)
        if action is not None:
            namespace = next(iter(action.before)).partition("/")[0]
            at = format_time(self.clock.now())
            changed = msgspec.structs.replace(action, at=at, outcome=outcome, error=error)
            self._put(changed, namespace)

    def _put(self, action: ActionRecord, namespace: str) -> None:
        self.actions.put(action)
        count_eviction(action, namespace)


def _refused(reason: str, retry_seconds: float | None = None) -> Result:
    return Result("refused", reason, retry_seconds=retry_seconds)


def _retry_after(error: KubernetesError) -> float | None:
    return error.retry_after_seconds if isinstance(error, ApiUnavailableError) else None


def _text(error: KubernetesError) -> str:
    status = status_of(error)
    if BUDGET_CAUSE in error.causes:
        return f"a disruption budget forbids the eviction: {error.message}"
    return f"{error.message}; {meaning_of(action_for(status))}"
