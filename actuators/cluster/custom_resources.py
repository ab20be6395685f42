"""Custom resources with one object per Node and its name: NodeMetric and NodeSLO.

Each Node with a desired spec gets an object. The Node owns it, also if another client created it,
and its spec is restored after foreign changes. Objects that we created carry our label; without a
desired spec those are deleted, and no others.

Every write is one idempotent request, and the next one is decided from its answer or from the
watch, whichever arrives first. A new leader does not know the last written specs, so it writes each
object once.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from actuators.cluster.write_queue import Write, WriteQueue
from actuators.object_owner import MANAGED_BY, OURS
from pipeline.errors import ApiRefusedError, ConflictError, KubernetesError, NotFoundError
from pipeline.kube.api_client import JSON_PATCH, Api, decode_answer
from pipeline.processors.slo.crd_fields import API_VERSION, GROUP

Execute = Callable[[], Awaitable[None]]


class ResourceKind(NamedTuple):
    """A kind of custom resource. If it `merges`, fields of a spec without a desired value keep what
    other clients wrote; else they are removed."""

    kind: str
    plural: str
    merges: bool

    @property
    def path(self) -> str:
        return f"/apis/{GROUP}/v1alpha1/{self.plural}"


NODE_METRIC: Final = ResourceKind("NodeMetric", "nodemetrics", merges=False)
NODE_SLO: Final = ResourceKind("NodeSLO", "nodeslos", merges=True)


class DesiredSpec(NamedTuple):
    """The spec of a node's object, and the uid of the Node that owns it."""

    spec: Mapping[str, Any]
    owner_uid: str


class _Existing(NamedTuple):
    """An object as last observed. Each change of its spec increases the generation. `owners` is
    None if an object exists that has not been observed yet."""

    is_ours: bool
    owners: Sequence[dict[str, Any]] | None = None
    uid: str = ""
    generation: int = 0


class _Written(NamedTuple):
    """The spec that we wrote last, and the object and generation that resulted."""

    spec: Mapping[str, Any]
    uid: str
    generation: int


class _Metadata(msgspec.Struct):
    name: str
    uid: str = ""
    generation: int = 0
    labels: dict[str, str] | None = None
    owner_references: list[dict[str, Any]] | None = msgspec.field(
        default=None, name="ownerReferences"
    )
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _Object(msgspec.Struct):
    """The decoded fields of an object; `spec` is None in answers that contain metadata only."""

    metadata: _Metadata
    spec: dict[str, Any] | None = None


_objects: Final = msgspec.json.Decoder(_Object)


