"""The guest boots, and every way in which it can fail has a clear error."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline.local.cache_folders import cache_root
from tests.debian_packages import UnavailableError
from tests.guest import guest_runs
from tests.guest.guest_files import GuestFiles, ensure_guest_files
from tests.guest.initramfs import REPORT_DEVICE
from tests.guest.virtual_machine import DEFAULT_LIMITS, GuestFailedError, Limits, run_in_guest
from tests.machine import REQUIRE_GUEST, not_here

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

INI = """
[pytest]
markers = guest
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
timeout = 300
"""
TESTS = """
import os, sys
import pytest

pytestmark = pytest.mark.guest

def test_runs_as_root_on_cgroup_v2():
    with open("/sys/fs/cgroup/cgroup.controllers") as file:
        assert {"cpu", "cpuset", "io", "memory", "pids"} <= set(file.read().split())
    assert os.geteuid() == 0

def test_fails():
    print("some output")
    assert 1 == 2, "as it must"

@pytest.mark.parametrize("name", ["a b", "c'd"])
async def test_with_parameters(name, tmp_path):
    (tmp_path / "file").write_text(name)

def test_skipped():
    pytest.skip("no reason")

def test_panics():
    with open("/proc/sysrq-trigger", "w") as file:
        file.write("c")

def test_after_the_panic():
    pass
"""


@pytest.fixture(scope="module")
def files() -> GuestFiles:
    try:
        return ensure_guest_files()
    except UnavailableError as error:
        not_here(f"no guest with cgroup v2: {error}", REQUIRE_GUEST)


@pytest.fixture(scope="module")
def cache(files: GuestFiles) -> Path:
    """The cache in which the guest's files are."""
    return cache_root().parent


def shell(
    files: GuestFiles, script: str, limits: Limits = DEFAULT_LIMITS, **environ: str
) -> Iterator[str]:
    """What a shell script in the guest reports."""
    environ |= {"PATH": os.defpath, "REPORT": REPORT_DEVICE}
    return run_in_guest(files, ["/bin/sh", "-c", script], Path("/usr"), environ, limits)


def test_each_test_of_the_guest_has_its_own_result(
    cache: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))  # pytester changes HOME
    pytester.makeini(INI)
    pytester.makepyfile(TESTS)
    ran = pytester.runpytest_inprocess("-p", "tests.machine", "-p", "tests.guest.guest_runs")
    ran.assert_outcomes(passed=3, failed=1, skipped=1, errors=2)
    ran.stdout.fnmatch_lines(
        [
            "*ERROR at setup of test_panics*",
            "*::test_panics: the guest's kernel panicked: *sysrq*; its console:",
            "*ERROR at setup of test_after_the_panic*",
            "*::test_panics: the guest's kernel panicked: *sysrq*; its console:",
            "*= FAILURES =*",
            "*AssertionError: as it must*",
            "some output",
            "1 test: no reason",
        ]
    )


def test_command_is_run_with_its_environment_and_folder(files: GuestFiles) -> None:
    script = '(pwd; nproc; echo "$MESSAGE"; touch /usr/written && echo written) >$REPORT; exit 3'
    lines = shell(files, script, MESSAGE="it's \\ $HOME")
    assert [next(lines) for _ in range(4)] == ["/usr", "2", "it's \\ $HOME", "written"]
    assert not Path("/usr/written").exists()
    with pytest.raises(GuestFailedError, match="the command in the guest ended with 3; its cons"):
        next(lines)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(console_bytes=1), "the guest printed [0-9]+ bytes before it had booted, and was"),
        (Limits(silence_seconds=1), "the guest reported nothing for 1 s before it had booted, and"),
        (Limits(total_seconds=1), "the guest did not end within 1 s before it had booted, and was"),
    ],
)
def test_guest_beyond_a_limit_is_killed(
    files: GuestFiles,
    limits: Limits,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = psutil.Process().children()  # the guest of tests that are yet to run
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = subprocess.Popen(["true"])
    killed.wait()
    (tmp_path / f"springtide-guest-{killed.pid}-left").mkdir()
    with pytest.raises(GuestFailedError, match=message):
        next(shell(files, "true", limits))
    assert list(tmp_path.iterdir()) == []
    assert set(psutil.Process().children()) <= set(others)


def test_qemu_that_cannot_start_is_an_error(files: GuestFiles, tmp_path: Path) -> None:
    broken = replace(files, kernel=tmp_path / "no-kernel")
    with pytest.raises(GuestFailedError, match=r"(?s)QEMU ended with 1; .*no-kernel"):
        next(shell(broken, "true"))


@pytest.mark.parametrize(
    ("machine", "path", "reason"),
    [
        ("riscv64", os.defpath, "the guest is for x86_64, this machine is riscv64"),
        ("x86_64", "/nowhere", "are fetched with apt-get, apt-cache, dpkg-deb, which is not"),
    ],
)
def test_machine_without_a_guest_says_why(
    machine: str, path: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setenv("PATH", path)
    with pytest.raises(UnavailableError, match=reason):
        ensure_guest_files()


def test_failed_download_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("apt-get", "apt-cache", "dpkg-deb"):
        (programs / name).write_text(
            "#!/bin/sh\necho Reading\necho 'E: no network' >&2\nexit 100\n"
        )
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.defpath}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    reported: list[str] = []
    with pytest.raises(UnavailableError, match=r"`apt-get update` failed: E: no network$"):
        ensure_guest_files(report=reported.append)
    assert [line.split(";")[0] for line in reported] == [
        "fetching QEMU and a kernel for tests on cgroup v2"
    ]
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == ["lock"]


def test_a_test_of_another_directory_may_follow(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Run:
        unavailable = None

        def __init__(self, config: pytest.Config, node_ids: Sequence[str]) -> None: ...

        def reports(self, node_id: str) -> list[pytest.TestReport]:
            return []

        def close(self) -> None: ...

    monkeypatch.setattr(guest_runs, "GuestRun", Run)
    pytester.makeini(INI)
    plain = "def test_it(): pass"
    marked = f"import pytest\npytestmark = pytest.mark.guest\n{plain}"
    files = {"first/test_a": plain, "first/test_b": marked, "second/test_c": plain}
    for directory in ("first", "second"):
        pytester.mkpydir(directory)
    pytester.makepyfile(**files)
    pytester.runpytest_inprocess("-p", "tests.guest.guest_runs").assert_outcomes(passed=2)


def test_tests_are_skipped_without_a_guest(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_files() -> GuestFiles:
        raise UnavailableError("no emulator")

    monkeypatch.setattr(guest_runs, "ensure_guest_files", no_files)
    monkeypatch.delenv(REQUIRE_GUEST, raising=False)
    pytester.makeini(INI)
    pytester.makepyfile(TESTS)
    plugins = ("-p", "tests.machine", "-p", "tests.guest.guest_runs")
    ran = pytester.runpytest_inprocess(*plugins)
    ran.assert_outcomes(skipped=7)
    ran.stdout.fnmatch_lines(["7 tests: no guest with cgroup v2: no emulator"])
    monkeypatch.setenv(REQUIRE_GUEST, "1")
    ran = pytester.runpytest_inprocess(*plugins)
    ran.assert_outcomes(errors=7)
    ran.stdout.fnmatch_lines(["no guest with cgroup v2: no emulator, and REQUIRE_GUEST=1 says*"])
