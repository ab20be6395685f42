"""Events about outages of usage and of the watcher."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actuators.cluster.cluster_actuator import ClusterActuator
from actuators.cluster.outage_events import REPEAT_SECONDS, OutageEvents
from pipeline.clock import ManualClock
from pipeline.errors import KeyMismatchError
from pipeline.settings import ActuatorSettings, ExtenderSettings, Settings
from pipeline.tasks import cancel_tasks
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.heartbeats import HeartbeatRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import HEARTBEATS, NODE_STATE, NODES
from tests.actuators.contexts import FeatureWorld
from tests.actuators.fake_api import FakeApi
from tests.table.records import node_state

NAMES = ["a", "b", "c"]
SCHEDULER = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {multiPoint: {enabled: [{name: LoadAwareScheduling}]}}
  pluginConfig: [{name: LoadAwareScheduling, args: {nodeMetricExpirationSeconds: 600}}]
"""


class World(FeatureWorld):
    """Nodes `a`, `b`, `c` and a watcher, which report until a test stops them."""

    def __init__(self, **actuator: Any) -> None:
        super().__init__(**actuator)
        self.decider = self.feature = OutageEvents(self.context)
        self.ahead: float | None = 0.0  # the clock of the watcher; None: it reads its first lists

    def report(self, *names: str) -> None:
        for name in names:
            state = node_state(name, age=-self.clock.monotonic())
            self.feature.learn(NODE_STATE, name, state)

    def beat(self) -> None:
        at = None if self.ahead is None else format_time(self.clock.now() + self.ahead)
        record = HeartbeatRecord(source="cluster", at=at)
        self.feature.learn(HEARTBEATS, "cluster", record)

    async def events(self, seconds: float, *alive: str, watcher: bool = True) -> list[str]:
        """The Events of a span in which these nodes, and perhaps the watcher, report."""
        bodies = []
        for _ in range(round(seconds / 10)):
            self.report(*alive)
            if watcher:
                self.beat()
            bodies += [request.body for request in await self.settle(0.2, sweep=True)]
            await self.clock.advance(9.8)
        for body in bodies:
            assert body["involvedObject"]["kind"] == "Lease"
            assert body["metadata"]["namespace"] == "springtide-system"
        return [body["reason"] for body in bodies]


async def test_an_outage_of_usage_has_an_event_at_begin_and_end() -> None:
    world = World()
    assert await world.events(600, *NAMES) == []
    assert await world.events(600, "a", "b") == []
    assert await world.events(600, "c") == ["UsageOutage"]
    assert await world.events(60, *NAMES) == ["UsageRecovered"]


async def test_an_outage_of_usage_still_has_events_after_30_days() -> None:
    world = World()
    assert await world.events(60, *NAMES) == []
    assert await world.events(600) == ["UsageOutage"]
    await world.clock.advance(30 * 86_400.0)
    world.beat()
    assert await world.events(60) == ["UsageOutage"]
    assert await world.events(60, *NAMES) == ["UsageRecovered"]


async def test_usage_is_lost_at_the_age_at_which_extenders_refuse_it(tmp_path: Path) -> None:
    config = tmp_path / "scheduler.yaml"
    config.write_text(SCHEDULER)
    world = World(extender=ExtenderSettings(scheduler_config_file=str(config)))
    assert await world.events(60, *NAMES) == []
    assert await world.events(580) == []
    assert await world.events(40) == ["UsageOutage"]


async def test_a_window_that_was_once_in_the_future_is_forgotten() -> None:
    world = World()
    assert await world.events(60, *NAMES) == []
    ahead = -world.clock.monotonic() - 86_400
    for name in NAMES:
        world.feature.learn(NODE_STATE, name, node_state(name, age=ahead))
    assert await world.events(600, *NAMES) == []
    for name in NAMES:
        world.feature.learn(NODE_STATE, name, node_state(name, age=ahead, generation=0))
    assert await world.events(60) == [], "records of an older generation do not count"


async def test_nodes_without_a_node_record_make_no_outage() -> None:
    world = World()
    world.feature.learn(NODES, "a", NodeRecord(node="a"))
    assert await world.events(60, *NAMES) == []
    assert await world.events(600, "a") == []
    assert await world.events(600) == ["UsageOutage"]


async def test_a_dead_watcher_has_an_event_at_begin_and_end() -> None:
    world = World()
    assert await world.events(60, *NAMES) == []
    assert await world.events(60, *NAMES, watcher=False) == ["WatcherDead"]
    assert await world.events(60, *NAMES) == ["WatcherAlive"]


@pytest.mark.parametrize("ahead", [9000.0, -3600.0])
async def test_the_clock_of_the_watcher_shows_nothing(ahead: float) -> None:
    world = World()
    world.ahead = ahead
    assert await world.events(60, *NAMES) == []
    assert await world.events(60, *NAMES, watcher=False) == ["WatcherDead"]
    assert await world.events(60, *NAMES) == ["WatcherAlive"]


async def test_a_tombstone_does_not_hide_a_dead_watcher() -> None:
    world = World()
    world.beat()
    world.feature.learn(HEARTBEATS, "cluster", None)
    assert await world.events(60, *NAMES, watcher=False) == ["WatcherDead"]


async def test_a_watcher_that_lists_for_long_is_behind() -> None:
    world = World()
    assert await world.events(60, *NAMES) == []
    world.ahead = None
    assert await world.events(60, *NAMES) == ["WatcherBehind"]
    world.ahead = 0.0
    assert await world.events(60, *NAMES) == ["WatcherInStep"]


async def test_a_heartbeat_with_another_key_is_refused() -> None:
    world = World()
    world.beat()
    record = HeartbeatRecord(source="cluster", at=format_time(world.clock.now() + 50))
    with pytest.raises(KeyMismatchError):
        world.feature.learn(HEARTBEATS, "x", record)
    assert await world.events(60, *NAMES, watcher=False) == ["WatcherDead"]


async def test_events_of_long_outages_are_repeated() -> None:
    assert await World().events(600, *NAMES, watcher=False) == [], "another source writes the nodes"
    world = World()
    world.beat()
    reasons = await world.events(2 * REPEAT_SECONDS + 100, *NAMES, watcher=False)
    assert reasons == ["WatcherDead"] * 3


@pytest.mark.parametrize("mode", ["observe", "recommend"])
async def test_mode_observe_writes_no_event(mode: str) -> None:
    world = World(mode=mode)
    world.beat()
    events = await world.events(60, watcher=False)
    assert events == ([] if mode == "observe" else ["WatcherDead"])


async def test_the_actuator_has_this_feature() -> None:
    clock, lease = ManualClock(), cast(Any, SimpleNamespace(is_held=True))
    api = FakeApi(clock)
    settings = Settings(actuator=ActuatorSettings(mode="act"))
    actuator = ClusterActuator(cast(Any, api), settings, clock, lease)
    record = HeartbeatRecord(source="cluster", at=format_time(clock.now()))
    message = SimpleNamespace(partition=0, offset=0, key=b"cluster", value=encode_json(record))
    actuator.learn(HEARTBEATS, cast(Any, message))
    actuator.start()
    writing = asyncio.create_task(actuator.queue.run())
    await clock.advance(600)
    actuator.decide(everything=True)
    await clock.advance(1)
    await cancel_tasks(writing)
    assert [request.body["reason"] for request in api.requests] == ["WatcherDead"]
