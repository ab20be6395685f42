"""A real Kafka broker, one per test process, and topics for one test."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from pipeline.kafka.client import client_options
from pipeline.kafka.follow import open_follower, topic_partitions
from pipeline.kafka.partition import partition_of
from pipeline.local.local_kafka import LocalKafka, local_kafka
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import Topic


@pytest.fixture(scope="session")
def broker() -> Iterator[LocalKafka]:
    """A running broker. A test that stops it must start it again."""
    with local_kafka() as kafka:
        yield kafka


@pytest.fixture
def kafka(broker: LocalKafka) -> KafkaSettings:
    """Settings with a topic prefix for a single test; its topics do not exist yet."""
    return own_topics(broker)


def own_topics(broker: LocalKafka, partitions: int = 2, **more: Any) -> KafkaSettings:
    """Return settings with a new topic prefix."""
    return KafkaSettings(
        bootstrap_servers=broker.bootstrap_servers, topic_prefix=f"test-{uuid4().hex[:8]}",
        partitions=partitions, **more,
    )  # fmt: skip


def flags_of(kafka: KafkaSettings) -> list[str]:
    """Return the flags of a command that uses these topics."""
    return [
        *("--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", kafka.topic_prefix),
        *("--partitions", str(kafka.partitions)),
    ]


@asynccontextmanager
async def admin_client(options: dict[str, Any]) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client with `options`."""
    client = AIOKafkaAdminClient(**options)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def messages(kafka: KafkaSettings, topic: Topic) -> list[Any]:
    """Return every record of `topic`."""
    partitions = topic_partitions(kafka, topic)
    async with open_follower(client_options(kafka), partitions) as follower:
        await follower.begin()
        return [record async for records in follower.read_to_end() for record in records]


async def send(
    kafka: KafkaSettings, topic: Topic, *records: tuple[str, bytes | None],
    headers: Sequence[tuple[str, bytes]] = (),
) -> None:  # fmt: skip
    """Produce values of nodes to the partitions of their nodes, with the node as key."""
    name = topic.full_name(kafka.topic_prefix)
    async with AIOKafkaProducer(**client_options(kafka)) as producer:
        for node, value in records:
            place = partition_of(node, kafka.partitions)
            await producer.send_and_wait(
                name, value, node.encode(), partition=place, headers=headers
            )


async def latest(kafka: KafkaSettings, topic: Topic) -> dict[str, bytes]:
    """Return the newest values of a compacted topic by key."""
    values: dict[str, bytes] = {}
    for message in await messages(kafka, topic):
        if message.value is None:
            values.pop(message.key.decode(), None)
        else:
            values[message.key.decode()] = message.value
    return values
