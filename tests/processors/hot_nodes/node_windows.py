"""Windows of nodes with a policy, and their detection as the model agent calls it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pipeline.processors.hot_nodes.detection import Applied, detect
from pipeline.processors.model import bank as banks
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ModelConfig
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.topics.alerts import AlertRecord, OpenAlert
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.windows import Window
from tests.processors.joined import (
    END_MS,
    GIB,
    header,
    joined,
    known_pod,
    logged,
    pod_row,
    view_of,
)

CORES, MEMORY = 10.0, 100 * GIB
POLICY = HotNodePolicy(high_percent={"cpu": 70.0}, span_seconds=30)


def hot_window(
    end: int,
    cpu: float | None = None,
    memory: float | None = None,
    *,
    node: str = "node-1",
    policy: HotNodePolicy | None = POLICY,
    prod: float | None = None,
    pods: Mapping[str, tuple[str, float | None]] | None = None,
    coverage: float = 1.0,
    machine: str = "m1",
    cores: int | None = 10,
    annotations: dict[str, str] | None = None,
    points: Sequence[float] = (),
    prod_memory: float = GIB,
    seconds: int = 30,
    outside: float | None = None,
    stated_cores: int | None = None,
    **columns: Any,
) -> Window:
    """The `end`-th window of `seconds` of a node of 10 cores and 100 GiB: `cpu` and `memory` in
    percent of it.

    `pods` have a class and cores each; `prod` is short for one Prod pod. `points` are of CPU, a
    second apart; `prod_memory` is that of each pod in bytes. `outside` are cores that the system
    uses, `stated_cores` the capacity of the Node.
    """
    pods = pods if pods is not None else {} if prod is None else {"uid-0": ("prod", prod)}
    row: dict[str, Any] = {
        "kind": "node", "id": "", "coverage": coverage,
        "cpu_cores_avg": None if cpu is None else cpu / 100 * CORES,
        "memory_bytes_avg": None if memory is None else memory / 100 * MEMORY, **columns,
    }  # fmt: skip
    if points:
        row |= {
            "points_offset_seconds": [1.0 + second for second in range(len(points))],
            "points_cpu_cores": list(points), "points_memory_bytes": [GIB] * len(points),
        }  # fmt: skip
    record = NodeRecord(
        node=node, hot_nodes=policy, annotations=annotations or {},
        allocatable=Resources(
            cpu_millicores=None if cores is None else 1000 * cores, memory_bytes=round(MEMORY)
        ),
        capacity=Resources(cpu_millicores=stated_cores and 1000 * stated_cores),
    )  # fmt: skip
    rows = [
        pod_row(uid, cpu_cores_avg=used, memory_bytes_avg=prod_memory)
        for uid, (_, used) in pods.items()
    ]
    if outside is not None:
        rows.append({"kind": "tier", "id": "system", "cpu_cores_avg": outside})
    known = [
        known_pod(uid, pod_class=name, phase="Running")
        for uid, (name, _) in pods.items()
        if name != "unknown"
    ]
    end_ms = END_MS + end * seconds * 1000
    of = header(
        node, end, machine_id=machine, sequence=max(end, 0),
        window_start_ms=end_ms - seconds * 1000, window_end_ms=end_ms,
    )  # fmt: skip
    window = joined(row, *rows, view=view_of(*known, record=record), of=of)
    return logged(msgspec.structs.replace(window, appended_ms=of.window_end_ms + 250))


class Stream:
    """A bank and the alerts of its nodes."""

    def __init__(self, bank: Bank | None = None) -> None:
        self.bank = bank or Bank(ModelConfig(minimum_coverage=0.5))
        self.records: dict[str, list[AlertRecord]] = {}
        self.open: dict[str, tuple[OpenAlert, ...]] = {}
        self.compared: dict[str, Mapping[str, float]] = {}
        self.offset = 0

    def apply(self, *windows: Window) -> "Stream":
        """Apply windows of distinct nodes in one call."""
        batch = WindowBatch(list(windows))
        outcomes = self.bank.apply(batch.training("p90"))
        places = [i for i, outcome in enumerate(outcomes) if outcome.status == "applied"]
        if places:
            nodes = [(self.bank, windows[i].header.node) for i in places]
            detection = detect(
                Applied(
                    nodes,
                    batch,
                    np.array(places),
                    [outcomes[i] for i in places],
                    banks.peaks(nodes),
                    lambda i: {"generation": 0, "offset": self.offset + places[i], "epoch": 0},
                )
            )
            for i, record in detection.changes:
                self.records.setdefault(nodes[i][1], []).append(record)
            for (_, name), alerts in zip(nodes, detection.open_alerts, strict=True):
                self.open[name] = alerts
            for (_, name), percent in zip(nodes, detection.compared_percent, strict=True):
                self.compared[name] = percent
        self.offset += len(windows)
        return self

    def restarted(self) -> "Stream":
        """The same stream after a restart from checkpoints."""
        other = Stream(Bank(self.bank.config))
        for node in self.bank.nodes:
            other.bank.restore(node, self.bank.encode_state(node))
        other.records, other.open, other.compared = self.records, self.open, self.compared
        other.offset = self.offset
        return other

    def transitions(self, node: str = "node-1") -> list[tuple[str, str]]:
        return [(record.rule, record.transition) for record in self.records.get(node, [])]


def transitions_of(windows: Sequence[Window]) -> list[tuple[str, str]]:
    """The transitions of node-1 with these windows."""
    stream = Stream()
    for window in windows:
        stream.apply(window)
    return stream.transitions()
