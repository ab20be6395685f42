"""Containers of pods with several: in the windows of the exporter, from fake and real cgroups."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_exporter import window_aggregation
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, pod_dir
from node_exporter.sampler import Sampler
from node_exporter.window_aggregation import OpenWindow
from pipeline.clock import ManualClock, SystemClock
from pipeline.settings import ExporterSettings
from pipeline.topics.samples import (
    CONTAINERS,
    MAX_CONTAINERS_PER_POD,
    SampleContainer,
)
from tests.cgroup_tree import cgroup_tree
from tests.node_exporter.counted_calls import count_calls
from tests.node_exporter.fake_node import SECOND_NS, FakeNode

A, B, C = "a" * 64, "b" * 64, "c" * 64
SANDBOX = "0" * 64
MIB = 2**20


class Watched:
    """A fake node that is read every five seconds into one window."""

    def __init__(self, folder: Path, version: int) -> None:
        self.node = FakeNode(folder, version)
        self.clock = ManualClock(1_700_000_000.0)
        self.sampler = Sampler(self.node.settings(), self.clock)
        self.window = OpenWindow(1_700_000_060_000, 60_000, 1000)

    def container(self, uid: str, id: str, seconds: float, memory: int = MIB) -> None:
        self.node.pod(uid, 9 * SECOND_NS)
        self.node.cgroup(f"{self.node.path(uid)}/{id}", round(seconds * SECOND_NS), memory)

    def remove(self, uid: str, id: str) -> None:
        for controller in ("cpu", "cpuacct", "memory") if self.node.version == 1 else ("",):
            folder = self.node.cgroups / controller / self.node.path(uid) / id
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()

    async def collect(self) -> None:
        await self.clock.advance(5)
        at_ms = round(self.clock.now() * 1000)
        self.window.add(self.sampler.collect(at_ms, ends_window=True))

    def containers(self) -> dict[str, list[SampleContainer]]:
        rows = self.window.rows(1, 1)
        return {row["id"]: row[CONTAINERS] for row in rows if CONTAINERS in row}


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path, request.param)
    yield watched
    watched.sampler.close()


async def test_usage_is_the_average_cpu_and_the_highest_memory(watched: Watched) -> None:
    for cpu, memory in ((0.0, 5), (1.0, 9), (2.5, 7)):
        watched.container("pod", A, 10 + cpu, memory * MIB)
        watched.container("pod", B, 20, 3 * MIB)
        await watched.collect()
    assert watched.containers() == {
        "pod": [SampleContainer(A, 0.25, 9.0 * MIB), SampleContainer(B, 0.0, 3.0 * MIB)]
    }


async def test_sandbox_and_pods_with_one_container_are_left_out(watched: Watched) -> None:
    for _ in range(3):
        watched.container("pair", SANDBOX, 0.05)
        watched.container("pair", A, 10)
        watched.container("pair", B, 10)
        watched.container("single", SANDBOX, 0.05)
        watched.container("single", A, 10)
        await watched.collect()
    assert {uid: [each.id for each in of] for uid, of in watched.containers().items()} == {
        "pair": [A, B]
    }


async def test_a_container_that_ended_is_left_out_and_its_successor_counts(
    watched: Watched,
) -> None:
    for id in (A, B):
        watched.container("pod", id, 10)
    for _ in range(2):
        await watched.collect()
    # Two steps, because files of this tree can be read after their end.
    watched.remove("pod", A)
    await watched.collect()
    watched.container("pod", C, 3, 2 * MIB)
    await watched.collect()
    b, c = watched.containers()["pod"]
    assert (b.id, b.cpu_cores) == (B, 0.0)
    # Since when it has run is not known.
    assert c == SampleContainer(C, None, 2.0 * MIB)


async def test_containers_of_a_pod_and_of_a_node_are_limited(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_aggregation, "MAX_CONTAINERS", 70)
    pods = 3
    for pod in range(pods):
        for number in range(MAX_CONTAINERS_PER_POD + 1):
            watched.container(f"pod{pod:03}", f"{number:064x}", 10)
    for _ in range(2):
        await watched.collect()
    containers = watched.containers()
    assert {len(of) for of in containers.values()} == {MAX_CONTAINERS_PER_POD}
    assert [*containers] == [f"pod{pod:03}" for pod in range(pods - 1)]


async def test_containers_cost_three_files_each_every_five_seconds_and_none_between(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = 110
    for number in range(pods):
        for id in (A, B):
            watched.container(f"{number:08x}", id, 10)
    for _ in range(3):
        await watched.collect()
    calls = count_calls(monkeypatch, "open", "pread")
    await watched.collect()
    slow = calls.copy()
    await watched.clock.advance(1)
    watched.sampler.collect(round(watched.clock.now() * 1000))
    monkeypatch.undo()
    between = calls - slow
    others = 20
    of_pods = 3 * pods  # with cpu.stat, which only slow collections read
    assert slow["pread"] <= of_pods + 3 * 2 * pods + others
    assert between["pread"] <= 2 * pods + others
    assert slow["open"] + between["open"] <= 2 * pods * 4 + others  # pressure, which is missing


@pytest.mark.cgroups
async def test_real_containers_are_measured_beside_their_sandbox() -> None:
    busy = "held = bytearray({} * 2**20)\nwhile True: pass"
    with cgroup_tree("several") as tree:
        pod = pod_dir(Driver.CGROUPFS, KubeQOS.BURSTABLE, "several")
        for id in (A, B, SANDBOX):
            tree.make(f"{pod}/{id}")
        tree.run(f"{pod}/{SANDBOX}", "sleep", "600")
        tree.python(f"{pod}/{A}", busy.format(8))
        tree.python(f"{pod}/{B}", busy.format(40))
        settings = ExporterSettings(cgroup_parent=tree.name)
        sampler = Sampler(settings, SystemClock())
        window = OpenWindow(600_000, 600_000, 1000)
        for second in range(1, 120):
            window.add(sampler.collect(1000 * second, ends_window=True))
            rows = {row["id"]: row for row in window.rows(1, 1)}
            containers = rows.get("several", {}).get(CONTAINERS, [])
            if containers and all(each.cpu_cores for each in containers):
                break
            await asyncio.sleep(0.5)
        sampler.close()
    a, b = containers
    assert (a.id, b.id) == (A, B)
    assert 0 < a.cpu_cores + b.cpu_cores <= (os.cpu_count() or 1) + 0.1
    assert 8 * MIB <= a.memory_bytes < 40 * MIB <= b.memory_bytes < 80 * MIB
