"""The node's own counters, from /proc and /sys below configurable roots.

What the kernel does not offer is None; `KernelFileError` for what cannot be understood. Interfaces
and disks are counted where they are real, so that a byte through a bridge, a bond or a mapped disk
counts once.
"""

import os
from contextlib import suppress

from node_exporter.kernel import parse_files
from node_exporter.kernel.cgroup import PRESSURE_RESOURCES, PressureResource
from node_exporter.kernel.kernel_file import KernelFile, read_table
from node_exporter.kernel.parse_files import CpuTicks, MemInfo, Pressure, Traffic
from pipeline.errors import CgroupGoneError, KernelFileError


class NodeFiles:
    """/proc and /sys of one node, files kept open."""

    def __init__(self, proc_root: str = "/proc", sys_root: str = "/sys") -> None:
        self._proc = proc_root
        self._sys = sys_root
        self._stat = KernelFile(f"{proc_root}/stat")
        self._meminfo = KernelFile(f"{proc_root}/meminfo")
        self._pressure = {r: KernelFile(f"{proc_root}/pressure/{r}") for r in PRESSURE_RESOURCES}

    def ticks(self) -> CpuTicks:
        """CPU time of the node in clock ticks."""
        return parse_files.node_ticks(_needed(self._stat), self._stat.path)

    def meminfo(self) -> MemInfo:
        """Memory of the node."""
        return parse_files.meminfo(_needed(self._meminfo), self._meminfo.path)

    def pressure(self, resource: PressureResource) -> Pressure | None:
        """Stall times of the node; None for a kernel without PSI."""
        file = self._pressure[resource]
        if not os.path.isdir(f"{self._proc}/pressure"):
            return None
        data = file.read()
        return None if data is None else parse_files.pressure(data, file.path)

    def online_cpus(self) -> int | None:
        """Number of CPUs that are online."""
        path = f"{self._sys}/devices/system/cpu/online"
        data = read_table(path)
        return None if data is None else len(parse_files.cpu_list(data, path))

    def network(self) -> Traffic | None:
        """Bytes received and sent by the node's interfaces.

        Those with a device behind them, and no other such interface above them (the fast path of a
        virtual machine); where there is none (a container's own network), all but the loopback.
        Read from process 1, so that a pod with the host's /proc sees the host's.
        """
        path = f"{self._proc}/1/net/dev"
        try:
            data = read_table(path)
        except KernelFileError:
            data = None
        if data is None:
            path = f"{self._proc}/net/dev"
            data = read_table(path)
        if data is None:
            return None
        interfaces = {n: t for n, t in parse_files.net_dev(data, path).items() if n != "lo"}
        real = [t for n, t in interfaces.items() if self._is_real(n)]
        return _sum(real or list(interfaces.values()))

    def _is_real(self, interface: str) -> bool:
        directory = f"{self._sys}/class/net/{interface}"
        # A bond has no device of its own, what it binds has; netvsc has one and so has the virtual
        # function below it, whose bytes it counts as well.
        return _has_device(directory) and not _has_device(f"{directory}/master")

    def disks(self) -> Traffic | None:
        """Bytes read and written by whole disks; None where /sys names no disk."""
        path = f"{self._proc}/diskstats"
        data = read_table(path)
        if data is None:
            return None
        # Kernel names have '!' in /sys where they have '/' here.
        return _sum(
            [
                traffic
                for name, traffic in parse_files.diskstats(data, path).items()
                if _has_device(f"{self._sys}/block/{name.replace('/', '!')}")
            ]
        )

    def close(self) -> None:
        """Give back the open files."""
        for file in (self._stat, self._meminfo, *self._pressure.values()):
            file.close()


def machine_id(proc_root: str = "/proc", etc_root: str = "/etc") -> str:
    """The machine's id, empty where it has none.

    Seen through process 1, so that a container that has the host's /proc finds the host's id and
    not that of its image; where that may not be read, below `etc_root`.
    """
    for path in (f"{proc_root}/1/root/etc/machine-id", f"{etc_root}/machine-id"):
        with suppress(KernelFileError):
            if found := _line(path):
                return found
    return ""


def boot_id(proc_root: str = "/proc") -> str:
    """The id of this boot, empty where the kernel gives none."""
    return _line(f"{proc_root}/sys/kernel/random/boot_id")


def ticks_per_second() -> int:
    """Clock ticks per second of /proc/stat (USER_HZ)."""
    return os.sysconf("SC_CLK_TCK")


def _needed(file: KernelFile) -> bytes:
    try:
        data = file.read()
    except CgroupGoneError:  # nor is its directory
        data = None
    if data is None:
        raise KernelFileError(
            "is not there", path=file.path, hint="point exporter.proc_root at the host's /proc"
        )
    return data


def _has_device(directory: str) -> bool:
    return os.path.exists(f"{directory}/device")


def _sum(traffic: list[Traffic]) -> Traffic | None:
    if not traffic:
        return None
    return Traffic(sum(t.in_bytes for t in traffic), sum(t.out_bytes for t in traffic))


def _line(path: str) -> str:
    data = read_table(path)
    return data.strip().decode("ascii", "replace") if data else ""
