"""The exporter command with a real broker: all windows arrive once and in order."""

import asyncio
import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, pod_dir
from pipeline.kafka.partition import partition_of
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.process_guard import die_with_parent
from pipeline.processors.policy.policy_in_force import Policies, load_policies, with_policy
from pipeline.settings import KafkaSettings
from pipeline.topics.codec import encode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import NODES, SAMPLES
from pipeline.topics.sample_rows import read_samples
from pipeline.topics.samples import COLUMNS, SampleHeader
from tests.broker import flags_of, messages, own_topics, send
from tests.cgroup_tree import CgroupTree, cgroup_tree
from tests.processes import environment, eventually, springtide, until

pytestmark = [pytest.mark.cgroups, pytest.mark.slow, pytest.mark.timeout(600)]

NODE = "exporter-test-node"


class Sample(NamedTuple):
    header: SampleHeader
    rows: list[dict[str, Any]]


class Exporter:
    """A running exporter with five readings a second and windows of one second."""

    def __init__(
        self, kafka: KafkaSettings, tree: CgroupTree, folder: Path, *flags: str, window: int = 1
    ) -> None:
        self.kafka = kafka
        self.socket = folder / "exporter.sock"
        self.log_file = folder / "exporter.log"
        arguments = {
            "node-name": NODE, "cgroup-parent": tree.name, "socket-path": self.socket,
            "window-seconds": window, "collect-interval-seconds": 0.2, "metrics-port": 0,
            "metrics-host": "127.0.0.1",
        }  # fmt: skip
        words = [f"--{name}={value}" for name, value in arguments.items()]
        with self.log_file.open("w") as log:
            self.process = subprocess.Popen(
                springtide("exporter", *flags_of(kafka), *words, *flags), stdout=log, stderr=log,
                cwd=folder, env=environment(), preexec_fn=die_with_parent,
            )  # fmt: skip
        assert eventually(lambda: "exporter started" in self.log), self.log

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def answer(self, path: str) -> str:
        """An answer of the page of metrics, with its head."""
        (started,) = self.events("exporter started")
        with socket.create_connection(("127.0.0.1", started["metrics_port"])) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def page(self) -> dict[str, float]:
        """Return the metrics page."""
        lines = (
            line.rpartition(" ")
            for line in self.answer("/metrics").splitlines()
            if line.startswith("springtide")
        )
        return {name: float(value) for name, _, value in lines}

    def is_ready(self) -> bool:
        return "200 OK" in self.answer("/readyz").splitlines()[0]

    def stop(self) -> int:
        """Send SIGTERM and wait; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(90)

    async def sent(self) -> list[Sample]:
        """Return all samples by offset."""
        found: list[Sample] = []
        place = partition_of(NODE, self.kafka.partitions)
        for record in await messages(self.kafka, SAMPLES):
            assert (record.key, record.partition) == (NODE.encode(), place)
            sample = read_samples(record.value)
            rows = [{name: row.get(name) for name in COLUMNS} for row in sample.rows]
            found.append(Sample(sample.header, rows))
        return found

    async def complete(self, at_least: int, seconds: float = 120) -> list[Sample]:
        """Wait for so many windows, and return all."""
        deadline = time.monotonic() + seconds
        while len(found := await self.sent()) < at_least:
            assert time.monotonic() < deadline, f"{len(found)} of {at_least} windows\n{self.log}"
            await asyncio.sleep(0.3)
        return found


@pytest.fixture
async def kafka(broker: LocalKafka) -> KafkaSettings:
    """Return settings with topics for this test alone."""
    settings = own_topics(broker, 3)
    await apply_topics(settings)
    return settings


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    with cgroup_tree("publish") as tree:
        for uid in ("one", "two"):
            path = f"{pod_dir(Driver.CGROUPFS, KubeQOS.BURSTABLE, uid)}/{'c0' * 32}"
            tree.make(path)
            tree.run(path, "sleep", "600")
        yield tree


@contextmanager
def running(
    kafka: KafkaSettings, tree: CgroupTree, folder: Path, *flags: str, window: int = 1
) -> Iterator[Exporter]:
    exporter = Exporter(kafka, tree, folder, *flags, window=window)
    try:
        yield exporter
    finally:
        exporter.process.kill()
        exporter.process.wait()


def sequences(samples: list[Sample]) -> list[int]:
    return [sample.header.sequence for sample in samples]


def ends(samples: list[Sample]) -> list[int]:
    return [sample.header.window_end_ms for sample in samples]


def is_whole(sample: Sample) -> bool:
    """Whether a window of five seconds has all of its readings."""
    row = sample.rows[0]
    return (row["coverage"], len(row["points_cpu_cores"] or ())) == (1.0, 25)


def are_in_order(samples: list[Sample], length_ms: int) -> bool:
    """Whether no window comes twice or early. An exporter that the machine does not run for a
    window has none to send."""
    gaps = [b - a for a, b in pairwise(ends(samples))]
    return all(gap >= length_ms and gap % length_ms == 0 for gap in gaps)


async def test_windows_arrive_and_sigterm_publishes_the_current_window(
    kafka: KafkaSettings, tree: CgroupTree, tmp_path: Path
) -> None:
    with running(kafka, tree, tmp_path, window=5) as exporter:

        async def has_whole_window() -> bool:
            return any(is_whole(sample) for sample in await exporter.sent())

        await exporter.complete(at_least=2)
        # A busy machine misses readings.
        await until(has_whole_window, 120)
        # In the middle of a window.
        await asyncio.sleep((7.5 - time.time() % 5) % 5)
        assert exporter.stop() == 0
        samples = await exporter.sent()
    assert sequences(samples) == list(range(len(samples)))
    assert are_in_order(samples, 5000)
    assert len({sample.header.epoch for sample in samples}) == 1
    whole, half = next(filter(is_whole, samples)), samples[-1]
    assert [(row["kind"], row["id"]) for row in whole.rows] == [
        ("node", ""), ("tier", "system"), ("pod", "one"), ("pod", "two"),
    ]  # fmt: skip
    assert whole.rows[0]["cpu_cores_avg"] > 0
    assert whole.rows[1]["memory_bytes_avg"] > 0
    assert 0 < half.rows[0]["coverage"] < 1
    assert not exporter.socket.exists()
    assert exporter.events("exporter stopped")


async def test_interval_and_host_applications_of_the_policy_apply_without_a_restart(
    kafka: KafkaSettings, tree: CgroupTree, tmp_path: Path
) -> None:
    """The watcher publishes the ConfigMap's policy; the exporter applies it to its node."""
    own, other = {"pool": "slow"}, {"pool": "fast"}
    tree.make("outside")
    tree.run("outside", "sleep", "600")
    application = {
        "name": "nginx", "qos": "LS",
        "cgroupPath": {"parentDir": tree.name, "relativePath": "outside"},
    }  # fmt: skip
    texts = {"host-application-config": json.dumps({"applications": [application]})}
    policies, problems = load_policies({"colocation-config": SLOW_POOL, **texts})
    assert not problems

    async def publish(name: str, labels: dict[str, str], policies: Policies) -> None:
        record, _ = with_policy(NodeRecord(node=name, labels=labels), policies)
        await send(kafka, NODES, (name, encode_json(record)))

    async def lengths() -> list[int]:
        headers = [sample.header for sample in await exporter.sent()]
        assert all(a.window_end_ms <= b.window_start_ms for a, b in pairwise(headers))
        return [header.window_end_ms - header.window_start_ms for header in headers]

    async def host_apps() -> list[dict[str, Any]]:
        return [row for row in (await exporter.sent())[-1].rows if row["kind"] == "host_app"]

    async def comes(length: int) -> None:
        async def has_come() -> bool:
            return (await lengths())[-1:] == [length]

        await until(has_come, 120, lambda: exporter.log)

    flags = ("--request-timeout-seconds=2",)
    await publish(NODE, other, policies)
    with running(kafka, tree, tmp_path, *flags) as exporter:
        await exporter.complete(at_least=4)
        await publish("another-node", own, policies)
        await publish(NODE, own, policies)
        await comes(4000)
        assert exporter.page()["springtide_exporter_window_seconds"] == 4.0
        (measured,) = await host_apps()
        assert (measured["id"], measured["qos"]) == ("nginx", "LS")
        assert measured["memory_bytes_avg"] > 0
        await publish(NODE, own, Policies())
        await comes(1000)
        assert not await host_apps()
        await send(kafka, NODES, (NODE, b"not a record"))
        await until(lambda: exporter.events("cannot decode the record of this node"))
        assert exporter.stop() == 0
    assert (await lengths())[:4] == [1000] * 4


