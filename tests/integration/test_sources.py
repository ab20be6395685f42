"""Sources with a real broker: the file source and the simulated fleet.

The file source keeps the topics equal to its files. No source changes records of another one.
"""

import asyncio
import json
import time
from collections import Counter, defaultdict
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pipeline.agents.cluster_state import ClusterState, ClusterStateTopics
from pipeline.clock import SystemClock
from pipeline.errors import BrokerUnavailableError, KafkaError, TopicDriftError
from pipeline.kafka.client import client_options
from pipeline.kafka.partition import partition_of
from pipeline.kafka.partition_log import open_reader
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.process_guard import die_with_parent
from pipeline.settings import KafkaSettings, Settings
from pipeline.sources.compacted_writer import RECORDS, Entry, open_producer, read_back, write
from pipeline.sources.object_files import run_file_source
from pipeline.sources.simulated_fleet import BEHIND, run_fleet
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodRecord, split_pod_key
from pipeline.topics.registry import NODES, PODS, SAMPLES, Topic
from pipeline.topics.sample_rows import read_samples
from tests.broker import flags_of, messages, own_topics
from tests.metric_values import value_of
from tests.processes import environment, springtide, until

PARTITIONS = 4


@pytest.fixture
async def settings(broker: LocalKafka) -> Settings:
    kafka = own_topics(broker, PARTITIONS)
    await apply_topics(kafka)
    return Settings(kafka=kafka)


async def latest(kafka: KafkaSettings, topic: Topic) -> dict[bytes, bytes]:
    """Return the newest value by key; check that each key is in its node's partition."""
    values: dict[bytes, bytes] = {}
    for message in await messages(kafka, topic):
        node = message.key.decode() if topic is NODES else split_pod_key(message.key)[0]
        assert message.partition == partition_of(node, PARTITIONS)
        if message.value is None:
            values.pop(message.key, None)
        else:
            values[message.key] = message.value
    return values


async def has_keys(kafka: KafkaSettings, topic: Topic, *keys: bytes) -> bool:
    return set(await latest(kafka, topic)) == {*keys}


async def stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)


def write_files(folder: Path, nodes: list[str], pods: list[tuple[str, str]]) -> tuple[Path, Path]:
    of_nodes = [{"kind": "Node", "metadata": {"name": name}} for name in nodes]
    of_pods = [
        {"kind": "Pod", "metadata": {"name": uid, "namespace": "x", "uid": uid},
         "spec": {"nodeName": node}}
        for node, uid in pods
    ]  # fmt: skip
    paths = folder / "nodes.json", folder / "pods.json"
    for path, items in zip(paths, (of_nodes, of_pods), strict=True):
        path.write_text(json.dumps({"kind": "List", "items": items}))
    return paths


async def test_topics_follow_the_files(settings: Settings, tmp_path: Path) -> None:
    kafka = settings.kafka
    files = write_files(tmp_path, ["n1", "n2"], [("n1", "a"), ("n2", "b"), ("", "c")])
    source = asyncio.create_task(run_file_source(settings, *files, SystemClock()))

    await until(partial(has_keys, kafka, NODES, b"n1", b"n2"))
    await until(partial(has_keys, kafka, PODS, b"n1/a", b"n2/b", b"/c"))
    nodes, pods = await latest(kafka, NODES), await latest(kafka, PODS)
    assert decode_json(NodeRecord, nodes[b"n1"]).node == "n1"
    assert decode_json(PodRecord, pods[b"n2/b"]).cgroup_uid == "b"

    # A pod moves, another is deleted, and a node is deleted while the source runs.
    write_files(tmp_path, ["n2"], [("n2", "a"), ("n2", "b")])
    await until(partial(has_keys, kafka, PODS, b"n2/a", b"n2/b"))
    await until(partial(has_keys, kafka, NODES, b"n2"))
    await stopped(source)

    # An unchanged file writes nothing at the next start; deleted objects get tombstones.
    written = len(await messages(kafka, PODS))
    source = asyncio.create_task(run_file_source(settings, *files, SystemClock()))
    await asyncio.sleep(2)
    await stopped(source)
    assert len(await messages(kafka, PODS)) == written
    write_files(tmp_path, ["n2"], [("n2", "a")])
    source = asyncio.create_task(run_file_source(settings, *files, SystemClock()))
    await until(partial(has_keys, kafka, PODS, b"n2/a"))
    await stopped(source)


