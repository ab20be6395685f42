"""The demo's pods: real cgroups with real processes, and their Node and Pod objects.

The cgroups are a tree `springtide-demo-<pid>-<start>/kubepods`, as a kubelet with the cgroupfs
driver creates it, on cgroup v1 and v2. The name identifies the demo's process: `remove_leftovers`
removes the trees of demos that were killed.
"""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from actuators.node.cgroup_files import CgroupFiles, detect_hierarchies
from node_exporter.kernel.cgroup import Layout, detect_layout, open_cgroup
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, container_dir, pod_dir, qos_dir
from pipeline.errors import KernelError, KernelFileError
from pipeline.local import load_process
from pipeline.processors.kubernetes.pod_classes import LABEL_PRIORITY_CLASS, LABEL_QOS_CLASS
from pipeline.processors.node_qos.cgroup_values import PERIOD_US, UNLIMITED, Knob, Place
from pipeline.times import format_time
from pipeline.topics.resource_amounts import millicores

CGROUP_ROOT: Final = Path("/sys/fs/cgroup")

_PR_SET_PDEATHSIG = 1
_NAME = re.compile(r"springtide-demo-(\d+)-(\d+)")
_REMOVE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class DemoPod:
    """A pod of the demo; `kind` is the argument of `pipeline.local.load_process`."""

    name: str
    kind: str
    description: str
    kube_qos: KubeQOS
    priority: int
    cpu: str = ""
    memory: str = ""

    @property
    def uid(self) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.name}.demo.springtide"))


PODS: Final = (
    DemoPod("steady-web", "steady", "0.3 cores all the time", KubeQOS.BURSTABLE, 9500,
            "500m", "128Mi"),
    DemoPod("bursty-api", "bursty", "0.8 cores for 4 s of every 12", KubeQOS.BURSTABLE, 9500,
            "1", "128Mi"),
    DemoPod("hungry-cache", "hungry", "allocates 15 MiB a second up to 300 MiB, then frees it",
            KubeQOS.GUARANTEED, 9500, "250m", "512Mi"),
    DemoPod("idle-cron", "idle", "requests a lot, uses nothing", KubeQOS.BURSTABLE, 9500,
            "500m", "256Mi"),
    DemoPod("batch-crunch", "batch", f"best effort, wants {load_process.BATCH_CORES:g} cores",
            KubeQOS.BEST_EFFORT, 5500),
)  # fmt: skip


def demo_name(pid: int) -> str:
    """Return the name of the cgroups and the directory of the demo with this process id."""
    return f"springtide-demo-{pid}-{_start_ticks(pid)}"


def cpu_count() -> int:
    """CPUs of this machine, at least one."""
    return os.cpu_count() or 1