SLOW_POOL = """{
  "enable": true,
  "nodeConfigs": [
    {"name": "slow", "nodeSelector": {"matchLabels": {"pool": "slow"}},
     "metricReportIntervalSeconds": 4}
  ]
}"""


async def test_a_restart_within_a_window_publishes_no_end_twice(
    kafka: KafkaSettings, tree: CgroupTree, tmp_path: Path
) -> None:
    for at_least in (1, 3):
        with running(kafka, tree, tmp_path, window=5) as exporter:
            await exporter.complete(at_least=at_least)
            # One second into a window: a window is in progress, with time for a restart in it.
            await asyncio.sleep((6 - time.time() % 5) % 5)
            assert exporter.stop() == 0
            samples = await exporter.sent()
    assert len({sample.header.epoch for sample in samples}) == 2
    gaps = [b - a for a, b in zip(ends(samples), ends(samples)[1:], strict=False)]
    assert min(gaps) >= 5000
    assert gaps.count(5000) >= len(gaps) - 1  # a slow start misses one window


async def test_a_broker_outage_loses_no_window(
    broker: LocalKafka, kafka: KafkaSettings, tree: CgroupTree, tmp_path: Path
) -> None:
    with running(kafka, tree, tmp_path) as exporter:
        await exporter.complete(at_least=2)
        await asyncio.to_thread(broker.stop)
        try:
            waiting = "springtide_exporter_buffer_windows"
            await until(lambda: exporter.page()[waiting] >= 18, 120)
            assert exporter.events("windows are waiting for kafka")
            assert exporter.is_ready()  # else an update would end it, with these windows
        finally:
            await asyncio.to_thread(broker.start)
        samples = await exporter.complete(at_least=20)
        assert exporter.stop() == 0
        samples = await exporter.sent()
        # No duplicate, no loss, in order.
        assert sequences(samples) == list(range(len(samples)))
        assert are_in_order(samples, 1000)
        assert 1 <= len(exporter.events("windows are waiting for kafka")) <= 3
        assert exporter.events("kafka accepts windows again")


