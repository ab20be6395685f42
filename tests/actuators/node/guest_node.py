"""Features that decide about real cgroups of v2 in the guest, and what the kernel counts there.

An emulated machine is slow, so CPU time is compared within the guest only.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.processors.node_qos.node_state import NodeState, PodState
from pipeline.processors.slo.nodeslo import NodeSLOSpec, QosStrategy, ThresholdStrategy
from pipeline.topics.resource_amounts import Resources
from tests.actuators.node.test_cpu_features_on_v1 import Loop
from tests.cgroup_tree import CgroupV2Tree, cgroup_v2_tree
from tests.processes import eventually
from tests.processors.node_qos.worlds import container, pod

MIB = 1 << 20
DISK = "/dev/vda"
WEB, BATCH, OTHER = "burstable/podweb", "besteffort/podbatch", "besteffort/podother"
CONTAINERS = tuple(f"{path}/main" for path in (WEB, BATCH, OTHER))
PATHS = ("", "burstable", "besteffort", WEB, BATCH, OTHER, *CONTAINERS)
FILES = (
    "cpu.max", "cpu.max.burst", "cpu.weight", "cpu.idle", "cpuset.cpus", "memory.min",
    "memory.low", "memory.high", "memory.max", "io.max", "io.weight",
)  # fmt: skip
BUSY = "while :; do :; done"


class GuestNode(Loop):
    """Features that decide in rounds about real cgroups; `tree` stands for kubepods."""

    tree: CgroupV2Tree

    def state(self, *pods: PodState, **fields: Any) -> NodeState:
        return super().state(*pods, **{"cgroup_version": 2, **fields})

    def read(self, path: str, file: str) -> str:
        return self.tree.read(path, file).strip()

    def contents(self) -> dict[str, bytes]:
        """The bytes of all files that have limits; the top has no other files than a child."""
        return {
            f"{path} {file}": (self.tree.path(path) / file).read_bytes()
            for path in PATHS
            for file in FILES
            if (self.tree.path(path) / file).exists()
        }

    def burner(self, path: str, cpu: int) -> subprocess.Popen[str]:
        """A process that uses as much of one CPU as it gets."""
        process = self.tree.run(path, "/bin/sh", "-c", BUSY)
        # A process that joins a cgroup gets all CPUs of the cgroup.
        assert eventually(lambda: self.is_in(path, process))
        os.sched_setaffinity(process.pid, {cpu})
        return process

    def is_in(self, path: str, process: subprocess.Popen[str]) -> bool:
        return str(process.pid) in self.read(path, "cgroup.procs").split()

    def count(self, path: str, file: str, key: str) -> int:
        return self.tree.fields(path, file)[key]

    def throttled(self, path: str) -> int:
        return self.count(path, "cpu.stat", "nr_throttled")

    def comes_to(self, path: str, other: str, least: float, most: float) -> bool:
        """Whether the CPU time of a cgroup, from now on, comes to be `least` to `most` times that
        of another one. A stalled machine needs time until it is."""
        start = [self.count(path, "cpu.stat", "usage_usec") for path in (path, other)]

        def is_within() -> bool:
            now = [self.count(path, "cpu.stat", "usage_usec") for path in (path, other)]
            used, by_other = (after - before for after, before in zip(now, start, strict=True))
            return used + by_other > 1_000_000 and least <= used / max(by_other, 1) <= most

        return eventually(is_within)


@contextmanager
def guest_node(folder: Path) -> Iterator[GuestNode]:
    """The containers of three pods; `folder` is for original values."""
    with cgroup_v2_tree("node") as tree:
        for path in CONTAINERS:
            tree.make(path)
        node = GuestNode(tree, folder / "state.json")
        yield node
        node.originals.close()
        node.files.close()


def batch(
    name: str = "batch", requests: Resources | None = None, limits: Resources | None = None
) -> PodState:
    stated = {"batch": requests or Resources(), "batch_limits": limits or Resources()}
    part = container("main", **stated)
    return pod(name, part, kube_qos="BestEffort", qos="BE", cpu_cores=0.3, **stated)


def web(**fields: Any) -> PodState:
    return pod("web", container(**fields), qos="LS", qos_label="LS", cpu_cores=0.1)


def suppressed(policy: Any, **fields: Any) -> NodeSLOSpec:
    rules = ThresholdStrategy(
        enable=True, cpu_suppress_policy=policy, cpu_suppress_threshold_percent=100
    )
    return NodeSLOSpec(resource_used_threshold_with_be=rules, **fields)


def strategy(**fields: Any) -> NodeSLOSpec:
    return NodeSLOSpec(resource_qos_strategy=QosStrategy(**fields))
