"""Measure a large fleet, live: 10,000 nodes of 100 pods on this machine, with broker and extender.

    python -m benchmarks.fleet [--nodes 10000] [--pods 100] [--minutes 10] [--workers 2]
                               [--churn 0.15]

Nodes and pods are written first, as a cluster watcher would, so that the workers know them.
A feeder process writes a window of 30 s for each node every 30 s, in event time as it passes; real
workers and an extender run as users run them. Measured are the time from a sample's append to that
of its node state (both by the broker's clock), how far the workers are behind, and what each
process costs. The windows of all nodes end together, as those of exporters do; `--spread` says
over how many seconds they arrive (30: evenly over the window; 1: all at once). In each window a
share of the nodes, `--churn`, has a pod replaced by another: at 0.15 a pod lives for 5.6 hours.

Goals: behind by less than 5 s, p99 under 2 s, all workers under 4 GiB, half of the machine idle.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import pyarrow as pa
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks import inventory
from benchmarks.exporter import Cost, cost
from benchmarks.roles import ROOT, springtide
from pipeline.kafka.client import client_options
from pipeline.kafka.partition import partition_of
from pipeline.kafka.producer import Keyed, log_producer
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import local_kafka
from pipeline.local.process_guard import die_with_parent
from pipeline.settings import Settings, load_settings
from pipeline.times import parse_time
from pipeline.topics.codec import encode_json
from pipeline.topics.pods import pod_key
from pipeline.topics.registry import NODE_STATE, PODS, SAMPLES
from pipeline.topics.sample_rows import encode_arrays
from pipeline.topics.samples import STATISTICS, SampleHeader

PREFIX = "fleet"
WINDOW_MS = 30_000
PORT = 18_889
# Not measured: workers fill their caches, models and tables grow.
WARM_UP_SECONDS = 90.0
FEED_AT_ONCE_SECONDS = 0.1


class State(msgspec.Struct):
    """What is read of a node state: when its window ended, and how long after that its sample
    was appended."""

    as_of: str
    skew_seconds: float | None = None


def node_name(number: int) -> str:
    return f"node-{number:05d}"


def pod_uids(number: int, pods: int) -> list[str]:
    """The UIDs of a node's pods."""
    return [f"{number:08x}-{pod:04x}-4000-8000-000000000000" for pod in range(pods)]


class Node:
    """One simulated node: its pods' usage moves a little from window to window."""

    def __init__(self, number: int, pods: int) -> None:
        self.name = node_name(number)
        self._random = np.random.default_rng(number)
        self._cpu = self._random.gamma(2.0, 0.1, pods)
        self._memory = self._random.gamma(4.0, 5e7, pods)
        self._uids = pod_uids(number, pods)
        self._replaced = 0
        self._kinds = ["node", *["pod"] * pods]
        self._coverage = pa.array(np.ones(pods + 1))

    def churn(self, share: float) -> list[Keyed]:
        """Replace a pod with this probability; returns the records that a watcher would write."""
        if self._random.random() >= share:
            return []
        at = int(self._random.integers(len(self._uids)))
        old = self._uids[at]
        self._replaced += 1
        new = self._uids[at] = f"{old[:-12]}{self._replaced:012x}"
        made = encode_json(inventory.pod_record(self.name, new, at))
        return [Keyed(pod_key(self.name, new), made), Keyed(pod_key(self.name, old), None)]

    def sample(self, sequence: int, end_ms: int) -> bytes:
        """The record of the window that ends at `end_ms`."""
        moved = self._random.uniform(0.9, 1.1)
        statistics = {"coverage": self._coverage}
        for usage, values, own in (
            ("cpu_cores", self._cpu, 0.2), ("memory_bytes", self._memory, 1e9)
        ):  # fmt: skip
            column = pa.array(np.concatenate([[values.sum() + own], values]) * moved)
            statistics |= {f"{usage}_{statistic}": column for statistic in STATISTICS}
        points = np.column_stack([
            np.arange(30.0),
            np.full(30, (self._cpu.sum() + 0.2) * moved),
            np.full(30, self._memory.sum() * moved),
        ])  # fmt: skip
        header = SampleHeader(
            node=self.name, machine_id=self.name, boot_id="boot", epoch=1, sequence=sequence,
            window_start_ms=end_ms - WINDOW_MS, window_end_ms=end_ms,
        )  # fmt: skip
        return encode_arrays(
            header,
            kinds=self._kinds,
            ids=["", *self._uids],
            statistics=statistics,
            points=pa.array(points.ravel()),
        )


