"""Groups of resctrl follow the policy, on a directory that stands in for the kernel's (fake)."""

from pathlib import Path

import pytest

from actuators.node import resctrl_step
from actuators.node.resctrl_files import ResctrlWrite
from actuators.node.resctrl_step import ResctrlStep, remove_groups
from pipeline.clock import ManualClock
from pipeline.errors import CgroupWriteError
from pipeline.processors.node_qos.node_state import NodeState, PodState
from pipeline.processors.slo.nodeslo import NodeSLOSpec, QosClass, QosStrategy, ResctrlQos
from pipeline.settings.node_actuator_settings import FeatureMode
from pipeline.topics.actions import ActionRecord
from tests.actuators.node.fake_resctrl import FakeResctrl


class World:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake = FakeResctrl(folder / "resctrl", {1, 2, 3})
        monkeypatch.setattr(resctrl_step, "carry_out", self.fake.carry_out)
        (folder / "cpuinfo").write_text("vendor_id\t: GenuineIntel\n")
        pod = folder / "cgroup/kubepods/besteffort/poda"
        pod.mkdir(parents=True)
        (pod / "tasks").write_text("1\n2\n")
        self.folder, self.clock = folder, ManualClock()
        self.marker = folder / "state.json.resctrl"
        self.records: list[ActionRecord] = []

    def make(self, mode: FeatureMode) -> ResctrlStep:
        return ResctrlStep(
            "a", mode, self.fake.root, self.folder, self.folder / "cgroup", self.marker,
            self.records.append, self.clock,
        )  # fmt: skip


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def state(enable: bool = True) -> NodeState:
    rules = ResctrlQos(enable=enable, cat_range_start_percent=0, cat_range_end_percent=50)
    strategy = QosStrategy(be_class=QosClass(resctrl_qos=rules))
    pod = PodState(
        uid="a", path="kubepods/besteffort/poda", kube_qos="BestEffort", qos="BE", phase="Running"
    )
    return NodeState(node="a", at=0.0, slo=NodeSLOSpec(resource_qos_strategy=strategy), pods=(pod,))


async def test_a_group_is_made_and_removed_with_the_policy(world: World) -> None:
    step = world.make("act")
    step.step(state())
    assert world.fake.groups() == ["", "BE"]
    assert world.fake.tasks("BE") == {1, 2}
    assert world.fake.lines("BE")[0] == "L3:0=3f;8=3f"
    assert [(r.action, r.outcome) for r in world.records] == [("resctrl", "done")] * 3
    step.step(state(enable=False))
    assert world.fake.groups() == ["", "BE"]  # not before the next look
    await world.clock.advance(10)
    step.step(state(enable=False))
    assert world.fake.groups() == [""]
    assert world.fake.tasks("") == {1, 2, 3}


async def test_in_mode_observe_each_change_is_recorded_once(world: World) -> None:
    step = world.make("observe")
    for _ in range(3):
        step.step(state())
        await world.clock.advance(10)
    assert world.fake.groups() == [""]
    assert {record.outcome for record in world.records} == {"observed"}
    assert len(world.records) == 3


def test_a_refused_write_is_recorded_and_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(write: ResctrlWrite) -> None:
        if write.kind == "schemata":
            raise CgroupWriteError("no", reason="refused", path=str(write.path))
        world.fake.carry_out(write)

    monkeypatch.setattr(resctrl_step, "carry_out", refuse)
    world.make("act").step(state())
    assert world.fake.tasks("BE") == {1, 2}
    assert [record.outcome for record in world.records] == ["done", "failed", "failed"]


def test_without_resctrl_or_switched_off_nothing_happens(world: World, tmp_path: Path) -> None:
    world.make("off").step(state())
    assert world.fake.groups() == [""]
    assert remove_groups(tmp_path / "none", world.marker) == 0
    assert world.records == []


def test_undo_removes_own_groups_alone(world: World) -> None:
    world.make("act").step(state())
    (world.fake.root / "foreign").mkdir()
    assert remove_groups(world.fake.root, world.marker) == 1
    assert world.fake.groups() == ["", "foreign"]


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_another_mode_removes_the_groups_of_mode_act(world: World, mode: FeatureMode) -> None:
    world.make("act").step(state())
    assert world.fake.groups() == ["", "BE"]
    world.make(mode).step(state())
    assert world.fake.groups() == [""]
    assert world.fake.tasks("") == {1, 2, 3}


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_groups_of_another_agent_stay_where_this_feature_never_acted(
    world: World, mode: FeatureMode
) -> None:
    (world.fake.root / "BE").mkdir()
    world.make(mode).step(state(enable=False))
    assert remove_groups(world.fake.root, world.marker) == 0
    assert world.fake.groups() == ["", "BE"]