class CustomResources:
    """The objects of one kind, as a `Follower` of their list-watch. `node_uids` has the uid of
    each Node on the API server."""

    def __init__(
        self, api: Api, kind: ResourceKind, queue: WriteQueue, node_uids: Mapping[str, str]
    ) -> None:
        self.kind = kind
        self._api = api
        self._node_uids = node_uids
        self._queue = queue
        self._existing: dict[str, _Existing] = {}
        self._listed: set[str] = set()
        self._desired: dict[str, DesiredSpec] = {}
        self._written: dict[str, _Written] = {}
        self._changed: dict[str, None] = {}
        # Names whose Node does not exist yet, or has another uid.
        self._waiting_for_node: set[str] = set()
        # Names whose patch was refused: the object may have no spec.
        self._refused: set[str] = set()

    def exists(self, name: str) -> bool:
        """Whether a node's object exists, as far as we know."""
        return name in self._existing

    # -- the API server

    def list_started(self) -> None:
        self._listed = set()

    def observed(self, encoded: bytes | msgspec.Raw) -> None:
        self._observe(_objects.decode(encoded))

    def _observe(self, document: _Object) -> None:
        metadata = document.metadata
        name = metadata.name
        self._listed.add(name)
        is_ours = (metadata.labels or {}).get(MANAGED_BY) == OURS
        before, written = self._existing.get(name), self._written.get(name)
        owners = metadata.owner_references or ()
        existing = _Existing(is_ours, owners, metadata.uid, metadata.generation)
        self._existing[name] = existing
        if written and (existing.uid != written.uid or existing.generation > written.generation):
            # Another client changed or recreated it.
            del self._written[name]
            self._changed[name] = None
        if before is None or before[:2] != existing[:2]:
            self._changed[name] = None

    def list_completed(self) -> None:
        for name in self._existing.keys() - self._listed:
            self.deleted(name)

    def deleted(self, name: str) -> None:
        self._existing.pop(name, None)
        self._written.pop(name, None)
        self._refused.discard(name)
        self._changed[name] = None

    # -- writes

    def set_desired(self, name: str, desired: DesiredSpec | None) -> None:
        """Set the desired spec of a node's object; None if it should have none."""
        if desired == self._desired.get(name):
            return
        if desired is None:
            del self._desired[name]
        else:
            self._desired[name] = desired
        self._changed[name] = None

    def decide(self, *, everything: bool = False) -> None:
        """Queue the writes of changed objects; with `everything` also of those that wait for their
        Node."""
        changed, self._changed = self._changed, {}
        if everything:
            changed.update(dict.fromkeys(self._waiting_for_node))
        for name in changed:
            execute = self._next_write(name)
            if execute is None:
                self._queue.discard(self.kind.kind, name)
            else:
                self._queue.put(self.kind.kind, name, Write(execute, self._on_failure(name)))

    def _next_write(self, name: str) -> Execute | None:
        """The write that brings an object to its desired state; None if it is there, or if its Node
        does not exist yet."""
        desired, existing = self._desired.get(name), self._existing.get(name)
        self._waiting_for_node.discard(name)
        if desired is None:
            return self._deletion(name) if existing and existing.is_ours else None
        # The garbage collector would delete an object whose owner does not exist.
        has_node = self._node_uids.get(name) == desired.owner_uid
        is_owned = existing is not None and _is_owned(existing, desired.owner_uid)
        if not has_node and not is_owned:
            self._waiting_for_node.add(name)
        if existing is None:
            return self._creation(name, desired) if has_node else None
        written = self._written.get(name)
        is_equal = written is not None and written.spec == desired.spec
        owners: list[dict[str, Any]] = []
        if has_node and not is_owned:
            owners = _owner_patch(name, existing, desired.owner_uid)
        return None if is_equal and not owners else self._change(name, desired, owners)

    def _on_failure(self, name: str) -> Callable[[KubernetesError], None]:
        def on_failure(error: KubernetesError) -> None:
            if isinstance(error, NotFoundError):
                self.deleted(name)
            elif isinstance(error, ConflictError):
                # It exists, and the watch has not delivered it yet.
                self._existing.setdefault(name, _Existing(is_ours=False))
            elif isinstance(error, ApiRefusedError):
                self._refused.add(name)
            # It is unknown whether the request was executed.
            self._written.pop(name, None)
            self._changed[name] = None

        return on_failure

    def _creation(self, name: str, desired: DesiredSpec) -> Execute:
        async def create() -> None:
            body = {
                "apiVersion": API_VERSION,
                "kind": self.kind.kind,
                "metadata": {
                    "name": name,
                    "labels": {MANAGED_BY: OURS},
                    "ownerReferences": [_owner(name, desired.owner_uid)],
                },
                "spec": desired.spec,
            }
            answer = await self._api.request("POST", self.kind.path, body=body, attempts=1)
            self._on_written(name, desired, answer)

        return create

    def _change(self, name: str, desired: DesiredSpec, owners: list[dict[str, Any]]) -> Execute:
        async def change() -> None:
            path = f"{self.kind.path}/{name}"
            operations = owners
            is_merged = self.kind.merges
            if is_merged and name in self._refused:
                answer = await self._api.request("GET", path, attempts=1)
                document = decode_answer(_objects, answer, f"GET {path}")
                is_merged = document.spec is not None
                version = document.metadata.resource_version
                operations = [_patch("test", "/metadata/resourceVersion", version), *owners]
            parts = {f"/spec/{key}": value for key, value in desired.spec.items()}
            # Each part is replaced completely, so that undesired keys disappear.
            replaced = parts if is_merged else {"/spec": desired.spec}
            body = operations + [_patch("add", target, value) for target, value in replaced.items()]
            done = await self._api.request(
                "PATCH", path, body=body, content_type=JSON_PATCH, attempts=1
            )
            self._on_written(name, desired, done)

        return change

    def _on_written(self, name: str, desired: DesiredSpec, answer: bytes) -> None:
        document = decode_answer(_objects, answer, f"write of {self.kind.kind} {name}")
        metadata = document.metadata
        self._written[name] = _Written(desired.spec, metadata.uid, metadata.generation)
        self._refused.discard(name)
        self._observe(document)

    def _deletion(self, name: str) -> Execute:
        async def delete() -> None:
            await self._api.request("DELETE", f"{self.kind.path}/{name}", attempts=1)
            self.deleted(name)

        return delete


def _is_owned(existing: _Existing, uid: str) -> bool:
    """Whether the Node of this uid owns an object, as far as we know."""
    return existing.owners is None or any(owner.get("uid") == uid for owner in existing.owners)


def _owner(name: str, uid: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}


def _owner_patch(name: str, existing: _Existing, uid: str) -> list[dict[str, Any]]:
    """Operations that make the Node an owner in place of a former Node of its name. Other owners
    stay; the patch fails if the owners have changed meanwhile."""
    path, before = "/metadata/ownerReferences", list(existing.owners or ())
    others = [owner for owner in before if (owner.get("kind"), owner.get("name")) != ("Node", name)]
    unchanged = [_patch("test", path, before)] if before else []
    return [*unchanged, _patch("add", path, [*others, _owner(name, uid)])]


def _patch(operation: str, path: str, value: Any) -> dict[str, Any]:
    return {"op": operation, "path": path, "value": value}
