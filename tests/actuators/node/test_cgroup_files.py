"""Reading and writing knobs: on cgroup v1 of this kernel, on v2 as a tree of plain files."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actuators.node.cgroup_files import CgroupFiles, Hierarchy, Reading, detect_hierarchies
from actuators.node.knob_files import KNOB_FILES, PAGE_BYTES, shares_of_weight, weight_of_shares
from pipeline.errors import CgroupGoneError, CgroupWriteError, KernelFileError
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place, Value
from pipeline.processors.node_qos.write_order import order_writes
from tests.actuators.node.limit_tree import (
    DEVICE,
    PATHS,
    PERIODS,
    VALUES,
    place,
    reset,
    v1_tree,
    write_value,
)
from tests.cgroup_tree import CGROUP_ROOT, CgroupTree


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    with v1_tree() as tree:
        yield tree


@pytest.fixture
def files() -> Iterator[CgroupFiles]:
    files = CgroupFiles(detect_hierarchies(str(CGROUP_ROOT)))
    yield files
    files.close()


@pytest.mark.cgroups
@pytest.mark.parametrize(
    ("knob", "value", "controller", "file", "text"),
    [
        (Knob.CPU_SHARES, 512, "cpu", "cpu.shares", "512"),
        (Knob.CPU_QUOTA, 50_000, "cpu", "cpu.cfs_quota_us", "50000"),
        (Knob.CPU_IDLE, 1, "cpu", "cpu.idle", "1"),
        (Knob.CPUSET, frozenset({1}), "cpuset", "cpuset.cpus", "1"),
        (Knob.MEMORY_LIMIT, 100 * PAGE_BYTES, "memory", "memory.limit_in_bytes", "409600"),
        (Knob.IO_READ_BPS, 4096, "blkio", "blkio.throttle.read_bps_device", f"{DEVICE} 4096"),
        (Knob.IO_WRITE_IOPS, 9, "blkio", "blkio.throttle.write_iops_device", f"{DEVICE} 9"),
        (Knob.IO_WEIGHT, 50, "blkio", "blkio.bfq.weight", "50"),
    ],
)
def test_a_value_reaches_the_kernel_and_its_former_text_restores_it(
    tree: CgroupTree, files: CgroupFiles, knob: Knob, value: Value, controller: str, file: str,
    text: str,
) -> None:  # fmt: skip
    is_throttle = knob.value.startswith("io.") and knob is not Knob.IO_WEIGHT
    place = Place(f"{tree.name}/pod/a", knob, DEVICE if is_throttle else "")
    path = tree.directory(controller, f"pod/a/{file}")
    before, former = path.read_bytes(), files.reading(place)
    assert former is not None
    write_value(files, place, value)
    assert path.read_text().strip() == text
    assert files.read(place) == value
    files.write_text(place, former.text)
    if knob is Knob.CPU_IDLE:
        tree.write("cpu", "pod/a", "cpu.shares", 1024)
    assert (path.read_bytes(), files.reading(place)) == (before, former)


@pytest.mark.cgroups
def test_a_burst_is_written_below_its_quota(tree: CgroupTree, files: CgroupFiles) -> None:
    pod = f"{tree.name}/pod"
    write_value(files, Place(pod, Knob.CPU_QUOTA), 50_000)
    write_value(files, Place(pod, Knob.CPU_BURST), 50_000)
    assert files.reading(Place(pod, Knob.CPU_BURST)) == Reading(50_000, "50000 100000")
    with pytest.raises(CgroupWriteError) as refused:
        write_value(files, Place(pod, Knob.CPU_QUOTA), 40_000)
    assert refused.value.reason == "refused"


@pytest.mark.cgroups
def test_quotas_are_scaled_to_the_period_of_the_cgroup(
    tree: CgroupTree, files: CgroupFiles
) -> None:
    tree.write("cpu", "pod", "cpu.cfs_period_us", 20_000)
    tree.write("cpu", "pod", "cpu.cfs_quota_us", 30_000)
    place = Place(f"{tree.name}/pod", Knob.CPU_QUOTA)
    assert files.reading(place) == Reading(150_000, "30000 20000")
    write_value(files, place, 100_000)
    assert tree.directory("cpu", "pod/cpu.cfs_quota_us").read_text() == "20000\n"
    assert tree.directory("cpu", "pod/cpu.cfs_period_us").read_text() == "20000\n"


@pytest.mark.cgroups
@pytest.mark.parametrize(
    ("knob", "value"),
    [
        # More than a cgroup without a process may hold.
        (Knob.MEMORY_LIMIT, 10_000 * PAGE_BYTES + 1),
        (Knob.CPU_SHARES, 700),
        (Knob.CPU_QUOTA, UNLIMITED),
    ],
)
def test_what_the_kernel_will_show_is_known_before(
    tree: CgroupTree, files: CgroupFiles, knob: Knob, value: Value
) -> None:
    place = Place(f"{tree.name}/pod", knob)
    now = files.reading(place)
    assert now is not None
    held = files.held(place, value, now)
    write_value(files, place, value)
    assert files.read(place) == held


@pytest.mark.cgroups
@pytest.mark.parametrize(
    ("knob", "value"),
    [
        (Knob.CPU_SHARES, 1), (Knob.CPU_SHARES, 262_145), (Knob.CPU_QUOTA, 0),
        (Knob.MEMORY_LIMIT, 0), (Knob.CPU_IDLE, 2), (Knob.CPUSET, frozenset({4095})),
        (Knob.IO_READ_BPS, 0), (Knob.CPUSET, 3),
    ],
)  # fmt: skip
def test_a_value_that_would_be_rounded_to_another_meaning_is_refused(
    tree: CgroupTree, files: CgroupFiles, knob: Knob, value: Value
) -> None:
    place = Place(f"{tree.name}/pod", knob, DEVICE if knob is Knob.IO_READ_BPS else "")
    before = files.reading(place)
    with pytest.raises(CgroupWriteError) as refused:
        write_value(files, place, value)
    assert refused.value.reason == "refused"
    assert files.reading(place) == before


@pytest.mark.cgroups
def test_a_removed_cgroup_is_gone_for_reads_and_writes(
    tree: CgroupTree, files: CgroupFiles
) -> None:
    place = Place(f"{tree.name}/pod/a", Knob.CPU_QUOTA)
    assert files.read(place) == UNLIMITED
    tree.remove("pod/a")
    with pytest.raises(CgroupGoneError):
        files.read(place)
    with pytest.raises(CgroupGoneError):
        files.write_text(place, "50000 100000")
    with pytest.raises(CgroupGoneError):
        files.children(place)


@pytest.mark.cgroups
def test_knobs_of_other_kernels_are_none_and_cannot_be_written(
    tree: CgroupTree, files: CgroupFiles
) -> None:
    for knob in (Knob.CPU_IDENTITY, Knob.MEMORY_MIN, Knob.MEMORY_PRIORITY, Knob.PAGE_CACHE_SIZE):
        place = Place(f"{tree.name}/pod", knob)
        assert files.read(place) is None
        with pytest.raises(CgroupWriteError) as unsupported:
            write_value(files, place, 1)
        assert unsupported.value.reason == "unsupported"


@pytest.mark.cgroups
def test_a_read_only_mount_is_told_from_a_refused_value(tree: CgroupTree, tmp_path: Path) -> None:
    subprocess.run(["mount", "--bind", tree.directory("cpu"), tmp_path], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", tmp_path], check=True)
        files = CgroupFiles({"cpu": Hierarchy(1, str(tmp_path))})
        assert files.read(Place("pod", Knob.CPU_QUOTA)) == UNLIMITED
        with pytest.raises(CgroupWriteError, match="writable") as refused:
            write_value(files, Place("pod", Knob.CPU_QUOTA), 50_000)
        assert refused.value.reason == "read_only"
        files.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    control = CgroupFiles({"cpu": Hierarchy(1, str(tree.directory("cpu")))})
    write_value(control, Place("pod", Knob.CPU_QUOTA), 50_000)
    control.close()


@pytest.mark.cgroups
def test_files_that_are_not_read_any_more_are_closed(tree: CgroupTree, files: CgroupFiles) -> None:
    def open_files() -> int:
        targets = [entry.resolve() for entry in Path("/proc/self/fd").iterdir()]
        return sum(target.is_relative_to(CGROUP_ROOT) for target in targets)

    before = open_files()
    for relative in ("pod", "pod/a", "pod/b"):
        files.read(Place(f"{tree.name}/{relative}", Knob.CPU_SHARES))
    assert open_files() == before + 3
    files.close_unused()
    files.read(Place(f"{tree.name}/pod", Knob.CPU_SHARES))
    files.close_unused()
    assert open_files() == before + 1


@st.composite
def wishes(draw: st.DrawFn) -> dict[tuple[str, Knob], Value]:
    keys = st.tuples(st.sampled_from(PATHS), st.sampled_from([*VALUES]))
    return {key: draw(VALUES[key[1]]) for key in draw(st.lists(keys, unique=True, max_size=10))}


@pytest.mark.cgroups
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(wishes(), max_size=4), st.tuples(PERIODS, PERIODS))
def test_the_kernel_accepts_each_write_of_an_order(
    tree: CgroupTree, files: CgroupFiles, rounds: list[dict[tuple[str, Knob], Value]],
    periods: tuple[int, int],
) -> None:  # fmt: skip
    """As on the model of `tests/processors/node_qos/test_write_order.py`."""
    reset(tree, periods)
    places = [place(tree, path, knob) for path in PATHS for knob in VALUES]
    for wanted in rounds:
        now = {other: reading for other in places if (reading := files.reading(other))}
        held = {}
        for (path, knob), value in wanted.items():
            wish = place(tree, path, knob)
            held[wish] = files.held(wish, value, now[wish])
        order = order_writes({wish: reading.value for wish, reading in now.items()}, held)
        for write in (*order.widening, *order.narrowing):
            write_value(files, write.place, write.value)


def fake_v2(root: Path, **contents: str) -> CgroupFiles:
    """A v2 hierarchy of plain files with one pod, whose files have these contents."""
    (root / "cgroup.controllers").write_text("cpuset cpu io memory\n")
    (root / "pod").mkdir()
    for name, content in contents.items():
        (root / "pod" / name.replace("__", ".")).write_text(f"{content}\n")
    return CgroupFiles(detect_hierarchies(str(root)))


V2 = {
    "cpu__weight": "39", "cpu__max": "max 100000", "cpu__max__burst": "0", "cpu__idle": "0",
    "cpuset__cpus": "", "memory__max": "max", "memory__low": "0",
    "io__max": "8:0 rbps=max wbps=2048 riops=max wiops=max", "io__weight": "default 100\n8:0 200",
}  # fmt: skip


@pytest.mark.parametrize(
    ("knob", "device", "read", "value", "written"),
    [
        (Knob.CPU_SHARES, "", 998, 1024, "39"),
        (Knob.CPU_SHARES, "", 998, 262_144, "10000"),
        (Knob.CPU_QUOTA, "", UNLIMITED, 50_000, "50000 100000"),
        (Knob.CPU_QUOTA, "", UNLIMITED, UNLIMITED, "max 100000"),
        (Knob.CPU_BURST, "", 0, 10_000, "10000"),
        (Knob.CPUSET, "", frozenset(), frozenset({0, 1, 3}), "0-1,3"),
        (Knob.MEMORY_LIMIT, "", UNLIMITED, 409_601, "409600"),
        (Knob.MEMORY_LOW, "", 0, UNLIMITED, "max"),
        (Knob.IO_READ_BPS, "8:0", UNLIMITED, 4096, "8:0 rbps=4096"),
        (Knob.IO_WRITE_BPS, "8:0", 2048, UNLIMITED, "8:0 wbps=max"),
        (Knob.IO_READ_IOPS, "8:16", UNLIMITED, 10, "8:16 riops=10"),
        (Knob.IO_WEIGHT, "8:0", 200, 50, "8:0 50"),
        (Knob.IO_WEIGHT, "8:16", 100, 50, "8:16 50"),
        (Knob.IO_WEIGHT, "", 100, 50, "default 50"),
    ],
)
def test_on_fake_v2_values_are_read_and_written_in_its_terms(
    tmp_path: Path, knob: Knob, device: str, read: Value, value: Value, written: str
) -> None:
    files, place = fake_v2(tmp_path, **V2), Place("pod", knob, device)
    assert files.read(place) == read
    write_value(files, place, value)
    (file, *_) = KNOB_FILES[2][knob]
    assert (tmp_path / "pod" / file.name).read_text() == f"{written}\n"


@pytest.mark.parametrize(
    ("knob", "device", "line"),
    [
        (Knob.CPU_SHARES, "", "39"), (Knob.CPU_QUOTA, "", "max 100000"),
        (Knob.CPU_BURST, "", "0"), (Knob.CPUSET, "", ""), (Knob.MEMORY_LIMIT, "", "max"),
        (Knob.IO_WRITE_BPS, "8:0", "8:0 wbps=2048"), (Knob.IO_READ_BPS, "8:16", "8:16 rbps=max"),
        (Knob.IO_WEIGHT, "8:0", "8:0 200"), (Knob.IO_WEIGHT, "8:16", "8:16 default"),
    ],
)  # fmt: skip
def test_on_fake_v2_the_former_text_restores_what_a_value_cannot(
    tmp_path: Path, knob: Knob, device: str, line: str
) -> None:
    files, place = fake_v2(tmp_path, **V2), Place("pod", knob, device)
    former = files.reading(place)
    assert former is not None
    files.write_text(place, former.text)
    (file, *_) = KNOB_FILES[2][knob]
    assert (tmp_path / "pod" / file.name).read_text() == f"{line}\n"


def test_on_fake_v2_the_weight_of_an_idle_cgroup_is_readable(tmp_path: Path) -> None:
    files = fake_v2(tmp_path, cpu__weight="0", cpu__idle="1")
    assert files.reading(Place("pod", Knob.CPU_SHARES)) == Reading(2, "0")


@pytest.mark.parametrize(
    ("file", "content", "knob"),
    [
        ("cpu__max", "100000", Knob.CPU_QUOTA), ("cpu__max", "max 0", Knob.CPU_QUOTA),
        ("cpu__max", "", Knob.CPU_QUOTA), ("cpu__weight", "10001", Knob.CPU_SHARES),
        ("memory__max", "much", Knob.MEMORY_LIMIT), ("cpuset__cpus", "3-1", Knob.CPUSET),
        ("memory__max", "1" * 21, Knob.MEMORY_LIMIT), ("cpu__idle", "\u0664", Knob.CPU_IDLE),
    ],
)  # fmt: skip
def test_files_in_another_format_are_errors(
    tmp_path: Path, file: str, content: str, knob: Knob
) -> None:
    files = fake_v2(tmp_path, **{file: content})
    with pytest.raises(KernelFileError):
        files.read(Place("pod", knob))


def test_controllers_mounted_together_and_those_of_a_hybrid_machine_are_detected(
    tmp_path: Path,
) -> None:
    for name in ("cpu,cpuacct", "cpuset", "unified"):
        (tmp_path / name).mkdir()
    (tmp_path / "unified/cgroup.controllers").write_text("io memory hugetlb\n")
    assert detect_hierarchies(str(tmp_path)) == {
        "cpu": Hierarchy(1, f"{tmp_path}/cpu,cpuacct"),
        "cpuset": Hierarchy(1, f"{tmp_path}/cpuset"),
        "memory": Hierarchy(2, f"{tmp_path}/unified"),
        "io": Hierarchy(2, f"{tmp_path}/unified"),
    }
    files = CgroupFiles(detect_hierarchies(str(tmp_path)))
    assert (files.version(Knob.CPU_QUOTA), files.version(Knob.IO_WEIGHT)) == (1, 2)


def test_a_directory_without_controllers_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KernelFileError, match="mount the host's"):
        detect_hierarchies(str(tmp_path))


@given(st.integers(2, 262_144))
def test_shares_survive_v2_within_one_step_of_the_weight(shares: int) -> None:
    weight = weight_of_shares(shares)
    again = shares_of_weight(weight)
    assert 1 <= weight <= 10_000
    assert again <= shares + 1
    assert shares - again <= 262_142 // 9_999 + 1
