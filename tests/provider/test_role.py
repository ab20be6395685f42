"""`springtide provider` from a real Prometheus to a real broker and a worker."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.clock import SystemClock
from pipeline.local.port_probe import free_port
from pipeline.local.process_guard import die_with_parent
from pipeline.processors.imported_usage.fetched_usage import TimeWindow
from pipeline.settings import KafkaSettings, Settings, variable_name
from pipeline.sources.compacted_writer import Entry, node_entry, open_producer, pod_entry, write
from pipeline.sources.provider.prometheus_source import open_prometheus
from pipeline.sources.provider.stream_source import open_stream
from pipeline.topics.codec import decode_json
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodRecord
from pipeline.topics.registry import NODE_STATE, SAMPLES
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.sample_rows import read_samples
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from tests.broker import latest, messages
from tests.cluster.roles import worker
from tests.processes import springtide, until
from tests.provider import machines
from tests.provider.conftest import HASH, OTHER_UID, TOLERANCE, UID, WINDOW_SECONDS
from tests.provider.local_prometheus import LocalPrometheus

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

ROLE = springtide("provider")


def environment(settings: Settings, **more: object) -> dict[str, str]:
    values: dict[str, object] = {
        f"{section}.{key}": getattr(getattr(settings, section), key)
        for section, keys in (
            ("kafka", ("bootstrap_servers", "topic_prefix", "partitions")),
            ("provider", settings.provider.__struct_fields__),
        )
        for key in keys
    }
    values |= {key.replace("__", "."): value for key, value in more.items()}
    texts = {
        key: ""
        if value is None
        else json.dumps(value)
        if isinstance(value, dict | bool)
        else str(value)
        for key, value in values.items()
    }
    return os.environ | {variable_name(key): text for key, text in texts.items()}


class Process:
    """A running provider and its status."""

    def __init__(self, settings: Settings, log: Path) -> None:
        self._port = free_port()
        self.log = log
        with log.open("a") as out:
            self._process = subprocess.Popen(
                ROLE, env=environment(settings, provider__port=self._port), stdout=out, stderr=out,
                preexec_fn=die_with_parent,
            )  # fmt: skip

    def ready(self) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._port}/readyz", timeout=30
            ) as page:
                return page.status, json.load(page)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, {}

    def stop(self, number: int = signal.SIGTERM) -> int:
        self._process.send_signal(number)
        return self._process.wait(60)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def running(settings: Settings, log: Path) -> Iterator[Process]:
    process = Process(settings, log)
    try:
        yield process
    finally:
        process.end()


async def samples(kafka: KafkaSettings) -> dict[str, list[SampleHeader]]:
    """Return the headers of all samples by node."""
    headers: dict[str, list[SampleHeader]] = {}
    for message in await messages(kafka, SAMPLES):
        header = read_samples(message.value).header
        assert header.node == message.key.decode()
        assert message.timestamp >= header.window_end_ms
        headers.setdefault(header.node, []).append(header)
    return headers


async def write_cluster_state(kafka: KafkaSettings) -> None:
    """Write nodes and pods as a watcher does."""
    requests = Resources(cpu_millicores=1000, memory_bytes=2**30)
    capacity = Resources(cpu_millicores=4000, memory_bytes=8 * 2**30)
    pods = [("n1", UID, UID, "web", "shop-0"), ("n1", "mirror", HASH, "kube-system", "etcd-n1"),
            ("n2", OTHER_UID, OTHER_UID, "web", "shop-1")]  # fmt: skip
    entries = [
        node_entry(NodeRecord(node=n, allocatable=capacity, capacity=capacity))
        for n in ("n1", "n2")
    ]
    entries += [
        pod_entry(PodRecord(
            node=node, uid=uid, cgroup_uid=cgroup, namespace=namespace, name=name,
            pod_class="prod", requests=requests, phase="Running",
        ))
        for node, uid, cgroup, namespace, name in pods
    ]  # fmt: skip
    async with open_producer(kafka, "test") as producer:
        await write(producer, kafka, "test", entries)


async def test_usage_of_prometheus_is_published_unchanged(
    settings: Settings, tmp_path: Path
) -> None:
    kafka = settings.kafka
    await write_cluster_state(kafka)
    log = tmp_path / "log"

    async def windows(count: int) -> bool:
        headers = await samples(kafka)
        return all(len(headers.get(node, ())) >= count for node in ("n1", "n2"))

    with running(settings, log) as provider:
        await until(lambda: windows(3), 120)
        await until(lambda: provider.ready()[0] == 200, explain=provider.ready)
        assert provider.ready()[1]["nodes"] == 2
        assert provider.stop() == 0
    headers = await samples(kafka)
    # Unknown nodes are logged once.
    assert headers.keys() == {"n1", "n2"}
    assert log.read_text().count("usage of unknown nodes") == 1
    for of_node in headers.values():
        assert {(h.machine_id, h.epoch) for h in of_node} == {("", 0)}
        first = of_node[0].sequence
        assert [h.sequence for h in of_node] == list(range(first, first + len(of_node)))
        assert all(h.window_end_ms == (h.sequence + 1) * 1000 * WINDOW_SECONDS for h in of_node)

    # A later query and the samples both return the published usage.
    last = headers["n1"][-1]
    window = TimeWindow(last.window_start_ms, last.window_end_ms)
    async with open_prometheus(settings, SystemClock(), None) as prometheus:
        queried = await prometheus.fetch(window)
    async with open_stream(settings, SystemClock(), None) as session:
        published = await session.fetch(window)
    assert published.nodes == {node: queried.nodes[node] for node in ("n1", "n2")}
    by_uid = {(pod.node, pod.uid): columns for pod, columns in published.pods.items()}
    by_name = {(pod.node, pod.name): columns for pod, columns in queried.pods.items()}
    assert by_uid == {
        ("n1", UID): by_name["n1", "shop-0"],
        ("n1", HASH): by_name["n1", "etcd-n1"],
        ("n2", OTHER_UID): by_name["n2", "shop-1"],
    }
    assert published.nodes["n1"]["cpu_cores_avg"] == pytest.approx(
        machines.BUSY_CORES, rel=TOLERANCE
    )


async def test_worker_treats_all_providers_as_one_exporter(
    settings: Settings, tmp_path: Path
) -> None:
    kafka = settings.kafka
    await write_cluster_state(kafka)

    async def state() -> NodeStateRecord | None:
        value = (await latest(kafka, NODE_STATE)).get("n1")
        return None if value is None else decode_json(NodeStateRecord, value)

    async def applied(count: int) -> bool:
        record = await state()
        return record is not None and record.counters.applied >= count

    async def repeated(count: int) -> bool:
        """Whether so many windows came again: late, if the other provider was a window ahead."""
        record = await state()
        return record is not None and record.counters.duplicate + record.counters.late >= count

    with worker(settings):
        with running(settings, tmp_path / "one"):
            await until(lambda: applied(2), 120)
        # The next provider starts with the window that may have been the last of the killed one.
        with running(settings, tmp_path / "two"), running(settings, tmp_path / "three"):
            await until(lambda: applied(5), 120)
            await until(lambda: repeated(2), 120)
        record = await state()
    assert record is not None
    assert record.counters.second_exporter == 0
    assert record.pods == 2
    assert record.class_usage["prod"].cpu_cores == pytest.approx(1.0, rel=TOLERANCE)
    assert record.usage.cpu_cores == pytest.approx(machines.BUSY_CORES, rel=TOLERANCE)


async def test_node_with_an_exporter_is_skipped(
    settings: Settings, tmp_path: Path, prometheus: LocalPrometheus
) -> None:
    kafka = settings.kafka
    await write_cluster_state(kafka)
    now = int(time.time()) // WINDOW_SECONDS * WINDOW_SECONDS
    header = SampleHeader(
        node="n2", machine_id="real", boot_id="b", epoch=1, sequence=0,
        window_start_ms=(now - WINDOW_SECONDS) * 1000, window_end_ms=now * 1000,
    )  # fmt: skip
    own = encode_samples(SampleBatch(header, [{"kind": "node", "id": "", "cpu_cores_avg": 1.0}]))
    async with open_producer(kafka, "test") as producer:
        await write(producer, kafka, "test", [Entry(SAMPLES, "n2", b"n2", own)])

    async def served_again() -> bool:
        headers = await samples(kafka)
        return len(headers["n2"]) > 1 and len(headers.get("n1", ())) >= 3

    with running(settings, tmp_path / "log"):
        # After three silent windows the exporter counts as stopped.
        await until(served_again, 180)
    first = (await samples(kafka))["n2"][1]
    # Later, if the provider started late.
    assert first.machine_id == ""
    assert first.window_end_ms >= (now + 4 * WINDOW_SECONDS) * 1000


def test_once_prints_a_window_without_kafka(settings: Settings) -> None:
    no_broker = environment(settings, kafka__bootstrap_servers="127.0.0.1:1")
    completed = subprocess.run([*ROLE, "--once"], env=no_broker, capture_output=True, timeout=120)
    assert completed.returncode == 0, completed.stderr
    lines = [msgspec.json.decode(line) for line in completed.stdout.splitlines()]
    nodes = [line["node"] for line in lines if line["kind"] == "node"]
    assert nodes == ["10.0.0.7", "ghost", "n1", "n2"]
    assert {line["uid"] for line in lines if line["kind"] == "pod"} == {"", UID, HASH}


def test_missing_topics_are_reported_with_a_hint(settings: Settings) -> None:
    other = environment(settings, kafka__topic_prefix="none-of-these")
    ended = subprocess.run(ROLE, env=other, capture_output=True, timeout=120, text=True)
    assert (ended.returncode, "springtide topics apply" in ended.stderr) == (3, True)
