"""Topics with a real broker: created, compared and corrected, with clear errors."""

import asyncio
import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from msgspec.structs import replace

from pipeline.errors import BrokerUnavailableError, KafkaError, TopicDriftError
from pipeline.kafka import topic_admin
from pipeline.kafka.client import client_options
from pipeline.kafka.topic_admin import CONNECT_SECONDS, apply_topics, check_topics, require_topics
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.port_probe import free_port
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import SAMPLES, TOPICS, WINDOWS, Topic
from tests.broker import admin_client, flags_of, own_topics
from tests.processes import ROOT, environment, springtide, until


@pytest.fixture
def kafka(broker: LocalKafka) -> KafkaSettings:
    return own_topics(broker, 3)


async def set_by_hand(kafka: KafkaSettings, topic: str, config: dict[str, str]) -> None:
    async with admin_client(client_options(kafka)) as client:
        name = f"{kafka.topic_prefix}.{topic}"
        await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, config)])


async def test_check_finds_no_drift_after_apply(kafka: KafkaSettings) -> None:
    missing = await check_topics(kafka)
    assert [d.kind for d in missing] == ["missing"] * len(TOPICS)
    assert all(d.mendable for d in missing)

    would = await apply_topics(kafka, dry_run=True)
    assert [c.action for c in would] == ["create"] * len(TOPICS)
    assert await check_topics(kafka) == missing

    told: list[object] = []
    assert (await apply_topics(kafka, progress=told.append)) == would == told
    assert await check_topics(kafka) == []
    assert await apply_topics(kafka) == []
    await require_topics(kafka, TOPICS)

    async with admin_client(client_options(kafka)) as client:
        found = {t["topic"]: len(t["partitions"]) for t in await client.describe_topics()}
    for topic in TOPICS:
        assert found[topic.full_name(kafka.topic_prefix)] == topic.partition_count(3)


async def test_a_changed_setting_is_reported_and_corrected(kafka: KafkaSettings) -> None:
    await apply_topics(kafka)
    # The request replaces all settings of the topic: only these two are left.
    await set_by_hand(kafka, "samples", {"retention.ms": "60000", "min.insync.replicas": "1"})

    async def has_drift(count: int) -> bool:
        return len(await check_topics(kafka)) == count

    await until(lambda: has_drift(4))
    drift = {d.key: d for d in await check_topics(kafka)}
    assert set(drift) == {
        "retention.ms", "segment.ms", "message.timestamp.type", "max.message.bytes",
    }  # fmt: skip
    retention = drift["retention.ms"]
    assert (retention.found, retention.wanted) == ("60000", str(SAMPLES.retention_ms))
    assert f"samples: retention.ms is 60000, not {SAMPLES.retention_ms}" in str(retention)
    await require_topics(kafka, TOPICS)  # does not affect readers and writers

    assert len(await apply_topics(kafka, dry_run=True)) == 1
    assert len(await check_topics(kafka)) == 4
    (change,) = await apply_topics(kafka)
    assert change.action == "alter"
    await until(lambda: has_drift(0))

    async with admin_client(client_options(kafka)) as client:
        resource = ConfigResource(ConfigResourceType.TOPIC, f"{kafka.topic_prefix}.samples")
        (response,) = await client.describe_configs([resource])
        entries = {name: source for name, _, _, source, *_ in response.resources[0][4]}
    assert entries["min.insync.replicas"] == 1, "what others have set on the topic is kept"


async def test_the_number_of_partitions_is_never_changed(kafka: KafkaSettings) -> None:
    async with admin_client(client_options(kafka)) as client:
        await client.create_topics([NewTopic(f"{kafka.topic_prefix}.windows", 5, 1)])
    await apply_topics(kafka)
    (drift,) = await check_topics(kafka)
    assert (drift.kind, drift.found, drift.wanted, drift.mendable) == (
        "partitions", "5", "3", False,
    )  # fmt: skip
    assert "another kafka.topic_prefix" in str(drift)
    assert await apply_topics(kafka) == []
    with pytest.raises(TopicDriftError, match="5 partitions, not 3"):
        await require_topics(kafka, TOPICS)


async def test_the_replication_factor_is_reported(kafka: KafkaSettings) -> None:
    await apply_topics(kafka)
    drift = await check_topics(replace(kafka, replication_factor=3))
    assert [(d.kind, d.mendable) for d in drift] == [("replication", False)] * len(TOPICS)


async def test_more_replicas_than_brokers_are_an_error(kafka: KafkaSettings) -> None:
    with pytest.raises(KafkaError, match="InvalidReplicationFactor") as caught:
        await apply_topics(replace(kafka, replication_factor=3))
    assert "kafka.replication_factor" in (caught.value.hint or "")


