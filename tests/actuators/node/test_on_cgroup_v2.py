"""CPU and memory features through the writer on a real cgroup v2 hierarchy, in a guest, as the
kernel's counters show them."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pipeline.processors.node_qos.batch_resources import BatchResources
from pipeline.processors.node_qos.cpu_burst import CpuBurst
from pipeline.processors.node_qos.cpu_idle import CpuIdle
from pipeline.processors.node_qos.cpu_suppression import CpuSuppression
from pipeline.processors.node_qos.memory_qos import MemoryProtection
from pipeline.processors.slo.nodeslo import (
    BurstStrategy,
    CpuQos,
    MemoryQos,
    NodeSLOSpec,
    QosClass,
    QosPolicies,
)
from tests.actuators.node.guest_node import (
    BATCH,
    DISK,
    MIB,
    OTHER,
    WEB,
    GuestNode,
    batch,
    guest_node,
    strategy,
    suppressed,
    web,
)
from tests.processes import eventually
from tests.processors.node_qos.worlds import amounts, container, pod

pytestmark = pytest.mark.guest

# The page cache of a block device lasts as long as the device is open.
READ_AGAIN_AND_AGAIN = f"""
import time
with open("{DISK}", "rb", 0) as disk:
    while True:
        disk.seek({{start}} * {MIB})
        for _ in range({{mib}}):
            disk.read({MIB})
        time.sleep({{pause}})
"""
RUN_80_MS_IN_430 = """
import time
while True:
    time.sleep(0.35)
    end = time.process_time() + 0.08
    while time.process_time() < end:
        pass
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[GuestNode]:
    with guest_node(tmp_path) as node:
        yield node


def test_a_batch_pod_is_throttled_at_its_limit_until_it_has_none(node: GuestNode) -> None:
    node.features = (BatchResources(),)
    before = node.contents()
    node.burner(f"{BATCH}/main", 0)
    node.burner(f"{WEB}/main", 1)
    assert node.comes_to(BATCH, WEB, 0.5, 100)
    assert node.throttled(BATCH) + node.throttled(f"{BATCH}/main") == 0
    node.round(node.state(batch(limits=amounts(200))))
    assert node.read(BATCH, "cpu.max") == node.read(f"{BATCH}/main", "cpu.max") == "20000 100000"
    assert node.comes_to(BATCH, WEB, 0.03, 0.4)
    assert node.throttled(BATCH) + node.throttled(f"{BATCH}/main") > 2
    node.round(node.state())
    assert node.contents() == before
    assert node.comes_to(BATCH, WEB, 0.5, 100)


def test_the_quota_of_the_directory_leaves_a_cpu_to_others(node: GuestNode) -> None:
    node.features = (CpuSuppression(None, None),)
    before = node.contents()
    node.burner(f"{BATCH}/main", 0)
    node.burner(f"{WEB}/main", 0)
    assert node.comes_to(BATCH, WEB, 0.4, 2.5)
    full = pod("web", container(), cpu_cores=2.0)
    node.round(node.state(full, batch(), slo=suppressed("cfsQuota")))
    assert node.read("besteffort", "cpu.max") == "2000 100000"
    assert node.comes_to(BATCH, WEB, 0, 0.2)
    assert node.throttled("besteffort") > 0
    node.round(node.state())
    assert node.contents() == before


def test_a_burst_is_accepted_up_to_the_quota_and_used(node: GuestNode) -> None:
    node.features = (CpuBurst(),)
    for path in (WEB, f"{WEB}/main"):
        node.tree.set(path, "cpu.max", "50000 100000")
    before = node.contents()
    node.tree.python(f"{WEB}/main", RUN_80_MS_IN_430)
    assert eventually(lambda: node.throttled(f"{WEB}/main") + node.throttled(WEB) > 0)
    assert node.count(f"{WEB}/main", "cpu.stat", "nr_bursts") == 0
    part = container(limits=amounts(500))
    pods = pod("web", part, qos="LS", cgroup_limits=amounts(500))
    policy = NodeSLOSpec(cpu_burst_strategy=BurstStrategy(policy="cpuBurstOnly"))
    node.round(node.state(pods, slo=policy))
    for path in (WEB, f"{WEB}/main"):
        assert node.read(path, "cpu.max.burst") == "50000"
    assert eventually(lambda: node.count(f"{WEB}/main", "cpu.stat", "nr_bursts") > 2)
    assert node.count(f"{WEB}/main", "cpu.stat", "burst_usec") > 0
    node.round(node.state(pods, slo=NodeSLOSpec(cpu_burst_strategy=BurstStrategy(policy="none"))))
    assert node.contents() == before


