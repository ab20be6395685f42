"""Custom resources that each Node has one of, named like it: NodeMetric and NodeSLO.

Owes the rest: an object for each Node of which its spec is known, owned by the Node so that it goes
with it, and with the spec that is wanted, also after somebody else has changed it. Objects that we
made bear our label; where no node wants one any more those are deleted, and no others.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from actuators.cluster.writing import Write, Writer, answered
from pipeline.errors import ConflictError, KubernetesError, NotFoundError
from pipeline.kube.client import JSON_PATCH, Api
from pipeline.processors.slo.fields import API_VERSION, GROUP

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OURS: Final = "springtide"


class ObjectKind(NamedTuple):
    """`merges` says that parts of a spec which are not wanted stay as others wrote them."""

    kind: str
    plural: str
    merges: bool

    @property
    def path(self) -> str:
        return f"/apis/{GROUP}/v1alpha1/{self.plural}"


NODE_METRIC: Final = ObjectKind("NodeMetric", "nodemetrics", merges=False)
NODE_SLO: Final = ObjectKind("NodeSLO", "nodeslos", merges=True)


class Wanted(NamedTuple):
    """The spec of a node's object, and the uid of the Node, which owns it."""

    spec: Mapping[str, Any]
    owner_uid: str


UidOf = Callable[[str], str | None]
"""The uid of the Node of a name, None where there is none."""


class _There(NamedTuple):
    """An object as we were last told of it. Its generation grows with each change of its spec."""

    ours: bool
    uid: str = ""
    generation: int = 0


class _Written(NamedTuple):
    """What we wrote last, and which object and generation that made."""

    spec: Mapping[str, Any]
    uid: str
    generation: int


class _Metadata(msgspec.Struct):
    name: str
    uid: str = ""
    generation: int = 0
    labels: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


_objects: Final = msgspec.json.Decoder(_Object)


class Objects:
    """Objects of one kind. `see`, `gone` and `want` tell it of the world, `decide` what is due."""

    def __init__(self, api: Api, kind: ObjectKind, writer: Writer, uid_of: UidOf) -> None:
        self.kind = kind
        self._api = api
        self._uid_of = uid_of
        self._writer = writer
        self._what = kind.kind
        self._there: dict[str, _There] = {}
        self._listed: set[str] = set()
        self._wanted: dict[str, Wanted] = {}
        self._written: dict[str, _Written] = {}
        self._changed: dict[str, None] = {}

    def exists(self, name: str) -> bool:
        """Whether the object of a node is there, as far as we know."""
        return name in self._there

    # -- the API server

    def begin(self) -> None:
        self._listed = set()

    def see(self, of: bytes | msgspec.Raw) -> None:
        """An object is there."""
        self._see(_objects.decode(of))

    def _see(self, of: _Object) -> None:
        metadata = of.metadata
        name = metadata.name
        self._listed.add(name)
        ours = (metadata.labels or {}).get(MANAGED_BY) == OURS
        before, written = self._there.get(name), self._written.get(name)
        self._there[name] = there = _There(ours, metadata.uid, metadata.generation)
        if written and (there.uid != written.uid or there.generation > written.generation):
            # Somebody else has changed it, or made it anew.
            del self._written[name]
            self._changed[name] = None
        if before is None or before.ours is not ours:
            self._changed[name] = None

    def complete(self) -> None:
        for name in self._there.keys() - self._listed:
            self.gone(name)

    def gone(self, name: str) -> None:
        """An object was deleted."""
        self._there.pop(name, None)
        self._written.pop(name, None)
        self._changed[name] = None

    # -- what is due

    def want(self, name: str, wanted: Wanted | None) -> None:
        """What a node's object is to say; None where it is to have none."""
        if wanted == self._wanted.get(name):
            return
        if wanted is None:
            del self._wanted[name]
        else:
            self._wanted[name] = wanted
        self._changed[name] = None

    def decide(self, *, everything: bool = False) -> None:
        """Put what is due into the writer's hands; with `everything` also what had to wait for its
        Node."""
        changed, self._changed = self._changed, {}
        if everything:
            changed.update(dict.fromkeys(self._wanted.keys() - self._there.keys()))
        for name in changed:
            do = self._due(name)
            if do is None:
                self._writer.drop(self._what, name)
            else:
                self._writer.put(self._what, name, Write(do, self._failed(name)))

    def _due(self, name: str) -> Any:
        wanted, there = self._wanted.get(name), self._there.get(name)
        if wanted is None:
            return self._deletion(name) if there and there.ours else None
        if there is None:
            # Of a Node that is gone, or another by now, it would be collected at once.
            is_known = self._uid_of(name) == wanted.owner_uid
            return self._creation(name, wanted) if is_known else None
        written = self._written.get(name)
        is_so = written is not None and written.spec == wanted.spec
        return None if is_so else self._change(name, wanted)

    def _failed(self, name: str) -> Any:
        def failed(error: KubernetesError) -> None:
            if isinstance(error, NotFoundError):
                self.gone(name)
            elif isinstance(error, ConflictError):
                # There is one that we have not been told of yet.
                self._there.setdefault(name, _There(ours=False))
            # What of it was done nobody knows.
            self._written.pop(name, None)
            self._changed[name] = None

        return failed

    def _creation(self, name: str, wanted: Wanted) -> Any:
        async def create() -> None:
            owner = {
                "apiVersion": "v1",
                "kind": "Node",
                "name": name,
                "uid": wanted.owner_uid,
            }
            body = {
                "apiVersion": API_VERSION,
                "kind": self.kind.kind,
                "metadata": {
                    "name": name,
                    "labels": {MANAGED_BY: OURS},
                    "ownerReferences": [owner],
                },
                "spec": wanted.spec,
            }
            found = await self._api.request("POST", self.kind.path, body=body, attempts=1)
            self._wrote(name, wanted, found)

        return create

    def _change(self, name: str, wanted: Wanted) -> Any:
        async def change() -> None:
            parts = {f"/spec/{key}": value for key, value in wanted.spec.items()}
            said = parts if self.kind.merges else {"/spec": wanted.spec}
            # Each as a whole: what is wanted no longer goes.
            body = [{"op": "add", "path": path, "value": value} for path, value in said.items()]
            found = await self._api.request(
                "PATCH", f"{self.kind.path}/{name}", body=body, kind=JSON_PATCH, attempts=1
            )
            self._wrote(name, wanted, found)

        return change

    def _wrote(self, name: str, wanted: Wanted, found: bytes) -> None:
        of = answered(_objects, found)
        self._written[name] = _Written(wanted.spec, of.metadata.uid, of.metadata.generation)
        self._see(of)

    def _deletion(self, name: str) -> Any:
        async def delete() -> None:
            await self._api.request("DELETE", f"{self.kind.path}/{name}", attempts=1)
            self.gone(name)

        return delete
