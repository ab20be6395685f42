"""`springtide notifier` with a real broker and a real Alertmanager."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
from aiokafka import AIOKafkaProducer

from pipeline.kafka.client import client_options
from pipeline.kafka.partition import partition_of
from pipeline.kafka.topic_admin import apply_topics
from pipeline.settings import KafkaSettings
from pipeline.times import format_time
from pipeline.topics.alerts import OpenAlert
from pipeline.topics.codec import encode_json
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.registry import NODE_STATE
from tests.alerts.local_alertmanager import LocalAlertmanager, local_alertmanager
from tests.broker import flags_of
from tests.processes import environment, springtide, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SINCE = format_time(time.time() - 300)
CPU = OpenAlert(
    rule="node_cpu", severity="warning", since=SINCE, usage_percent=81.25, threshold_percent=75.0
)
MEMORY = OpenAlert(rule="node_memory", severity="critical", since=SINCE)


@pytest.fixture(scope="module")
def alertmanager() -> Iterator[LocalAlertmanager]:
    with local_alertmanager() as running:
        yield running


@pytest.fixture
async def topics(kafka: KafkaSettings) -> KafkaSettings:
    await apply_topics(kafka)
    return kafka


@pytest.fixture
async def producer(topics: KafkaSettings) -> AsyncIterator[AIOKafkaProducer]:
    async with AIOKafkaProducer(**client_options(topics)) as producer:
        yield producer


async def publish(
    producer: AIOKafkaProducer, kafka: KafkaSettings, offset: int, node: str,
    alerts: Sequence[OpenAlert],
) -> None:  # fmt: skip
    """Publish a node state with these open alerts."""
    record = NodeStateRecord(
        node=node, as_of=format_time(time.time()), generation=0, offset=offset, epoch=0,
        window_seconds=30.0, coverage=1.0, alerts=tuple(alerts),
    )  # fmt: skip
    await producer.send_and_wait(
        NODE_STATE.full_name(kafka.topic_prefix), encode_json(record), node.encode(),
        partition=partition_of(node, kafka.partitions),
    )  # fmt: skip


async def notifier(kafka: KafkaSettings, urls: str, *more: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *springtide("notifier", *flags_of(kafka)[:4], "--alertmanager-urls", urls), *more,
        "--resend-seconds", "2", "--metrics-port", "null", env=environment(),
    )  # fmt: skip


async def end(process: asyncio.subprocess.Process) -> None:
    assert process.returncode is None
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_alerts_fire_escalate_and_are_resolved(
    topics: KafkaSettings, producer: AIOKafkaProducer, alertmanager: LocalAlertmanager
) -> None:
    of_cluster = {"cluster": "test", "node": "worker-1"}
    await publish(producer, topics, 1, "worker-1", [CPU, MEMORY])
    # Two notifiers, and an Alertmanager that is down: the same alerts, once.
    urls = f"{alertmanager.url},http://127.0.0.1:1"
    roles = [await notifier(topics, urls, "--labels", "{cluster: test}") for _ in range(2)]
    try:
        await until(lambda: len(alertmanager.alerts()) == 2, 60, alertmanager.alerts)
        cpu = {**of_cluster, "rule": "node_cpu", "severity": "warning"}
        memory = {**of_cluster, "rule": "node_memory", "severity": "critical"}
        assert alertmanager.labels() == [cpu, memory]
        (alert,) = [a for a in alertmanager.alerts() if a["labels"]["rule"] == "node_cpu"]
        assert alert["startsAt"].startswith(SINCE.removesuffix("Z"))
        assert alert["annotations"]["summary"] == (
            "CPU of node worker-1 is above its threshold of 75%"
        )

        critical = OpenAlert(rule="node_cpu", severity="critical", since=SINCE)
        await publish(producer, topics, 2, "worker-1", [critical])
        escalated = [{**cpu, "severity": "critical"}]
        await until(lambda: alertmanager.labels() == escalated, 60, alertmanager.labels)

        await publish(producer, topics, 3, "worker-1", [])
        await until(lambda: not alertmanager.alerts(), 60, alertmanager.alerts)
    finally:
        for role in roles:
            await end(role)


async def test_an_alertmanager_that_lost_its_alerts_gets_them_again(
    topics: KafkaSettings, producer: AIOKafkaProducer
) -> None:
    await publish(producer, topics, 1, "worker-2", [CPU])
    with local_alertmanager() as forgetful:
        role = await notifier(topics, forgetful.url)
        try:
            await until(lambda: len(forgetful.alerts()) == 1, 60, forgetful.alerts)
            forgetful.component.kill()
            forgetful.component.start()
            await until(lambda: len(_alerts_or_none(forgetful)) == 1, 60)
        finally:
            await end(role)
        # Nobody repeats it, so it ends by itself.
        await until(lambda: not forgetful.alerts(), 60, forgetful.alerts)


def _alerts_or_none(alertmanager: LocalAlertmanager) -> list[dict[str, object]]:
    try:
        return alertmanager.alerts()
    except OSError:
        return []
