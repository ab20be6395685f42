"""What holds for all tests: pure ones first, then those that need the broker, and those that need
the control plane, which may still be built meanwhile."""

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "tests.machine", "tests.plane"]

# Fixtures that stand for a running broker, wherever they are defined.
_BROKER_FIXTURES = frozenset({"broker", "kafka"})
_LAST = ("broker", "plane")


def pytest_configure() -> None:
    # A shell lets what it starts in the background ignore Ctrl-C, and so would every child of ours
    # that is to be ended by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # How fast an example is depends on who else is on the machine: no property fails of that.
    settings.register_profile(
        "untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "integration" in Path(item.path).parts or _BROKER_FIXTURES.intersection(names):
            item.add_marker(pytest.mark.broker)
    items.sort(key=lambda item: [bool(item.get_closest_marker(name)) for name in _LAST[::-1]])


@pytest.fixture
def project() -> Path:
    """The root of the working tree."""
    return Path(__file__).parent.parent
