"""Outcomes of node pools in a worker: read from their topic, joined into windows, used by peaks."""

from typing import Any

import msgspec
import pytest

from pipeline.agents import fleet_topic
from pipeline.agents.fleet_topic import FleetTopic
from pipeline.agents.refusals import Refused
from pipeline.kafka.partition_log import LogRecord
from pipeline.times import format_time
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.hot_node_policy import DEFAULT_POOL, HotNodePolicy
from pipeline.topics.nodes import NodeRecord, NodeStrategy
from pipeline.topics.pods import PodRecord, pod_key
from pipeline.topics.pool_means import PoolMeansRecord, pool_key
from pipeline.topics.pool_outcomes import (
    OUTCOMES,
    PROBABILITIES,
    OutcomeQuantiles,
    PooledOutcomes,
    PoolOutcomesRecord,
)
from pipeline.topics.predictions import PredictionRecord
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import decode_window
from tests.agents.fakes import APPENDED_MS, MemoryBroker
from tests.agents.owners import Owner, content
from tests.agents.test_join_agent import NODE, Fixture, put
from tests.metric_values import value_of
from tests.processors.windows import config_with

FLEET, HALF_HOUR_MS = "t.fleet", 1_800_000
NEWEST_MS = APPENDED_MS // HALF_HOUR_MS * HALF_HOUR_MS
"""The end of the last half hour before samples are appended."""
HORIZON_SECONDS = 21_600


def outcomes(
    z: float = -1.0, *, pool: str = DEFAULT_POOL, at_ms: int = NEWEST_MS
) -> PoolOutcomesRecord:
    distribution = OutcomeQuantiles(weight=500.0, quantiles=(z,) * len(PROBABILITIES))
    of_resource = PooledOutcomes(distribution=distribution, level=0.1)
    return PoolOutcomesRecord(
        pool=pool, at=format_time(at_ms / 1000), nodes=9, horizon_seconds=HORIZON_SECONDS,
        risk=0.1, cpu=of_resource, memory=of_resource,
    )  # fmt: skip


def written(record: PoolOutcomesRecord, offset: int = 0) -> LogRecord:
    return put(pool_key(record.pool, OUTCOMES), encode_json(record), offset)