def node_object(name: str) -> dict[str, Any]:
    """Return a Node object for this machine; all of its capacity is allocatable."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    amounts = {"cpu": str(cpu_count()), "memory": str(memory_bytes)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def pod_object(pod: DemoPod, node: str, created_at: float) -> dict[str, Any]:
    """Return the Pod object, as `kubectl get pods -o json` prints it."""
    is_batch = pod.kube_qos is KubeQOS.BEST_EFFORT
    amounts = {"cpu": pod.cpu, "memory": pod.memory}
    resources: dict[str, Any] = {} if is_batch else {"requests": amounts}
    if pod.kube_qos is KubeQOS.GUARANTEED:
        resources["limits"] = amounts
    time = format_time(round(created_at))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod.name,
            "namespace": "demo",
            "uid": pod.uid,
            "creationTimestamp": time,
            "labels": {
                LABEL_PRIORITY_CLASS: "koord-batch" if is_batch else "koord-prod",
                LABEL_QOS_CLASS: "BE" if is_batch else "LS",
            },
        },
        "spec": {
            "nodeName": node,
            "priority": pod.priority,
            "containers": [{"name": "main", "resources": resources}],
        },
        "status": {"phase": "Running", "qosClass": pod.kube_qos.value, "startTime": time},
    }


class Workload:
    """The cgroup tree `name` below every controller that the exporter reads.

    Raises `KernelError` where cgroups cannot be created: without root, and in most containers.
    """

    def __init__(self, name: str, root: Path = CGROUP_ROOT) -> None:
        self.name = name
        self._root = str(root)
        self._layout = detect_layout(self._root)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, pods: Sequence[DemoPod] = PODS) -> None:
        """Create a cgroup for each pod, with the kubelet's weights, and start its process in it."""
        self.make_tiers()
        for pod in pods:
            container = self.make_pod(pod)
            self.run(container, load_process.__file__, pod.kind)

    def make_tiers(self) -> None:
        """Create the cgroups of kubepods and of its QoS classes."""
        machine_millicores = 1000 * cpu_count()
        kubepods = qos_dir(Driver.CGROUPFS, KubeQOS.GUARANTEED, self.name)
        best_effort = qos_dir(Driver.CGROUPFS, KubeQOS.BEST_EFFORT, self.name)
        self.make_cgroup(best_effort)
        for relative, weight in ((self.name, machine_millicores), (kubepods, machine_millicores)):
            self._set_cpu_weight(relative, weight)
        self._set_cpu_weight(best_effort, 0)

    def make_pod(self, pod: DemoPod) -> str:
        """Create the cgroups of a pod and its container; returns the path of the container."""
        directory = pod_dir(Driver.CGROUPFS, pod.kube_qos, pod.uid, self.name)
        id = uuid.uuid5(uuid.NAMESPACE_DNS, pod.uid).hex * 2
        container = f"{directory}/{container_dir(Driver.CGROUPFS, 'containerd', id)}"
        self.make_cgroup(container)
        self._set_cpu_weight(directory, millicores(pod.cpu or "0"))
        return container

    def run(self, container: str, program: str, *arguments: str) -> None:
        """Start a Python program of the standard library in a container's cgroup."""
        self.processes.append(
            subprocess.Popen(
                [sys.executable, "-I", "-S", program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                process_group=0,
                preexec_fn=CgroupJoiner(self._procs(container, _roots(self._layout))),
            )
        )

    def cpu_seconds(self, relative: str) -> float:
        """CPU time that a cgroup has used."""
        cgroup = open_cgroup(self._layout, relative)
        try:
            return (cgroup.cpu()[0] or 0) / 1e9
        finally:
            cgroup.close()

    def best_effort_quota_cores(self) -> float | None:
        """CPU that all best-effort pods together may use; None without a limit."""
        best_effort = qos_dir(Driver.CGROUPFS, KubeQOS.BEST_EFFORT, self.name)
        files = CgroupFiles(detect_hierarchies(self._root))
        try:
            quota_us = files.read(Place(best_effort, Knob.CPU_QUOTA))
        finally:
            files.close()
        if not isinstance(quota_us, int) or quota_us >= UNLIMITED:
            return None
        return quota_us / PERIOD_US

    def make_cgroup(self, relative: str) -> None:
        """Create the cgroup `relative` to each controller's root, with its parents."""
        for root in _roots(self._layout):
            try:
                _make_cgroup(root, Path(relative), delegate=self._layout.version == 2)
            except OSError as error:
                raise KernelError(
                    f"cannot create a cgroup: {error.strerror}",
                    path=str(root / relative),
                    hint="run the demo as root with writable cgroups to have pods of its own",
                ) from error

    def unweighted_joiner(self, relative: str) -> "CgroupJoiner":
        """Return a joiner that has the cgroup measure a process without weighing it.

        On v1 the process does not join the hierarchy of the cpu controller, if that is separate.
        """
        roots = [Path(self._layout.cpu), Path(self._layout.memory)]
        return CgroupJoiner(self._procs(relative, roots))

    def _procs(self, relative: str, roots: Iterable[Path]) -> list[Path]:
        return [root / relative / "cgroup.procs" for root in dict.fromkeys(roots)]

    def _set_cpu_weight(self, relative: str, cpu_millicores: int) -> None:
        # The kubelet's formulas: 1024 shares are a core; v2 has weights from 1 to 10000.
        shares = max(2, cpu_millicores * 1024 // 1000)
        directory = Path(self._layout.bandwidth) / relative
        if self._layout.version == 1:
            (directory / "cpu.shares").write_text(str(shares))
        else:
            (directory / "cpu.weight").write_text(str(1 + (shares - 2) * 9999 // 262142))

    def ended(self) -> list[str]:
        """Return the names of pods whose process has ended."""
        running = zip(PODS, self.processes, strict=False)
        return [pod.name for pod, process in running if process.poll() is not None]

    def close(self) -> None:
        """Kill all processes in the tree, and remove it."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        for root in _roots(self._layout):
            _remove_tree(root / self.name)


class CgroupJoiner:
    """A `preexec_fn` that joins these cgroups and has the kernel kill the child with its parent."""

    def __init__(self, files: Sequence[Path] = ()) -> None:
        self._files = [str(file) for file in files]
        # Loaded before the fork, because another thread may hold the loader's lock.
        self._prctl = ctypes.CDLL(None).prctl

    def __call__(self) -> None:
        self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for file in self._files:
            descriptor = os.open(file, os.O_WRONLY)
            os.write(descriptor, b"0")
            os.close(descriptor)


def remove_leftovers(root: Path = CGROUP_ROOT) -> list[str]:
    """Remove cgroups, their processes and directories of killed demos; return their names."""
    removed = set()
    for directory in [*_leftover_cgroups(root), *_leftovers(Path(tempfile.gettempdir()))]:
        with suppress(OSError, TimeoutError):  # it belongs to another user
            if directory.is_relative_to(root):
                _remove_tree(directory)
            else:
                shutil.rmtree(directory)
            removed.add(directory.name)
    return sorted(removed)


def _leftover_cgroups(root: Path) -> Iterator[Path]:
    with suppress(KernelFileError):
        for controller in _roots(detect_layout(str(root))):
            yield from _leftovers(controller)


def _leftovers(parent: Path) -> list[Path]:
    with suppress(OSError):
        return [path for path in parent.iterdir() if _is_dead_demo(path.name)]
    return []


def _is_dead_demo(name: str) -> bool:
    match = _NAME.fullmatch(name)
    return match is not None and _start_ticks(int(match[1])) != int(match[2])


def _start_ticks(pid: int) -> int | None:
    """Return when the process started (proc(5), field 22), which with its id identifies it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def _roots(layout: Layout) -> list[Path]:
    return [Path(root) for root in dict.fromkeys((layout.cpu, layout.bandwidth, layout.memory))]


def _make_cgroup(root: Path, relative: Path, *, delegate: bool) -> None:
    directory = root
    for part in relative.parts:
        if delegate:
            # v2: the parent enables controllers for its children.
            control = directory / "cgroup.subtree_control"
            if not {"cpu", "memory"}.issubset(control.read_text().split()):
                control.write_text("+cpu +memory")
        directory /= part
        directory.mkdir(exist_ok=True)


def _remove_tree(top: Path) -> None:
    deadline = time.monotonic() + _REMOVE_SECONDS
    while top.exists():
        for directory, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):  # a killed process takes a moment to leave
                for pid in (Path(directory) / "cgroup.procs").read_text().split():
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                Path(directory).rmdir()
        if time.monotonic() > deadline:
            raise TimeoutError(f"cannot remove {top}: a process in it does not end")
        time.sleep(0.02)
