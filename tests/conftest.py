"""Order and grouping of all tests, and the hypothesis profile.

One process runs the pure tests first. Several processes (`make test`) start with the tests that
wait longest, and run each file in one process, so that its broker or control plane starts once.
"""

import logging
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pipeline.local.build_programs import are_programs_built

pytest_plugins = [
    "pytester",
    "tests.broker",
    "tests.crashed_workers",
    "tests.machine",
    "tests.guest.guest_runs",
    "tests.plane",
]

# Fixtures that mean a running broker, wherever they are defined.
_BROKER_FIXTURES = frozenset({"broker", "kafka"})
_PURE, _BROKER, _SYSTEM, _PLANE = range(4)
# Each starts a control plane that its files share: two fit on two cores.
_PLANE_GROUPS = 2
# They measure CPU, one after the other at the end: the fewest tests run beside them then.
_MEASURE_CPU = ("test_accuracy.py", "test_prod_protection.py")
# Every demo removes what killed demos left on this machine, so no two files may do it at once.
_DEMOS = ("test_demo.py", "test_demo_workload.py")
# Minutes each: they begin before others of their kind, so that no process is left with one.
_LONG = ("test_distribution.py", "test_image.py", "test_qos_bench.py", "test_secure_broker.py")
_SUMMARY_COLUMNS = 400
# Set once for all processes of a run: they must agree on the order.
_PLANE_LAST = "TESTS_PLANE_LAST"


def pytest_configure() -> None:
    # A shell makes its background jobs ignore Ctrl-C, and our children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Examples take as long as the machine lets them: no property fails because of that. At night
    # there is time for more (`make nightly`); a test that needs a certain number names it.
    untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("untimed", untimed, max_examples=25)
    settings.register_profile("nightly", untimed, max_examples=200)
    settings.load_profile("untimed")
    os.environ.setdefault(_PLANE_LAST, str(int(not are_programs_built())))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "integration" in item.path.parts or _BROKER_FIXTURES.intersection(names):
            item.add_marker(pytest.mark.broker)
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
    runs_in_parallel = hasattr(config, "workerinput")
    items.sort(key=lambda item: _turn(item, runs_in_parallel=runs_in_parallel))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(config: pytest.Config) -> Generator[None, None, None]:
    # The host of CI may show little more than the summary, which is cut at 80 columns there.
    writer = config.get_terminal_writer()
    width = writer.fullwidth
    writer.fullwidth = max(width, _SUMMARY_COLUMNS)
    yield
    writer.fullwidth = width


def pytest_collection_finish(session: pytest.Session) -> None:
    # xdist appends the group to the id. Without, every process starts each broker and each plane.
    if hasattr(session.config, "workerinput") and any("@" not in i.nodeid for i in session.items):
        raise pytest.UsageError("pytest-xdist ignores xdist_group with this version of pytest")


def _kind(item: pytest.Item) -> int:
    if item.get_closest_marker("plane"):
        return _PLANE
    # The demos are the longest group without a control plane: it must not be left for the end.
    if "system" in item.path.parts or item.path.name in _DEMOS:
        return _SYSTEM
    return _BROKER if item.get_closest_marker("broker") else _PURE


def _boots_guest(item: pytest.Item) -> bool:
    return item.get_closest_marker("guest") is not None or item.path.parent.name == "guest"


def _turn(item: pytest.Item, *, runs_in_parallel: bool) -> tuple[int, bool]:
    kind, is_short = _kind(item), not (item.path.name in _LONG or _boots_guest(item))
    if not runs_in_parallel:
        return kind, False
    if item.path.name in _MEASURE_CPU:
        return 2, False
    # While the control plane is being built, everything else goes first.
    return 1 if kind == _PLANE and os.environ[_PLANE_LAST] == "1" else -kind, is_short


def group_of(item: pytest.Item) -> str:
    """Tests of one group run in one process: those of a file, but for the longest."""
    if item.get_closest_marker("plane"):
        names = getattr(item, "fixturenames", ())
        if "plane" in names:
            files = sorted(Path(__file__).parent.glob("cluster/test_*.py"))
            number = files.index(item.path) if item.path in files else "storm" in item.path.name
            return f"plane {number % _PLANE_GROUPS}"
        # Others start control planes of their own, or share a Prometheus with history.
        return "prometheus" if "prometheus" in names else str(item.path)
    if item.path.name in _MEASURE_CPU:
        return "CPU"
    if _boots_guest(item):
        return "guest"  # one virtual machine at a time: it has two CPUs
    if item.path.name in _DEMOS:
        return "demos"
    if item.path.name == "test_state_survives.py":
        return item.name
    return str(item.path)


@pytest.fixture(autouse=True)
def restored_log_level() -> Iterator[None]:
    """Commands that run in the test process set the level of the root logger, which would hide
    what later tests look for."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.fixture
def project() -> Path:
    """The root of the working tree."""
    return Path(__file__).parent.parent
