"""Small windows for tests, each with different usage."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.processors.join.pod_facts import pod_row
from pipeline.processors.join.sample_join import NodeObjects, join
from pipeline.processors.model.model_config import ModelConfig
from pipeline.topics.nodes import Strategy
from pipeline.topics.pods import Container, Owner, PodRecord
from pipeline.topics.sample_rows import read_rows
from pipeline.topics.samples import (
    CONTAINERS,
    SampleBatch,
    SampleContainer,
    SampleHeader,
    encode_samples,
)
from pipeline.topics.windows import departure, encode_window, retraction
from tests.agents.fakes import APPENDED_MS, MemoryBroker

CONFIG = ModelConfig(expiration_seconds=60, horizon_seconds=60.0, accuracy_interval_seconds=20.0)


def window(
    node: str,
    step: int,
    *,
    sample_offset: int,
    machine: str = "m",
    epoch: int = 1,
    deployment: str = "",
    containers: Sequence[str] = (),
    **usage: Any,
) -> bytes:
    """Return the encoded window number `step` (5 s each) of `node`, with this `usage`.

    Every sixth window has a new pod, of this Deployment if there is one, with these `containers`.
    Of two or more the window has the usage of each.
    """
    rng = random.Random(f"{node}/{step}/{epoch}")
    end = APPENDED_MS - 3_600_000 + step * 5000
    # A repeated window may precede the first one, but a sequence is not negative.
    header = SampleHeader(
        node=node, machine_id=machine, boot_id="b", epoch=epoch, sequence=max(step + 2, 0),
        window_start_ms=end - 5000, window_end_ms=end,
    )  # fmt: skip
    rows = [
        {"kind": "node", "id": "", "coverage": 1.0, "cpu_cores_avg": rng.random() * 8,
         "cpu_cores_p90": rng.random() * 8, "memory_bytes_p90": rng.random() * 1e10,
         "capacity_cpu_cores": 8.0, "capacity_memory_bytes": 64e9} | usage,
        {"kind": "pod", "id": f"pod-{step // 6}", "coverage": 1.0,
         "cpu_cores_p90": rng.random(), "memory_bytes_p90": rng.random() * 1e9},
    ]  # fmt: skip
    uid = f"pod-{step // 6}"
    ids = {name: f"{uid}-{name}" for name in containers}
    if len(ids) > 1:
        rows[1][CONTAINERS] = [
            SampleContainer(id, rng.random() / 2, rng.random() * 1e9) for id in ids.values()
        ]
    pods = {uid: pod_row(pod_of(deployment, node, uid, ids))} if deployment else {}
    joined = join(
        read_rows(encode_samples(SampleBatch(header, rows))), NodeObjects(None, pods), Strategy(),
        sample_offset=sample_offset, appended_ms=end + 1000,
    )  # fmt: skip
    return encode_window(joined)


def pod_of(
    deployment: str, node: str, uid: str, container_ids: Mapping[str, str] | None = None
) -> PodRecord:
    """Return the record of a pod of a Deployment in the namespace `shop`, with these containers."""
    ids = dict(container_ids or {})
    return PodRecord(
        node=node, uid=uid, cgroup_uid=uid, namespace="shop", name=uid, pod_class="prod",
        owner=Owner(kind="ReplicaSet", name=f"{deployment}-5d4"),
        labels={"pod-template-hash": "5d4"}, phase="Running",
        containers=tuple(Container(name=name) for name in ids), container_ids=ids,
    )  # fmt: skip


def make_log(count: int, *nodes: str) -> tuple[MemoryBroker, "LogWriter"]:
    """Return a broker with `count` windows of each of `nodes`, and the writer of its log."""
    broker = MemoryBroker()
    log = LogWriter(broker)
    log.windows(count, *nodes)
    return broker, log


class LogWriter:
    """Appends windows and ends of nodes to a partition of `windows` in a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, topic: str = "t.windows", partition: int = 0) -> None:
        self._broker = broker
        self._place = (topic, partition)
        self._steps: dict[str, int] = {}
        self.samples = 0

    def window(self, node: str, skip: int = 0, epoch: int = 1, **usage: Any) -> int:
        """Append the next window of `node`; `skip` > 0 leaves a gap, < 0 repeats an old window."""
        step = self._steps[node] = self._steps.get(node, 0) + 1 + skip
        self._broker.put("t.samples", self._place[1], node.encode(), b"a sample")
        value = window(node, step, sample_offset=self.samples, epoch=epoch, **usage)
        self.samples += 1
        return self._broker.put(*self._place, node.encode(), value)

    def windows(self, count: int, *nodes: str) -> None:
        """Append `count` windows of each of `nodes`, alternating."""
        for _ in range(count):
            for node in nodes:
                self.window(node)

    def retract(self, node: str, deleted_ms: int = APPENDED_MS) -> int:
        retracted = encode_window(retraction(node, deleted_ms))
        return self._broker.put(*self._place, node.encode(), retracted)

    def depart(self, node: str, appended_ms: int = APPENDED_MS) -> int:
        departed = encode_window(departure(node, appended_ms))
        return self._broker.put(*self._place, node.encode(), departed)
