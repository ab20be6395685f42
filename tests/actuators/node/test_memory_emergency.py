"""Killing a pod for real: on cgroup v1 by its processes, on v2 by the kernel."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actuators.node.cgroup_files import Hierarchy
from actuators.node.memory_emergency import KILLS, EmergencyKiller, emergency_mode, kill_pod
from pipeline.clock import ManualClock
from pipeline.errors import CgroupGoneError, CgroupWriteError
from pipeline.processors.node_qos.node_state import NodeState, PressureLevels
from pipeline.settings.node_actuator_settings import FeatureMode
from pipeline.topics.actions import ActionRecord
from tests.cgroup_tree import CGROUP_ROOT, CgroupTree, cgroup_tree
from tests.metric_values import sum_of
from tests.processes import eventually
from tests.processors.node_qos.eviction_pods import GIB, NOW, best_effort, node

UID = "6f1c2a34-0000-4000-8000-000000000001"
OTHER = "6f1c2a34-0000-4000-8000-000000000002"
CGROUPFS = f"kubepods/besteffort/pod{UID}"
SYSTEMD = (
    f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID.replace('-', '_')}.slice"
)
SLEEP = ("sleep", "60")


@pytest.fixture(params=[1, 2])
def tree(request: pytest.FixtureRequest) -> Iterator[CgroupTree]:
    """A tree of memory on v1, and one of v2, which is beside v1 here."""
    with cgroup_tree("emergency", ("memory",) if request.param == 1 else ("unified",)) as tree:
        yield tree


def memory_of(tree: CgroupTree) -> Hierarchy:
    (controller,) = tree.controllers
    root = str(CGROUP_ROOT / controller / tree.name)
    return Hierarchy(1, root) if controller == "memory" else Hierarchy(2, root)


def ended(process: subprocess.Popen[str]) -> int:
    """The signal that ended a process, negative."""
    return process.wait(timeout=20)


def joined(tree: CgroupTree, path: str) -> None:
    """Return when a process is in the cgroup."""
    (controller,) = tree.controllers
    for _ in range(1000):
        if (tree.directory(controller, path) / "cgroup.procs").read_text():
            return
        time.sleep(0.01)
    raise AssertionError(f"no process in {path}")


@pytest.mark.cgroups
@pytest.mark.parametrize("path", [CGROUPFS, SYSTEMD])
def test_all_containers_of_the_pod_end_and_no_other_process(tree: CgroupTree, path: str) -> None:
    other = f"kubepods/besteffort/pod{OTHER}/main"
    for relative in (f"{path}/main", f"{path}/sidecar", other):
        tree.make(relative)
    victims = [tree.run(f"{path}/{name}", *SLEEP) for name in ("main", "main", "sidecar")]
    spared = tree.run(other, *SLEEP)
    for relative in (f"{path}/main", f"{path}/sidecar", other):
        joined(tree, relative)
    kill_pod(memory_of(tree), path, UID)
    assert [ended(victim) for victim in victims] == [-9, -9, -9]
    assert spared.poll() is None


@pytest.mark.cgroups
@pytest.mark.parametrize(
    ("path", "uid"),
    [
        (CGROUPFS, OTHER), (CGROUPFS, ""), ("kubepods/besteffort", UID), ("kubepods", UID),
        ("", UID), (f"{CGROUPFS}/main", UID), (f"pod{UID}", UID),
        (f"kubepods/../kubepods/besteffort/pod{UID}", UID), (f"/{CGROUPFS}", UID),
    ],
)  # fmt: skip
def test_a_cgroup_that_is_not_that_of_the_pod_is_left_alone(
    tree: CgroupTree, path: str, uid: str
) -> None:
    tree.make(f"{CGROUPFS}/main")
    process = tree.run(f"{CGROUPFS}/main", *SLEEP)
    joined(tree, f"{CGROUPFS}/main")
    with pytest.raises(CgroupWriteError):
        kill_pod(memory_of(tree), path, uid)
    assert process.poll() is None


FORKING = """
import os, time
end = time.monotonic() + 90
for _ in range(4):
    os.fork()
while time.monotonic() < end:  # each process lives for a moment, and leaves a child
    if os.fork():
        os._exit(0)
    time.sleep(0.001)
