"""What the webhook knows of a cluster, without an API server."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NoReturn, cast

import msgspec

from pipeline.clock import ManualClock
from pipeline.errors import NotFoundError
from pipeline.kube.api_client import Api
from pipeline.kube.list_watch import Began, Complete, Page
from pipeline.webhook.cluster_objects import ClusterObjects
from tests.processors.admission.pods import SCHEMA


class EventlessApi:
    """Keeps the Events that are written; it has no objects."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.written: list[dict[str, Any]] = []

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == "/api/v1/namespaces/default/events"
        self.written.append(body)
        return body

    async def get(self, path: str) -> Any:
        assert path == "/openapi/v3/api/v1"
        return json.loads(SCHEMA.read_text())

    async def request(self, *arguments: Any, **options: Any) -> NoReturn:
        raise NotFoundError("there is no such namespace")


class KnownObjects(ClusterObjects):
    """Objects as a list would deliver them."""

    def __init__(self, *profiles: bytes) -> None:
        self.api = EventlessApi()
        super().__init__(cast(Api, self.api))
        self.set_profiles(*profiles)
        self._list(self._classes, {"koord-batch": {"value": 5000}, "koord-mid": {"value": 7000}})
        self._list(self._namespaces, {"default": {}})

    def set_profiles(self, *profiles: bytes) -> None:
        """Let the profiles be these."""
        for event in (Began(), Page([msgspec.Raw(text) for text in profiles]), Complete()):
            self._profiles.deliver(event)
        self._count_profiles()

    @staticmethod
    def _list(kind: Any, objects: Mapping[str, Mapping[str, Any]]) -> None:
        encoded = [
            msgspec.Raw(json.dumps({"metadata": {"name": name}, **fields}).encode())
            for name, fields in objects.items()
        ]
        for event in (Began(), Page(encoded), Complete()):
            kind.deliver(event)

    async def run(self) -> None:
        await self._read_schema()
        await asyncio.Event().wait()
