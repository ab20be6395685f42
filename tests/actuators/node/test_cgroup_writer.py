"""The writer on cgroup v1 of this kernel, and on v2 as a tree of plain files."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actuators.node import cgroup_files, node_metrics
from actuators.node.cgroup_files import CgroupFiles, Hierarchy, Reading, detect_hierarchies
from actuators.node.cgroup_writer import COMPARED_EVERY_ROUNDS, CgroupWriter
from actuators.node.original_values import OriginalValues
from pipeline.errors import CgroupWriteError
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place, Value
from pipeline.processors.node_qos.changes import Change, ChangeSummary
from pipeline.processors.node_qos.claims import Decision
from pipeline.topics.codec import encode_json
from tests.actuators.node.limit_tree import (
    PATHS,
    PERIODS,
    VALUES,
    contents,
    disturb,
    place,
    reset,
    v1_tree,
)
from tests.cgroup_tree import CGROUP_ROOT, CgroupTree
from tests.metric_values import sum_of, value_of
from tests.processes import ROOT, environment

Wishes = Mapping[tuple[str, Knob], Value]


class Node:
    """A writer for a tree; `restart` makes another one from what the former saved."""

    def __init__(self, tree: CgroupTree, state: Path, files: CgroupFiles | None = None) -> None:
        self.tree, self.state = tree, state
        self.files = files or CgroupFiles(detect_hierarchies(str(CGROUP_ROOT)))
        self._open()

    def _open(self) -> None:
        self.originals = OriginalValues(self.state, "this boot", self.files.value_of)
        self.writer = CgroupWriter(self.files, self.originals)

    def restart(self) -> None:
        self.originals.close()
        self.files.close()
        self._open()

    def apply(self, wishes: Wishes) -> list[Change]:
        return self.writer.apply(
            {
                place(self.tree, path, knob): Decision(value, ("test",), "a test")
                for (path, knob), value in wishes.items()
            }
        )

    def compare(self, wishes: Wishes) -> list[Change]:
        """So many rounds that all files are compared."""
        return [change for _ in range(COMPARED_EVERY_ROUNDS) for change in self.apply(wishes)]

    def read(self, path: str, knob: Knob) -> Value | None:
        return self.files.read(place(self.tree, path, knob))

    def close(self) -> None:
        self.originals.close()
        self.files.close()


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    with v1_tree() as tree:
        yield tree


@pytest.fixture
def node(tree: CgroupTree, tmp_path: Path) -> Iterator[Node]:
    node = Node(tree, tmp_path / "state.json")
    yield node
    node.close()


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that the writer wrote, in order."""
    paths: list[str] = []
    write_file = cgroup_files.write_file

    def recorded(path: str, text: str) -> None:
        paths.append(path)
        write_file(path, text)

    monkeypatch.setattr(cgroup_files, "write_file", recorded)
    return paths


@st.composite
def wishes(draw: st.DrawFn) -> dict[tuple[str, Knob], Value]:
    keys = st.tuples(st.sampled_from(PATHS), st.sampled_from([*VALUES]))
    return {key: draw(VALUES[key[1]]) for key in draw(st.lists(keys, unique=True, max_size=12))}


FOREIGN = st.tuples(
    st.sampled_from(PATHS),
    st.sampled_from(
        [
            ("cpu.cfs_quota_us", 70_000), ("cpu.cfs_quota_us", 12_345), ("cpu.shares", 77),
            ("cpu.cfs_burst_us", 3000), ("cpu.idle", 1), ("memory.limit_in_bytes", 1 << 26),
            ("cpuset.cpus", 1), ("cpuset.cpus", "\n"),
        ]
    ),
)  # fmt: skip


@pytest.mark.cgroups
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(FOREIGN, max_size=8),
    st.tuples(PERIODS, PERIODS),
    st.lists(st.tuples(wishes(), st.booleans()), max_size=5),
)
def test_undo_leaves_every_byte_as_it_was_after_any_rounds_and_restarts(
    node: Node, writes: list[str], foreign: list[tuple[str, tuple[str, object]]],
    periods: tuple[int, int], rounds: list[tuple[dict[tuple[str, Knob], Value], bool]],
) -> None:  # fmt: skip
    node.writer.undo()
    reset(node.tree, periods)
    for path, (file, text) in foreign:
        disturb(node.tree, path, file, text)
    before = contents(node.tree)
    for wanted, restarts in rounds:
        changes = node.apply(wanted)
        # A cgroup of v1 without CPUs of its own cannot give any to its children.
        failed = [change for change in changes if change.outcome == "failed"]
        assert all(change.place.knob is Knob.CPUSET for change in failed)
        del writes[:]
        assert failed or (node.apply(wanted), writes) == ([], [])
        if restarts:
            node.restart()
            assert failed or (node.apply(wanted), writes) == ([], [])
    node.writer.undo()
    assert contents(node.tree) == before
    assert not node.state.exists()


