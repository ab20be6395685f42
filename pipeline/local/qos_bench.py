"""Measure what co-location costs an online service, and how much of it the node actuator saves.

The protocol is Koordinator's: an online service alone (baseline), beside offline work (control),
and beside offline work that is held down (treatment). In the control the pods fill the node: the
service requests what it uses in the mean, and the offline pod the rest. Each phase has processes of
its own in fresh cgroups of this machine, and ends before the next begins. Exporter and node
actuator are the real ones; only the view of the node comes from this process instead of an
extender.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from node_exporter.kernel.cgroup_paths import KubeQOS
from pipeline.errors import DemoError
from pipeline.local import bench_programs
from pipeline.local.demo_workload import (
    CgroupJoiner,
    DemoPod,
    Workload,
    cpu_count,
    demo_name,
    pod_object,
)
from pipeline.local.port_probe import HOST, free_port
from pipeline.local.role_processes import Role, stop_all
from pipeline.processors.join.view_documents import node_view, pod_view, with_generation
from pipeline.processors.kubernetes.object_records import pod_record
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.resource_amounts import Resources

NODE: Final = "qos-bench"
CPUS: Final = cpu_count()
WORK_US: Final = 5000
"""CPU time of a request in microseconds."""
SETTLE_SECONDS: Final = 8.0
"""Time of each phase before it is measured: suppression begins with the first usage."""
_LOAD_EXTRA_SECONDS: Final = 90.0


class Phase(NamedTuple):
    """A phase of the benchmark.

    `offline` is the Kubernetes QoS class of the pods beside the service, None without any.
    `features` are the modes of the node actuator, `flags` further ones, `slo` is the policy;
    without features no actuator runs.
    """

    name: str
    text: str
    offline: KubeQOS | None = None
    features: Mapping[str, str] | None = None
    slo: Mapping[str, Any] | None = None
    flags: tuple[str, ...] = ()


_WITHOUT_ADDITIONS: Final = (
    "--suppression-pressure-percent=null", "--suppression-forecast-sigmas=null",
)  # fmt: skip
_IDLE: Final = {
    "policies": {"cpuPolicy": "coreSched"},
    "beClass": {"cpuQOS": {"enable": True, "schedIdle": 1}},
}


def _suppress(threshold_percent: int) -> dict[str, Any]:
    return {
        "enable": True, "cpuSuppressThresholdPercent": threshold_percent,
        "cpuSuppressPolicy": "cfsQuota",
    }  # fmt: skip


def _koordinator(name: str, text: str, threshold_percent: int) -> Phase:
    slo = {"resourceUsedThresholdWithBE": _suppress(threshold_percent)}
    features = {"cpu_suppression": "act"}
    return Phase(name, text, KubeQOS.BEST_EFFORT, features, slo, _WITHOUT_ADDITIONS)


PHASES: Final = (
    Phase("alone", "the service alone"),
    Phase("unprotected", "beside an offline pod of the same class", KubeQOS.BURSTABLE),
    _koordinator("koordinator", "offline pod best-effort, under Koordinator's CPU suppress", 65),
    _koordinator("koordinator-85", "the same up to 85% of the node instead of 65%", 85),
    Phase(
        "springtide", "up to 95%, in the idle class, with reactions to pressure and forecast",
        KubeQOS.BEST_EFFORT, {"cpu_suppression": "act", "cpu_idle": "act"},
        {"resourceUsedThresholdWithBE": _suppress(95), "resourceQOSStrategy": _IDLE},
    ),
)  # fmt: skip


class PhaseResult(NamedTuple):
    """What a phase measured: sorted latencies in seconds, CPU usage of service and offline pod in
    cores, and rounds of offline work a second."""

    phase: Phase
    latencies: tuple[float, ...]
    online_cores: float
    offline_cores: float
    offline_rounds: float

    def percentile_ms(self, percent: int) -> float:
        """The latency of this percentile, by rank, in milliseconds."""
        rank = max(len(self.latencies) * percent // 100 - 1, 0)
        return 1000 * self.latencies[rank]


class BenchOptions(NamedTuple):
    """Seconds of each phase, requests a second, and offline processes."""

    seconds: float
    requests_per_second: float
    offline_processes: int

    @property
    def online_millicores(self) -> int:
        """What the service uses in the mean, which is its request."""
        return max(1, round(self.requests_per_second * WORK_US / 1000))


async def run_bench(
    phases: Sequence[Phase], options: BenchOptions, home: Path, report: Callable[[str], None]
) -> list[PhaseResult]:
    """Run the phases one after the other, with files in `home`. Raises `KernelError` where cgroups
    cannot be made, `DemoError` if a process ends."""
    results = []
    for phase in phases:
        report(f"{phase.name}: {phase.text} ({SETTLE_SECONDS + options.seconds:.0f} s)")
        results.append(await _run_phase(phase, options, home))
    return results


async def _run_phase(phase: Phase, options: BenchOptions, home: Path) -> PhaseResult:
    online = _pod("online", options.online_millicores)
    async with AsyncExitStack() as stack:
        workload = Workload(demo_name(os.getpid()))
        stack.callback(workload.close)
        workload.make_tiers()
        port, pods = free_port(), [online]
        served = workload.make_pod(online)
        for _ in range(CPUS):
            workload.run(served, bench_programs.__file__, "serve", str(port), str(WORK_US))
        counters: list[Path] = []
        batch = ""
        if phase.offline is not None:
            offline = _offline_pod(phase.offline, options)
            pods.append(offline)
            batch = workload.make_pod(offline)
            for number in range(options.offline_processes):
                counters.append(home / f"rounds-{number}")
                counters[-1].write_bytes(bytes(bench_programs.ROUND_SIZE))
                workload.run(batch, bench_programs.__file__, "crunch", str(counters[-1]))
        roles: list[Role] = []
        if phase.features is not None:
            url = await stack.enter_async_context(_view_server(_view(pods, phase.slo or {})))
            roles = _start_roles(phase, home, workload.name, url)
            stack.callback(stop_all, roles)
        # The load begins at once, so that suppression has settled when it is measured.
        await _load(port, options.requests_per_second, SETTLE_SECONDS)
        before, began = _counts(workload, served, batch, counters), time.monotonic()
        latencies = await _load(port, options.requests_per_second, options.seconds)
        elapsed = time.monotonic() - began
        after = _counts(workload, served, batch, counters)
        for role in roles:
            role.check()
        if any(process.poll() is not None for process in workload.processes):
            raise DemoError(f"a process of the phase {phase.name} has ended")
        grown = [(b - a) / elapsed for a, b in zip(before, after, strict=True)]
        return PhaseResult(phase, tuple(sorted(latencies)), *grown)


def _offline_pod(kube_qos: KubeQOS, options: BenchOptions) -> DemoPod:
    """The offline pod, which requests all that is left of the node, if it is not best-effort."""
    if kube_qos is KubeQOS.BEST_EFFORT:
        return DemoPod("offline", "", "", kube_qos, 5500)
    return _pod("offline", max(1, 1000 * CPUS - options.online_millicores))


def _pod(name: str, cpu_millicores: int) -> DemoPod:
    return DemoPod(name, "", "", KubeQOS.BURSTABLE, 9500, f"{cpu_millicores}m", "128Mi")


def _counts(
    workload: Workload, served: str, batch: str, counters: Sequence[Path]
) -> tuple[float, float, float]:
    """CPU seconds of service and offline pod, and rounds of offline work."""
    rounds = sum(int.from_bytes(counter.read_bytes(), "little") for counter in counters)
    return workload.cpu_seconds(served), workload.cpu_seconds(batch) if batch else 0.0, rounds


async def _load(port: int, rate: float, seconds: float) -> list[float]:
    """The latencies of requests from a process of its own, outside of the pods."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", bench_programs.__file__, "load"),
        *(str(port), str(rate), str(seconds)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(seconds + _LOAD_EXTRA_SECONDS):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0 or not output:
        raise DemoError(f"the load ended with exit code {process.returncode}")
    return [float(line) for line in output.split()]


def _view(pods: Sequence[DemoPod], slo: Mapping[str, Any]) -> bytes:
    """The view of a node of this machine's size with these pods."""
    capacity = Resources(
        cpu_millicores=1000 * CPUS,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    record = NodeRecord(
        node=NODE, uid=NODE, capacity=capacity, allocatable=capacity,
        slo=msgspec.Raw(msgspec.json.encode(slo)),
    )  # fmt: skip
    objects = (pod_object(pod, NODE, time.time()) for pod in pods)
    documents = [pod_view(pod_record(tree)) for tree in objects]
    return with_generation(node_view(record, documents, None), 1)


@asynccontextmanager
async def _view_server(view: bytes) -> AsyncIterator[str]:
    """Serve a view that never changes as an extender does; yields the address."""
    ended = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        headers = {"ETag": '"1"'}
        if request.headers.get("If-None-Match") != '"1"':
            return web.Response(body=view, headers=headers, content_type="application/json")
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), float(request.query.get("wait", "0")))
        return web.Response(status=304, headers=headers)

    app = web.Application()
    app.router.add_get(f"/v1/nodes/{NODE}/view", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        port = free_port()
        await web.TCPSite(runner, HOST, port).start()
        yield f"http://{HOST}:{port}"
    finally:
        ended.set()
        await runner.cleanup()


def _start_roles(phase: Phase, home: Path, parent: str, url: str) -> list[Role]:
    """The exporter and the node actuator. They have no broker: nothing that is published counts."""
    socket, state = home / "exporter.sock", home / f"{phase.name}.json"
    common = (
        f"--node-name={NODE}", f"--cgroup-parent={parent}", f"--socket-path={socket}",
        f"--bootstrap-servers={HOST}:1", "--metrics-port=null",
    )  # fmt: skip
    features = msgspec.json.encode(phase.features).decode()
    own = {
        "exporter": (),
        "node-actuator": (
            "--mode=off", f"--features={features}", f"--extender-url={url}",
            f"--state-file={state}", *phase.flags,
        ),
    }  # fmt: skip
    return [
        Role(
            role, ["-m", "pipeline.cli.main", role, *common, *flags],
            home / f"{phase.name}-{role}.log", CgroupJoiner(),
        )
        for role, flags in own.items()
    ]  # fmt: skip
