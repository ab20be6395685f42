"""Report evictions as PodMigrationJobs of our own, for those who watch these objects.

No eviction waits for its report. Two leaders give the report of an eviction the same name.
"""

from collections import deque
from decimal import Decimal
from typing import Final

import msgspec

from actuators.eviction.migration_job_objects import Report, create_report, report_name
from actuators.eviction.migration_job_watch import STRATEGY, JobWatch
from pipeline.errors import ConflictError, KubernetesError
from pipeline.kube.api_client import Api
from pipeline.metrics import counter
from pipeline.processors.kubernetes.durations import duration_text
from pipeline.topics.actions import ActionRecord

UNREPORTED = counter(
    "evictor_unreported_evictions", "Evictions that were not reported as a PodMigrationJob."
)
MOST_REPORTS: Final = 1000
"""PodMigrationJobs of ours at the same time; further evictions have none."""


class EvictionReports:
    """Evictions of this process that are to be reported."""

    def __init__(self, api: Api, watch: JobWatch) -> None:
        self._api, self._watch = api, watch
        self._waiting: deque[Report] = deque()

    def note(self, action: ActionRecord, ttl_seconds: float) -> None:
        """Take the intention to evict a pod, which may take so long. An eviction for a job of a
        user has this job, and an eviction that was reported is not reported again."""
        ((path, uid),) = action.before.items()
        is_asked_by_job = action.plan.startswith(f"{STRATEGY}/")
        if is_asked_by_job or report_name(action.plan, uid or "") in self._watch.jobs:
            return
        ours = sum(job.object.is_ours for job in self._watch.jobs.values())
        if ours + len(self._waiting) >= MOST_REPORTS:
            UNREPORTED.inc()
            return
        namespace, _, name = path.partition("/")
        ttl = duration_text(Decimal(max(round(ttl_seconds), 1)))
        report = Report(action.plan, action.strategy, action.why, namespace, name, uid or "", ttl)
        if report not in self._waiting:
            self._waiting.append(report)

    async def create(self, most: int) -> KubernetesError | None:
        """Create so many reports. Returns the error if one fails; this report is lost, and further
        ones wait."""
        for _ in range(min(len(self._waiting), most)):
            try:
                job = await create_report(self._api, self._waiting.popleft())
                self._watch.observe(job, len(msgspec.json.encode(job)))
            except ConflictError:
                pass  # it exists, and the watch delivers it
            except KubernetesError as error:
                UNREPORTED.inc()
                return error
        return None
