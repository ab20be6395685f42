"""What the exporter costs: CPU share of a core and resident memory at 110 pods, once a second.

    python -m benchmarks.exporter [--pods 110] [--containers 1] [--seconds 60] [--no-kafka]

Makes real cgroups (v1, root) with a sleeping process each and a few busy ones, runs the exporter as
users run it, against a real broker, and beside it, in the same minute, a naive reader that opens
every file anew and parses it whole. Goal: 1% of a core and 80 MiB; over 1.5% or 100 MiB is a
defect, and the exit code says so. What a window weighs is tested with the windows.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, pod_dir
from pipeline.local.local_kafka import local_kafka
from pipeline.local.process_guard import die_with_parent
from tests.cgroup_tree import CgroupTree, cgroup_tree

WARM_UP_SECONDS = 10.0
DEFECT_CPU_PERCENT = 1.5
DEFECT_MEMORY_MIB = 100.0
ROOT = Path(__file__).parent.parent

# The containers here sleep: from their first reading on they count as ones that do something.
EXPORTER = """
import sys
from node_exporter import container_counters
from pipeline.cli.main import main
container_counters._ACTIVE_CPU_NS = 0
sys.exit(main())
"""
NAIVE = """
import pathlib, sys, time
root, parent = pathlib.Path("/sys/fs/cgroup"), sys.argv[1]
def table(path):
    return {w[0]: int(w[1]) for w in (line.split() for line in path.read_text().splitlines())}
while True:
    start = time.monotonic()
    for directory in (root / "cpuacct" / parent).rglob("pod*"):
        pod = directory.relative_to(root / "cpuacct")
        int((directory / "cpuacct.usage").read_text())
        table(root / "cpu" / pod / "cpu.stat")
        table(root / "memory" / pod / "memory.stat")
    time.sleep(max(0, 1 - (time.monotonic() - start)))
"""


class Cost(NamedTuple):
    """What a process has cost so far."""

    user_seconds: float
    system_seconds: float
    resident_mib: float
    peak_mib: float


def cost(pid: int) -> Cost:
    """CPU time and memory of a process, by /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    resident, peak = (int(status[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    return Cost(int(fields[11]) / ticks, int(fields[12]) / ticks, resident, peak)


def make_pods(tree: CgroupTree, pods: int, busy: int, containers: int = 1) -> None:
    """Pods of three classes with so many containers and a process each; the first `busy` use 5%
    CPU in each container."""
    nap = "import time\nwhile True:\n t = time.perf_counter() + .005\n"
    nap += " while time.perf_counter() < t: pass\n time.sleep(.095)"
    for i in range(pods):
        uid = f"{i:08x}-0000-4000-8000-000000000000"
        pod = pod_dir(Driver.CGROUPFS, list(KubeQOS)[i % 3], uid)
        for container in range(containers):
            path = f"{pod}/{i:032x}{container:032x}"
            tree.make(path)
            if i < busy:
                tree.python(path, nap)
            else:
                tree.run(path, "sleep", "3600")


@contextmanager
def process(*arguments: str, log: Path) -> Iterator[int]:
    """A child of this benchmark, ended with it."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'node-exporter'}"}
    with log.open("w") as output:
        child = subprocess.Popen(
            [sys.executable, *arguments], stdout=output, stderr=output, env=environment, cwd=ROOT,
            preexec_fn=die_with_parent,
        )  # fmt: skip
        try:
            yield child.pid
            if child.poll() is not None:
                raise SystemExit(f"ended with {child.returncode}: {log.read_text()}")
        finally:
            child.terminate()
            child.wait(30)


def measure(pids: dict[str, int], seconds: float) -> dict[str, tuple[Cost, Cost]]:
    """Costs before and after, with progress."""
    time.sleep(WARM_UP_SECONDS)
    before = {name: cost(pid) for name, pid in pids.items()}
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        print(f"  measuring, {left:.0f} s left", file=sys.stderr)
        time.sleep(min(10.0, left))
    return {name: (before[name], cost(pid)) for name, pid in pids.items()}


COST_HEAD = f"{'':16}{'CPU %':>8}{'user %':>8}{'sys %':>8}{'RSS MiB':>9}{'peak':>7}"


def cost_row(name: str, before: Cost, after: Cost, seconds: float) -> tuple[str, float]:
    """The row of a process below `COST_HEAD`, and its CPU in percent of a core."""
    user = (after.user_seconds - before.user_seconds) / seconds * 100
    system = (after.system_seconds - before.system_seconds) / seconds * 100
    text = (
        f"{name:16}{user + system:8.2f}{user:8.2f}{system:8.2f}{after.resident_mib:9.1f}"
        f"{after.peak_mib:7.1f}"
    )
    return text, user + system


def report(found: dict[str, tuple[Cost, Cost]], seconds: float, pods: int) -> bool:
    """Print the table; whether the exporter is within what is no defect."""
    print(f"{pods} pods, every second, {seconds:.0f} s on {os.cpu_count()} CPUs")
    print(f"{COST_HEAD}{'ratio':>7}")
    naive = sum(b - a for a, b in zip(*(c[:2] for c in found["naive reader"]), strict=True))
    for name, (before, after) in found.items():
        row, percent = cost_row(name, before, after, seconds)
        print(f"{row}{percent * seconds / 100 / naive:7.2f}")
    before, after = found["exporter"]
    used = sum(after[:2]) - sum(before[:2])
    percent = used / seconds * 100
    fine = percent <= DEFECT_CPU_PERCENT and after.resident_mib <= DEFECT_MEMORY_MIB
    print(
        f"goal 1% and 80 MiB, defect over {DEFECT_CPU_PERCENT}% or {DEFECT_MEMORY_MIB:.0f} MiB: "
        f"{'fine' if fine else 'DEFECT'}"
    )
    return fine


def main() -> int:
    """Run the benchmark; 1 if the exporter costs too much."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=110)
    parser.add_argument("--busy", type=int, default=4)
    parser.add_argument("--containers", type=int, default=1, help="of each pod")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--no-kafka", action="store_true", help="windows wait in the buffer")
    given = parser.parse_args()
    with ExitStack() as stack:
        tree = stack.enter_context(cgroup_tree("bench"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = "127.0.0.1:1"
        if not given.no_kafka:
            print("  starting a broker ...", file=sys.stderr)
            servers = stack.enter_context(local_kafka()).bootstrap_servers
            command = [sys.executable, "-m", "pipeline.cli.main", "topics", "apply"]
            subprocess.run(
                [*command, "--bootstrap-servers", servers],
                check=True,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
            )
        print(f"  making {given.pods} pods ...", file=sys.stderr)
        make_pods(tree, given.pods, given.busy, given.containers)
        flags = {
            "bootstrap-servers": servers,
            "cgroup-parent": tree.name,
            "socket-path": str(folder / "exporter.sock"),
            "metrics-port": "0",
        }
        arguments = [word for name, value in flags.items() for word in (f"--{name}", value)]
        exporter = process("-c", EXPORTER, "exporter", *arguments, log=folder / "exporter.log")
        naive = process("-c", NAIVE, tree.name, log=folder / "naive.log")
        pids = {
            "exporter": stack.enter_context(exporter),
            "naive reader": stack.enter_context(naive),
        }
        found = measure(pids, given.seconds)
    return 0 if report(found, given.seconds, given.pods) else 1


if __name__ == "__main__":
    sys.exit(main())
