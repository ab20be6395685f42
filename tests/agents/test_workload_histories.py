"""Histories of workloads: from checkpoints to a topic, into windows, to peaks of other nodes."""

from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.agents import fleet_topic
from pipeline.agents.ownership import Ownership
from pipeline.agents.recommendation_agent import Places, publish_from_checkpoints
from pipeline.kafka.partition_log import LogRecord
from pipeline.processors.calibrated.workload_history import HourlyPeaks, stated
from pipeline.processors.join.joined_histories import STEP_MS
from pipeline.processors.model import state_codec
from pipeline.topics.checkpoints import NodeCheckpoint
from pipeline.topics.codec import decode_json, decode_pack, encode_json, encode_pack
from pipeline.topics.nodes import NodeRecord, NodeStrategy
from pipeline.topics.pods import Owner as PodOwner
from pipeline.topics.pods import PodRecord, pod_key
from pipeline.topics.predictions import PredictionRecord
from pipeline.topics.recommendations import RecommendationRecord
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import MOST_HISTORIES, Window, decode_window
from pipeline.topics.workload_histories import (
    HOUR_MS,
    LONGEST_MS,
    MOST_HOURS,
    WorkloadHistoryRecord,
    history_key,
)
from pipeline.topics.workloads import Workload
from tests.agents.fakes import APPENDED_MS, MemoryBroker
from tests.agents.owners import Owner, content
from tests.agents.test_join_agent import NODE, Fixture, put
from tests.agents.test_pool_outcomes import CONFIG, Reader
from tests.metric_values import value_of

FLEET = "t.fleet"
WEB = Workload("shop", "Deployment", "web")
NEWEST_MS = APPENDED_MS // HOUR_MS * HOUR_MS
"""The end of the last hour before samples are appended."""


def history(
    peak: float = 100.0, *, workload: Workload = WEB, at_ms: int = NEWEST_MS, hours: int = 48
) -> WorkloadHistoryRecord:
    hourly = stated(HourlyPeaks(at_ms // HOUR_MS, np.full(hours, peak)), 1e-3)
    return WorkloadHistoryRecord(**workload._asdict(), cpu=hourly)


def written(record: WorkloadHistoryRecord, offset: int = 0) -> LogRecord:
    return put(history_key(record.workload), encode_json(record), offset)


def changed(**fields: Any) -> bytes:
    """A record with these fields of its cpu."""
    plain = msgspec.to_builtins(history())
    plain["cpu"] |= fields
    return msgspec.json.encode(plain)


# -- the topic


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (put(history_key(WEB), b"{}"), "invalid"),
        (put(history_key(WEB), b"\xff"), "undecodable"),
        (put(b"workloads/\xff", encode_json(history())), "key_mismatch"),
        (put(b"workloads/shop/web", encode_json(history())), "key_mismatch"),
        (put(history_key(WEB._replace(name="api")), encode_json(history())), "key_mismatch"),
        (written(history(at_ms=NEWEST_MS + 2 * HOUR_MS)), "invalid"),
        (written(history(workload=WEB._replace(name=254 * "w"))), "invalid"),
        (put(history_key(WEB), changed(hours="")), "invalid"),
        (put(history_key(WEB), changed(hours="AAAA" * MOST_HOURS)), "invalid"),
        (put(history_key(WEB), changed(hours="!")), "invalid"),
        (put(history_key(WEB), changed(highest=-1.0)), "invalid"),
        (put(history_key(WEB), changed(highest=1e300)), "invalid"),
        (put(history_key(WEB), changed(until="2023-11-14T22:13:20Z")), "invalid"),
        (put(history_key(WEB), changed(until="yesterday")), "invalid"),
        (put(history_key(WEB), encode_json(history()).replace(b'"version":1', b'"version":2')),
         "unsupported_version"),
    ],
)  # fmt: skip
async def test_invalid_histories_are_refused_and_change_nothing(
    bad: LogRecord, reason: str
) -> None:
    reader = Reader()
    await reader.topic.apply(written(history()))
    await reader.topic.apply(bad._replace(offset=1))
    assert reader.topic.histories == {WEB: history()}
    assert (reader.refused, reader.topic.next_offset) == ([reason], 2)


