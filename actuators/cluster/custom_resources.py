"""Custom resources that each Node has one of, named like it: NodeMetric and NodeSLO.

Owes the rest: an object for each Node of which its spec is known, owned by the Node so that it goes
with it, whoever made it, and with the spec that is wanted, also after somebody else has changed
either. Objects that we made bear our label; where no node wants one any more those are deleted, and
no others.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from actuators.cluster.write_queue import Write, Writer, answered
from pipeline.errors import ApiRefusedError, ConflictError, KubernetesError, NotFoundError
from pipeline.kube.api_client import JSON_PATCH, Api
from pipeline.processors.slo.crd_fields import API_VERSION, GROUP

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
    """An object as we were last told of it. Its generation grows with each change of its spec. Its
    owners are None while nobody has told of them."""

    ours: bool
    owners: Sequence[dict[str, Any]] | None = None
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
    owner_references: list[dict[str, Any]] | None = msgspec.field(
        default=None, name="ownerReferences"
    )
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _Object(msgspec.Struct):
    """`spec` is None also where only metadata were asked for."""

    metadata: _Metadata
    spec: dict[str, Any] | None = None


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
        # Names of which the Node is not there yet, or another.
        self._early: set[str] = set()
        # Names of which a change was refused: perhaps there is no spec to be changed.
        self._refused: set[str] = set()

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
        owners = metadata.owner_references or ()
        there = _There(ours, owners, metadata.uid, metadata.generation)
        self._there[name] = there
        if written and (there.uid != written.uid or there.generation > written.generation):
            # Somebody else has changed it, or made it anew.
            del self._written[name]
            self._changed[name] = None
        if before is None or before[:2] != there[:2]:
            self._changed[name] = None

    def complete(self) -> None:
        for name in self._there.keys() - self._listed:
            self.gone(name)

    def gone(self, name: str) -> None:
        """An object was deleted."""
        self._there.pop(name, None)
        self._written.pop(name, None)
        self._refused.discard(name)
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
            changed.update(dict.fromkeys(self._early))
        for name in changed:
            do = self._due(name)
            if do is None:
                self._writer.drop(self._what, name)
            else:
                self._writer.put(self._what, name, Write(do, self._failed(name)))

    def _due(self, name: str) -> Any:
        wanted, there = self._wanted.get(name), self._there.get(name)
        self._early.discard(name)
        if wanted is None:
            return self._deletion(name) if there and there.ours else None
        # Of a Node that is gone, or another by now, it would be collected at once.
        has_node = self._uid_of(name) == wanted.owner_uid
        is_owned = there is not None and _is_owned(there, wanted.owner_uid)
        if not has_node and not is_owned:
            self._early.add(name)
        if there is None:
            return self._creation(name, wanted) if has_node else None
        written = self._written.get(name)
        is_so = written is not None and written.spec == wanted.spec
        owners = _owners(name, there, wanted.owner_uid) if has_node and not is_owned else []
        return None if is_so and not owners else self._change(name, wanted, owners)

    def _failed(self, name: str) -> Any:
        def failed(error: KubernetesError) -> None:
            if isinstance(error, NotFoundError):
                self.gone(name)
            elif isinstance(error, ConflictError):
                # There is one that we have not been told of yet.
                self._there.setdefault(name, _There(ours=False))
            elif isinstance(error, ApiRefusedError):
                self._refused.add(name)
            # What of it was done nobody knows.
            self._written.pop(name, None)
            self._changed[name] = None

        return failed

    def _creation(self, name: str, wanted: Wanted) -> Any:
        async def create() -> None:
            body = {
                "apiVersion": API_VERSION,
                "kind": self.kind.kind,
                "metadata": {
                    "name": name,
                    "labels": {MANAGED_BY: OURS},
                    "ownerReferences": [_owner(name, wanted.owner_uid)],
                },
                "spec": wanted.spec,
            }
            found = await self._api.request("POST", self.kind.path, body=body, attempts=1)
            self._wrote(name, wanted, found)

        return create

    def _change(self, name: str, wanted: Wanted, owners: list[dict[str, Any]]) -> Any:
        async def change() -> None:
            path = f"{self.kind.path}/{name}"
            first = owners
            is_merged = self.kind.merges
            if is_merged and name in self._refused:
                found = answered(_objects, await self._api.request("GET", path, attempts=1))
                is_merged = found.spec is not None
                version = found.metadata.resource_version
                first = [_patch("test", "/metadata/resourceVersion", version), *owners]
            parts = {f"/spec/{key}": value for key, value in wanted.spec.items()}
            said = parts if is_merged else {"/spec": wanted.spec}
            # Each as a whole: what is wanted no longer goes.
            body = first + [_patch("add", where, value) for where, value in said.items()]
            done = await self._api.request("PATCH", path, body=body, kind=JSON_PATCH, attempts=1)
            self._wrote(name, wanted, done)

        return change

    def _wrote(self, name: str, wanted: Wanted, found: bytes) -> None:
        of = answered(_objects, found)
        self._written[name] = _Written(wanted.spec, of.metadata.uid, of.metadata.generation)
        self._refused.discard(name)
        self._see(of)

    def _deletion(self, name: str) -> Any:
        async def delete() -> None:
            await self._api.request("DELETE", f"{self.kind.path}/{name}", attempts=1)
            self.gone(name)

        return delete


def _is_owned(there: _There, uid: str) -> bool:
    """Whether an object goes with the Node of this uid, as far as we were told."""
    return there.owners is None or any(one.get("uid") == uid for one in there.owners)


def _owner(name: str, uid: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}


def _owners(name: str, there: _There, uid: str) -> list[dict[str, Any]]:
    """What makes the Node an owner, in place of an earlier one of its name; others stay, and where
    there are others by now nothing is done."""
    path, before = "/metadata/ownerReferences", list(there.owners or ())
    others = [one for one in before if (one.get("kind"), one.get("name")) != ("Node", name)]
    known = [_patch("test", path, before)] if before else []
    return [*known, _patch("add", path, [*others, _owner(name, uid)])]


def _patch(operation: str, path: str, value: Any) -> dict[str, Any]:
    return {"op": operation, "path": path, "value": value}
