"""What a run says about what it could not run. (Plain folders stand for cgroup hierarchies.)"""

import re
from pathlib import Path

import pytest

from tests import machine

INI = """
[pytest]
markers = cgroups
asyncio_default_fixture_loop_scope = function
"""
TESTS = """
import pytest

@pytest.mark.cgroups
def test_marked(): pass

@pytest.fixture
def tree(): raise AssertionError("made nevertheless")

@pytest.mark.cgroups
def test_with_a_tree(tree): pass

def test_plain(): pass
"""


@pytest.fixture
def fake_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with everything, and a user who is root."""
    for name in machine.HIERARCHIES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "memory" / "memory.idle_page_stats").touch()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return tmp_path


def test_complete_machine_lacks_nothing(fake_root: Path) -> None:
    assert machine.why_no_cgroups(fake_root) is None
    assert machine.fake_only(fake_root) == []


def test_user_without_root_cannot_create_cgroups(
    fake_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert machine.why_no_cgroups(fake_root) == "real cgroups need root"


def test_machine_with_cgroup_v2_only_is_complete(tmp_path: Path, fake_root: Path) -> None:
    root = tmp_path / "v2"
    root.mkdir()
    (root / "cgroup.controllers").write_text("cpu memory pids\n")
    why = machine.why_no_cgroups(root)
    assert why == (f"{root} has no cgroup v1 (or hybrid) hierarchy cpu, cpuacct, memory, unified")
    assert [line.split(" (")[0] for line in machine.fake_only(root)] == ["hot page cache"]


def test_unwritable_hierarchy_is_reported(fake_root: Path) -> None:
    def refuse(self: Path) -> None:
        raise OSError(30, "Read-only file system")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        why = machine.why_no_cgroups(fake_root)
    assert why == f"no cgroup can be made in {fake_root / 'cpu'}: Read-only file system"


def test_tests_that_create_cgroups_are_marked(project: Path) -> None:
    texts = {path: path.read_text() for path in (project / "tests").rglob("test_*.py")}
    for use, mark in (("cgroup_tree", "mark.cgroups"), ("cgroup_v2_tree", "mark.guest")):
        imported = rf"from tests\.cgroup_tree import [^\n]*\b{use}\b"
        users = {path for path, text in texts.items() if re.search(imported, text)}
        assert users
        assert {path for path in users if mark not in texts[path]} == set()


@pytest.fixture
def without(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A run of `TESTS` on a machine without cgroups."""
    nowhere = pytester.mkdir("nowhere")
    monkeypatch.setattr(machine, "CGROUP_ROOT", nowhere)
    monkeypatch.setattr(machine, "_why_no_cgroups", lambda: machine.why_no_cgroups(nowhere))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.delenv(machine.REQUIRE_CGROUPS, raising=False)
    pytester.makeini(INI)
    pytester.makepyfile(TESTS)
    return pytester


def test_tests_of_cgroups_are_skipped_with_a_reason(without: pytest.Pytester) -> None:
    ran = without.runpytest_inprocess("-p", "tests.machine")
    ran.assert_outcomes(passed=1, skipped=2)
    ran.stdout.fnmatch_lines(
        [
            "*= not run on this machine, and why =*",
            "2 tests: * has no cgroup v1 (or hybrid) hierarchy cpu, cpuacct, memory, unified",
            "tested on fake trees only: hot page cache (a kernel without kidled: *)",
        ]
    )
    assert "1 passed, 2 skipped" in ran.stdout.lines[-1]


def test_missing_required_cgroups_are_an_error(
    without: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(machine.REQUIRE_CGROUPS, "1")
    ran = without.runpytest_inprocess("-p", "tests.machine")
    ran.assert_outcomes(passed=1, errors=2)
    ran.stdout.fnmatch_lines(["*REQUIRE_CGROUPS=1 says that this machine must have them*"])
    assert "1 passed, 2 errors" in ran.stdout.lines[-1]


def test_continuous_integration_requires_cgroups(project: Path) -> None:
    assert f"export {machine.REQUIRE_CGROUPS}=1\n" in (project / ".ci/run").read_text()
