"""Features of pods through the writer on a described tree of cgroup v2."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actuators.node.cgroup_files import CgroupFiles, detect_hierarchies
from actuators.node.cgroup_writer import CgroupWriter
from actuators.node.original_values import OriginalValues
from pipeline.processors.node_qos.batch_resources import BatchResources
from pipeline.processors.node_qos.block_io import ANNOTATION, BlockIo
from pipeline.processors.node_qos.cgroup_values import Place, Value
from pipeline.processors.node_qos.claims import merge_claims
from pipeline.processors.node_qos.cpu_burst import CpuBurst
from pipeline.processors.node_qos.memory_qos import MemoryProtection
from pipeline.processors.node_qos.node_state import BlockDevices, Feature, NodeState
from pipeline.processors.slo.nodeslo import (
    BurstStrategy,
    MemoryQos,
    NodeSLOSpec,
    QosClass,
    QosStrategy,
)
from tests.processors.node_qos.worlds import GIB, amounts, container, node, pod

WEB, BATCH = "kubepods/burstable/podweb", "kubepods/besteffort/podbatch"
START = {
    "cpu.weight": "1", "cpu.max": "50000 100000", "cpu.max.burst": "0", "memory.max": "max",
    "memory.min": "0", "memory.low": "0", "memory.high": "max", "memory.oom.group": "0",
    "io.max": "", "io.weight": "default 100",
}  # fmt: skip


class Tree:
    """The cgroups of two pods, and what a feature writes to them."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "cgroup"
        paths = ("", WEB, f"{WEB}/main", BATCH, f"{BATCH}/main")
        for path in paths:
            for directory in (self.root / path, *(self.root / path).parents):
                if directory.is_relative_to(self.root):
                    directory.mkdir(parents=True, exist_ok=True)
                    for name, text in START.items():
                        (directory / name).write_text(f"{text}\n")
        (self.root / "cgroup.controllers").write_text("cpu cpuset io memory\n")
        self.files = CgroupFiles(detect_hierarchies(str(self.root)))
        self.originals = OriginalValues(folder / "state.json", "this boot", self.files.value_of)
        self.writer = CgroupWriter(self.files, self.originals)
        self.former: dict[Place, Value] = {}

    def round(self, feature: Feature, state: NodeState) -> None:
        claims = feature.claims(state, self.former)
        self.former = {claim.place: claim.value for claim in claims}
        changes = self.writer.apply(merge_claims(claims))
        assert [change for change in changes if change.outcome == "failed"] == []

    def read(self, path: str, file: str) -> str:
        return (self.root / path / file).read_text().strip()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path)
    yield tree
    tree.originals.close()
    tree.files.close()


def state(at: float, cores: float | None, slo: NodeSLOSpec, **fields: Any) -> NodeState:
    part = container(
        limits=amounts(500, GIB), requests=amounts(500, GIB // 2), throttled_ratio=0.5,
        cpu_cores=0.5,
    )  # fmt: skip
    web = pod(
        "web", part, qos="LS", qos_label="LS", cgroup_limits=amounts(500, GIB),
        requests=part.requests, **fields,
    )  # fmt: skip
    return node(
        web, at=at, slo=slo, cpu_cores=cores, cgroup_version=2, capacity=amounts(8000),
        allocatable=amounts(8000, 8 * GIB), block_devices=BlockDevices(devices={"sda": "8:0"}),
    )  # fmt: skip


def test_a_burst_never_scales_a_container_below_its_limit(tree: Tree) -> None:
    slo, feature = NodeSLOSpec(cpu_burst_strategy=BurstStrategy(policy="auto")), CpuBurst()
    quotas = []
    for second in range(60):
        # The node is idle, then overloaded, then of unknown usage.
        cores = 0.5 if second < 20 else 8.0 if second < 50 else None
        tree.round(feature, state(float(second), cores, slo))
        assert tree.read(WEB, "cpu.max") == tree.read(f"{WEB}/main", "cpu.max")
        quota, period = tree.read(f"{WEB}/main", "cpu.max").split()
        assert period == "100000"
        quotas.append(int(quota))
    assert max(quotas) == 150_000
    assert min(quotas) == quotas[-1] == 50_000
    assert tree.read(WEB, "cpu.max.burst").split()[0] == "50000"
    tree.round(feature, state(61.0, 0.5, NodeSLOSpec(cpu_burst_strategy=BurstStrategy())))
    assert tree.read(WEB, "cpu.max.burst").split()[0] == "0"
    assert tree.originals.values == {}


def test_batch_values_are_weights_and_maxima(tree: Tree) -> None:
    stated: dict[str, Any] = {"batch": amounts(1000, GIB), "batch_limits": amounts(2000, GIB)}
    batch = pod("batch", container(**stated), kube_qos="BestEffort", qos="BE", **stated)
    tree.round(BatchResources(), node(batch))
    for path in (BATCH, f"{BATCH}/main"):
        assert tree.read(path, "cpu.weight") == "39"
        assert tree.read(path, "cpu.max") == "200000 100000"
        assert tree.read(path, "memory.max") == str(GIB)


def test_memory_is_protected_along_the_tree_and_released(tree: Tree) -> None:
    rules = MemoryQos(enable=True, min_limit_percent=50, low_limit_percent=80,
                      throttling_percent=80, oom_kill_group=1)  # fmt: skip
    strategy = QosStrategy(ls_class=QosClass(memory_qos=rules))
    tree.round(MemoryProtection(), state(0.0, 0.5, NodeSLOSpec(resource_qos_strategy=strategy)))
    for path in ("kubepods", "kubepods/burstable", WEB, f"{WEB}/main"):
        assert tree.read(path, "memory.min") == str(GIB // 4)
        assert int(tree.read(path, "memory.low")) == GIB * 2 // 5 // 4096 * 4096
        assert tree.read(path, "memory.oom.group") == ("1" if path.startswith(WEB) else "0")
    assert tree.read(f"{WEB}/main", "memory.high") == str(GIB * 9 // 10 // 4096 * 4096)
    assert tree.read(WEB, "memory.high") == "max"
    off = NodeSLOSpec(resource_qos_strategy=QosStrategy())
    tree.round(MemoryProtection(), state(1.0, 0.5, off))
    for path in ("kubepods", WEB, f"{WEB}/main"):
        assert {f: tree.read(path, f) for f in START if f.startswith("memory.")} == {
            f: text for f, text in START.items() if f.startswith("memory.")
        }


def test_disks_are_limited_by_lines_of_one_key(tree: Tree) -> None:
    blocks = [{"name": "/dev/sda", "type": "device", "ioCfg": {"readBPS": 4096}}]
    own = {ANNOTATION: json.dumps({"blocks": blocks})}
    slo = NodeSLOSpec(resource_qos_strategy=QosStrategy())
    tree.round(BlockIo(), state(0.0, 0.5, slo, annotations=own))
    assert tree.read(WEB, "io.max") == "8:0 rbps=4096"
    tree.round(BlockIo(), state(1.0, 0.5, slo))
    assert tree.read(WEB, "io.max") == "8:0 rbps=max"
    assert tree.originals.values == {}