async def test_a_source_removes_only_what_it_wrote(settings: Settings, tmp_path: Path) -> None:
    kafka = settings.kafka
    async with open_producer(kafka, "test") as producer:
        other = [Entry(NODES, f"sim-{i}", f"sim-{i}".encode(), b"{}") for i in range(50)]
        assert await write(producer, kafka, "fleet", other) == 50
    nodes, _ = write_files(tmp_path, ["n1"], [])
    source = asyncio.create_task(run_file_source(settings, nodes, None, SystemClock()))
    await until(partial(has_keys, kafka, NODES, b"n1", *(entry.key for entry in other)))
    await stopped(source)
    reads = [(NODES, "fleet"), (NODES, "file"), (NODES, "nobody"), (PODS, "file")]
    read = [set(await read_back(kafka, topic, source_name)) for topic, source_name in reads]
    assert read == [{entry.key for entry in other}, {b"n1"}, set(), set()]


async def test_many_records_are_read_back(settings: Settings) -> None:
    kafka = settings.kafka
    entries = [Entry(PODS, f"n{i % 7}", f"n{i % 7}/{i}".encode(), b"x" * 500) for i in range(5000)]
    gone = [entry._replace(value=None) for entry in entries[:1000]]
    async with open_producer(kafka, "test") as producer:
        assert await write(producer, kafka, "file", [*entries, *gone]) == 6000
    assert set(await read_back(kafka, PODS, "file")) == {entry.key for entry in entries[1000:]}


async def test_batches_are_read_back_as_they_were_written(settings: Settings) -> None:
    kafka, random = settings.kafka, Random(7)
    sizes = [0, 10, 1500, 1 << 18, 3 << 20]
    entries = []
    for i in range(3000):
        node = f"n{random.randrange(7)}"
        size = sizes[0 if i % 3 else random.randrange(3)] if i % 1000 else sizes[i // 1000 + 2]
        value = random.randbytes(size) if random.random() < 0.9 else None
        entries.append(Entry(PODS, node, f"{node}/{random.randrange(300)}".encode(), value))
    known = {entry.key: entry.value for entry in entries}
    counted = {of: _written("test", of) for of in ("value", "tombstone")}
    async with open_producer(kafka, "test", f"{kafka.topic_prefix}-sole") as producer:
        for at in range(0, len(entries), 700):
            async with producer.transaction():
                await write(producer, kafka, "test", entries[at : at + 700])
    there = {key: value for key, value in known.items() if value is not None}
    assert await read_back(kafka, PODS, "test") == there
    gone = sum(entry.value is None for entry in entries)
    assert _written("test", "tombstone") - counted["tombstone"] == gone
    assert _written("test", "value") - counted["value"] == len(entries) - gone


def _written(source: str, change: str) -> float:
    return value_of(RECORDS.labels(source, PODS.name, change))


async def test_the_fleet_fills_the_topics_and_continues_in_real_time(settings: Settings) -> None:
    kafka = settings.kafka
    begun = time.time()
    source = asyncio.create_task(
        run_fleet(
            settings, nodes=20, clock=SystemClock(), seed=4, hours_back=1.0, window_seconds=2,
            history_window_seconds=300, pods_per_node=6,
        )
    )  # fmt: skip

    async def caught_up() -> bool:
        assert not source.done() or source.result()
        return time.time() > begun + 2 and 0 < value_of(BEHIND) < 4

    async def goes_on() -> bool:
        """Whether each node has three windows of real time."""
        headers = [read_samples(message.value).header for message in await messages(kafka, SAMPLES)]
        short = Counter(h.node for h in headers if h.window_end_ms - h.window_start_ms == 2000)
        return len(short) == 20 and min(short.values()) >= 3

    await until(caught_up, 120)
    await until(goes_on, 120)
    assert not source.done() or source.result()
    assert len(await latest(kafka, NODES)) == 20
    assert len(await latest(kafka, PODS)) >= 60
    await stopped(source)

    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for message in await messages(kafka, SAMPLES):
        sample = read_samples(message.value)
        header = sample.header
        assert header.simulated
        assert header.node == message.key.decode()
        assert message.partition == partition_of(header.node, PARTITIONS)
        assert header.window_end_ms <= message.timestamp, "a window of the future"
        assert len(sample.rows) > 1
        spans[header.node].append((header.window_start_ms / 1000, header.window_end_ms / 1000))
    assert len(spans) == 20
    for of_node in spans.values():
        assert of_node[0][0] <= begun - 3600 < begun <= of_node[-1][1]
        assert all(end == start for (_, end), (start, _) in pairwise(of_node))
        assert sum(end - start == 2 for start, end in of_node) >= 3


async def test_a_source_without_topics_raises_an_error_with_a_hint(
    broker: LocalKafka, tmp_path: Path
) -> None:
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, topic_prefix="test-none")
    nodes, pods = write_files(tmp_path, ["n1"], [])
    with pytest.raises(TopicDriftError, match="is missing") as caught:
        await run_file_source(Settings(kafka=kafka), nodes, pods, SystemClock())
    assert "springtide topics apply" in str(caught.value)
    with pytest.raises(TopicDriftError):
        await run_fleet(Settings(kafka=kafka), nodes=1, clock=SystemClock())


