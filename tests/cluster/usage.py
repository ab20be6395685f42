"""Samples of the nodes of a control plane: what recorded machines used, as if pods had."""

import json
import time
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


def used_by(pod: str, step: int) -> tuple[float, float]:
    """Cores and bytes of a pod in a step: those of the series that its number names."""
    of = SERIES[int(pod.partition("-")[0].removeprefix("s")) % len(SERIES)]
    at = step % STEPS
    return of["cpu_millicores"][at] / 1000, of["memory_mebibytes"][at] * 2.0**20


class Exporters:
    """The exporters of all nodes: windows on the grid, the newest of which ended just now."""

    def __init__(self, plane: ControlPlane, kafka: KafkaSettings, *, windows: int) -> None:
        self._kafka = kafka
        self._pods: dict[str, dict[str, str]] = {}
        for pod in items(plane, "pods", "-A"):
            on = pod["spec"].get("nodeName")
            if on and pod["status"]["phase"] == "Running":
                self._pods.setdefault(on, {})[pod["metadata"]["uid"]] = pod["metadata"]["name"]
        for node in items(plane, "nodes"):
            self._pods.setdefault(node["metadata"]["name"], {})
        now = int(time.time()) // WINDOW_SECONDS * WINDOW_SECONDS
        self._first_ms = (now - (windows - 1) * WINDOW_SECONDS) * 1000
        self.step = 0

    async def send(self, windows: int) -> None:
        """The next windows of every node."""
        producer = AIOKafkaProducer(**client_options(self._kafka), acks="all", linger_ms=20)
        await producer.start()
        try:
            topic = SAMPLES.full_name(self._kafka.topic_prefix)
            for _ in range(windows):
                for node, pods in sorted(self._pods.items()):
                    await producer.send(
                        topic,
                        key=node.encode(),
                        value=self._sample(node, pods),
                        partition=partition_of(node, self._kafka.partitions),
                    )
                self.step += 1
            await producer.flush()
        finally:
            await producer.stop()

    def end_of(self, step: int) -> str:
        """When the window before this step ended, as records have it."""
        return format_time((self._first_ms + (step - 1) * WINDOW_SECONDS * 1000) / 1000)

    def _sample(self, node: str, pods: dict[str, str]) -> bytes:
        end_ms = self._first_ms + self.step * WINDOW_SECONDS * 1000
        header = SampleHeader(
            node=node, machine_id=f"m-{node}", boot_id="b", epoch=_EPOCH, sequence=self.step,
            window_start_ms=end_ms - WINDOW_SECONDS * 1000, window_end_ms=end_ms,
        )  # fmt: skip
        used = {uid: used_by(name, self.step) for uid, name in pods.items()}
        system = (0.25, 2.0**30)
        whole = [sum(of) for of in zip(*used.values(), system, strict=True)]
        capacity = {"capacity_cpu_cores": 32.0, "capacity_memory_bytes": 128 * 2.0**30}
        rows: list[Row] = [
            {"kind": "node", "id": "", **_usage(*whole), **capacity},
            {"kind": "tier", "id": SYSTEM_TIER, **_usage(*system)},
            *({"kind": "pod", "id": uid, **_usage(*of)} for uid, of in used.items()),
        ]
        return encode_samples(SampleBatch(header, rows))


def _usage(cores: float, size: float) -> Row:
    return {
        "coverage": 1.0,
        **{f"cpu_cores_{name}": cores for name in STATISTICS},
        **{f"memory_bytes_{name}": size for name in STATISTICS},
    }
