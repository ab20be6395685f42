"""Settings of the node below /proc and /sys are read, written and restored as other knobs."""

from pathlib import Path

import pytest

from actuators.node.cgroup_files import CgroupFiles, node_hierarchies
from actuators.node.cgroup_writer import CgroupWriter
from actuators.node.original_values import OriginalValues
from pipeline.errors import KernelFileError
from pipeline.processors.node_qos.cgroup_values import Knob, Place
from pipeline.processors.node_qos.claims import merge_claims
from pipeline.processors.node_qos.node_sysctl import NodeSysctl
from pipeline.processors.slo.nodeslo import NodeSLOSpec, SystemStrategy
from tests.actuators.node.limit_tree import write_value
from tests.processors.node_qos.worlds import GIB, amounts, node

FEATURES = "GENTLE_FAIR_SLEEPERS START_DEBIT NO_HRTICK\n"


@pytest.mark.parametrize("name", ["sched/features", "sched_features"])
def test_features_of_the_scheduler_are_switched_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "kernel/debug" / name
    path.parent.mkdir(parents=True)
    path.write_text(FEATURES)
    files = CgroupFiles(node_hierarchies("/proc", str(tmp_path)))
    on, off = (Place("", Knob.NODE_SCHED_FEATURE, name) for name in ("START_DEBIT", "HRTICK"))
    assert (files.read(on), files.read(off)) == (1, 0)
    write_value(files, on, 0)
    assert path.read_text() == "NO_START_DEBIT\n"
    path.write_text(FEATURES)
    reading = files.reading(off)
    assert reading is not None
    files.write_text(off, reading.text)
    assert path.read_text() == "NO_HRTICK\n"
    with pytest.raises(KernelFileError, match="no feature"):
        files.read(Place("", Knob.NODE_SCHED_FEATURE, "DEBIT"))


def test_settings_of_this_kernel_are_read() -> None:
    files = CgroupFiles(node_hierarchies("/proc", "/sys"))
    expected = int(Path("/proc/sys/vm/watermark_scale_factor").read_text())
    assert files.read(Place("", Knob.NODE_WATERMARK_SCALE)) == expected
    assert files.read(Place("", Knob.NODE_MIN_FREE_KBYTES)) is not None
    # A kernel of one vendor has it.
    assert files.read(Place("", Knob.NODE_MEMCG_REAP)) in (None, 0, 1)


def test_settings_come_from_the_system_strategy_and_end_as_before(tmp_path: Path) -> None:
    vm, features = tmp_path / "sys/vm", tmp_path / "kernel/debug/sched/features"
    for path, text in ((vm / "min_free_kbytes", "67584\n"), (features, FEATURES)):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    files = CgroupFiles(node_hierarchies(str(tmp_path), str(tmp_path)))
    originals = OriginalValues(tmp_path / "state.json", "this boot", files.value_of)
    writer = CgroupWriter(files, originals)
    strategy = SystemStrategy(min_free_kbytes_factor=100, sched_features={"START_DEBIT": False})
    state = node(slo=NodeSLOSpec(system_strategy=strategy), capacity=amounts(memory_bytes=16 * GIB))
    changes = writer.apply(merge_claims(NodeSysctl().claims(state, {})))
    assert [change.outcome for change in changes] == ["done", "done"]
    assert (vm / "min_free_kbytes").read_text() == "167772\n"
    # The kernel keeps the other features.
    assert features.read_text() == "NO_START_DEBIT\n"
    writer.undo()
    assert (vm / "min_free_kbytes").read_text() == "67584\n"
    assert features.read_text() == "START_DEBIT\n"
    assert originals.values == {}
    originals.close()
    files.close()


def test_settings_are_written(tmp_path: Path) -> None:
    path = tmp_path / "sys/vm/min_free_kbytes"
    path.parent.mkdir(parents=True)
    path.write_text("67584\n")
    files = CgroupFiles(node_hierarchies(str(tmp_path), "/sys"))
    write_value(files, Place("", Knob.NODE_MIN_FREE_KBYTES), 20_000)
    assert path.read_text() == "20000\n"
