"""The load of a chaos run: a window of every node each step, in real time."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.kafka.partition import partition_of
from pipeline.topics.samples import STATISTICS, SampleBatch, SampleHeader, encode_samples
from tests.system.load import Message

WINDOW_SECONDS = 2
STEPS_OF_A_PHASE = 60
CALM = 0.1
"""Every other phase a node uses this share."""


class ChaosLoad:
    """The exporters of `nodes`; `pods` has the UIDs of each node's pods, which run to the end.

    It has what `tests.system.harness.Feed` requires of a load.
    """

    def __init__(self, nodes: Sequence[str], pods: Mapping[str, Sequence[str]]) -> None:
        self.departing: set[str] = set()
        self.nodes = nodes
        self._pods = pods
        self._last_end_ms = 0

    def partitions(self, count: int) -> set[int]:
        """The partitions of the nodes, of `count`."""
        return {partition_of(node, count) for node in self.nodes}

    def cluster_state(self) -> Iterator[Message]:
        """Yield nothing: a watcher writes nodes and pods."""
        yield from ()

    def step(self, step: int) -> Iterator[Message]:
        """Yield a window of every node, which ended just now. A delayed step skips windows."""
        window_ms = WINDOW_SECONDS * 1000
        end_ms = int(time.time() * 1000) // window_ms * window_ms
        end_ms = self._last_end_ms = max(end_ms, self._last_end_ms + window_ms)
        for number, node in enumerate(self.nodes):
            header = SampleHeader(
                node=node, machine_id=f"machine-{node}", boot_id="b", epoch=1, sequence=step,
                window_start_ms=end_ms - window_ms, window_end_ms=end_ms,
            )  # fmt: skip
            # Usage rises and falls, so that offers do, too. Phases open and close alerts.
            level = 1.0 + (step + number) % 20 / 10
            if (step // STEPS_OF_A_PHASE + number) % 2:
                level *= CALM
            pods = self._pods.get(node, ())
            rows = [
                _row("node", "", level * (len(pods) + 1))
                | {"capacity_cpu_cores": 32.0, "capacity_memory_bytes": 128 * 2.0**30},
                *(_row("pod", uid, level) for uid in pods),
            ]
            value = encode_samples(SampleBatch(header, rows))
            yield Message("samples", node, node.encode(), value)


def _row(kind: str, uid: str, cores: float) -> dict[str, Any]:
    usage = {f"cpu_cores_{name}": cores for name in STATISTICS}
    memory = {f"memory_bytes_{name}": cores * 2.0**30 for name in STATISTICS}
    return {"kind": kind, "id": uid, "coverage": 1.0} | usage | memory
