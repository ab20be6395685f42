"""Custom resources that each Node has one of, named like it: NodeMetric and NodeSLO.

Owes the rest: an object for each Node of which its spec is known, owned by the Node so that it goes
with it, and with the spec that is wanted. Objects that we made bear our label; where no node wants
one any more those are deleted, and no others.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from actuators.cluster.writing import Write, Writer
from pipeline.errors import ConflictError, KubernetesError, NotFoundError
from pipeline.kube.client import JSON_PATCH, MERGE, Api
from pipeline.processors.slo.fields import API_VERSION, GROUP

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OURS: Final = "springtide"


class ObjectKind(NamedTuple):
    """`merges` says that what others wrote into a spec stays."""

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


class _Metadata(msgspec.Struct):
    name: str
    labels: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


_objects: Final = msgspec.json.Decoder(_Object)


class Objects:
    """Objects of one kind. `see`, `gone` and `want` tell it of the world, `decide` what is due."""

    def __init__(self, api: Api, kind: ObjectKind, writer: Writer) -> None:
        self.kind = kind
        self._api = api
        self._writer = writer
        self._what = kind.kind
        self._there: dict[str, bool] = {}
        self._listed: set[str] = set()
        self._wanted: dict[str, Wanted] = {}
        self._written: dict[str, Mapping[str, Any]] = {}
        self._changed: dict[str, None] = {}

    def exists(self, name: str) -> bool:
        """Whether the object of a node is there, as far as we know."""
        return name in self._there

    # -- the API server

    def begin(self) -> None:
        self._listed = set()

    def see(self, of: bytes | msgspec.Raw) -> None:
        """An object is there."""
        metadata = _objects.decode(of).metadata
        ours = (metadata.labels or {}).get(MANAGED_BY) == OURS
        self._listed.add(metadata.name)
        if self._there.get(metadata.name) is not ours:
            self._there[metadata.name] = ours
            self._changed[metadata.name] = None

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

    def decide(self) -> None:
        """Put what is due into the writer's hands."""
        changed, self._changed = self._changed, {}
        for name in changed:
            do = self._due(name)
            if do is None:
                self._writer.drop(self._what, name)
            else:
                self._writer.put(self._what, name, Write(do, self._failed(name)))

    def _due(self, name: str) -> Any:
        wanted, is_there = self._wanted.get(name), name in self._there
        if wanted is None:
            return self._deletion(name) if self._there.get(name) else None
        if not is_there:
            return self._creation(name, wanted)
        return None if self._written.get(name) == wanted.spec else self._change(name, wanted)

    def _failed(self, name: str) -> Any:
        def failed(error: KubernetesError) -> None:
            if isinstance(error, NotFoundError):
                self.gone(name)
            elif isinstance(error, ConflictError):
                # There is one that we have not been told of yet.
                self._there.setdefault(name, False)
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
            await self._api.request("POST", self.kind.path, body=body, attempts=1)
            self._there[name] = True
            self._written[name] = wanted.spec

        return create

    def _change(self, name: str, wanted: Wanted) -> Any:
        async def change() -> None:
            path = f"{self.kind.path}/{name}"
            if self.kind.merges:
                body: Any = {"spec": wanted.spec}
                await self._api.request("PATCH", path, body=body, kind=MERGE, attempts=1)
            else:
                body = [{"op": "add", "path": "/spec", "value": wanted.spec}]
                await self._api.request("PATCH", path, body=body, kind=JSON_PATCH, attempts=1)
            self._written[name] = wanted.spec

        return change

    def _deletion(self, name: str) -> Any:
        async def delete() -> None:
            await self._api.request("DELETE", f"{self.kind.path}/{name}", attempts=1)
            self.gone(name)

        return delete
