"""Samples of the nodes of a control plane, with the usage of recorded machines."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from pipeline.kafka.client import client_options
from pipeline.kafka.partition import partition_of
from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KafkaSettings
from pipeline.times import format_time
from pipeline.topics.registry import SAMPLES
from pipeline.topics.samples import (
    STATISTICS,
    SYSTEM_TIER,
    Row,
    SampleBatch,
    SampleHeader,
    encode_samples,
)
from tests.cluster.objects import items

WINDOW_SECONDS = 30
SERIES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "data" / "usage" / "bitbrains.json").read_text()
)
STEPS = len(SERIES[0]["cpu_millicores"])
_EPOCH = 1_700_000_000_000


def usage_of(pod: str, step: int) -> tuple[float, float]:
    """Cores and bytes of a pod in a step, from the series with the pod's number."""
    series = SERIES[int(pod.partition("-")[0].removeprefix("s")) % len(SERIES)]
    index = step % STEPS
    return series["cpu_millicores"][index] / 1000, series["memory_mebibytes"][index] * 2.0**20


class Exporters:
    """The exporters of all nodes. The last of `windows` windows ended just now. `usage` are the
    cores and bytes of a pod, by its name, in a step."""

    def __init__(
        self,
        plane: ControlPlane,
        kafka: KafkaSettings,
        *,
        windows: int,
        window_seconds: int = WINDOW_SECONDS,
        usage: Callable[[str, int], tuple[float, float]] = usage_of,
    ) -> None:
        self._plane = plane
        self._kafka = kafka
        self._window_seconds = window_seconds
        self._usage = usage
        self._pods: dict[str, dict[str, str]] = {}
        self.find_pods()
        now = int(time.time()) // window_seconds * window_seconds
        self._first_ms = (now - (windows - 1) * window_seconds) * 1000
        self.step = 0

    def find_pods(self) -> None:
        """Find the pods that run now, on all nodes."""
        pods: dict[str, dict[str, str]] = {
            node["metadata"]["name"]: {} for node in items(self._plane, "nodes")
        }
        for pod in items(self._plane, "pods", "-A"):
            node_name = pod["spec"].get("nodeName")
            if node_name and pod["status"]["phase"] == "Running":
                names = pods.setdefault(node_name, {})
                names[pod["metadata"]["uid"]] = pod["metadata"]["name"]
        self._pods = pods

    async def run(self) -> None:
        """Send each window when it has ended, with the pods that run then."""
        while True:
            await asyncio.sleep(self._end_ms() / 1000 - time.time())
            await asyncio.to_thread(self.find_pods)
            await self.send(1)

    async def send(self, windows: int) -> None:
        """Send the next windows of every node."""
        topic = SAMPLES.full_name(self._kafka.topic_prefix)
        async with AIOKafkaProducer(
            **client_options(self._kafka), acks="all", linger_ms=20
        ) as producer:
            for _ in range(windows):
                for node, pods in sorted(self._pods.items()):
                    await producer.send(
                        topic, key=node.encode(), value=self._sample(node, pods),
                        partition=partition_of(node, self._kafka.partitions),
                    )  # fmt: skip
                self.step += 1
            await producer.flush()

    def last_end(self) -> str:
        """The end of the newest window that was sent, as records have it."""
        return format_time(self._end_ms() / 1000 - self._window_seconds)

    def _end_ms(self) -> int:
        """The end of the next window."""
        return self._first_ms + self.step * self._window_seconds * 1000

    def _sample(self, node: str, pods: dict[str, str]) -> bytes:
        end_ms = self._end_ms()
        header = SampleHeader(
            node=node, machine_id=f"m-{node}", boot_id="b", epoch=_EPOCH, sequence=self.step,
            window_start_ms=end_ms - self._window_seconds * 1000, window_end_ms=end_ms,
        )  # fmt: skip
        usage = {uid: self._usage(name, self.step) for uid, name in pods.items()}
        system = (0.25, 2.0**30)
        total = [sum(amounts) for amounts in zip(*usage.values(), system, strict=True)]
        capacity = {"capacity_cpu_cores": 32.0, "capacity_memory_bytes": 128 * 2.0**30}
        rows: list[Row] = [
            {"kind": "node", "id": "", **_columns(*total), **capacity},
            {"kind": "tier", "id": SYSTEM_TIER, **_columns(*system)},
            *({"kind": "pod", "id": uid, **_columns(*pair)} for uid, pair in usage.items()),
        ]
        return encode_samples(SampleBatch(header, rows))


def _columns(cores: float, size: float) -> Row:
    return {
        "coverage": 1.0,
        **{f"cpu_cores_{name}": cores for name in STATISTICS},
        **{f"memory_bytes_{name}": size for name in STATISTICS},
    }
