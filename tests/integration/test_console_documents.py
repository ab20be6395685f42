"""What the console shows of plans and accuracy, through a real broker."""

import time
from functools import partial
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from pipeline.clock import SystemClock
from pipeline.errors import TopicDriftError
from pipeline.extender.console_reading import read_judged, relief_feed
from pipeline.kafka.client import client_options
from pipeline.kafka.topic_admin import apply_topics
from pipeline.settings import KafkaSettings
from pipeline.table import Feed, Table
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.pool_outcomes import PoolOutcomesRecord
from pipeline.topics.registry import ACCURACY, ACTIONS, EVICTION_PLANS, FLEET, NODE_STATE
from tests.broker import send
from tests.extender.conftest import running
from tests.extender.console_samples import action, judged, plan
from tests.processes import until
from tests.table.records import node_state


async def write(kafka: KafkaSettings) -> None:
    now = time.time()
    await send(kafka, NODE_STATE, ("node-00099", encode_json(node_state("node-00099"))))
    await send(
        kafka, ACTIONS, ("node-00099", encode_json(action("done"))),
        ("node-00099", encode_json(action("refused", "u1", error="too late"))),
    )  # fmt: skip
    await send(kafka, EVICTION_PLANS, ("node-00099", encode_json(plan())))
    await send(
        kafka, ACCURACY, ("node-1", encode_json(judged("node-1"))), ("node-2", b"garbage"),
        ("node-2", encode_json(judged("node-2"))),
    )  # fmt: skip
    outcomes = PoolOutcomesRecord(
        pool="gpu", at=format_time(now), nodes=2, horizon_seconds=86_400, risk=0.02
    )
    await send(
        replace(kafka, partitions=1),
        FLEET,
        ("outcomes/gpu", encode_json(outcomes)),
        ("gpu/node_cpu", b'{"pool": "gpu"}'),
    )


async def test_plans_and_accuracy_are_read_from_their_topics(kafka: KafkaSettings) -> None:
    client, clock = client_options(kafka), SystemClock()
    await apply_topics(kafka)
    await write(kafka)
    plans, relief = relief_feed(client, kafka.topic_prefix, clock)
    feed = Feed(Table(), client=client, prefix=kafka.topic_prefix, clock=clock)
    async with (
        running(feed, plans=plans, relief=relief, read_judged=partial(read_judged, kafka)) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):

        async def document(name: str) -> Any:
            async with session.get(f"/v1/{name}") as answer:
                return await answer.json()

        async def outcomes() -> list[Any]:
            found = (await document("relief")).get("plans") or []
            return [[pod["outcome"] for pod in each["pods"]] for each in found]

        async def is_known() -> bool:
            return await outcomes() == [["done", "refused", None]]

        await until(is_known)
        accuracy = await document("accuracy")
        assert accuracy["pool"] == ["gpu"] * 4
        assert accuracy["nodes"] == [2, 0, 2, 0]
        assert accuracy["declared_risk"] == [0.02, 0.02, None, None]
        # Later records are seen without a restart.
        await send(kafka, ACTIONS, ("node-00099", encode_json(action("done", "u2"))))

        async def is_followed() -> bool:
            return await outcomes() == [["done", "refused", "done"]]

        await until(is_followed)


async def test_without_its_topic_accuracy_is_an_error(kafka: KafkaSettings) -> None:
    with pytest.raises(TopicDriftError, match=r"waiting for topic .*accuracy"):
        await read_judged(kafka, 0.0, time.time())