async def test_the_newer_history_counts_until_a_tombstone() -> None:
    reader, before = Reader(), value_of(fleet_topic.OLDER)
    await reader.topic.apply(written(history(1.0)))
    await reader.topic.apply(written(history(2.0, at_ms=NEWEST_MS - HOUR_MS)))
    assert reader.topic.histories == {WEB: history(1.0)}
    assert value_of(fleet_topic.OLDER) - before == 1
    await reader.topic.apply(put(history_key(WEB), None, 2))
    assert (reader.topic.histories, reader.refused) == ({}, [])


async def test_a_limited_number_of_histories_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_topic, "MAX_HISTORIES", 3)
    reader, workloads = Reader(), [WEB._replace(name=f"web-{number}") for number in range(5)]
    for workload in workloads:
        await reader.topic.apply(written(history(workload=workload)))
    assert [*reader.topic.histories] == workloads[2:]


# -- the join


def sample(
    offset: int, end_ms: int, pods: dict[str, float], node: str = NODE, length_ms: int = STEP_MS
) -> LogRecord:
    """A window with the cores of these pods."""
    header = SampleHeader(
        node=node, machine_id="m", boot_id="b", epoch=1, sequence=offset,
        window_start_ms=end_ms - length_ms, window_end_ms=end_ms,
    )  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"kind": "node", "id": "", "coverage": 1.0, "cpu_cores_avg": sum(pods.values())}
    ]
    rows += [
        {"kind": "pod", "id": uid, "coverage": 1.0, "cpu_cores_avg": cores,
         "memory_bytes_avg": 2.0**28}
        for uid, cores in pods.items()
    ]  # fmt: skip
    return put(node.encode(), encode_samples(SampleBatch(header, rows)), offset)


def owned_by(name: str, kind: str = "Deployment") -> dict[str, Any]:
    if kind == "Deployment":
        labels = {"pod-template-hash": "5d4"}
        return {"owner": PodOwner(kind="ReplicaSet", name=f"{name}-5d4"), "labels": labels}
    return {"owner": PodOwner(kind=kind, name=name)}


class Join(Fixture):
    """A join that knows histories of some workloads."""

    def know(self, *histories: WorkloadHistoryRecord) -> None:
        self.cluster_state.workload_histories = {own.workload: own for own in histories}

    def has(self) -> list[list[str]]:
        """The names of the workloads of each window's histories."""
        return [[own.name for own in window.node.workload_histories] for window in self.windows]


def join_of(*names: str) -> Join:
    """A join of a node with pods of Deployments, each named after its Deployment."""
    join = Join()
    join.add_node(NODE)
    for name in names:
        join.add_pod(name, namespace="shop", **owned_by(name))
    join.know(*(history(workload=WEB._replace(name=name)) for name in names))
    return join


async def test_the_window_in_which_a_workload_comes_has_its_history() -> None:
    join = join_of("web", "api")
    both = {"web": 0.1, "api": 0.1}
    minutes = [sample(0, NEWEST_MS, {"web": 0.1})]
    minutes += [
        sample(number, NEWEST_MS + 60_000 * number, both, length_ms=60_000)
        for number in range(1, 11)
    ]
    await join.cursor.process(minutes)
    assert join.has() == [["web"], [], [], [], [], ["api"], [], [], [], [], []]
    handed = [record.window and record.window.node for record in join.handed_over]
    assert handed == [window.node for window in join.windows]
    assert b"workload_histories" not in (join.broker.records("t.windows")[1].value or b"")


async def test_the_window_after_a_lost_one_has_the_history() -> None:
    """Models learn the five minutes that ended with it: then the pod is no stranger any more."""
    join = join_of("web", "api")
    both = {"web": 0.1, "api": 0.1}
    minutes = [sample(0, NEWEST_MS, {"web": 0.1})]
    minutes += [
        sample(number, NEWEST_MS + 60_000 * number, both, length_ms=60_000)
        for number in (1, 2, 3, 4, 6, 7, 8, 9, 10)
    ]
    await join.cursor.process(minutes)
    assert join.has() == [["web"], [], [], [], [], ["api"], [], [], [], []]


async def test_one_more_pod_of_a_workload_that_runs_brings_no_history() -> None:
    join = join_of("web")
    join.add_pod("web-2", namespace="shop", **owned_by("web"))
    await join.cursor.process([
        sample(0, NEWEST_MS - 4 * STEP_MS, {"web": 0.1}),
        sample(1, NEWEST_MS - 3 * STEP_MS, {"web": 0.1, "web-2": 0.1}),
        sample(2, NEWEST_MS - 2 * STEP_MS, {"web-2": 0.1}),
        sample(3, NEWEST_MS - STEP_MS, {}),
        sample(4, NEWEST_MS, {"web": 0.1}),
    ])  # fmt: skip
    assert join.has() == [["web"], [], [], [], ["web"]]


