"""Measure how fast workers drain a filled samples topic, and where the time goes.

    python -m benchmarks.ingest [--nodes 200] [--pods 100] [--windows 100] [--partitions 4]
                                [--workers 1] [--overcommit]

Fills `samples`, `nodes` and `pods` on a real local broker, starts workers as users run them, and
counts the windows in the node states from the moment when all workers are at work until the first
partition is drained. The same run measures a baseline, a consumer that only reads and decodes the
same messages; the CPU time of each process; and the worker's stages, one after the other in this
process, on the same data. `--overcommit` turns Mid and Batch on for all nodes: run with and
without it to see what they cost.
"""

import argparse
import asyncio
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks import inventory
from benchmarks.roles import springtide
from pipeline.kafka.client import client_options
from pipeline.kafka.partition import partition_of
from pipeline.kafka.partition_log import open_reader
from pipeline.kafka.producer import Keyed, log_producer
from pipeline.kafka.topic_admin import apply_topics, find_group
from pipeline.local.local_kafka import local_kafka
from pipeline.processors.hot_nodes.detection import Applied, detect
from pipeline.processors.join.pod_facts import pod_row
from pipeline.processors.join.sample_join import ListingFacts, NodeObjects, join, listing_facts
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.result_records import encode_node_states, encode_prediction
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.settings import Settings, load_settings
from pipeline.topics.codec import encode_json
from pipeline.topics.node_state import Counters
from pipeline.topics.nodes import Strategy
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.registry import NODE_STATE, RESOURCES, SAMPLES, WINDOWS, Topic
from pipeline.topics.sample_rows import SampleRows, read_rows
from pipeline.topics.samples import STATISTICS, SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import Window, as_decoded, encode_window

PREFIX = "ingest"
WINDOW_MS = 30_000
DISTINCT = 20  # windows of usage: to make more up takes longer than to drain them
RUN_LIMIT_SECONDS = 600


def node_name(number: int) -> str:
    return f"node-{number:05d}"


def pod_uids(number: int, pods: int) -> list[str]:
    """The UIDs of a node's pods."""
    return [f"{number:05d}-{pod:04d}-4000-8000-00000000" for pod in range(pods)]


def samples(nodes: int, pods: int, windows: int, end_ms: int) -> Iterator[tuple[str, bytes]]:
    """Node and encoded batch, window by window, seeded; usage repeats after `DISTINCT`."""
    before: dict[tuple[int, int], bytes] = {}
    random = np.random.default_rng(7)
    first = end_ms - windows * WINDOW_MS
    for number in range(windows):
        start = first + number * WINDOW_MS
        for n in range(nodes):
            node = node_name(n)
            header = SampleHeader(
                node=node, machine_id=node, boot_id="boot", epoch=1, sequence=number,
                window_start_ms=start, window_end_ms=start + WINDOW_MS,
            )  # fmt: skip
            if number >= DISTINCT:
                yield node, encode_json(header) + before[n, number % DISTINCT]
                continue
            cpu, memory = random.gamma(2.0, 0.1, pods), random.gamma(4.0, 5e7, pods)
            rows = [_row("node", "", float(cpu.sum()) + 0.2, float(memory.sum()) + 1e9)]
            rows[0] |= {"capacity_cpu_cores": 64.0, "capacity_memory_bytes": 2.0**38}
            rows += [
                _row("pod", uid, float(c), float(m))
                for uid, c, m in zip(pod_uids(n, pods), cpu, memory, strict=True)
            ]
            value = encode_samples(SampleBatch(header, rows))
            before[n, number] = value[value.index(b"\n") :]
            yield node, value


def _row(kind: str, name: str, cpu: float, memory: float) -> dict[str, Any]:
    usages = {"cpu_cores": cpu, "memory_bytes": memory, "memory_with_page_cache_bytes": memory}
    values = {f"{u}_{s}": value for u, value in usages.items() for s in STATISTICS}
    return {"kind": kind, "id": name, "coverage": 1.0, "cpu_throttled_ratio": 0.0, **values}


