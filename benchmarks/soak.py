"""Does the memory of a role grow? Every role for an hour (or eight) under a steady load.

    python -m benchmarks.soak [--hours 1] [--nodes 50] [--pods 20] [--out soak.csv]

A real broker, API server and Prometheus. An exporter on this machine, a worker, an extender that is
asked every second, and simulated nodes at 1x whose pods come and go. Beside them watcher, notifier,
planner, actuator and evictor in mode act, and a provider for a node without an exporter, while pods
are created and deleted and the policy changes every minute. After a warm-up of twenty minutes, in
which tables of recent windows fill, the resident memory of no role may grow by more than 1 MiB an
hour (`growth`). The exit code is 1 if one does, or ended. A run of less than 50 minutes judges no
memory.
"""

import argparse
import asyncio
import csv
import itertools
import json
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.stats import theilslopes

from benchmarks.roles import resident_mib, springtide
from pipeline.clock import SystemClock
from pipeline.errors import ControlPlaneError
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.local.local_kafka import local_kafka
from pipeline.local.pki import Authority
from pipeline.settings import Settings, load_settings
from pipeline.sources.simulated_fleet import run_fleet
from pipeline.tasks import cancel_tasks
from tests.cluster.objects import apply, node, pod
from tests.provider.local_prometheus import local_prometheus

ALLOWED_MIB_PER_HOUR = 1.0
WARM_UP_MINUTES = 20.0
LEAST_MINUTES = 50.0
LEAST_SAMPLES = 4
SAMPLE_SECONDS = 15.0
PORT = 18_888
MEASURED, UNMEASURED = "soak-node", "soak-node-without-exporter"
PODS_AT_ONCE = 10
CHANGE_SECONDS = 5.0
POLICY_CHANGES = 12
ROOT = Path(__file__).parent.parent

Samples = list[tuple[float, dict[str, float]]]
"""Memory of each role over time, in hours and MiB."""
FloatArray = npt.NDArray[np.float64]