async def test_only_pods_of_prod_with_a_workload_bring_a_history() -> None:
    join = Join()
    join.add_node(NODE)
    join.add_pod("batch", namespace="shop", **owned_by("batch") | {"pod_class": "batch"})
    join.add_pod("bare", namespace="shop")
    join.add_pod("static", namespace="shop", **owned_by(NODE, "Node"))
    names = ("batch", "bare", "static", NODE)
    join.know(*(history(workload=WEB._replace(name=name)) for name in names))
    await join.cursor.process([sample(0, NEWEST_MS, dict.fromkeys((*names[:3], "lost"), 0.1))])
    assert join.has() == [[]]


async def test_a_pod_whose_record_is_late_brings_its_history_when_it_is_known() -> None:
    join = join_of()
    join.know(history())
    await join.cursor.process([sample(0, NEWEST_MS, {"web": 0.1})])
    join.add_pod("web", namespace="shop", **owned_by("web"))
    await join.cursor.process([sample(1, NEWEST_MS + STEP_MS, {"web": 0.1})])
    assert join.has() == [[], ["web"]]


@pytest.mark.parametrize(("hours", "is_joined"), [(168, True), (169, False)])
async def test_histories_of_long_ago_are_left_out(hours: int, is_joined: bool) -> None:
    assert LONGEST_MS == 168 * HOUR_MS
    join = join_of("web")
    join.know(history(at_ms=NEWEST_MS - hours * HOUR_MS))
    await join.cursor.process([sample(0, NEWEST_MS, {"web": 0.1})])
    assert join.has() == [["web"] if is_joined else []]


async def test_a_window_has_a_bounded_number_of_histories() -> None:
    names = [f"web-{number:03}" for number in range(MOST_HISTORIES + 10)]
    join = join_of(*names)
    await join.cursor.process([sample(0, NEWEST_MS, dict.fromkeys(names, 0.1))])
    assert join.has() == [names[:MOST_HISTORIES]]


# -- from node to node


def put_cluster(broker: MemoryBroker) -> None:
    """Two nodes, and a Deployment whose pod `old` runs on the first and `new` on the second."""
    for node, uid in (("a", "old"), ("b", "new")):
        record = NodeRecord(
            node=node, allocatable=Resources(cpu_millicores=10_000),
            strategy=NodeStrategy(predictor="calibrated"),
        )  # fmt: skip
        broker.put("t.nodes", 0, node.encode(), encode_json(record))
        pod = PodRecord(
            node=node, uid=uid, namespace="shop", name=uid, pod_class="prod", cgroup_uid=uid,
            requests=Resources(cpu_millicores=4000, memory_bytes=2**30), phase="Running",
            **owned_by("web"),
        )  # fmt: skip
        broker.put("t.pods", 0, pod_key(node, uid), encode_json(pod))


async def run(broker: MemoryBroker, owner: Owner, node: str, uid: str, hours: range) -> None:
    """Join and learn these hours, counted from `NEWEST_MS`, of a pod that uses up to 0.6 cores."""
    for number in range(12 * hours.start + 1, 12 * hours.stop + 1):
        record = sample(number + 1000, NEWEST_MS + number * STEP_MS,
                        {uid: 0.5 + number % 7 / 70}, node)  # fmt: skip
        broker.put("t.samples", 0, record.key, record.value)
    await owner.shard.join.process(broker.records("t.samples")[owner.shard.join.next_offset :])
    await owner.apply()


async def publish(broker: MemoryBroker, owner: Owner, *, owned: bool = True) -> None:
    ownership = Ownership(0, 0)
    ownership.owned = owned
    places = Places("t", 1, broker.open_reader)
    known = owner.recovery.fleet.histories
    await publish_from_checkpoints(places, owner.output, ownership, known)
    follow = owner.recovery.fleet
    for record in broker.records(FLEET)[follow.next_offset :]:
        await follow.apply(record)


