"""What the kernel offers, on this machine and on described trees."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from actuators.node.kernel_capabilities import (
    NRI_SOCKET,
    Capability,
    capabilities,
    container_runtime,
)
from pipeline.cli.main import cli
from pipeline.errors import KernelFileError
from tests.cgroup_tree import CGROUP_ROOT, cgroup_tree


def by_name(root: Path, proc: Path, sys: Path, parent: str = "") -> dict[str, Capability]:
    return {c.name: c for c in capabilities(root, proc, sys, parent)}


@pytest.mark.cgroups
def test_this_kernel_has_what_its_cgroups_show() -> None:
    with cgroup_tree("capabilities") as tree:
        tree.make("kubepods/besteffort")
        found = by_name(CGROUP_ROOT, Path("/proc"), Path("/sys"), tree.name)
        for name, file in (("cpu.quota", "cpu.cfs_quota_us"), ("cpu.burst", "cpu.cfs_burst_us")):
            exists = (tree.directory("cpu", "kubepods/besteffort") / file).exists()
            assert found[name].is_there is exists
        assert found["cpu.bvt_warp_ns"].is_there is False
        result = CliRunner().invoke(cli, ["doctor", "--node", "--cgroup-parent", tree.name])
    assert result.exit_code == 0
    assert "yes  cpu.quota" in result.stdout
    # The last column starts below that of the first line, whatever the names are.
    start = result.stdout.index("batch_resources")
    lines = [line for line in result.stdout.splitlines() if len(line.rstrip()) > start]
    assert all(line[start - 1] == " " != line[start] for line in lines)
    assert max(map(len, result.stdout.splitlines())) <= 120


def test_a_v2_tree_of_files(tmp_path: Path) -> None:
    pods = tmp_path / "cgroup/kubepods/besteffort"
    pods.mkdir(parents=True)
    (tmp_path / "cgroup/cgroup.controllers").write_text("cpu memory io\n")
    (pods / "cpu.max").write_text("max 100000\n")
    (pods / "memory.high").write_text("max\n")
    (tmp_path / "proc/pressure").mkdir(parents=True)
    (tmp_path / "proc/pressure/cpu").write_text("some avg10=0.00\n")
    for path, text in (
        ("sys/kernel/debug/sched/features", "START_DEBIT NO_HRTICK\n"),
        ("proc/sys/vm/min_free_kbytes", "67584\n"),
        ("cgroup/io.cost.qos", ""),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "sys/fs/resctrl").mkdir(parents=True)
    (tmp_path / "sys/fs/resctrl/schemata").write_text("L3:0=ff\n")
    found = by_name(tmp_path / "cgroup", tmp_path / "proc", tmp_path / "sys")
    there = {name for name, capability in found.items() if capability.is_there}
    there -= {f"write access to {controller}" for controller in ("cpu", "memory", "io")}
    qos = {name for name in found if name.startswith("io.cost.qos ")}
    settings = {"sys.kernel.debug.sched.features", "proc.sys.vm.min_free_kbytes"}
    assert len(qos) == 5
    assert there == {"cpu.quota", "memory.high", "pressure", "resctrl", *qos, *settings}
    assert found["cpuset.cpus"].found == "its controller is not mounted"
    assert found["proc.sys.vm.min_free_kbytes"].used_by == "node_sysctl"


_CENTOS_7 = {
    "cpu": {"cpu.shares": "1024", "cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
    "cpuset": {"cpuset.cpus": "0-1"},
    "memory": {"memory.limit_in_bytes": "9223372036854771712"},
    "blkio": {
        f"blkio.throttle.{way}_{unit}_device": ""
        for way in ("read", "write")
        for unit in ("bps", "iops")
    },
}
_ANOLIS_8 = {
    "cpu": {"cpu.cfs_burst_us": "0", "cpu.idle": "0", "cpu.bvt_warp_ns": "0"},
    "memory": {
        "memory.min": "0", "memory.low": "0", "memory.high": "9223372036854771712",
        "memory.oom.group": "0", "memory.priority": "0", "memory.use_priority_oom": "0",
        "memory.wmark_ratio": "0", "memory.wmark_scale_factor": "50", "memory.wmark_min_adj": "0",
        "memory.pagecache_limit.enable": "0", "memory.pagecache_limit.size": "0",
        "memory.pagecache_limit.sync": "0",
    },
}  # fmt: skip
_BASIC = {
    "cpu.shares", "cpu.quota", "cpuset.cpus", "memory.limit",
    "io.read_bps", "io.write_bps", "io.read_iops", "io.write_iops",
}  # fmt: skip
_OF_ANOLIS = {
    "cpu.burst", "cpu.idle", "cpu.bvt_warp_ns", "pressure",
    *(name for name in _ANOLIS_8["memory"]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kernels", "there"),
    [([_CENTOS_7], _BASIC), ([_CENTOS_7, _ANOLIS_8], _BASIC | _OF_ANOLIS)],
    ids=["CentOS 7.9", "Anolis OS 8"],
)
def test_described_kernels_with_cgroup_v1(
    tmp_path: Path, kernels: list[dict[str, dict[str, str]]], there: set[str]
) -> None:
    for kernel in kernels:
        for controller, files in kernel.items():
            for folder in (controller, f"{controller}/kubepods/besteffort"):
                directory = tmp_path / "cgroup" / folder
                directory.mkdir(parents=True, exist_ok=True)
                (directory / "cgroup.procs").write_text("")
                for name, text in files.items():
                    (directory / name).write_text(f"{text}\n")
    (tmp_path / "proc/pressure").mkdir(parents=True)
    if _ANOLIS_8 in kernels:
        (tmp_path / "proc/pressure/cpu").write_text("some avg10=0.00\n")
    found = by_name(tmp_path / "cgroup", tmp_path / "proc", tmp_path / "sys")
    names = {name for name, capability in found.items() if capability.is_there}
    assert {name for name in names if not name.startswith("write access")} == there


def test_without_a_cgroup_some_answers_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    assert by_name(tmp_path, tmp_path, tmp_path)["cpu.quota"].is_there is None


def test_without_a_hierarchy_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(KernelFileError):
        capabilities(tmp_path, tmp_path, tmp_path)


def test_the_socket_of_the_container_runtime(tmp_path: Path) -> None:
    path = tmp_path / "nri.sock"
    name = f"NRI at {path}"
    absent = Capability(name, False, "no socket: is NRI on?", "nri_socket")
    assert container_runtime(path) == absent
    path.write_text("no socket")
    assert container_runtime(path) == absent
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listens = Capability(name, True, "the runtime listens", "nri_socket")
        assert container_runtime(path) == listens
    assert container_runtime(None).name == f"NRI at {NRI_SOCKET}"
    assert "null" in container_runtime(None).used_by
