"""What exporter and node actuator cost together: CPU share of a core, memory, and writes.

    python -m benchmarks.node [--pods 110] [--seconds 60]

Makes real cgroups (v1, root) with a container and a process each, a third of them best-effort with
Batch, and runs exporter and node actuator in mode act as users run them, over a real broker, with
suppression, burst and memory protection switched on. Goal: 2% of a core and 120 MiB together, and
no write while nothing changes.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import msgspec

from benchmarks.exporter import (
    COST_HEAD,
    WARM_UP_SECONDS,
    Cost,
    cost_row,
    make_pods,
    measure,
    process,
)
from node_exporter.kernel.cgroup_paths import KubeQOS
from pipeline.local.local_kafka import local_kafka
from pipeline.local.port_probe import free_port
from pipeline.settings import KafkaSettings
from pipeline.topics.codec import encode_json
from pipeline.topics.node_views import NodeViewRecord, ViewPod
from pipeline.topics.pods import Container
from pipeline.topics.registry import NODE_VIEWS
from pipeline.topics.resource_amounts import BATCH, Resources
from tests.broker import send
from tests.cgroup_tree import CGROUP_ROOT, CgroupTree, cgroup_tree

GOAL_CPU_PERCENT = 2.0
GOAL_MEMORY_MIB = 120.0
NODE = "bench-node"
GIB = 1 << 30
POLICY = {
    "resourceUsedThresholdWithBE": {
        "enable": True, "cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": "cfsQuota",
    },
    "cpuBurstStrategy": {"policy": "auto"},
    "resourceQOSStrategy": {
        "lsClass": {"memoryQOS": {"enable": True, "minLimitPercent": 20}},
        "beClass": {"memoryQOS": {"enable": True, "wmarkRatio": 95}},
    },
}  # fmt: skip


def view_pod(number: int) -> ViewPod:
    """The pod that `make_pods` makes with this number."""
    uid, container_id = f"{number:08x}-0000-4000-8000-000000000000", f"{number:064x}"
    amounts = Resources(cpu_millicores=200, memory_bytes=GIB // 8)
    best_effort = list(KubeQOS)[number % 3] is KubeQOS.BEST_EFFORT
    batch = {BATCH[0]: 200, BATCH[1]: GIB // 8}
    container = (
        Container(name="main", scalars=batch)
        if best_effort
        else Container(name="main", requests=amounts, limits=amounts)
    )
    return ViewPod(
        uid=uid, cgroup_uid=uid, namespace="bench", name=f"pod-{number}", phase="Running",
        qos="BE" if best_effort else "LS", pod_class="batch" if best_effort else "prod",
        requests=container.requests, limits=container.limits, containers=(container,),
        container_ids={"main": container_id},
    )  # fmt: skip


def view(pods: int) -> bytes:
    cpus = os.cpu_count() or 1
    amounts = Resources(cpu_millicores=1000 * cpus, memory_bytes=16 * GIB)
    return encode_json(
        NodeViewRecord(
            node=NODE, generation=1, allocatable=amounts, capacity=amounts,
            slo=msgspec.Raw(msgspec.json.encode(POLICY)),
            pods=tuple(view_pod(number) for number in range(pods)),
        )
    )  # fmt: skip


def inherit_cpus(tree: CgroupTree) -> None:
    """Let all cgroups of the tree run on all CPUs, as a kubelet does."""
    tree.write("cpuset", "", "cgroup.clone_children", 1)
    for file in ("cpuset.cpus", "cpuset.mems"):
        tree.write("cpuset", "", file, (CGROUP_ROOT / "cpuset" / file).read_text())


def changes(port: int) -> Counter[str]:
    """Changes so far by feature and outcome, from the actuator's metrics page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    counted = re.findall(r"^springtide_node_actuator_changes_total\{(.+)\} (\S+)$", page, re.M)
    return Counter({labels: int(float(value)) for labels, value in counted})


def report(costs: dict[str, tuple[Cost, Cost]], seconds: float, pods: int) -> bool:
    """Print the table; whether both are within the goal together."""
    print(f"{pods} pods, every second, {seconds:.0f} s on {os.cpu_count()} CPUs")
    print(COST_HEAD)
    totals = [0.0, 0.0]
    for name, (before, after) in costs.items():
        row, percent = cost_row(name, before, after, seconds)
        print(row)
        totals[0] += percent
        totals[1] += after.resident_mib
    fine = totals[0] <= GOAL_CPU_PERCENT and totals[1] <= GOAL_MEMORY_MIB
    print(
        f"together {totals[0]:.2f}% and {totals[1]:.1f} MiB, goal {GOAL_CPU_PERCENT:g}% and "
        f"{GOAL_MEMORY_MIB:g} MiB: {'fine' if fine else 'MISSED'}"
    )
    return fine


def main() -> int:
    """Run the benchmark; 1 if both cost too much."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=110)
    parser.add_argument("--busy", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    with ExitStack() as stack:
        tree = stack.enter_context(cgroup_tree("bench", ("cpu", "cpuacct", "memory", "cpuset")))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        print("  starting a broker ...", file=sys.stderr)
        servers = stack.enter_context(local_kafka()).bootstrap_servers
        springtide = ["-m", "pipeline.cli.main"]
        subprocess.run(
            [sys.executable, *springtide, "topics", "apply", "--bootstrap-servers", servers],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        asyncio.run(
            send(KafkaSettings(bootstrap_servers=servers), NODE_VIEWS, (NODE, view(given.pods)))
        )
        print(f"  making {given.pods} pods ...", file=sys.stderr)
        inherit_cpus(tree)
        make_pods(tree, given.pods, given.busy)
        flags = {
            "bootstrap-servers": servers,
            "node-name": NODE,
            "cgroup-parent": tree.name,
            "socket-path": str(folder / "exporter.sock"),
            "metrics-host": "127.0.0.1",
        }
        words = [word for name, value in flags.items() for word in (f"--{name}", value)]
        port = free_port()
        act = ["--mode", "act", "--state-file", str(folder / "state.json")]
        exporter = process(
            *springtide, "exporter", *words, "--metrics-port=0", log=folder / "exporter.log"
        )
        actuator = process(
            *springtide, "node-actuator", *words, *act, f"--metrics-port={port}",
            log=folder / "node-actuator.log",
        )  # fmt: skip
        pids = {
            "exporter": stack.enter_context(exporter),
            "node actuator": stack.enter_context(actuator),
        }
        time.sleep(WARM_UP_SECONDS)
        first = changes(port)
        costs = measure(pids, given.seconds)
        print(f"changes at the start: {dict(first)}, since: {dict(changes(port) - first)}")
    return 0 if report(costs, given.seconds, given.pods) else 1


if __name__ == "__main__":
    sys.exit(main())
