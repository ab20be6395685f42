"""Traffic and pressure that were really made are what the sampler reports."""

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from node_exporter.kernel.paths import Driver, KubeQOS, pod_dir
from node_exporter.sampler import Sampler
from node_exporter.usage import Usage
from node_exporter.window import Window
from pipeline.clock import SystemClock
from pipeline.settings import ExporterSettings
from tests.cgroup_tree import cgroup_tree

pytestmark = pytest.mark.cgroups

WRITTEN_BYTES = 32 << 20


def pod_usage(usages: tuple[Usage, ...], uid: str) -> Usage:
    (usage,) = [u for u in usages if u.entity.id == uid]
    return usage


async def test_what_is_written_to_disk_is_reported() -> None:
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