async def fill(
    settings: Settings, batches: Iterator[tuple[str, bytes]]
) -> tuple[Counter[int], int]:
    """Write the batches; gives how many there were in each partition and their bytes."""
    topic, counts, size = SAMPLES.full_name(PREFIX), Counter[int](), 0
    await apply_topics(settings.kafka)
    async with log_producer(client_options(settings.kafka)) as output:
        waiting: dict[int, list[Keyed]] = {}
        for node, value in batches:
            partition = partition_of(node, settings.kafka.partitions)
            counts[partition], size = counts[partition] + 1, size + len(value)
            waiting.setdefault(partition, []).append(Keyed(node.encode(), value))
            if counts.total() % 1000 == 0:
                for partition, records in waiting.items():
                    await output.append(topic, partition, records)
                waiting.clear()
        for partition, records in waiting.items():
            await output.append(topic, partition, records)
    return counts, size


async def read_only(settings: Settings) -> float:
    """Seconds to read and decode the whole topic, and nothing else."""
    topic = SAMPLES.full_name(PREFIX)
    places = [(topic, p) for p in range(settings.kafka.partitions)]
    began = time.perf_counter()
    async with open_reader(client_options(settings.kafka), places) as reader:
        for place in places:
            first, end = await reader.bounds(*place)
            async for records in reader.read(*place, first, end):
                for record in records:
                    read_rows(record.value or b"")
    return time.perf_counter() - began


class Drained(NamedTuple):
    """What was done while the clock ran, and the processor time of each process meanwhile."""

    windows: int
    seconds: float
    processor_seconds: dict[str, float]


async def drained(
    settings: Settings,
    messages: Mapping[int, int],
    workers: Sequence[subprocess.Popen[bytes]],
    broker: int,
) -> Drained:
    """What is applied while all workers join and apply: the clock starts when they share the
    partitions, and since then all of these were joined and applied further; it ends with the last
    state that came before the first partition had no sample left to join. So a state starts it, and
    a state ends it: states come in batches."""
    pids = {"broker": broker, **{f"worker {n}": w.pid for n, w in enumerate(workers, start=1)}}
    pids["this (load and waiting)"] = os.getpid()
    places = [TopicPartition(NODE_STATE.full_name(PREFIX), p) for p in messages]
    logs = [TopicPartition(WINDOWS.full_name(PREFIX), p) for p in messages]
    consumer = AIOKafkaConsumer(
        **client_options(settings.kafka), group_id=None, auto_offset_reset="earliest"
    )
    await consumer.start()
    consumer.assign(places)
    done, joined = Counter[int](), Counter[int]()
    balanced: tuple[Counter[int], Counter[int]] | None = None
    start: _Moment | None = None
    end = _Moment(0.0, 0, {})
    give_up = time.perf_counter() + RUN_LIMIT_SECONDS
    try:
        while all(joined[partition] < messages[partition] for partition in messages):
            for place, states in (await consumer.getmany(timeout_ms=50)).items():
                # Models apply a partition in order: a state says how far they are.
                offsets = (msgspec.json.decode(s.value, type=_Position).offset for s in states)
                done[place.partition] = max(done[place.partition], *(o + 1 for o in offsets))
            if done.total() > end.done:
                end = _Moment(time.perf_counter(), done.total(), _processor_seconds(pids))
            ends = await consumer.end_offsets(logs)
            joined = Counter({place.partition: end for place, end in ends.items()})
            if balanced is None:
                group = await find_group(settings.kafka, settings.worker_group)
                if group.state == "Stable" and len(group.members) == len(workers):
                    balanced = joined, done.copy()
            elif start is None and all(
                now[p] > then[p]
                for now, then in zip((joined, done), balanced, strict=True)
                for p in messages
            ):
                start = end
            if any(w.poll() is not None for w in workers) or time.perf_counter() > give_up:
                raise SystemExit(f"worker ended or hung at {done.total()} windows")
        if start is None or start == end:
            raise SystemExit("a partition was done before all workers were: take more windows")
        spent = {name: end.processor_seconds[name] - start.processor_seconds[name] for name in pids}
        return Drained(end.done - start.done, end.at - start.at, spent)
    finally:
        await consumer.stop()


