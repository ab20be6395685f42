"""Usage in a tree of cgroup v2 files becomes Mid and Batch; all roles and the broker are real."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from node_exporter.kernel.cgroup_paths import KubeQOS
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.process_guard import die_with_parent
from pipeline.topics.codec import decode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.registry import NODES, PODS, RESOURCES
from tests.broker import flags_of, latest, own_topics
from tests.node_exporter.fake_node import FakeNode
from tests.processes import environment, springtide, until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

GIB = 1 << 30
POD_USAGE = {
    "web": (KubeQOS.BURSTABLE, "koord-prod", 0.5, GIB),
    "job": (KubeQOS.BEST_EFFORT, "koord-batch", 0.25, GIB // 2),
}
"""Kubernetes QoS, class, cores and bytes of each pod."""
SYSTEM_CORES = 0.25
NODE_KIB = 3 << 20


class GrowingNode(FakeNode):
    """A node whose CPU counters grow with time; files are overwritten in place, as the kernel's."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, version=2)
        (self.proc / "meminfo").write_text(
            f"MemTotal: {8 << 20} kB\nMemFree: {5 << 20} kB\nMemAvailable: {5 << 20} kB\n"
        )
        for uid, (qos, _, _, memory) in POD_USAGE.items():
            self.pod(uid, 0, memory, qos)
        self.grow(0.0)

    def grow(self, seconds: float) -> None:
        total = SYSTEM_CORES
        for uid, (qos, _, cores, _) in POD_USAGE.items():
            path = self.cgroups / self.path(uid, qos) / "cpu.stat"
            overwrite(path, f"usage_usec {round(cores * seconds * 1e6):020}\n")
            total += cores
        ticks = round(total * seconds * os.sysconf("SC_CLK_TCK"))
        overwrite(self.proc / "stat", f"cpu  {ticks:020} 0 0 500 0 0 0 0 0 0\n")


def overwrite(path: Path, text: str) -> None:
    """Change a file of the same length without a moment in which it is empty."""
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, text.encode(), 0)
    os.close(descriptor)


@contextmanager
def growing(node: GrowingNode) -> Iterator[None]:
    stop, start = threading.Event(), time.monotonic()

    def grow() -> None:
        # A thread that waits for a processor is some milliseconds behind, of windows of seconds.
        while not stop.wait(0.01):
            node.grow(time.monotonic() - start)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def write_objects(folder: Path) -> list[str]:
    """Write the node, its pods and the policy as Kubernetes objects; flags of a worker for them."""
    amounts = {"cpu": "4", "memory": "8Gi"}
    node = {
        "kind": "Node", "metadata": {"name": "v2"},
        "status": {"allocatable": amounts, "capacity": amounts},
    }  # fmt: skip
    pods = []
    for uid, (_, priority_class, _, _) in POD_USAGE.items():
        requests = {"cpu": "2", "memory": "4Gi"} if priority_class == "koord-prod" else {}
        labels = {"koordinator.sh/priority-class": priority_class}
        pods.append({
            "kind": "Pod",
            "metadata": {"name": uid, "namespace": "x", "uid": uid, "labels": labels,
                         "creationTimestamp": "2020-01-01T00:00:00Z"},
            "spec": {
                "nodeName": "v2",
                "containers": [{"name": "c", "resources": {"requests": requests}}],
            },
            "status": {"phase": "Running"},
        })  # fmt: skip
    colocation = {
        "enable": True, "cpuReclaimThresholdPercent": 60, "memoryReclaimThresholdPercent": 95,
        "midCPUThresholdPercent": 100, "midMemoryThresholdPercent": 100,
    }  # fmt: skip
    config_map = {
        "kind": "ConfigMap", "metadata": {"name": "slo-controller-config"},
        "data": {"colocation-config": json.dumps(colocation)},
    }  # fmt: skip
    documents: dict[str, Any] = {
        "nodes": {"kind": "List", "items": [node]},
        "pods": {"kind": "List", "items": pods},
        "policy": config_map,
    }
    flags = []
    for name, document in documents.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(document))
        flags.append(f"--{name}-file={path}")
    return flags


