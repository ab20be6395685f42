"""Read the counters of one cgroup through one interface for v1 and v2.

`detect_layout` detects the cgroup version of the machine; `open_cgroup` opens one directory. A
counter that this kernel does not have is None. Every read may raise `CgroupGoneError` (the pod or
process has ended) or `KernelFileError`.
"""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Literal

from node_exporter.kernel import parse_files
from node_exporter.kernel.kernel_file import KernelFile
from node_exporter.kernel.parse_files import CgroupMemory, Pressure, Throttling
from pipeline.errors import KernelFileError

PressureResource = Literal["cpu", "memory", "io"]
PRESSURE_RESOURCES: Final[tuple[PressureResource, ...]] = ("cpu", "memory", "io")


@dataclass(frozen=True, slots=True)
class Layout:
    """Root directories of the machine's cgroup hierarchies, by kind of counter.

    On v2 all four are the same directory. On v1 `cpu` is the hierarchy with CPU time (cpuacct) and
    `bandwidth` the hierarchy with throttling counters (cpu). `pressure` is the v2 hierarchy, which
    hybrid machines mount as `unified`; None without a v2 hierarchy.
    """

    version: Literal[1, 2]
    cpu: str
    bandwidth: str
    memory: str
    pressure: str | None


class Cgroup(ABC):
    """Counters of a cgroup of either version."""

    __slots__ = ("_charged", "_files", "_memory", "_pressure", "_stat")

    def __init__(self, stat: str, memory: str, charged: str, pressure_directory: str) -> None:
        self._stat, self._memory = KernelFile(stat), KernelFile(memory)
        self._charged = KernelFile(charged)
        self._pressure: dict[PressureResource, KernelFile] = {
            resource: KernelFile(f"{pressure_directory}/{resource}.pressure")
            for resource in PRESSURE_RESOURCES
        }
        self._files = [self._stat, self._memory, self._charged, *self._pressure.values()]

    @abstractmethod
    def cpu(self, *, with_throttling: bool = True) -> tuple[int | None, Throttling | None]:
        """CPU time in nanoseconds and bandwidth counters, since the cgroup was created.

        Without `with_throttling` the counters are None where they are in another file (v1).
        """

    @abstractmethod
    def memory(self) -> CgroupMemory | None:
        """Memory charged to the cgroup and its descendants."""

    def charged_bytes(self) -> int | None:
        """All charged memory, page cache included, in bytes."""
        return self._charged.parsed(parse_files.integer)

    def cold_bytes(self) -> int | None:
        """Idle page cache in bytes (kernels with kidled, which exists for v1 only)."""
        return None

    def pressure(self, resource: PressureResource) -> Pressure | None:
        return self._pressure[resource].parsed(parse_files.pressure)

    def close(self) -> None:
        for file in self._files:
            file.close()


def detect_layout(cgroup_root: str) -> Layout:
    """Detect the cgroup version and its mounts below `cgroup_root`, normally /sys/fs/cgroup.

    The file `cgroup.controllers` identifies the root of a v2 hierarchy. Raises `KernelFileError` if
    neither version is mounted.
    """
    if os.path.exists(os.path.join(cgroup_root, "cgroup.controllers")):
        return Layout(2, cgroup_root, cgroup_root, cgroup_root, cgroup_root)
    cpuacct, cpu, memory = (v1_mount(cgroup_root, c) for c in ("cpuacct", "cpu", "memory"))
    if cpuacct is None or memory is None:
        raise KernelFileError(
            "neither cgroup v2 nor the v1 controllers cpuacct and memory are mounted here",
            path=cgroup_root,
            hint="mount the host's /sys/fs/cgroup here, or point exporter.cgroup_root at it",
        )
    unified = os.path.join(cgroup_root, "unified")
    hybrid = os.path.exists(os.path.join(unified, "cgroup.controllers"))
    return Layout(1, cpuacct, cpu or cpuacct, memory, unified if hybrid else None)


def open_cgroup(layout: Layout, relative: str) -> Cgroup:
    """The cgroup at `relative` below the roots of `layout`; its files open on the first read."""
    return V1Cgroup(layout, relative) if layout.version == 1 else V2Cgroup(layout, relative)


class V1Cgroup(Cgroup):
    """A cgroup of version 1: a directory in each controller's own tree."""

    __slots__ = ("_cold", "_events", "_usage")

    def __init__(self, layout: Layout, relative: str) -> None:
        # Hybrid machines have pressure in the v2 hierarchy if the runtime creates the cgroup there
        # as well; kernels of some vendors have it next to cpuacct.
        unified = os.path.join(layout.pressure, relative) if layout.pressure else None
        in_unified = unified is not None and os.path.isdir(unified)
        memory, cpuacct = (os.path.join(root, relative) for root in (layout.memory, layout.cpu))
        super().__init__(
            os.path.join(layout.bandwidth, relative, "cpu.stat"),
            f"{memory}/memory.stat",
            f"{memory}/memory.usage_in_bytes",
            unified if unified and in_unified else cpuacct,
        )
        self._usage = KernelFile(f"{cpuacct}/cpuacct.usage")
        self._cold = KernelFile(f"{memory}/memory.idle_page_stats")
        self._events = KernelFile(f"{unified}/cgroup.events") if in_unified else None
        self._files += [self._usage, self._cold, *([self._events] if self._events else [])]

    def cpu(self, *, with_throttling: bool = True) -> tuple[int | None, Throttling | None]:
        usage = self._usage.parsed(parse_files.integer)
        return usage, self._stat.parsed(parse_files.throttling_v1) if with_throttling else None

    def memory(self) -> CgroupMemory | None:
        return self._memory.parsed(parse_files.memory_stat_v1)

    def cold_bytes(self) -> int | None:
        return self._cold.parsed(parse_files.cold_bytes)

    def pressure(self, resource: PressureResource) -> Pressure | None:
        # A v2 directory without processes always reports zero pressure.
        if self._events is not None and b"populated 1" not in (self._events.read() or b""):
            return None
        return super().pressure(resource)


class V2Cgroup(Cgroup):
    """A cgroup of version 2: one directory."""

    __slots__ = ()

    def __init__(self, layout: Layout, relative: str) -> None:
        directory = os.path.join(layout.cpu, relative)
        stat, memory = f"{directory}/cpu.stat", f"{directory}/memory.stat"
        super().__init__(stat, memory, f"{directory}/memory.current", directory)

    def cpu(self, *, with_throttling: bool = True) -> tuple[int | None, Throttling | None]:
        data = self._stat.read()
        if data is None:
            return None, None
        path = self._stat.path
        # Every v2 cgroup accounts its time; only the cpu controller adds the bandwidth fields.
        limited = b"nr_periods" in data
        return (
            parse_files.usage_ns_v2(data, path),
            parse_files.throttling_v2(data, path) if limited else None,
        )

    def memory(self) -> CgroupMemory | None:
        return self._memory.parsed(parse_files.memory_stat_v2)


def v1_mount(cgroup_root: str, controller: str) -> str | None:
    """Directory of a v1 controller, mounted alone or with others (`cpu,cpuacct`)."""
    alone = os.path.join(cgroup_root, controller)
    if os.path.isdir(alone):
        return alone
    try:
        names = sorted(os.listdir(cgroup_root))
    except OSError as error:
        raise KernelFileError(
            error.strerror or "cannot be listed",
            path=cgroup_root,
            hint="point exporter.cgroup_root at the mount of the cgroup file systems",
        ) from error
    mounts = (name for name in names if controller in name.split(","))
    return next((os.path.join(cgroup_root, name) for name in mounts), None)
