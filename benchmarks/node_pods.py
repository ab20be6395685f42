"""Measure what it costs a planner to read the pods of hot nodes, on a real local broker.

    python -m benchmarks.node_pods [--nodes 1000] [--pods 100] [--hot 100] [--windows 12]

Fills `pods` with records of 1.5 KB and `windows` with the last minutes of each node, then reads the
pods of the hot nodes as a round of the planner does: first, and again after four more windows of
each node. The baseline reads all partitions and drops what it reads. The cost of the first reading
is linear in the number of all nodes.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Iterator
from functools import lru_cache

import msgspec

from benchmarks import inventory
from benchmarks.ingest import PREFIX, WINDOW_MS, node_name, pod_uids, samples
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import open_follower, topic_partitions
from pipeline.kafka.partition import partition_of
from pipeline.kafka.producer import Keyed, log_producer
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import local_kafka
from pipeline.processors.join.pod_facts import pod_row
from pipeline.processors.join.sample_join import NodeObjects, join, listing_facts
from pipeline.settings import Settings, load_settings
from pipeline.table.node_pods import NodePodReader
from pipeline.topics.codec import encode_json
from pipeline.topics.nodes import Strategy
from pipeline.topics.pods import Container, Owner, PodRecord, pod_key
from pipeline.topics.registry import PODS, WINDOWS, Topic
from pipeline.topics.sample_rows import read_rows
from pipeline.topics.windows import encode_window


def pod_record(node: str, uid: str, number: int) -> PodRecord:
    """A pod of a Deployment as a watcher writes it."""
    base = inventory.pod_record(node, uid, number)
    app = f"service-{_number(uid) % 500}"
    return msgspec.structs.replace(
        base,
        owner=Owner(kind="ReplicaSet", name=f"{app}-7c9fdd6b54"),
        labels={
            "app.kubernetes.io/name": app, "app.kubernetes.io/instance": f"{app}-main",
            "app.kubernetes.io/managed-by": "Helm", "pod-template-hash": "7c9fdd6b54",
            "topology.kubernetes.io/zone": "eu-central-1a",
        },
        annotations={"kubectl.kubernetes.io/restartedAt": "2026-11-01T10:00:00Z"},
        containers=(
            Container(name="main", requests=base.requests, limits=base.limits),
            Container(name="proxy", requests=base.requests, limits=base.limits),
        ),
        tolerations=tuple(
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        ),
        scheduled_at="2023-11-14T21:13:30Z", started_at="2023-11-14T21:13:33Z",
    )  # fmt: skip


def _number(uid: str) -> int:
    return int(uid[:5]) * 7 + int(uid[6:10]) * 13


@lru_cache(maxsize=100_000)
def _view(node: str, uids: tuple[str, ...]) -> NodeObjects:
    rows = {uid: pod_row(pod_record(node, uid, n)) for n, uid in enumerate(uids)}
    return NodeObjects(inventory.node_record(node), rows)


def windows(nodes: int, pods: int, count: int, end_ms: int) -> Iterator[tuple[str, bytes]]:
    """Node and encoded window."""
    strategy = Strategy()
    for node, value in samples(nodes, pods, count, end_ms):
        sample = read_rows(value)
        view = _view(node, sample.listing.uids)
        facts = listing_facts(sample.listing, view.pods, None)
        window = join(sample, view, strategy, sample_offset=0,
                      appended_ms=sample.header.window_end_ms, pod_facts=facts)  # fmt: skip
        yield node, encode_window(window)


async def fill(settings: Settings, topic: Topic, records: Iterator[tuple[str, Keyed]]) -> int:
    """Write records by node; returns their bytes."""
    size, name = 0, topic.full_name(PREFIX)
    async with log_producer(client_options(settings.kafka)) as output:
        waiting: dict[int, list[Keyed]] = {}
        for count, (node, record) in enumerate(records):
            size += len(record.value or b"")
            partition = partition_of(node, settings.kafka.partitions)
            waiting.setdefault(partition, []).append(record)
            if count % 2000 == 1999:
                for place, batch in waiting.items():
                    await output.append(name, place, batch)
                waiting.clear()
        for place, batch in waiting.items():
            await output.append(name, place, batch)
    return size


async def read_and_drop(settings: Settings) -> int:
    count = 0
    partitions = topic_partitions(settings.kafka, PODS, WINDOWS)
    async with open_follower(client_options(settings.kafka), partitions) as follower:
        await follower.begin()
        async for records in follower.read_to_end():
            count += len(records)
    return count


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--hot", type=int, default=100)
    parser.add_argument("--windows", type=int, default=12)
    given = parser.parse_args()
    with local_kafka() as kafka:
        settings = load_settings(None, {}, {
            "kafka.bootstrap_servers": kafka.bootstrap_servers, "kafka.topic_prefix": PREFIX,
            "kafka.partitions": 16,
        })  # fmt: skip
        await apply_topics(settings.kafka)
        names = [node_name(n) for n in range(given.nodes)]
        records = (
            (node, Keyed(pod_key(node, uid), encode_json(pod_record(node, uid, number))))
            for number in range(given.pods)
            for n, node in enumerate(names)
            for uid in [pod_uids(n, given.pods)[number]]
        )
        of_pods = await fill(settings, PODS, records)
        end_ms = int(time.time() * 1000) // WINDOW_MS * WINDOW_MS
        made = windows(given.nodes, given.pods, given.windows, end_ms)
        of_windows = await fill(settings, WINDOWS, ((n, Keyed(n.encode(), v)) for n, v in made))
        print(f"filled: {of_pods / 2**20:.0f} MiB of pods, {of_windows / 2**20:.0f} MiB of windows")
        await _report("read and drop", read_and_drop(settings))
        reader, hot = NodePodReader(settings.kafka), names[: given.hot]

        async def read() -> int:
            return len((await reader.read(hot, 300.0, time.time())).records)

        await _report(f"pods of {given.hot} nodes, first", read())
        made = windows(given.nodes, given.pods, 4, end_ms + 4 * WINDOW_MS)
        await fill(settings, WINDOWS, ((n, Keyed(n.encode(), v)) for n, v in made))
        await _report(f"pods of {given.hot} nodes, two minutes later", read())


async def _report(what: str, running: Awaitable[int]) -> None:
    before, began = time.process_time(), time.perf_counter()
    count = await running
    print(
        f"{what}: {time.process_time() - before:.2f} s of processor time, "
        f"{time.perf_counter() - began:.2f} s, {count} records",
        flush=True,
    )


if __name__ == "__main__":
    asyncio.run(main())
