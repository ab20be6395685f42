"""`--undo` restores what was written, or says why it cannot."""

from pathlib import Path

import pytest

from actuators.node.cgroup_files import CgroupFiles, detect_hierarchies
from actuators.node.cgroup_writer import CgroupWriter
from actuators.node.node_service import undo_all
from actuators.node.original_values import OriginalValues
from node_exporter.kernel.node_files import boot_id
from pipeline.errors import StateError
from pipeline.processors.node_qos.cgroup_values import Knob, Place
from pipeline.processors.node_qos.claims import Decision
from pipeline.settings import ExporterSettings, NodeActuatorSettings, Settings


def settings(folder: Path, cgroups: str) -> Settings:
    """Of a node on which no resctrl is mounted."""
    return Settings(
        exporter=ExporterSettings(cgroup_root=folder / cgroups, sys_root=folder),
        node_actuator=NodeActuatorSettings(state_file=folder / "state.json"),
    )


@pytest.fixture
def quota(tmp_path: Path) -> Path:
    """A file of a v2 cgroup below `node` that an actuator has written. `container` is what a
    container with a cgroup namespace of its own sees."""
    for root in ("node", "container"):
        (tmp_path / root).mkdir()
        (tmp_path / root / "cgroup.controllers").write_text("cpu\n")
    pod = tmp_path / "node/kubepods/besteffort/poda"
    pod.mkdir(parents=True)
    (pod / "cpu.max").write_text("max 100000\n")
    files = CgroupFiles(detect_hierarchies(str(tmp_path / "node")))
    originals = OriginalValues(tmp_path / "state.json", boot_id("/proc"), files.value_of)
    place = Place("kubepods/besteffort/poda", Knob.CPU_QUOTA)
    CgroupWriter(files, originals).apply({place: Decision(50_000, ("test",), "a test")})
    originals.close()
    files.close()
    assert (pod / "cpu.max").read_text() == "50000 100000\n"
    return pod / "cpu.max"


def test_undo_restores_what_was_written(quota: Path, tmp_path: Path) -> None:
    undo_all(settings(tmp_path, "node"))
    assert quota.read_text() == "max 100000\n"
    assert not (tmp_path / "state.json").exists()


def test_undo_of_pods_that_have_ended_has_nothing_to_do(quota: Path, tmp_path: Path) -> None:
    quota.unlink()
    quota.parent.rmdir()
    undo_all(settings(tmp_path, "node"))
    assert not (tmp_path / "state.json").exists()


def test_undo_where_the_cgroups_of_the_node_are_not_visible_forgets_nothing(
    quota: Path, tmp_path: Path
) -> None:
    with pytest.raises(StateError, match="no cgroup that was limited"):
        undo_all(settings(tmp_path, "container"))
    undo_all(settings(tmp_path, "node"))
    assert quota.read_text() == "max 100000\n"
