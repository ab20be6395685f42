"""Features of single pods through the writer on cgroup v1 of this kernel, which accepts them."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.processors.node_qos.batch_resources import BatchResources
from pipeline.processors.node_qos.block_io import ANNOTATION, BlockIo
from pipeline.processors.node_qos.cpu_burst import CpuBurst
from pipeline.processors.node_qos.cpu_normalization import CpuNormalization
from pipeline.processors.node_qos.memory_qos import MemoryProtection
from pipeline.processors.node_qos.node_state import BlockDevices, NodeState, PodState
from pipeline.processors.slo.nodeslo import (
    BurstStrategy,
    MemoryQos,
    NodeSLOSpec,
    QosClass,
    QosStrategy,
    ThresholdStrategy,
)
from tests.actuators.node.limit_tree import DEVICE
from tests.actuators.node.test_cpu_features_on_v1 import Loop
from tests.cgroup_tree import cgroup_tree
from tests.processors.node_qos.worlds import amounts, container, pod

pytestmark = pytest.mark.cgroups

WEB, BATCH = "burstable/podweb", "besteffort/podbatch"
PATHS = (WEB, f"{WEB}/main", BATCH, f"{BATCH}/main", f"{BATCH}/other")
FILES = {
    "cpu": ("cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_burst_us"),
    "memory": ("memory.limit_in_bytes",),
    "blkio": ("blkio.throttle.read_bps_device", "blkio.throttle.write_iops_device"),
}
MIB = 2**20


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    with cgroup_tree("pods", ("cpu", "memory", "blkio")) as tree:
        for path in PATHS:
            tree.make(path)
        # What the kubelet writes for a limit of half a CPU, and for BestEffort.
        for path in (WEB, f"{WEB}/main"):
            tree.write("cpu", path, "cpu.cfs_quota_us", 50_000)
        for path in (BATCH, f"{BATCH}/main", f"{BATCH}/other"):
            tree.write("cpu", path, "cpu.shares", 2)
        loop = Loop(tree, tmp_path / "state.json")
        loop.features = (
            BatchResources(), CpuBurst(), CpuNormalization(), MemoryProtection(), BlockIo(),
        )  # fmt: skip
        yield loop
        loop.originals.close()
        loop.files.close()


def contents(loop: Loop) -> dict[str, str]:
    return {
        f"{path} {file}": (loop.tree.directory(controller, path) / file).read_text()
        for path in PATHS
        for controller, files in FILES.items()
        for file in files
    }


def state(loop: Loop, *pods: PodState, **fields: Any) -> NodeState:
    """A node with free CPUs."""
    devices = BlockDevices(devices={"disk": DEVICE})
    fields = {"block_devices": devices, "capacity": amounts(8000), "at": time.time(), **fields}
    return loop.state(*pods, **fields)


def batch(cpu: int = 500, memory: int = 64 * MIB, **fields: Any) -> PodState:
    stated = {"batch": amounts(cpu, memory), "batch_limits": amounts(cpu, memory)}
    both = {"batch": amounts(2 * cpu, 2 * memory), "batch_limits": amounts(2 * cpu, 2 * memory)}
    parts = (container("main", **stated), container("other", **stated))
    return pod("batch", *parts, kube_qos="BestEffort", qos="BE", **both, **fields)


def web(ratio: float | None = None, **fields: Any) -> PodState:
    part = container("main", limits=amounts(500), throttled_ratio=ratio, cpu_cores=0.5)
    return pod("web", part, **{"qos": "LS", "cgroup_limits": amounts(500), **fields})


def burst(policy: Any) -> NodeSLOSpec:
    return NodeSLOSpec(cpu_burst_strategy=BurstStrategy(policy=policy))


def test_a_batch_pod_gets_what_it_states_and_then_back_what_it_had(loop: Loop) -> None:
    before = contents(loop)
    loop.round(state(loop, batch()))
    for path, cores in ((BATCH, 2), (f"{BATCH}/main", 1), (f"{BATCH}/other", 1)):
        assert loop.read(path, "cpu.shares") == str(512 * cores)
        assert loop.read(path, "cpu.cfs_quota_us") == str(50_000 * cores)
        assert loop.read(path, "memory.limit_in_bytes") == str(64 * MIB * cores)
    # A resize in either direction is accepted, and so is the end of quotas by cfsQuota.
    for cpu in (2000, 100):
        loop.round(state(loop, batch(cpu)))
        assert loop.read(f"{BATCH}/main", "cpu.cfs_quota_us") == str(cpu * 100)
    threshold = ThresholdStrategy(enable=True, cpu_suppress_policy="cfsQuota")
    loop.round(state(loop, batch(), slo=NodeSLOSpec(resource_used_threshold_with_be=threshold)))
    assert loop.read(BATCH, "cpu.cfs_quota_us") == loop.read(f"{BATCH}/main", "cpu.cfs_quota_us")
    assert loop.read(BATCH, "cpu.cfs_quota_us") == "-1"
    loop.round(state(loop))
    assert contents(loop) == before


def test_a_static_burst_is_accepted_and_taken_back(loop: Loop) -> None:
    before = contents(loop)
    loop.round(state(loop, web(), cpu_cores=0.5, slo=burst("cpuBurstOnly")))
    for path in (WEB, f"{WEB}/main"):
        assert loop.read(path, "cpu.cfs_burst_us") == "50000"
    loop.round(state(loop, web(), cpu_cores=0.5, slo=burst("none")))
    assert contents(loop) == before


def test_a_throttled_process_gets_more_until_the_node_is_busy(loop: Loop) -> None:
    """The kernel counts no throttled period of one thread when the quota is above one CPU."""
    before = contents(loop)
    loop.tree.write("cpu", "", "cpu.shares", 100_000)  # it gets its quota on a busy machine, too
    process = loop.tree.python(f"{WEB}/main", "while True: pass")

    def throttled() -> int:
        start = int(loop.read(f"{WEB}/main", "cpu.stat").split()[3])
        time.sleep(0.7)
        return int(loop.read(f"{WEB}/main", "cpu.stat").split()[3]) - start

    assert throttled() > 0
    for _ in range(10):
        loop.round(state(loop, web(ratio=0.5), cpu_cores=0.5, slo=burst("auto")))
    for path in (WEB, f"{WEB}/main"):
        assert loop.read(path, "cpu.cfs_quota_us") == "150000"
        assert loop.read(path, "cpu.cfs_burst_us") == "50000"
    assert throttled() == 0
    assert process.poll() is None
    for _ in range(20):
        loop.round(
            state(loop, web(ratio=0.5), cpu_cores=8.0, at=time.time() + 100, slo=burst("auto"))
        )
    assert loop.read(f"{WEB}/main", "cpu.cfs_quota_us") == "50000"
    loop.round(state(loop, web(), cpu_cores=0.5, slo=burst("none")))
    assert contents(loop) == before


def test_normalized_quotas_are_accepted(loop: Loop) -> None:
    before = contents(loop)
    loop.round(state(loop, web(), cpu_normalization=1.5))
    assert loop.read(WEB, "cpu.cfs_quota_us") == loop.read(f"{WEB}/main", "cpu.cfs_quota_us")
    assert loop.read(WEB, "cpu.cfs_quota_us") == "33334"
    loop.round(state(loop, web()))
    assert contents(loop) == before


def test_disks_are_throttled_and_released(loop: Loop) -> None:
    before = contents(loop)
    blocks = [{"name": "/dev/disk", "type": "device", "ioCfg": {"readBPS": 4096, "writeIOPS": 7}}]
    own = {ANNOTATION: json.dumps({"blocks": blocks})}
    loop.round(
        state(
            loop, web(qos_label="LS", annotations=own),
            slo=NodeSLOSpec(resource_qos_strategy=QosStrategy()),
        )
    )  # fmt: skip
    assert loop.read(WEB, "blkio.throttle.read_bps_device") == f"{DEVICE} 4096"
    assert loop.read(WEB, "blkio.throttle.write_iops_device") == f"{DEVICE} 7"
    loop.round(state(loop, web(), slo=NodeSLOSpec(resource_qos_strategy=QosStrategy())))
    assert contents(loop) == before


def test_memory_qos_on_a_kernel_without_its_files_changes_nothing(loop: Loop) -> None:
    before = contents(loop)
    rules = MemoryQos(enable=True, min_limit_percent=100, throttling_percent=80, wmark_ratio=95)
    strategy = QosStrategy(ls_class=QosClass(memory_qos=rules))
    pods = web(requests=amounts(500, MIB))
    loop.round(state(loop, pods, slo=NodeSLOSpec(resource_qos_strategy=strategy)))
    assert contents(loop) == before
    assert loop.originals.values == {}
