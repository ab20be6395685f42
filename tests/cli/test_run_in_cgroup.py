"""`springtide run-in-cgroup` in real cgroups."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner

from actuators.node.process_cgroup import hierarchies, join_cgroup
from pipeline.cli.main import cli
from pipeline.errors import KernelFileError
from tests.cgroup_tree import CGROUP_ROOT, CgroupTree

SPRINGTIDE = Path(sys.executable).parent / "springtide"
SHOW = "print(open('/proc/self/cgroup').read())"


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    names = tuple(root.name for root in hierarchies(CGROUP_ROOT))
    tree = CgroupTree(f"springtide-test-{uuid4().hex[:8]}", names)
    yield tree
    tree.close()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(SPRINGTIDE), "run-in-cgroup", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.cgroups
def test_a_program_runs_in_its_cgroup_in_every_hierarchy(tree: CgroupTree) -> None:
    done = run(
        "--name", "app", "--parent-dir", tree.name, "--relative-path", "a/b", "--",
        sys.executable, "-c", SHOW + "; import sys; sys.exit(7)",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (7, "")
    paths = {line.split(":", 2)[1]: line.split(":", 2)[2] for line in done.stdout.split()}
    for controllers in ("cpu", "memory", "cpuset"):
        assert paths[controllers] == f"/{tree.name}/a/b"
    # A process is in all or none of the hierarchies that are mounted here.
    joined = [path for path in paths.values() if path == f"/{tree.name}/a/b"]
    assert len(joined) == len(hierarchies(CGROUP_ROOT))


@pytest.mark.cgroups
def test_the_default_directory_is_that_of_the_qos_class(tree: CgroupTree) -> None:
    done = run(
        "--cgroup-root", str(CGROUP_ROOT), "--name", tree.name, "--qos", "SYSTEM",
        sys.executable, "-c", SHOW,
    )  # fmt: skip
    assert f":/{tree.name}\n" in done.stdout


@pytest.mark.cgroups
def test_a_program_that_does_not_exist_is_named_and_leaves_no_cgroup(tree: CgroupTree) -> None:
    done = run("--name", "app", "--parent-dir", tree.name, "no-such-program")
    assert (done.returncode, "no-such-program" in done.stderr) == (2, True)
    assert not [c for c in tree.controllers if tree.directory(c).exists()]


@pytest.mark.parametrize(
    "options", [["--parent-dir", ".."], ["--relative-path", "a/../../b"], ["--base", "Kubepods"]]
)
def test_a_path_outside_of_its_base_is_refused(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "cgroup.controllers").touch()
    arguments = ["--cgroup-root", str(tmp_path), "--name", "app", *options, "true"]
    result = CliRunner().invoke(cli, ["run-in-cgroup", *arguments])
    assert result.exit_code != 0
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_without_a_hierarchy_nothing_is_joined(tmp_path: Path) -> None:
    with pytest.raises(KernelFileError, match="no cgroup hierarchy"):
        join_cgroup(tmp_path, "a")
    assert list(tmp_path.iterdir()) == []
