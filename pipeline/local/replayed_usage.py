"""Write samples of nodes whose pods are simulated, with usage that is replayed from records.

It stands for the exporters of these nodes. Each node has 32 cores and 128 GiB.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from pipeline.clock import Clock
from pipeline.kafka.client import client_options, translated_errors
from pipeline.kafka.partition import partition_of
from pipeline.kafka.producer import Producer
from pipeline.settings import KafkaSettings
from pipeline.times import format_time
from pipeline.topics.registry import SAMPLES
from pipeline.topics.samples import (
    LIST_COLUMNS,
    STATISTICS,
    SYSTEM_TIER,
    Row,
    SampleBatch,
    SampleHeader,
    encode_samples,
)

NODE_CORES: Final = 32
NODE_GIB: Final = 128
SYSTEM_CORES: Final = 0.25

PodsByNode = Mapping[str, Mapping[str, str]]
"""Names of pods by UID, by node."""
PodUsage = Callable[[str, int], tuple[float, float]]
"""The cores and bytes that the pod of this name uses in a step, which lasts a window."""

_EPOCH: Final = 1_700_000_000_000
_GIB: Final = 2.0**30
_POINT_SECONDS: Final = 5
"""Time between two measurements of a node; real exporters measure every second."""


class ReplayedUsage:
    """Samples of nodes, a step of usage for each window. The last of `windows` windows ended just
    now; `find_pods` returns the pods that run, and may block."""

    def __init__(
        self, kafka: KafkaSettings, clock: Clock, find_pods: Callable[[], PodsByNode],
        usage: PodUsage, *, windows: int, window_seconds: int,
    ) -> None:  # fmt: skip
        self._kafka, self._clock = kafka, clock
        self._find_pods, self._usage = find_pods, usage
        self._window_seconds = window_seconds
        self._pods = find_pods()
        now = int(clock.now()) // window_seconds * window_seconds
        self._first_ms = (now - (windows - 1) * window_seconds) * 1000
        self.step = 0

    def find_pods(self) -> None:
        """Find the pods that run now, on all nodes."""
        self._pods = self._find_pods()

    async def run(self) -> None:
        """Send each window when it has ended, with the pods that run then, until cancelled."""
        while True:
            await self._clock.sleep(self._end_ms() / 1000 - self._clock.now())
            await asyncio.to_thread(self.find_pods)
            await self.send(1)

    async def send(self, windows: int) -> None:
        """Send the next windows of every node. Raises `KafkaError`."""
        topic = SAMPLES.full_name(self._kafka.topic_prefix)
        client, deliveries = client_options(self._kafka), []
        async with Producer(client) as producer:
            for _ in range(windows):
                for node, pods in sorted(self._pods.items()):
                    delivery = await producer.send(
                        topic, key=node.encode(), value=self._sample(node, pods),
                        partition=partition_of(node, self._kafka.partitions),
                    )  # fmt: skip
                    deliveries.append(delivery)
                self.step += 1
            with translated_errors(client, "writing samples"):
                await asyncio.gather(*deliveries)

    def last_end(self) -> str:
        """The end of the newest window that was sent, as records have it."""
        return format_time(self._end_ms() / 1000 - self._window_seconds)

    def _end_ms(self) -> int:
        """The end of the next window."""
        return self._first_ms + self.step * self._window_seconds * 1000

    def _sample(self, node: str, pods: Mapping[str, str]) -> bytes:
        end_ms = self._end_ms()
        header = SampleHeader(
            node=node, machine_id=f"m-{node}", boot_id="b", epoch=_EPOCH, sequence=self.step,
            window_start_ms=end_ms - self._window_seconds * 1000, window_end_ms=end_ms,
            simulated=True,
        )  # fmt: skip
        usage = {uid: self._usage(name, self.step) for uid, name in pods.items()}
        system = (SYSTEM_CORES, _GIB)
        total = [sum(amounts) for amounts in zip(*usage.values(), system, strict=True)]
        capacity = {
            "capacity_cpu_cores": float(NODE_CORES), "capacity_memory_bytes": NODE_GIB * _GIB
        }  # fmt: skip
        rows: list[Row] = [
            {"kind": "node", "id": "", **_columns(*total), **self._points(*total), **capacity},
            {"kind": "tier", "id": SYSTEM_TIER, **_columns(*system)},
            *({"kind": "pod", "id": uid, **_columns(*pair)} for uid, pair in usage.items()),
        ]
        return encode_samples(SampleBatch(header, rows))

    def _points(self, cores: float, size: float) -> Row:
        """The measurements of a node in a window, from which percentiles follow."""
        seconds = range(_POINT_SECONDS, self._window_seconds + 1, _POINT_SECONDS)
        lists = [*map(float, seconds)], [cores] * len(seconds), [size] * len(seconds)
        return dict(zip(LIST_COLUMNS, lists, strict=True))


def _columns(cores: float, size: float) -> Row:
    return {
        "coverage": 1.0,
        **{f"cpu_cores_{name}": cores for name in STATISTICS},
        **{f"memory_bytes_{name}": size for name in STATISTICS},
    }
