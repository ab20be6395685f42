"""CPU sets, disks, refused values and restarts of the node actuator on a real cgroup v2 hierarchy,
in a guest."""

import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from actuators.node import node_metrics
from actuators.node.block_devices import read_block_devices
from actuators.node.cgroup_writer import CgroupWriter
from actuators.node.original_values import OriginalValues
from pipeline.processors.kubernetes.node_reservation import RESOURCE_STATUS, Reservation
from pipeline.processors.node_qos.block_io import BlockIo
from pipeline.processors.node_qos.cgroup_values import Knob, Place, Value
from pipeline.processors.node_qos.claims import Claim, merge_claims
from pipeline.processors.node_qos.cpu_suppression import CpuSuppression
from pipeline.processors.node_qos.features import built_features
from pipeline.processors.node_qos.share_pool import SharePool
from pipeline.processors.slo.nodeslo import (
    BlkioQos,
    Block,
    BurstStrategy,
    CpuQos,
    IoConfig,
    MemoryQos,
    NodeSLOSpec,
    QosClass,
    QosPolicies,
    QosStrategy,
)
from tests.actuators.node.guest_node import (
    BATCH,
    DISK,
    MIB,
    WEB,
    GuestNode,
    batch,
    guest_node,
    strategy,
    suppressed,
    web,
)
from tests.cgroup_tree import CGROUP_ROOT
from tests.metric_values import value_of
from tests.processes import eventually
from tests.processors.node_qos.worlds import amounts, container, pod

pytestmark = pytest.mark.guest