async def test_it_starts_without_a_broker_and_without_its_topic(
    broker: LocalKafka, tree: CgroupTree, tmp_path: Path
) -> None:
    kafka = own_topics(broker, 3, request_timeout_seconds=2)
    await asyncio.to_thread(broker.stop)
    try:
        with running(kafka, tree, tmp_path, "--request-timeout-seconds=2") as exporter:
            assert eventually(lambda: exporter.events("windows are waiting for kafka"))
            assert not exporter.is_ready()
            await asyncio.to_thread(broker.start)
            await asyncio.sleep(4)
            await apply_topics(msgspec.structs.replace(kafka, request_timeout_seconds=30))
            samples = await exporter.complete(at_least=8)
            assert exporter.is_ready()
            assert sequences(samples) == list(range(len(samples)))
            assert exporter.stop() == 0
    finally:
        await asyncio.to_thread(broker.start)


async def test_a_full_buffer_drops_and_counts_the_oldest_windows(
    broker: LocalKafka, kafka: KafkaSettings, tree: CgroupTree, tmp_path: Path
) -> None:
    with running(kafka, tree, tmp_path, "--buffer-bytes=65536") as exporter:
        before = await exporter.complete(at_least=1)
        await asyncio.to_thread(broker.stop)
        try:
            dropped = 'springtide_exporter_windows_dropped_total{reason="buffer_full"}'
            assert eventually(lambda: exporter.page().get(dropped, 0) >= 2, 120)
            assert exporter.page()["springtide_exporter_buffer_bytes"] < 65536 + 20_000
        finally:
            await asyncio.to_thread(broker.start)
        assert eventually(lambda: exporter.page()["springtide_exporter_buffer_windows"] == 0, 120)
        lost = round(exporter.page()[dropped])
        assert exporter.stop() == 0
        samples = await exporter.sent()
    found = sequences(samples)
    assert (found, len(found)) == (sorted(set(found)), found[-1] + 1 - lost)
    assert found[: len(before)] == sequences(before)


async def test_a_suspended_process_resumes_and_reports_missed_windows(
    kafka: KafkaSettings, tree: CgroupTree, tmp_path: Path
) -> None:
    with running(kafka, tree, tmp_path) as exporter:
        await exporter.complete(at_least=2)
        exporter.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(4)
        exporter.process.send_signal(signal.SIGCONT)
        await exporter.complete(at_least=len(await exporter.sent()) + 3)
        assert exporter.page()["springtide_exporter_collections_missed_total"] >= 15
        assert exporter.stop() == 0
        samples = await exporter.sent()
    assert sequences(samples) == list(range(len(samples)))
    gaps = [b - a for a, b in zip(ends(samples), ends(samples)[1:], strict=False)]
    assert max(gaps) >= 3000
    assert min(gaps) == 1000
    assert all(row["coverage"] <= 1 for sample in samples for row in sample.rows)


async def test_the_socket_serves_the_last_seconds(
    kafka: KafkaSettings, tree: CgroupTree, tmp_path: Path
) -> None:
    with running(kafka, tree, tmp_path) as exporter:
        await exporter.complete(at_least=2)
        reader, writer = await asyncio.open_unix_connection(str(exporter.socket), limit=1 << 20)
        writer.write(b'{"seconds": 1}\n')
        writer.write_eof()
        lines = [json.loads(line) for line in (await reader.read()).splitlines()]
        writer.close()
        # Five, less what a busy machine missed.
        assert lines[-1] == {"collections": len(lines) - 1}
        assert 1 <= len(lines) - 1 <= 5
        assert [usage["id"] for usage in lines[0]["usages"]] == ["", "one", "two"]
        assert lines[0]["system"]["cpu_cores"] >= 0
        assert exporter.page()["springtide_exporter_pods"] == 2
        assert exporter.stop() == 0
