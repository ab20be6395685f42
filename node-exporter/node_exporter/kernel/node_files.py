"""Read the node's counters from /proc and /sys below configurable roots.

A value that the kernel does not offer is None; `KernelFileError` is raised for a file that cannot
be parsed. Only physical interfaces and whole disks count, so that a byte through a bridge, a bond
or a mapped disk counts once.
"""

import os
from contextlib import suppress

from node_exporter.kernel import parse_files
from node_exporter.kernel.cgroup import PRESSURE_RESOURCES, PressureResource
from node_exporter.kernel.kernel_file import KernelFile, read_table
from node_exporter.kernel.parse_files import MemInfo, Pressure, Traffic
from pipeline.errors import CgroupGoneError, KernelFileError


class NodeFiles:
    """Counters of one node; the files stay open."""

    def __init__(self, proc_root: str = "/proc", sys_root: str = "/sys") -> None:
        self._proc = proc_root
        self._sys = sys_root
        self._stat = KernelFile(f"{proc_root}/stat")
        self._meminfo = KernelFile(f"{proc_root}/meminfo")
        self._pressure = {r: KernelFile(f"{proc_root}/pressure/{r}") for r in PRESSURE_RESOURCES}

    def ticks(self) -> int:
        """Busy CPU time of the node in clock ticks since boot."""
        return parse_files.node_ticks(_read_required(self._stat), self._stat.path)

    def meminfo(self) -> MemInfo:
        return parse_files.meminfo(_read_required(self._meminfo), self._meminfo.path)

    def pressure(self, resource: PressureResource) -> Pressure | None:
        """Stall times of the node; None without PSI."""
        if not os.path.isdir(f"{self._proc}/pressure"):
            return None
        return self._pressure[resource].parsed(parse_files.pressure)

    def online_cpus(self) -> int | None:
        path = f"{self._sys}/devices/system/cpu/online"
        data = read_table(path)
        return None if data is None else len(parse_files.cpu_list(data, path))

    def network(self) -> Traffic | None:
        """Bytes received and sent by the node's physical interfaces.

        An interface counts if it has a device and no interface with a device is its master (the
        virtual function of a virtual machine has one). Without any (the network namespace of a
        container), all interfaces except the loopback count. The file of process 1 is read, so that
        a pod with the host's /proc gets the host's interfaces.
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
        interfaces = parse_files.net_dev(data, path)
        interfaces.pop("lo", None)
        physical = [t for name, t in interfaces.items() if self._is_physical(name)]
        return _sum(physical or list(interfaces.values()))

    def _is_physical(self, interface: str) -> bool:
        directory = f"{self._sys}/class/net/{interface}"
        # A bond has no device, its members have. netvsc and the virtual function below it both have
        # one, and the bytes of netvsc include those of the virtual function.
        return _has_device(directory) and not _has_device(f"{directory}/master")

    def disks(self) -> Traffic | None:
        """Bytes read and written by whole disks; None if /sys lists no disk."""
        path = f"{self._proc}/diskstats"
        data = read_table(path)
        if data is None:
            return None
        # /sys replaces '/' in device names by '!'.
        return _sum(
            [
                traffic
                for name, traffic in parse_files.diskstats(data, path).items()
                if _has_device(f"{self._sys}/block/{name.replace('/', '!')}")
            ]
        )

    def close(self) -> None:
        for file in (self._stat, self._meminfo, *self._pressure.values()):
            file.close()


def machine_id(proc_root: str = "/proc", etc_root: str = "/etc") -> str:
    """The machine id, empty without one.

    It is read through process 1, so that a container with the host's /proc gets the host's id
    instead of the id of its image. If that path cannot be read, `etc_root` is used.
    """
    for path in (f"{proc_root}/1/root/etc/machine-id", f"{etc_root}/machine-id"):
        with suppress(KernelFileError):
            if text := _read_line(path):
                return text
    return ""


def boot_id(proc_root: str = "/proc") -> str:
    """The id of this boot, empty without one."""
    return _read_line(f"{proc_root}/sys/kernel/random/boot_id")


def ticks_per_second() -> int:
    """Clock ticks per second of /proc/stat (USER_HZ)."""
    return os.sysconf("SC_CLK_TCK")


def _read_required(file: KernelFile) -> bytes:
    try:
        data = file.read()
    except CgroupGoneError:  # its directory is missing as well
        data = None
    if data is None:
        raise KernelFileError(
            "does not exist", path=file.path, hint="point exporter.proc_root at the host's /proc"
        )
    return data


def _has_device(directory: str) -> bool:
    return os.path.exists(f"{directory}/device")


def _sum(traffic: list[Traffic]) -> Traffic | None:
    if not traffic:
        return None
    return Traffic(sum(t.in_bytes for t in traffic), sum(t.out_bytes for t in traffic))


def _read_line(path: str) -> str:
    data = read_table(path)
    return data.strip().decode("ascii", "replace") if data else ""
