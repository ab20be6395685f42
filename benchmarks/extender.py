"""What a scheduler waits for: filter and prioritize over fleets of any size, and the start.

    python -m benchmarks.extender [--nodes 100 1000 5000 10000] [--pods 100] [--seconds 5]
                                  [--clients 1 16] [--whole 100 1000 5000 10000]

A real extender (a process of its own, with its HTTP server and its feed from a real broker) is
asked by real clients, by names, about pods that differ, while 333 node states a second flow in. A
pod is a filter and then a prioritize of the nodes that were left, as kube-scheduler asks. Beside
it, in the same run, the baseline: a plain Python loop over the records of all nodes that judges and
scores one question. Times are wall clock as the client sees them, which does little else: what it
sends lies ready, each in another order of the nodes, and a process of its own writes the states.
CPU is that of the extender's process. With `--whole` sizes are named for which whole Node objects
are sent as well; an extender reads few such bodies at once, and who is refused asks again.

Goals at 10,000 names: one client p99 5 ms each; 16 clients 150 pods/s and p99 60 ms; 5,000 full
Nodes (32 MB) in 500 ms; from start to ready with 10,000 nodes and 1 M pods in 60 s, from a snapshot
in 5 s.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from aiokafka import AIOKafkaProducer

from benchmarks.asking import ask, ask_whole, memory
from pipeline.kafka.client import client_options
from pipeline.kafka.partition import partition_of
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import LocalKafka, local_kafka
from pipeline.local.port_probe import free_port
from pipeline.local.process_guard import die_with_parent
from pipeline.settings import KafkaSettings, variable_name
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.node_state import AggregatedUsage, NodeStateRecord, UsageDeviation
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodRecord, pod_key
from pipeline.topics.registry import NODE_STATE, NODES, PODS, Topic
from pipeline.topics.resource_amounts import Resources, Usage

PARTITIONS = 16
STATES_PER_SECOND = 333
GIB = 2.0**30
_PATIENCE_SECONDS = 600.0
# Scheduler, broker and writer are elsewhere in earnest: of two processors they share one, and the
# extender has the other.
*_OF_OTHERS, _OF_EXTENDER = sorted(os.sched_getaffinity(0))


class Fleet(NamedTuple):
    """So many nodes of 32 cores, with so many pods each."""

    nodes: int
    pods: int

    @property
    def names(self) -> list[str]:
        return [f"node-{number:05d}.fleet.example" for number in range(self.nodes)]


def main() -> None:
    arguments = _arguments()
    if _OF_OTHERS:
        os.sched_setaffinity(0, _OF_OTHERS)
    with local_kafka() as kafka:
        # A client that waited for a processor would count that as the extender's; only root may say
        # that it does not.
        with suppress(PermissionError):
            policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
            os.sched_setscheduler(0, policy, os.sched_param(1))
        for nodes in arguments.nodes:
            asyncio.run(measure(kafka, Fleet(nodes, arguments.pods), arguments))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1_000, 5_000, 10_000])
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--whole", type=int, nargs="*", default=[100, 1_000, 5_000, 10_000])
    return parser.parse_args()


async def measure(kafka: LocalKafka, fleet: Fleet, arguments: argparse.Namespace) -> None:
    """Publish the fleet, start an extender, ask it, and print what it took."""
    prefix = f"bench-{fleet.nodes}"
    settings = KafkaSettings(
        bootstrap_servers=kafka.bootstrap_servers, topic_prefix=prefix, partitions=PARTITIONS
    )
    await apply_topics(settings)
    print(f"{fleet.nodes} nodes with {fleet.pods} pods each: publishing ...", flush=True)
    producer = AIOKafkaProducer(**client_options(settings), linger_ms=5, compression_type="lz4")
    await producer.start()
    await publish(producer, prefix, fleet)
    port = free_port()
    snapshot = Path(tempfile.mkdtemp(prefix="springtide-bench-")) / "table.npz"
    flowing = multiprocessing.get_context("spawn").Process(
        target=flow, args=(settings, prefix, fleet), daemon=True
    )
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            extender = await started(settings, port, snapshot, session, "from the topics")
            stop(extender)
            extender = await started(settings, port, snapshot, session, "from a snapshot")
            flowing.start()
            for clients in arguments.clients:
                await ask(port, extender, fleet.names, clients, arguments.seconds)
                print(f"              then {await behind(session)} records behind", flush=True)
            if fleet.nodes in arguments.whole:
                for clients in arguments.clients:
                    await ask_whole(port, extender, fleet.names, clients)
        print(f"  plain loop, one question: {plain_loop(fleet) * 1000:.1f} ms", flush=True)
    finally:
        if flowing.is_alive():
            flowing.terminate()
        stop(extender)
        shutil.rmtree(snapshot.parent)
        await producer.stop()


async def started(
    settings: KafkaSettings, port: int, snapshot: Path, session: aiohttp.ClientSession, where: str
) -> "subprocess.Popen[bytes]":
    """A process that is ready; prints how long that took."""
    began = time.monotonic()
    extender = start(settings, port, snapshot)
    await ready(session)
    size = megabytes(snapshot)
    print(
        f"  start to ready {where}: {time.monotonic() - began:.1f} s, {memory(extender)} MiB"
        + (f" (snapshot {size:.0f} MB)" if size else ""),
        flush=True,
    )
    return extender


def megabytes(file: Path) -> float:
    return file.stat().st_size / 1e6 if file.exists() else 0.0


def stop(extender: "subprocess.Popen[bytes]") -> None:
    extender.terminate()
    # A second signal: without the seconds for those who come still.
    time.sleep(0.2)
    extender.terminate()
    extender.wait(60)


async def publish(producer: AIOKafkaProducer, prefix: str, fleet: Fleet) -> None:
    """All records of the fleet, in order of the nodes."""
    room = Resources(cpu_millicores=32_000, memory_bytes=128 << 30)
    long_ago = format_time(time.time() - 86_400)
    last = None
    for at, name in enumerate(fleet.names):
        node = NodeRecord(node=name, allocatable=room, capacity=room, labels={"zone": "a"})
        last = await send(producer, prefix, NODES, name, name.encode(), encode_json(node))
        await send(producer, prefix, NODE_STATE, name, name.encode(), state(name, at, 0))
        for number in range(fleet.pods):
            uid = f"00000000-{at:04x}-4000-8000-{number:012x}"
            pod = record(uid, name, long_ago)
            await send(producer, prefix, PODS, name, pod_key(name, uid), encode_json(pod))
    await producer.flush()
    assert last is not None


async def send(
    producer: AIOKafkaProducer, prefix: str, topic: Topic, node: str, key: bytes, value: bytes
) -> Any:
    return await producer.send(
        topic.full_name(prefix), key=key, value=value, partition=partition_of(node, PARTITIONS)
    )


def record(uid: str, node: str, since: str) -> PodRecord:
    return PodRecord(
        node=node, uid=uid, cgroup_uid=uid, namespace="shop", name=f"web-{uid[:13]}",
        labels={"app": "web"}, pod_class="prod", qos="LS", phase="Running", scheduled_at=since,
        requests=Resources(cpu_millicores=200, memory_bytes=512 << 20),
        limits=Resources(cpu_millicores=400, memory_bytes=1 << 30),
    )  # fmt: skip


def state(name: str, at: int, offset: int) -> bytes:
    cores, memory = 8.0 + at % 13, (20 + at % 60) * GIB
    usage = Usage(cpu_cores=cores, memory_bytes=memory)
    aggregated = AggregatedUsage(avg=usage, p50=usage, p90=usage, p95=usage, p99=usage)
    deviation = UsageDeviation(mean=usage, stdev=Usage(cpu_cores=1.0, memory_bytes=GIB))
    return encode_json(
        NodeStateRecord(
            node=name, as_of=format_time(int(time.time())), generation=1, offset=offset, epoch=1,
            window_seconds=30.0, coverage=1.0, node_known=True, usage=usage,
            allocatable=Usage(cpu_cores=32.0, memory_bytes=128 * GIB),
            capacity=Usage(cpu_cores=32.0, memory_bytes=128 * GIB),
            aggregated=dict.fromkeys(("5m", "10m", "30m"), aggregated),
            deviation=dict.fromkeys(("5m", "10m", "15m"), deviation),
            predictor="percentile", peaks={"percentile": usage}, pods=100,
        )
    )  # fmt: skip


def flow(settings: KafkaSettings, prefix: str, fleet: Fleet) -> None:
    """New states of one node after the other, for ever; a process of its own."""
    asyncio.run(_flow(settings, prefix, fleet))


async def _flow(settings: KafkaSettings, prefix: str, fleet: Fleet) -> None:
    producer = AIOKafkaProducer(**client_options(settings), linger_ms=5, compression_type="lz4")
    await producer.start()
    names = fleet.names
    began = time.monotonic()
    for sent in itertools.count(1):
        at = sent % fleet.nodes
        name = names[at]
        value = state(name, at, sent)
        await send(producer, prefix, NODE_STATE, name, name.encode(), value)
        ahead = sent / STATES_PER_SECOND - (time.monotonic() - began)
        if ahead > 0.01:
            await asyncio.sleep(ahead)


async def behind(session: aiohttp.ClientSession) -> int:
    """How many records are not in the table yet, as it was found two seconds ago at most."""
    async with session.get("/readyz") as response:
        return int((await response.json())["lag_records"])


def start(settings: KafkaSettings, port: int, snapshot: Path) -> "subprocess.Popen[bytes]":
    told = {
        "kafka.bootstrap_servers": settings.bootstrap_servers,
        "kafka.topic_prefix": settings.topic_prefix,
        "log.level": "warning",
        "extender.snapshot_file": str(snapshot),
    }
    environment = {variable_name(key): value for key, value in told.items()}
    command = [sys.executable, "-m", "pipeline.cli.main", "extender", "--mode", "act"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    extender = subprocess.Popen(command, env=os.environ | environment, preexec_fn=die_with_parent)
    os.sched_setaffinity(extender.pid, {_OF_EXTENDER})
    return extender


async def ready(session: aiohttp.ClientSession) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            async with session.get("/readyz") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.05)
    raise SystemExit("the extender did not become ready")


def plain_loop(fleet: Fleet) -> float:
    """Seconds for one question by a loop over all nodes, records at hand."""
    states = {name: json.loads(state(name, at, 0)) for at, name in enumerate(fleet.names)}
    best = float("inf")
    for _ in range(3):
        began, now = time.perf_counter(), time.time()
        refused, scores = {}, {}
        for name in fleet.names:
            found = states[name]
            percents = {}
            for resource, asked, threshold in (
                ("cpu_cores", 0.25, 65), ("memory_bytes", 256 << 20, 95)
            ):  # fmt: skip
                have = found["allocatable"][resource]
                after = found["usage"][resource] + asked
                percents[resource] = after / have * 100
                if round(percents[resource]) > threshold:
                    refused[name] = f"{name}: {resource} would be {percents[resource]:.1f} at {now}"
            scores[name] = sum(int(100 - p) for p in percents.values()) // 20
        best = min(best, time.perf_counter() - began)
    return best


if __name__ == "__main__":
    main()
