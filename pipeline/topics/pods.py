"""`springtide.pods`: Kubernetes Pods, keyed `<node>/<uid>`; a tombstone when deleted.

The cluster watcher or the file source writes it. The node of a pending pod is the empty text. The
join looks a pod up by `cgroup_uid`, the uid in the name of its cgroup: for static pods the
annotation `kubernetes.io/config.hash`, else the pod's uid.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from pipeline.errors import InvalidRecordError
from pipeline.topics.codec import Record
from pipeline.topics.resource_amounts import Resources, Scalars


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The controller of an object.

    kind: Kind of the controller.
    name: Name of the controller.
    """

    kind: str
    name: str


class Container(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A container.

    name: Name of the container.
    requests: Requests of cpu and memory.
    limits: Limits of cpu and memory.
    scalars: Requests of other resources.
    scalar_limits: Limits of other resources; unset if they equal `scalars`.
    restartable: Whether an init container is a sidecar.
    """

    name: str
    requests: Resources = Resources()
    limits: Resources = Resources()
    scalars: Scalars | None = None
    scalar_limits: Scalars | UnsetType = UNSET
    restartable: bool = False


class PodRecord(Record, frozen=True, kw_only=True):
    """A Kubernetes Pod, reduced to the fields that decisions need; times are RFC 3339, UTC.

    Requests and limits are effective values, with init containers, sidecars, overhead and pod-level
    resources.

    node: Name of the node; empty for a pending pod.
    uid: UID of the pod.
    cgroup_uid: UID in the name of its cgroup; static pods have another than their object.
    namespace: Namespace.
    name: Name.
    owner: The controller of the pod.
    labels: Labels.
    annotations: Annotations, without copies of the object.
    priority: Priority.
    pod_class: Class of the pod: prod, mid, batch, free or none.
    qos: Koordinator's QoS class.
    requests: Requests of cpu and memory.
    limits: Limits of cpu and memory.
    scalars: Requests of other resources.
    scalar_limits: Limits of other resources; unset if they equal `scalars`.
    overhead: Overhead of cpu and memory.
    scalar_overhead: Overhead of other resources.
    containers: Containers with their requests and limits.
    init_containers: Init containers, likewise.
    container_ids: Ids of started containers and sidecars by name, without the name of the runtime.
    oom_killed_at: When containers and sidecars were last OOM-killed, by name.
    node_selector: Node selector.
    affinity: Affinity.
    tolerations: Tolerations.
    scheduler_name: Name of the scheduler that places the pod.
    volumes: Kinds of its volumes that matter to its eviction: emptyDir, hostPath,
        persistentVolumeClaim.
    phase: Phase.
    created_at: When the pod was created.
    scheduled_at: When the condition PodScheduled became true.
    initialized_at: When the condition Initialized became true.
    started_at: When the kubelet accepted the pod.
    deleted_at: When the pod will be deleted at the latest; null unless it is being deleted.
    """

    node: str
    uid: str
    cgroup_uid: str
    namespace: str
    name: str
    owner: Owner | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    priority: int | None = None
    pod_class: str = "none"
    qos: str = ""
    requests: Resources = Resources()
    limits: Resources = Resources()
    scalars: Scalars | None = None
    scalar_limits: Scalars | UnsetType = UNSET
    overhead: Resources = Resources()
    scalar_overhead: Scalars | UnsetType = UNSET
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    container_ids: dict[str, str] = msgspec.field(default_factory=dict)
    oom_killed_at: dict[str, str] = msgspec.field(default_factory=dict)
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: dict[str, Any] | None = None
    tolerations: tuple[dict[str, Any], ...] = ()
    scheduler_name: str = ""
    volumes: tuple[str, ...] = ()
    phase: str = ""
    created_at: str | None = None
    scheduled_at: str | None = None
    initialized_at: str | None = None
    started_at: str | None = None
    deleted_at: str | None = None


class _DecodedPod(Record, frozen=True, kw_only=True):
    """The fields of a `PodRecord` that workers and the state table decode. A struct with fewer
    fields is decoded faster, and there may be a million pods."""

    node: str
    uid: str
    cgroup_uid: str
    owner: Owner | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    priority: int | None = None
    pod_class: str = "none"
    requests: Resources = Resources()
    limits: Resources = Resources()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    phase: str = ""
    created_at: str | None = None
    deleted_at: str | None = None


class PodFacts(_DecodedPod, frozen=True, kw_only=True):
    """The fields of a `PodRecord` that a worker decodes."""

    namespace: str
    name: str
    qos: str = ""
    container_ids: dict[str, str] = msgspec.field(default_factory=dict)
    oom_killed_at: dict[str, str] = msgspec.field(default_factory=dict)


class CountedPod(_DecodedPod, frozen=True, kw_only=True):
    """The fields of a `PodRecord` that the state table decodes; it stores only the amounts."""

    scalars: Scalars | None = None
    scalar_limits: Scalars | UnsetType = UNSET
    overhead: Resources = Resources()
    scalar_overhead: Scalars | UnsetType = UNSET
    scheduled_at: str | None = None
    initialized_at: str | None = None


_LONGEST_TEXT = 253


def check_pod(pod: PodFacts) -> None:
    """Raise `InvalidRecordError` for a text longer than Kubernetes allows: it would go into the
    windows of the pod's node and could make them too large."""
    texts = [pod.cgroup_uid, pod.namespace, pod.name, pod.qos, pod.phase]
    texts += [pod.owner.kind, pod.owner.name] if pod.owner else []
    if (longest := max(len(text.encode()) for text in texts)) > _LONGEST_TEXT:
        raise InvalidRecordError(
            f"pod {pod.node}/{pod.uid:.80} has a text of {longest} bytes, more than {_LONGEST_TEXT}"
        )


def pod_key(node: str, uid: str) -> bytes:
    """The record key of a pod. `node` alone decides the partition."""
    return f"{node}/{uid}".encode()


def split_pod_key(key: bytes) -> tuple[str, str]:
    """Node and uid of a pod's record key. Raises `InvalidRecordError` for another key."""
    try:
        node, separator, uid = key.decode().rpartition("/")
    except UnicodeDecodeError as error:
        raise InvalidRecordError("pod key is not UTF-8") from error
    if not separator or not uid or "/" in node:
        raise InvalidRecordError(f"pod key {key[:80]!r} is not <node>/<uid>")
    return node, uid
