"""The fields of `scheduling.koordinator.sh/v1alpha1 PodMigrationJob`: the migration of one pod.

The object has no namespace. Docstrings become descriptions in its definition (`deploy/chart/crds`).
"""

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from pipeline.processors.slo.crd_fields import Document, Free, NotNegative
from pipeline.processors.slo.crd_schema import Kind

GROUP: Final = "scheduling.koordinator.sh"
API_VERSION: Final = "scheduling.koordinator.sh/v1alpha1"
PATH: Final = f"/apis/{API_VERSION}/podmigrationjobs"

Moment: TypeAlias = Annotated[
    str | None, msgspec.Meta(extra_json_schema={"format": "date-time", "nullable": True})
]
"""A time, which Go writes as null if it is not set."""


class ObjectReference(Document, frozen=True, kw_only=True):
    """An object of the cluster.

    api_version: API version of the object.
    kind: Kind of the object.
    namespace: Namespace of the object.
    name: Name of the object.
    uid: UID of the object.
    resource_version: Version of the object when the reference was made.
    field_path: Part of the object, such as spec.containers{name}.
    """

    api_version: str | None = None
    kind: str | None = None
    namespace: str | None = None
    name: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    field_path: str | None = None


class Preconditions(Document, frozen=True, kw_only=True):
    """What must hold for the pod when it is evicted.

    uid: UID that the pod must have.
    resource_version: Version that the pod must have.
    """

    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(Document, frozen=True, kw_only=True):
    """How the pod is deleted.

    api_version: API version of these options.
    kind: DeleteOptions.
    grace_period_seconds: Time for the pod to end, instead of its own.
    orphan_dependents: Whether objects that the pod owns stay; propagationPolicy replaces it.
    propagation_policy: What happens to objects that the pod owns: Orphan, Background or Foreground.
    dry_run: With All the pod is never evicted.
    """

    api_version: str | None = None
    kind: str | None = None
    grace_period_seconds: NotNegative | None = None
    preconditions: Preconditions | None = None
    orphan_dependents: bool | None = None
    propagation_policy: str | None = None
    dry_run: tuple[str, ...] | None = None


class MigrationJobSpec(Document, frozen=True, kw_only=True):
    """What is to be migrated, and how.

    paused: Nothing happens while this is true.
    ttl: Time after which an unfinished job fails, such as 5m0s.
    mode: EvictDirectly, or ReservationFirst, which Springtide does not carry out.
    pod_ref: The pod to be migrated.
    reservation_options: The reservation for the new pod, for mode ReservationFirst.
    """

    pod_ref: ObjectReference
    paused: bool | None = None
    ttl: str | None = None
    mode: str | None = None
    reservation_options: Free | None = None
    delete_options: DeleteOptions | None = None


class Condition(Document, frozen=True, kw_only=True):
    """A step of the migration.

    type: Name of the step.
    status: True, False or Unknown.
    reason: One word that says why.
    message: A sentence that says why.
    last_probe_time: When the step was last checked.
    last_transition_time: When the status changed.
    """

    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    last_probe_time: Moment = None
    last_transition_time: Moment = None


class MigrationJobStatus(Document, frozen=True, kw_only=True):
    """How far the migration is.

    phase: Pending, Running, Succeeded, Failed or Aborted.
    status: The condition that changed last, or Complete.
    reason: Why the job waits or has failed.
    message: The reason as a sentence.
    node_name: The node that is reserved.
    pod_ref: The pod in place of the migrated one.
    """

    phase: str | None = None
    status: str | None = None
    reason: str | None = None
    message: str | None = None
    conditions: tuple[Condition, ...] | None = None
    node_name: str | None = None
    pod_ref: ObjectReference | None = None


class PodMigrationJob(Document, frozen=True, kw_only=True):
    """The migration of one pod to another node."""

    api_version: Literal["scheduling.koordinator.sh/v1alpha1"]
    kind: Literal["PodMigrationJob"]
    metadata: Free
    spec: MigrationJobSpec
    status: MigrationJobStatus | None = None


DEFINITION: Final = Kind(
    PodMigrationJob,
    (
        ("Phase", "string", ".status.phase"),
        ("Status", "string", ".status.status"),
        ("Reason", "string", ".status.reason"),
        ("PodNamespace", "string", ".spec.podRef.namespace"),
        ("Pod", "string", ".spec.podRef.name"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ),
    wide=(
        ("Mode", "string", ".spec.mode"),
        ("TTL", "string", ".spec.ttl"),
        ("Message", "string", ".status.message"),
    ),
    group=GROUP,
    short_names=("pmj",),
)
"""The custom resource, with the columns of kubectl."""
