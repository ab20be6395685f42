"""Write Events, which `kubectl describe` shows with an object.

Nothing depends on Events: one that cannot be written is logged and dropped.
"""

import asyncio
from typing import Any

from pipeline.errors import KubernetesError
from pipeline.kube import limits
from pipeline.kube.api_client import Api
from pipeline.logs import get_logger
from pipeline.times import format_time

log = get_logger(__name__)


class EventReporter:
    """Writes Events as `component`."""

    def __init__(self, api: Api, component: str) -> None:
        self._api = api
        self._component = component
        self._tasks: set[asyncio.Task[None]] = set()

    def warn_soon(self, about: Any, kind: str, reason: str, text: str) -> None:
        """Write a Warning in the background; dropped while too many Events are under way."""
        if len(self._tasks) >= limits.EVENTS_UNDER_WAY:
            return
        task = asyncio.create_task(self.write(about, kind, reason, text))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def write(
        self, about: Any, kind: str, reason: str, text: str, *, severity: str = "Warning"
    ) -> None:
        """Write an Event about an object, which has at least metadata.name."""
        metadata = about["metadata"]
        namespace = metadata.get("namespace") or "default"
        now, longest = format_time(self._api.clock.now()), limits.EVENT_MESSAGE_CHARACTERS
        involved = {
            "kind": kind,
            "apiVersion": about.get("apiVersion", "v1"),
            "name": metadata["name"],
            **{key: metadata[key] for key in ("namespace", "uid") if metadata.get(key)},
        }
        if kind == "Node" and "uid" not in involved:
            # As the kubelet does: kubectl selects Events of a node by this UID.
            involved["uid"] = metadata["name"]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name'][:200]}.", "namespace": namespace},
            "involvedObject": involved,
            "reason": reason,
            "message": text if len(text) <= longest else text[: longest - 1] + "…",
            "type": severity,
            "source": {"component": self._component},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._api.create(f"/api/v1/namespaces/{namespace}/events", event)
        except KubernetesError as error:
            log.warning("event not written", reason=reason, why=error.message)
