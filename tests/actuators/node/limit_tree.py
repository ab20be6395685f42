"""A pod with two containers in cgroup v1 of this machine, and values for its knobs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hypothesis import strategies as st

from actuators.node.cgroup_files import CgroupFiles
from pipeline.errors import CgroupWriteError
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place, Value
from tests.cgroup_tree import CGROUP_ROOT, CgroupTree, cgroup_tree

CONTROLLERS = ("cpu", "cpuset", "memory", "blkio")
PATHS = ("pod", "pod/a", "pod/b")
DEVICE = "{}:{}".format(*divmod(Path("/").stat().st_dev, 256))
FILES = {
    "cpu": ("cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpu.cfs_period_us", "cpu.shares", "cpu.idle"),
    "cpuset": ("cpuset.cpus",),
    "memory": ("memory.limit_in_bytes",),
    "blkio": ("blkio.throttle.read_bps_device", "blkio.throttle.write_iops_device"),
}

VALUES: dict[Knob, st.SearchStrategy[Value]] = {
    Knob.CPU_IDLE: st.integers(0, 1),
    Knob.CPU_SHARES: st.sampled_from([2, 100, 2048]),
    Knob.CPU_QUOTA: st.sampled_from([5000, 20_000, 50_000, 90_001, UNLIMITED]),
    Knob.CPU_BURST: st.sampled_from([0, 10_000, 60_000]),
    Knob.CPUSET: st.frozensets(st.sampled_from(sorted(os.sched_getaffinity(0))), min_size=1),
    Knob.MEMORY_LIMIT: st.sampled_from([1 << 24, (1 << 25) + 1, UNLIMITED]),
    Knob.IO_READ_BPS: st.sampled_from([4096, UNLIMITED]),
}
PERIODS = st.sampled_from([100_000, 20_000])


@contextmanager
def v1_tree() -> Iterator[CgroupTree]:
    """The pod, with all CPUs."""
    with cgroup_tree("limits", CONTROLLERS) as tree:
        for relative in ("", *PATHS):
            tree.make(relative)
            for file in ("cpuset.cpus", "cpuset.mems"):
                tree.write("cpuset", relative, file, (CGROUP_ROOT / "cpuset" / file).read_text())
        yield tree


def place(tree: CgroupTree, path: str, knob: Knob) -> Place:
    return Place(f"{tree.name}/{path}", knob, DEVICE if knob is Knob.IO_READ_BPS else "")


def reset(tree: CgroupTree, periods: tuple[int, int]) -> None:
    """Take every limit away, and set the periods of the pod and of container a."""
    for path in reversed(PATHS):
        tree.write("cpu", path, "cpu.cfs_burst_us", 0)
        tree.write("cpu", path, "cpu.cfs_quota_us", -1)
        tree.write("cpu", path, "cpu.idle", 0)
        tree.write("cpu", path, "cpu.shares", 1024)
        tree.write("memory", path, "memory.limit_in_bytes", -1)
        tree.write("blkio", path, "blkio.throttle.read_bps_device", f"{DEVICE} 0")
    for path in PATHS:
        cpus = (CGROUP_ROOT / "cpuset/cpuset.cpus").read_text()
        tree.write("cpuset", path, "cpuset.cpus", cpus)
    for path, period_us in zip(("pod", "pod/a"), periods, strict=True):
        tree.write("cpu", path, "cpu.cfs_period_us", period_us)


def contents(tree: CgroupTree) -> dict[str, bytes]:
    """The bytes of all files that have limits."""
    return {
        f"{path} {file}": tree.directory(controller, f"{path}/{file}").read_bytes()
        for path in PATHS
        for controller, files in FILES.items()
        for file in files
        if tree.directory(controller, path).is_dir()
    }


def disturb(tree: CgroupTree, path: str, file: str, text: object) -> None:
    """Write as another process would, unless the kernel refuses it."""
    with suppress(OSError):
        tree.write(file.partition(".")[0], path, file, text)


def write_value(files: CgroupFiles, place: Place, value: Value) -> None:
    """Write a value as the writer does. Raises `CgroupWriteError`."""
    if (now := files.reading(place)) is None:
        raise CgroupWriteError("not here", reason="unsupported", path=str(place))
    files.write_text(place, files.text_of(place, value, now))
