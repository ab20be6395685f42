"""The launcher against the real Kafka: started, stopped, killed, restarted, abandoned."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import UnknownTopicOrPartitionError

from pipeline.errors import LocalKafkaError
from pipeline.local import local_kafka as launcher
from pipeline.local.broker_properties import (
    MAX_MESSAGE_BYTES,
    ClusterNode,
    properties_text,
    server_properties,
)
from pipeline.local.local_kafka import LocalKafka, local_kafka
from pipeline.local.port_probe import HOST, free_port, is_free
from pipeline.local.process_guard import die_with_parent
from tests.processes import eventually, is_alive

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalKafka]:
    with local_kafka() as broker:
        yield broker


async def make_topic(bootstrap_servers: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()


async def produce(bootstrap_servers: str, topic: str, *values: bytes) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers,
        enable_idempotence=True,
        max_request_size=MAX_MESSAGE_BYTES,
    ) as producer:
        for value in values:
            await producer.send_and_wait(topic, value)


async def consume(bootstrap_servers: str, topic: str, count: int) -> list[bytes]:
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap_servers,
        group_id=f"{topic}-readers",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        return [(await asyncio.wait_for(consumer.getone(), 60)).value for _ in range(count)]


@pytest.mark.broker
async def test_group_consumes_produced_records(broker: LocalKafka) -> None:
    large = os.urandom(MAX_MESSAGE_BYTES - 1024)
    await make_topic(broker.bootstrap_servers, "launcher.round-trip")
    await produce(broker.bootstrap_servers, "launcher.round-trip", b"one", large)
    assert await consume(broker.bootstrap_servers, "launcher.round-trip", 2) == [b"one", large]


@pytest.mark.broker
async def test_unknown_topic_is_not_created(broker: LocalKafka) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, request_timeout_ms=5000)
    await producer.start()
    try:
        with pytest.raises(UnknownTopicOrPartitionError):
            await producer.send_and_wait("launcher.mistyped", b"x")
    finally:
        await producer.stop()


@pytest.mark.broker
def test_restart_after_stop_or_kill_has_the_same_port_and_data(broker: LocalKafka) -> None:
    topic, at, first = "launcher.kept", broker.bootstrap_servers, broker.pid
    asyncio.run(make_topic(at, topic))
    asyncio.run(produce(at, topic, b"before the stop"))
    broker.stop()
    assert broker.pid is None
    assert is_free(broker.port)
    broker.stop()  # nothing to do
    broker.start()
    broker.start()  # nothing to do
    assert (broker.bootstrap_servers, broker.pid is not None) == (at, True)
    assert broker.pid != first
    asyncio.run(produce(at, topic, b"before the kill"))
    victim = broker.pid
    broker.kill()
    assert is_free(broker.port)
    assert not list(Path(tempfile.gettempdir()).glob(f"hsperfdata_*/{victim}"))
    broker.start()
    asyncio.run(produce(at, topic, b"after it"))
    assert asyncio.run(consume(at, topic, 3)) == [
        b"before the stop",
        b"before the kill",
        b"after it",
    ]


@pytest.mark.broker
def test_long_log_is_rotated_at_the_next_start(
    broker: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "LOG_ROTATION_BYTES", 1)
    broker.stop()
    size_bytes = broker.log_file.stat().st_size
    broker.start()
    assert broker.log_file.with_suffix(".log.1").stat().st_size == size_bytes
    # The broker answers requests before it logs that it started.
    deadline = time.monotonic() + 90
    while "Kafka Server started" not in broker.log_file.read_text():
        assert time.monotonic() < deadline, broker.log_file.read_text()
        time.sleep(0.05)


@pytest.mark.broker
def test_lost_race_for_a_port_selects_another(
    broker: LocalKafka, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    draws = iter([broker.port])
    monkeypatch.setattr(
        launcher, "free_port", lambda excluded_port=None: next(draws, None) or free_port()
    )
    with local_kafka() as second:
        # The winner is a broker that answers; it must not be taken for the second one.
        assert "Address already in use" in second.log_file.read_text()
        port, pid, folder = second.port, second.pid, second.data_dir
        assert port != broker.port
        assert pid is not None
        assert is_alive(pid)
        assert folder.parent == tmp_path
    assert not is_alive(pid)
    assert is_free(port)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.broker
def test_kill_9_of_the_program_leaves_no_java_and_no_directory(tmp_path: Path) -> None:
    program = (
        "import time\n"
        "from pipeline.local.local_kafka import LocalKafka\n"
        "broker = LocalKafka()\n"
        "broker.start()\n"
        "print(broker.pid, broker.port, broker.data_dir, flush=True)\n"
        "time.sleep(300)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        preexec_fn=die_with_parent,
    )
    assert parent.stdout is not None
    pid, port, folder = parent.stdout.readline().split()
    assert is_alive(int(pid))
    assert Path(folder).parent == tmp_path
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert eventually(lambda: not is_alive(int(pid)) and not list(tmp_path.iterdir()))
    assert is_free(int(port))


@pytest.mark.broker
def test_failed_start_is_an_error_with_the_log_and_keeps_the_data_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "meta.properties").write_text(
        "version=1\nnode.id=77\ncluster.id=another-cluster-s-data1\ndirectory.id=x\n"
    )
    (tmp_path / "formatted").touch()
    broker = LocalKafka(tmp_path)
    try:
        with pytest.raises(LocalKafkaError, match="ended at its start") as caught:
            broker.start()
    finally:
        broker.close()
    assert "meta.properties" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert (data / "meta.properties").exists()
    assert not Path(f"/proc/{broker.pid}").exists()


@pytest.mark.broker
def test_slow_start_is_an_error() -> None:
    broker = LocalKafka()
    try:
        with pytest.raises(LocalKafkaError, match="was not ready in time"):
            broker.start(timeout_seconds=0.3)
        assert broker.pid is None
    finally:
        folder = broker.data_dir
        broker.close()
    assert not folder.exists()


def test_requested_port_in_use_is_an_error() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        broker = LocalKafka(port=port)
        try:
            with pytest.raises(LocalKafkaError, match=f"port {port} .* is in use"):
                broker.start()
        finally:
            broker.close()


def test_missing_java_is_reported_before_the_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "find_java", Mock(side_effect=LocalKafkaError("none")))
    monkeypatch.setattr(launcher, "ensure_jars", lambda: pytest.fail("fetched"))
    with pytest.raises(LocalKafkaError, match="none"), local_kafka():
        pass


def test_unwritable_data_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(LocalKafkaError, match="cannot create the broker's data directory"),
        local_kafka(tmp_path / "file" / "data"),
    ):
        pass


def test_comma_in_the_data_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalKafkaError, match="comma"), local_kafka(tmp_path / "a,b"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_properties_are_ascii_with_java_escapes() -> None:
    assert properties_text({"a": "/x", "b.c": " é\\🌊"}) == (
        "a=/x\nb.c=\\u0020\\u00e9\\u005c\\ud83c\\udf0a\n"
    )


def test_properties_before_the_first_start_are_errors() -> None:
    broker = LocalKafka()
    for unknown in ("bootstrap_servers", "data_dir", "java", "log_file"):
        with pytest.raises(LocalKafkaError, match="is not running"):
            getattr(broker, unknown)
    assert broker.pid is None
    broker.stop()
    broker.close()


def test_broker_settings_use_only_loopback(tmp_path: Path) -> None:
    node = ClusterNode(1, {1: 2, 2: 3}, broker_port=4, proxied_port=5, proxy_port=6)
    settings = server_properties(port=1, node=node, log_dir=tmp_path, identity="local-test")
    addresses = settings["listeners"] + settings["advertised.listeners"]
    assert addresses.count("://") == addresses.count(f"://{HOST}:") == 7


def test_a_secure_data_directory_is_never_opened_without_protection(tmp_path: Path) -> None:
    (tmp_path / "security").mkdir()
    with pytest.raises(LocalKafkaError, match=r"secure broker.*--secure.*remove .*/security"):
        LocalKafka(tmp_path).start()
    assert [path.name for path in tmp_path.iterdir()] == ["security"]


def test_an_open_data_directory_is_not_made_secure(tmp_path: Path) -> None:
    (tmp_path / "formatted").touch()
    with pytest.raises(LocalKafkaError, match=r"is of a broker without users.*--data-dir"):
        LocalKafka(tmp_path, secure=True).start()
    assert [path.name for path in tmp_path.iterdir()] == ["formatted"]
