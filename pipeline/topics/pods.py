"""`springtide.pods`: what a pod is, keyed `<node>/<uid>`; a tombstone when it is gone.

Written by the cluster watcher or by the file source. A pod without a node has the empty node.
The join finds a pod by `cgroup_uid`, the name of its cgroup: for static pods that is the
annotation `kubernetes.io/config.hash`, else the uid.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from pipeline.errors import InvalidRecordError
from pipeline.topics.codec import Record
from pipeline.topics.resource_amounts import Resources, Scalars


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    name: str


class Container(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    requests: Resources = Resources()
    limits: Resources = Resources()
    scalars: Scalars | None = None
    scalar_limits: Scalars | UnsetType = UNSET
    restartable: bool = False


class PodRecord(Record, frozen=True, kw_only=True):
    """A Kubernetes Pod, trimmed to what decisions need; times are RFC 3339, UTC.

    `pod_class` is prod, mid, batch, free or none; `requests`, `limits`, `scalars` (what is asked
    for of other resources) and `scalar_limits` are the effective ones (init containers, restartable
    ones, overhead and pod-level resources counted). `scalar_limits` are said where they are not
    `scalars`, and in no record that is older than they are: there, too, `scalars` are both.
    `scheduled_at` and `initialized_at` are when the conditions of these names became true.
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
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: dict[str, Any] | None = None
    tolerations: tuple[dict[str, Any], ...] = ()
    phase: str = ""
    created_at: str | None = None
    scheduled_at: str | None = None
    initialized_at: str | None = None
    started_at: str | None = None
    deleted_at: str | None = None


class PodFacts(Record, frozen=True, kw_only=True):
    """What a worker reads of a `PodRecord`: a million pods must fit into it."""

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
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    phase: str = ""
    created_at: str | None = None
    deleted_at: str | None = None


class CountedPod(Record, frozen=True, kw_only=True):
    """What the state table reads of a `PodRecord`; it keeps the amounts alone."""

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
    scalars: Scalars | None = None
    scalar_limits: Scalars | UnsetType = UNSET
    overhead: Resources = Resources()
    scalar_overhead: Scalars | UnsetType = UNSET
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    phase: str = ""
    created_at: str | None = None
    scheduled_at: str | None = None
    initialized_at: str | None = None
    deleted_at: str | None = None


_LONGEST_TEXT = 253


def check_pod(pod: PodFacts) -> None:
    """Raise `InvalidRecordError` for texts longer than Kubernetes allows: they go into the window
    of the pod's node, and must not make it too large for all."""
    texts = [pod.cgroup_uid, pod.namespace, pod.name, pod.qos, pod.phase]
    texts += [pod.owner.kind, pod.owner.name] if pod.owner else []
    if (longest := max(len(text.encode()) for text in texts)) > _LONGEST_TEXT:
        raise InvalidRecordError(
            f"pod {pod.node}/{pod.uid:.80} has a text of {longest} bytes, more than {_LONGEST_TEXT}"
        )


def pod_key(node: str, uid: str) -> bytes:
    """The record key of a pod; where it lies is decided by `node` alone."""
    return f"{node}/{uid}".encode()


def split_pod_key(key: bytes) -> tuple[str, str]:
    """Node and uid of a pod's record key; raises `InvalidRecordError` if it is none."""
    try:
        node, separator, uid = key.decode().rpartition("/")
    except UnicodeDecodeError as error:
        raise InvalidRecordError("pod key is not UTF-8") from error
    if not separator or not uid or "/" in node:
        raise InvalidRecordError(f"pod key {key[:80]!r} is not <node>/<uid>")
    return node, uid