@contextmanager
def role(log: Path, *arguments: str) -> Iterator[None]:
    with log.open("w") as output:
        process = subprocess.Popen(
            springtide(*arguments), stdout=output, stderr=output,
            env=environment(NODE_NAME="v2"), preexec_fn=die_with_parent,
        )  # fmt: skip
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def test_usage_of_a_fake_v2_tree_becomes_mid_and_batch(
    broker: LocalKafka, tmp_path: Path
) -> None:
    kafka = own_topics(broker, 1)
    await apply_topics(kafka)
    node = GrowingNode(tmp_path)
    exporter, worker = tmp_path / "exporter.log", tmp_path / "worker.log"
    exporter_flags = {
        "cgroup-root": node.cgroups, "proc-root": node.proc, "sys-root": node.sys,
        "window-seconds": 5, "collect-interval-seconds": 0.2, "socket-path": tmp_path / "x.sock",
        "metrics-host": "127.0.0.1", "metrics-port": 0,
    }  # fmt: skip
    worker_flags = [
        "--no-supervise", "--metrics-host=127.0.0.1", "--metrics-port=0",
        f"--data-dir={tmp_path / 'faust'}", "--id=v2", "--cold-start-samples=2",
        "--training-statistic=avg",
        *write_objects(tmp_path),
    ]  # fmt: skip

    async def record() -> NodeResourcesRecord | None:
        value = (await latest(kafka, RESOURCES)).get("v2")
        return None if value is None else decode_json(NodeResourcesRecord, value)

    async def has_objects() -> bool:
        return len(await latest(kafka, NODES)) == 1 and len(await latest(kafka, PODS)) == 2

    async def has_learned() -> bool:
        found = await record()
        return bool(found and found.mid and found.mid.cpu_millicores)

    with ExitStack() as stack:
        stack.enter_context(growing(node))
        stack.enter_context(role(worker, "worker", *flags_of(kafka), *worker_flags))
        # Usage of pods that are not known yet would count as Prod.
        await until(has_objects, 120, worker.read_text)
        words = [f"--{name}={value}" for name, value in exporter_flags.items()]
        stack.enter_context(role(exporter, "exporter", *flags_of(kafka), *words))
        await until(has_learned, 120, lambda: worker.read_text() + exporter.read_text())
        found = await record()
    assert found is not None
    mid, batch = found.mid, found.batch
    assert mid is not None
    assert batch is not None
    terms, of_mid = found.batch_terms, found.mid_terms
    assert terms.margin.cpu_millicores == 1600
    assert terms.used.cpu_millicores == pytest.approx(500, rel=0.15)
    assert terms.outside.cpu_millicores == pytest.approx(1000 * SYSTEM_CORES, rel=0.2)
    assert terms.used.memory_bytes == GIB
    assert terms.outside.memory_bytes == NODE_KIB * 1024 - GIB - GIB // 2
    # Prod requests 2 cores and 4 GiB. Its peak is a tenth and a histogram bucket above usage.
    peak = of_mid.prod_peak
    assert 500 < (peak.cpu_millicores or 0) < 750
    held_back = [of_mid.buffer, peak]
    assert mid.cpu_millicores == 2000 - sum(part.cpu_millicores or 0 for part in held_back)
    assert 1.1 * GIB < (peak.memory_bytes or 0) < 1.25 * GIB
    assert mid.memory_bytes == 4 * GIB - sum(part.memory_bytes or 0 for part in held_back)
    taken = [terms.margin, terms.outside, terms.used, terms.promised, terms.buffer]
    assert min(batch.cpu_millicores or 0, batch.memory_bytes or 0) > 0
    assert batch.cpu_millicores == 4000 - sum(part.cpu_millicores or 0 for part in taken)
    assert batch.memory_bytes == 8 * GIB - sum(part.memory_bytes or 0 for part in taken)
