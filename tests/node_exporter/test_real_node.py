"""Traffic and pressure that were really made are what the sampler reports."""

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
from node_exporter.window_aggregation import Window
from pipeline.clock import SystemClock
from pipeline.settings import ExporterSettings
from tests.cgroup_tree import cgroup_tree
from tests.machine import not_here
from tests.processes import eventually

pytestmark = pytest.mark.cgroups

WRITTEN_BYTES = 32 << 20


def pod_usage(usages: tuple[Usage, ...], uid: str) -> Usage:
    (usage,) = [u for u in usages if u.entity.id == uid]
    return usage


async def test_what_is_written_to_disk_is_reported() -> None:
    """TR-06, disk: what a process writes is in the node's rates."""
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
    """Two interfaces that are one another's end: one here, one in the network of process `far`."""

    here: str
    there: str
    far: int

    def send(self, frames: int, *, back: bool = False) -> None:
        """Send frames of 1000 bytes that nobody waits for, from here or from there."""
        program = f"""
import socket
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("{self.there if back else self.here}", 0))
for _ in range({frames}):
    wire.send(bytes([255] * 6) + bytes(6) + b"\\x88\\xb5" + bytes(986))
"""
        enter = ("nsenter", f"--target={self.far}", "--net") if back else ()
        subprocess.run([*enter, sys.executable, "-I", "-S", "-c", program], check=True)


@pytest.fixture
def cable() -> Iterator[Cable]:
    own = Path("/proc/self/ns/net").readlink()
    far = subprocess.Popen(["unshare", "--net", "sleep", "600"])
    cable = Cable(f"st{os.getpid()}a", f"st{os.getpid()}b", far.pid)
    try:
        ask = ("ip", "link", "add", cable.here, "type", "veth", "peer", "name", cable.there)
        made = subprocess.run(ask, capture_output=True, text=True)
        if made.returncode:
            not_here(f"no veth pair can be made here: {made.stderr.strip()}")
        assert eventually(lambda: Path(f"/proc/{far.pid}/ns/net").readlink() != own)
        inside = ("nsenter", f"--target={far.pid}", "--net")
        for command in (
            ("ip", "link", "set", cable.there, "netns", str(far.pid)),
            ("ip", "link", "set", cable.here, "up"),
            (*inside, "ip", "link", "set", cable.there, "up"),
        ):
            subprocess.run(command, check=True)
        yield cable
    finally:
        far.kill()  # its network goes with it, and the pair with that
        far.wait()
        subprocess.run(["ip", "link", "delete", cable.here], capture_output=True, check=False)


def test_what_goes_through_an_interface_is_reported(cable: Cable, tmp_path: Path) -> None:
    """TR-06, network: real traffic; that a device is behind the interface is made to believe."""
    (tmp_path / "class/net" / cable.here / "device").mkdir(parents=True)
    settings = ExporterSettings(cgroup_parent="springtide-test-none", sys_root=tmp_path)
    sampler = Sampler(settings, SystemClock())
    sampler.collect(0, ends_window=True)
    cable.send(1000)
    cable.send(500, back=True)
    rates = sampler.collect(1000, ends_window=True).rates
    sampler.close()
    assert rates is not None
    assert rates.network is not None
    received, sent = rates.network
    assert sent == pytest.approx(1_000_000, rel=0.01)  # the kernel greets its neighbours as well
    assert received == pytest.approx(500_000, rel=0.01)


async def test_work_outside_of_pods_is_the_systems() -> None:
    """NP-21: a process beside kubepods makes the system rise by what it uses, within 10 %."""
    with cgroup_tree("system") as tree:
        tree.write("cpu", "", "cpu.shares", 16384)
        pod = f"{pod_dir(Driver.CGROUPFS, KubeQOS.BURSTABLE, 'busy')}/{'c0' * 32}"
        for path in (pod, "beside"):
            tree.make(path)
        tree.python(pod, "while True: pass")
        sampler = Sampler(ExporterSettings(cgroup_parent=tree.name), SystemClock())
        whole = Path("/sys/fs/cgroup/cpuacct/cpuacct.usage")
        used = {
            "all": whole,
            "tree": tree.directory("cpuacct") / whole.name,
            "beside": tree.directory("cpuacct", "beside") / whole.name,
        }

        async def observe(at_ms: int) -> tuple[float, float]:
            """(what the system used beyond all others on this machine, what was used beside)."""
            sampler.collect(at_ms)
            before = {name: int(file.read_text()) for name, file in used.items()}
            await asyncio.sleep(3)
            system = sampler.collect(at_ms + 3000).system
            grown = {name: int(used[name].read_text()) - before[name] for name in used}
            assert system is not None
            assert system.cpu_ns is not None
            return (system.cpu_ns - (grown["all"] - grown["tree"])) / 1e9, grown["beside"] / 1e9

        sampler.collect(0)
        without, nothing = await observe(1000)
        tree.python("beside", "while True: pass")
        with_it, usage = await observe(5000)
        sampler.close()
    assert nothing == 0
    assert usage > 1
    assert with_it - without == pytest.approx(usage, rel=0.1)


