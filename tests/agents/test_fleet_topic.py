"""The means of node pools: read from their topic, joined into windows, compared by detection."""

from typing import Any

import msgspec
import pytest

from pipeline.agents import fleet_topic, join_agent
from pipeline.agents.fleet_topic import MAX_POOLS, FleetTopic
from pipeline.agents.refusals import Refused
from pipeline.kafka.partition_log import LogRecord
from pipeline.processors.join.pool_means import LONGEST_MS, known_percent, pool_means
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pool_means import PoolMeansRecord, RuleMean, pool_key
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.windows import decode_window
from tests.agents.fakes import APPENDED_MS, MemoryBroker
from tests.agents.hot_logs import published_alerts
from tests.agents.owners import Owner, content, undisturbed
from tests.agents.test_join_agent import NODE, Fixture, put, sample
from tests.metric_values import value_of

POLICY = HotNodePolicy(
    pool="gold", high_percent={"cpu": 20.0}, use_deviation_thresholds=True, span_seconds=30,
    open_windows=2,
)  # fmt: skip
FLEET = "t.fleet"


def means(
    percent: float | None = 30.0, *, pool: str = "gold", at_ms: int = APPENDED_MS, **fields: Any
) -> PoolMeansRecord:
    return PoolMeansRecord(
        pool=pool, at=format_time(at_ms / 1000), nodes=2,
        means={"node_cpu": RuleMean(percent=percent, known_nodes=0 if percent is None else 2)},
        **{"span_seconds": 30} | fields,
    )  # fmt: skip


def written(record: PoolMeansRecord, offset: int = 0) -> LogRecord:
    return put(pool_key(record.pool), encode_json(record), offset)


