"""The sampler reports real traffic, pressure, throttling and system usage."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from node_exporter.collection import Usage
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, pod_dir
from node_exporter.sampler import Sampler
from node_exporter.window_aggregation import OpenWindow
from pipeline.clock import SystemClock
from pipeline.local.process_guard import die_with_parent
from pipeline.settings import ExporterSettings
from tests.cgroup_tree import cgroup_tree
from tests.machine import not_here
from tests.processes import eventually, until

pytestmark = pytest.mark.cgroups

WRITTEN_BYTES = 32 << 20


def pod_usage(usages: tuple[Usage, ...], uid: str) -> Usage:
    (usage,) = [u for u in usages if u.entity.id == uid]
    return usage


async def test_disk_writes_are_reported() -> None:
    """Bytes that a process writes are part of the node's disk rate."""
    sampler = Sampler(ExporterSettings(cgroup_parent="springtide-test-none"), SystemClock())
    sampler.collect(0, ends_window=True)
    with tempfile.TemporaryFile(dir=Path("/var/tmp")) as file:
        file.write(os.urandom(WRITTEN_BYTES))
        file.flush()
        os.fsync(file.fileno())
    rates = sampler.collect(1000, ends_window=True).rates
    sampler.close()
    assert rates is not None
    assert rates.disk is not None
    assert rates.network is not None
    assert rates.disk.out_bytes >= WRITTEN_BYTES


class Cable(NamedTuple):
    """A veth pair: `local` here, `remote` in the network namespace of process `peer_pid`."""

    local: str
    remote: str
    peer_pid: int

    def send(self, frames: int, *, from_remote: bool = False) -> None:
        """Send frames of 1000 bytes from either end; no process receives them."""
        program = f"""
import socket
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("{self.remote if from_remote else self.local}", 0))
for _ in range({frames}):
    wire.send(bytes([255] * 6) + bytes(6) + b"\\x88\\xb5" + bytes(986))
"""
        enter = ("nsenter", f"--target={self.peer_pid}", "--net") if from_remote else ()
        subprocess.run([*enter, sys.executable, "-I", "-S", "-c", program], check=True)


@pytest.fixture
def cable() -> Iterator[Cable]:
    own = Path("/proc/self/ns/net").readlink()
    peer = subprocess.Popen(["unshare", "--net", "sleep", "600"], preexec_fn=die_with_parent)
    cable = Cable(f"st{os.getpid()}a", f"st{os.getpid()}b", peer.pid)
    try:
        create = ("ip", "link", "add", cable.local, "type", "veth", "peer", "name", cable.remote)
        created = subprocess.run(create, capture_output=True, text=True)
        if created.returncode:
            not_here(f"no veth pair can be made here: {created.stderr.strip()}")
        assert eventually(lambda: Path(f"/proc/{peer.pid}/ns/net").readlink() != own)
        enter_peer = ("nsenter", f"--target={peer.pid}", "--net")
        for command in (
            ("ip", "link", "set", cable.remote, "netns", str(peer.pid)),
            ("ip", "link", "set", cable.local, "up"),
            (*enter_peer, "ip", "link", "set", cable.remote, "up"),
        ):
            subprocess.run(command, check=True)
        yield cable
    finally:
        peer.kill()  # deletes its network namespace and the pair
        peer.wait()
        subprocess.run(["ip", "link", "delete", cable.local], capture_output=True, check=False)


def test_network_traffic_is_reported(cable: Cable, tmp_path: Path) -> None:
    """The traffic is real; a fake /sys makes the interface a physical one."""
    (tmp_path / "class/net" / cable.local / "device").mkdir(parents=True)
    settings = ExporterSettings(cgroup_parent="springtide-test-none", sys_root=tmp_path)
    sampler = Sampler(settings, SystemClock())
    sampler.collect(0, ends_window=True)
    cable.send(1000)
    cable.send(500, from_remote=True)
    rates = sampler.collect(1000, ends_window=True).rates
    sampler.close()
    # Neighbour discovery adds some bytes.
    assert (rates and rates.network) == pytest.approx((500_000, 1_000_000), rel=0.01)


async def test_process_outside_of_pods_counts_as_system_usage() -> None:
    """A process next to kubepods raises the system usage by its own usage, within a fifth: counters
    of a busy machine grow between one reading and the next."""
    with cgroup_tree("system") as tree:
        tree.write("cpu", "", "cpu.shares", 16384)
        pod = f"{pod_dir(Driver.CGROUPFS, KubeQOS.BURSTABLE, 'busy')}/{'c0' * 32}"
        for path in (pod, "outside"):
            tree.make(path)
        tree.python(pod, "while True: pass")
        sampler = Sampler(ExporterSettings(cgroup_parent=tree.name), SystemClock())
        whole = Path("/sys/fs/cgroup/cpuacct/cpuacct.usage")
        used = {
            "all": whole,
            "tree": tree.directory("cpuacct") / whole.name,
            "outside": tree.directory("cpuacct", "outside") / whole.name,
        }

        async def observe(at_ms: int, outside_seconds: float = 0) -> tuple[float, float]:
            """(system usage minus other load on this machine, usage outside of pods) in seconds,
            the latter at least so many: a busy machine takes longer for them."""
            sampler.collect(at_ms)
            before = {name: int(file.read_text()) for name, file in used.items()}
            await asyncio.sleep(3)
            least = before["outside"] + outside_seconds * 1e9
            await until(lambda: int(used["outside"].read_text()) >= least)
            system = sampler.collect(at_ms + 3000).system
            grown = {name: int(used[name].read_text()) - before[name] for name in used}
            assert system is not None
            assert system.cpu_ns is not None
            return (system.cpu_ns - (grown["all"] - grown["tree"])) / 1e9, grown["outside"] / 1e9

        sampler.collect(0)
        without_process, outside_before = await observe(1000)
        tree.python("outside", "while True: pass")
        with_process, usage = await observe(5000, outside_seconds=1.1)
        sampler.close()
    assert outside_before == 0
    assert usage > 1
    assert with_process - without_process == pytest.approx(usage, rel=0.2)


