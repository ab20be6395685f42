"""An API server of custom resources and Nodes in memory, with failures by request."""

import copy
from typing import Any, NamedTuple

import msgspec

from pipeline.clock import ManualClock
from pipeline.errors import ApiRefusedError, KubernetesError


class Request(NamedTuple):
    method: str
    path: str
    body: Any


class FakeApi:
    """Answers from `objects`, by name, after `seconds`. `failures` are raised instead, by method;
    `answers` replace the answers to requests that were executed, by method."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.requests: list[Request] = []
        self.objects: dict[str, Any] = {}
        self.failures: dict[str, KubernetesError] = {}
        self.answers: dict[str, bytes] = {}
        self.seconds = 0.0
        self._version = 100

    def put(self, name: str, **parts: Any) -> bytes:
        """Change or create an object; returns it as JSON."""
        before = self.objects.get(name, {"metadata": {"name": name, "uid": name, "generation": 0}})
        self.objects[name] = after = copy.deepcopy(before)
        after["metadata"] |= parts.pop("metadata", {})
        after["metadata"]["generation"] += "spec" in parts and parts["spec"] != after.get("spec")
        self._version += 1
        after["metadata"]["resourceVersion"] = str(self._version)
        after |= parts
        return msgspec.json.encode(after)

    async def create(self, path: str, body: Any) -> Any:
        return msgspec.json.decode(await self.request("POST", path, body=body))

    async def request(self, method: str, path: str, *, body: Any = None, **_: Any) -> bytes:
        msgspec.json.encode(body)
        self.requests.append(Request(method, path, body))
        if self.seconds:
            await self.clock.sleep(self.seconds)
        if method in self.failures:
            raise self.failures[method]
        answer = self._execute(method, path, body)
        return self.answers.get(method, answer)

    def _execute(self, method: str, path: str, body: Any) -> bytes:
        name = path.removesuffix("/status").rpartition("/")[2]
        if method == "POST":
            metadata = body["metadata"]
            name = metadata.get("name", "event")
            return self.put(name, spec=body.get("spec"), metadata=metadata)
        if method == "DELETE":
            return msgspec.json.encode(self.objects.pop(name))
        before = self.objects[name]
        if method == "GET":
            return msgspec.json.encode(before)
        if isinstance(body, dict):
            return self.put(name, **merged(before, body))
        return self.put(name, **_patched(before, body))


def _patched(before: Any, patch: Any) -> Any:
    """Apply a JSON patch (RFC 6902) with `add` and `test`; raises ApiRefusedError if it fails."""
    patched = copy.deepcopy(before)
    for operation in patch:
        *path, last = operation["path"].removeprefix("/").split("/")
        inner = patched
        for key in path:
            if key not in inner:
                raise ApiRefusedError(f"422 doc is missing path: {operation['path']}")
            inner = inner[key]
        if operation["op"] == "add":
            inner[last] = operation["value"]
        elif inner.get(last) != operation["value"]:
            raise ApiRefusedError(f"422 testing value {operation['path']} failed")
    return patched


def merged(before: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = copy.deepcopy(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
