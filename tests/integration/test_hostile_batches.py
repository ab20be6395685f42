"""No batch that a real broker accepts stops a consumer: each reads what follows it.

Faust's consumer: tests/system/test_hostile.py.
"""

import asyncio

import pytest

from node_exporter import node_policy
from pipeline.clock import SystemClock
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import TopicPartition, open_follower
from pipeline.kafka.newest import newest
from pipeline.kafka.partition import partition_of
from pipeline.kafka.partition_log import open_reader
from pipeline.kafka.producer import Producer
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import LocalKafka
from pipeline.settings import KafkaSettings
from pipeline.sources.compacted_writer import read_back
from pipeline.sources.provider.provider_cluster_state import (
    ClusterStateFollower,
    ProviderClusterState,
)
from pipeline.table.state_table import Table
from pipeline.table.table_feed import Feed
from pipeline.topics.codec import encode_json
from pipeline.topics.dead_letters import DeadLetter
from pipeline.topics.nodes import NodeRecord, NodeStrategy
from pipeline.topics.registry import NODES
from tests.broker import own_topics
from tests.kafka.raw_batches import hostile_batches, produce_raw

NODE = "node-1"
KEY = NODE.encode()
OLD = encode_json(NodeRecord(node=NODE, strategy=NodeStrategy(report_interval_seconds=90.0)))
HOSTILE = encode_json(NodeRecord(node=NODE, strategy=NodeStrategy(report_interval_seconds=1.0)))
NEW = encode_json(NodeRecord(node=NODE, strategy=NodeStrategy(report_interval_seconds=60.0)))


REASONS = list(hostile_batches(KEY, HOSTILE))


@pytest.fixture(scope="module")
def kafka(broker: LocalKafka) -> KafkaSettings:
    """Topics with a record of a node, hostile ones, and a newer record at the end."""
    settings = own_topics(broker)
    asyncio.run(_fill(settings))
    return settings


@pytest.fixture
def nodes(kafka: KafkaSettings) -> TopicPartition:
    """The partition of the node."""
    name = NODES.full_name(kafka.topic_prefix)
    return TopicPartition(name, partition_of(NODE, kafka.partitions))


async def _fill(kafka: KafkaSettings) -> None:
    await apply_topics(kafka)
    name, partition = NODES.full_name(kafka.topic_prefix), partition_of(NODE, kafka.partitions)
    client = client_options(kafka)
    async with Producer(client) as producer:
        await producer.deliver(name, key=KEY, value=OLD, partition=partition)
        for batch in hostile_batches(KEY, HOSTILE).values():
            await produce_raw(client, TopicPartition(name, partition), batch)
        headers = [("source", b"test")]
        await producer.deliver(name, key=KEY, value=NEW, partition=partition, headers=headers)


async def test_a_follower_and_a_reader_return_every_record(
    kafka: KafkaSettings, nodes: TopicPartition
) -> None:
    client = client_options(kafka)
    async with open_follower(client, [nodes]) as follower:
        await follower.begin()
        read = [each async for records in follower.read_to_end() for each in records]
        assert follower.positions == {nodes: len(REASONS) + 2}
    assert [record.offset for record in read] == list(range(len(REASONS) + 2))
    assert [read[0].value, read[-1].value] == [OLD, NEW]
    for record, reason in zip(read[1:-1], REASONS, strict=True):
        assert reason in record.value.reason
    async with open_reader(client, [nodes]) as reader:
        batches = reader.read(nodes.topic, nodes.partition, 3, 5)
        log = [each async for records in batches for each in records]
    assert [record.offset for record in log] == [3, 4]


async def test_a_table_refuses_each_and_has_the_newest_record(kafka: KafkaSettings) -> None:
    letters: list[DeadLetter] = []

    async def refuse(letter: DeadLetter) -> None:
        letters.append(letter)

    table = Table()
    feed = Feed(table, client=client_options(kafka), prefix=kafka.topic_prefix, topics=[NODES],
                clock=SystemClock(), on_bad=refuse)  # fmt: skip
    running = asyncio.create_task(feed.run())
    await asyncio.wait_for(feed.wait_caught_up(), 60)
    running.cancel()
    assert feed.state.bad == {"unreadable": len(REASONS)}
    assert len(table) == 1
    for letter, reason in zip(letters, REASONS, strict=True):
        assert reason in dict(letter.headers)["error"].decode()


async def test_commands_find_the_newest_record_of_a_node(kafka: KafkaSettings) -> None:
    record = await newest(kafka, NODES, NODE)
    assert record is not None
    assert record.value == NEW


async def test_a_source_reads_its_records_back(kafka: KafkaSettings) -> None:
    assert await read_back(kafka, NODES, "test") == {KEY: NEW}


async def test_an_exporter_takes_the_newest_policy(kafka: KafkaSettings) -> None:
    policies: asyncio.Queue[node_policy.NodePolicy] = asyncio.Queue()
    following = node_policy.follow(kafka, NODE, SystemClock(), policies.put_nowait)
    running = asyncio.create_task(following)
    policy = await asyncio.wait_for(policies.get(), 60)
    assert policy.report_interval_seconds == 60.0
    running.cancel()


async def test_a_provider_catches_up(kafka: KafkaSettings) -> None:
    state = ProviderClusterState()
    follower = ClusterStateFollower(kafka, state, since_ms=0)
    running = asyncio.create_task(follower.run())
    await asyncio.wait_for(follower.caught_up(), 60)
    running.cancel()
    assert state.nodes == {NODE}