@pytest.mark.cgroups
def test_no_child_is_ever_wider_than_before_or_after(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs = (Knob.CPU_QUOTA, Knob.CPU_BURST, Knob.CPUSET)
    seen: list[dict[tuple[str, Knob], Value | None]] = []

    def all_values() -> dict[tuple[str, Knob], Value | None]:
        return {(path, knob): node.read(path, knob) for path in PATHS for knob in knobs}

    write_file = cgroup_files.write_file

    def watched(path: str, text: str) -> None:
        write_file(path, text)
        seen.append(all_values())

    wide = {("pod", Knob.CPU_QUOTA): 150_000, ("pod/a", Knob.CPU_QUOTA): 120_000}
    narrow = {("pod", Knob.CPU_QUOTA): 60_000, ("pod/a", Knob.CPU_QUOTA): 50_000}
    node.apply(wide)
    monkeypatch.setattr(cgroup_files, "write_file", watched)
    for target in (narrow, wide, narrow):
        before = all_values()
        del seen[:]
        node.apply(target | {("pod/a", Knob.CPU_BURST): target["pod/a", Knob.CPU_QUOTA] // 2})
        after = all_values()
        assert len(seen) == 3
        for values in seen:
            assert all(value in (before[key], after[key]) for key, value in values.items())
            pod, child = values["pod", Knob.CPU_QUOTA], values["pod/a", Knob.CPU_QUOTA]
            assert isinstance(pod, int)
            assert isinstance(child, int)
            assert child <= pod


@pytest.mark.cgroups
def test_changes_say_what_was_what_is_and_why(node: Node) -> None:
    wish = {("pod", Knob.CPU_QUOTA): 50_000}
    pod = place(node.tree, "pod", Knob.CPU_QUOTA)
    assert node.apply(wish) == [Change(pod, UNLIMITED, 50_000, ("test",), "a test", "done")]
    assert node.apply(wish) == []
    why = "no feature claims it any longer"
    child = place(node.tree, "pod/a", Knob.CPU_QUOTA)
    node.apply(wish | {("pod/a", Knob.CPU_QUOTA): 20_000})
    assert node.apply(wish) == [Change(child, 20_000, UNLIMITED, (), why, "done")]
    assert node.apply({}) == [Change(pod, 50_000, UNLIMITED, (), why, "done")]


@pytest.mark.cgroups
def test_a_container_that_nobody_claims_makes_room_and_gets_its_quota_back(node: Node) -> None:
    node.tree.write("cpu", "pod/a", "cpu.cfs_quota_us", 80_000)
    node.tree.write("cpu", "pod/a", "cpu.cfs_burst_us", 70_000)
    before = contents(node.tree)
    changes = node.apply({("pod", Knob.CPU_QUOTA): 50_000})
    assert {str(change.place).split("/")[-1] for change in changes} == {
        "pod cpu.quota", "a cpu.quota", "a cpu.burst",
    }  # fmt: skip
    assert {change.features for change in changes} == {("test",)}
    assert all("pod cpu.quota: a test" in c.why for c in changes if c.place.path.endswith("a"))
    node.restart()
    assert node.writer.claimed() == {"test": {place(node.tree, "pod", Knob.CPU_QUOTA): 50_000}}
    node.apply({("pod", Knob.CPU_QUOTA): 75_000})
    assert node.read("pod/a", Knob.CPU_QUOTA) == 75_000
    assert node.read("pod/a", Knob.CPU_BURST) == 70_000
    node.writer.undo()
    assert contents(node.tree) == before


@pytest.mark.cgroups
def test_what_features_claimed_is_known_after_a_restart(node: Node) -> None:
    cpus = frozenset({0})
    node.apply({("pod", Knob.CPUSET): cpus, ("pod", Knob.CPU_QUOTA): 50_000})
    node.apply({("pod", Knob.CPUSET): cpus, ("pod", Knob.CPU_QUOTA): 40_000})
    node.restart()
    assert node.writer.claimed() == {
        "test": {
            place(node.tree, "pod", Knob.CPUSET): cpus,
            place(node.tree, "pod", Knob.CPU_QUOTA): 40_000,
        }
    }


@pytest.mark.cgroups
def test_shares_come_back_when_idle_ends(node: Node, writes: list[str]) -> None:
    node.tree.write("cpu", "pod", "cpu.shares", 333)
    before = contents(node.tree)
    idle = {("pod", Knob.CPU_IDLE): 1}
    node.apply(idle)
    assert node.read("pod", Knob.CPU_SHARES) == 3
    node.restart()
    del writes[:]
    node.apply(idle | {("pod", Knob.CPU_SHARES): 512})
    assert writes == []
    node.apply({("pod", Knob.CPU_SHARES): 512})
    assert node.read("pod", Knob.CPU_SHARES) == 512
    node.apply({})
    assert contents(node.tree) == before


@pytest.mark.cgroups
def test_a_value_that_another_process_changes_is_written_again_but_not_forever(
    node: Node, writes: list[str]
) -> None:
    wish = {("pod", Knob.CPU_SHARES): 512}
    counted = sum_of(node_metrics.FOREIGN_CHANGES, knob="cpu.shares")
    node.apply(wish)
    for _ in range(300):
        node.tree.write("cpu", "pod", "cpu.shares", 1000)
        node.apply(wish)
    assert 8 <= len(writes) <= 16
    counted = sum_of(node_metrics.FOREIGN_CHANGES, knob="cpu.shares") - counted
    assert len(writes) - 1 <= counted <= len(writes)
    for _ in range(61):
        node.apply(wish)
    assert node.read("pod", Knob.CPU_SHARES) == 512
    node.tree.write("cpu", "pod", "cpu.shares", 1000)
    node.compare(wish)
    assert node.read("pod", Knob.CPU_SHARES) == 512


@pytest.mark.cgroups
@pytest.mark.parametrize("settled_rounds", range(1, COMPARED_EVERY_ROUNDS + 1))
def test_a_change_of_another_process_is_found_within_five_rounds(
    node: Node, settled_rounds: int
) -> None:
    wish = {("pod", Knob.CPU_QUOTA): 50_000, ("pod/a", Knob.CPU_QUOTA): 20_000}
    for _ in range(settled_rounds):
        node.apply(wish)
    node.tree.write("cpu", "pod/a", "cpu.cfs_quota_us", 40_000)
    assert [(c.before, c.after) for c in node.compare(wish)] == [(40_000, 20_000)]
    node.apply(wish)
    # At once where a decision that changes meets it: the kernel refuses less than a child has.
    node.tree.write("cpu", "pod/a", "cpu.cfs_quota_us", 40_000)
    changes = node.apply(wish | {("pod", Knob.CPU_QUOTA): 30_000})
    assert [change.outcome for change in changes] == ["done", "done"]
    assert node.read("pod/a", Knob.CPU_QUOTA) == 20_000


@pytest.mark.cgroups
def test_a_round_reads_what_has_changed_and_what_may_limit_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[str] = set()
    reading = node.files.reading

    def recorded(place: Place) -> Reading | None:
        above, _, path = place.path.partition("/")
        if above == node.tree.name and path:
            read.add(f"{path} {place.knob.value}")
        return reading(place)

    monkeypatch.setattr(node.files, "reading", recorded)
    wish: dict[tuple[str, Knob], Value] = {
        ("pod", Knob.CPU_QUOTA): 90_000,
        ("pod/a", Knob.CPU_QUOTA): 50_000,
        ("pod/a", Knob.CPU_BURST): 10_000,
        ("pod/b", Knob.CPU_QUOTA): 40_000,
        ("pod/a", Knob.CPU_SHARES): 512,
    }
    below = {"pod/a cpu.quota", "pod/a cpu.burst"}
    # The quota above, and a burst, may limit the quota that changes.
    for changing, places in (
        ("pod/a", {"pod cpu.quota", *below}),
        ("pod", {"pod cpu.quota", "pod cpu.burst", "pod/b cpu.quota", *below}),
        ("", set[str]()),
    ):
        node.compare(wish)
        read.clear()
        node.apply(wish | ({(changing, Knob.CPU_QUOTA): 60_000} if changing else {}))
        assert read == places


@pytest.mark.cgroups
def test_a_limit_that_the_kubelet_changes_is_what_is_restored(node: Node) -> None:
    """A pod may be resized in place while its quota is held."""
    wish = {("pod/a", Knob.CPU_QUOTA): 120_000}
    node.tree.write("cpu", "pod/a", "cpu.cfs_quota_us", 100_000)
    node.apply(wish)
    node.tree.write("cpu", "pod/a", "cpu.cfs_quota_us", 200_000)
    node.apply(wish)
    assert node.read("pod/a", Knob.CPU_QUOTA) == 120_000
    node.restart()
    node.apply({})
    assert node.read("pod/a", Knob.CPU_QUOTA) == 200_000


@pytest.mark.cgroups
def test_what_the_kubelet_changes_after_a_restart_is_restored_too(node: Node) -> None:
    wish = {("pod", Knob.CPU_QUOTA): 120_000}
    node.tree.write("cpu", "pod", "cpu.cfs_quota_us", 200_000)
    node.tree.write("cpu", "pod/a", "cpu.cfs_quota_us", 150_000)
    node.apply(wish)
    node.restart()
    node.apply(wish)
    node.tree.write("cpu", "pod", "cpu.cfs_quota_us", 300_000)
    node.tree.write("cpu", "pod/a", "cpu.cfs_quota_us", 250_000)
    node.compare(wish)
    assert node.read("pod/a", Knob.CPU_QUOTA) == 120_000
    node.apply({})
    assert node.read("pod", Knob.CPU_QUOTA) == 300_000
    assert node.read("pod/a", Knob.CPU_QUOTA) == 250_000


@pytest.mark.cgroups
@pytest.mark.parametrize("rounds", [1, 3])
def test_what_the_kubelet_changes_while_no_actuator_runs_is_restored(
    node: Node, rounds: int
) -> None:
    """A pod may be resized while the actuator is upgraded, or just before it is killed."""
    node.tree.write("cpu", "pod/a", "cpu.cfs_quota_us", 150_000)
    node.tree.write("cpu", "pod/a", "cpu.shares", 300)
    node.tree.write("memory", "pod/a", "memory.limit_in_bytes", 1 << 28)
    wish: dict[tuple[str, Knob], Value] = {
        ("pod", Knob.CPU_QUOTA): 120_000,  # the container has to make room
        ("pod/a", Knob.CPU_SHARES): 512,
        ("pod/b", Knob.CPU_SHARES): 512,
        ("pod/a", Knob.MEMORY_LIMIT): 1 << 26,
    }
    for quota in range(rounds):
        node.apply(wish | {("pod", Knob.CPU_QUOTA): 120_000 + 1000 * quota})
    node.tree.write("cpu", "pod/a", "cpu.cfs_quota_us", 100_000)
    node.tree.write("cpu", "pod/a", "cpu.shares", 700)
    node.tree.write("memory", "pod/a", "memory.limit_in_bytes", 1 << 27)
    node.restart()
    for _ in range(rounds):
        node.compare(wish)
    assert node.read("pod/a", Knob.CPU_SHARES) == 512
    assert node.read("pod/a", Knob.MEMORY_LIMIT) == 1 << 26
    node.restart()
    node.apply({})
    assert node.read("pod/a", Knob.CPU_QUOTA) == 100_000
    assert node.read("pod/a", Knob.CPU_SHARES) == 700
    assert node.read("pod/b", Knob.CPU_SHARES) == 1024
    assert node.read("pod/a", Knob.MEMORY_LIMIT) == 1 << 27
    assert not node.state.exists()


def test_on_a_fake_tree_a_cgroup_that_was_made_again_meanwhile_gets_all_cpus(
    tmp_path: Path,
) -> None:
    """A service starts again while the actuator is upgraded: its cgroup has a copy of the CPU set
    above it. This takes more CPUs than the machine may have."""
    cpus = {name: tmp_path / "cgroup" / name / "cpuset.cpus" for name in ("host", "host/app")}
    for file in cpus.values():
        file.parent.mkdir(parents=True)
        file.write_text("0-3\n")
    files = CgroupFiles({"cpuset": Hierarchy(1, str(tmp_path / "cgroup"))})

    def decided(host: set[int]) -> dict[Place, Decision]:
        sets = {"host": frozenset(host), "host/app": frozenset({0})}
        return {
            Place(path, Knob.CPUSET): Decision(value, ("test",), "a test")
            for path, value in sets.items()
        }

    for host, restarts in (({0}, False), ({0, 1}, True), ({0, 1}, False)):
        originals = OriginalValues(tmp_path / "state.json", "this boot", files.value_of)
        writer = CgroupWriter(files, originals)
        writer.apply(decided(host))
        if restarts:
            cpus["host/app"].write_text(cpus["host"].read_text())
        else:
            assert cpus["host/app"].read_text().strip() == "0"
        originals.close()
    originals = OriginalValues(tmp_path / "state.json", "this boot", files.value_of)
    CgroupWriter(files, originals).undo()
    assert {file.read_text().strip() for file in cpus.values()} == {"0-3"}
    originals.close()
    files.close()


@pytest.mark.cgroups
def test_a_limit_that_changes_in_the_round_that_releases_it_is_left_alone(
    node: Node, writes: list[str]
) -> None:
    node.tree.write("cpu", "pod/a", "cpu.cfs_quota_us", 100_000)
    node.apply({("pod/a", Knob.CPU_QUOTA): 120_000})
    node.tree.write("cpu", "pod/a", "cpu.cfs_quota_us", 200_000)
    del writes[:]
    assert node.apply({}) == []
    assert (writes, node.read("pod/a", Knob.CPU_QUOTA)) == ([], 200_000)
    assert not node.state.exists()


@pytest.mark.cgroups
def test_a_limit_that_only_makes_room_and_that_the_kubelet_changes_is_what_is_restored(
    node: Node,
) -> None:
    node.tree.write("cpu", "pod/a", "cpu.cfs_quota_us", 100_000)
    node.apply({("pod", Knob.CPU_QUOTA): 50_000})
    assert node.read("pod/a", Knob.CPU_QUOTA) == 50_000
    node.tree.write("cpu", "pod/a", "cpu.cfs_quota_us", 30_000)
    node.apply({("pod", Knob.CPU_QUOTA): 50_000})
    node.apply({})
    assert node.read("pod/a", Knob.CPU_QUOTA) == 30_000


@pytest.mark.cgroups
def test_a_limit_that_is_changed_while_its_writes_wait_is_what_is_restored(node: Node) -> None:
    wish = {("pod", Knob.CPU_SHARES): 512}
    node.apply(wish)
    for shares in range(1000, 1020):
        node.tree.write("cpu", "pod", "cpu.shares", shares)
        node.apply(wish)
    node.tree.write("cpu", "pod", "cpu.shares", 700)
    for _ in range(61):
        node.apply(wish)
    assert node.read("pod", Knob.CPU_SHARES) == 512
    node.apply({})
    assert node.read("pod", Knob.CPU_SHARES) == 700


@pytest.mark.cgroups
@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.parametrize("restarts", [True, False])
def test_a_cgroup_that_is_made_below_a_narrow_one_gets_its_cpus_in_the_end(
    node: Node, decided: bool, restarts: bool
) -> None:
    """On v1 the kubelet and runtimes give a new cgroup the CPU set of its parent."""
    all_cpus = node.read("pod", Knob.CPUSET)
    for narrow in (frozenset({0}), frozenset({1})):
        wish = {("pod", Knob.CPUSET): narrow}
        node.apply(wish | {("pod/a", Knob.CPUSET): narrow})
        node.tree.make("pod/new/inner")
        for path in ("pod/new", "pod/new/inner"):
            for file in ("cpuset.mems", "cpuset.cpus"):
                above = node.tree.directory("cpuset", path).parent / file
                node.tree.write("cpuset", path, file, above.read_text())
        new = {(path, Knob.CPUSET): narrow for path in ("pod/new", "pod/new/inner")}
        for _ in range(2):
            assert node.apply(wish | (new if decided else {})) == [] or not decided
        if restarts:
            node.restart()
        node.apply(wish | (new if decided else {}))
        node.writer.undo()
        for path in (*PATHS, "pod/new", "pod/new/inner"):
            assert node.read(path, Knob.CPUSET) == all_cpus
        node.tree.remove("pod/new")


@pytest.mark.cgroups
@pytest.mark.parametrize("name", ["büro", os.fsdecode(b"\xff"), "50%"])
def test_a_cgroup_may_have_any_name(node: Node, name: str) -> None:
    """Processes with a part of the tree of their own name the cgroups in it."""
    all_cpus = node.read("pod", Knob.CPUSET)
    node.tree.make(f"pod/{name}")
    for file in ("cpuset.mems", "cpuset.cpus"):
        above = node.tree.directory("cpuset", "pod") / file
        node.tree.write("cpuset", f"pod/{name}", file, above.read_text())
    changes = node.apply({("pod", Knob.CPUSET): frozenset({0})})
    assert {change.outcome for change in changes} == {"done"}
    assert node.read(f"pod/{name}", Knob.CPUSET) == frozenset({0})
    summary = ChangeSummary("n1")
    summary.add(changes)
    assert all(encode_json(record) for record in summary.rest(0.0))
    node.restart()
    assert node.originals.lost_because is None
    node.writer.undo()
    assert node.read(f"pod/{name}", Knob.CPUSET) == all_cpus


@pytest.mark.cgroups
def test_a_cgroup_with_fewer_cpus_of_its_own_keeps_them_and_may_change_them(node: Node) -> None:
    """Such as one below a container, whose own init process manages it."""
    node.tree.write("cpuset", "pod/b", "cpuset.cpus", "0")
    for narrow in (frozenset({0}), frozenset({1}), frozenset({0})):
        node.apply({("pod", Knob.CPUSET): narrow})
        node.restart()
        node.apply({("pod", Knob.CPUSET): narrow})
    node.writer.undo()
    assert node.read("pod/b", Knob.CPUSET) == frozenset({0})
    node.apply({("pod", Knob.CPUSET): frozenset({0, 1}), ("pod/a", Knob.CPUSET): frozenset({0})})
    node.tree.write("cpuset", "pod/b", "cpuset.cpus", "1")
    node.apply({("pod", Knob.CPUSET): frozenset({0, 1}), ("pod/a", Knob.CPUSET): frozenset({0})})
    assert node.read("pod/b", Knob.CPUSET) == frozenset({1})
    node.writer.undo()
    assert node.read("pod/b", Knob.CPUSET) == frozenset({1})


@pytest.mark.cgroups
def test_a_pod_that_vanishes_between_read_and_write_stops_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file = cgroup_files.write_file

    def vanishing(path: str, text: str) -> None:
        node.tree.remove("pod/a")
        write_file(path, text)

    wish = {("pod/a", Knob.CPU_QUOTA): 50_000, ("pod/b", Knob.CPU_QUOTA): 50_000}
    with monkeypatch.context() as patch:
        patch.setattr(cgroup_files, "write_file", vanishing)
        changes = node.apply(wish)
    assert [change.place.path.rsplit("/", 1)[1] for change in changes] == ["b"]
    assert node.apply(wish) == []
    node.restart()
    assert node.writer.claimed() == {"test": {place(node.tree, "pod/b", Knob.CPU_QUOTA): 50_000}}
    # A container that comes back under its name has nothing to be restored.
    node.tree.make("pod/a")
    node.tree.write("cpu", "pod/a", "cpu.cfs_quota_us", 77_000)
    node.writer.undo()
    assert node.read("pod/a", Knob.CPU_QUOTA) == 77_000


@pytest.mark.cgroups
def test_a_cgroup_that_is_made_again_is_limited_again(node: Node) -> None:
    wish = {("pod/a", Knob.CPU_QUOTA): 50_000}
    node.apply(wish)
    node.tree.remove("pod/a")
    assert node.apply(wish) == []
    node.tree.make("pod/a")
    assert [change.outcome for change in node.compare(wish)] == ["done"]
    node.tree.remove("pod/a")
    node.tree.make("pod/a")
    assert [change.outcome for change in node.compare(wish)] == ["done"]
    node.writer.undo()
    assert node.read("pod/a", Knob.CPU_QUOTA) == UNLIMITED


@pytest.mark.cgroups
def test_a_memory_limit_below_what_is_used_is_tried_less_and_less_often(
    node: Node, writes: list[str]
) -> None:
    hold = "data = b'x' * (64 << 20); print('ready', flush=True); input()"
    process = node.tree.python("pod/a", hold)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    wish = {("pod/a", Knob.MEMORY_LIMIT): 8 << 20, ("pod/b", Knob.MEMORY_LIMIT): 8 << 20}
    changes = {change.place.path[-1]: change.outcome for change in node.apply(wish)}
    assert changes == {"a": "failed", "b": "done"}
    for _ in range(40):
        node.apply(wish)
    assert 4 <= len([path for path in writes if "pod/a" in path]) <= 8
    process.kill()
    process.wait()
    for _ in range(61):
        node.apply(wish)
    assert node.read("pod/a", Knob.MEMORY_LIMIT) == 8 << 20


@pytest.mark.cgroups
def test_on_a_read_only_mount_all_is_reported_and_written_once_it_is_writable(
    tree: CgroupTree, tmp_path: Path
) -> None:
    mount = tmp_path / "cpu"
    mount.mkdir()
    wish = {Place("pod", Knob.CPU_QUOTA): Decision(50_000, ("test",), "a test")}
    with mounted(mount, "--bind", str(tree.directory("cpu"))):
        files = CgroupFiles({"cpu": Hierarchy(1, str(mount))})
        node = Node(tree, tmp_path / "state.json", files)
        subprocess.run(["mount", "-o", "remount,ro,bind", mount], check=True)
        (change,) = node.writer.apply(wish)
        assert (change.outcome, node.writer.value_of(change.place)) == ("failed", UNLIMITED)
        assert "Read-only file system" in change.error
        subprocess.run(["mount", "-o", "remount,rw,bind", mount], check=True)
        (change,) = node.writer.apply(wish)
        assert (change.outcome, node.writer.value_of(change.place)) == ("done", 50_000)
        subprocess.run(["mount", "-o", "remount,ro,bind", mount], check=True)
        (change,) = node.writer.undo()
        assert (change.outcome, node.writer.value_of(change.place)) == ("failed", 50_000)
        subprocess.run(["mount", "-o", "remount,rw,bind", mount], check=True)
        (change,) = node.writer.undo()
        assert (change.outcome, node.writer.value_of(change.place)) == ("done", UNLIMITED)
        node.close()


@pytest.mark.cgroups
def test_on_a_full_disk_saved_limits_only_become_narrower(tree: CgroupTree, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted(disk, "-t", "tmpfs", "-o", "size=16k", "none"):
        node = Node(tree, disk / "state.json")
        quota, shares = ("pod", Knob.CPU_QUOTA), ("pod", Knob.CPU_SHARES)
        node.apply({quota: 50_000})
        filler = disk / "filler"
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(bytes(1 << 20))
        # A place that is not saved is not written at all.
        changes = node.apply({quota: 40_000, shares: 100})
        assert {(c.place.knob, c.outcome) for c in changes} == {
            (Knob.CPU_QUOTA, "done"), (Knob.CPU_SHARES, "failed"),
        }  # fmt: skip
        assert "No space left" in next(c.error for c in changes if c.error)
        # Neither a higher limit nor the end of one is written.
        for wish in ({quota: 60_000}, {}):
            (change,) = node.apply(wish)
            assert (change.outcome, node.read(*quota)) == ("failed", 40_000)
        filler.unlink()
        node.apply({quota: 60_000, shares: 100})
        assert (node.read(*quota), node.read(*shares)) == (60_000, 100)
        node.writer.undo()
        assert (node.read(*quota), node.read(*shares)) == (UNLIMITED, 1024)
        node.close()


@contextmanager
def mounted(directory: Path, *arguments: str) -> Iterator[None]:
    subprocess.run(["mount", *arguments, directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


@pytest.mark.cgroups
def test_a_limit_that_the_kernel_refuses_is_tried_again_and_stops_no_other(node: Node) -> None:
    for path in reversed(PATHS):
        node.tree.write("cpuset", path, "cpuset.cpus", "\n")
    reasons = sum_of(node_metrics.WRITE_ERRORS, knob="cpuset.cpus", reason="refused")
    wish: Wishes = {("pod/a", Knob.CPUSET): frozenset({0}), ("pod/b", Knob.CPU_QUOTA): 50_000}
    assert {c.outcome: c.place.knob for c in node.apply(wish)} == {
        "failed": Knob.CPUSET, "done": Knob.CPU_QUOTA,
    }  # fmt: skip
    assert sum_of(node_metrics.WRITE_ERRORS, knob="cpuset.cpus", reason="refused") == reasons + 1
    node.tree.write("cpuset", "pod", "cpuset.cpus", "0")
    (change,) = node.apply(wish)
    assert (change.place.knob, change.outcome) == (Knob.CPUSET, "done")


@pytest.mark.cgroups
def test_a_knob_that_this_kernel_lacks_is_reported_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    wish = {(path, Knob.MEMORY_LOW): 1 << 20 for path in PATHS}
    for _ in range(3):
        assert node.apply(wish | {("pod", Knob.CPU_SHARES): 100})[1:] == []
    node.apply({("pod", Knob.CPU_SHARES): 100})
    node.apply(wish | {("pod", Knob.CPU_SHARES): 100})
    (record,) = [r for r in caplog.records if "does not have a limit" in r.getMessage()]
    assert record.__dict__["fields"]["place"].endswith(" memory.low")
    assert node.read("pod", Knob.CPU_SHARES) == 100


def test_a_file_that_comes_late_is_written_and_one_that_goes_is_forgotten(tmp_path: Path) -> None:
    """systemd makes a cgroup of v2 first and enables controllers in it then; it disables them,
    too."""
    root = tmp_path / "cgroup"
    (root / "pod").mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu\n")
    files = CgroupFiles(detect_hierarchies(str(root)))
    originals = OriginalValues(tmp_path / "run/state.json", "this boot", files.value_of)
    writer = CgroupWriter(files, originals)
    decisions = {Place("pod", Knob.CPU_QUOTA): Decision(50_000, ("test",), "a test")}
    assert writer.apply(decisions) == []
    file = root / "pod/cpu.max"
    file.write_text("max 100000\n")
    assert [c.outcome for _ in range(15) for c in writer.apply(decisions)] == ["done"]
    assert file.read_text() == "50000 100000\n"
    files.close()
    file.unlink()
    assert writer.undo() == []
    assert originals.values == {}
    originals.close()
    files.close()


@pytest.mark.cgroups
def test_the_original_is_on_disk_before_a_value_is_written(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file, originals = cgroup_files.write_file, []

    def checked(path: str, text: str) -> None:
        saved = json.loads(node.state.read_bytes())["places"]
        originals.append({(place["knob"], place["original"]) for place in saved})
        write_file(path, text)

    node.tree.write("cpu", "pod", "cpu.shares", 333)
    monkeypatch.setattr(cgroup_files, "write_file", checked)
    node.apply({("pod", Knob.CPU_IDLE): 1})
    node.apply({("pod", Knob.CPU_IDLE): 1, ("pod", Knob.CPU_QUOTA): 50_000})
    first = {("cpu.idle", "0"), ("cpu.shares", "333")}
    assert originals == [first, first | {("cpu.quota", "-1 100000")}]


WRITER = """
import random, sys
from pathlib import Path
from tests.actuators.node.test_cgroup_writer import Node, WISHES
from tests.cgroup_tree import CgroupTree

name, state, seed = sys.argv[1:]
node, choice = Node(CgroupTree(name), Path(state)), random.Random(seed)
print("ready", flush=True)
while True:
    node.apply(choice.choice(WISHES))
"""
WISHES: list[Wishes] = [
    {("pod", Knob.CPUSET): frozenset({0}), ("pod", Knob.CPU_IDLE): 1},
    {("pod", Knob.CPUSET): frozenset({1}), ("pod/a", Knob.CPUSET): frozenset({1})},
    {(path, Knob.CPU_QUOTA): 50_000 for path in PATHS} | {("pod/a", Knob.CPU_BURST): 40_000},
    {("pod/a", Knob.CPU_QUOTA): 150_000, ("pod/b", Knob.MEMORY_LIMIT): 1 << 25},
    {("pod", Knob.CPU_SHARES): 20, ("pod", Knob.CPU_QUOTA): 10_000},
    {},
]


@pytest.mark.cgroups
def test_after_kill_9_at_random_moments_undo_leaves_every_byte_as_it_was(
    tree: CgroupTree, tmp_path: Path
) -> None:
    chance, state = random.Random(24), tmp_path / "state.json"
    tree.write("cpu", "pod/a", "cpu.cfs_quota_us", 70_000)
    tree.write("cpu", "pod", "cpu.shares", 333)
    before, saved = contents(tree), 0
    for seed in range(6):
        command = [sys.executable, "-c", WRITER, tree.name, str(state), str(seed)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment(), cwd=ROOT
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0.01, 0.1))
            process.kill()
        saved += state.exists()
        if seed % 2:  # every other successor goes on from what it finds
            node = Node(tree, state)
            assert all(change.outcome == "done" for change in node.writer.undo())
            assert contents(tree) == before
            assert not state.exists()
            node.close()
    assert saved


V2 = {
    "cpu.weight": "39", "cpu.max": "30000 30000", "cpu.max.burst": "100", "cpu.idle": "0",
    "cpuset.cpus": "", "memory.max": "max", "memory.low": "0", "memory.high": "max",
    "io.weight": "default 100",
}  # fmt: skip


def test_on_fake_v2_undo_leaves_every_byte_as_it_was(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    for path in ("", *PATHS):
        (root / path).mkdir()
        for name, text in V2.items():
            (root / path / name).write_text(f"{text}\n")
    (root / "cgroup.controllers").write_text("cpuset cpu io memory\n")

    def contents() -> dict[str, str]:
        return {str(file): file.read_text() for file in root.rglob("*") if file.is_file()}

    before = contents()
    files = CgroupFiles(detect_hierarchies(str(root)))
    originals = OriginalValues(tmp_path / "state.json", "this boot", files.value_of)
    wishes: dict[Knob, Value] = {
        Knob.CPU_SHARES: 2000, Knob.CPU_QUOTA: 50_000, Knob.CPU_BURST: 0, Knob.MEMORY_LOW: 4096,
        Knob.CPUSET: frozenset({0, 1}), Knob.MEMORY_LIMIT: 1 << 20, Knob.MEMORY_HIGH: 1 << 19,
    }  # fmt: skip
    decisions = {
        Place(path, knob): Decision(value, ("test",), "a test")
        for path in PATHS
        for knob, value in wishes.items()
    }
    writer = CgroupWriter(files, originals)
    changes = writer.apply(decisions)
    assert {change.outcome for change in changes} == {"done"}
    assert len(changes) == len(decisions)
    assert (root / "pod/a/cpu.max").read_text() == "15000 30000\n"
    assert writer.apply(decisions) == []
    originals.close()
    files.close()

    originals = OriginalValues(tmp_path / "state.json", "this boot", files.value_of)
    writer = CgroupWriter(files, originals)
    assert writer.apply(decisions) == []
    writer.undo()
    assert contents() == before
    originals.close()


V2_VALUES: dict[Knob, st.SearchStrategy[Value]] = {
    Knob.CPU_SHARES: st.integers(2, 262_144),
    Knob.CPU_QUOTA: st.integers(5000, 200_000) | st.just(UNLIMITED),
    Knob.CPU_BURST: st.integers(0, 200_000),
    Knob.CPUSET: st.frozensets(st.integers(0, 7), min_size=1),
    Knob.MEMORY_LIMIT: st.integers(4096, 1 << 30) | st.just(UNLIMITED),
    Knob.MEMORY_HIGH: st.integers(0, 1 << 30) | st.just(UNLIMITED),
}
V2_KEYS = st.tuples(st.sampled_from(PATHS), st.sampled_from([*V2_VALUES]))


@given(
    st.data(),
    st.lists(st.lists(V2_KEYS, unique=True), max_size=4),
    st.lists(st.tuples(st.integers(1, 10_000), st.integers(3000, 999_999)), min_size=3, max_size=3),
)
def test_on_fake_v2_rounds_converge_and_undo_leaves_every_byte_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject,
    rounds: list[list[tuple[str, Knob]]], former: list[tuple[int, int]],
) -> None:  # fmt: skip
    """Weights, and quotas of any period, are rounded: neither is written again and again."""
    root = tmp_path_factory.mktemp("cgroup")
    (root / "cgroup.controllers").write_text("cpuset cpu io memory\n")
    for path, (weight, period_us) in zip(PATHS, former, strict=True):
        (root / path).mkdir()
        texts = V2 | {"cpu.weight": weight, "cpu.max": f"max {period_us}", "cpu.max.burst": 0}
        for name, text in texts.items():
            (root / path / name).write_text(f"{text}\n")
    before = {file: file.read_bytes() for file in root.rglob("*") if file.is_file()}
    files = CgroupFiles(detect_hierarchies(str(root)))
    originals = OriginalValues(root / "run" / "state.json", "this boot", files.value_of)
    writer = CgroupWriter(files, originals)
    for keys in rounds:
        decisions = {
            Place(path, knob): Decision(data.draw(V2_VALUES[knob]), ("test",), "a test")
            for path, knob in keys
        }
        assert all(change.outcome == "done" for change in writer.apply(decisions))
        assert writer.apply(decisions) == []
    writer.undo()
    assert {file: file.read_bytes() for file in before} == before
    assert originals.values == {}
    originals.close()
    files.close()


@pytest.fixture
def fake_v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, CgroupWriter]:
    """A cgroup `pod` with processes on a machine with four CPUs: like the kernel it refuses to lose
    its CPU set."""
    root = tmp_path / "cgroup"
    (root / "pod").mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpuset\n")
    (root / "cpuset.cpus.effective").write_text("0-3\n")
    (root / "pod/cpuset.cpus").write_text("\n")
    files = CgroupFiles(detect_hierarchies(str(root)))
    write_text = files.write_text

    def write(place: Place, text: str) -> None:
        if not text:
            raise CgroupWriteError("No space left on device", reason="refused", path=str(place))
        write_text(place, text)

    monkeypatch.setattr(files, "write_text", write)
    originals = OriginalValues(tmp_path / "run/state.json", "this boot", files.value_of)
    return root, CgroupWriter(files, originals)


def test_on_fake_v2_a_cpu_set_that_cannot_be_taken_away_gets_all_cpus(
    fake_v2: tuple[Path, CgroupWriter],
) -> None:
    root, writer = fake_v2
    place = Place("pod", Knob.CPUSET)
    writer.apply({place: Decision(frozenset({1}), ("test",), "a test")})
    assert (root / "pod/cpuset.cpus").read_text() == "1\n"
    (change,) = writer.undo()
    assert change.outcome == "done"
    assert (root / "pod/cpuset.cpus").read_text() == "0-3\n"
    # There is nothing left to restore.
    assert writer.undo() == []
    assert not (root.parent / "run/state.json").exists()


def test_on_fake_v2_a_value_that_no_file_can_hold_stops_no_other(
    fake_v2: tuple[Path, CgroupWriter],
) -> None:
    root, writer = fake_v2
    (root / "other").mkdir()
    (root / "other/cpuset.cpus").write_text("0-3\n")
    changes = writer.apply(
        {
            Place(path, Knob.CPUSET): Decision(frozenset({cpu}), ("test",), "a test")
            for path, cpu in (("pod", 70_000), ("other", 2))
        }
    )
    assert {str(c.place): c.outcome for c in changes} == {
        "pod cpuset.cpus": "failed", "other cpuset.cpus": "done"
    }  # fmt: skip
    assert (root / "other/cpuset.cpus").read_text() == "2\n"


def test_on_fake_v2_a_weight_of_a_disk_without_iocost_is_unsupported_until_it_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "cgroup"
    (root / "pod").mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu io\n")
    for name in ("io.weight", "cpu.weight"):
        (root / "pod" / name).write_text(f"{V2[name]}\n")
    files = CgroupFiles(detect_hierarchies(str(root)))
    write_file, has_iocost = cgroup_files.write_file, False

    def write(path: str, text: str) -> None:
        if "io.weight" not in path:
            write_file(path, text)
        elif not has_iocost:
            raise CgroupWriteError("not supported", reason="unsupported", path=path)
        else:
            Path(path).write_text(f"default 100\n{text}\n")

    monkeypatch.setattr(cgroup_files, "write_file", write)
    originals = OriginalValues(tmp_path / "run/state.json", "this boot", files.value_of)
    writer = CgroupWriter(files, originals)
    weight, shares = Place("pod", Knob.IO_WEIGHT, "8:0"), Place("pod", Knob.CPU_SHARES)
    decisions = {
        place: Decision(value, ("test",), "a test") for place, value in ((weight, 50), (shares, 2))
    }
    errors = sum_of(node_metrics.WRITE_ERRORS, knob="io.weight")
    changes = [change for _ in range(5) for change in writer.apply(decisions)]
    assert [(change.place, change.outcome) for change in changes] == [(shares, "done")]
    assert value_of(node_metrics.UNSUPPORTED.labels(Knob.IO_WEIGHT)) == 1
    assert sum_of(node_metrics.WRITE_ERRORS, knob="io.weight") == errors
    assert originals.values.keys() == {shares}
    has_iocost = True
    changes = [change for _ in range(8) for change in writer.apply(decisions)]
    assert [(change.place, change.outcome) for change in changes] == [(weight, "done")]
    assert files.read(weight) == 50
    assert value_of(node_metrics.UNSUPPORTED.labels(Knob.IO_WEIGHT)) == 0
    originals.close()
    files.close()
