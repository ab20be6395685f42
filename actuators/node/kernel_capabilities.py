"""What a machine offers to the node actuator: limits of its kernel by knob, and other interfaces.

A knob counts as present if a cgroup of pods has its file, because the root of a v2 hierarchy has
only some of the files of its children.
"""

from pathlib import Path
from typing import Final, NamedTuple

from actuators.node.cgroup_files import CgroupFiles, detect_hierarchies, node_hierarchies
from actuators.node.write_access import missing_access
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, qos_dir
from node_exporter.kernel.kernel_file import read_table
from pipeline.errors import CgroupGoneError, KernelError
from pipeline.processors.node_qos.cgroup_values import Knob, Place

FEATURES_OF: Final = {
    Knob.CPU_SHARES: "batch_resources, mid_resources",
    Knob.CPU_QUOTA: "cpu_suppression, cpu_burst, batch_resources",
    Knob.CPU_BURST: "cpu_burst",
    Knob.CPU_IDLE: "cpu_idle",
    Knob.CPU_IDENTITY: "cpu_identity (vendor kernels)",
    Knob.CPUSET: "cpu_suppression, share_pool",
    Knob.MEMORY_LIMIT: "batch_resources, mid_resources",
}
_USERS: Final = {
    "memory": "memory_qos", "io": "block_io", "proc": "node_sysctl", "sys": "node_sysctl"
}  # fmt: skip
"""What needs a knob: by the knob, else by the first word of its name."""
WRITE: Final = "write access to"
"""Begins the name of the capability to write a controller's cgroups."""
NRI_SOCKET: Final = Path("/var/run/nri/nri.sock")
"""Where containerd and CRI-O listen for plugins, unless they are configured otherwise."""
_ANY_FEATURE: Final = "HRTICK"
"""A scheduler feature that each kernel has."""


class Capability(NamedTuple):
    """An interface of the machine, whether it is there, and what needs it; `is_there` is None if
    that cannot be told without a cgroup of pods."""

    name: str
    is_there: bool | None
    found: str
    used_by: str


def capabilities(
    cgroup_root: Path, proc_root: Path, sys_root: Path, parent: str = ""
) -> list[Capability]:
    """Whether this process may write cgroups, and every interface that a feature may need, in the
    order of `Knob`. Raises `KernelFileError` without any cgroup hierarchy."""
    cgroups = detect_hierarchies(str(cgroup_root))
    files = CgroupFiles(cgroups | node_hierarchies(str(proc_root), str(sys_root)))
    reasons = {access.controller: access.why for access in missing_access(cgroups, parent)}
    found = [
        Capability(f"{WRITE} {name}", name not in reasons, reasons.get(name, "writable"), "act")
        for name in cgroups
    ]
    try:
        found += [_knob(files, knob, parent) for knob in Knob]
    finally:
        files.close()
    found.append(_pressure(proc_root))
    resctrl = (sys_root / "fs/resctrl/schemata").exists()
    text = "mounted" if resctrl else "not mounted or supported"
    return [*found, Capability("resctrl", resctrl, text, "resctrl")]


def container_runtime(socket: Path | None) -> Capability:
    """Whether the container runtime asks plugins, by its socket of NRI: that of the settings, else
    the default one."""
    path = socket or NRI_SOCKET
    try:
        is_there = path.is_socket()
        found = "the runtime listens" if is_there else "no socket: is NRI on?"
    except OSError as error:
        is_there, found = False, error.strerror or "unreadable"
    used_by = "nri_socket" if socket else "nri_socket, which is null"
    return Capability(f"NRI at {path}", is_there, found, used_by)


def _knob(files: CgroupFiles, knob: Knob, parent: str) -> Capability:
    used_by = FEATURES_OF.get(knob) or _USERS[knob.partition(".")[0]]
    version = files.version(knob)
    if version is None:
        return Capability(knob, False, "its controller is not mounted", used_by)
    of_node = knob.startswith(("proc.", "sys."))
    of_root = of_node or " " in knob
    place = Place("", knob, _ANY_FEATURE) if of_root else _place(files, knob, parent)
    try:
        is_there = files.reading(place) is not None
    except KernelError as error:
        return Capability(knob, False, error.message[:60], used_by)
    if of_node:
        return Capability(knob, is_there, "of the whole node", used_by)
    if not is_there and not place.path and not of_root:
        return Capability(knob, None, f"v{version}, no cgroup to look into", used_by)
    return Capability(knob, is_there, f"v{version}", used_by)


def _place(files: CgroupFiles, knob: Knob, parent: str) -> Place:
    """A cgroup of pods, else any other, else the root."""
    for driver in Driver:
        path = qos_dir(driver, KubeQOS.BEST_EFFORT, parent)
        try:
            files.children(Place(path, knob))
        except CgroupGoneError:
            continue
        return Place(path, knob)
    try:
        return next(iter(files.children(Place("", knob))), Place("", knob))
    except KernelError:
        return Place("", knob)


def _pressure(proc_root: Path) -> Capability:
    path = proc_root / "pressure/cpu"
    try:
        is_there = read_table(str(path)) is not None
    except KernelError as error:
        return Capability("pressure", False, error.message, "cpu_suppression")
    found = "PSI is on" if is_there else "no PSI: boot with psi=1"
    return Capability("pressure", is_there, found, "cpu_suppression")
