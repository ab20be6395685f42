"""Measure filter and prioritize of an extender as a scheduler sees them, and its start.

    python -m benchmarks.extender [--nodes 100 1000 5000 10000] [--pods 100] [--seconds 5]
                                  [--refused 0 10 50 100] [--plugins default all]
                                  [--clients 1 16] [--whole 100 1000 5000 10000]

A real extender, a process of its own with its feed from a real broker, is asked about different
pods by real clients. A pod is a filter, and then a prioritize of the nodes that passed, as
kube-scheduler asks. Meanwhile 333 node states a second arrive, every node has a bound pod that is
still in flight, and /metrics is scraped every second. `--refused` are percentages of nodes whose
usage is over the threshold, `--plugins all` enables every scoring plugin, `--whole` are numbers of
nodes for which whole Node objects are sent as well; an extender reads few such bodies at once, and
a client that was refused asks again.

Times are wall clock of the client. The extender has a core of its own, and a high priority if
the user is root; clients, broker and the writer of states share the other cores. The baseline is a
plain Python loop over the records of all nodes for one question.

Goals at 10,000 names for every share of refused nodes: one client p99 5 ms for filter and
prioritize; 16 clients 250 pods/s and p99 50 ms; 5,000 whole Nodes (32 MB) in 500 ms; from start to
ready with 10,000 nodes and 1 M pods in 60 s, from a snapshot in 5 s.
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
from collections.abc import Callable
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
from pipeline.processors.scorers.registry import SCORERS
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1_000, 5_000, 10_000])
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--refused", type=int, nargs="+", default=[0, 10, 50, 100])
    parser.add_argument("--plugins", nargs="+", choices=[*PLUGINS], default=[*PLUGINS])
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
    folder = Path(tempfile.mkdtemp(prefix="springtide-bench-"))
    try:
        for plugins in arguments.plugins:
            run = Run(settings, fleet, plugins, folder / f"{plugins}.npz", free_port())
            await run.measure(producer, arguments)
        print(f"  plain loop, one question: {plain_loop(fleet) * 1000:.1f} ms", flush=True)
    finally:
        shutil.rmtree(folder)
        await producer.stop()


class Run(NamedTuple):
    """An extender with some plugins over a published fleet."""

    settings: KafkaSettings
    fleet: Fleet
    plugins: str
    snapshot: Path
    port: int

    async def measure(self, producer: AIOKafkaProducer, arguments: argparse.Namespace) -> None:
        """Start the extender twice, and ask it with each share of refused nodes."""
        extender = None
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{self.port}") as session:
                extender = await started(self, session, "from the topics")
                stop(extender)
                extender = await started(self, session, "from a snapshot")
                for percent in arguments.refused:
                    await self._ask(producer, session, extender, percent, arguments)
        finally:
            if extender is not None:
                stop(extender)

    async def _ask(
        self, producer: AIOKafkaProducer, session: aiohttp.ClientSession,
        extender: "subprocess.Popen[bytes]", percent: int, arguments: argparse.Namespace,
    ) -> None:  # fmt: skip
        names = self.fleet.names
        for at, name in enumerate(names):
            value = state(name, at, self.next_offset(), percent)
            prefix = self.settings.topic_prefix
            await send(producer, prefix, NODE_STATE, name, name.encode(), value)
        await producer.flush()
        await caught_up(session)
        flowing = multiprocessing.get_context("spawn").Process(
            target=flow, args=(self.settings, self.fleet, percent, self.next_offset()), daemon=True
        )
        flowing.start()
        try:
            for clients in arguments.clients:
                print(f"  {self.plugins} plugins, {percent}% refused", flush=True)
                raise_priority(extender.pid, is_busy=clients > 1)
                await ask(self.port, extender, names, clients, arguments.seconds)
            if self.fleet.nodes in arguments.whole:
                for clients in arguments.clients:
                    await ask_whole(self.port, extender, names, clients)
        finally:
            flowing.terminate()
            flowing.join()

    def next_offset(self) -> int:
        """An offset that is newer than all before."""
        return int(time.time() * 1000)


async def started(
    run: Run, session: aiohttp.ClientSession, where: str
) -> "subprocess.Popen[bytes]":
    """Start an extender that is ready; prints how long that took."""
    began = time.monotonic()
    extender = start(run)
    await ready(session)
    size = megabytes(run.snapshot)
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
        await send(producer, prefix, NODE_STATE, name, name.encode(), state(name, at, 0, 0))
        for number in range(fleet.pods):
            uid = f"00000000-{at:04x}-4000-8000-{number:012x}"
            pod = record(uid, name, long_ago, "Running" if number else "Pending")
            await send(producer, prefix, PODS, name, pod_key(name, uid), encode_json(pod))
    await producer.flush()
    assert last is not None


async def send(
    producer: AIOKafkaProducer, prefix: str, topic: Topic, node: str, key: bytes, value: bytes
) -> Any:
    return await producer.send(
        topic.full_name(prefix), key=key, value=value, partition=partition_of(node, PARTITIONS)
    )


def record(uid: str, node: str, since: str, phase: str) -> PodRecord:
    """A pod on a node; while it is Pending it is in flight."""
    return PodRecord(
        node=node, uid=uid, cgroup_uid=uid, namespace="shop", name=f"web-{uid[:13]}",
        labels={"app": "web"}, pod_class="prod", qos="LS", phase=phase, scheduled_at=since,
        requests=Resources(cpu_millicores=200, memory_bytes=512 << 20),
        limits=Resources(cpu_millicores=400, memory_bytes=1 << 30),
    )  # fmt: skip


def state(name: str, at: int, offset: int, percent: int) -> bytes:
    """The state of a node; `percent` of the nodes use more cpu than the threshold."""
    is_hot = at * 37 % 100 < percent
    cores, memory = (24.0 if is_hot else 8.0) + at % 7, (20 + at % 60) * GIB
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


def flow(settings: KafkaSettings, fleet: Fleet, percent: int, offset: int) -> None:
    """Publish new states of one node after the other, for ever; a process of its own."""
    asyncio.run(_flow(settings, fleet, percent, offset))


async def _flow(settings: KafkaSettings, fleet: Fleet, percent: int, offset: int) -> None:
    producer = AIOKafkaProducer(**client_options(settings), linger_ms=5, compression_type="lz4")
    await producer.start()
    names = fleet.names
    began = time.monotonic()
    for sent in itertools.count(1):
        at = sent % fleet.nodes
        name = names[at]
        value = state(name, at, offset + sent, percent)
        await send(producer, settings.topic_prefix, NODE_STATE, name, name.encode(), value)
        ahead = sent / STATES_PER_SECOND - (time.monotonic() - began)
        if ahead > 0.01:
            await asyncio.sleep(ahead)


async def caught_up(session: aiohttp.ClientSession) -> None:
    """Wait until the table has all states, of which the extender learns within two seconds."""
    await asyncio.sleep(2.5)
    while True:
        async with session.get("/readyz") as response:
            if int((await response.json())["lag_records"] or 0) < STATES_PER_SECOND:
                return
        await asyncio.sleep(0.5)


def start(run: Run) -> "subprocess.Popen[bytes]":
    """Start an extender on its own core."""
    config = run.snapshot.with_suffix(".yaml")
    config.write_text(json.dumps(PLUGINS[run.plugins](run.fleet)))
    values = {
        "kafka.bootstrap_servers": run.settings.bootstrap_servers,
        "kafka.topic_prefix": run.settings.topic_prefix,
        "log.level": "warning",
        "extender.snapshot_file": str(run.snapshot),
    }
    if run.plugins != "default":
        values["extender.scheduler_config_file"] = str(config)
    environment = {variable_name(key): value for key, value in values.items()}
    command = [sys.executable, "-m", "pipeline.cli.main", "extender", "--mode", "act"]
    command += ["--host", "127.0.0.1", "--port", str(run.port)]
    extender = subprocess.Popen(command, env=os.environ | environment, preexec_fn=die_with_parent)
    os.sched_setaffinity(extender.pid, {_OF_EXTENDER})
    return extender


def raise_priority(pid: int, *, is_busy: bool) -> None:
    """Let a process run before those of other users of the machine, if the user may set that: in
    real time unless it `is_busy` all the time, when the kernel would stop it for 50 ms a second."""
    with suppress(PermissionError):
        policy = os.SCHED_OTHER if is_busy else os.SCHED_FIFO
        os.sched_setscheduler(pid, policy, os.sched_param(0 if is_busy else 10))
        os.setpriority(os.PRIO_PROCESS, pid, -20)


def _all_plugins(fleet: Fleet) -> dict[str, Any]:
    """A configuration with every scoring plugin."""
    power = {"k0": 100.0, "k1": 1.0, "k2": 0.03}
    arguments: dict[str, dict[str, Any]] = {
        "Peaks": {"nodePowerModel": dict.fromkeys(fleet.names, power)},
        "NodeMetadata": {
            "metadataKey": "zone", "metadataSource": "Label", "metadataType": "Number",
            "scoringStrategy": "Highest",
        },
        "NodeResourcesFitPlus": {"resources": {"cpu": {"type": "MostAllocated", "weight": 1}}},
        "ScarceResourceAvoidance": {"resources": ["nvidia.com/gpu"]},
    }  # fmt: skip
    names = [*SCORERS.points]
    return {
        "plugins": {"multiPoint": {"enabled": [{"name": name} for name in names]}},
        "pluginConfig": [{"name": name, "args": args} for name, args in arguments.items()],
    }


PLUGINS: dict[str, Callable[[Fleet], dict[str, Any]]] = {
    "default": lambda fleet: {},
    "all": _all_plugins,
}


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
    states = {name: json.loads(state(name, at, 0, 0)) for at, name in enumerate(fleet.names)}
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