async def feed(settings: Settings, given: argparse.Namespace) -> None:
    """Write every node's windows as time passes, to each prefix; prints when it is late."""
    nodes = [Node(number, given.pods) for number in range(given.nodes)]
    places = [partition_of(node.name, settings.kafka.partitions) for node in nodes]
    per_second = given.nodes / given.spread
    topics = [(SAMPLES.full_name(each), PODS.full_name(each)) for each in given.prefixes]
    late = 0.0
    print("fed", flush=True)
    async with log_producer(client_options(settings.kafka)) as output:
        first_ms = int(time.time() * 1000) // WINDOW_MS * WINDOW_MS
        for sequence in range(10**6):
            end_ms = first_ms + (sequence + 1) * WINDOW_MS
            await asyncio.sleep(max(0.0, end_ms / 1000 - time.time()))
            done = 0
            while done < given.nodes:
                due = min(int((time.time() - end_ms / 1000) * per_second) + 1, given.nodes)
                waiting: dict[tuple[str, int], list[Keyed]] = defaultdict(list)
                for at in range(done, due):
                    replaced = nodes[at].churn(given.churn)
                    record = Keyed(nodes[at].name.encode(), nodes[at].sample(sequence, end_ms))
                    for samples, pods in topics:
                        waiting[pods, places[at]] += replaced
                        waiting[samples, places[at]].append(record)
                sends = (output.append(*place, records) for place, records in waiting.items())
                await asyncio.gather(*sends)
                done = due
                await asyncio.sleep(FEED_AT_ONCE_SECONDS)
            late = time.time() - end_ms / 1000 - given.spread
            if late > 3:
                print(f"the feeder is {late:.1f} s late", file=sys.stderr, flush=True)