async def test_a_source_without_a_broker_fails_at_once() -> None:
    settings = Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    with pytest.raises(BrokerUnavailableError):
        await run_fleet(settings, nodes=1, clock=SystemClock())
    with pytest.raises(BrokerUnavailableError):
        await read_back(settings.kafka, NODES, "file")
    with pytest.raises(BrokerUnavailableError):
        async with open_producer(settings.kafka, "test"):
            pass


async def begun(producer: Any, kafka: KafkaSettings, *entries: Entry) -> Any:
    """Write in a transaction without ending it, and return the transaction."""
    transaction = producer.transaction()
    await transaction.__aenter__()
    await write(producer, kafka, "cluster", entries)
    return transaction


async def test_an_open_transaction_of_a_replaced_writer_is_not_read(settings: Settings) -> None:
    kafka = settings.kafka
    name = f"{kafka.topic_prefix}-watcher"
    old, new = (Entry(NODES, "n1", b"n1", encode_json(NodeRecord(node="n1", uid=u))) for u in "on")
    other = Entry(NODES, "n2", b"n2", encode_json(NodeRecord(node="n2")))
    async with open_producer(kafka, "first", name) as first:
        async with first.transaction():
            await write(first, kafka, "cluster", [old])
        transaction = await begun(first, kafka, new, other)
        async with open_producer(kafka, "second", name) as second:
            # For the next writer, for a loading worker, and for a following one.
            assert await read_back(kafka, NODES, "cluster") == {b"n1": old.value}
            assert await loaded(kafka) == {"n1": "o"}
            with pytest.raises(KafkaError, match="ProducerFenced"):
                await transaction.__aexit__(None, None, None)
            async with second.transaction():
                await write(second, kafka, "cluster", [other])
            assert await loaded(kafka) == {"n1": "o", "n2": ""}


async def loaded(kafka: KafkaSettings) -> dict[str, str]:
    """Return the UIDs of the nodes that a worker loads."""

    async def refuse(*of: object) -> None:
        raise AssertionError(of)

    topics, state = ClusterStateTopics(kafka.topic_prefix, refuse), ClusterState()
    places = [(name, p) for name in (topics.nodes, topics.pods) for p in range(PARTITIONS)]
    async with open_reader(client_options(kafka), places) as reader:
        for partition in range(PARTITIONS):
            await topics.load(reader, partition, state, {})
    return {name: of.uid for name, of in state.nodes.items()}


async def test_a_worker_finds_files_relative_to_its_start_directory(
    settings: Settings, tmp_path: Path
) -> None:
    """Faust changes to its data directory, which is elsewhere."""
    node = {"kind": "Node", "metadata": {"name": "here"}}
    listing = {"apiVersion": "v1", "kind": "List", "items": [node]}
    (tmp_path / "nodes.json").write_text(json.dumps(listing))
    kafka = settings.kafka
    command = springtide(
        *("worker", "--no-supervise", *flags_of(kafka), "--id", kafka.topic_prefix),
        *("--metrics-port", "0", "--nodes-file", "nodes.json"),
        *("--data-dir", str(tmp_path / "data")),
    )
    process = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, env=environment(), stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL, preexec_fn=die_with_parent,
    )  # fmt: skip
    try:
        await until(partial(has_keys, kafka, NODES, b"here"), 60)
    finally:
        process.terminate()
        await process.wait()
