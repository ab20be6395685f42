"""What a PodMigrationJob of a user asks of the executor: a plan for one pod, and its terms."""

from typing import Final

from actuators.eviction.migration_job_objects import REASON, TRIGGER, JobObject, find_job
from actuators.eviction.migration_job_watch import STRATEGY, JobWatch, KnownJob
from actuators.eviction.received_plans import ReceivedPlan
from actuators.eviction.relief import Terms
from pipeline.clock import Clock
from pipeline.errors import KubernetesError
from pipeline.processors.eviction.evictability import EVICT
from pipeline.processors.eviction.live_pods import POLICY_LABEL, LivePod
from pipeline.processors.eviction.migration_job import UNLIMITED_SECONDS, is_finished, ttl_seconds
from pipeline.processors.eviction.migration_limits import IN_TIME
from pipeline.times import format_time, time_or_none
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod

TURN_SECONDS: Final = 300.0
"""A turn of a job with the executor ends after this time, so that others have theirs."""
_LONGEST_TEXT: Final = 1024


def plan_of(job: KnownJob, pod: LivePod, clock: Clock, age: float) -> ReceivedPlan:
    """The plan that a job of this age stands for."""
    metadata = job.object.metadata
    now, monotonic = clock.now(), clock.monotonic()
    left = max((ttl_or_none(job.object) or UNLIMITED_SECONDS) - age, 0.0)
    left, annotations = min(left, TURN_SECONDS), metadata.annotations
    record = EvictionPlanRecord(
        node=pod.record.node,
        id=job.plan_id,
        at=format_time(now - age),
        valid_until=format_time(now + left),
        planner=annotations.get(TRIGGER, "")[:_LONGEST_TEXT] or "user",
        why=annotations.get(REASON, "")[:_LONGEST_TEXT] or f"PodMigrationJob {metadata.name}",
        pods=(LeavingPod(uid=pod.record.uid, pod_class=pod.record.pod_class),),
        strategy=STRATEGY,
    )
    return ReceivedPlan(record, monotonic - age, monotonic + left)


def terms_of(job: KnownJob, watch: JobWatch) -> Terms:
    """The terms of a job as it is now; with any other spec it is another request."""
    submitted = job.object

    def is_wanted() -> bool:
        current = watch.jobs.get(submitted.metadata.name)
        is_same = current is job and current.object.spec == submitted.spec
        return is_same and job.is_wanted

    async def objection() -> str | None:
        """Ask the API server: the watch may be late."""
        try:
            current = await find_job(watch.api, submitted.metadata.name)
        except KubernetesError as error:
            return f"Unknown: {error.message}"
        is_same = current is not None and current.metadata.uid == submitted.metadata.uid
        if current is None or not is_same or current.spec != submitted.spec:
            return "Withdrawn: the PodMigrationJob was deleted or changed"
        if current.metadata.deletion_timestamp is not None:
            return "Withdrawn: the PodMigrationJob is being deleted"
        if is_finished(current.status):
            return f"Withdrawn: the PodMigrationJob is {current.status.phase}"
        return None

    policy = submitted.metadata.labels.get(POLICY_LABEL, "")
    # As in Koordinator: this annotation of the job, and not that of the pod.
    ignored = IN_TIME if EVICT in submitted.metadata.annotations else frozenset[str]()
    return Terms(is_wanted, objection, submitted.delete_options, policy, ignored)


def age_seconds(job: JobObject, server_now: float) -> float:
    """The time since the API server created the job, by its clock, which differs from the
    broker's; 0 if that seems to be in the future."""
    created_at = time_or_none(job.metadata.creation_timestamp)
    return 0.0 if created_at is None else max(server_now - created_at, 0.0)


def ttl_or_none(job: JobObject) -> float | None:
    """The TTL of a job; None if it has none, or an invalid one."""
    try:
        return ttl_seconds(job.spec)
    except ValueError:
        return None
