"""PodMigrationJob objects on the API server: read, create, report on, delete.

A job of ours reports an eviction and never asks for one: it has the label `MANAGED_BY`, and the
annotation by which a koord-descheduler ignores jobs that it did not create itself. Its name follows
from plan and pod, so that two leaders create one.
"""

from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec

from actuators.object_owner import MANAGED_BY, OURS
from pipeline.errors import NotFoundError
from pipeline.kube.api_client import MERGE, Api, decode_answer
from pipeline.processors.eviction.migration_job import EVICT_DIRECTLY
from pipeline.processors.eviction.migration_job_object import (
    API_VERSION,
    PATH,
    DeleteOptions,
    MigrationJobSpec,
    MigrationJobStatus,
)
from pipeline.processors.kubernetes.objects import KubernetesObject, decode_object

CREATED_BY: Final = "koordinator.sh/job-created-by"
REASON: Final = "koordinator.sh/evict-reason"
TRIGGER: Final = "koordinator.sh/evict-trigger"
_LONGEST_REASON: Final = 1024
_NO_STATUS: Final = MigrationJobStatus()


class _Metadata(KubernetesObject, frozen=True, kw_only=True):
    name: str
    uid: str
    resource_version: str
    creation_timestamp: str
    deletion_timestamp: str | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class JobObject(KubernetesObject, frozen=True, kw_only=True):
    """A job, as far as the evictor reads it."""

    metadata: _Metadata
    spec: MigrationJobSpec
    status: MigrationJobStatus = _NO_STATUS

    @property
    def is_ours(self) -> bool:
        """Whether the job reports an eviction of Springtide."""
        return self.metadata.labels.get(MANAGED_BY) == OURS

    @property
    def is_left_alone(self) -> bool:
        """Whether another descheduler created the job for itself, or the job is being deleted and
        exists only until others have removed their finalizers."""
        is_foreign = not self.is_ours and CREATED_BY in self.metadata.annotations
        return is_foreign or self.metadata.deletion_timestamp is not None

    @property
    def delete_options(self) -> dict[str, Any]:
        """The options of the deletion, as the Eviction API takes them."""
        options = self.spec.delete_options or DeleteOptions()
        options = msgspec.structs.replace(options, api_version=None, kind=None)
        built: dict[str, Any] = msgspec.to_builtins(options)
        return built


class Report(NamedTuple):
    """An eviction that a job is to report: plan, strategy and why, the pod, and for how long it may
    take."""

    plan: str
    strategy: str
    why: str
    namespace: str
    name: str
    uid: str
    ttl: str


_jobs: Final = msgspec.json.Decoder(JobObject)


def read_job(data: bytes | msgspec.Raw) -> JobObject:
    """Convert a JSON object. Raises `InvalidRecordError`."""
    return decode_object(data, _jobs, "PodMigrationJob")


def report_name(plan: str, uid: str) -> str:
    """The name of the job that reports the eviction of a pod by a plan."""
    return f"springtide-{sha256(f'{plan} {uid}'.encode()).hexdigest()[:20]}"


async def create_report(api: Api, report: Report) -> JobObject:
    """Create the job of an eviction. Raises `KubernetesError`, `ConflictError` if it exists."""
    name = report_name(report.plan, report.uid)
    pod = {"kind": "Pod", "namespace": report.namespace, "name": report.name, "uid": report.uid}
    annotations = {
        CREATED_BY: OURS,
        REASON: report.why[:_LONGEST_REASON],
        TRIGGER: report.strategy,
    }
    body = {
        "apiVersion": API_VERSION,
        "kind": "PodMigrationJob",
        "metadata": {"name": name, "labels": {MANAGED_BY: OURS}, "annotations": annotations},
        "spec": {"mode": EVICT_DIRECTLY, "ttl": report.ttl, "podRef": pod},
    }
    answer = await api.request("POST", PATH, body=body, attempts=1)
    return decode_answer(_jobs, answer, f"POST {PATH}")


async def find_job(api: Api, name: str) -> JobObject | None:
    """The job of this name, None if there is none."""
    try:
        answer = await api.request("GET", f"{PATH}/{name}", attempts=1)
    except NotFoundError as error:
        if error.reason == "NotFound":
            return None
        raise  # a proxy's 404 says nothing about the job
    return decode_answer(_jobs, answer, f"GET {PATH}/{name}")


async def write_status(api: Api, job: JobObject, status: MigrationJobStatus) -> JobObject:
    """Write the status of a job. Raises `ConflictError` if the job has changed meanwhile."""
    # Null removes a field that the status had before.
    cleared = dict.fromkeys(("status", "reason", "message"))
    return await _patch(api, job, "/status", {"status": cleared | msgspec.to_builtins(status)})


async def name_pod(api: Api, job: JobObject, uid: str) -> JobObject:
    """Write the UID of its pod into a job. Raises `ConflictError` if the job has changed."""
    return await _patch(api, job, "", {"spec": {"podRef": {"uid": uid}}})


async def _patch(api: Api, job: JobObject, part: str, body: dict[str, Any]) -> JobObject:
    metadata, path = job.metadata, f"{PATH}/{job.metadata.name}{part}"
    body["metadata"] = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
    answer = await api.request("PATCH", path, body=body, content_type=MERGE, attempts=1)
    return decode_answer(_jobs, answer, f"PATCH {path}")


async def delete_job(api: Api, job: JobObject) -> None:
    """Delete a job unless it has changed since it was read."""
    metadata = job.metadata
    preconditions = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
    await api.request("DELETE", f"{PATH}/{metadata.name}", body=body, attempts=1)