class Reader:
    """The topic, and the records that it refused."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.topic = FleetTopic("t", self._refuse, 60.0)

    async def _refuse(self, topic: str, refused: Refused) -> None:
        assert topic == FLEET
        self.refused += [error.reason for _, error in refused]

    @property
    def percent(self) -> dict[str, Any]:
        return {pool: dict(each.percent) for pool, each in self.topic.means.items()}


# -- the topic


async def test_the_newest_means_of_each_pool_are_known() -> None:
    reader = Reader()
    for offset, record in enumerate(
        (means(), means(40.0), means(None, pool="b"), means(1, pool=""))
    ):
        await reader.topic.apply(written(record, offset))
    assert reader.percent == {"gold": {"node_cpu": 40.0}, "b": {}, "": {"node_cpu": 1.0}}
    assert (reader.refused, reader.topic.next_offset) == ([], 4)
    await reader.topic.apply(put(pool_key("gold"), None, 4))
    assert reader.topic.means.keys() == {"b", ""}


async def test_of_two_planners_the_newer_means_count() -> None:
    reader, before = Reader(), value_of(fleet_topic.OLDER)
    await reader.topic.apply(written(means(30.0)))
    await reader.topic.apply(written(means(99.0, at_ms=APPENDED_MS - 1000)))  # was paused
    assert reader.percent == {"gold": {"node_cpu": 30.0}}
    await reader.topic.apply(written(means(None)))  # as of the same windows
    assert reader.percent == {"gold": {}}
    assert value_of(fleet_topic.OLDER) - before == 1


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (put(pool_key("gold"), b""), "undecodable"),
        (put(pool_key("gold"), b"{}"), "invalid"),
        (put(pool_key("other"), encode_json(means())), "key_mismatch"),
        (put(b"pool/\xff", encode_json(means())), "key_mismatch"),
        (written(means(1e9)), "invalid"),
        (written(means(-1.0)), "invalid"),
        (written(means(at_ms=APPENDED_MS + 60_001)), "invalid"),
        (put(pool_key("gold"), encode_json(means()).replace(b'"version":1', b'"version":2')),
         "unsupported_version"),
    ],
)  # fmt: skip
async def test_an_invalid_record_is_refused_and_changes_nothing(
    bad: LogRecord, reason: str
) -> None:
    reader = Reader()
    await reader.topic.apply(written(means()))
    await reader.topic.apply(bad._replace(offset=1))
    assert reader.percent == {"gold": {"node_cpu": 30.0}}
    assert (reader.refused, reader.topic.next_offset) == ([reason], 2)


async def test_a_mean_that_is_no_number_is_none() -> None:
    reader = Reader()
    await reader.topic.apply(written(means(float("nan"))))  # JSON has null
    assert (reader.percent, reader.refused) == ({"gold": {}}, [])


async def test_records_of_other_kinds_are_ignored() -> None:
    reader = Reader()
    for key in (b"workload/ns/Deployment/web", b"", None):
        await reader.topic.apply(put(b"", b"anything")._replace(key=key))
    assert (reader.percent, reader.refused) == ({}, [])


async def test_the_number_of_known_pools_is_limited() -> None:
    reader = Reader()
    await reader.topic.apply(written(means(pool="first")))
    for number in range(MAX_POOLS - 1):
        await reader.topic.apply(written(means(pool=f"pool-{number}")))
    await reader.topic.apply(written(means(pool="first")))
    await reader.topic.apply(written(means(pool="last")))
    assert len(reader.topic.means) == MAX_POOLS
    assert "pool-0" not in reader.topic.means
    assert reader.topic.means.keys() >= {"first", "pool-1", "last"}


async def load(reader: Reader, broker: MemoryBroker) -> None:
    async with broker.open_reader([(FLEET, 0)]) as logs:
        await reader.topic.load(logs)


async def test_loading_continues_and_reads_a_recreated_topic_anew() -> None:
    broker, reader = MemoryBroker(), Reader()
    await load(reader, broker)
    assert (reader.percent, reader.topic.next_offset) == ({}, 0)
    for record in (means(1.0, pool="a"), means(2.0, pool="b")):
        broker.put(FLEET, 0, pool_key(record.pool), encode_json(record))
    await load(reader, broker)
    assert (reader.percent, reader.topic.next_offset) == (
        {"a": {"node_cpu": 1.0}, "b": {"node_cpu": 2.0}}, 2,
    )  # fmt: skip
    broker.trim(FLEET, 0, 2)
    broker.put(FLEET, 0, pool_key("c"), encode_json(means(3.0, pool="c")))
    await load(reader, broker)
    assert reader.topic.means.keys() == {"a", "b", "c"}
    broker.recreate(FLEET)
    for number in range(5):
        broker.put(FLEET, 0, pool_key("d"), encode_json(means(float(number), pool="d")))
    await load(reader, broker)
    assert (reader.percent, reader.topic.next_offset) == ({"d": {"node_cpu": 4.0}}, 5)
    broker.truncate(FLEET, 0, 1)  # an unclean election
    await load(reader, broker)
    assert (reader.percent, reader.topic.next_offset) == ({"d": {"node_cpu": 0.0}}, 1)


# -- windows


@pytest.mark.parametrize(
    ("record", "late_ms", "known"),
    [
        (means(), 0, True),
        (means(), LONGEST_MS, True),
        (means(), -LONGEST_MS, True),
        (means(), LONGEST_MS + 1, False),
        (means(), -LONGEST_MS - 1, False),  # a window of a backlog
        (means(None), 0, False),
        (means(usage="peak"), 0, False),
        (means(span_seconds=600), 0, False),
        (None, 0, False),
    ],
)
def test_means_are_for_windows_of_their_time_and_usage(
    record: PoolMeansRecord | None, late_ms: int, known: bool
) -> None:
    read = None if record is None else pool_means(record)
    percent = known_percent(read, POLICY, APPENDED_MS + late_ms)
    assert percent == ({"node_cpu": 30.0} if known else {})


def add_node(join: Fixture, policy: HotNodePolicy | None) -> None:
    record = NodeRecord(
        node=NODE, hot_nodes=policy, allocatable=Resources(cpu_millicores=4000)
    )  # fmt: skip
    join.cluster_state.apply_node(put(NODE.encode(), encode_json(record)))


async def test_a_window_has_the_means_that_were_known_at_the_join() -> None:
    join, reader, before = Fixture(), Reader(), value_of(join_agent.WITHOUT_MEANS)
    join.cluster_state.pool_means = reader.topic.means
    add_node(join, POLICY)
    await join.cursor.process([sample(0)])
    await reader.topic.apply(written(means()))
    await join.cursor.process([sample(1)])
    await reader.topic.apply(written(means(35.5)))
    await join.cursor.process([sample(2)])
    await reader.topic.apply(put(pool_key("gold"), None))
    await join.cursor.process([sample(3)])
    policies = [window.node.hot_nodes for window in join.windows]
    assert [policy and policy.mean_percent for policy in policies] == [
        {}, {"node_cpu": 30.0}, {"node_cpu": 35.5}, {},
    ]  # fmt: skip
    assert value_of(join_agent.WITHOUT_MEANS) - before == 2
    handed = [record.window and record.window.node for record in join.handed_over]
    assert handed == [window.node for window in join.windows]


async def test_a_record_of_a_node_cannot_bring_its_own_mean() -> None:
    join = Fixture()
    add_node(join, msgspec.structs.replace(POLICY, mean_percent={"node_cpu": 1.0}))
    await join.cursor.process([sample(0)])
    (window,) = join.windows
    assert window.node.hot_nodes == POLICY


async def test_a_node_that_changes_its_pool_gets_the_other_mean_with_its_next_window() -> None:
    join, reader = Fixture(), Reader()
    join.cluster_state.pool_means = reader.topic.means
    await reader.topic.apply(written(means()))
    await reader.topic.apply(written(means(60.0, pool="busy")))
    for offset, pool in enumerate(("gold", "busy", "unheard of")):
        add_node(join, msgspec.structs.replace(POLICY, pool=pool))
        await join.cursor.process([sample(offset)])
    policies = [window.node.hot_nodes for window in join.windows]
    assert [policy and policy.mean_percent for policy in policies] == [
        {"node_cpu": 30.0}, {"node_cpu": 60.0}, {},
    ]  # fmt: skip


@pytest.mark.parametrize("policy", [None, HotNodePolicy(pool="gold", high_percent={"cpu": 20.0})])
async def test_windows_of_fixed_thresholds_are_the_same_bytes_with_and_without_means(
    policy: HotNodePolicy | None,
) -> None:
    values = []
    for record in (None, means()):
        join, reader = Fixture(), Reader()
        join.cluster_state.pool_means = reader.topic.means
        add_node(join, policy)
        if record is not None:
            await reader.topic.apply(written(record))
        await join.cursor.process([sample(0)])
        values.append(join.broker.records("t.windows")[0].value)
    assert values[0] == values[1]
    assert b"mean_percent" not in (values[0] or b"")


# -- the worker


async def test_alerts_follow_from_windows_whatever_the_topic_says_at_a_replay() -> None:
    """A worker joins samples while means come; another one replays its log, when the topic has
    later means or none."""
    broker = MemoryBroker()
    record = NodeRecord(node="a", hot_nodes=POLICY, allocatable=Resources(cpu_millicores=10_000))
    broker.put("t.nodes", 0, b"a", encode_json(record))
    broker.put(FLEET, 0, pool_key("gold"), encode_json(means(30.0)))
    owner = await Owner(broker, "x").load()
    for offset in range(4):
        value = sample(offset, "a", ahead_seconds=5.0 * offset, cpu_cores_avg=6.0).value
        broker.put("t.samples", 0, b"a", value)
    await owner.shard.join.process(broker.records("t.samples"))
    await owner.apply()
    windows = [decode_window(each.value or b"") for each in broker.records("t.windows")]
    assert [w.node.hot_nodes and w.node.hot_nodes.mean_percent for w in windows] == [
        {"node_cpu": 30.0}
    ] * 4
    expected = content(undisturbed(broker))
    assert content(owner.model) == expected
    opened = published_alerts(broker)
    assert [(each.transition, each.evidence.pool_mean_percent) for each in opened] == [
        ("opened", 30.0)
    ]
    broker.recreate(FLEET)
    broker.put(FLEET, 0, pool_key("gold"), encode_json(means(90.0)))
    again = await Owner(broker, "y").load()
    assert content(again.model) == expected
    assert published_alerts(broker)[len(opened) :] == opened
