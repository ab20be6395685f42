"""An invalid record costs the actuator only that record."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.cluster.cluster_actuator import ClusterActuator, deliver
from actuators.cluster.feature import NODES_WATCH
from pipeline.clock import ManualClock
from pipeline.kafka.refused_records import REFUSED
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.kube.list_watch import Began, Changed, Complete, Page
from pipeline.processors.policy.policy_in_force import load_policies, with_policy
from pipeline.settings import ActuatorSettings, Settings
from pipeline.times import format_time
from pipeline.topics.codec import Record, encode_json
from pipeline.topics.heartbeats import HeartbeatRecord
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.node_state import AggregatedUsage, NodeStateRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.registry import (
    HEARTBEATS,
    NODE_STATE,
    NODES,
    RESOURCES,
    WAKE_UPS,
    WINDOWS,
    Topic,
)
from pipeline.topics.resource_amounts import Resources, Usage
from pipeline.topics.wake_ups import WakeUpRecord
from pipeline.topics.windows import encode_window
from tests.actuators.fake_api import FakeApi
from tests.metric_values import sum_of
from tests.processors.joined import END_MS, NODE_ROW, VIEWS, header, joined, rows

NAME: Final = "node-1"
END: Final = format_time(END_MS / 1000)
_AMOUNTS: Final = Resources(cpu_millicores=1000, memory_bytes=2**30)
_RESULT: Final[dict[str, Any]] = {"node": NAME, "as_of": END, "generation": 1, "offset": 5}
_POLICY: Final = load_policies(
    {
        "colocation-config": '{"enable":true,"metricReportIntervalSeconds":30}',
        "resource-threshold-config": '{"clusterStrategy":{"enable":true}}',
    }
)[0]
NODE: Final = with_policy(NodeRecord(node=NAME, uid="uid"), _POLICY)[0]
OFFERED: Final = NodeResourcesRecord(
    **_RESULT, epoch=1, strategy=Overcommit(), predictor="p90", window_seconds=30.0,
    mid=_AMOUNTS, mid_lower_bound=_AMOUNTS, batch=_AMOUNTS,
)  # fmt: skip
STATE: Final = NodeStateRecord(
    **_RESULT, epoch=1, window_seconds=30.0, coverage=1.0,
    allocatable=Usage(cpu_cores=16.0, memory_bytes=1e11),
    usage=Usage(cpu_cores=15.0, memory_bytes=1e9), aggregated={"5m": AggregatedUsage()},
    prod_peak=Usage(cpu_cores=1.0, memory_bytes=1e9),
)  # fmt: skip
WAKE_UP: Final = WakeUpRecord(node=NAME, at=END)
HEARTBEAT: Final = HeartbeatRecord(source="cluster", at=END)
GOOD: Final[dict[str, tuple[Topic, Record]]] = {
    "nodes": (NODES, NODE), "resources": (RESOURCES, OFFERED), "state": (NODE_STATE, STATE),
    "wake-ups": (WAKE_UPS, WAKE_UP), "heartbeats": (HEARTBEATS, HEARTBEAT),
}  # fmt: skip
INVALID: Final[tuple[Any, ...]] = (
        None, True, "", "yesterday", "2024-02-30T00:00:00Z", "0000-01-01T00:00:00Z", "NaN", "5m",
        -1, 0, 1, 2**53, 2**63 - 1, 2**63, 2**70, -(2**70), 10**400, 0.5, -1e308, 1e308, [], [""],
        {}, {"": ""}, {"enable": True}, {"durations": ["5m", "x"]}, [[[]]],
)  # fmt: skip


class World:
    """An actuator in mode act with every feature on, and one Node on a fake API server."""

    def __init__(self) -> None:
        self.clock = ManualClock(now=END_MS / 1000 + 1.0)
        self.api = FakeApi(self.clock)
        lease = cast(Lease, SimpleNamespace(is_held=True))
        settings = Settings(
            actuator=ActuatorSettings(
                mode="act", node_metrics=True, node_slos=True, writes_per_second=100.0
            )
        )
        self.actuator = ClusterActuator(cast(Api, self.api), settings, self.clock, lease)
        self.api.put(NAME, metadata={"uid": "uid"}, status={})
        for follower in self.actuator.watches[NODES_WATCH]:
            follower.observed(msgspec.json.encode(self.api.objects[NAME]))
        self.actuator.start()

    def take(self, topic: Topic, value: bytes, key: bytes | None = NAME.encode()) -> None:
        if topic is HEARTBEATS and key == NAME.encode():
            key = HEARTBEAT.source.encode()
        record = SimpleNamespace(
            topic=topic.name, partition=0, offset=0, key=key, value=value, headers=()
        )
        self.actuator.learn(topic, cast(Any, record))

    def take_good(self, *others_than: Topic) -> None:
        self.take(WINDOWS, encode_window(joined(NODE_ROW)))
        for topic, record in GOOD.values():
            if topic not in others_than:
                self.take(topic, encode_json(record))

    async def work(self) -> None:
        """Decide and write for a while, and again when everything is stale."""
        writing = asyncio.create_task(self.actuator.queue.run())
        for seconds in (0.0, 0.0, 400.0, 1000.0):
            self.clock.jump(seconds)
            self.actuator.decide(everything=True)
            await self.clock.advance(1.0)
        if writing.done():
            writing.result()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


def live(topic: Topic, *values: bytes) -> World:
    """An actuator that reads these values of a topic, and valid records of the others."""

    async def run() -> World:
        world = World()
        world.take_good(topic)
        for value in values:
            world.take(topic, value)
        await world.work()
        return world

    return asyncio.run(run())


def bad(topic: Topic) -> float:
    return sum_of(REFUSED, source=topic.name)


def paths_of(document: Any, path: Sequence[Any] = ()) -> Iterator[Sequence[Any]]:
    """The paths of all values in a document."""
    yield path
    if isinstance(document, dict | list):
        inner = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in inner:
            yield from paths_of(value, (*path, key))


def put(document: Any, path: Sequence[Any], value: Any) -> Any:
    """The document with `value` at this path."""
    if not path:
        return value
    changed = dict(document) if isinstance(document, dict) else list(document)
    changed[path[0]] = put(changed[path[0]], path[1:], value)
    return changed


@st.composite
def invalid_records(draw: st.DrawFn) -> tuple[Topic, bytes]:
    """A record of a topic with up to three invalid values, anywhere."""
    topic, good = GOOD[draw(st.sampled_from(sorted(GOOD)))]
    document = msgspec.json.decode(msgspec.json.encode(good))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(paths_of(document))))
        document = put(document, path, draw(st.sampled_from(INVALID)))
    return topic, encoded(document)


def encoded(document: Any) -> bytes:
    """JSON with numbers of any length, which msgspec reads but does not write."""
    return json.dumps(document).encode()


@pytest.mark.parametrize("name", sorted(GOOD))
def test_no_value_in_a_record_stops_the_actuator(name: str) -> None:
    topic, good = GOOD[name]
    document = msgspec.json.decode(msgspec.json.encode(good))

    async def run(path: Sequence[Any]) -> None:
        world = World()
        world.take_good(topic)
        for value in INVALID:
            world.take(topic, encoded(put(document, path, value)))
            world.actuator.decide(everything=True)
        await world.work()

    for path in paths_of(document):
        asyncio.run(run(path))


@given(invalid_records())
def test_no_record_stops_the_actuator(invalid: tuple[Topic, bytes]) -> None:
    topic, value = invalid
    live(topic, value)
    live(topic, encode_json(next(good for other, good in GOOD.values() if other is topic)), value)


@given(st.lists(st.tuples(rows(), VIEWS), min_size=1, max_size=3))
def test_no_window_stops_the_actuator(samples: list[tuple[Any, Any]]) -> None:
    live(
        WINDOWS,
        *(
            encode_window(joined(*sample, view=view, of=header(end=end)))
            for end, (sample, view) in enumerate(samples)
        ),
    )


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("resources", ["as_of"], "yesterday"),
        ("resources", ["as_of"], ""),
        ("state", ["as_of"], "2024-02-30T00:00:00Z"),
        ("resources", ["mid", "cpu_millicores"], 2**70),
        ("resources", ["batch", "memory_bytes"], 10**400),
        ("resources", ["mid_lower_bound", "memory_bytes"], 2**53 + 1),
        ("resources", ["mid", "cpu_millicores"], -5),
        ("nodes", ["colocation", "metricReportIntervalSeconds"], "often"),
        ("nodes", ["colocation", "enable"], "perhaps"),
        ("nodes", ["slo", "resourceUsedThresholdWithBE"], []),
        ("wake-ups", ["at"], "soon"),
        ("heartbeats", ["at"], "soon"),
    ],
)
def test_an_invalid_record_is_counted_and_the_last_valid_one_stays(
    name: str, path: list[str], value: Any
) -> None:
    topic, good = GOOD[name]
    invalid = encoded(put(msgspec.json.decode(msgspec.json.encode(good)), path, value))
    before = bad(topic)
    world = live(topic, encode_json(good), invalid)
    assert bad(topic) == before + 1
    offered = [r.body for r in world.api.requests if r.path == f"/api/v1/nodes/{NAME}/status"]
    assert offered[0]["status"]["allocatable"]["kubernetes.io/mid-cpu"] == "1000"


@pytest.mark.parametrize(
    "key", [None, b"", b"../namespaces/n/pods/p", b"n?x=1", b"\xff", b"N" * 999]
)
async def test_a_key_that_names_no_node_is_counted(key: bytes | None) -> None:
    world, before = World(), bad(NODE_STATE)
    world.take(NODE_STATE, encode_json(STATE), key)
    assert bad(NODE_STATE) == before + 1
    await world.work()
    assert world.api.requests == []


@pytest.mark.parametrize(
    "encoded",
    [
        b"", b"null", b"[]", b"\xff", b"{}", b'{"metadata":null}', b'{"metadata":{"name":7}}',
        b'{"metadata":{"name":"\xff"}}',
        b'{"metadata":{"name":"n","resourceVersion":7,"labels":7}}',
        b'{"metadata":{"name":"n"},"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"metadata":{"name":"n","creationTimestamp":"soon","uid":7,"labels":7}}',
    ],
)  # fmt: skip
async def test_an_invalid_object_of_the_api_server_is_counted(encoded: bytes) -> None:
    world, before = World(), sum_of(REFUSED, source="objects")
    invalid, valid = map(msgspec.Raw, (encoded, msgspec.json.encode(world.api.objects[NAME])))
    followers = [each for watched in world.actuator.watches.values() for each in watched]
    for follower in followers:
        for event in Began(), Page([invalid, valid]), Complete(), Changed(invalid, False):
            deliver(follower, event)
    assert sum_of(REFUSED, source="objects") == before + 2 * len(followers)
    world.take_good()
    await world.work()
    assert any(r.path == f"/api/v1/nodes/{NAME}/status" for r in world.api.requests)


def test_valid_records_cause_every_kind_of_write() -> None:
    """Otherwise the tests above would prove nothing."""
    world = live(NODES, encode_json(NODE))
    group = "/apis/slo.koordinator.sh/v1alpha1"
    paths = {(r.method, r.path.removeprefix(group)) for r in world.api.requests}
    assert {
        ("PATCH", f"/api/v1/nodes/{NAME}/status"), ("POST", "/nodemetrics"),
        ("POST", "/nodeslos"), ("PATCH", f"/nodemetrics/{NAME}/status"),
    } <= paths  # fmt: skip
