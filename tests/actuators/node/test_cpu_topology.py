"""The CPUs of a node with core, socket and NUMA node, by a described /sys and by the real one."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from actuators.node.cpu_topology import CpuTopology
from pipeline.errors import KernelFileError
from pipeline.processors.node_qos.cgroup_values import cpu_list_text
from pipeline.processors.node_qos.node_state import LogicalCpu


def describe(folder: Path, cpus: Iterable[LogicalCpu]) -> CpuTopology:
    """A /sys with these CPUs online."""
    system = folder / "devices/system"
    nodes: dict[int, set[int]] = {}
    for cpu, core, socket, node in cpus:
        topology = system / f"cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True, exist_ok=True)
        (topology / "core_id").write_text(f"{core}\n")
        (topology / "physical_package_id").write_text(f"{socket}\n")
        nodes.setdefault(node, set()).add(cpu)
    for node, numbers in nodes.items():
        (system / f"node/node{node}").mkdir(parents=True, exist_ok=True)
        (system / f"node/node{node}/cpulist").write_text(f"{cpu_list_text(frozenset(numbers))}\n")
    set_online(folder, cpu_list_text(frozenset(cpu.cpu for cpu in cpus)))
    return CpuTopology(str(folder))


def set_online(folder: Path, numbers: str) -> None:
    (folder / "devices/system/cpu").mkdir(parents=True, exist_ok=True)
    (folder / "devices/system/cpu/online").write_text(f"{numbers}\n")


TWO_SOCKETS = tuple(
    # As Intel numbers them: the second hyper-threads follow the first of all cores.
    LogicalCpu(cpu, core=cpu % 4, socket=cpu % 8 // 4, node=cpu % 8 // 4)
    for cpu in range(16)
)
TWO_NODES_A_SOCKET = tuple(
    # As AMD does with NPS2 and siblings side by side.
    LogicalCpu(cpu, core=cpu // 2, socket=0, node=cpu // 4)
    for cpu in range(8)
)


@pytest.mark.parametrize("cpus", [TWO_SOCKETS, TWO_NODES_A_SOCKET, TWO_SOCKETS[3:5]])
def test_every_cpu_has_its_core_socket_and_node(
    tmp_path: Path, cpus: tuple[LogicalCpu, ...]
) -> None:
    assert describe(tmp_path, cpus).cpus() == cpus


def test_a_cpu_that_goes_offline_or_comes_is_noticed(tmp_path: Path) -> None:
    topology = describe(tmp_path, TWO_SOCKETS)
    assert topology.cpus() == TWO_SOCKETS
    set_online(tmp_path, "0-6,15")
    assert topology.cpus() == (*TWO_SOCKETS[:7], TWO_SOCKETS[15])
    set_online(tmp_path, "0-15")
    assert topology.cpus() == TWO_SOCKETS


def test_without_ids_each_cpu_is_a_core_of_socket_and_node_0(tmp_path: Path) -> None:
    set_online(tmp_path, "0-1,3")
    assert CpuTopology(str(tmp_path)).cpus() == (
        LogicalCpu(0, 0, 0, 0), LogicalCpu(1, 1, 0, 0), LogicalCpu(3, 3, 0, 0),
    )  # fmt: skip


def test_an_unknown_id_counts_as_a_missing_one(tmp_path: Path) -> None:
    topology = describe(tmp_path, TWO_NODES_A_SOCKET[:4])
    system = tmp_path / "devices/system"
    (system / "cpu/cpu1/topology/physical_package_id").write_text("-1\n")
    (system / "cpu/cpu2/topology/core_id").write_text("garbage\n")
    (system / "node/node0/cpulist").write_text("0-x\n")
    assert topology.cpus() == (
        LogicalCpu(0, 0, 0, 0), LogicalCpu(1, 0, 0, 0), LogicalCpu(2, 2, 0, 0),
        LogicalCpu(3, 1, 0, 0),
    )  # fmt: skip


@pytest.mark.parametrize("online", [None, "0-99999999", "3-1", "x"])
def test_a_list_of_online_cpus_that_cannot_be_read_is_an_error(
    tmp_path: Path, online: str | None
) -> None:
    if online is not None:
        set_online(tmp_path, online)
    with pytest.raises(KernelFileError, match="online"):
        CpuTopology(str(tmp_path)).cpus()


def test_the_cpus_of_this_machine_are_those_that_are_online() -> None:
    cpus = CpuTopology().cpus()
    assert len(cpus) == os.cpu_count()
    assert [cpu.cpu for cpu in cpus] == sorted({cpu.cpu for cpu in cpus})