def test_batch_pods_share_a_cpu_by_what_they_request(node: GuestNode) -> None:
    node.features = (BatchResources(),)
    before = node.contents()
    node.burner(f"{BATCH}/main", 0)
    node.burner(f"{OTHER}/main", 0)
    assert node.comes_to(BATCH, OTHER, 0.4, 2.5)
    node.round(node.state(batch(requests=amounts(4000)), batch("other", amounts(500))))
    assert (node.read(BATCH, "cpu.weight"), node.read(OTHER, "cpu.weight")) == ("157", "20")
    assert node.comes_to(BATCH, OTHER, 3.5, 16)
    node.round(node.state())
    assert node.contents() == before


def test_idle_best_effort_work_leaves_a_shared_cpu_to_others(node: GuestNode) -> None:
    node.features = (CpuIdle(),)
    node.tree.set("besteffort", "cpu.weight", 90)
    before = node.contents()
    node.burner(f"{BATCH}/main", 0)
    node.burner(f"{WEB}/main", 0)
    assert node.comes_to(BATCH, WEB, 0.4, 2.5)
    idle = QosClass(cpu_qos=CpuQos(enable=True, sched_idle=1))
    policies = QosPolicies(cpu_policy="coreSched")
    node.round(node.state(batch(), slo=strategy(policies=policies, be_class=idle)))
    assert node.read("besteffort", "cpu.idle") == "1"
    assert node.comes_to(BATCH, WEB, 0, 0.15)
    node.round(node.state(batch()))
    assert node.contents() == before


def test_memory_above_the_high_threshold_is_reclaimed(node: GuestNode) -> None:
    node.features = (MemoryProtection(),)
    before = node.contents()
    main = f"{WEB}/main"
    node.tree.python(main, READ_AGAIN_AND_AGAIN.format(start=0, mib=40, pause=0.1))

    def current_mib() -> int:
        return int(node.read(main, "memory.current")) // MIB

    assert eventually(lambda: current_mib() > 40)
    # 8 MiB, and half of what is above up to the limit.
    pods = web(requests=amounts(None, 8 * MIB), limits=amounts(None, 40 * MIB))
    rules = MemoryQos(enable=True, throttling_percent=50)
    node.round(node.state(pods, slo=strategy(ls_class=QosClass(memory_qos=rules))))
    assert node.read(main, "memory.high") == str(24 * MIB)
    assert eventually(lambda: node.count(main, "memory.events", "high") > 0)
    assert eventually(lambda: current_mib() <= 25)
    assert node.count(main, "memory.stat", "pgsteal") > 0
    assert node.count(main, "memory.events", "max") == 0
    node.round(node.state(pods, slo=strategy()))
    assert node.contents() == before
    assert eventually(lambda: current_mib() > 40)


def test_protected_memory_stays_while_others_are_reclaimed(node: GuestNode) -> None:
    node.features = (MemoryProtection(),)
    node.tree.set("", "memory.high", 48 * MIB)
    before = node.contents()
    whole = {"requests": amounts(None, 32 * MIB)}
    protected = msgspec.structs.replace(web(**whole), requests=whole["requests"])
    rules = MemoryQos(enable=True, min_limit_percent=50, low_limit_percent=100)
    node.round(node.state(protected, slo=strategy(ls_class=QosClass(memory_qos=rules))))
    for path in ("", "burstable", WEB, f"{WEB}/main"):
        assert node.read(path, "memory.min") == str(16 * MIB)
        assert node.read(path, "memory.low") == str(32 * MIB)

    def cached_mib() -> int:
        return node.count(f"{WEB}/main", "memory.stat", "file") // MIB

    def reclaimed() -> int:
        return node.count(f"{BATCH}/main", "memory.stat", "pgsteal")

    node.tree.python(f"{WEB}/main", READ_AGAIN_AND_AGAIN.format(start=0, mib=16, pause=600))
    assert eventually(lambda: cached_mib() >= 16)
    node.tree.python(f"{BATCH}/main", READ_AGAIN_AND_AGAIN.format(start=16, mib=44, pause=0.1))
    assert eventually(lambda: reclaimed() > 60 * MIB // 4096)
    assert cached_mib() >= 16
    node.round(node.state(protected, slo=strategy()))
    assert node.contents() == before
    assert eventually(lambda: cached_mib() < 12)


def test_a_batch_pod_above_its_memory_limit_is_killed_alone(node: GuestNode) -> None:
    node.features = (BatchResources(),)
    before = node.contents()
    hold = f"import time; held = b'1' * {48 * MIB}; print(1); time.sleep(600)"
    neighbour = node.tree.python(f"{OTHER}/main", hold)
    assert neighbour.stdout is not None
    assert neighbour.stdout.readline() == "1\n"
    node.round(node.state(batch(limits=amounts(None, 24 * MIB)), batch("other")))
    process = node.tree.python(f"{BATCH}/main", hold)
    assert process.wait(60) == -9
    assert node.count(BATCH, "memory.events", "oom_kill") == 1
    assert neighbour.poll() is None
    assert node.count(OTHER, "memory.events", "oom_kill") == 0
    node.round(node.state())
    assert node.contents() == before
    process = node.tree.python(f"{BATCH}/main", hold)
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
