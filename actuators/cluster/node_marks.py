"""The base class of features that write annotations and labels of Nodes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from actuators.cluster.feature import NODES_WATCH, Context, Feature, Follower, Watch
from actuators.cluster.write_queue import Write, decode_answer
from pipeline.errors import KubernetesError, NotFoundError
from pipeline.kube.api_client import MERGE

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class _Metadata(msgspec.Struct):
    name: str
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class _Node(msgspec.Struct):
    metadata: _Metadata


_nodes: Final = msgspec.json.Decoder(_Node)


class NodeMarks(Feature):
    """Keeps the `annotations` and `labels` of the feature on each Node equal to those that the
    feature wants, and removes them while the feature is off.

    A subclass calls `want` from `learn`.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        # Marks by field of the metadata and key.
        self._wanted: dict[str, dict[tuple[str, str], str]] = {}
        self._actual: dict[str, dict[tuple[str, str], str]] = {}
        self._changed: dict[str, None] = {}
        self._listed: set[str] = set()

    def want(
        self,
        name: str,
        *,
        annotations: Mapping[str, str] = _NONE,
        labels: Mapping[str, str] = _NONE,
    ) -> None:
        """Set all marks that a Node should have; it loses the other marks of this feature."""
        wanted = self._owned(annotations, labels)
        if len(wanted) < len(annotations) + len(labels):
            raise ValueError(f"{type(self).__name__} must declare its annotations and labels")
        self._wanted[name] = wanted
        if not wanted:
            del self._wanted[name]
        self._changed[name] = None

    def _owned(
        self, annotations: Mapping[str, str], labels: Mapping[str, str]
    ) -> dict[tuple[str, str], str]:
        fields = (
            ("annotations", self.annotations, annotations),
            ("labels", self.labels, labels),
        )
        return {
            (field, key): marks[key]
            for field, keys, marks in fields
            for key in keys
            if key in marks
        }

    # -- the API server

    @property
    def watches(self) -> Mapping[Watch, Follower]:
        return {NODES_WATCH: self}

    def list_started(self) -> None:
        self._listed = set()

    def observed(self, encoded: bytes | msgspec.Raw) -> None:
        self._observe(_nodes.decode(encoded).metadata)

    def _observe(self, node: _Metadata) -> None:
        self._listed.add(node.name)
        actual = self._owned(node.annotations or {}, node.labels or {})
        if actual != self._actual.get(node.name):
            self._actual[node.name] = actual
            self._changed[node.name] = None

    def list_completed(self) -> None:
        for name in self._actual.keys() - self._listed:
            self.deleted(name)

    def deleted(self, name: str) -> None:
        self._actual.pop(name, None)
        self._queue.discard(self.name, name)

    # -- writes

    def decide(self, *, everything: bool) -> None:
        changed, self._changed = self._changed, {}
        for name in changed:
            if self._difference(name):
                self._queue.put(self.name, name, self._write(name))
            else:
                self._queue.discard(self.name, name)

    def _difference(self, name: str) -> dict[str, dict[str, str | None]]:
        """The patch of a Node's metadata; empty if there is nothing to change, or no Node."""
        patch: dict[str, dict[str, str | None]] = {}
        actual, wanted = self._actual.get(name), self._wanted.get(name, {})
        if actual is not None:
            for field, key in actual | wanted:
                value = wanted.get((field, key))
                if value != actual.get((field, key)):
                    patch.setdefault(field, {})[key] = value
        return patch

    def _write(self, name: str) -> Write:
        async def execute() -> None:
            # The Node may have changed while the write waited.
            if difference := self._difference(name):
                self._observe(decode_answer(_nodes, await self._patch(name, difference)).metadata)

        def on_failure(error: KubernetesError) -> None:
            if isinstance(error, NotFoundError):
                self.deleted(name)
            self._changed[name] = None

        return Write(execute, on_failure)

    async def _patch(self, name: str, metadata: Mapping[str, Any]) -> bytes:
        path = f"/api/v1/nodes/{name}/status"
        return await self._api.request(
            "PATCH", path, body={"metadata": metadata}, kind=MERGE, attempts=1
        )
