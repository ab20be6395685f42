"""What the API server's audit log says about pods: their lives, evictions, and who deleted them.

The log is evidence that no role writes: it has each request that reached the server, with the
server's answer, also if a proxy lost the answer or the client died before it came. Only successful
requests change the state that is rebuilt here.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from pipeline.times import parse_time

_CHANGES: Final = ("create", "update", "patch", "delete", "deletecollection")
AUDIT_POLICY: Final[dict[str, Any]] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [
        {
            "level": "RequestResponse",
            "verbs": _CHANGES,
            "resources": [
                {"resources": ["pods", "pods/status", "pods/binding", "pods/eviction"]},
                {"group": "apps", "resources": ["deployments", "statefulsets"]},
            ],
        },
        {"level": "None"},
    ],
}
"""Each change of a pod, with request and answer, and of the workloads that have replicas."""
_BEGIN: Final = b'{"kind":"Event","apiVersion":"audit'
OURS: Final = "springtide-"
"""With this begin the user agents of our roles."""


class _Reference(msgspec.Struct):
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class _Status(msgspec.Struct):
    code: int = 0


class _User(msgspec.Struct):
    username: str = ""


class AuditEvent(msgspec.Struct, rename="camel"):
    """A request and its answer, as the API server logged them."""

    verb: str
    request_received_timestamp: str
    user: _User = msgspec.field(default_factory=_User)
    user_agent: str = ""
    object_ref: _Reference = msgspec.field(default_factory=_Reference)
    response_status: _Status = msgspec.field(default_factory=_Status)
    request_object: dict[str, Any] | None = None
    response_object: dict[str, Any] | None = None

    @property
    def at(self) -> float:
        """When the server received the request (Unix time)."""
        return parse_time(self.request_received_timestamp)

    @property
    def is_done(self) -> bool:
        return 200 <= self.response_status.code < 300


_events: Final = msgspec.json.Decoder(AuditEvent)


def read_events(files: Iterable[Path], since: float) -> list[AuditEvent]:
    """The events since this time (Unix time), in the order in which requests were received. What
    the server is still writing, or was writing when it was killed, is left out."""
    events = (event for file in files for event in _whole(file.read_bytes()))
    return sorted((event for event in events if event.at >= since), key=lambda event: event.at)


def _whole(text: bytes) -> Iterator[AuditEvent]:
    for line in text.splitlines():
        # After a part of an event, a restarted server goes on in the same line.
        for event in line.split(_BEGIN)[1:]:
            with suppress(msgspec.DecodeError):
                yield _events.decode(_BEGIN + event)


# -- what the events say


@dataclass
class AuditedPod:
    """A pod as the server knew it after the events so far; times are Unix times."""

    uid: str
    namespace: str
    name: str
    node: str = ""
    workload: str = ""
    is_ready: bool = False
    holds: bool = False
    """Whether it still exists after its deletion: it has a grace period or finalizers."""
    created_at: float = 0.0
    bound_at: float | None = None
    """When a scheduler chose its node; None for a pod that was created with one."""
    deleted_at: float | None = None
    evicted_at: float | None = None
    gone_at: float | None = None


class Eviction(NamedTuple):
    """A request to evict, its client, and the server's answer. `uid` is that of the precondition,
    empty without one; `pod` is the pod that had the name, None if there was none."""

    at: float
    agent: str
    user: str
    namespace: str
    name: str
    uid: str
    is_dry: bool
    code: int
    pod: AuditedPod | None

    @property
    def is_accepted(self) -> bool:
        """Whether a pod leaves because of it."""
        return not self.is_dry and 200 <= self.code < 300


class Deletion(NamedTuple):
    """A request to delete pods, which asks no disruption budget."""

    at: float
    agent: str
    path: str
    code: int


@dataclass
class Cluster:
    """The pods and the replicas of workloads (kind/namespace/name) that the events tell about."""

    pods: dict[str, AuditedPod]
    replicas: dict[str, int]

    def named(self, namespace: str, name: str) -> AuditedPod | None:
        """The pod that has this name now."""
        for pod in self.pods.values():
            if (pod.namespace, pod.name) == (namespace, name) and pod.gone_at is None:
                return pod
        return None


def replay(
    events: Sequence[AuditEvent], cluster: Cluster | None = None
) -> Iterator[tuple[Cluster, Eviction | Deletion]]:
    """Yield each eviction and each deletion with the cluster just before it. The cluster, which may
    be given, changes while the caller iterates."""
    cluster = Cluster({}, {}) if cluster is None else cluster
    for event in events:
        reference = event.object_ref
        if reference.resource != "pods":
            _learn_workload(cluster, event)
        elif reference.subresource == "eviction":
            eviction = _eviction(cluster, event)
            yield cluster, eviction
            if eviction.is_accepted and eviction.pod is not None:
                pod = eviction.pod
                pod.deleted_at = pod.evicted_at = event.at
                pod.gone_at = None if pod.holds else event.at
        else:
            if event.verb.startswith("delete"):
                path = f"{reference.namespace}/{reference.name}"
                yield (
                    cluster,
                    Deletion(event.at, event.user_agent, path, event.response_status.code),
                )
            _learn_pod(cluster, event)


def _eviction(cluster: Cluster, event: AuditEvent) -> Eviction:
    reference, options = event.object_ref, (event.request_object or {}).get("deleteOptions") or {}
    uid = (options.get("preconditions") or {}).get("uid", "")
    pod = cluster.pods.get(uid) or cluster.named(reference.namespace, reference.name)
    return Eviction(
        event.at, event.user_agent, event.user.username, reference.namespace, reference.name,
        uid, bool(options.get("dryRun")), event.response_status.code, pod,
    )  # fmt: skip


def _learn_workload(cluster: Cluster, event: AuditEvent) -> None:
    manifest = event.response_object or {}
    if event.is_done and manifest.get("kind") in ("Deployment", "StatefulSet"):
        metadata = manifest["metadata"]
        name = f"{manifest['kind']}/{metadata['namespace']}/{metadata['name']}"
        cluster.replicas[name] = manifest["spec"].get("replicas", 1)


def _learn_pod(cluster: Cluster, event: AuditEvent) -> None:
    """Take a change of a pod that was no eviction."""
    reference, manifest = event.object_ref, event.response_object or {}
    if not event.is_done:
        return
    if reference.subresource == "binding":
        bound = cluster.named(reference.namespace, reference.name)
        target = (event.request_object or {}).get("target") or {}
        if bound is not None:
            bound.node, bound.bound_at = target.get("name", ""), event.at
    elif manifest.get("kind") == "Pod":
        _learn_manifest(cluster, event, manifest)
    elif event.verb == "delete":
        # The answer is a Status: nothing is left.
        gone = cluster.named(reference.namespace, reference.name)
        if gone is not None:
            gone.gone_at = gone.gone_at or event.at


def _learn_manifest(cluster: Cluster, event: AuditEvent, manifest: dict[str, Any]) -> None:
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    status = manifest.get("status") or {}
    pod = cluster.pods.setdefault(
        metadata["uid"],
        AuditedPod(metadata["uid"], metadata["namespace"], metadata["name"], created_at=event.at),
    )
    pod.node = spec.get("nodeName") or pod.node
    pod.workload = _workload(metadata)
    conditions = status.get("conditions") or ()
    pod.is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    grace = metadata.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds"))
    finalizers, is_bound = metadata.get("finalizers"), bool(spec.get("nodeName"))
    pod.holds = bool(finalizers) or (is_bound and grace != 0)
    if metadata.get("deletionTimestamp"):
        pod.deleted_at = pod.deleted_at or event.at
        if not pod.holds:
            pod.gone_at = pod.gone_at or event.at


def _workload(metadata: dict[str, Any]) -> str:
    """The controller of a pod as kind/namespace/name, a Deployment for its ReplicaSet; empty for a
    bare pod."""
    owners = [o for o in metadata.get("ownerReferences") or () if o.get("controller")]
    if not owners:
        return ""
    kind, name = owners[0]["kind"], owners[0]["name"]
    template = (metadata.get("labels") or {}).get("pod-template-hash")
    if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        kind, name = "Deployment", name.removesuffix(f"-{template}")
    return f"{kind}/{metadata['namespace']}/{name}"
