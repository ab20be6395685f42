"""Events: what an operator sees who looks at an object with kubectl.

They are told once, are short, and are never what anything depends on: an Event that cannot be
written is logged and forgotten.
"""

import asyncio
from typing import Any, Final

from pipeline.errors import KubernetesError
from pipeline.kube.api_client import Api
from pipeline.logs import get_logger
from pipeline.times import format_time

log = get_logger(__name__)

_LONGEST: Final = 1024
_AT_ONCE: Final = 100


class Reporter:
    """Writes Events as `component`."""

    def __init__(self, api: Api, component: str) -> None:
        self._api = api
        self._component = component
        self._tasks: set[asyncio.Task[None]] = set()

    async def warn(self, of: Any, kind: str, reason: str, text: str) -> None:
        """A Warning about the object `of`, of which at least metadata.name is known."""
        await self._write(of, kind, "Warning", reason, text)

    async def tell(self, of: Any, kind: str, reason: str, text: str) -> None:
        """A Normal Event about the object `of`."""
        await self._write(of, kind, "Normal", reason, text)

    def warn_soon(self, of: Any, kind: str, reason: str, text: str) -> None:
        """`warn`, without waiting for it; dropped where many wait already."""
        if len(self._tasks) >= _AT_ONCE:
            return
        task = asyncio.create_task(self.warn(of, kind, reason, text))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, of: Any, kind: str, severity: str, reason: str, text: str) -> None:
        metadata = of["metadata"]
        namespace = metadata.get("namespace") or "default"
        now = format_time(self._api.clock.now())
        involved = {
            "kind": kind,
            "apiVersion": of.get("apiVersion", "v1"),
            "name": metadata["name"],
            **{key: metadata[key] for key in ("namespace", "uid") if metadata.get(key)},
        }
        if kind == "Node" and "uid" not in involved:
            # As the kubelet does: kubectl looks for Events of a node by its name.
            involved["uid"] = metadata["name"]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name'][:200]}.", "namespace": namespace},
            "involvedObject": involved,
            "reason": reason,
            "message": text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…",
            "type": severity,
            "source": {"component": self._component},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._api.create(f"/api/v1/namespaces/{namespace}/events", event)
        except KubernetesError as error:
            log.warning("event is not written", reason=reason, why=error.message)
