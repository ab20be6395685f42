"""The base class of features that write annotations and labels of Nodes.

A feature states the desired annotations and labels of a Node. The patch is computed when a write is
executed, not when it is queued: another client may have changed them meanwhile.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from actuators.cluster.feature import NODES_WATCH, Context, Feature, Follower, Watch
from actuators.cluster.write_queue import Write
from pipeline.errors import KubernetesError, NotFoundError
from pipeline.kube.api_client import MERGE, Api, decode_answer


class _Metadata(msgspec.Struct):
    name: str
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class _Node(msgspec.Struct):
    metadata: _Metadata


_nodes: Final = msgspec.json.Decoder(_Node)


class NodeMetadataFeature(Feature):
    """Keeps the `annotations` and `labels` of the feature on each Node equal to the desired ones,
    and removes them while the feature is off.

    A subclass calls `set_desired` from `learn`.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._desired: dict[str, dict[str, str]] = {}
        self._actual: dict[str, dict[str, str]] = {}
        self._changed: dict[str, None] = {}
        self._listed: set[str] = set()

    def set_desired(self, name: str, values: Mapping[str, str]) -> None:
        """Set the desired annotations and labels of a Node by key; without one it is removed."""
        if undeclared := values.keys() - {*self.annotations, *self.labels}:
            raise ValueError(f"{type(self).__name__} does not declare {', '.join(undeclared)}")
        self._desired[name] = dict(values)
        if not values:
            del self._desired[name]
        self._changed[name] = None

    # -- the API server

    @property
    def watches(self) -> Mapping[Watch, Follower]:
        return {NODES_WATCH: self}

    def list_started(self) -> None:
        self._listed = set()

    def observed(self, encoded: bytes | msgspec.Raw) -> None:
        node = _nodes.decode(encoded).metadata
        self._listed.add(node.name)
        fields = (self.annotations, node.annotations or {}), (self.labels, node.labels or {})
        actual = {key: given[key] for keys, given in fields for key in keys if key in given}
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
        actual, wanted = self._actual.get(name), self._desired.get(name, {})
        if actual is None or actual == wanted:
            return {}
        changes = {k: wanted.get(k) for k in actual | wanted if wanted.get(k) != actual.get(k)}
        fields = {"annotations": self.annotations, "labels": self.labels}
        parts = {f: {k: changes[k] for k in keys if k in changes} for f, keys in fields.items()}
        return {field: part for field, part in parts.items() if part}

    def _write(self, name: str) -> Write:
        async def execute() -> None:
            # The Node may have changed while the write waited, and may have been changed or
            # recreated before the answer arrives: only the watch shows its present metadata.
            if difference := self._difference(name):
                answer = await patch_node(self._api, name, difference)
                decode_answer(_nodes, answer, f"PATCH Node {name}")

        def on_failure(error: KubernetesError) -> None:
            if isinstance(error, NotFoundError):
                self.deleted(name)
            self._changed[name] = None

        return Write(execute, on_failure)


async def patch_node(api: Api, name: str, metadata: Mapping[str, Any]) -> bytes:
    """Patch the metadata of a Node by its status, which needs no right to patch Nodes."""
    path, body = f"/api/v1/nodes/{name}/status", {"metadata": metadata}
    return await api.request("PATCH", path, body=body, content_type=MERGE, attempts=1)
