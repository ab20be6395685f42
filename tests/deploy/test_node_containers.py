"""Exporter and node actuator with the rights of the chart and no others, on real cgroups (v1)."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.local.port_probe import free_port
from tests.cgroup_tree import CGROUP_ROOT, CgroupTree, cgroup_tree
from tests.deploy.manifest_container import pod_of, settings_text, start_container
from tests.integration.wire_node import NODE, WireNode
from tests.processes import until

pytestmark = [pytest.mark.cgroups, pytest.mark.slow]

_FAILURES = (
    "springtide_exporter_errors_total", "springtide_node_actuator_write_errors_total",
    "springtide_node_actuator_features_failed_total",
    "springtide_node_actuator_rounds_failed_total",
)  # fmt: skip
"""Those of `kind` kafka and policy do not count: there is no broker."""
CONTROLLERS = ("cpu", "cpuacct", "memory", "cpuset", "blkio")
BATCH = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"}


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    with cgroup_tree("manifests", CONTROLLERS) as tree:
        for file in ("cpuset.cpus", "cpuset.mems"):
            tree.write("cpuset", "", file, (CGROUP_ROOT / "cpuset" / file).read_text().strip())
        tree.write("cpuset", "", "cgroup.clone_children", 1)
        yield tree


class Pods:
    """The pods of both DaemonSets, in mode act, and the view that they are given."""

    def __init__(self, tree: CgroupTree, folder: Path) -> None:
        self.node = WireNode(tree, folder, {})
        self.folder = folder
        run = folder / "run"
        run.mkdir()
        self.volumes = {
            "cgroup": CGROUP_ROOT, "proc": Path("/proc"),
            "sys": Path("/sys"), "machine-id": Path("/etc/machine-id"), "run": run,
        }  # fmt: skip
        self.variables = {
            "NODE_NAME": NODE,
            "SPRINGTIDE_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}",
            "SPRINGTIDE_EXPORTER_CGROUP_PARENT": tree.name,
            "SPRINGTIDE_EXPORTER_METRICS_PORT": "0",
            "SPRINGTIDE_NODE_ACTUATOR_METRICS_PORT": "0",
            "SPRINGTIDE_NODE_ACTUATOR_MODE": "act",
            "SPRINGTIDE_NODE_ACTUATOR_EXTENDER_URL": self.node.views.url,
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, role: str) -> None:
        settings = self.folder / f"settings-of-{role}"
        settings.mkdir(exist_ok=True)
        (settings / "springtide.yaml").write_text(settings_text(role))
        volumes = {**self.volumes, "settings": settings}
        self._started.append(start_container(pod_of(role), volumes, self.variables, self.folder))

    def stop(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        self.node.stop()


@pytest.fixture
def pods(tree: CgroupTree, tmp_path: Path) -> Iterator[Pods]:
    pods = Pods(tree, tmp_path)
    try:
        yield pods
    finally:
        pods.stop()


async def test_the_rights_of_the_manifests_are_enough(pods: Pods) -> None:
    node = pods.node
    batch = node.pod("b", "BestEffort", requests=BATCH, limits=BATCH,
                     labels={"koordinator.sh/qosClass": "BE"}, priority=5500)  # fmt: skip
    prod = node.pod("p", "Burstable", requests={"cpu": "500m"}, limits={"cpu": "1"},
                    labels={"koordinator.sh/qosClass": "LS"}, priority=9500)  # fmt: skip
    node.node({"node.koordinator.sh/reservation": '{"reservedCPUs": "0"}'})
    blocks = [{"name": _any_disk(), "type": "device", "ioCfg": {"readIOPS": 1000}}]
    node.policy(
        resource_threshold={"clusterStrategy": {
            "enable": True, "cpuSuppressPolicy": "cfsQuota", "cpuSuppressThresholdPercent": 0,
            "cpuSuppressMinPercent": 20,
        }},
        cpu_burst={"clusterStrategy": {"policy": "cpuBurstOnly"}},
        resource_qos={"clusterStrategy": {"beClass": {
            "blkioQOS": {"enable": True, "blocks": blocks}
        }}},
    )  # fmt: skip
    node.tree.write("cpu", prod, "cpu.cfs_quota_us", 100_000)
    node.tree.write("cpu", node.container("p"), "cpu.cfs_quota_us", 100_000)
    before = _limits(node.tree)
    pods.start("exporter")
    pods.start("node-actuator")
    await until(lambda: node.read("cpu", batch, "cpu.shares") == "512", explain=node.log)
    best_effort = "kubepods/besteffort"
    await until(lambda: node.read("cpu", best_effort, "cpu.cfs_quota_us") == "40000",
                explain=node.log)  # fmt: skip
    assert node.read("memory", batch, "memory.limit_in_bytes") == str(64 << 20)
    assert node.read("cpu", prod, "cpu.cfs_burst_us") == "100000"
    assert node.read("cpuset", best_effort, "cpuset.cpus") == "1"
    assert node.read("blkio", best_effort, "blkio.throttle.read_iops_device").endswith(" 1000")
    await until(lambda: node.metrics("exporter")["springtide_exporter_pods"] == 2)
    failures = {
        name: value
        for role in ("exporter", "node-actuator")
        for name, value in node.metrics(role).items()
        if name.startswith(_FAILURES) and 'kind="kafka"' not in name and 'kind="policy"' not in name
        if value > 0
    }
    assert not failures, node.log()
    # What a node is left with when all features are switched off before the DaemonSet is deleted.
    node.node()
    node.policy()
    node.remove_pod("b")
    node.remove_pod("p")
    await until(lambda: _limits(node.tree).items() <= before.items(), explain=node.log)
    await until(lambda: node.metrics()["springtide_node_actuator_original_values"] == 0)


def _any_disk() -> str:
    names = (path.name for path in Path("/sys/block").iterdir())
    return "/dev/" + min(name for name in names if name.startswith(("vd", "sd", "nvme", "xvd")))


def _limits(tree: CgroupTree) -> dict[str, str]:
    """The text of every file that limits something in this tree."""
    names = ("shares", "cfs_quota_us", "cfs_burst_us", "cpus", "limit_in_bytes",
             "throttle.read_iops_device")  # fmt: skip
    return {
        str(path): path.read_text()
        for controller in tree.controllers
        for path in sorted(tree.directory(controller).rglob("*"))
        if path.name.partition(".")[2] in names
    }