class Reader:
    """The topic, and the reasons of refusals."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.topic = FleetTopic("t", self._refuse, 60.0)

    async def _refuse(self, topic: str, refused: Refused) -> None:
        self.refused += [error.reason for _, error in refused]


def sample(offset: int, end_ms: int, node: str = NODE, cores: float = 0.5) -> LogRecord:
    """A window of five minutes with one pod."""
    header = SampleHeader(
        node=node, machine_id="m", boot_id="b", epoch=1, sequence=offset,
        window_start_ms=end_ms - 300_000, window_end_ms=end_ms,
    )  # fmt: skip
    rows = [
        {"kind": "node", "id": "", "coverage": 1.0, "cpu_cores_avg": cores + 0.1},
        {"kind": "pod", "id": "uid-1", "coverage": 1.0, "cpu_cores_avg": cores},
    ]
    return put(node.encode(), encode_samples(SampleBatch(header, rows)), offset)


async def test_means_and_outcomes_of_a_pool_do_not_mix() -> None:
    reader = Reader()
    means = PoolMeansRecord(pool="gold", at="2023-11-14T22:14:00Z", nodes=2)
    await reader.topic.apply(put(pool_key("gold"), encode_json(means)))
    await reader.topic.apply(written(outcomes(pool="gold"), 1))
    assert [[*reader.topic.means], [*reader.topic.outcomes]] == [["gold"], ["gold"]]
    await reader.topic.apply(put(pool_key("gold"), None, 2))
    assert (reader.topic.means, [*reader.topic.outcomes]) == ({}, ["gold"])
    await reader.topic.apply(put(pool_key("gold", OUTCOMES), None, 3))
    assert (reader.topic.outcomes, reader.refused, reader.topic.next_offset) == ({}, [], 4)


async def test_of_two_planners_the_newer_outcomes_count() -> None:
    reader, before = Reader(), value_of(fleet_topic.OLDER)
    await reader.topic.apply(written(outcomes(0.0)))
    await reader.topic.apply(written(outcomes(1.0, at_ms=NEWEST_MS - 1)))  # was paused
    assert reader.topic.outcomes == {DEFAULT_POOL: outcomes(0.0)}
    assert value_of(fleet_topic.OLDER) - before == 1


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (put(pool_key("gold", OUTCOMES), b"{}"), "invalid"),
        (put(pool_key("gold", OUTCOMES), b"\xff"), "undecodable"),
        (put(b"outcomes/\xff", encode_json(outcomes())), "key_mismatch"),
        (put(pool_key("gold", OUTCOMES), encode_json(outcomes())), "key_mismatch"),
        (written(outcomes(at_ms=APPENDED_MS + 60_001)), "invalid"),
        (put(pool_key(DEFAULT_POOL, OUTCOMES),
             encode_json(outcomes()).replace(b'"version":1', b'"version":2')),
         "unsupported_version"),
    ],
)  # fmt: skip
async def test_invalid_outcomes_are_refused_and_change_nothing(bad: LogRecord, reason: str) -> None:
    reader = Reader()
    await reader.topic.apply(written(outcomes()))
    await reader.topic.apply(bad._replace(offset=1))
    assert reader.topic.outcomes == {DEFAULT_POOL: outcomes()}
    assert (reader.refused, reader.topic.next_offset) == ([reason], 2)


async def test_a_window_in_which_a_half_hour_ends_has_the_outcomes_of_its_pool() -> None:
    join, reader = Fixture(), Reader()
    join.cluster_state.pool_outcomes = reader.topic.outcomes
    join.add_node(NODE)
    await join.cursor.process([sample(0, NEWEST_MS)])  # nothing is known yet
    await reader.topic.apply(written(outcomes()))
    await reader.topic.apply(written(outcomes(0.5, pool="gold"), 1))
    await join.cursor.process([sample(1, NEWEST_MS - 1), sample(2, NEWEST_MS)])
    record = NodeRecord(
        node=NODE, hot_nodes=HotNodePolicy(pool="gold"), allocatable=Resources(cpu_millicores=4000)
    )  # fmt: skip
    join.cluster_state.apply_node(put(NODE.encode(), encode_json(record)))
    await join.cursor.process([sample(3, NEWEST_MS + 1)])
    assert [window.node.pool_outcomes for window in join.windows] == [
        None, None, outcomes(), outcomes(0.5, pool="gold"),
    ]  # fmt: skip
    handed = [record.window and record.window.node for record in join.handed_over]
    assert handed == [window.node for window in join.windows]
    # All other windows are the bytes that they were before pools.
    assert b"pool_outcomes" not in (join.broker.records("t.windows")[1].value or b"")


def put_cluster(broker: MemoryBroker) -> None:
    record = NodeRecord(
        node="a", allocatable=Resources(cpu_millicores=10_000),
        strategy=NodeStrategy(predictor="calibrated"),
    )  # fmt: skip
    broker.put("t.nodes", 0, b"a", encode_json(record))
    pod = PodRecord(
        node="a", uid="uid-1", namespace="ns", name="web", pod_class="prod", cgroup_uid="uid-1",
        requests=Resources(cpu_millicores=4000, memory_bytes=2**30), phase="Running",
    )  # fmt: skip
    broker.put("t.pods", 0, pod_key("a", "uid-1"), encode_json(pod))


CONFIG = config_with(
    predictors=("percentile", "calibrated"), predictor="calibrated",
    options={"calibrated": {"risk": 0.1}}, horizon_seconds=float(HORIZON_SECONDS),
)  # fmt: skip


async def run(broker: MemoryBroker, owner: Owner, ends_ms: range) -> None:
    for end_ms in ends_ms:
        value = sample(end_ms // 300_000, end_ms, "a", 0.5 + end_ms // 300_000 % 7 / 10).value
        broker.put("t.samples", 0, b"a", value)
    await owner.shard.join.process(broker.records("t.samples")[owner.shard.join.next_offset :])
    await owner.apply()


def share_of(broker: MemoryBroker) -> float:
    """The share of the requests in the newest prediction."""
    newest = decode_json(PredictionRecord, broker.records("t.predictions")[-1].value or b"")
    share = newest.classes["prod"].terms["calibrated"]["share"].cpu
    assert share is not None
    return share


async def test_peaks_follow_from_windows_whatever_the_topic_says_at_a_replay() -> None:
    """A worker joins samples while outcomes come; others replay its log, when the topic has later
    outcomes or none, and after a round of checkpoints."""
    broker = MemoryBroker()
    put_cluster(broker)
    broker.put(FLEET, 0, pool_key(DEFAULT_POOL, OUTCOMES), encode_json(outcomes(-1.0)))
    owner = await Owner(broker, "x", CONFIG).load()
    hours = [range(NEWEST_MS - (8 - n) * 3_600_000, NEWEST_MS - (7 - n) * 3_600_000, 300_000)
             for n in range(8)]  # fmt: skip
    for own in hours[:7]:
        await run(broker, owner, own)
    windows = [decode_window(each.value or b"") for each in broker.records("t.windows")]
    having = [window.node.pool_outcomes is not None for window in windows]
    assert (sum(having), len(having)) == (14, 84)
    before, expected = share_of(broker), content(owner.model)
    broker.recreate(FLEET)
    broker.put(FLEET, 0, pool_key(DEFAULT_POOL, OUTCOMES), encode_json(outcomes(1.0)))
    replayed = await Owner(broker, "y", CONFIG).load()
    assert content(replayed.model) == expected
    assert share_of(broker) == before
    await replayed.round()
    restored = await Owner(broker, "z", CONFIG).load()
    assert content(restored.model) == expected
    # New windows have the later outcomes.
    await run(broker, restored, hours[7])
    assert share_of(broker) > before
    stated = decode_json(PredictionRecord, broker.records("t.predictions")[-1].value or b"")
    assert stated.outcomes is not None
    assert stated.outcomes.risk == 0.1


async def test_windows_that_were_written_before_outcomes_existed_are_read() -> None:
    join, reader = Fixture(), Reader()
    join.cluster_state.pool_outcomes = reader.topic.outcomes
    join.add_node(NODE)
    await join.cursor.process([sample(0, NEWEST_MS)])
    value: Any = join.broker.records("t.windows")[0].value
    facts = msgspec.json.decode(value.split(b"\n")[1])
    assert "pool_outcomes" not in facts
    assert decode_window(value).node.pool_outcomes is None
