"""Windows report the real usage of real processes in real cgroups.

Ten windows: CPU within 1% of the process's own getrusage, half a core of quota within 1% of the
scheduler's count for the process, memory within 1% of the touched and locked pages.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node_exporter.exporter_service import WindowMaker
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, pod_dir
from node_exporter.sampler import Sampler
from node_exporter.ticks import Ticker
from pipeline.clock import SystemClock
from pipeline.settings import ExporterSettings, HostApplication, HostApplicationCgroup
from tests.cgroup_tree import CgroupTree, cgroup_tree

pytestmark = [pytest.mark.cgroups, pytest.mark.slow]

WINDOW_SECONDS = 2
WINDOWS = 10
LOCKED_BYTES = 256 << 20
CACHED_BYTES = 64 << 20

# Works in bursts of random length; prints its CPU time on a signal.
BURSTY = """
import random, resource, signal, time
def report(*_):
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime + used.ru_stime)
signal.signal(signal.SIGUSR1, report)
print("ready")
random.seed(3)
while True:
    end = time.perf_counter() + random.uniform(0.01, 0.2)
    while time.perf_counter() < end:
        pass
    time.sleep(random.uniform(0, 0.1))
"""
BUSY = "while True: pass"
# Touches and locks pages on the first line of input, fills page cache on the second.
HUNGRY = f"""
import ctypes, mmap, sys, tempfile, time
print("ready")
sys.stdin.readline()
pages = mmap.mmap(-1, {LOCKED_BYTES})
pages.write(b"x" * {LOCKED_BYTES})
address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
libc = ctypes.CDLL(None, use_errno=True)
failed = libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t({LOCKED_BYTES}))
print("locked" if not failed else ctypes.get_errno())
sys.stdin.readline()
with tempfile.TemporaryFile(dir="/var/tmp") as file:
    for _ in range({CACHED_BYTES} >> 20):
        file.write(bytes(1 << 20))
    file.flush()
    print("cached")
    time.sleep(600)
"""


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    with cgroup_tree("accuracy") as tree:
        # Other work on this machine must neither take the measured CPU nor delay the ticks.
        tree.write("cpu", "", "cpu.shares", 16384)
        os.setpriority(os.PRIO_PROCESS, 0, -19)
        try:
            yield tree
        finally:
            os.setpriority(os.PRIO_PROCESS, 0, 0)


def pod(tree: CgroupTree, uid: str, kube_qos: KubeQOS = KubeQOS.BURSTABLE) -> str:
    path = pod_dir(Driver.CGROUPFS, kube_qos, uid)
    tree.make(f"{path}/{'c0' * 32}")
    return path


def start(tree: CgroupTree, path: str, source: str) -> subprocess.Popen[str]:
    return tree.python(f"{path}/{'c0' * 32}", source)


def send_line(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def own_seconds(process: subprocess.Popen[str]) -> float:
    process.send_signal(signal.SIGUSR1)
    return float(read_line(process))


def scheduled_seconds(process: subprocess.Popen[str]) -> float:
    """CPU time by the scheduler's count, for a process too throttled to answer a signal."""
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1e9


def throttling(cgroup: Path) -> tuple[int, int]:
    """Periods of the quota, and those in which the cgroup was throttled."""
    stat = dict(line.split() for line in (cgroup / "cpu.stat").read_text().splitlines())
    return int(stat["nr_periods"]), int(stat["nr_throttled"])


def by_id(rows: Any) -> dict[str, Any]:
    return {row["id"]: row for row in rows}


