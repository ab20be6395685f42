"""How fast one worker drains a filled samples topic, and where the time goes.

    python -m benchmarks.ingest [--nodes 200] [--pods 100] [--windows 20] [--partitions 4]

Fills `samples` on a real local broker, starts a worker as users run it, and waits until the last
window is in the node states. Beside it, in the same run: a consumer that only reads and decodes the
same messages (the baseline: what broker, network and Arrow cost anyway), and the worker's stages,
one after the other in this process, on the same data.
"""

import argparse
import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.roles import springtide
from pipeline.agents.log import open_reader
from pipeline.agents.output import Keyed, open_output
from pipeline.local.kafka import local_kafka
from pipeline.processors.bank import Bank
from pipeline.processors.columns import node_window, window_usage
from pipeline.processors.join import NodeView, join
from pipeline.processors.report import node_state_record, prediction_record
from pipeline.settings import Settings, load_settings
from pipeline.topics.admin import apply_topics
from pipeline.topics.arrow import read_samples
from pipeline.topics.client import client_options
from pipeline.topics.codec import encode_json
from pipeline.topics.node_state import Counters
from pipeline.topics.nodes import Strategy
from pipeline.topics.partition import partition_of
from pipeline.topics.registry import NODE_STATE, SAMPLES
from pipeline.topics.samples import STATISTICS, SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import decode_window, encode_window

PREFIX = "ingest"
WINDOW_MS = 30_000
RUN_LIMIT_SECONDS = 600


def samples(nodes: int, pods: int, windows: int, end_ms: int) -> Iterator[tuple[str, bytes]]:
    """Node and encoded batch, window by window, seeded."""
    random = np.random.default_rng(7)
    first = end_ms - windows * WINDOW_MS
    for number in range(windows):
        start = first + number * WINDOW_MS
        for n in range(nodes):
            node = f"node-{n:05d}"
            header = SampleHeader(
                node=node, machine_id=node, boot_id="boot", epoch=1, sequence=number,
                window_start_ms=start, window_end_ms=start + WINDOW_MS,
            )  # fmt: skip
            cpu, memory = random.gamma(2.0, 0.1, pods), random.gamma(4.0, 5e7, pods)
            rows = [_row("node", "", float(cpu.sum()) + 0.2, float(memory.sum()) + 1e9)]
            rows[0] |= {"capacity_cpu_cores": 64.0, "capacity_memory_bytes": 2.0**38}
            rows += [
                _row("pod", f"{n:05d}-{pod:04d}-4000-8000-00000000", float(c), float(m))
                for pod, (c, m) in enumerate(zip(cpu, memory, strict=True))
            ]
            yield node, encode_samples(SampleBatch(header, rows))


def _row(kind: str, name: str, cpu: float, memory: float) -> dict[str, Any]:
    usages = {"cpu_cores": cpu, "memory_bytes": memory, "memory_with_page_cache_bytes": memory}
    values = {f"{u}_{s}": value for u, value in usages.items() for s in STATISTICS}
    return {"kind": kind, "id": name, "coverage": 1.0, "cpu_throttled_ratio": 0.0, **values}


async def fill(settings: Settings, batches: Iterator[tuple[str, bytes]]) -> tuple[int, int]:
    """Write the batches; gives how many there were and their bytes."""
    topic, count, size = SAMPLES.full_name(PREFIX), 0, 0
    await apply_topics(settings.kafka)
    async with open_output(client_options(settings.kafka)) as output:
        waiting: dict[int, list[Keyed]] = {}
        for node, value in batches:
            count, size = count + 1, size + len(value)
            mine = waiting.setdefault(partition_of(node, settings.kafka.partitions), [])
            mine.append(Keyed(node.encode(), value))
            if count % 1000 == 0:
                for partition, records in waiting.items():
                    await output.append(topic, partition, records)
                waiting.clear()
        for partition, records in waiting.items():
            await output.append(topic, partition, records)
    return count, size


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
                    read_samples(record.value or b"")
    return time.perf_counter() - began


async def drained(settings: Settings, messages: int, process: subprocess.Popen[bytes]) -> float:
    """Seconds from the first node state to the last."""
    topic = NODE_STATE.full_name(PREFIX)
    places = [TopicPartition(topic, p) for p in range(settings.kafka.partitions)]
    consumer = AIOKafkaConsumer(**client_options(settings.kafka), group_id=None)
    await consumer.start()
    began, ended, done = 0.0, time.perf_counter() + RUN_LIMIT_SECONDS, 0
    try:
        while done < messages:
            await asyncio.sleep(0.05)
            done = sum((await consumer.end_offsets(places)).values())
            began = began or (time.perf_counter() if done else 0.0)
            if process.poll() is not None or time.perf_counter() > ended:
                raise SystemExit(f"worker ended or hung at {done} of {messages} windows")
        return time.perf_counter() - began
    finally:
        await consumer.stop()


