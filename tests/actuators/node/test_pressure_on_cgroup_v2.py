"""The real exporter's readings of CPU pressure narrow best-effort work, on a real cgroup v2
hierarchy, in a guest."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from actuators.node.cpu_manager_state import CpuManagerState
from actuators.node.live_usage import LiveUsage
from actuators.node.newest_view import NewestView
from actuators.node.node_reading import NodeReading
from actuators.node.pod_cgroups import PodCgroups
from node_exporter.kernel.cgroup import detect_layout
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, pod_dir
from node_exporter.live_socket import LiveServer
from node_exporter.sampler import Sampler
from pipeline.clock import SystemClock
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place, Value
from pipeline.processors.node_qos.cpu_suppression import CpuSuppression
from pipeline.processors.node_qos.node_state import NodeState
from pipeline.settings import ExporterSettings
from pipeline.topics.node_views import ViewPod
from pipeline.topics.pods import Container
from tests.actuators.node.guest_node import GuestNode
from tests.actuators.node.views import NODE, view
from tests.cgroup_tree import CGROUP_ROOT, CgroupV2Tree, cgroup_v2_tree
from tests.processors.node_qos.worlds import amounts

pytestmark = pytest.mark.guest

IDS = {"web": "a" * 64, "batch": "b" * 64}
PATHS = {
    name: f"{pod_dir(Driver.CGROUPFS, kube_qos, name)}/{IDS[name]}"
    for name, kube_qos in (("web", KubeQOS.BURSTABLE), ("batch", KubeQOS.BEST_EFFORT))
}
BEST_EFFORT = "kubepods/besteffort"
SLO = {
    "resourceUsedThresholdWithBE": {
        "enable": True, "cpuSuppressPolicy": "cfsQuota", "cpuSuppressThresholdPercent": 100
    }
}  # fmt: skip


class Node(GuestNode):
    """A node with a pod of Prod and one of Batch, as exporter and actuator of this process read it.
    `tree` has the directory kubepods."""

    def __init__(self, tree: CgroupV2Tree, folder: Path) -> None:
        super().__init__(tree, folder / "state.json")
        self.clock = SystemClock()
        settings = ExporterSettings(cgroup_parent=tree.name)
        self.sampler = Sampler(settings, self.clock)
        self.server = LiveServer(folder / "exporter.sock", NODE)
        newest = NewestView(NODE, self.clock, asyncio.Event())
        usage = LiveUsage(self.server.path, NODE, self.clock)
        layout = detect_layout(str(CGROUP_ROOT))
        self.reading = NodeReading(
            settings, layout, self.files, newest, usage,
            CpuManagerState(folder / "cpu_manager_state", self.clock),
            PodCgroups(layout, tree.name, lambda _: None, self.clock), self.clock,
        )  # fmt: skip
        pods = tuple(
            ViewPod(uid=name, cgroup_uid=name, namespace="d", name=name, qos=qos, phase="Running",
                    containers=(Container(name="main"),), container_ids={"main": IDS[name]})
            for name, qos in (("web", "LS"), ("batch", "BE"))
        )  # fmt: skip
        slo = msgspec.Raw(json.dumps(SLO).encode())
        newest.receive(view(1, pods=pods, capacity=amounts(2000, 1 << 30), slo=slo))

    async def collect(self) -> NodeState:
        """What exporter and actuator read now."""
        self.server.add(self.sampler.collect(round(self.clock.now() * 1000)))
        state = await self.reading.read()
        assert state is not None
        return state

    async def close(self) -> None:
        self.reading.close()
        self.sampler.close()
        self.originals.close()
        self.files.close()
        await asyncio.sleep(0)
        await self.server.stop()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    with cgroup_v2_tree("pressure") as tree:
        for path in PATHS.values():
            tree.make(path)
        node = Node(tree, tmp_path)
        await node.server.start()
        yield node
        await node.close()


def number(value: Value) -> int:
    assert isinstance(value, int)
    return value


@pytest.mark.timeout(300)
async def test_pressure_on_a_pod_narrows_best_effort_work_before_usage_does(node: Node) -> None:
    """Both pods burn the same CPU, the other one is free: by usage there is room for Batch."""
    node.features = (CpuSuppression(10.0, None),)
    by_usage, former = CpuSuppression(None, None), dict[Place, Value]()
    place = Place(f"{node.tree.name}/{BEST_EFFORT}", Knob.CPU_QUOTA)
    original = node.read(BEST_EFFORT, "cpu.max")
    for path in PATHS.values():
        node.burner(path, 0)
    assert node.comes_to(PATHS["batch"], PATHS["web"], 0.4, 2.5)
    quota, quota_by_usage = UNLIMITED, 0
    deadline = time.monotonic() + 200
    while quota > 30_000 or quota_by_usage < 2 * quota:
        assert time.monotonic() < deadline, (quota, quota_by_usage)
        await asyncio.sleep(1)
        state = await node.collect()
        node.round(state)
        quota = number(node.former["cpu_suppression"].get(place, UNLIMITED))
        former = {claim.place: claim.value for claim in by_usage.claims(state, former)}
        quota_by_usage = number(former.get(place, 0))
    assert node.read(BEST_EFFORT, "cpu.max") == f"{quota} 100000"
    assert node.comes_to(PATHS["batch"], PATHS["web"], 0, 0.6)
    assert node.throttled(BEST_EFFORT) > 0
    assert [change for change in node.writer.undo() if change.outcome == "failed"] == []
    assert node.read(BEST_EFFORT, "cpu.max") == original