class _Moment(NamedTuple):
    """What was so when states had come: `done` counts the windows applied."""

    at: float
    done: int
    processor_seconds: dict[str, float]


class _Position(msgspec.Struct):
    """The fields of a node state that identify its window."""

    offset: int


def _processor_seconds(pids: dict[str, int]) -> dict[str, float]:
    """Processor time of each process so far, by /proc."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats = {name: Path(f"/proc/{pid}/stat").read_text() for name, pid in pids.items()}
    fields = {name: text.rpartition(")")[2].split() for name, text in stats.items()}
    return {name: (int(of[11]) + int(of[12])) / ticks for name, of in fields.items()}


async def written(settings: Settings, topic: Topic) -> int:
    """Records that lie on a topic."""
    places = [(topic.full_name(PREFIX), p) for p in range(settings.kafka.partitions)]
    async with open_reader(client_options(settings.kafka), places) as reader:
        bounds = [await reader.bounds(*place) for place in places]
    return sum(end - first for first, end in bounds)


def worker(settings: Settings, folder: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A worker process of its own, which keeps its files in `folder`."""
    folder.mkdir()
    return springtide(
        *("worker", "--no-supervise", "--metrics-port", "0", "--data-dir", str(folder)),
        *("--bootstrap-servers", settings.kafka.bootstrap_servers, "--topic-prefix", PREFIX),
        *("--partitions", str(settings.kafka.partitions)),
        log=folder / "worker.log",
    )


def stages(batches: list[bytes]) -> dict[str, float]:
    """Processor seconds per window of each stage of the worker, run by itself: samples one by one,
    what the models do for a window of each node at a time."""
    strategy, bank, took = Strategy(), Bank(), {}
    last: dict[str, ListingFacts] = {}

    def timed(name: str, each: Callable[[Any], Any], over: list[Any]) -> list[Any]:
        began = time.process_time()
        made = [each(item) for item in over]
        took[name] = (time.process_time() - began) / len(batches)
        return made

    def put(sample: SampleRows) -> Window:
        header = sample.header
        view = _view(header.node, sample.listing.uids)
        facts = listing_facts(sample.listing, view.pods, last.get(header.node))
        last[header.node] = facts
        return join(sample, view, strategy, sample_offset=0, appended_ms=header.window_end_ms,
                    pod_facts=facts)  # fmt: skip

    for batch in batches[: len({read_rows(batch).header.node for batch in batches})]:
        encode_window(put(read_rows(batch)))  # what is known from the window before
    read = timed("join: read the sample", read_rows, batches)
    joined = timed("join: add facts", put, read)
    log = timed("join: write the window", encode_window, joined)
    windows = _groups(
        timed("join: hand it on", lambda of: as_decoded(*of), list(zip(joined, log, strict=True)))
    )
    columns = timed("model: read columns", lambda g: WindowBatch(g), windows)
    samples = timed("model: samples", lambda batch: batch.training("p90"), columns)
    outcomes = timed("model: learn", bank.apply, samples)
    names = [[head.node for head in batch.heads] for batch in samples]
    peaks = timed("model: peaks", bank.peaks, names)
    recent = timed("model: the last half hour", bank.recent_usage, names)
    timed("model: average usage", lambda batch: batch.average, columns)
    position = {"generation": 1, "offset": 0, "epoch": 0}
    timed(
        "model: detect hot nodes",
        lambda of: detect(
            Applied(
                [(bank, name) for name in of[0]],
                of[1],
                np.arange(len(of[0])),
                of[2],
                of[3],
                lambda _: position,
            )
        ),
        list(zip(names, columns, outcomes, peaks, strict=True)),
    )
    timed(
        "model: write predictions, if all are due",
        lambda of: encode_prediction(of[0], of[1], position),
        [
            pair
            for batch, found in zip(columns, peaks, strict=True)
            for pair in zip(batch.windows, found, strict=True)
        ],
    )
    timed(
        "model: write node states",
        lambda of: encode_node_states(
            of[0],
            of[1].summaries,
            of[2],
            [Counters()] * len(of[0]),
            [None] * len(of[0]),
            [()] * len(of[0]),
            [{}] * len(of[0]),
            [position] * len(of[0]),
        ),
        list(zip(columns, peaks, recent, strict=True)),
    )
    return took