def worker(settings: Settings, folder: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A worker process of its own."""
    return springtide(
        *("worker", "--no-supervise", "--metrics-port", "0", "--data-dir", str(folder)),
        *("--bootstrap-servers", settings.kafka.bootstrap_servers, "--topic-prefix", PREFIX),
        *("--partitions", str(settings.kafka.partitions)),
        log=folder / "worker.log",
    )


def stages(batches: list[bytes]) -> dict[str, float]:
    """Seconds per window of each stage of the worker, run by itself."""
    strategy, bank, took = Strategy(), Bank(), {}
    view = NodeView(None, {})

    def timed(name: str, each: Callable[[Any], Any], over: list[Any]) -> list[Any]:
        began = time.perf_counter()
        made = [each(item) for item in over]
        took[name] = (time.perf_counter() - began) / len(batches)
        return made

    read = timed("join: read the sample", read_samples, batches)
    joined = timed(
        "join: put beside it what is known",
        lambda s: join(*s, view, strategy, sample_offset=0, appended_ms=s[0].window_end_ms),
        read,
    )
    log = timed("join: write the window", encode_window, joined)
    windows = timed("model: read the window", decode_window, log)
    arrays = timed(
        "model: rows to arrays", lambda w: node_window(w, "p90", "usageWithoutPageCache"), windows
    )
    groups = _groups(arrays)
    timed("model: learn", bank.apply, groups)
    peaks = timed("model: peaks", lambda g: bank.peaks([w.node for w in g]), groups)
    recent = timed(
        "model: the last half hour",
        lambda group: bank.recent_usage([w.node for w in group]),
        groups,
    )
    pairs = list(zip(windows, [peak for group in peaks for peak in group], strict=True))
    states = [
        (*pair, usage)
        for pair, usage in zip(pairs, [u for group in recent for u in group], strict=True)
    ]
    at = {"generation": 1, "offset": 0, "epoch": 0}
    timed("model: write predictions", lambda p: encode_json(prediction_record(*p, **at)), pairs)
    timed(
        "model: write node states",
        lambda s: encode_json(
            node_state_record(*s, Counters(), window_usage(s[0], "usageWithoutPageCache"), **at)
        ),
        states,
    )
    return took


def _groups(arrays: list[Any]) -> list[list[Any]]:
    nodes = len({window.node for window in arrays})
    return [arrays[i : i + nodes] for i in range(0, len(arrays), nodes)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=4)
    given = parser.parse_args()
    with TemporaryDirectory() as folder, local_kafka(Path(folder) / "kafka") as kafka:
        settings = load_settings(None, {}, {
            "kafka.bootstrap_servers": kafka.bootstrap_servers,
            "kafka.topic_prefix": PREFIX,
            "kafka.partitions": given.partitions,
        })  # fmt: skip
        end_ms = int(time.time() * 1000) // WINDOW_MS * WINDOW_MS
        made = samples(given.nodes, given.pods, given.windows, end_ms)
        count, size = asyncio.run(fill(settings, made))
        print(
            f"filled: {count:,} messages of {given.pods} pods, {size / count / 1024:.1f} KiB each"
        )
        reading = asyncio.run(read_only(settings))
        with worker(settings, Path(folder)) as process:
            working = asyncio.run(drained(settings, count, process))
    pods = count * given.pods
    print(f"{'':34}{'pod samples/s':>14}{'ratio':>8}")
    print(f"{'read and decode only (baseline)':34}{pods / reading:>14,.0f}{1:>8.2f}")
    print(f"{'worker: join, model, publish':34}{pods / working:>14,.0f}{reading / working:>8.2f}")
    few = [value for _, value in samples(50, given.pods, 10, end_ms)]
    spent = stages(few)
    whole = sum(spent.values())
    print(f"\nwhere the time goes, by stage alone ({whole * 1e6:,.0f} us a window):")
    for name, seconds in spent.items():
        print(f"  {name:36}{seconds * 1e6:>8.0f} us{seconds / whole:>7.0%}")


if __name__ == "__main__":
    main()