async def test_processes_that_share_one_cpu_are_under_pressure() -> None:
    with cgroup_tree("pressure", ("cpu", "cpuacct", "memory", "unified")) as tree:
        shared_cpu, alone = (
            pod_dir(Driver.CGROUPFS, KubeQOS.BURSTABLE, uid) for uid in ("shared", "alone")
        )
        for path in (shared_cpu, alone):
            tree.make(f"{path}/{'c0' * 32}")
        pin = "import os; os.sched_setaffinity(0, {0})\nwhile True: pass"
        for _ in range(3):
            tree.python(f"{shared_cpu}/{'c0' * 32}", pin)
        sampler = Sampler(ExporterSettings(cgroup_parent=tree.name), SystemClock())
        await asyncio.sleep(0.5)
        sampler.collect(0, ends_window=True)
        await asyncio.sleep(1.5)
        usages = sampler.collect(1000, ends_window=True).usages
        unsupported = sampler.unsupported
        sampler.close()
    stall = pod_usage(usages, "shared").stall
    assert stall is not None
    assert stall.cpu_some_us / stall.seconds / 1e6 > 0.5
    # The v2 cgroup of the other pod has no process: its pressure is unknown, not 0.
    assert pod_usage(usages, "alone").stall is None
    assert "pod_pressure" not in unsupported


async def test_pod_reports_the_throttling_of_its_containers() -> None:
    with cgroup_tree("containers") as tree:
        pod = pod_dir(Driver.CGROUPFS, KubeQOS.BURSTABLE, "pair")
        limited, free, late = (f"{pod}/{name * 32}" for name in ("a1", "b2", "c3"))
        for path in (limited, free, late):
            tree.make(path)
        # On a busy machine they would not come to their quotas in any period.
        tree.write("cpu", "", "cpu.shares", 262_144)
        tree.write("cpu", limited, "cpu.cfs_quota_us", 10_000)
        tree.python(limited, "while True: pass")
        tree.run(free, "sleep", "600")
        tree.remove(late)
        sampler = Sampler(ExporterSettings(cgroup_parent=tree.name), SystemClock())
        window = OpenWindow(10_000, 10_000, 1000)
        window.add(sampler.collect(1000, ends_window=True))
        tree.make(late)  # new between two readings: it counts from 0
        tree.write("cpu", late, "cpu.cfs_quota_us", 5_000)
        tree.python(late, "while True: pass")
        await asyncio.sleep(3)
        last = sampler.collect(2000, ends_window=True)
        window.add(last)
        await asyncio.sleep(1)
        # Between two readings of all containers those with a limit are read.
        between = sampler.collect(3000)
        tree.remove(free)
        assert sampler.collect(4000, ends_window=True).errors == {}
        sampler.close()
    usage = pod_usage(last.usages, "pair")
    assert usage.throttling is not None
    assert usage.throttling.throttled_periods == 0  # the counters of the pod exclude its containers
    # A busy machine runs the containers in fewer periods, and so throttles them in fewer.
    containers = usage.containers or {}
    throttled = {name: of.throttling and of.throttling.throttled_periods > 0
                 for name, of in containers.items()}  # fmt: skip
    assert throttled == {"a1" * 32: True, "b2" * 32: False, "c3" * 32: True}
    assert 0 < (containers["a1" * 32].cpu_cores or 0) < 0.15  # its limit is 0.1
    assert containers["b2" * 32].cpu_cores == pytest.approx(0, abs=0.01)
    assert containers["c3" * 32].cpu_cores is None  # since when it ran is not known
    limited_only = pod_usage(between.usages, "pair").containers or {}
    assert {name: of.cpu_cores is None for name, of in limited_only.items()} == {
        "a1" * 32: False, "c3" * 32: False,
    }  # fmt: skip
    (row,) = [row for row in window.rows(2, 1024) if row["id"] == "pair"]
    assert 0 < row["cpu_throttled_ratio"] <= 1
    assert row["cpu_throttled_seconds"] > 0.5


async def test_removal_of_a_real_pod_is_not_an_error() -> None:
    with cgroup_tree("vanish") as tree:
        paths = [pod_dir(Driver.SYSTEMD, KubeQOS.GUARANTEED, uid, tree.name) for uid in "ab"]
        below = [path.removeprefix(f"{tree.name}/") for path in paths]
        for path in below:
            tree.make(path)
            tree.run(path, "sleep", "600")
        sampler = Sampler(ExporterSettings(cgroup_parent=tree.name), SystemClock())
        assert [u.entity.id for u in sampler.collect(1000).usages] == ["", "a", "b"]
        tree.remove(below[0])
        second = sampler.collect(2000)
        assert ([u.entity.id for u in second.usages], second.errors) == (["", "b"], {})
        tree.make(below[0])  # same name, another cgroup: its counter starts at 0
        third = sampler.collect(3000)
        assert pod_usage(third.usages, "a").cpu_cores is None
        assert not third.dropped
        sampler.close()
