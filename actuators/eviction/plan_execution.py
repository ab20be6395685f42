"""One eviction plan, carried out by the API server: if not all of its pods may leave, none does.

Owes the rest: every limit is held here, whatever a plan says. The world is asked for anew;
disruption budgets are asked about all of its pods together, and all of the evictions are tried
without effect first; each is by UID, and before each the lease, the kill switch and the pod that
waits are looked at again. What changes from one eviction to the next may still leave it half done.
"""

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from actuators.cluster.write_queue import Budget as Pace
from pipeline.clock import Clock
from pipeline.errors import ApiUnavailableError, KubernetesError, NotFoundError
from pipeline.kube.api_client import Api
from pipeline.kube.event_reporter import EventReporter
from pipeline.processors.eviction.disruption_budgets import DisruptionBudget, exceeded_budget
from pipeline.processors.eviction.eviction_objections import objection, pods_to_evict
from pipeline.processors.kubernetes.object_records import read_manifest
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord, Outcome
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.pods import PodRecord

Tell = Callable[[ActionRecord], None]
Mode = Literal["observe", "recommend", "act"]

_GONE: Final = "all of its pods are gone, or on their way"
_OUTCOMES: Final[dict[Mode, Outcome]] = {"observe": "observed", "recommend": "recommended"}


class _Spec(msgspec.Struct, rename="camel"):
    preemption_policy: str | None = None


class _Pod(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _List(msgspec.Struct):
    items: tuple[msgspec.Raw, ...] = ()


class _Budgets(msgspec.Struct):
    items: tuple[DisruptionBudget, ...] = ()


class CarriedOut(NamedTuple):
    """What became of a plan, and whether any of its pods has left, or is about to."""

    outcome: Outcome
    made_room: bool = False


class CarryingOut:
    """Carries out plans, one at a time. `may_evict` is asked before each eviction."""

    def __init__(
        self, api: Api, mode: Mode, stop_path: str, budget: Pace, clock: Clock, tell: Tell,
        may_evict: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._api = api
        self._mode = mode
        self._stop_path = stop_path
        self._budget = budget
        self._clock = clock
        self._tell = tell
        self._may_evict = may_evict
        self._reporter = EventReporter(api, "springtide-evictor")

    async def carry_out(self, plan: EvictionPlanRecord) -> CarriedOut:
        """What became of the plan, told pod by pod, too."""
        try:
            pods = await self._to_evict(plan)
        except KubernetesError as error:
            self._tell(self._action(plan, None, "failed", error.message))
            return CarriedOut("failed")
        if isinstance(pods, str):
            self._tell(self._action(plan, None, "refused", pods))
            return CarriedOut("refused", pods == _GONE)
        if self._mode != "act":
            outcome = _OUTCOMES[self._mode]
            for pod in pods:
                self._tell(self._action(plan, pod, outcome))
            if self._mode == "recommend" and plan.waiting is not None:
                of = {"metadata": msgspec.to_builtins(plan.waiting)}
                await self._reporter.report(of, "Pod", "WouldPushOut", _sentence(plan, pods))
            return CarriedOut(outcome)
        return await self._evict_all(plan, pods)

    async def _to_evict(self, plan: EvictionPlanRecord) -> list[PodRecord] | str:
        """The pods of the plan that are still there, or what speaks against it."""
        there = await self._there(plan.node)
        waiting, may_push_out = await self._waiting(plan)
        against = objection(plan, waiting, there, may_push_out=may_push_out)
        if against is not None:
            return against
        pods = pods_to_evict(plan, there)
        return pods or _GONE

    async def _waiting(self, plan: EvictionPlanRecord) -> tuple[PodRecord | None, bool]:
        """The pod for which others leave, and whether its policy allows that."""
        of = plan.waiting
        if of is None:
            return None, False
        try:
            # They come from a topic: whatever they are, they stay parts of the path.
            namespace, name = quote(of.namespace, safe=""), quote(of.name, safe="")
            path = f"/api/v1/namespaces/{namespace}/pods/{name}"
            found = await self._api.request("GET", path)
        except NotFoundError:
            return None, False
        policy = msgspec.json.decode(found, type=_Pod).spec.preemption_policy
        return read_manifest(found), policy != "Never"

    async def _there(self, node: str) -> dict[str, PodRecord]:
        params = {"fieldSelector": f"spec.nodeName={node}"}
        found = await self._api.request("GET", "/api/v1/pods", params=params)
        pods = map(read_manifest, msgspec.json.decode(found, type=_List).items)
        return {pod.uid: pod for pod in pods}

    async def _forbidden(self, pods: list[PodRecord]) -> str | None:
        """Why these pods may not all leave; None for no reason."""
        try:
            for namespace in sorted({pod.namespace for pod in pods}):
                path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
                found = msgspec.json.decode(await self._api.request("GET", path), type=_Budgets)
                if (against := exceeded_budget(found.items, pods)) is not None:
                    return against
            for pod in pods:
                await self._evict(pod, dry_run=True)
        except KubernetesError as error:
            return _said(error)
        return None

    async def _evict_all(self, plan: EvictionPlanRecord, pods: list[PodRecord]) -> CarriedOut:
        if (against := await self._forbidden(pods)) is not None:
            self._tell(self._action(plan, None, "refused", against))
            return CarriedOut("refused")
        for count, pod in enumerate(pods):
            await self._budget.wait()
            if (stop := await self._stopped(plan)) is not None:
                self._tell(self._action(plan, pod, "refused", stop))
                return CarriedOut("refused", count > 0)
            self._tell(self._action(plan, pod, "intended"))
            try:
                await self._evict(pod)
            except NotFoundError:
                pass
            except KubernetesError as error:
                self._tell(self._action(plan, pod, "failed", _said(error)))
                return CarriedOut("failed", count > 0)
            self._tell(self._action(plan, pod, "done"))
            of = {"metadata": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid}}
            self._reporter.warn_soon(of, "Pod", "PushedOut", plan.why)
        return CarriedOut("done", made_room=True)

    async def _stopped(self, plan: EvictionPlanRecord) -> str | None:
        """Why nobody may be evicted now; None if somebody may. What cannot be asked is a no."""
        if not self._may_evict():
            return "another evictor has the lease"
        try:
            await self._api.request("GET", self._stop_path)
        except NotFoundError:
            pass
        except KubernetesError as error:
            return f"whether evictions are stopped is not known: {error.message}"
        else:
            return f"evictions are stopped by {self._stop_path}"
        try:
            waiting, may_push_out = await self._waiting(plan)
        except KubernetesError as error:
            return f"whether the pod still waits is not known: {error.message}"
        return objection(plan, waiting, {}, may_push_out=may_push_out)

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
            actuator="evictor",
            action="evict",
            outcome=outcome,
            why=f"plan {plan.id}: {plan.why}",
            before={} if pod is None else {f"{pod.namespace}/{pod.name}": pod.uid},
            after={} if pod is None else {f"{pod.namespace}/{pod.name}": None},
            error=error,
        )


def _said(error: KubernetesError) -> str:
    if isinstance(error, ApiUnavailableError) and error.was_done is False:
        return f"a disruption budget, or the API server, forbids it: {error.message}"
    return error.message


def _sentence(plan: EvictionPlanRecord, pods: list[PodRecord]) -> str:
    names = ", ".join(f"{pod.namespace}/{pod.name}" for pod in pods)
    return f"would fit on {plan.node} without {names}; no pod is evicted in mode recommend"