def ask() -> None:
    """One question to the extender, as a scheduler would put it."""
    body = json.dumps({"Pod": {}, "NodeNames": [f"sim-{n:05d}" for n in range(50)]}).encode()
    for verb in ("filter", "prioritize"):
        request = urllib.request.Request(
            f"http://127.0.0.1:{PORT}/{verb}", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()


def role_flags(folder: Path, kubeconfig: Path, prometheus: str) -> dict[str, tuple[str, ...]]:
    """Every role that runs for long, with its flags."""
    page, access = ("--metrics-port", "0"), ("--kubeconfig", str(kubeconfig))
    return {
        "exporter": (
            *("--socket-path", str(folder / "exporter.sock"), "--window-seconds", "10"),
            *("--node-name", MEASURED, *page),
        ),
        "worker": ("--no-supervise", "--data-dir", str(folder), *page),
        "extender": ("--host", "127.0.0.1", "--port", str(PORT), "--mode", "act", "--push-out"),
        "watcher": (*access, *page),
        "actuator": (*access, *page, "--mode", "act", "--node-metrics", "--node-slos"),
        "planner": (*access, *page),
        "evictor": (*access, *page, "--mode", "act"),
        # Nothing listens there: it tries again for ever if an alert opens.
        "notifier": ("--alertmanager-urls", "http://127.0.0.1:1", *page),
        "archive": ("--directory", str(folder / "archive"), "--file-seconds", "60", *page),
        "node-actuator": (
            *("--socket-path", str(folder / "exporter.sock"), "--node-name", MEASURED, *page),
            *("--state-file", str(folder / "node-actuator.json")),
        ),
        "webhook": (
            *access,
            *page,
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--mode",
            "act",
            *("--tls-cert-file", str(folder / "webhook.crt")),
            *("--tls-key-file", str(folder / "webhook.key")),
        ),
        "provider": (*access, "--kind", "prometheus", "--url", prometheus, "--port", "0"),
    }


def prepare(plane: ControlPlane) -> None:
    """Create the objects that the roles need."""
    for namespace in ("springtide-system", "koordinator-system"):
        plane.kubectl("create", "namespace", namespace)
    plane.kubectl("apply", "-f", str(ROOT / "deploy/chart/crds"))
    apply(plane, node(MEASURED), node(UNMEASURED))


def change(plane: ControlPlane, number: int) -> None:
    """Create a pod and delete an old one; now and then change the policy."""
    priority_class = "koord-prod" if number % 2 else "koord-batch"
    labels = {"koordinator.sh/priority-class": priority_class}
    apply(plane, pod(f"soak-{number}", on=MEASURED, labels=labels, cpu="10m"))
    old = f"pod/soak-{number - PODS_AT_ONCE}"
    plane.kubectl("delete", old, "--ignore-not-found", "--wait=false")
    if number % POLICY_CHANGES == 0:
        policy = {"enable": True, "metricReportIntervalSeconds": 30 + number % 7}
        apply(plane, {
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
            "data": {"colocation-config": json.dumps(policy)},
        })  # fmt: skip


async def change_forever(plane: ControlPlane) -> None:
    for number in itertools.count():
        # The API server may be slow for a moment; the roles must bear that, too.
        with suppress(ControlPlaneError):
            await asyncio.to_thread(change, plane, number)
        await asyncio.sleep(CHANGE_SECONDS)


async def soak(
    settings: Settings, plane: ControlPlane, pids: dict[str, int], given: argparse.Namespace
) -> Samples:
    """Memory of each role over time."""
    clock, samples = SystemClock(), []
    seconds = given.hours * 3600
    changing = asyncio.create_task(change_forever(plane))
    fleet = asyncio.create_task(
        run_fleet(settings, nodes=given.nodes, pods_per_node=given.pods, clock=clock,
                  hours_back=0.2, window_seconds=10, history_window_seconds=10)
    )  # fmt: skip
    began = time.monotonic()
    due = began + SAMPLE_SECONDS
    try:
        while (passed := time.monotonic() - began) < seconds:
            await asyncio.sleep(1)
            for task in (fleet, changing):
                if task.done():
                    task.result()
            # The extender may start late, or a machine be busy: `resident_mib` sees that a role
            # ended.
            with suppress(OSError):
                await asyncio.to_thread(ask)
            if time.monotonic() >= due:
                due += SAMPLE_SECONDS
                memory = {role: resident_mib(pid) for role, pid in pids.items()}
                samples.append((passed / 3600, memory))
                if given.out:
                    write_csv(given.out, samples)
                if len(samples) % 20 == 0:
                    shown = "  ".join(f"{role} {mib:.1f}" for role, mib in memory.items())
                    print(f"{passed / 60:6.1f} min  {shown}", file=sys.stderr, flush=True)
    finally:
        await cancel_tasks(fleet, changing)
    return samples


def write_csv(file: Path, samples: Samples) -> None:
    """Write all samples, so that a run that is interrupted leaves those that it has."""
    with file.open("w", newline="") as opened:
        table = csv.writer(opened)
        table.writerow(["hours", *samples[0][1]])
        table.writerows([[f"{hours:.4f}", *memory.values()] for hours, memory in samples])


def report(samples: Samples) -> bool:
    """Print growth per role; whether none grows more than it may. A run that is too short to judge
    says so, and is fine."""
    minutes = samples[-1][0] * 60 if samples else 0.0
    is_judged = minutes >= LEAST_MINUTES
    steady = [sample for sample in samples if sample[0] * 60 > WARM_UP_MINUTES or not is_judged]
    times = np.array([hours for hours, _ in steady])
    is_fine = True
    print(f"{'role':10}{'first MiB':>11}{'last MiB':>11}{'MiB/hour':>11}")
    for role in steady[0][1] if len(steady) >= LEAST_SAMPLES else ():
        mib = np.array([memory[role] for _, memory in steady])
        slope = growth(times, mib)
        print(f"{role:10}{mib[0]:>11.1f}{mib[-1]:>11.1f}{slope:>11.2f}")
        if is_judged and slope > ALLOWED_MIB_PER_HOUR:
            is_fine = False
            print(f"{role} grows")
    if not is_judged:
        print(f"{minutes:.0f} min are too short to judge memory: {LEAST_MINUTES:g} are needed")
    return is_fine


def growth(times: FloatArray, mib: FloatArray) -> float:
    """The growth of memory in MiB an hour: the smaller of the slopes of both halves of the time.

    A leak grows in both, one more arena of the allocator in one of them. Each slope is the median
    of those between all pairs of samples (Theil and Sen), which peaks do not move.
    """
    middle = len(times) // 2
    halves = (slice(None, middle), slice(middle, None))
    return min(float(theilslopes(mib[half], times[half]).slope) for half in halves)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--pods", type=int, default=20)
    parser.add_argument("--out", type=Path, help="CSV with every sample")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = stack.enter_context(local_kafka(folder / "kafka"))
        plane = stack.enter_context(local_control_plane())
        target = {"job_name": "springtide", "static_configs": [{"targets": [f"127.0.0.1:{PORT}"]}]}
        prometheus = stack.enter_context(local_prometheus([target]))
        prepare(plane)
        Authority(folder, SystemClock()).server("webhook", ["127.0.0.1"], [])
        settings = load_settings(None, {}, {"kafka.bootstrap_servers": kafka.bootstrap_servers})
        asyncio.run(apply_topics(settings.kafka))
        broker = ("--bootstrap-servers", kafka.bootstrap_servers)
        pids = {}
        for role, flags in role_flags(folder, plane.kubeconfig(), prometheus.url).items():
            of_kafka = () if role == "webhook" else broker
            child = springtide(role, *of_kafka, *flags, log=folder / f"{role}.log")
            pids[role] = stack.enter_context(child).pid
        try:
            samples = asyncio.run(soak(settings, plane, pids, given))
        except SystemExit:
            for log in folder.glob("*.log"):
                print(f"{log.name}:", *log.read_text().splitlines()[-5:], sep="\n", file=sys.stderr)
            raise
    sys.exit(0 if report(samples) else 1)


if __name__ == "__main__":
    main()
