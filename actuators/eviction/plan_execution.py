"""Execute one eviction plan through the API server: all of its pods, or none.

Every limit is enforced here, whatever a plan says. The executor reads the pods again, checks the
disruption budgets for all of them together, and tries all evictions with dryRun first. Each
eviction names the UID; before each it checks the pending pod again, waits until the eviction is
recorded as intended, and then checks the kill switch and the lease, directly before the call. A
change between two evictions may still leave a plan half executed.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, NamedTuple, Protocol
from urllib.parse import quote

import msgspec

from actuators.eviction.plan_limits import EVICTOR
from actuators.rate_limit import RateLimit
from pipeline.clock import Clock
from pipeline.errors import (
    ApiRefusedError,
    ApiUnavailableError,
    KafkaError,
    KubernetesError,
    NotFoundError,
    SpringtideError,
)
from pipeline.kube.api_client import Api, decode_answer, decode_list
from pipeline.kube.event_reporter import EventReporter
from pipeline.processors.eviction.disruption_budgets import DisruptionBudget, exceeded_budget
from pipeline.processors.eviction.eviction_objections import objection, pods_to_evict
from pipeline.processors.kubernetes.object_records import read_manifest
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord, Outcome
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.pods import PodRecord


class ActionLog(Protocol):
    """Takes the actions of the executor."""

    def put(self, action: ActionRecord) -> None:
        """Write an action at some time."""

    def write(self, action: ActionRecord) -> Awaitable[None]:
        """Write an action and await its delivery. Raises `KafkaError` if that fails."""


Mode = Literal["observe", "recommend", "act"]

_ALREADY_DELETED: Final = "all pods of the plan are deleted, or being deleted"
_OUTCOMES: Final[dict[Mode, Outcome]] = {"observe": "observed", "recommend": "recommended"}


class _Spec(msgspec.Struct, rename="camel"):
    preemption_policy: str | None = None


class _Pod(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Metadata(msgspec.Struct):
    uid: str = ""


class _Object(msgspec.Struct):
    metadata: _Metadata


_pods: Final = msgspec.json.Decoder(_Pod)
_objects: Final = msgspec.json.Decoder(_Object)
_budgets: Final = msgspec.json.Decoder(DisruptionBudget)


class PlanResult(NamedTuple):
    """The outcome of a plan, and whether a pod of it left the node, is about to, or may have."""

    outcome: Outcome
    made_room: bool = False


class PlanExecutor:
    """Executes plans, one at a time. `may_evict` is asked before each eviction."""

    def __init__(
        self, api: Api, mode: Mode, stop_path: str, limit: RateLimit, clock: Clock,
        actions: ActionLog, may_evict: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._api = api
        self._mode = mode
        self._stop_path = stop_path
        self._limit = limit
        self._clock = clock
        self._report = actions.put
        self._record = actions.write
        self._may_evict = may_evict
        self._events = EventReporter(api, "springtide-evictor")

    async def execute(self, plan: EvictionPlanRecord) -> PlanResult:
        """Execute a plan, and report the outcome of each pod."""
        try:
            pods = await self._victims(plan)
        except SpringtideError as error:
            self._report(self._action(plan, None, "failed", error.message))
            return PlanResult("failed")
        if isinstance(pods, str):
            self._report(self._action(plan, None, "refused", pods))
            return PlanResult("refused", pods == _ALREADY_DELETED)
        if self._mode != "act":
            outcome = _OUTCOMES[self._mode]
            for pod in pods:
                self._report(self._action(plan, pod, outcome))
            if self._mode == "recommend" and plan.waiting is not None:
                pending = {"metadata": msgspec.to_builtins(plan.waiting)}
                await self._events.write(
                    pending, "Pod", "WouldPushOut", _sentence(plan, pods), severity="Normal"
                )
            return PlanResult(outcome)
        return await self._evict_all(plan, pods)

    async def _victims(self, plan: EvictionPlanRecord) -> list[PodRecord] | str:
        """The pods of the plan that still exist, or the reason against it."""
        on_node = await self._planned_pods(plan)
        pending, may_preempt = await self._pending(plan)
        reason = objection(plan, pending, on_node, may_push_out=may_preempt)
        if reason is not None:
            return reason
        pods = pods_to_evict(plan, on_node)
        return pods or _ALREADY_DELETED

    async def _pending(self, plan: EvictionPlanRecord) -> tuple[PodRecord | None, bool]:
        """The pending pod of the plan, and whether its policy allows preemption."""
        waiting = plan.waiting
        if waiting is None:
            return None, False
        try:
            # Both come from a topic: quoted, they cannot change the path.
            namespace, name = quote(waiting.namespace, safe=""), quote(waiting.name, safe="")
            path = f"/api/v1/namespaces/{namespace}/pods/{name}"
            answer = await self._api.request("GET", path)
        except NotFoundError:
            return None, False
        policy = decode_answer(_pods, answer, f"GET {path}").spec.preemption_policy
        return read_manifest(answer), policy != "Never"

    async def _planned_pods(self, plan: EvictionPlanRecord) -> dict[str, PodRecord]:
        """The pods of the plan that are on its node. Other pods there need not be valid."""
        params = {"fieldSelector": f"spec.nodeName={plan.node}"}
        answer = await self._api.request("GET", "/api/v1/pods", params=params)
        planned, pods, request = {pod.uid for pod in plan.pods}, {}, f"GET pods of {plan.node}"
        for item in decode_list(answer, request).items or ():
            uid = decode_answer(_objects, item, request).metadata.uid
            if uid in planned:
                pods[uid] = read_manifest(item)
        return pods

    async def _refusal(self, pods: list[PodRecord]) -> str | None:
        """Why these pods may not all be evicted, None if they may."""
        try:
            for namespace in sorted({pod.namespace for pod in pods}):
                path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
                answer = await self._api.request("GET", path)
                items = decode_list(answer, f"GET {path}").items or ()
                budgets = [decode_answer(_budgets, item, f"GET {path}") for item in items]
                if (reason := exceeded_budget(budgets, pods)) is not None:
                    return reason
            for pod in pods:
                await self._evict(pod, dry_run=True)
        except KubernetesError as error:
            return _reason(error)
        return None

    async def _evict_all(self, plan: EvictionPlanRecord, pods: list[PodRecord]) -> PlanResult:
        if (reason := await self._refusal(pods)) is not None:
            self._report(self._action(plan, None, "refused", reason))
            return PlanResult("refused")
        for count, pod in enumerate(pods):
            await self._limit.wait()
            reason = await self._wait_reason(plan) or await self._stop_reason()
            if reason is None:
                try:
                    await self._record(self._action(plan, pod, "intended"))
                except KafkaError as error:
                    # The next leader would not know of the eviction.
                    text = f"cannot record the eviction: {error.message}"
                    self._report(self._action(plan, pod, "failed", text))
                    return PlanResult("failed", count > 0)
                reason = await self._stop_reason()
            if reason is not None:
                self._report(self._action(plan, pod, "refused", reason))
                return PlanResult("refused", count > 0)
            try:
                await self._evict(pod)
            except NotFoundError:
                pass
            except KubernetesError as error:
                self._report(self._action(plan, pod, "failed", _reason(error)))
                return PlanResult("failed", count > 0 or not _is_refusal(error))
            finally:
                # The checks took time: the next eviction keeps its distance from this one.
                self._limit.happened(0.0)
            self._report(self._action(plan, pod, "done"))
            victim = {"metadata": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid}}
            self._events.warn_soon(victim, "Pod", "PushedOut", plan.why)
        return PlanResult("done", made_room=True)

    async def _wait_reason(self, plan: EvictionPlanRecord) -> str | None:
        """Why the pending pod needs no room now, None if it does."""
        try:
            pending, may_preempt = await self._pending(plan)
        except SpringtideError as error:
            return f"cannot read the pending pod: {error.message}"
        return objection(plan, pending, {}, may_push_out=may_preempt)

    async def _stop_reason(self) -> str | None:
        """Why no pod may be evicted now, None if one may. A failed check forbids evictions."""
        try:
            await self._api.request("GET", self._stop_path)
        except KubernetesError as error:
            # A proxy's 404 has no reason.
            if not isinstance(error, NotFoundError) or error.reason != "NotFound":
                return f"cannot read the kill switch: {error.message}"
        else:
            return f"evictions are stopped by {self._stop_path}"
        # Last, because the request may have taken longer than the lease is valid.
        return None if self._may_evict() else "another evictor holds the lease"

    async def _evict(self, pod: PodRecord, *, dry_run: bool = False) -> None:
        options: dict[str, Any] = {"preconditions": {"uid": pod.uid}}
        if dry_run:
            options["dryRun"] = ["All"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": pod.namespace, "name": pod.name},
            "deleteOptions": options,
        }
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        await self._api.request("POST", path, body=body, attempts=1)

    def _action(
        self, plan: EvictionPlanRecord, pod: PodRecord | None, outcome: Outcome, error: str = ""
    ) -> ActionRecord:
        return ActionRecord(
            node=plan.node,
            at=format_time(self._clock.now()),
            actuator=EVICTOR,
            action="evict",
            outcome=outcome,
            why=f"plan {plan.id}: {plan.why}",
            before={} if pod is None else {f"{pod.namespace}/{pod.name}": pod.uid},
            after={} if pod is None else {f"{pod.namespace}/{pod.name}": None},
            error=error,
            plan=plan.id,
            waiting=plan.waiting.uid if plan.waiting else "",
        )


def _is_refusal(error: KubernetesError) -> bool:
    """Whether the API server did not evict for certain: an answer may also be lost."""
    if isinstance(error, ApiUnavailableError):
        return error.was_done is False
    return isinstance(error, ApiRefusedError)


def _reason(error: KubernetesError) -> str:
    if isinstance(error, ApiUnavailableError) and error.was_done is False:
        return f"forbidden by a disruption budget or the API server: {error.message}"
    return error.message


def _sentence(plan: EvictionPlanRecord, pods: list[PodRecord]) -> str:
    names = ", ".join(f"{pod.namespace}/{pod.name}" for pod in pods)
    return f"would fit on {plan.node} without {names}; no pod is evicted in mode recommend"
