"""What may not be written is known at the start: another user, and read-only mounts."""

import logging
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from actuators.node import node_metrics
from actuators.node.cgroup_files import detect_hierarchies
from actuators.node.write_access import check_write_access, missing_access
from pipeline.errors import SettingsError
from tests.cgroup_tree import CGROUP_ROOT, CgroupTree, cgroup_tree
from tests.metric_values import value_of
from tests.processes import environment, springtide

pytestmark = pytest.mark.cgroups

CONTROLLERS = ("cpu", "cpuset", "memory", "blkio")
NOBODY = 65534


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    with cgroup_tree("access", CONTROLLERS) as tree:
        tree.make("kubepods")
        yield tree


@contextmanager
def another_user() -> Iterator[None]:
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def read_only(controllers: Sequence[str], tree: CgroupTree, *words: str) -> tuple[int, str]:
    """The exit code and the output of a command that has these hierarchies mounted read-only."""
    remount = "; ".join(f"mount -o remount,bind,ro {CGROUP_ROOT / name}" for name in controllers)
    script = f'set -e; {remount}; exec "$@"'
    command = springtide(*words, f"--cgroup-parent={tree.name}")
    process = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *command],
        capture_output=True, text=True, env=environment(), timeout=100, check=False,
    )  # fmt: skip
    return process.returncode, process.stdout + process.stderr


def test_root_misses_nothing(tree: CgroupTree, caplog: pytest.LogCaptureFixture) -> None:
    cgroups = detect_hierarchies(str(CGROUP_ROOT))
    check_write_access(cgroups, tree.name, writes=True)
    assert missing_access(cgroups, tree.name) == []
    assert value_of(node_metrics.NOT_WRITABLE.labels("cpu")) == 0
    assert caplog.records == []


def test_another_user_may_observe_but_not_act(
    tree: CgroupTree, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cgroups = detect_hierarchies(str(CGROUP_ROOT))
    with another_user():
        with pytest.raises(SettingsError, match="user 65534 may not write") as caught:
            check_write_access(cgroups, tree.name, writes=True)
        assert caplog.records == []
        check_write_access(cgroups, tree.name, writes=False)
    assert caught.value.exit_code == 2
    assert "as root" in (caught.value.hint or "")
    assert value_of(node_metrics.NOT_WRITABLE.labels("memory")) == 1
    (record,) = caplog.records
    assert record.levelno == logging.INFO


def test_the_command_ends_with_2_where_all_is_mounted_read_only(
    tree: CgroupTree, tmp_path: Path
) -> None:
    flags = ("--node-name=n", "--mode=act", f"--state-file={tmp_path / 'state.json'}")
    code, output = read_only(CONTROLLERS, tree, "node-actuator", *flags)
    assert code == 2, output
    assert "error: node_actuator.mode: " in output
    assert f"{tree.name}/kubepods/cgroup.procs: mounted read-only" in output
    assert "  fix: run the node actuator as root" in output


def test_doctor_shows_each_controller_that_is_mounted_read_only(tree: CgroupTree) -> None:
    code, output = read_only(["memory"], tree, "doctor", "--node")
    assert code == 0, output
    lines = output.splitlines()
    assert [line.split() for line in lines if "write access" in line] == [
        ["yes", "write", "access", "to", "cpu", "writable", "act"],
        ["yes", "write", "access", "to", "cpuset", "writable", "act"],
        ["no", "write", "access", "to", "memory", "mounted", "read-only", "act"],
        ["yes", "write", "access", "to", "io", "writable", "act"],
    ]
    assert lines[-1].strip().startswith("-> run the node actuator as root")


def test_one_controller_that_cannot_be_written_is_a_warning(
    tree: CgroupTree, caplog: pytest.LogCaptureFixture
) -> None:
    cgroups = detect_hierarchies(str(CGROUP_ROOT))
    cgroups["io"] = cgroups["io"]._replace(root="/sys/fs/cgroup/absent")
    check_write_access(cgroups, tree.name, writes=True)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.__dict__["fields"]["missing"].startswith("io (/sys/fs/cgroup/absent: No such")
    assert value_of(node_metrics.NOT_WRITABLE.labels("io")) == 1
