"""Carry out the PodMigrationJobs of users, and follow those that report our own evictions.

A user's job becomes a plan for one pod, which the executor of relief plans judges, with the limits
of all evictions. What becomes of it is read from the evictor's actions. Writes of jobs happen in a
task of their own: no eviction waits for them. Without the custom resource, or the right to list
it, there are no jobs.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from actuators.eviction.eviction_calls import find_pod
from actuators.eviction.eviction_gate import EvictionGate, Mode
from actuators.eviction.migration_job_objects import (
    JobObject,
    delete_job,
    name_pod,
    report_name,
    write_status,
)
from actuators.eviction.migration_job_plans import age_seconds, plan_of, terms_of, ttl_or_none
from actuators.eviction.migration_job_reports import EvictionReports
from actuators.eviction.migration_job_watch import STRATEGY, JobWatch, KnownJob
from actuators.eviction.received_plans import ReceivedPlan
from actuators.eviction.relief import ReliefExecutor
from pipeline.errors import (
    ConflictError,
    InvalidRecordError,
    KubernetesError,
    NotFoundError,
)
from pipeline.kube.event_reporter import EventReporter
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.eviction.live_pods import LivePod
from pipeline.processors.eviction.migration_job import (
    EVICT_DIRECTLY,
    LOOK_SECONDS,
    NOT_MADE,
    Knowledge,
    KnownPod,
    Reservation,
    events_between,
    is_finished,
    is_garbage,
    next_step,
)
from pipeline.processors.eviction.migration_job_object import API_VERSION, MigrationJobStatus
from pipeline.tasks import run_all
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord

log = get_logger(__name__)

FINISHED = counter("evictor_migration_jobs", "PodMigrationJobs that ended, by phase.", ["phase"])
_MOST_REMEMBERED: Final = 10_000
_AT_ONCE: Final = 20
"""Jobs of one step for which the API server is asked."""
_STEP_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 5.0
"""After a failed request."""
_REST_SECONDS: Final = 30.0
"""How much later a job is looked at with which there is nothing to do now."""
_SHOWN_CHARACTERS: Final = 500
_RESUBMITTED: Final = frozenset({
    "Expired", "NotRecorded", "Overload", "Repeated", "Stopped", "Unavailable", "Unknown",
    "Withdrawn",
})  # fmt: skip
"""Reasons for which a job gets another turn, until its TTL."""

Reserve = Callable[[JobObject], Awaitable[Reservation]]
"""Makes room for the new pod of a job in mode ReservationFirst, or looks whether it is made."""


async def reserve_nothing(job: JobObject) -> Reservation:
    """Jobs in mode ReservationFirst fail."""
    return NOT_MADE


class _Outcome(NamedTuple):
    """The evictor's last action about a pod. `asked_uid` is its UID if the eviction was asked
    for."""

    plan: str
    outcome: str
    error: str
    asked_uid: str


_NO_OUTCOME: Final = _Outcome("", "", "", "")


class MigrationJobs:
    """The jobs of the cluster. `learn` takes actions of former leaders, `note` those of this one;
    `submit` runs in the loop that evicts, `run` beside it."""

    def __init__(
        self,
        gate: EvictionGate,
        relief: ReliefExecutor,
        mode: Mode,
        reserve: Reserve = reserve_nothing,
    ) -> None:
        self._gate = gate
        self._relief = relief
        self._mode = mode
        self.reserve = reserve
        self._events = EventReporter(gate.api, "springtide-evictor")
        self.watch = JobWatch(gate.api)
        self._outcomes: OrderedDict[str, _Outcome] = OrderedDict()
        self._reports = EvictionReports(gate.api, self.watch)
        self._submissions: deque[tuple[KnownJob, LivePod]] = deque()

    async def run(self) -> None:
        """Follow and look at jobs, until cancelled."""
        await run_all([self.watch.run(), self.look_forever()])

    # -- actions of the evictor

    def learn(self, action: ActionRecord) -> None:
        """Take an action of a former leader. It asked for an eviction if it intended one."""
        self._remember(action)

    def note(self, action: ActionRecord) -> None:
        """Take an action of this process; report an eviction that it begins."""
        if self._remember(action) and action.outcome == "intended" and self.watch.is_read:
            self._reports.note(action, self._gate.policy.limits.ttl_seconds)

    def _remember(self, action: ActionRecord) -> bool:
        """Remember the last action about a pod; return whether it is one about a pod."""
        if not action.plan or len(action.before) != 1:
            return False
        uid = next(iter(action.before.values())) or ""
        is_request = action.plan.startswith(f"{STRATEGY}/")
        key = action.plan if is_request else report_name(action.plan, uid)
        before = self._outcomes.get(key)
        asked_uid = before.asked_uid if before is not None else ""
        if action.outcome in ("intended", "marked", "done"):
            asked_uid = uid
        self._outcomes[key] = _Outcome(action.plan, action.outcome, action.error, asked_uid)
        self._outcomes.move_to_end(key)
        while len(self._outcomes) > _MOST_REMEMBERED:
            self._outcomes.popitem(last=False)
        for name in (key, action.plan.split("/")[1] if is_request else ""):
            if name in self.watch.jobs:
                self._look_soon(self.watch.jobs[name])
        return True

    # -- the loop that evicts

    async def submit(self) -> None:
        """Hand the pods of jobs to the executor."""
        while self._submissions:
            job, pod = self._submissions.popleft()
            if not job.is_wanted:
                job.is_submitted = False
                continue
            plan, terms = self._plan_of(job, pod), terms_of(job, self.watch)
            job.turn_ends_at = plan.expires_at
            await self._relief.take_pod(plan, terms.applied_to(pod), terms)

    # -- looks

    async def look_forever(self) -> None:
        while True:
            await self._gate.clock.sleep(_STEP_SECONDS)
            if self.watch.is_read and not await self.look():
                await self._gate.clock.sleep(_PAUSE_SECONDS)

    async def look(self) -> bool:
        """Create jobs that report evictions, and look at jobs, those first that are due for the
        longest. A failure costs only its own job a turn. Returns whether there was none."""
        is_acting = self._mode == "act" and not self._gate.policy.is_dry
        now, asked = self._gate.clock.monotonic(), 0
        failure = await self._reports.create(_AT_ONCE)
        failures = [] if failure is None else [failure.message]
        due = [job for job in self.watch.jobs.values() if job.due <= now]
        due.sort(key=lambda job: job.due)
        for job in due:
            job.due = now + LOOK_SECONDS
            try:
                asked += await self._look_at(job, is_acting)
            except (ConflictError, NotFoundError):
                asked += 1  # the watch delivers what has changed
            except (KubernetesError, InvalidRecordError) as error:
                asked += 1
                job.due = now + _REST_SECONDS
                failures.append(f"{job.object.metadata.name}: {error.message}")
            if asked >= _AT_ONCE:
                break
        if failures:
            why, count = failures[0][:_SHOWN_CHARACTERS], len(failures)
            log.warning("PodMigrationJobs cannot be handled", failures=count, why=why)
        return not failures

    def _look_soon(self, job: KnownJob) -> None:
        job.due = min(job.due, self._gate.clock.monotonic())

    async def _look_at(self, job: KnownJob, is_acting: bool) -> bool:
        """Look at a job; return whether the API server was asked."""
        current = job.object
        if current.is_left_alone or (not is_acting and (job.is_submitted or current.is_ours)):
            job.due += _REST_SECONDS
            return False
        age = self._age_seconds(current)
        if is_acting and is_garbage(ttl_or_none(current), age):
            await delete_job(self._gate.api, current)
            return True
        if current.spec.paused or is_finished(current.status):
            job.due += _REST_SECONDS
            return False
        reference = current.spec.pod_ref
        pod = await find_pod(self._gate.api, reference.namespace or "", reference.name or "")
        if is_acting and pod is not None and not reference.uid:
            # A successor of the name is another pod, also for the next leader.
            self._wrote(job, current, await name_pod(self._gate.api, current, pod.record.uid))
            self._look_soon(job)
            return True
        known = await self._knowledge(job, pod, is_acting)
        step = next_step(current.spec, current.status, known)
        is_next = step.action == "evict" and not known.waits_for and not job.is_submitted
        if is_next and pod is not None:
            job.is_submitted = True
            self._submissions.append((job, pod))
        if is_acting:
            await self._write(job, step.status)
        elif is_finished(step.status):
            self._observe_end(job, pod, step.status)
        return True

    async def _knowledge(self, job: KnownJob, pod: LivePod | None, is_acting: bool) -> Knowledge:
        """What is known of a job's pod, and of its eviction by the last action about it."""
        current = job.object
        key = current.metadata.name if current.is_ours else job.plan_id
        last = self._outcomes.get(key, _NO_OUTCOME)
        plan = last.plan or job.plan_id
        held = None if pod is None else self._relief.waits_for(plan, pod.record.uid)
        waits_for, refusal, failure = held or "", "", ""
        if last.outcome == "intended":
            waits_for = ""
        elif last.outcome in ("refused", "failed") and held is None:
            has_ended = job.turn_ends_at <= self._gate.clock.monotonic()
            is_temporary = has_ended or last.error.partition(":")[0] in _RESUBMITTED
            if is_temporary and not current.is_ours:
                waits_for = last.error
                # A pod whose eviction may have happened has no other turn before that is known.
                if pod is not None and not self._gate.history.is_leaving(pod.record.uid):
                    self._take_back(job, key)
                    job.due = self._gate.clock.monotonic() + _REST_SECONDS
            elif last.outcome == "failed":
                failure = last.error
            else:
                refusal = last.error
        elif last.outcome in ("observed", "recommended") and is_acting:
            self._take_back(job, key)
        if not job.is_submitted and is_acting and not current.is_ours:
            waits_for = self._earlier_job(job) or waits_for
        if pod is not None and not pod.record.node:
            refusal = "Unscheduled: the pod is on no node"
        is_direct = current.spec.mode == EVICT_DIRECTLY
        # A job of ours exists because an eviction was asked for.
        own_uid = (current.spec.pod_ref.uid or "") if current.is_ours else ""
        return Knowledge(
            at=format_time(math.floor(self._gate.clock.now())),
            age_seconds=self._age_seconds(current),
            pod=None if pod is None else KnownPod(pod.record.uid, pod.record.node, pod.is_deleted),
            asked_uid=last.asked_uid or own_uid,
            waits_for=waits_for,
            refusal=refusal,
            failure=failure,
            reservation=NOT_MADE if is_direct else await self.reserve(current),
        )

    def _age_seconds(self, job: JobObject) -> float:
        server_now = self._gate.api.server_now()
        return age_seconds(job, self._gate.clock.now() if server_now is None else server_now)

    def _plan_of(self, job: KnownJob, pod: LivePod) -> ReceivedPlan:
        return plan_of(job, pod, self._gate.clock, self._age_seconds(job.object))

    def _take_back(self, job: KnownJob, key: str) -> None:
        """Let a job have another turn."""
        del self._outcomes[key]
        job.is_submitted = False

    def _earlier_job(self, job: KnownJob) -> str:
        """Why a job waits for an older one about the same pod; empty if there is none."""
        for other in self.watch.of_pod(job):
            if other.is_wanted and other.order < job.order:
                name = other.object.metadata.name
                return f"Duplicate: PodMigrationJob {name} of the pod comes first"
        return ""

    async def _write(self, job: KnownJob, status: MigrationJobStatus) -> None:
        """Write a status that has changed, and the Events about it."""
        current = job.object
        if status == current.status:
            return
        self._wrote(job, current, await write_status(self._gate.api, current, status))
        if is_finished(status):
            FINISHED.labels(status.phase).inc()
        metadata = {"name": current.metadata.name, "uid": current.metadata.uid}
        about = {"apiVersion": API_VERSION, "metadata": metadata}
        for event in events_between(current.status, status):
            await self._events.write(
                about, "PodMigrationJob", event.reason, event.text, severity=event.severity
            )

    def _wrote(self, job: KnownJob, before: JobObject, after: JobObject) -> None:
        """Take the answer to a write, unless the watch was faster: it may know a later change."""
        if job.object is before:
            self.watch.replace(job, after)

    def _observe_end(self, job: KnownJob, pod: LivePod | None, status: MigrationJobStatus) -> None:
        """Say once how a job would end in mode act."""
        job.is_submitted = True
        text = f"would end as {status.phase}: {status.reason}: {status.message}"
        log.info("PodMigrationJob", job=job.object.metadata.name, why=text)
        if pod is not None and pod.record.node:
            plan = self._plan_of(job, pod).plan
            self._gate.actions.put(self._gate.action(plan, pod, "observed", text))
