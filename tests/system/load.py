"""A seeded load: the samples, nodes and pods of a cluster with many irregularities.

Windows, by default of 5 s, on the grid of event time, pods that start and end, gaps, duplicates,
late windows, a second exporter, another machine under an old name, low coverage, invalid values.
Only some nodes and pods have records; they change, and nodes are deleted and recreated. Every
sample is valid: none may become a dead letter.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipeline.kafka.partition import partition_of
from pipeline.topics.codec import encode_json
from pipeline.topics.nodes import NodeRecord, NodeStrategy
from pipeline.topics.pods import Owner, PodRecord, pod_key
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.samples import Row, SampleBatch, SampleHeader, encode_samples

WINDOW_SECONDS = 5
MAX_STEPS = 3000
"""As many steps may be produced before their windows reach the present: a run of 20 minutes."""


class Message(NamedTuple):
    """A record to produce; a node has the same partition in every topic."""

    topic: str
    node: str
    key: bytes
    value: bytes | None


@dataclass
class Load:
    """The load of one run. `step(n)` yields the records of the n-th window of every node."""

    seed: int
    nodes: int = 32
    pods: int = 8
    # The tombstones of nodes: number -> (step of the deletion, step of the return or None).
    departures: dict[int, tuple[int, int | None]] = field(
        default_factory=lambda: {5: (25, 45), 6: (40, None)}
    )
    base_seconds: int = 0
    window_seconds: int = WINDOW_SECONDS

    def __post_init__(self) -> None:
        # All windows are in the past, however fast steps are produced.
        now = int(time.time()) // self.window_seconds * self.window_seconds
        self.base_seconds = self.base_seconds or now - (MAX_STEPS + 1) * self.window_seconds

    @property
    def departing(self) -> set[str]:
        """Nodes whose samples may be written before or after their deletion."""
        return {name(number) for number in self.departures}

    def cluster_state(self) -> Iterator[Message]:
        """Yield the nodes and pods that are known before the first sample."""
        for number in range(self.nodes):
            if number % 4 != 3:
                yield self._node(number)
            yield from self._pods(number, 0)

    def step(self, step: int) -> Iterator[Message]:
        """Yield the records of one window in random order, with changes of nodes and pods."""
        rng = random.Random(f"{self.seed}/{step}")
        numbers = list(range(self.nodes))
        rng.shuffle(numbers)
        for number in numbers:
            yield from self._changes(number, step)
            if self._is_deleted(number, step) or rng.random() < 0.02:
                continue
            yield self._sample(number, step)
            chance = rng.random()
            if chance < 0.03:
                yield self._sample(number, step)
            elif chance < 0.06 and step > 3:
                yield self._sample(number, step - 3)
            elif number == 0:
                yield self._sample(number, step, exporter=1)

    def _is_deleted(self, number: int, step: int) -> bool:
        if number not in self.departures:
            return False
        gone, back = self.departures[number]
        # Two windows follow the deletion, as in production.
        return step > gone + 2 and (back is None or step < back)

    def _changes(self, number: int, step: int) -> Iterator[Message]:
        gone, back = self.departures.get(number, (None, None))
        if step == gone:
            yield Message("nodes", name(number), name(number).encode(), None)
        if step == back:
            yield self._node(number)
        if step and step % 7 == number % 7:
            yield from self._pods(number, step)
        if step and step % 11 == number % 11 and number % 4 != 3 and gone is None:
            yield self._node(number, step)

    def _node(self, number: int, step: int = 0) -> Message:
        rng = random.Random(f"{self.seed}/node/{number}/{step}")
        strategy = NodeStrategy(
            safety_margin_percent=float(rng.randrange(5, 20)),
            cold_start_seconds=20.0,
            cold_start_samples=2,
        )
        amount = Resources(cpu_millicores=rng.randrange(4000, 32000), memory_bytes=64 << 30)
        record = NodeRecord(
            node=name(number), allocatable=amount, capacity=amount,
            strategy=strategy if number % 2 else None, strategy_hash=str(step),
        )  # fmt: skip
        return Message("nodes", name(number), name(number).encode(), encode_json(record))

    def _pods(self, number: int, step: int) -> Iterator[Message]:
        if number % 3 == 0:
            return
        was = set(self._uids(number, step - 7)) if step >= 7 else set()
        now = self._uids(number, step)
        for uid in sorted(was.difference(now)):
            yield Message("pods", name(number), pod_key(name(number), uid), None)
        for place, uid in enumerate(now):
            if place == 1:
                continue
            yield Message(
                "pods", name(number), pod_key(name(number), uid),
                encode_json(self._pod(number, uid, place, step)),
            )  # fmt: skip

    def _pod(self, number: int, uid: str, place: int, step: int) -> PodRecord:
        created = self.base_seconds + max(0, step - 5) * self.window_seconds
        return PodRecord(
            node=name(number), uid=uid, cgroup_uid=uid, namespace="default", name=f"pod-{uid}",
            owner=Owner(kind="ReplicaSet", name=f"set-{place}"),
            pod_class=("prod", "prod", "mid", "batch", "free", "none")[place % 6],
            requests=Resources(cpu_millicores=100 * (place + 1), memory_bytes=(place + 1) << 28),
            phase="Running", created_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created)),
        )  # fmt: skip

    def _uids(self, number: int, step: int) -> list[str]:
        # Each slot of a node has one pod after the other, for 10 to 40 windows each.
        return [
            f"{number}-{place}-{(step + 3 * number + place) // (10 + 5 * place)}"
            for place in range(self.pods)
            if (step + place) % 13
        ]

    def _sample(self, number: int, step: int, exporter: int = 0) -> Message:
        rng = random.Random(f"{self.seed}/{number}/{step}/{exporter}")
        start_ms = (self.base_seconds + step * self.window_seconds) * 1000
        header = SampleHeader(
            node=name(number),
            machine_id="other" if number == 1 and step >= 30 else f"machine-{number}",
            boot_id="boot", epoch=1000 + exporter, sequence=step, window_start_ms=start_ms,
            window_end_ms=start_ms + self.window_seconds * 1000, simulated=True,
        )  # fmt: skip
        rows: list[Row] = [self._row(rng, "node", "", 8.0)]
        rows += [self._row(rng, "pod", uid, 0.5) for uid in self._uids(number, step)]
        rows.append(self._row(rng, "tier", "besteffort", 0.3))
        rows.append(self._row(rng, "host_app", "ssh", 0.1))
        value = encode_samples(SampleBatch(header, rows))
        return Message("samples", name(number), name(number).encode(), value)

    def _row(self, rng: random.Random, kind: str, uid: str, cores: float) -> dict[str, Any]:
        cpu, memory = rng.lognormvariate(-1, 0.7) * cores, rng.lognormvariate(0, 0.5) * 2**30
        row: dict[str, Any] = {"kind": kind, "id": uid, "coverage": 1.0}
        for statistic, factor in (("avg", 1.0), ("p90", 1.2), ("max", 1.4)):
            row[f"cpu_cores_{statistic}"] = cpu * factor
            row[f"memory_bytes_{statistic}"] = memory * factor
        if kind == "node":
            row["coverage"] = 0.3 if rng.random() < 0.03 else 1.0
            row |= {"capacity_cpu_cores": 16.0, "capacity_memory_bytes": 64.0 * 2**30}
        if rng.random() < 0.01:
            row["cpu_cores_p90"] = rng.choice([float("nan"), -1.0, float("inf"), 1e300, None])
        return row


def name(number: int) -> str:
    """Return the name of the node `number`."""
    return f"node-{number}"


def partition(message: Message, partitions: int) -> int:
    """Return the partition of a message."""
    return partition_of(message.node, partitions)