@lru_cache(maxsize=100_000)
def _view(node: str, uids: tuple[str, ...]) -> NodeObjects:
    pods = {uid: inventory.pod_record(node, uid, number) for number, uid in enumerate(uids)}
    rows = {uid: pod_row(pod) for uid, pod in pods.items()}
    return NodeObjects(inventory.node_record(node, hot_nodes=inventory.HOT_NODES), rows)


def _groups(windows: list[Window]) -> list[list[Window]]:
    nodes = len({window.header.node for window in windows})
    return [windows[i : i + nodes] for i in range(0, len(windows), nodes)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--windows", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--overcommit", action="store_true")
    given = parser.parse_args()
    # A broker without a folder of its own is one for minutes, and compiles accordingly: else a
    # quarter of its time while the topic is drained goes into compiling what never pays back.
    with TemporaryDirectory() as folder, local_kafka() as kafka:
        settings = load_settings(None, {}, {
            "kafka.bootstrap_servers": kafka.bootstrap_servers,
            "kafka.topic_prefix": PREFIX,
            "kafka.partitions": given.partitions,
        })  # fmt: skip
        end_ms = int(time.time() * 1000) // WINDOW_MS * WINDOW_MS
        made = samples(given.nodes, given.pods, given.windows, end_ms)
        messages, size = asyncio.run(fill(settings, made))
        count = messages.total()
        print(
            f"filled: {count:,} messages of {given.pods} pods, {size / count / 1024:.1f} KiB each"
        )
        fleet = ((node_name(n), pod_uids(n, given.pods)) for n in range(given.nodes))
        overcommit = Overcommit() if given.overcommit else None
        asyncio.run(inventory.publish(settings, fleet, overcommit))
        reading = asyncio.run(read_only(settings))
        with ExitStack() as stack:
            workers = [
                stack.enter_context(worker(settings, Path(folder) / f"worker-{number}"))
                for number in range(given.workers)
            ]
            done = asyncio.run(drained(settings, messages, workers, kafka.pid or 0))
            counts = [asyncio.run(written(settings, of)) for of in (NODE_STATE, RESOURCES)]
    reads = count * given.pods / reading
    works = done.windows * given.pods / done.seconds
    print(f"{'':34}{'pod samples/s':>14}{'ratio':>8}")
    print(f"{'read and decode only (baseline)':34}{reads:>14,.0f}{1:>8.2f}")
    name = f"{given.workers} x worker: join, model, publish"
    print(f"{name:34}{works:>14,.0f}{works / reads:>8.2f}")
    print(f"\nprocessor time while draining {done.windows:,} windows ({done.seconds:.2f} s):")
    for name, seconds in done.processor_seconds.items():
        print(f"  {name:36}{seconds:>6.2f} s{seconds / done.windows * 1e6:>8.0f} us a window")
    print("written in all: {:,} node states, {:,} resources".format(*counts))
    few = [value for _, value in samples(50, given.pods, 10, end_ms)]
    spent = stages(few)
    whole = sum(spent.values())
    print(f"\nwhere the time goes, by stage alone ({whole * 1e6:,.0f} us a window):")
    for name, seconds in spent.items():
        print(f"  {name:36}{seconds * 1e6:>8.0f} us{seconds / whole:>7.0%}")


if __name__ == "__main__":
    main()
