"""Follow the PodMigrationJobs of the cluster, if it has any."""

import math
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import msgspec

from actuators.eviction.migration_job_objects import JobObject, read_job
from pipeline.errors import ApiRefusedError, InvalidRecordError
from pipeline.kafka.refused_records import refuse
from pipeline.kube.api_client import Api
from pipeline.kube.list_watch import Began, Changed, Complete, Event, Page, follow
from pipeline.logs import get_logger
from pipeline.processors.eviction.migration_job import is_finished
from pipeline.processors.eviction.migration_job_object import PATH

log = get_logger(__name__)

STRATEGY: Final = "PodMigrationJob"
"""The strategy of the plans that jobs stand for."""
MOST_JOBS: Final = 10_000
"""Jobs that are read; further ones are ignored until half of these are gone."""
MOST_BYTES: Final = 64 * 2**20
"""Likewise of all jobs together, as JSON: one may have more than a megabyte."""
_NOT_SERVED_SECONDS: Final = 60.0


@dataclass
class KnownJob:
    """A job as last observed, with its size as JSON, when it is looked at next (monotonic), whether
    its pod was handed to the executor, and when that ends its turn (monotonic)."""

    object: JobObject
    size_bytes: int
    due: float
    is_submitted: bool = False
    turn_ends_at: float = -math.inf

    @property
    def plan_id(self) -> str:
        """The id of the plan that the job stands for."""
        metadata = self.object.metadata
        return f"{STRATEGY}/{metadata.name}/{metadata.uid}"

    @property
    def is_wanted(self) -> bool:
        """Whether the job asks for an eviction."""
        job = self.object
        is_request = not job.is_ours and not job.is_left_alone
        return is_request and not job.spec.paused and not is_finished(job.status)

    @property
    def pod(self) -> tuple[str | None, str | None]:
        """Namespace and name of the pod."""
        reference = self.object.spec.pod_ref
        return reference.namespace, reference.name

    @property
    def order(self) -> tuple[str, str]:
        """Older jobs come first."""
        return self.object.metadata.creation_timestamp, self.plan_id


class JobWatch:
    """The jobs of the cluster by name. `is_read` is False while the API server does not serve them,
    or does not let this client list them."""

    def __init__(self, api: Api) -> None:
        self.api = api
        # The names of a list that is not yet complete.
        self._listed: set[str] | None = None
        self._has_ignored = False
        self._bytes = 0
        self._by_pod: dict[tuple[str | None, str | None], dict[str, KnownJob]] = {}
        self.jobs: dict[str, KnownJob] = {}
        self.is_read = False

    def of_pod(self, job: KnownJob) -> Iterable[KnownJob]:
        """The jobs about the pod of this one, with itself."""
        return self._by_pod.get(job.pod, {}).values()

    async def run(self) -> None:
        """Follow the jobs, until cancelled."""
        reason = ""
        while True:
            try:
                await self._follow()
                continue
            except ApiRefusedError as error:
                self.is_read = False
                if error.message != reason:
                    log.info("no PodMigrationJobs are read or written", why=error.message)
                reason = error.message
            await self.api.clock.sleep(_NOT_SERVED_SECONDS)

    async def _follow(self) -> None:
        """Follow the jobs, until there is room for those that were ignored: list again."""
        async with aclosing(follow(self.api, PATH, was_allowed=self.is_read)) as events:
            async for event in events:
                self.deliver(event)
                is_half_empty = len(self.jobs) <= MOST_JOBS // 2 and self._bytes <= MOST_BYTES // 2
                if self._has_ignored and is_half_empty:
                    return

    def deliver(self, event: Event) -> None:
        """Take an event of the list-watch."""
        match event:
            case Began():
                self._listed, self._has_ignored = set(), False
            case Page(objects):
                for encoded in objects:
                    self._take(encoded)
            case Complete():
                for name in self.jobs.keys() - (self._listed or ()):
                    self._drop(name)
                self._listed = None
                if not self.is_read:
                    log.info("PodMigrationJobs are read", jobs=len(self.jobs))
                self.is_read = True
            case Changed(encoded, is_deleted):
                self._take(encoded, is_deleted=is_deleted)

    def _take(self, encoded: bytes | msgspec.Raw, *, is_deleted: bool = False) -> None:
        try:
            job = read_job(encoded)
        except InvalidRecordError as error:
            refuse("PodMigrationJob", error)
            return
        if is_deleted:
            self._drop(job.metadata.name)
        else:
            self.observe(job, memoryview(encoded).nbytes)

    def replace(self, job: KnownJob, after: JobObject) -> None:
        """Take the answer to a write of a job."""
        is_known = self.jobs.get(job.object.metadata.name) is job
        if is_known:
            self._drop(job.object.metadata.name)
        job.object = after
        if is_known:
            self._keep(job)

    def observe(self, job: JobObject, size_bytes: int) -> None:
        """Take a job as it is now; of this size as JSON."""
        name, now = job.metadata.name, self.api.clock.monotonic()
        known = self.jobs.get(name)
        self._drop(name)
        if len(self.jobs) >= MOST_JOBS or self._bytes + size_bytes > MOST_BYTES:
            if not self._has_ignored:
                log.warning("too many PodMigrationJobs; further ones wait", most=MOST_JOBS,
                            most_bytes=MOST_BYTES)  # fmt: skip
            self._has_ignored = True
            return
        if known is None or known.object.metadata.uid != job.metadata.uid:
            known = KnownJob(job, size_bytes, now)
        if known.object.spec != job.spec:
            known.is_submitted = False
        if known.object != job:
            known.object, known.size_bytes, known.due = job, size_bytes, min(known.due, now)
        self._keep(known)

    def _keep(self, job: KnownJob) -> None:
        name = job.object.metadata.name
        if self._listed is not None:
            self._listed.add(name)
        self.jobs[name] = job
        self._by_pod.setdefault(job.pod, {})[name] = job
        self._bytes += job.size_bytes

    def _drop(self, name: str) -> None:
        job = self.jobs.pop(name, None)
        if job is None:
            return
        self._bytes -= job.size_bytes
        jobs = self._by_pod[job.pod]
        del jobs[name]
        if not jobs:
            del self._by_pod[job.pod]