async def test_ten_windows_report_the_real_usage(tree: CgroupTree) -> None:
    bursty_dir, half_dir, hungry_dir = (pod(tree, uid) for uid in ("bursty", "half", "hungry"))
    idle_dir = pod(tree, "idle", KubeQOS.BEST_EFFORT)
    tree.write("cpu", half_dir, "cpu.cfs_quota_us", 50_000)
    tree.make("host-app")
    bursty = start(tree, bursty_dir, BURSTY)
    half = start(tree, half_dir, BUSY)
    half_cgroup = tree.directory("cpu", half_dir)
    hungry = start(tree, hungry_dir, HUNGRY)
    start(tree, idle_dir, "import time; time.sleep(600)")
    tree.python("host-app", "import time; x = b'x' * (32 << 20); time.sleep(600)")
    assert [read_line(hungry), read_line(bursty)] == ["ready", "ready"]

    cgroup_path = HostApplicationCgroup(parent_dir=tree.name, relative_path="host-app/")
    settings = ExporterSettings(
        cgroup_parent=tree.name,
        window_seconds=WINDOW_SECONDS,
        host_applications=(HostApplication(name="nginx", qos="LS", cgroup_path=cgroup_path),),
    )
    clock = SystemClock()
    sampler = Sampler(settings, clock)
    maker = WindowMaker(settings, "here", sampler, 0, emit_first_window=True)
    ticker = Ticker(clock, 1000)
    windows: list[dict[str, Any]] = []
    own: list[tuple[float, float]] = []
    scheduled: list[tuple[float, float]] = []
    throttled: list[tuple[tuple[int, int], tuple[int, int]]] = []
    while len(windows) < WINDOWS + 1:
        tick = await ticker.next()
        before, scheduled_before = own_seconds(bursty), scheduled_seconds(half)
        throttled_before = throttling(half_cgroup)
        _, finished = maker.collect(tick)
        for batch in finished:
            scheduled.append((scheduled_before, scheduled_seconds(half)))
            throttled.append((throttled_before, throttling(half_cgroup)))
            own.append((before, own_seconds(bursty)))
            windows.append(by_id(batch.rows))
            if len(windows) in (3, 6):
                send_line(hungry)
        await asyncio.sleep(0)
    sampler.close()
    assert [read_line(hungry), read_line(hungry)] == ["locked", "cached"]

    measured = windows[1:]  # the first window is incomplete
    assert [window["bursty"]["coverage"] for window in measured] == [1.0] * WINDOWS

    # CPU time is read just before and just after each collection: the usage between two collections
    # lies between these bounds, whatever the delays of this machine.
    cores = {}
    for name, bounds in (("bursty", own), ("half", scheduled)):
        reported = sum(window[name]["cpu_cores_avg"] for window in measured) * WINDOW_SECONDS
        lowest, highest = bounds[-1][0] - bounds[0][1], bounds[-1][1] - bounds[0][0]
        assert 0.99 * lowest <= reported <= 1.01 * highest, name
        cores[name] = reported / (WINDOWS * WINDOW_SECONDS)
    assert 0.05 < cores["bursty"] < 0.95  # bursts, not a full core

    # Never more than the quota; less where the machine itself is short of CPU.
    assert 0.05 < cores["half"] < 0.505
    halves = [window["half"] for window in measured]
    assert sum(row["cpu_throttled_ratio"] for row in halves) > 0
    for row, (start_low, start_high), (end_low, end_high) in zip(
        halves, throttled, throttled[1:], strict=False
    ):
        lowest = (end_low[1] - start_high[1]) / (end_high[0] - start_low[0])
        highest = (end_high[1] - start_low[1]) / (end_low[0] - start_high[0])
        assert lowest <= row["cpu_throttled_ratio"] <= highest
    # The length of the wait depends on other load.
    assert sum(row["cpu_throttled_seconds"] for row in halves) > 0

    small, locked, cached = (windows[i]["hungry"] for i in (2, 5, WINDOWS))
    grown = locked["memory_bytes_last"] - small["memory_bytes_last"]
    assert grown == pytest.approx(LOCKED_BYTES, rel=0.01)
    with_cache = "memory_with_page_cache_bytes_last"
    assert cached["memory_bytes_last"] == pytest.approx(locked["memory_bytes_last"], rel=0.01)
    assert cached[with_cache] - locked[with_cache] == pytest.approx(CACHED_BYTES, rel=0.02)

    last = windows[-1]
    assert last["idle"]["cpu_cores_avg"] < 0.01
    assert (last["idle"]["qos"], last["besteffort"]["kind"]) == ("BestEffort", "tier")
    assert last["nginx"]["kind"] == "host_app"
    assert last["nginx"]["memory_bytes_avg"] > 32 << 20
    assert last[""]["cpu_cores_avg"] > last["bursty"]["cpu_cores_avg"]
    assert last[""]["capacity_cpu_cores"] >= 1
