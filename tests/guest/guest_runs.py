"""A pytest plugin that runs tests marked `guest` in a virtual machine with cgroup v2.

The first of them boots the guest, which runs all selected ones; each has its result there as its
result here. Where no guest can be had, they are skipped with the reason, or errors
(`tests.machine.not_here`). If the guest dies, the test that it ran and all later ones are errors.

A guest test is a function in any test file. It may import anything of the project, use fixtures of
pytest and of its file, and run for 120 s. The guest does not load conftest.py files.
"""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.debian_packages import UnavailableError
from tests.guest.guest_files import ensure_guest_files
from tests.guest.virtual_machine import GuestFailedError, run_in_guest
from tests.machine import REQUIRE_GUEST, not_here

_ROOT: Final = Path(__file__).parents[2]
# Plugins are loaded by name: hypothesis and xdist alone take seconds in an emulated machine.
_PYTEST: Final = (
    *("-m", "pytest", "--noconftest", "--override-ini=addopts=", "--import-mode=importlib"),
    *("-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout"),
    *("-p", "tests.guest.report_stream", "--override-ini=timeout=120", "--color=no", "-q"),
)
# Fetching, booting and running all tests count for the first one.
_TIMEOUT_SECONDS: Final = 1500


class GuestRun:
    """One boot of the guest, which runs the tests with these node ids."""

    def __init__(self, config: pytest.Config, node_ids: Sequence[str]) -> None:
        self._config = config
        self._reports: defaultdict[str, list[pytest.TestReport]] = defaultdict(list)
        self._pending = set(node_ids)
        self._running: str | None = None
        self._failure = "the guest did not run it"
        self.unavailable: str | None = None
        """Why there is no guest."""
        try:
            files = ensure_guest_files()
        except UnavailableError as error:
            self.unavailable = f"no guest with cgroup v2: {error}"
            return
        command = [sys.executable, *_PYTEST, *node_ids]
        self._lines = run_in_guest(files, command, config.rootpath, _environment())

    def reports(self, node_id: str) -> list[pytest.TestReport]:
        """Wait for the reports of a test. Raises `GuestFailedError` if the guest has none."""
        while node_id in self._pending:
            try:
                self._take(next(self._lines))
            except StopIteration:
                raise GuestFailedError(self._failure) from None
            except GuestFailedError as error:
                # Later calls find the generator ended.
                self._failure = f"{self._running or 'before the first test'}: {error}"
        if not self._pending:
            self.close()
        return self._reports[node_id]

    def close(self) -> None:
        """End the guest."""
        if self.unavailable is None:
            self._lines.close()

    def _take(self, line: str) -> None:
        try:
            message = json.loads(line)
        except ValueError as error:
            raise GuestFailedError(f"the guest reported {line[:200]!r}") from error
        self._running = message.get("started", self._running)
        if "report" in message:
            report = self._config.hook.pytest_report_from_serializable(
                config=self._config, data=message["report"]
            )
            if isinstance(report.longrepr, list):  # of a skipped test: JSON has no tuples
                report.longrepr = tuple(report.longrepr)
            self._reports[report.nodeid].append(report)
        self._pending.discard(message.get("finished"))


_RUN: Final = pytest.StashKey[GuestRun]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_guest_test(item):
            item.add_marker(pytest.mark.timeout(_TIMEOUT_SECONDS))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Take the result of a guest test from the guest."""
    if not _is_guest_test(item) or (run := _run_of(item.session)).unavailable is not None:
        return None
    try:
        reports = run.reports(_id_in_guest(item))
    except GuestFailedError:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports:
        report.nodeid = item.nodeid
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    # The test before left what it shares with this one, which the next one may not share.
    item.session._setupstate.teardown_exact(nextitem)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail a guest test without a result: it must not run on this machine."""
    if not _is_guest_test(item):
        return
    run = _run_of(item.session)
    if run.unavailable is not None:
        not_here(run.unavailable, REQUIRE_GUEST)
    reason = None
    try:
        run.reports(_id_in_guest(item))
    except GuestFailedError as error:
        reason = str(error)
    if reason is not None:  # outside of `except`: pytest would show both errors
        pytest.fail(reason, pytrace=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (run := session.stash.get(_RUN, None)) is not None:
        run.close()


def _is_guest_test(item: pytest.Item) -> bool:
    return item.get_closest_marker("guest") is not None


def _run_of(session: pytest.Session) -> GuestRun:
    if _RUN not in session.stash:
        node_ids = [_id_in_guest(item) for item in session.items if _is_guest_test(item)]
        session.stash[_RUN] = GuestRun(session.config, node_ids)
    return session.stash[_RUN]


def _id_in_guest(item: pytest.Item) -> str:
    # pytest-xdist appends the group.
    group = item.get_closest_marker("xdist_group")
    return item.nodeid.removesuffix(f"@{group.args[0]}") if group else item.nodeid


def _environment() -> dict[str, str]:
    return {
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{_ROOT}:{_ROOT / 'node-exporter'}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
