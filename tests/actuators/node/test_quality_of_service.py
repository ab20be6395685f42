"""Each example of docs/how-to/set-quality-of-service.md, from the objects that users write to the
files of real cgroups (v1), through a real exporter and a real node actuator."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from actuators.node.resctrl_step import NAME as RESCTRL
from pipeline.processors.node_qos.features import built_features
from pipeline.processors.policy.policy_in_force import load_policies
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.resource_amounts import Resources
from tests.cgroup_tree import CGROUP_ROOT, CgroupTree, cgroup_tree
from tests.integration.wire_node import NODE, WireNode
from tests.processes import ROOT, environment, eventually, springtide

pytestmark = [pytest.mark.cgroups, pytest.mark.slow]

GUIDE = ROOT / "docs/how-to/set-quality-of-service.md"
CONTROLLERS = ("cpu", "cpuacct", "memory", "cpuset", "blkio")
BEST_EFFORT = "kubepods/besteffort"
LS = {"labels": {"koordinator.sh/qosClass": "LS"}}


def sections() -> dict[str, list[Any]]:
    """The examples of the guide by section, with a disk of this machine."""
    text = GUIDE.read_text().replace("/dev/vda", _any_disk())
    _, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    return {
        part.splitlines()[0].partition(" (`")[0]: [
            yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", part, re.DOTALL)
        ]
        for part in parts
    }


def _any_disk() -> str:
    names = (path.name for path in Path("/sys/block").iterdir())
    return "/dev/" + min(name for name in names if name.startswith(("vd", "sd", "nvme", "xvd")))


class World:
    """A node with a best-effort pod and an LS pod with a limit of a CPU."""

    def __init__(self, node: WireNode) -> None:
        self.node, self.read = node, node.read
        self.batch = node.pod("batch", "BestEffort", **_batch_pod())
        self.web = self.web_pod(LS)
        for path in (self.web, node.container("web")):
            node.tree.write("cpu", path, "cpu.cfs_quota_us", 100_000)

    def web_pod(self, metadata: dict[str, Any]) -> str:
        return self.node.pod(
            "web", "Burstable", requests={"cpu": "500m", "memory": "32Mi"},
            limits={"cpu": "1", "memory": "64Mi"}, priority=9500, **(LS | metadata),
        )  # fmt: skip

    def of_web(self, file: str, controller: str = "cpu") -> tuple[str, str]:
        """A file of the LS pod and of its container."""
        paths = (self.web, self.node.container("web"))
        return self.read(controller, paths[0], file), self.read(controller, paths[1], file)

    def holds(self, condition: Callable[[], bool]) -> None:
        assert eventually(condition, 60), self.node.log()

    def reads(self, controller: str, path: str, file: str, text: str) -> None:
        self.holds(lambda: self.read(controller, path, file) == text)

    def counts(self, metric: str, value: float) -> None:
        self.holds(lambda: self.metric(metric) == value)

    def metric(self, name: str) -> float:
        return self.node.metrics().get(f"springtide_node_actuator_{name}", 0.0)


def _batch_pod() -> dict[str, Any]:
    (example,) = sections()["Batch and Mid pods"]
    (container,) = example["spec"]["containers"]
    return {
        **example["metadata"], "priority": example["spec"]["priority"], **container["resources"]
    }  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with cgroup_tree("guide", CONTROLLERS) as tree:
        for file in ("cpuset.cpus", "cpuset.mems"):
            tree.write("cpuset", "", file, (CGROUP_ROOT / "cpuset" / file).read_text().strip())
        tree.write("cpuset", "", "cgroup.clone_children", 1)
        # The settings of the kernel are this machine's.
        node = WireNode(tree, tmp_path_factory.mktemp("guide"),
                        {"features": {"node_sysctl": "observe"}})  # fmt: skip
        try:
            world = World(node)
            node.start()
            log = node.log_file("node-actuator")
            world.holds(lambda: "node actuator started" in log.read_text())
            yield world
        finally:
            node.stop()
            # A host application joins all hierarchies.
            others = [path.name for path in CGROUP_ROOT.iterdir() if (path / tree.name).is_dir()]
            CgroupTree(tree.name, others).remove()


@pytest.fixture(autouse=True)
def restored(world: World) -> Iterator[None]:
    """Without a policy each test leaves what was there before."""
    yield
    world.node.node()
    world.node.policy()
    world.web_pod(LS)
    world.holds(lambda: world.read("cpu", BEST_EFFORT, "cpu.cfs_quota_us") == "-1")
    world.holds(lambda: world.of_web("cpu.cfs_quota_us") == ("100000", "100000"))
    world.holds(lambda: world.of_web("cpu.cfs_burst_us") == ("0", "0"))


def test_hold_best_effort_pods_down(world: World) -> None:
    (policy,) = sections()["Hold best-effort pods down"]
    world.node.config_map(policy)
    # At most 65% of two CPUs, and what others use of them is not known.
    world.holds(
        lambda: 40_000 <= int(world.read("cpu", BEST_EFFORT, "cpu.cfs_quota_us")) <= 130_000
    )
    name = f'koordlet_be_suppress_cpu_cores{{node="{NODE}",type="cfsQuota"}}'
    world.holds(lambda: 0.4 <= world.node.metrics().get(name, 0) <= 1.3)


def test_batch_and_mid_pods(world: World) -> None:
    paths = (world.batch, world.node.container("batch"))
    for path in paths:
        world.reads("cpu", path, "cpu.shares", "512")
        assert world.read("cpu", path, "cpu.cfs_quota_us") == "50000"
        assert world.read("memory", path, "memory.limit_in_bytes") == str(64 << 20)


def test_reserve_cpus_of_a_node(world: World) -> None:
    (example,) = sections()["Reserve CPUs of a node"]
    world.node.node(example["metadata"]["annotations"])
    world.holds(lambda: world.read("cpuset", world.node.container("web"), "cpuset.cpus") == "1")
    world.holds(lambda: world.read("cpuset", BEST_EFFORT, "cpuset.cpus") == "1")


def test_pods_with_cpus_of_their_own(world: World) -> None:
    (example,) = sections()["Pods with CPUs of their own"]
    world.web_pod(example["metadata"])
    world.holds(lambda: world.read("cpuset", world.node.container("web"), "cpuset.cpus") == "1")
    world.holds(lambda: world.of_web("cpu.cfs_quota_us") == ("-1", "-1"))


def test_let_pods_burst(world: World) -> None:
    policy, own = sections()["Let pods burst"]
    world.node.config_map(policy)
    world.holds(lambda: world.of_web("cpu.cfs_burst_us") == ("100000", "100000"))
    world.web_pod(own["metadata"])
    world.holds(lambda: world.of_web("cpu.cfs_burst_us") == ("50000", "50000"))


def test_count_faster_cpus_as_more(world: World) -> None:
    (example,) = sections()["Count faster CPUs as more"]
    world.node.node(example["metadata"]["annotations"])
    world.holds(lambda: world.of_web("cpu.cfs_quota_us") == ("80000", "80000"))


def test_prefer_classes_in_the_scheduler(world: World) -> None:
    (policy,) = sections()["Prefer classes in the scheduler"]
    world.node.config_map(policy)
    world.holds(lambda: world.metric('unsupported{knob="cpu.bvt_warp_ns"}') == 1.0)


def test_run_best_effort_pods_on_idle_cpus(world: World) -> None:
    (policy,) = sections()["Run best-effort pods on idle CPUs"]
    world.node.config_map(policy)
    world.holds(lambda: world.read("cpu", BEST_EFFORT, "cpu.idle") == "1")


def test_protect_and_throttle_memory(world: World) -> None:
    """This kernel has neither file: tests on cgroup v2 see the values."""
    (policy,) = sections()["Protect and throttle memory"]
    world.node.config_map(policy)
    for knob in ("memory.min", "memory.high"):
        world.counts(f'unsupported{{knob="{knob}"}}', 1.0)


def test_limit_disks(world: World) -> None:
    policy, own = sections()["Limit disks"]
    world.node.config_map(policy)
    file = "blkio.throttle.read_bps_device"
    world.holds(lambda: world.read("blkio", BEST_EFFORT, file).endswith(" 1048576"))
    world.web_pod(own["metadata"])
    file = "blkio.throttle.read_iops_device"
    world.holds(lambda: world.read("blkio", world.web, file).endswith(" 500"))


def test_host_applications(world: World) -> None:
    (policy,) = sections()["Host applications"]
    world.node.config_map(policy)
    command = ("run-in-cgroup", "--name", "backup", "--qos", "BE", "--base", "KubepodsBesteffort",
               "--relative-path", "backup", "--", "sleep", "300")  # fmt: skip
    process = subprocess.Popen(
        springtide("--config", str(world.node.config), *command), env=environment()
    )
    try:
        backup = f"{BEST_EFFORT}/backup"
        procs = world.node.tree.directory("cpu", backup) / "cgroup.procs"
        world.holds(lambda: procs.exists() and procs.read_text() == f"{process.pid}\n")
        (reservation,) = sections()["Reserve CPUs of a node"]
        world.node.node(reservation["metadata"]["annotations"])
        world.holds(lambda: world.read("cpuset", backup, "cpuset.cpus") == "1")
    finally:
        process.kill()
        process.wait()


def test_evict_for_memory_cpu_and_promises(world: World) -> None:
    policy, own = sections()["Evict for memory, CPU and promises"]
    world.node.resources = NodeResourcesRecord(
        node=NODE, as_of="2026-01-01T00:00:00Z", generation=1, offset=1, epoch=1,
        strategy=Overcommit(), predictor="percentile", batch=Resources(cpu_millicores=300),
    )  # fmt: skip
    world.node.config_map(policy)
    # A pod that uses nothing would release nothing.
    world.node.tree.python(world.node.container("batch"), "held = bytearray(9 << 20); input()")
    world.node.pod("batch", "BestEffort", **(_batch_pod() | own["metadata"]))
    asked = 'wished_evictions{{feature="{}",mode="act"}}'
    world.holds(lambda: world.metric(asked.format("cpu_allocatable_evict")) == 1.0)
    world.node.pod("hog", "BestEffort", **_batch_pod())
    world.node.tree.python(world.node.container("hog"), "held = bytearray(9 << 20); input()")
    world.node.node(memory="64Mi")
    world.holds(lambda: world.metric(asked.format("be_memory_evict")) == 1.0)


def test_kernel_settings(world: World) -> None:
    (policy,) = sections()["Kernel settings"]
    world.node.config_map(policy)
    name = 'changes_total{feature="node_sysctl",outcome="observed"}'
    world.holds(lambda: world.metric(name) >= 1.0)


def test_the_guide_has_an_example_for_each_feature_and_no_other() -> None:
    named = {name for line in _titles() for name in re.findall(r"`(\w+)`", line)}
    assert named == {feature.name for feature in built_features(None, None)} | {RESCTRL}


def _titles() -> list[str]:
    return [line for line in GUIDE.read_text().splitlines() if line.startswith("## ")]


def test_every_example_is_a_valid_policy() -> None:
    for examples in sections().values():
        assert examples
        for example in examples:
            if "metadata" not in example:
                _, problems = load_policies(example, None)
                assert not problems
