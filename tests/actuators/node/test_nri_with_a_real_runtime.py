"""Containers that start on real cgroups (v1), asked about by the library of containerd and CRI-O.

The test has the part of runc: it makes a container's cgroup with the resources that the runtime
gives it.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.settings import ExporterSettings
from pipeline.tasks import cancel_tasks
from tests.actuators.node.nri_runtime.program import Runtime
from tests.actuators.node.starts import ID, MIB, UID, Starting, batch_pod
from tests.cgroup_tree import CGROUP_ROOT, CgroupTree, cgroup_tree

pytestmark = [pytest.mark.cgroups, pytest.mark.slow]

FIRST = min(os.sched_getaffinity(0))
POD = f"kubepods/besteffort/pod{UID}"
CONTAINER = f"{POD}/{ID}"
FILES = ("cpu/cpu.shares", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us", "cpuset/cpuset.cpus",
         "memory/memory.limit_in_bytes")  # fmt: skip


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    with cgroup_tree("nri", ("cpu", "cpuacct", "cpuset", "memory")) as tree:
        for path in ("", "kubepods", "kubepods/besteffort", POD):
            make(tree, path)
        tree.write("cpu", POD, "cpu.shares", 2)
        yield tree


def make(tree: CgroupTree, path: str) -> None:
    """A cgroup with the CPUs of the one above, as the kubelet and runc make it."""
    tree.make(path)
    above = tree.directory("cpuset", path).parent
    for file in ("cpuset.mems", "cpuset.cpus"):
        tree.write("cpuset", path, file, (above / file).read_text())


def start(tree: CgroupTree, resources: Any, adjusted: Any) -> None:
    """Make the cgroup of the container as runc does, with what the runtime merged."""
    make(tree, CONTAINER)
    cpu = resources["cpu"] | adjusted.get("cpu", {})
    tree.write("cpu", CONTAINER, "cpu.shares", cpu["shares"]["value"])
    tree.write("cpu", CONTAINER, "cpu.cfs_period_us", cpu["period"]["value"])
    tree.write("cpu", CONTAINER, "cpu.cfs_quota_us", cpu["quota"]["value"] or -1)
    if cpus := cpu.get("cpus"):
        tree.write("cpuset", CONTAINER, "cpuset.cpus", cpus)
    if limit := adjusted.get("memory", {}).get("limit", {}).get("value"):
        tree.write("memory", CONTAINER, "memory.limit_in_bytes", limit)


def contents(tree: CgroupTree) -> dict[str, str]:
    """The limits of the container."""
    paths = (tree.directory(file.partition("/")[0], CONTAINER) / Path(file).name for file in FILES)
    return {path.name: path.read_text().strip() for path in paths}


def request(tree: CgroupTree, resources: Any = None) -> Any:
    """A container of the pod that is created with these resources, or that is updated."""
    linux = {"cgroups_path": f"/{tree.name}/{CONTAINER}", "resources": resources or {}}
    pod = {"id": "sandbox", "name": "batch", "uid": UID, "namespace": "d"}
    return {"pod": pod, "container": {"id": ID, "name": "main", "linux": linux}}


PLANNED: dict[str, Any] = {
    "cpu": {"shares": {"value": 2}, "quota": {"value": 0}, "period": {"value": 100_000}}
}
"""What the kubelet asks for a container without native amounts."""


async def test_a_container_starts_with_what_rounds_then_hold(
    tree: CgroupTree, tmp_path: Path
) -> None:
    settings = ExporterSettings(cgroup_root=CGROUP_ROOT, cgroup_parent=tree.name)
    starting = Starting(settings, tmp_path)
    every_cpu = (CGROUP_ROOT / "cpuset/cpuset.cpus").read_text().strip()
    starting.show(batch_pod(), reserved=str(FIRST))
    await starting.actuator.round()
    async with Runtime.listening(starting.socket) as runtime:
        running = asyncio.create_task(starting.plugin.run())
        assert await runtime.line() == {"synchronized": 0}  # 6 MB of pods, in parts
        answer = await runtime.ask(create=request(tree, PLANNED))
        adjusted = answer["adjust"]["linux"]["resources"]
        start(tree, PLANNED, adjusted)
        begun = contents(tree)
        assert begun == {
            "cpu.shares": "512", "cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000",
            "cpuset.cpus": begun["cpuset.cpus"], "memory.limit_in_bytes": str(64 * MIB),
        }  # fmt: skip
        assert FIRST not in range_of(begun["cpuset.cpus"])
        starting.writer.changes.clear()
        for pods in [(batch_pod(),)] * 6 + [(batch_pod(ID),)] * 6:
            starting.show(*pods, reserved=str(FIRST))
            await starting.actuator.round()
        assert starting.writer.changes == []
        assert contents(tree) == begun
        assert {p.path.rpartition("/")[2] for p in starting.originals.values} >= {ID}
        # The kubelet gives the container other limits: they are what is restored in the end.
        update = {"cpu": {"shares": {"value": 100}, "quota": {"value": 70_000}}}
        answer = await runtime.ask(update={**request(tree), "linux_resources": update})
        cpu = answer["update"][0]["linux"]["resources"]["cpu"]
        assert (cpu["shares"]["value"], cpu["quota"]["value"]) == (512, 50_000)
        for _ in range(6):
            await starting.actuator.round()
        assert starting.writer.changes == []
        assert contents(tree) == begun
        await cancel_tasks(running)
    starting.writer.undo()
    assert contents(tree) == {
        "cpu.shares": "100", "cpu.cfs_quota_us": "70000", "cpu.cfs_period_us": "100000",
        "cpuset.cpus": every_cpu, "memory.limit_in_bytes": "9223372036854771712",
    }  # fmt: skip
    starting.close()


def range_of(text: str) -> set[int]:
    """The CPUs of a list."""
    parts = (part.partition("-")[::2] for part in text.split(","))
    return {cpu for first, last in parts for cpu in range(int(first), int(last or first) + 1)}
