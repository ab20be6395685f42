"""An API server of custom resources and Nodes in memory, for what the real one seldom shows."""

import copy
from typing import Any, NamedTuple

import msgspec

from pipeline.clock import ManualClock
from pipeline.errors import ApiRefusedError, KubernetesError


class Asked(NamedTuple):
    method: str
    path: str
    body: Any


class FakeApi:
    """Answers with `objects` by their names, after `seconds`; `failures` say by method what is
    raised instead, `answers` what is answered although it was done."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.asked: list[Asked] = []
        self.objects: dict[str, Any] = {}
        self.failures: dict[str, KubernetesError] = {}
        self.answers: dict[str, bytes] = {}
        self.seconds = 0.0
        self._version = 100

    def put(self, name: str, **parts: Any) -> bytes:
        """Change an object, or make it; gives it as it is then."""
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
        self.asked.append(Asked(method, path, body))
        if self.seconds:
            await self.clock.sleep(self.seconds)
        if method in self.failures:
            raise self.failures[method]
        done = self._do(method, path, body)
        return self.answers.get(method, done)

    def _do(self, method: str, path: str, body: Any) -> bytes:
        name = path.removesuffix("/status").rpartition("/")[2]
        if method == "POST":
            of = body["metadata"]
            return self.put(of.get("name", "event"), spec=body.get("spec"), metadata=of)
        if method == "DELETE":
            return msgspec.json.encode(self.objects.pop(name))
        before = self.objects[name]
        if method == "GET":
            return msgspec.json.encode(before)
        if isinstance(body, dict):
            return self.put(name, **_merged(before, body))
        return self.put(name, **_patched(before, body))


def _patched(before: Any, patch: Any) -> Any:
    """As RFC 6902 has it, for `add` and `test` in objects; refused where it does not apply."""
    found = copy.deepcopy(before)
    for operation in patch:
        *path, last = operation["path"].removeprefix("/").split("/")
        inner = found
        for key in path:
            if key not in inner:
                raise ApiRefusedError(f"422 doc is missing path: {operation['path']}")
            inner = inner[key]
        if operation["op"] == "add":
            inner[last] = operation["value"]
        elif inner.get(last) != operation["value"]:
            raise ApiRefusedError(f"422 testing value {operation['path']} failed")
    return found


def _merged(before: Any, patch: Any) -> Any:
    """As RFC 7386 has it."""
    if not isinstance(patch, dict):
        return patch
    found = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), value)
    return found