@contextmanager
def feeder(broker: str, given: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """The feeder as a process of its own."""
    arguments = ("--feed", broker, "--nodes", str(given.nodes), "--pods", str(given.pods),
                 "--spread", str(given.spread), "--churn", str(given.churn),
                 "--prefixes", *given.prefixes)  # fmt: skip
    path = os.pathsep.join([str(ROOT), str(ROOT / "node-exporter")])
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.fleet", *arguments],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path},
        preexec_fn=die_with_parent,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
    finally:
        child.kill()
        child.wait()


def check_alive(pids: Mapping[str, int], folder: Path) -> None:
    """Exit with the last log lines of a process that has ended."""
    for name, pid in pids.items():
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":
            log = folder / f"{name.replace(' ', '-')}.log"
            said = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
            raise SystemExit("\n".join([f"{name} has ended", *said]))


async def measure(settings: Settings, seconds: float, pids: Mapping[str, int]) -> None:
    """Follow the node states for a while; print delays, and what each process cost."""
    topic = NODE_STATE.full_name(PREFIX)
    places = [TopicPartition(topic, p) for p in range(settings.kafka.partitions)]
    consumer = AIOKafkaConsumer(**client_options(settings.kafka), group_id=None)
    await consumer.start()
    consumer.assign(places)
    await consumer.seek_to_end(*places)
    delays: list[float] = []
    began, said = time.monotonic(), time.monotonic()
    before = {name: cost(pid) for name, pid in pids.items()}
    while time.monotonic() - began < seconds:
        for records in (await consumer.getmany(timeout_ms=500)).values():
            for record in records:
                state = msgspec.json.decode(record.value, type=State)
                appended = parse_time(state.as_of) + (state.skew_seconds or 0.0)
                delays.append(record.timestamp / 1000 - appended)
        if time.monotonic() - said > 30:
            said = time.monotonic()
            newest = np.array(delays[-2000:] or [np.nan])
            print(f"{said - began:6.0f} s  {len(delays):,} node states, newest p99 "
                  f"{np.percentile(newest, 99):.2f} s", file=sys.stderr, flush=True)  # fmt: skip
    took = time.monotonic() - began
    after = {name: cost(pid) for name, pid in pids.items()}
    await consumer.stop()
    report(np.array(delays), before, after, took)


def report(
    delays: np.ndarray, before: Mapping[str, Cost], after: Mapping[str, Cost], took: float
) -> None:
    """The tables."""
    p50, p99 = np.percentile(delays, [50, 99])
    print(f"\n{len(delays):,} node states in {took:.0f} s, {len(delays) / took:,.0f} a second")
    print(f"sample to node state: p50 {p50:.2f} s, p99 {p99:.2f} s, longest {delays.max():.2f} s "
          "(goals: p99 2 s, longest 5 s)")  # fmt: skip
    print(f"\n{'process':12}{'CPU %':>8}{'RSS MiB':>10}{'peak':>8}")
    spent, workers = 0.0, 0.0
    for name, now in after.items():
        old = before[name]
        used = now.user_seconds + now.system_seconds - old.user_seconds - old.system_seconds
        spent += used
        workers += now.resident_mib if name.startswith("worker") else 0.0
        percent = 100 * used / took
        print(f"{name:12}{percent:>8.1f}{now.resident_mib:>10.1f}{now.peak_mib:>8.1f}")
    cores = os.cpu_count() or 1
    print(f"all          {100 * spent / took:>8.1f} of {100 * cores} (goal: {50 * cores})")
    print(f"workers together {workers:,.0f} MiB (goal 4,096)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--spread", type=float, default=30.0)
    parser.add_argument("--churn", type=float, default=0.15)
    parser.add_argument("--feed", metavar="SERVERS", help=argparse.SUPPRESS)
    parser.add_argument("--prefixes", nargs="+", default=[PREFIX], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.feed:
        asyncio.run(feed(_settings(given.feed), given))
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        kafka = stack.enter_context(local_kafka(folder / "kafka"))
        settings = _settings(kafka.bootstrap_servers)
        asyncio.run(apply_topics(settings.kafka))
        fleet = ((node_name(n), pod_uids(n, given.pods)) for n in range(given.nodes))
        print("writing what the nodes and pods are", file=sys.stderr, flush=True)
        asyncio.run(inventory.publish(settings, fleet))
        broker = ("--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", PREFIX)
        assert kafka.pid
        pids = {"broker": kafka.pid}
        for number in range(given.workers):
            role = ("worker", "--no-supervise", "--metrics-port", "0")
            own = ("--data-dir", str(folder / f"worker-{number}"))
            child = springtide(*role, *broker, *own, log=folder / f"worker-{number}.log")
            pids[f"worker {number}"] = stack.enter_context(child).pid
        listen = ("--host", "127.0.0.1", "--port", str(PORT))
        child = springtide("extender", *broker, *listen, log=folder / "extender.log")
        pids["extender"] = stack.enter_context(child).pid
        pids["feeder"] = stack.enter_context(feeder(kafka.bootstrap_servers, given)).pid
        print(f"warming up for {WARM_UP_SECONDS:.0f} s", file=sys.stderr, flush=True)
        time.sleep(WARM_UP_SECONDS)
        check_alive(pids, folder)
        asyncio.run(measure(settings, given.minutes * 60, pids))


def _settings(servers: str) -> Settings:
    return load_settings(
        None, {}, {"kafka.bootstrap_servers": servers, "kafka.topic_prefix": PREFIX}
    )


if __name__ == "__main__":
    main()
