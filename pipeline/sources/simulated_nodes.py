"""Simulate nodes, their pods and their usage, for the demo and for load tests.

Seed, node index and time determine all values, so that a window is the same in any order and after
a restart. The load resembles that of a cluster: daily cycles, bursts, memory that grows until a
restart, idle pods, pods above their requests, nodes with too many or too few pods, and short-lived
pods.
"""

import uuid
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray
from pipeline.processors.kubernetes.pod_classes import LABEL_PRIORITY_CLASS, class_label, pod_class
from pipeline.times import format_time
from pipeline.topics.nodes import Condition, NodeRecord
from pipeline.topics.pods import Container, Owner, PodRecord
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.samples import STATISTICS, USAGES, Row, SampleBatch, SampleHeader

POINTS: Final = 10
"""Measurements in a window, from which its statistics are computed."""

MAX_WINDOW_SECONDS: Final = 600
LABEL_SIMULATED: Final = "springtide/simulated"

_DAY: Final = 86_400.0
_GIB: Final = 2.0**30
_BURST_SECONDS: Final = 300.0
# Longer than any window, so that no window has both a pod and its successor.
_GAP_SECONDS: Final = MAX_WINDOW_SECONDS
_SIZES: Final = ((4, 16), (8, 32), (16, 64), (32, 128), (64, 256))  # cores, GiB
_PROFILES: Final = ("steady", "daily", "bursty", "growing", "idle", "heavy")
_PROFILE_SHARES: Final = (0.30, 0.27, 0.15, 0.10, 0.12, 0.06)
_CLASSES: Final = ("prod", "mid", "batch", "free")
_CLASS_SHARES: Final = (0.65, 0.10, 0.20, 0.05)
_NAMESPACE: Final = uuid.UUID("5b7f7d3e-6c1c-4e53-9f0b-6a1f2f0d9c11")
_USAGE_NAMES: Final = tuple(f"{usage}_{statistic}" for usage in USAGES for statistic in STATISTICS)


@dataclass(frozen=True, slots=True)
class _Slots:
    """The pod slots of a node; each slot has one pod at a time. Arrays have an element per slot."""

    profile: npt.NDArray[np.int64]
    pod_class: npt.NDArray[np.int64]
    cpu_cores: FloatArray  # request of a prod pod; usage is proportional to it
    memory_bytes: FloatArray
    cpu_use: FloatArray
    memory_use: FloatArray
    lifetime: FloatArray
    shift: FloatArray
    day_phase: FloatArray


