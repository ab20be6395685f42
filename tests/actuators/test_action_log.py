"""Actions while no broker answers."""

import asyncio
import json

import msgspec
import pytest
from prometheus_client import Counter

from actuators.action_log import Actions
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.port_probe import free_port
from pipeline.settings import KafkaSettings
from pipeline.tasks import run_all
from pipeline.topics.actions import ActionRecord
from pipeline.topics.registry import ACTIONS
from tests.broker import messages, own_topics
from tests.processes import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ACTION = ActionRecord(
    node="n1", at="2026-01-01T00:00:00Z", actuator="test", action="a", outcome="done", why="w"
)


@pytest.fixture
async def kafka(broker: LocalKafka) -> KafkaSettings:
    settings = own_topics(broker, 1)
    await apply_topics(settings)
    return settings


async def test_actions_wait_until_a_broker_answers(kafka: KafkaSettings) -> None:
    host, _, broker_port = kafka.bootstrap_servers.rpartition(":")
    port, lost = free_port(), Counter("lost", "Lost actions.", registry=None)
    actions = Actions(msgspec.structs.replace(kafka, bootstrap_servers=f"{host}:{port}"), lost)
    task = asyncio.create_task(run_all([actions.run()]))
    actions.put(ACTION)
    await asyncio.sleep(3)
    assert not task.done()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection(host, int(broker_port))
        await asyncio.gather(_copy(reader, to_writer), _copy(to_reader, writer))

    async def written() -> list[str]:
        return [json.loads(m.value)["node"] for m in await messages(kafka, ACTIONS)]

    # The first connection tells the client the address of the broker.
    async with await asyncio.start_server(forward, host, port):
        await until(written)
        task.cancel()
        await asyncio.wait([task])
    assert await written() == ["n1"]
    assert [s.value for m in lost.collect() for s in m.samples if s.name == "lost_total"] == [0]


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()