async def test_processes_that_crowd_one_cpu_are_under_pressure() -> None:
    with cgroup_tree("pressure", ("cpu", "cpuacct", "memory", "unified")) as tree:
        crowded, alone = (
            pod_dir(Driver.CGROUPFS, KubeQOS.BURSTABLE, uid) for uid in ("crowded", "alone")
        )
        for path in (crowded, alone):
            tree.make(f"{path}/{'c0' * 32}")
        pin = "import os; os.sched_setaffinity(0, {0})\nwhile True: pass"
        for _ in range(3):
            tree.python(f"{crowded}/{'c0' * 32}", pin)
        sampler = Sampler(ExporterSettings(cgroup_parent=tree.name), SystemClock())
        await asyncio.sleep(0.5)
        sampler.collect(0, ends_window=True)
        await asyncio.sleep(1.5)
        usages = sampler.collect(1000, ends_window=True).usages
        unsupported = sampler.unsupported
        sampler.close()
    stall = pod_usage(usages, "crowded").stall
    assert stall is not None
    assert stall.cpu_some_us / stall.seconds / 1e6 > 0.5
    # Nobody is in the other pod's v2 group: its pressure is unknown, not 0.
    assert pod_usage(usages, "alone").stall is None
    assert "pod_pressure" not in unsupported


async def test_a_container_at_its_own_limit_is_seen_at_its_pod() -> None:
    with cgroup_tree("containers") as tree:
        pod = pod_dir(Driver.CGROUPFS, KubeQOS.BURSTABLE, "pair")
        limited, free, late = (f"{pod}/{name * 32}" for name in ("a1", "b2", "c3"))
        for path in (limited, free, late):
            tree.make(path)
        tree.write("cpu", limited, "cpu.cfs_quota_us", 10_000)
        tree.python(limited, "while True: pass")
        tree.run(free, "sleep", "600")
        tree.remove(late)
        sampler = Sampler(ExporterSettings(cgroup_parent=tree.name), SystemClock())
        window = Window(10_000, 10_000, 1000)
        window.add(sampler.collect(1000, ends_window=True))
        tree.make(late)  # comes in between: it has counted from 0
        tree.write("cpu", late, "cpu.cfs_quota_us", 5_000)
        tree.python(late, "while True: pass")
        await asyncio.sleep(1.5)
        last = sampler.collect(2000, ends_window=True)
        window.add(last)
        tree.remove(free)
        assert sampler.collect(3000, ends_window=True).errors == {}
        sampler.close()
    usage = pod_usage(last.usages, "pair")
    assert usage.throttling is not None
    assert usage.throttling.throttled_periods == 0  # its own counters know nothing of it
    assert usage.containers is not None
    assert set(usage.containers) == {name * 32 for name in ("a1", "b2", "c3")}
    assert usage.containers["b2" * 32].throttled_periods == 0
    assert usage.containers["c3" * 32].throttled_periods > 5
    (row,) = [row for row in window.rows(2, 1024) if row["id"] == "pair"]
    assert row["cpu_throttled_ratio"] > 0.8
    assert row["cpu_throttled_seconds"] > 0.5


async def test_a_real_pod_that_is_killed_mid_way_is_no_error() -> None:
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
        assert [u.entity.id for u in second.usages] == ["", "b"]
        assert not second.errors
        tree.make(below[0])  # the same name, another cgroup: its counter starts anew
        third = sampler.collect(3000)
        assert pod_usage(third.usages, "a").cpu_cores is None
        assert not third.dropped
        sampler.close()