WRITE = f"""
import mmap, os, time
pages = mmap.mmap(-1, {MIB})
disk = os.open("{DISK}", os.O_WRONLY | os.O_DIRECT)
start = time.monotonic()
os.write(disk, pages)
print(time.monotonic() - start)
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[GuestNode]:
    with guest_node(tmp_path) as node:
        yield node


def test_processes_run_on_the_cpus_of_their_class(node: GuestNode) -> None:
    node.features = (CpuSuppression(None, None), SharePool())
    for path in ("besteffort", WEB, f"{WEB}/main"):
        node.tree.set(path, "cpuset.cpus", "0-1")
    before = node.contents()
    low, high = (node.tree.run(f"{path}/main", "sleep", "600") for path in (BATCH, WEB))

    def allowed(process: subprocess.Popen[str]) -> str:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        (text,) = (line.split()[1] for line in lines if line.startswith("Cpus_allowed_list:"))
        return text

    assert eventually(lambda: node.is_in(f"{BATCH}/main", low) and node.is_in(f"{WEB}/main", high))
    policy = suppressed("cpuset")
    own = pod("web", container(), qos="LSE", qos_label="LSE", cpu_cores=0.1,
              annotations={RESOURCE_STATUS: '{"cpuset":"1"}'})  # fmt: skip
    node.round(node.state(own, batch(), slo=policy))
    assert (allowed(low), allowed(high)) == ("0", "1")
    reserved = Reservation(cpus=frozenset({0}))
    node.round(node.state(web(), batch(), slo=policy, reservation=reserved))
    assert (allowed(low), allowed(high)) == ("1", "1")
    node.round(node.state())
    assert (allowed(low), allowed(high)) == ("0-1", "0-1")
    assert node.contents() == before


def test_a_disk_is_slower_for_throttled_best_effort_work(node: GuestNode) -> None:
    node.features = (BlockIo(),)
    before = node.contents()

    def write_seconds(path: str) -> float:
        process = node.tree.python(f"{path}/main", WRITE)
        assert process.stdout is not None
        return float(process.stdout.readline())

    write_seconds(BATCH)  # the first time is slower
    free = write_seconds(BATCH)
    config = IoConfig(write_bps=MIB // 4)
    blocks = (Block(name=DISK, type="device", io_cfg=config),)
    policy = strategy(be_class=QosClass(blkio_qos=BlkioQos(enable=True, blocks=blocks)))
    devices = read_block_devices("/sys", "/proc")
    assert devices is not None
    number = devices.devices["vda"]
    node.round(node.state(batch(), slo=policy, block_devices=devices))
    limits = f"{number} rbps=max wbps={MIB // 4} riops=max wiops=max"
    assert node.read("besteffort", "io.max") == limits
    limited, others = write_seconds(BATCH), write_seconds(WEB)
    assert limited > 2
    assert limited > 1.5 * max(free, others)
    (written,) = (
        words for line in node.read("besteffort", "io.stat").splitlines()
        if (words := line.split())[0] == number
    )  # fmt: skip
    assert f"wbytes={3 * MIB}" in written
    node.round(node.state(batch(), slo=strategy(), block_devices=devices))
    assert node.contents() == before


def test_the_weight_of_a_disk_holds_from_when_the_disk_has_a_cost_model(node: GuestNode) -> None:
    node.features = (BlockIo(),)
    before = node.contents()
    devices = read_block_devices("/sys", "/proc")
    assert devices is not None
    number = devices.devices["vda"]

    def on_the_disk(config: IoConfig) -> QosClass:
        blocks = (Block(name=DISK, type="device", io_cfg=config),)
        return QosClass(blkio_qos=BlkioQos(enable=True, blocks=blocks))

    def has_weight() -> bool:
        return f"{number} 50" in node.read("besteffort", "io.weight").splitlines()

    def cost() -> str:
        return (CGROUP_ROOT / "io.cost.qos").read_text()

    low = on_the_disk(IoConfig(io_weight_percent=50))
    node.round(node.state(batch(), slo=strategy(be_class=low), block_devices=devices))
    assert value_of(node_metrics.UNSUPPORTED.labels(Knob.IO_WEIGHT)) == 1
    assert node.contents() == before
    costs = on_the_disk(IoConfig(read_latency=4000))
    slo = strategy(be_class=low, cgroup_root=costs)
    for _ in range(3):
        node.round(node.state(batch(), slo=slo, block_devices=devices))
    assert has_weight()
    assert value_of(node_metrics.UNSUPPORTED.labels(Knob.IO_WEIGHT)) == 0
    assert f"{number} enable=1" in cost()
    assert "rlat=4000" in cost()
    node.tree.python(f"{BATCH}/main", WRITE).wait(60)
    assert eventually(lambda: "cost.usage=" in node.read(f"{BATCH}/main", "io.stat"))
    node.round(node.state(batch(), slo=strategy(), block_devices=devices))
    assert node.contents() == before
    assert f"{number} enable=1" not in cost()
    assert node.originals.values == {}


def test_what_the_kernel_refuses_stops_nothing_else(node: GuestNode) -> None:
    """A child may have more quota than its parent on v2, and is limited all the same."""
    node.tree.set(f"{BATCH}/main", "cpu.max", "150000 100000")
    before = node.contents()
    top = node.tree.name
    no_cpu = Place(f"{top}/{WEB}", Knob.CPUSET)
    no_disk = Place(f"{top}/{WEB}", Knob.IO_READ_BPS, "259:77")
    gone = Place(f"{top}/besteffort/podgone", Knob.CPU_QUOTA)
    wanted: dict[Place, Value] = {
        gone: 50_000,
        no_cpu: frozenset({1, 5_000}),
        no_disk: MIB,
        Place(f"{top}/{BATCH}", Knob.CPU_QUOTA): 20_000,
        Place(f"{top}/{BATCH}", Knob.CPU_BURST): 90_000,
        Place(f"{top}/{BATCH}/main", Knob.CPU_QUOTA): 60_000,
        Place(f"{top}/{WEB}/main", Knob.MEMORY_HIGH): 24 * MIB + 1,
        Place(f"{top}/{WEB}", Knob.CPU_SHARES): 2048,
    }
    refused = set()
    for _ in range(3):
        claims = [Claim(place, value, "test", "") for place, value in wanted.items()]
        changes = node.writer.apply(merge_claims(claims))
        refused |= {change.place for change in changes if change.outcome == "failed"}
    assert refused == {no_cpu, no_disk}
    assert node.read(BATCH, "cpu.max") == "20000 100000"
    assert node.read(f"{BATCH}/main", "cpu.max") == "60000 100000"
    assert node.read(BATCH, "cpu.max.burst") == "20000"
    assert node.read(f"{WEB}/main", "memory.high") == str(24 * MIB)
    assert node.read(WEB, "cpu.weight") == "79"
    assert node.read(WEB, "cpuset.cpus") == node.read(WEB, "io.max") == ""
    node.burner(f"{BATCH}/main", 0)
    assert eventually(lambda: node.throttled(BATCH) > 2)
    assert node.throttled(f"{BATCH}/main") == 0
    assert [change for change in node.writer.undo() if change.outcome == "failed"] == []
    assert node.contents() == before


def crash_policy() -> NodeSLOSpec:
    """Every feature that has a limit on v2, but CPU sets."""
    memory = MemoryQos(
        enable=True, min_limit_percent=50, low_limit_percent=80, throttling_percent=80
    )
    blocks = (Block(name=DISK, type="device", io_cfg=IoConfig(read_iops=500)),)
    idle = QosClass(
        cpu_qos=CpuQos(enable=True, sched_idle=1), blkio_qos=BlkioQos(enable=True, blocks=blocks)
    )
    return suppressed(
        "cfsQuota",
        cpu_burst_strategy=BurstStrategy(policy="cpuBurstOnly"),
        resource_qos_strategy=QosStrategy(
            ls_class=QosClass(memory_qos=memory), be_class=idle,
            policies=QosPolicies(cpu_policy="coreSched"),
        ),
    )  # fmt: skip


def act_until_killed(node: GuestNode, state_file: Path) -> None:
    """Rounds of a process of its own, which write every limit and restore it."""
    node.originals = OriginalValues(state_file, "this boot", node.files.value_of)
    node.writer = CgroupWriter(node.files, node.originals)
    limits = amounts(500, 64 * MIB)
    part = container(requests=limits, limits=limits)
    pods = (
        pod("web", part, qos="LS", qos_label="LS", requests=limits, cgroup_limits=limits,
            cpu_cores=0.1),
        batch(requests=limits, limits=limits), batch("other", amounts(2000)),
    )  # fmt: skip
    devices = read_block_devices("/sys", "/proc")
    while True:
        for policy in (crash_policy(), crash_policy(), NodeSLOSpec()):
            node.round(node.state(*pods, slo=policy, block_devices=devices))


def test_the_successor_of_a_killed_actuator_restores_each_byte(
    node: GuestNode, tmp_path: Path
) -> None:
    node.features = built_features(None, None)
    for path in (WEB, f"{WEB}/main"):
        node.tree.set(path, "cpu.max", "50000 100000")
    node.tree.set(BATCH, "cpu.weight", 7)
    before, changed = node.contents(), set[str]()

    def has_changed(files: set[str]) -> bool:
        now = node.contents()
        changed.update(name.split()[-1] for name, text in now.items() if text != before[name])
        return now != before and files <= changed

    state_file = tmp_path / "state.json"
    node.originals.close()
    for files in (set[str](), {"cpu.max"}, {"cpu.weight", "memory.high"}, {"io.max", "cpu.idle"}):
        process = os.fork()
        if process == 0:
            try:
                act_until_killed(node, state_file)
            finally:
                os._exit(1)
        try:
            assert eventually(partial(has_changed, files))
        finally:
            os.kill(process, signal.SIGKILL)
            status = os.waitpid(process, 0)[1]
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    node.originals = OriginalValues(state_file, "this boot", node.files.value_of)
    node.writer = CgroupWriter(node.files, node.originals)
    assert [change for change in node.writer.undo() if change.outcome == "failed"] == []
    assert node.contents() == before
    assert node.originals.values == {}
