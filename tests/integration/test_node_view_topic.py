"""The view of a node from a real topic: found at the start, followed, and kept whatever comes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka.admin import NewTopic

from actuators.node import view_topic
from actuators.node.newest_view import NewestView
from actuators.node.view_topic import follow_topic
from pipeline import tracing
from pipeline.clock import SystemClock
from pipeline.kafka.client import client_options
from pipeline.local.local_kafka import LocalKafka
from pipeline.settings import KafkaSettings
from pipeline.spans import SpanContext
from pipeline.tasks import cancel_tasks
from pipeline.topics.registry import NODE_VIEWS
from tests.actuators.node.views import NODE, view
from tests.broker import admin_client, own_topics, send
from tests.processes import until


@asynccontextmanager
async def following(kafka: KafkaSettings) -> AsyncIterator[NewestView]:
    newest = NewestView(NODE, SystemClock(), asyncio.Event())
    task = asyncio.create_task(follow_topic(kafka, newest, SystemClock()))
    try:
        yield newest
    finally:
        await cancel_tasks(task)


def generation(newest: NewestView) -> int | None:
    return None if newest.record is None else newest.record.generation


async def make_topic(kafka: KafkaSettings) -> None:
    name = NODE_VIEWS.full_name(kafka.topic_prefix)
    async with admin_client(client_options(kafka)) as admin:
        await admin.create_topics([NewTopic(name, kafka.partitions, 1)])
        while name not in await admin.list_topics():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def delete_topic(kafka: KafkaSettings) -> None:
    async with admin_client(client_options(kafka)) as admin:
        await admin.delete_topics([NODE_VIEWS.full_name(kafka.topic_prefix)])


async def test_the_newest_view_is_found_and_followed(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(kafka)
    others = [(f"other-{i}", view(i, node=f"other-{i}")) for i in range(300)]
    await send(kafka, NODE_VIEWS, (NODE, view(1)), (NODE, view(2)), *others)
    async with following(kafka) as newest:
        await until(lambda: generation(newest) == 2)
        bad = [b"", b"garbage", view(9, node="n2"), view(9)[:40], view(1), None]
        await send(kafka, NODE_VIEWS, *((NODE, value) for value in bad), (NODE, view(3)))
        await until(lambda: generation(newest) == 3)
        assert newest.received is None
        monkeypatch.setattr(tracing, "_export", object())
        context = SpanContext(5, 6)
        await send(kafka, NODE_VIEWS, (NODE, view(4)), headers=context.headers)
        await until(lambda: newest.received is not None)
        await send(kafka, NODE_VIEWS, (NODE, None))
        await asyncio.sleep(3)
        assert generation(newest) == 4  # the Node was deleted, its pods run


async def test_a_view_that_does_not_change_is_confirmed_again(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_topic, "CONFIRM_SECONDS", 1.0)
    await make_topic(kafka)
    await send(kafka, NODE_VIEWS, (NODE, view(1)))
    async with following(kafka) as newest:
        await until(lambda: newest.age_seconds() is not None)
        # Also while the partition gets views of other nodes all the time.
        ages, confirmed = [0.0], 0
        while confirmed < 3:
            await send(kafka, NODE_VIEWS, ("other", view(len(ages), node="other")))
            await asyncio.sleep(0.1)
            ages.append(newest.age_seconds() or 0.0)
            confirmed += ages[-1] < ages[-2]
            assert len(ages) < 300
        assert generation(newest) == 1


async def test_a_recreated_topic_is_read_again(
    broker: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = own_topics(broker, request_timeout_seconds=5)
    monkeypatch.setattr(view_topic, "CONFIRM_SECONDS", 1.0)
    await make_topic(kafka)
    await send(kafka, NODE_VIEWS, (NODE, view(100)))
    async with following(kafka) as newest:
        await until(lambda: newest.age_seconds() is not None)
        await delete_topic(kafka)
        await until(lambda: (newest.age_seconds() or 0) > 3)
        assert generation(newest) == 100
        await make_topic(kafka)
        await send(kafka, NODE_VIEWS, (NODE, view(1)), (NODE, view(2)))
        await until(lambda: generation(newest) == 2)
        await until(lambda: (newest.age_seconds() or 99) < 3)


async def test_a_topic_that_does_not_exist_yet_is_waited_for(kafka: KafkaSettings) -> None:
    async with following(kafka) as newest:
        await asyncio.sleep(1)
        await make_topic(kafka)
        await send(kafka, NODE_VIEWS, (NODE, view(1)))
        await until(lambda: generation(newest) == 1)
