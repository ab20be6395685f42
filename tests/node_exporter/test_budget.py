"""The cost of 110 pods stays within the budget of docs/reference/exporter.md.

CPU is compared with a naive reader of the same files in the same run, by processor time, so that a
busy or slow machine changes nothing. What a window weighs is in test_window_aggregation.py.
"""

import json
import statistics
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from node_exporter.sampler import Sampler
from pipeline.clock import ManualClock
from tests.node_exporter.counted_calls import count_calls
from tests.node_exporter.fake_node import FakeNode
from tests.node_exporter.test_command import running
from tests.processes import eventually

PODS = 110
TICKS = 20


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    node = FakeNode(tmp_path)
    for number in range(PODS):
        node.pod(f"{number:08x}-0000-4000-8000-000000000000", 0)
    return node


def table(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in map(str.split, path.read_text().splitlines())}


def read_naively(node: FakeNode) -> None:
    """Open and parse every file of every pod."""
    for directory in (node.cgroups / "cpuacct").rglob("pod*"):
        pod = directory.relative_to(node.cgroups / "cpuacct")
        int((directory / "cpuacct.usage").read_text())
        table(node.cgroups / "cpu" / pod / "cpu.stat")
        table(node.cgroups / "memory" / pod / "memory.stat")


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


async def test_a_collection_costs_less_than_four_tenths_of_a_naive_reader(node: FakeNode) -> None:
    clock = ManualClock(1_700_000_000.0)
    sampler = Sampler(node.settings(), clock)
    own, naive = [], []
    for _ in range(TICKS):
        await clock.advance(1)
        at_ms = round(clock.now() * 1000)
        own.append(cpu_seconds(lambda: sampler.collect(at_ms)))  # noqa: B023
        naive.append(cpu_seconds(lambda: read_naively(node)))
    sampler.close()
    ratio = statistics.median(own) / statistics.median(naive)
    assert ratio < 0.4, f"{ratio:.2f} of a naive reader, 0.29 when this was written"


async def test_a_collection_opens_no_file_again_and_reads_two_files_of_a_pod_without_a_limit(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(1_700_000_000.0)
    sampler = Sampler(node.settings(), clock)
    for _ in range(2):
        await clock.advance(1)
        sampler.collect(round(clock.now() * 1000))
    calls = count_calls(monkeypatch, "open", "pread")
    await clock.advance(1)
    collection = sampler.collect(round(clock.now() * 1000))
    monkeypatch.undo()
    sampler.close()
    assert len([usage for usage in collection.usages if usage.entity.kind == "pod"]) == PODS
    of_node = 4
    assert calls["open"] <= 1  # looks for a best-effort tier, which is missing
    assert calls["pread"] <= 2 * PODS + of_node


def page(log: Path) -> dict[str, float]:
    """The metrics page of the exporter with this log."""
    (started,) = (json.loads(line) for line in log.read_text().splitlines() if "started" in line)
    url = f"http://127.0.0.1:{started['metrics_port']}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    metrics = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in metrics}


def test_process_with_110_pods_stays_below_the_memory_of_the_budget(
    node: FakeNode, tmp_path: Path
) -> None:
    flags = {
        "bootstrap-servers": "127.0.0.1:1", "socket-path": tmp_path / "x.sock",
        "metrics-host": "127.0.0.1", "metrics-port": 0, "window-seconds": 1,
        "collect-interval-seconds": 0.2, "cgroup-root": node.cgroups, "proc-root": node.proc,
        "sys-root": node.sys,
    }  # fmt: skip
    log = tmp_path / "log"
    with running(log, *(f"--{name}={value}" for name, value in flags.items())) as process:
        assert eventually(lambda: "exporter started" in log.read_text())
        assert eventually(lambda: page(log)["springtide_exporter_buffer_windows"] >= 3)
        status = Path(f"/proc/{process.pid}/status").read_text()
    (peak,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    assert int(peak) / 1024 < 80
