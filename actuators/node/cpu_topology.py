"""Read the node's online CPUs with their cores, sockets and NUMA nodes from /sys.

Virtual machines and architectures other than x86 lack some of the files. A CPU without a core id is
a core of its own, without a socket id in socket 0, without a NUMA node in node 0.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from node_exporter.kernel.kernel_file import read_table
from node_exporter.kernel.parse_files import cpu_list
from pipeline.errors import KernelFileError
from pipeline.processors.node_qos.node_state import LogicalCpu

_ID: Final = re.compile(rb"\d{1,6}\s*")
_NODE: Final = re.compile(r"node(\d{1,6})")


class CpuTopology:
    """The CPUs of the node; they are read again when the set of online CPUs changes."""

    def __init__(self, sys_root: str = "/sys") -> None:
        self._directory = Path(sys_root, "devices/system")
        self._online: bytes | None = None
        self._cpus: tuple[LogicalCpu, ...] = ()

    def cpus(self) -> tuple[LogicalCpu, ...]:
        """The online CPUs by number. Raises `KernelFileError` if their list cannot be read."""
        path = self._directory / "cpu/online"
        online = read_table(str(path))
        if online is None:
            raise KernelFileError(
                "does not exist", path=str(path), hint="point exporter.sys_root at the host's /sys"
            )
        if online != self._online:
            numbers = cpu_list(online, str(path))
            nodes = self._numa_nodes()
            self._cpus = tuple(self._cpu(number, nodes.get(number, 0)) for number in numbers)
            self._online = online
        return self._cpus

    def _cpu(self, cpu: int, node: int) -> LogicalCpu:
        topology = self._directory / f"cpu/cpu{cpu}/topology"
        core, socket = _id(topology / "core_id"), _id(topology / "physical_package_id")
        return LogicalCpu(cpu, cpu if core is None else core, socket or 0, node)

    def _numa_nodes(self) -> dict[int, int]:
        """The NUMA node of each CPU; empty if the kernel knows none."""
        nodes: dict[int, int] = {}
        with suppress(OSError):
            for directory in sorted((self._directory / "node").iterdir()):
                if match := _NODE.fullmatch(directory.name):
                    path = str(directory / "cpulist")
                    # The others still have theirs.
                    with suppress(KernelFileError):
                        nodes |= dict.fromkeys(
                            cpu_list(read_table(path) or b"", path), int(match[1])
                        )
        return nodes


def _id(path: Path) -> int | None:
    """The number in a file of /sys; None if it is missing or not known (-1)."""
    try:
        data = read_table(str(path)) or b""
    except KernelFileError:
        return None
    return int(data) if _ID.fullmatch(data) else None
