"""CPU features through the writer on cgroup v1 of this kernel, as processes and files show it."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actuators.node.cgroup_files import CgroupFiles, detect_hierarchies
from actuators.node.cgroup_writer import CgroupWriter
from actuators.node.original_values import OriginalValues
from pipeline.processors.kubernetes.node_reservation import RESOURCE_STATUS, Reservation
from pipeline.processors.node_qos.cgroup_values import Place, Value, cpu_list_text
from pipeline.processors.node_qos.claims import merge_claims
from pipeline.processors.node_qos.cpu_idle import CpuIdle
from pipeline.processors.node_qos.cpu_suppression import CpuSuppression
from pipeline.processors.node_qos.node_state import (
    Feature,
    HostAppState,
    LogicalCpu,
    NodeState,
    PodState,
)
from pipeline.processors.node_qos.share_pool import SharePool
from pipeline.processors.slo.nodeslo import (
    CpuQos,
    NodeSLOSpec,
    QosClass,
    QosPolicies,
    QosStrategy,
    ThresholdStrategy,
)
from tests.cgroup_tree import CGROUP_ROOT, CgroupTree, cgroup_tree
from tests.processors.node_qos.worlds import amounts, container, node, pod

pytestmark = pytest.mark.cgroups

FIRST, LAST = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
ALL = frozenset(os.sched_getaffinity(0))
WEB, BATCH = "burstable/podweb", "besteffort/podbatch"
PATHS = ("burstable", WEB, f"{WEB}/main", "besteffort", BATCH, f"{BATCH}/main", f"{BATCH}/sandbox")
FILES = ("cpuset/cpuset.cpus", "cpu/cpu.cfs_quota_us", "cpu/cpu.shares", "cpu/cpu.idle")


class Loop:
    """Features that decide in rounds about a tree of real cgroups."""

    def __init__(self, tree: CgroupTree, state: Path) -> None:
        self.tree = tree
        self.files = CgroupFiles(detect_hierarchies(str(CGROUP_ROOT)))
        self.originals = OriginalValues(state, "this boot", self.files.value_of)
        self.writer = CgroupWriter(self.files, self.originals)
        self.former: dict[str, dict[Place, Value]] = {}
        self.features: tuple[Feature, ...] = (
            CpuSuppression(None, None), SharePool(), CpuIdle(),
        )  # fmt: skip

    def round(self, state: NodeState) -> None:
        claims = []
        for feature in self.features:
            made = feature.claims(state, self.former.get(feature.name, {}))
            self.former[feature.name] = {claim.place: claim.value for claim in made}
            claims += made
        failed = [c for c in self.writer.apply(merge_claims(claims)) if c.outcome == "failed"]
        assert failed == []

    def state(self, *pods: PodState, **fields: Any) -> NodeState:
        """A node whose cgroups are those of the tree."""
        name = self.tree.name
        moved = [
            msgspec.structs.replace(
                p,
                path=p.path.replace("kubepods", name),
                containers=tuple(
                    msgspec.structs.replace(c, path=c.path.replace("kubepods", name))
                    for c in p.containers
                ),
            )
            for p in pods
        ]
        known = {
            "capacity": amounts(len(ALL) * 1000),
            "cpu_cores": 0.5,
            "cpus": tuple(LogicalCpu(cpu, cpu, 0, 0) for cpu in sorted(ALL)),
            "kubepods_path": name,
            "burstable_path": f"{name}/burstable",
            "best_effort_path": f"{name}/besteffort",
        }
        return node(*moved, **{**known, **fields})

    def contents(self) -> dict[str, bytes]:
        return {
            f"{path} {file}": self.tree.directory(controller, f"{path}/{file}").read_bytes()
            for path in PATHS
            for controller, _, file in (name.partition("/") for name in FILES)
        }

    def read(self, path: str, file: str) -> str:
        controller = file.partition(".")[0]
        return (self.tree.directory(controller, path) / file).read_text().strip()


def make(tree: CgroupTree, path: str) -> None:
    """A cgroup as a container runtime makes it: with the CPUs of its parent."""
    tree.make(path)
    parent = tree.directory("cpuset", path).parent
    for file in ("cpuset.cpus", "cpuset.mems"):
        tree.write("cpuset", path, file, (parent / file).read_text())


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    with cgroup_tree("features", ("cpu", "cpuset")) as tree:
        for path in ("", *PATHS):
            make(tree, path)
        loop = Loop(tree, tmp_path / "state.json")
        yield loop
        loop.originals.close()
        loop.files.close()


def batch(**fields: Any) -> PodState:
    return pod("batch", container(), kube_qos="BestEffort", cpu_cores=0.3, **fields)


def web(qos: str, **fields: Any) -> PodState:
    return pod("web", container(), qos=qos, qos_label=qos, cpu_cores=0.1, **fields)


def rules(policy: Any) -> NodeSLOSpec:
    return NodeSLOSpec(
        resource_used_threshold_with_be=ThresholdStrategy(
            enable=True, cpu_suppress_policy=policy, cpu_suppress_threshold_percent=100
        )
    )


def sleeper(loop: Loop, path: str) -> subprocess.Popen[str]:
    """A process that is in the cgroup."""
    process = loop.tree.run(path, "sleep", "60")
    while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
        assert process.poll() is None
        time.sleep(0.01)
    return process


def test_suppressed_processes_leave_reserved_cpus_and_return(loop: Loop) -> None:
    """Also sandboxes and containers that started meanwhile; then each byte is as before."""
    before = loop.contents()
    process = sleeper(loop, f"{BATCH}/main")
    state = loop.state(
        batch(), slo=rules("cpuset"), reservation=Reservation(cpus=frozenset({FIRST}))
    )
    loop.round(state)
    rest = ALL - {FIRST}
    assert os.sched_getaffinity(process.pid) == rest
    assert loop.read(f"{BATCH}/sandbox", "cpuset.cpus") == cpu_list_text(rest)
    make(loop.tree, f"{BATCH}/late")
    late = sleeper(loop, f"{BATCH}/late")
    with_late = pod("batch", container(), container("late"), kube_qos="BestEffort", cpu_cores=0.3)
    loop.round(loop.state(with_late, slo=rules("cpuset")))
    assert os.sched_getaffinity(process.pid) == os.sched_getaffinity(late.pid) == ALL
    loop.round(loop.state(batch(), slo=NodeSLOSpec()))
    assert loop.contents() == before
    assert loop.originals.values == {}


def test_the_quota_of_the_directory_follows_the_room_and_ends(loop: Loop) -> None:
    before = loop.contents()
    state = loop.state(web("LS"), batch(), slo=rules("cfsQuota"))
    loop.round(state)
    # All CPUs without the 0.1 cores of the web pod and the 0.1 cores of the system.
    assert loop.read("besteffort", "cpu.cfs_quota_us") == str(len(ALL) * 100_000 - 20_000)
    busy = loop.state(pod("web", cpu_cores=float(len(ALL))), batch(), slo=rules("cfsQuota"))
    loop.round(busy)
    assert loop.read("besteffort", "cpu.cfs_quota_us") == "2000"
    loop.round(state)
    assert loop.read("besteffort", "cpu.cfs_quota_us") == str(2000 + len(ALL) * 10_000)
    loop.round(loop.state(slo=NodeSLOSpec()))
    assert loop.contents() == before


def test_a_pod_with_own_cpus_runs_on_them_without_a_quota(loop: Loop) -> None:
    for path in (WEB, f"{WEB}/main"):
        loop.tree.write("cpu", path, "cpu.cfs_quota_us", 50_000)
    process, low = sleeper(loop, f"{WEB}/main"), sleeper(loop, f"{BATCH}/main")
    own = web("LSE", annotations={RESOURCE_STATUS: f'{{"cpuset":"{LAST}"}}'})
    loop.round(loop.state(own, batch()))
    assert os.sched_getaffinity(process.pid) == {LAST}
    assert os.sched_getaffinity(low.pid) == ALL - {LAST}
    for path in (WEB, f"{WEB}/main"):
        assert loop.read(path, "cpu.cfs_quota_us") == "-1"


def test_host_applications_and_pods_of_the_class_ls_follow_the_shared_pool(loop: Loop) -> None:
    make(loop.tree, "proxy")
    app, process = sleeper(loop, "proxy"), sleeper(loop, f"{WEB}/main")
    proxy = HostAppState(name="proxy", path=f"{loop.tree.name}/proxy", qos="LS")
    pool = {"reservation": Reservation(cpus=frozenset({LAST})), "host_apps": (proxy,)}
    loop.round(loop.state(web("LS"), **pool))
    assert os.sched_getaffinity(app.pid) == os.sched_getaffinity(process.pid) == ALL - {LAST}
    loop.round(loop.state(web("LS"), host_apps=(proxy,)))
    assert os.sched_getaffinity(app.pid) == os.sched_getaffinity(process.pid) == ALL


def test_best_effort_work_becomes_idle_and_gets_its_shares_back(loop: Loop) -> None:
    loop.tree.write("cpu", "besteffort", "cpu.shares", 2)
    before = loop.contents()
    strategy = QosStrategy(
        policies=QosPolicies(cpu_policy="coreSched"),
        be_class=QosClass(cpu_qos=CpuQos(enable=True, sched_idle=1)),
    )
    loop.round(loop.state(batch(), slo=NodeSLOSpec(resource_qos_strategy=strategy)))
    assert loop.read("besteffort", "cpu.idle") == "1"
    loop.round(loop.state(batch()))
    assert loop.contents() == before


@pytest.mark.parametrize("policy", ["cpuset", "cfsQuota"])
def test_a_node_without_the_best_effort_directory_has_nothing_to_suppress(
    loop: Loop, policy: str
) -> None:
    loop.tree.remove("besteffort")
    state = loop.state(
        slo=rules(policy), cpu_cores=2.0, reservation=Reservation(cpus=frozenset({FIRST}))
    )
    loop.round(state)
    assert loop.originals.values == {}
    # A directory that appears is narrow from the next round on.
    make(loop.tree, "besteffort")
    loop.round(state)
    assert {place.path for place in loop.originals.values} == {f"{loop.tree.name}/besteffort"}