async def test_two_concurrent_applies_succeed(kafka: KafkaSettings) -> None:
    await asyncio.gather(apply_topics(kafka), apply_topics(kafka))
    assert await check_topics(kafka) == []


async def test_topics_of_another_prefix_are_ignored(kafka: KafkaSettings) -> None:
    await apply_topics(kafka)
    other = replace(kafka, topic_prefix=f"{kafka.topic_prefix}x")
    assert len(await check_topics(other)) == len(TOPICS)


@pytest.mark.parametrize("declared", [SAMPLES, WINDOWS], ids=lambda topic: topic.name)
async def test_the_largest_record_fits_and_the_broker_sets_the_time(
    kafka: KafkaSettings, declared: Topic
) -> None:
    await apply_topics(kafka)
    topic, size = declared.full_name(kafka.topic_prefix), declared.max_bytes - 200
    async with AIOKafkaProducer(
        **client_options(kafka), acks="all", enable_idempotence=True, max_request_size=size + 1000
    ) as producer:
        before = time.time() * 1000
        sent = await producer.send_and_wait(topic, b"x" * size, timestamp_ms=1000)
    assert sent.timestamp_type == 1
    options = client_options(kafka) | {"auto_offset_reset": "earliest"}
    async with AIOKafkaConsumer(topic, **options) as consumer:
        message = await asyncio.wait_for(consumer.getone(), 60)
    assert len(message.value) == size
    assert before - 5000 < message.timestamp < before + 60_000


# ---- no broker


async def test_a_missing_broker_is_reported_at_once() -> None:
    begun = time.monotonic()
    with pytest.raises(BrokerUnavailableError, match=r"no broker answers at 127\.0\.0\.1:\d+"):
        await check_topics(KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}"))
    assert time.monotonic() - begun < CONNECT_SECONDS


async def test_a_silent_port_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_admin, "CONNECT_SECONDS", 1.0)
    begun = time.monotonic()
    # It accepts connections, and never answers.
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(BrokerUnavailableError):
            await apply_topics(KafkaSettings(bootstrap_servers=address))
    assert time.monotonic() - begun < 30


async def test_wrong_security_settings_are_an_error_in_bounded_time(broker: LocalKafka) -> None:
    begun = time.monotonic()
    with pytest.raises(KafkaError):
        await check_topics(
            KafkaSettings(bootstrap_servers=broker.bootstrap_servers, security_protocol="SSL")
        )
    assert time.monotonic() - begun < CONNECT_SECONDS + 30


# ---- the command


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SPRINGTIDE_")}
    command = springtide(*arguments)
    return subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=60)


def test_the_command(kafka: KafkaSettings) -> None:
    where = flags_of(kafka)
    ran = run("topics", "check", "-o", "json", *where)
    assert ran.returncode == 3
    report = json.loads(ran.stdout)
    assert len(report["drift"]) == report["topics"] == len(TOPICS)
    assert report["drift"][0]["kind"] == "missing"

    ran = run("topics", "apply", "--dry-run", *where)
    assert (ran.returncode, ran.stdout.count("would create")) == (0, len(TOPICS)), ran.stderr
    assert run("topics", "check", *where).returncode == 3

    ran = run("topics", "apply", *where)
    assert (ran.returncode, ran.stdout.count("create ")) == (0, len(TOPICS)), ran.stderr

    for action, text, drift in (
        ("check", f"{len(TOPICS)} topics are as declared\n", "has 3 partitions, not 4"),
        ("apply", "nothing to do: all topics are as declared\n", "never changed"),
    ):
        ran = run("topics", action, *where)
        assert (ran.returncode, ran.stdout) == (0, text)
        ran = run("topics", action, *where[:-1], "4")
        assert (ran.returncode, drift in ran.stdout) == (3, True)


def test_the_command_without_a_broker() -> None:
    ran = run("topics", "check", "--bootstrap-servers", f"127.0.0.1:{free_port()}")
    assert ran.returncode == 1
    error, fix = ran.stderr.splitlines()
    assert error.startswith("error: checking topics: no broker answers at 127.0.0.1:")
    assert "springtide kafka start" in fix


def test_a_supervised_worker_with_wrong_partitions_ends(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    asyncio.run(apply_topics(kafka))
    flags = flags_of(replace(kafka, partitions=kafka.partitions + 4))
    ended = subprocess.run(
        springtide("worker", "--data-dir", str(tmp_path), "--metrics-port", "0", *flags),
        env=environment(), capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert ended.returncode == 2
    assert f"set kafka.partitions (--partitions) to {kafka.partitions}" in ended.stderr
    assert "restarting" not in ended.stderr