"""


@pytest.mark.cgroups
@pytest.mark.parametrize("attempt", range(4))
def test_a_pod_whose_processes_start_others_all_the_time_is_killed(
    tree: CgroupTree, attempt: int
) -> None:
    (controller,), container = tree.controllers, f"{CGROUPFS}/main"
    tree.make(container)
    listed = tree.directory(controller, container) / "cgroup.procs"
    tree.python(container, FORKING)
    assert eventually(lambda: len(listed.read_text().split()) > 8)
    kill_pod(memory_of(tree), CGROUPFS, UID)
    assert eventually(lambda: not listed.read_text(), 30)


@pytest.mark.cgroups
def test_a_cgroup_that_is_gone_is_said_to_be_gone(tree: CgroupTree) -> None:
    with pytest.raises(CgroupGoneError):
        kill_pod(memory_of(tree), CGROUPFS, UID)


@pytest.mark.cgroups
def test_a_process_that_is_not_in_the_cgroup_is_not_killed(tmp_path: Path) -> None:
    """A file that lists a foreign process, as after a move between read and kill."""
    directory = tmp_path / CGROUPFS
    directory.mkdir(parents=True)
    process = subprocess.Popen(SLEEP)
    try:
        (directory / "cgroup.procs").write_text(f"{process.pid}\n")
        with pytest.raises(CgroupWriteError, match="another cgroup"):
            kill_pod(Hierarchy(1, str(tmp_path)), CGROUPFS, UID)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("listed", ["", "0\n0\n"])
def test_processes_of_another_process_namespace_are_not_visible(
    tmp_path: Path, listed: str
) -> None:
    """There v1 lists nothing, as for a pod that has ended, and v2 zeros."""
    directory = tmp_path / CGROUPFS
    directory.mkdir(parents=True)
    (directory / "cgroup.procs").write_text(listed)
    with pytest.raises(CgroupWriteError, match="is visible"):
        kill_pod(Hierarchy(1, str(tmp_path)), CGROUPFS, UID)


def test_an_ended_process_is_nothing_special(tmp_path: Path) -> None:
    directory = tmp_path / CGROUPFS
    directory.mkdir(parents=True)
    process = subprocess.Popen(["true"])
    process.wait()
    (directory / "cgroup.procs").write_text(f"{process.pid}\n")
    kill_pod(Hierarchy(1, str(tmp_path)), CGROUPFS, UID)


class Emergency:
    """A node without memory, whose only pod is in a tree of plain files of v2."""

    def __init__(self, root: Path, mode: FeatureMode) -> None:
        self.clock, self.actions = ManualClock(now=NOW), list[ActionRecord]()
        self.kill_file = root / CGROUPFS / "cgroup.kill"
        self.kill_file.parent.mkdir(parents=True)
        self.kill_file.write_text("")
        self.stop_file = root / "stop"
        self.killer = EmergencyKiller(
            "node-1", mode, Hierarchy(2, str(root)), self.actions.append, self.clock, self.stop_file
        )

    def state(self, **fields: Any) -> NodeState:
        pod = best_effort("hog", uid=UID, path=CGROUPFS, memory_bytes=9.0 * GIB)
        values: dict[str, Any] = {
            "at": self.clock.now(), "memory_available_bytes": 1e6,
            "memory_pressure": PressureLevels(90.0, 50.0),
        }  # fmt: skip
        return node(pod, **(values | fields))

    def run(self, seconds: int = 5, **fields: Any) -> list[str]:
        """The outcomes of so many rounds of a second."""
        for _ in range(seconds):
            self.clock.jump(1.0)
            self.killer.step(self.state(**fields))
        return [action.outcome for action in self.actions]

    @property
    def has_killed(self) -> bool:
        return self.kill_file.read_text() == "1\n"


def test_acting_kills_and_records_it(tmp_path: Path) -> None:
    emergency, before = Emergency(tmp_path, "act"), sum_of(KILLS, result="done")
    assert emergency.run() == ["done"]
    assert emergency.has_killed
    assert sum_of(KILLS, result="done") == before + 1
    (action,) = emergency.actions
    assert (action.node, action.actuator, action.action) == (
        "node-1", "node-actuator", "memory_emergency"
    )  # fmt: skip
    assert action.before == {"shop/hog": UID}
    assert action.why.startswith("1000000 of 68719476736 bytes of memory are available")


@pytest.mark.parametrize(("mode", "outcomes"), [("off", []), ("observe", ["observed"])])
def test_other_modes_kill_nothing(tmp_path: Path, mode: FeatureMode, outcomes: list[str]) -> None:
    emergency = Emergency(tmp_path, mode)
    assert emergency.run() == outcomes
    assert not emergency.has_killed


def test_only_a_setting_of_its_own_switches_it_on() -> None:
    assert emergency_mode({}) == "off"
    assert emergency_mode({"memory_evict": "act"}) == "off"
    assert emergency_mode({"memory_emergency": "act"}) == "act"


def test_the_stop_file_forbids_it(tmp_path: Path) -> None:
    emergency = Emergency(tmp_path, "act")
    emergency.stop_file.touch()
    assert emergency.run() == ["refused"]
    assert not emergency.has_killed
    # A path that cannot be checked forbids it, too.
    emergency.stop_file.unlink()
    emergency.killer._stop_file = tmp_path / CGROUPFS / "cgroup.kill" / "stop"
    assert emergency.run() == ["refused", "refused"]


def test_old_usage_kills_nothing(tmp_path: Path) -> None:
    emergency = Emergency(tmp_path, "act")
    for _ in range(20):
        emergency.clock.jump(1.0)
        emergency.killer.step(emergency.state(at=emergency.clock.now() - 4.0))
    assert emergency.actions == []


def test_a_failed_kill_is_recorded_and_tried_again(tmp_path: Path) -> None:
    emergency = Emergency(tmp_path, "act")
    emergency.kill_file.unlink()
    emergency.kill_file.mkdir()  # a file that nobody can write, also root
    assert emergency.run(seconds=9) == ["failed", "failed"]
    assert all(action.error for action in emergency.actions)


def test_a_pod_that_has_just_ended_is_nothing_special(tmp_path: Path) -> None:
    emergency = Emergency(tmp_path, "act")
    emergency.kill_file.unlink()
    emergency.kill_file.parent.rmdir()
    assert emergency.run() == []
