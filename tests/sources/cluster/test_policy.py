"""A policy with a mistake is in force where it is good, whatever becomes of the Event about it."""

import asyncio
import json
from typing import Any

import msgspec

from pipeline.clock import SystemClock
from pipeline.settings import Settings
from pipeline.sources.cluster.watcher import Watcher


class Mute:
    """An API server, named a fake, that never answers who writes."""

    clock = SystemClock()

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def create(self, path: str, body: Any) -> Any:
        self.asked.append(path)
        await asyncio.Event().wait()


async def test_what_is_good_in_it_does_not_wait_for_the_event() -> None:
    api = Mute()
    watcher = Watcher(api, Settings())  # type: ignore[arg-type]
    bad = {"name": "x", "nodeSelector": {"matchLabels": {}}, "midUnallocatedPercent": 101}
    config = {
        "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
        "data": {"colocation-config": json.dumps({"enable": True, "nodeConfigs": [bad]})},
    }
    async with asyncio.timeout(5):
        await watcher._apply_policy(msgspec.Raw(json.dumps(config).encode()))
    assert watcher._nodes.policies.is_usable
    await asyncio.sleep(0)
    assert api.asked == ["/api/v1/namespaces/koordinator-system/events"]
