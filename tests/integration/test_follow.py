"""Following topics of a real broker: transactions, times, retention and recreated topics."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic
from aiokafka.admin.records_to_delete import RecordsToDelete

from pipeline.kafka.client import client_options
from pipeline.kafka.follow import Follower, LostOffsetError, TopicPartition, open_follower
from pipeline.kafka.partition_log import open_reader
from pipeline.local.local_kafka import LocalKafka
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import is_in_transactions
from tests.broker import admin_client


@pytest.fixture
def client(broker: LocalKafka) -> dict[str, Any]:
    return client_options(KafkaSettings(bootstrap_servers=broker.bootstrap_servers))


async def made_topic(client: dict[str, Any], name: str | None = None) -> TopicPartition:
    topic = name or f"follow-{uuid4().hex[:8]}"
    async with admin_client(client) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
        while topic not in await admin.list_topics():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return TopicPartition(topic, 0)


async def write(client: dict[str, Any], tp: TopicPartition, *values: bytes, times: int = 1) -> None:
    async with AIOKafkaProducer(**client) as producer:
        for _ in range(times):
            for value in values:
                await producer.send(tp.topic, value)


async def poll_for_ever(follower: Follower) -> None:
    while True:
        await follower.poll()


async def test_aborted_and_open_transactions_are_not_read(client: dict[str, Any]) -> None:
    tp = await made_topic(client, f"follow-{uuid4().hex[:8]}.nodes")
    async with AIOKafkaProducer(**client, transactional_id=tp.topic) as producer:
        async with producer.transaction():
            await producer.send(tp.topic, b"committed")
        await producer.begin_transaction()
        await producer.send_and_wait(tp.topic, b"aborted")
        await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send_and_wait(tp.topic, b"open")
        async with open_follower(client, [tp]) as follower:
            await follower.begin()
            read = [each.value async for records in follower.read_to_end() for each in records]
            assert read == [b"committed"]
            # Behind it lie the markers of two transactions.
            assert follower.positions[tp] >= 4
        await producer.abort_transaction()


async def test_an_open_transaction_hides_no_record_of_a_log(client: dict[str, Any]) -> None:
    tp = await made_topic(client)
    assert not is_in_transactions(tp.topic)
    async with AIOKafkaProducer(**client, transactional_id=tp.topic) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(tp.topic, b"open")
        await write(client, tp, b"window")
        async with open_reader(client, [tp]) as reader:
            assert await reader.bounds(*tp) == (0, 2)
            read = [each.value async for lists in reader.read(tp.topic, 0, 0, 2) for each in lists]
        async with open_follower(client, [tp]) as follower:
            await follower.begin()
            read += [each.value async for lists in follower.read_to_end() for each in lists]
        await producer.abort_transaction()
    assert read == 2 * [b"open", b"window"]


async def test_reading_starts_at_the_requested_offset(client: dict[str, Any]) -> None:
    tp = await made_topic(client)
    await write(client, tp, *(b"%d" % i for i in range(50)))
    for start in range(0, 50, 7):
        async with open_follower(client, [tp]) as follower:
            follower.read_from({tp: start}, {tp: 50})
            read = [each.value async for records in follower.read_to_end() for each in records]
        assert read == [b"%d" % i for i in range(start, 50)]


async def test_reading_starts_at_a_time(client: dict[str, Any]) -> None:
    tp = await made_topic(client)
    async with AIOKafkaProducer(**client) as producer:
        for i in range(5):
            await producer.send_and_wait(tp.topic, b"%d" % i, timestamp_ms=1000 * (i + 1))
    async with open_follower(client, [tp]) as follower:
        await follower.begin({tp.topic: 3500})
        assert follower.positions == {tp: 3}
        await follower.begin({tp.topic: 9000})
        assert follower.positions == {tp: 5}
        assert follower.is_caught_up


@pytest.mark.parametrize("recreate", [False, True])
async def test_a_deleted_or_recreated_topic_is_noticed(
    client: dict[str, Any], recreate: bool
) -> None:
    tp = await made_topic(client)
    await write(client, tp, b"old", times=10)
    async with open_follower(client, [tp]) as follower:
        await follower.begin()
        assert len([r async for records in follower.read_to_end() for r in records]) == 10
        follower.read_from({tp: 10}, {})
        async with admin_client(client) as admin:
            await admin.delete_topics([tp.topic])
            while tp.topic in await admin.list_topics():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        if recreate:
            await made_topic(client, tp.topic)
            await write(client, tp, b"new")
        with pytest.raises(LostOffsetError, match=r"has no offset 10|was deleted"):
            await asyncio.wait_for(poll_for_ever(follower), 60)


async def test_a_recreated_topic_has_another_id(client: dict[str, Any]) -> None:
    tp, other = await made_topic(client), await made_topic(client)
    async with open_reader(client, [tp, other]) as reader:
        ids = await reader.topic_ids()
        assert ids == await reader.topic_ids()
        assert ids.keys() == {tp.topic, other.topic}
        async with admin_client(client) as admin:
            await admin.delete_topics([tp.topic])
            while tp.topic in await admin.list_topics():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await made_topic(client, tp.topic)
        recreated = await reader.topic_ids()
    assert recreated[tp.topic] != ids[tp.topic]
    assert recreated[other.topic] == ids[other.topic]


async def test_a_range_is_read_from_where_retention_left_records(client: dict[str, Any]) -> None:
    tp = await made_topic(client)
    await write(client, tp, *(b"%d" % i for i in range(20)))
    async with admin_client(client) as admin:
        await admin.delete_records({tp: RecordsToDelete(before_offset=12)})
    async with open_reader(client, [tp]) as reader:
        assert await reader.bounds(*tp) == (12, 20)
        batches = reader.read(tp.topic, tp.partition, 5, 20)
        read = [each.offset async for records in batches for each in records]
    assert read == [*range(12, 20)]
