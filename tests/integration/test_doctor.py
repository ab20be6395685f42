"""Doctor with a real broker: missing and changed topics, and workers with conflicting ids."""

import asyncio
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer
from click.testing import CliRunner

from pipeline.cli.doctor import broker, workers
from pipeline.cli.doctor_check import Check
from pipeline.cli.main import cli
from pipeline.local.local_kafka import LocalKafka
from pipeline.settings import KafkaSettings, Settings


@pytest.fixture
def kafka(broker: LocalKafka) -> KafkaSettings:
    return KafkaSettings(
        bootstrap_servers=broker.bootstrap_servers,
        topic_prefix=f"doctor-{uuid4().hex[:8]}",
        partitions=2,
    )


def checks(kafka: KafkaSettings) -> dict[str, Check]:
    return {check.name: check for check in broker(Settings(kafka=kafka))}


def test_missing_topics_fail_until_they_are_applied(kafka: KafkaSettings) -> None:
    before = checks(kafka)
    assert before["kafka"].status == "ok"
    assert before["topics"].status == "fail"
    assert "topics apply" in before["topics"].todo
    flags = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", kafka.topic_prefix]
    applied = CliRunner().invoke(cli, ["topics", "apply", *flags, "--partitions", "2"])
    assert applied.exit_code == 0, applied.output
    after = checks(kafka)
    assert after["topics"].status == "ok"
    assert after["workers"].status == "warn"
    result = CliRunner().invoke(cli, ["doctor", *flags, "--partitions", "3"])
    assert result.exit_code == 1
    assert "2 partitions, not 3" in result.stdout


async def member(kafka: KafkaSettings, topic: str, group: str, instance: str) -> AIOKafkaConsumer:
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group,
        group_instance_id=instance,
        heartbeat_interval_ms=200,
    )
    await consumer.start()
    return consumer


async def test_two_workers_with_one_instance_id_are_reported(
    kafka: KafkaSettings, broker: LocalKafka
) -> None:
    group = f"group-{uuid4().hex[:8]}"
    flags = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", kafka.topic_prefix]
    await asyncio.to_thread(CliRunner().invoke, cli, ["topics", "apply", *flags])
    consumer = await member(kafka, f"{kafka.topic_prefix}.samples", group, "worker-0")
    try:
        found = await asyncio.to_thread(workers, kafka, group)
        assert found.status == "ok"
        assert "Stable, 1 member" in found.found
        second = await member(kafka, f"{kafka.topic_prefix}.samples", group, "worker-0")
        try:
            found = await asyncio.to_thread(workers, kafka, group)
        finally:
            await second.stop()
    finally:
        await consumer.stop()
    assert found.status == "fail"
    assert "worker.instance_id" in found.todo
