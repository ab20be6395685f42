"""What this machine offers to tests; a pytest plugin that names what it could not run, and why.

Tests marked `cgroups` make real cgroups. Where that is impossible they are skipped with the reason;
with REQUIRE_CGROUPS=1 they are errors, for machines that must have them. The same holds for tests
marked `guest`, their virtual machine, and REQUIRE_GUEST=1, and for tests marked `browser`, Chromium
and REQUIRE_BROWSER=1. (No SPRINGTIDE_ before the variables: every role would call them unknown
settings.)
"""

import os
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from pipeline.errors import ControlPlaneBuildError

CGROUP_ROOT = Path("/sys/fs/cgroup")
# `unified` is cgroup v2 beside v1: pressure of a pod is read there.
HIERARCHIES = ("cpu", "cpuacct", "memory", "unified")
REQUIRE_CGROUPS = "REQUIRE_CGROUPS"
REQUIRE_GUEST = "REQUIRE_GUEST"
REQUIRE_BROWSER = "REQUIRE_BROWSER"


def why_no_cgroups(root: Path) -> str | None:
    """Why no real cgroups can be made below `root`; None where they can."""
    if os.geteuid() != 0:
        return "real cgroups need root"
    absent = [name for name in HIERARCHIES if not (root / name / "cgroup.procs").is_file()]
    if absent:
        return f"{root} has no cgroup v1 (or hybrid) hierarchy {', '.join(absent)}"
    for name in HIERARCHIES:
        probe = root / name / f"springtide-probe-{os.getpid()}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            return f"no cgroup can be made in {root / name}: {error.strerror}"
    return None


def fake_only(root: Path) -> list[str]:
    """Features that this machine lacks, so that only tests with fake trees have seen them."""
    stats = "memory.idle_page_stats"
    if any((root / folder / stats).is_file() for folder in ("memory", "")):
        return []
    return [f"hot page cache (a kernel without kidled: no {stats})"]


@cache
def _why_no_cgroups() -> str | None:
    return why_no_cgroups(CGROUP_ROOT)


def not_here(why: str, require: str = REQUIRE_CGROUPS) -> NoReturn:
    """Skip the test with this reason; where the variable `require` says that the machine must have
    what it needs, fail it."""
    if os.environ.get(require) == "1":
        pytest.fail(f"{why}, and {require}=1 says that this machine must have them", pytrace=False)
    pytest.skip(why)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cgroups") is None or (why := _why_no_cgroups()) is None:
        return
    not_here(why)


def without_plane(terminalreporter: pytest.TerminalReporter) -> list[str]:
    """Tests that could not run because the control plane could not be built."""
    return [
        report.nodeid
        for report in terminalreporter.stats.get("error", ())
        if ControlPlaneBuildError.__name__ in report.longreprtext
    ]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = Counter(
        str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        for report in terminalreporter.stats.get("skipped", ())
    )
    lines = [
        f"{count} test{'s' * (count > 1)}: {reason.removeprefix('Skipped: ')}"
        for reason, count in skipped.most_common()
    ] + [f"tested on fake trees only: {feature}" for feature in fake_only(CGROUP_ROOT)]
    if missing := without_plane(terminalreporter):
        terminalreporter.section("not run: the control plane could not be built")
        for nodeid in missing:
            terminalreporter.write_line(nodeid)
    terminalreporter.section("not run on this machine, and why")
    for line in lines or ["nothing"]:
        terminalreporter.write_line(line)
