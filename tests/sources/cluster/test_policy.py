"""The valid parts of a policy are in force even if the Event about the others is not sent, and also
after the ConfigMap was deleted."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import msgspec

from pipeline.clock import SystemClock
from pipeline.settings import Settings
from pipeline.sources.cluster.watcher import Watcher
from pipeline.sources.compacted_writer import Entry
from pipeline.sources.policy_file import PROBLEMS
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord
from tests.metric_values import value_of


class SilentApi:
    """A fake API server that never answers writes."""

    clock = SystemClock()

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.bodies: list[Any] = []

    async def create(self, path: str, body: Any) -> Any:
        self.paths.append(path)
        self.bodies.append(body)
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


def descheduler_config(data: dict[str, str]) -> msgspec.Raw:
    metadata = {"name": "koord-descheduler-config", "namespace": "koordinator-system"}
    return msgspec.Raw(msgspec.json.encode({"metadata": metadata, "data": data}))


def thresholds(cpu: float, **pool: Any) -> dict[str, str]:
    pools = [{"name": "gold", "nodeSelector": {"matchLabels": {"pool": "gold"}}, **pool}]
    args = {"highThresholds": {"cpu": cpu}, "nodePools": pools}
    tree = {
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
        "profiles": [{"pluginConfig": [{"name": "LowNodeLoad", "args": args}]}],
    }  # fmt: skip
    return {"koord-descheduler-config": json.dumps(tree)}


def manifest(name: str, **labels: str) -> msgspec.Raw:
    node = {"metadata": {"name": name, "uid": name, "labels": labels}, "status": {}}
    return msgspec.Raw(msgspec.json.encode(node))


class PolicyWatcher(Watcher):
    """A watcher of two nodes whose records are read from its queue."""

    def __init__(self, api: SilentApi) -> None:
        super().__init__(api, Settings())  # type: ignore[arg-type]
        self.put("a")
        self.put("b", pool="gold")

    def put(self, name: str, **labels: str) -> dict[str, float | None]:
        return self._high(self.nodes.put(manifest(name, **labels)))

    async def written(self, data: dict[str, str] | None) -> dict[str, float | None]:
        """Apply a ConfigMap; return the cpu threshold in each record that is written."""
        async with asyncio.timeout(5):
            await self.apply_descheduling(None if data is None else descheduler_config(data))
        entries = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        return self._high(entry for entry in entries if isinstance(entry, Entry))

    def _high(self, entries: Iterable[Entry]) -> dict[str, float | None]:
        records = [decode_json(NodeRecord, entry.value or b"") for entry in entries]
        return {
            r.node: None if r.hot_nodes is None else r.hot_nodes.high_percent["cpu"]
            for r in records
        }


async def test_thresholds_of_hot_nodes_follow_their_config_map() -> None:
    watcher = PolicyWatcher(SilentApi())
    assert await watcher.written(None) == {}
    assert await watcher.written(thresholds(75)) == {"a": 75, "b": 75}
    assert await watcher.written(thresholds(75)) == {}
    assert await watcher.written(thresholds(80, highThresholds={"cpu": 90})) == {"a": 80, "b": 90}
    assert watcher.put("b") == {"b": 80}
    assert watcher.put("b", pool="gold") == {"b": 90}
    # Deleted or unreadable, it changes nothing; a new node gets the last thresholds, too.
    assert await watcher.written(None) == {}
    assert value_of(PROBLEMS.labels("true")) == 1
    assert await watcher.written({"koord-descheduler-config": "profiles: ["}) == {}
    assert value_of(PROBLEMS.labels("false")) == 1
    assert watcher.put("c", pool="gold") == {"c": 90}
    # An invalid pool does not stop the others.
    assert await watcher.written(thresholds(70, lowThresholds={"cpu": 71})) == {"a": 70}
    assert await watcher.written({}) == {"a": None, "b": None, "c": None}
    assert value_of(PROBLEMS.labels("false")) == 0


async def test_thresholds_of_hot_nodes_outlive_a_restart_with_an_invalid_config_map() -> None:
    watcher = PolicyWatcher(SilentApi())
    await watcher.apply_descheduling(descheduler_config(thresholds(75)))
    written = [watcher._queue.get_nowait() for _ in range(watcher._queue.qsize())]
    restarted = Watcher(SilentApi(), Settings())  # type: ignore[arg-type]
    for entry in written:
        assert isinstance(entry, Entry)
        restarted.nodes.restore(entry.key, entry.value)
    await restarted.apply_descheduling(descheduler_config({"koord-descheduler-config": "- a"}))
    assert list(restarted.nodes.put(manifest("a"))) == []
    assert list(restarted.nodes.put(manifest("b", pool="gold"))) == []


async def test_problems_of_both_config_maps_are_counted_and_reported_each_to_its_own() -> None:
    api = SilentApi()
    watcher = Watcher(api, Settings())  # type: ignore[arg-type]
    policy = {"metadata": {"name": "slo-controller-config"}, "data": {"colocation-config": "["}}
    await watcher.apply_policy(msgspec.Raw(msgspec.json.encode(policy)))
    await watcher.apply_descheduling(descheduler_config(thresholds(-1)))
    await watcher.apply_descheduling(descheduler_config(thresholds(-1)))
    await asyncio.sleep(0)
    # The policy, the threshold of the default pool, and the pool that takes it.
    assert value_of(PROBLEMS.labels("false")) == 3
    names = [body["involvedObject"]["name"] for body in api.bodies]
    assert names == ["slo-controller-config", "koord-descheduler-config"]