def share_of(broker: MemoryBroker) -> float:
    """The share of the requests in the newest prediction of node b."""
    values = [own.value or b"" for own in broker.records("t.predictions") if own.key == b"b"]
    newest = decode_json(PredictionRecord, values[-1])
    share = newest.classes["prod"].terms["calibrated"]["share"].cpu
    assert share is not None
    return share


def joined(broker: MemoryBroker) -> list[Window]:
    windows = [decode_window(each.value or b"") for each in broker.records("t.windows")]
    return [window for window in windows if window.node.workload_histories]


async def moved(*, published: bool = True) -> tuple[MemoryBroker, Owner]:
    """A pod runs on node a for half a day; then one of its Deployment comes to node b."""
    broker = MemoryBroker()
    put_cluster(broker)
    owner = await Owner(broker, "x", CONFIG).load()
    await run(broker, owner, "a", "old", range(-13, -1))
    await owner.round()
    if published:
        await publish(broker, owner)
    await run(broker, owner, "b", "new", range(-1, 0))
    return broker, owner


async def test_a_pod_on_another_node_is_no_stranger() -> None:
    broker, owner = await moved()
    (record,) = broker.records(FLEET)
    assert record.key == b"workloads/shop/Deployment/web"
    own = decode_json(WorkloadHistoryRecord, record.value or b"")
    assert own.cpu is not None
    assert own.memory is not None
    assert (len(own.cpu.hours), own.at_ms) == (12, NEWEST_MS - HOUR_MS)
    assert own.cpu.highest == pytest.approx(0.5 + 6 / 70, rel=1e-6)
    (window,) = joined(broker)
    assert (window.header.node, window.node.workload_histories) == ("b", (own,))
    stranger = await moved(published=False)
    assert joined(stranger[0]) == []
    assert share_of(broker) < 0.6 * share_of(stranger[0])
    assert owner.refused == []


async def test_peaks_follow_from_windows_whatever_the_topic_says_at_a_replay() -> None:
    broker, owner = await moved()
    before, expected = share_of(broker), content(owner.model)
    broker.recreate(FLEET)
    broker.put(FLEET, 0, history_key(WEB), encode_json(history(4000.0)))
    replayed = await Owner(broker, "y", CONFIG).load()
    assert content(replayed.model) == expected
    assert share_of(broker) == before
    await replayed.round()
    restored = await Owner(broker, "z", CONFIG).load()
    assert content(restored.model) == expected
    # A worker that starts puts the histories of all its workloads into a window. Pods that are
    # known do not change.
    await run(broker, restored, "b", "new", range(1))
    *_, window = joined(broker)
    assert window.node.workload_histories == (history(4000.0),)
    assert share_of(broker) == pytest.approx(before, rel=0.2)


async def test_two_workers_publish_the_same_and_none_publishes_what_it_lost() -> None:
    broker, owner = await moved(published=False)
    await publish(broker, owner, owned=False)
    assert broker.records(FLEET) == []
    second = await Owner(broker, "y", CONFIG).load()
    await publish(broker, owner)
    await publish(broker, second)  # it has not read the record of the first
    first, again = broker.records(FLEET)
    assert (first.key, first.value) == (again.key, again.value)
    await publish(broker, owner)
    assert len(broker.records(FLEET)) == 2


async def test_damaged_pools_of_a_node_cost_only_its_histories() -> None:
    broker, owner = await moved(published=False)
    (key,) = (each for each in broker.live("t.checkpoints") if each.startswith(b"a@"))
    whole = decode_pack(NodeCheckpoint, broker.live("t.checkpoints")[key])
    state = state_codec.decode(whole.state)
    damaged = msgspec.structs.replace(state, node_columns={"calibrated_pools": b"\xc1"})
    value = msgspec.structs.replace(whole, state=state_codec.encode(damaged))
    broker.put("t.checkpoints", 0, key, encode_pack(value))
    await publish(broker, owner)
    assert broker.records(FLEET) == []
    (web,) = broker.live("t.recommendations").values()
    assert decode_json(RecommendationRecord, web).samples == 144


async def test_a_damaged_checkpoint_costs_only_its_node() -> None:
    broker, owner = await moved(published=False)
    await owner.round()
    key = next(each for each in broker.live("t.checkpoints") if each.startswith(b"b@"))
    broker.put("t.checkpoints", 0, key, b"\xc1")
    await publish(broker, owner)
    assert [each.key for each in broker.records(FLEET)] == [history_key(WEB)]
