"""The valid parts of a policy are in force even if the Event about the others is not sent, and also
after the ConfigMap was deleted."""

import asyncio
import json
from typing import Any

import msgspec

from pipeline.clock import SystemClock
from pipeline.settings import Settings
from pipeline.sources.cluster.watcher import Watcher
from pipeline.sources.policy_file import PROBLEMS
from tests.metric_values import value_of


class SilentApi:
    """A fake API server that never answers writes."""

    clock = SystemClock()

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def create(self, path: str, body: Any) -> Any:
        self.paths.append(path)
        await asyncio.Event().wait()


async def test_valid_part_of_policy_waits_for_no_event_and_outlives_the_config_map() -> None:
    api = SilentApi()
    watcher = Watcher(api, Settings())  # type: ignore[arg-type]
    bad = {"name": "x", "nodeSelector": {"matchLabels": {}}, "midUnallocatedPercent": 101}
    config = {
        "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
        "data": {"colocation-config": json.dumps({"enable": True, "nodeConfigs": [bad]})},
    }
    async with asyncio.timeout(60):
        await watcher.apply_policy(msgspec.Raw(json.dumps(config).encode()))
    assert watcher.nodes.policies.is_usable
    in_force = watcher.nodes.policies
    await watcher.apply_policy(None)
    assert watcher.nodes.policies == in_force
    assert value_of(PROBLEMS.labels("true")) == 1
    await asyncio.sleep(0)
    assert api.paths == ["/api/v1/namespaces/koordinator-system/events"]