class SimulatedNode:
    """Node number `index` of the fleet with this `seed`; it has `pods` slots for pods."""

    def __init__(self, seed: int, index: int, pods: int) -> None:
        self.name = f"sim-{index:05d}"
        self._key = (seed, index)
        random = np.random.default_rng([seed, index])
        self.cpu_cores, memory_gib = _SIZES[random.integers(len(_SIZES))]
        self.memory_bytes = memory_gib * _GIB
        self._system_cores = 0.05 + 0.02 * self.cpu_cores
        self._system_bytes = 0.5 * _GIB + 0.03 * self.memory_bytes
        self._slots = _make_slots(random, pods, self.cpu_cores, self.memory_bytes)
        self._records: dict[str, PodRecord] = {}

    @cached_property
    def record(self) -> NodeRecord:
        """The node record; as with a kubelet, a share of the capacity is reserved."""
        capacity = Resources(
            cpu_millicores=self.cpu_cores * 1000, memory_bytes=int(self.memory_bytes)
        )
        allocatable = Resources(
            cpu_millicores=self.cpu_cores * 950, memory_bytes=int(self.memory_bytes * 0.94)
        )
        return NodeRecord(
            node=self.name,
            uid=self._uuid("node"),
            allocatable=allocatable,
            capacity=capacity,
            labels={LABEL_SIMULATED: "true", "kubernetes.io/hostname": self.name},
            conditions=(Condition(type="Ready", status="True"),),
        )

    def pods(self, start: float, end: float) -> dict[str, PodRecord]:
        """Return by uid the pods that exist during [start, end), at most 600 s."""
        lives = self._lives(start, end)
        records = {}
        for slot in np.flatnonzero(lives.coverage > 0):
            uid = self._uuid(f"{slot}/{lives.number[slot]}")
            record = self._records.get(uid)
            if record is None:
                record = self._pod_record(int(slot), uid, float(lives.begin[slot]))
            records[uid] = record
        self._records = records
        return records

    def sample(self, start: int, end: int, *, epoch: int, sequence: int) -> SampleBatch:
        """Return the sample of the window from `start` to `end`, at most 600 s; the node's row is
        the first. Times are seconds since 1970. `epoch` and `sequence` are for the header.
        """
        header = SampleHeader(
            node=self.name,
            machine_id=uuid.UUID(self._uuid("machine")).hex,
            boot_id=self._uuid("boot"),
            epoch=epoch,
            sequence=sequence,
            window_start_ms=start * 1000,
            window_end_ms=end * 1000,
            simulated=True,
        )
        return SampleBatch(header, self._rows(float(start), float(end)))

    def _rows(self, start: float, end: float) -> list[Row]:
        lives = self._lives(start, end)
        alive_slots = np.flatnonzero(lives.coverage > 0)
        cpu, memory, demand = self._usage(start, end, lives)
        system_cpu, system_memory = self._system(start, end)
        node_cpu = cpu.sum(axis=0) + system_cpu
        node_memory = memory.sum(axis=0) + system_memory
        offsets = (np.arange(POINTS) + 1) * ((end - start) / POINTS)
        busy = demand / self.cpu_cores
        node: dict[str, Any] = {
            "kind": "node",
            "id": "",
            "coverage": 1.0,
            **_statistics(node_cpu[None], node_memory[None])[0],
            "pressure_cpu_some": float(np.clip(busy - 0.7, 0.0, 1.0)),
            "pressure_memory_some": 0.0,
            "pressure_memory_full": 0.0,
            "pressure_io_some": 0.01,
            "pressure_io_full": 0.0,
            "network_receive_bytes_per_second": 2e6 * busy,
            "network_transmit_bytes_per_second": 1e6 * busy,
            "disk_read_bytes_per_second": 1e5,
            "disk_write_bytes_per_second": 5e5 * busy,
            "capacity_cpu_cores": float(self.cpu_cores),
            "capacity_memory_bytes": self.memory_bytes,
            "points_offset_seconds": offsets.tolist(),
            "points_cpu_cores": node_cpu.tolist(),
            "points_memory_bytes": node_memory.tolist(),
        }
        statistics = _statistics(cpu[alive_slots], memory[alive_slots])
        pods = [
            {
                "kind": "pod",
                "id": self._uuid(f"{slot}/{lives.number[slot]}"),
                "qos": _KUBE_QOS[_CLASSES[self._slots.pod_class[slot]]],
                "coverage": float(lives.coverage[slot]),
                **numbers,
            }
            for slot, numbers in zip(alive_slots, statistics, strict=True)
        ]
        return [node, *pods]

    def _usage(
        self, start: float, end: float, lives: "_Lives"
    ) -> tuple[FloatArray, FloatArray, float]:
        """Return CPU and memory of each slot at each point, and the CPU demand of the node."""
        slots = self._slots
        noise = np.random.default_rng([*self._key, 1, int(start)])
        bursting = np.random.default_rng([*self._key, 2, int(start // _BURST_SECONDS)])
        burst = bursting.random(len(slots.profile)) < 0.12
        wave = 1.0 + 0.7 * np.sin(2 * np.pi * (0.5 * (start + end) / _DAY + slots.day_phase))
        shape = np.choose(slots.profile, [1.0, wave, np.where(burst, 4.0, 0.4), 1.0, 0.03, 2.2])
        size = (len(shape), POINTS)
        alive = (lives.coverage > 0)[:, None]
        cpu = (slots.cpu_cores * slots.cpu_use * shape)[:, None] * noise.lognormal(0.0, 0.2, size)
        cpu = np.where(alive, cpu, 0.0)
        growth = np.where(slots.profile == _PROFILES.index("growing"), 0.4 + 1.2 * lives.age, 1.0)
        memory = (slots.memory_bytes * slots.memory_use * growth)[:, None]
        memory = np.where(alive, memory * noise.normal(1.0, 0.01, size), 0.0)
        demand = float(cpu.sum(axis=0).mean() + self._system_cores)
        # Pods cannot use more than the node has: the kernel scales them down.
        cpu *= np.minimum(1.0, _scale_factor(0.97 * self.cpu_cores - 2 * self._system_cores, cpu))
        memory *= np.minimum(
            1.0, _scale_factor(0.95 * self.memory_bytes - self._system_bytes, memory)
        )
        return cpu, memory, demand

    def _system(self, start: float, end: float) -> tuple[FloatArray, FloatArray]:
        noise = np.random.default_rng([*self._key, 3, int(start)])
        cpu = self._system_cores * np.clip(noise.lognormal(0.0, 0.1, POINTS), 0.5, 2.0)
        return cpu, np.full(POINTS, self._system_bytes)

    def _lives(self, start: float, end: float) -> "_Lives":
        """Return the pod of each slot in the window: the last one started before its end."""
        slots = self._slots
        number = np.floor((end - 1e-3 + slots.shift) / slots.lifetime)
        begin = number * slots.lifetime - slots.shift
        life = slots.lifetime - _GAP_SECONDS
        overlap = np.minimum(begin + life, end) - np.maximum(begin, start)
        return _Lives(
            number=number.astype(np.int64),
            begin=begin,
            coverage=np.clip(overlap / (end - start), 0.0, 1.0),
            age=np.clip((end - begin) / life, 0.0, 1.0),
        )

    def _pod_record(self, slot: int, uid: str, begin: float) -> PodRecord:
        slots = self._slots
        name = _CLASSES[slots.pod_class[slot]]
        workload = f"{_PROFILES[slots.profile[slot]]}-{slot}"
        slot_resources = Resources(
            cpu_millicores=max(1, round(slots.cpu_cores[slot] * 1000)),
            memory_bytes=int(slots.memory_bytes[slot]),
        )
        # Mid, batch and free pods request extended resources instead of CPU and memory.
        requests = slot_resources if name == "prod" else Resources()
        labels = {LABEL_PRIORITY_CLASS: class_label(name), LABEL_SIMULATED: "true"}
        classes = pod_class(labels, None, _KUBE_QOS[name])
        started = format_time(round(begin))
        return PodRecord(
            node=self.name,
            uid=uid,
            cgroup_uid=uid,
            namespace=f"sim-{name}",
            name=f"{workload}-{uid[:5]}",
            owner=Owner(kind="ReplicaSet", name=workload),
            labels=labels,
            pod_class=classes.priority_class,
            qos=classes.qos,
            requests=requests,
            containers=(Container(name="main", requests=requests),),
            phase="Running",
            created_at=started,
            started_at=started,
        )

    def _uuid(self, name: str) -> str:
        seed, index = self._key
        return str(uuid.uuid5(_NAMESPACE, f"{seed}/{index}/{name}"))


@dataclass(frozen=True, slots=True)
class _Lives:
    number: npt.NDArray[np.int64]
    begin: FloatArray
    coverage: FloatArray
    age: FloatArray  # as a share of the pod's lifetime


_KUBE_QOS: Final = dict.fromkeys(_CLASSES, "BestEffort") | {"prod": "Burstable"}


def _make_slots(random: np.random.Generator, pods: int, cores: int, memory: float) -> _Slots:
    cpu = random.lognormal(0.0, 0.9, pods)
    memories = random.lognormal(0.0, 0.7, pods)
    short_lived = random.random(pods) < 0.25
    lifetime = np.where(
        short_lived, random.uniform(1.0, 6.0, pods), random.uniform(24.0, 240.0, pods)
    )
    lifetime = lifetime * 3600.0
    fullness = random.choice([0.3, 0.9, 1.8], p=[0.15, 0.70, 0.15]) * random.uniform(0.8, 1.2)
    return _Slots(
        profile=random.choice(len(_PROFILES), pods, p=_PROFILE_SHARES),
        pod_class=random.choice(len(_CLASSES), pods, p=_CLASS_SHARES),
        cpu_cores=cpu / max(cpu.sum(), 1e-9) * cores * fullness,
        memory_bytes=memories / max(memories.sum(), 1e-9) * memory * 0.8,
        cpu_use=random.uniform(0.2, 0.6, pods),
        memory_use=random.uniform(0.4, 0.8, pods),
        lifetime=lifetime,
        shift=random.uniform(0.0, 1.0, pods) * lifetime,
        day_phase=random.normal(0.0, 0.05, pods),
    )


def _scale_factor(available: float, wanted: FloatArray) -> FloatArray:
    total: FloatArray = wanted.sum(axis=0)
    return available / np.maximum(total, 1e-9)


def _statistics(cpu: FloatArray, memory: FloatArray) -> list[dict[str, float]]:
    """Return the usage columns of each row from its points (rows by points)."""
    usages = (cpu, memory, memory * 1.3, memory * 1.1)
    table = np.concatenate([_summarise(usage) for usage in usages], axis=1)
    return [dict(zip(_USAGE_NAMES, row, strict=True)) for row in table.tolist()]


def _summarise(points: FloatArray) -> FloatArray:
    """Return avg, p90, p95, max and last of the points; percentiles have rank floor(n*p)-1."""
    ranked = np.sort(points, axis=1)
    count = points.shape[1]
    columns = (
        points.mean(axis=1),
        ranked[:, int(count * 0.90) - 1],
        ranked[:, int(count * 0.95) - 1],
        ranked[:, -1],
        points[:, -1],
    )
    return np.stack(columns, axis=1)
