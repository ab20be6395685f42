"""One real broker for the integration session; each test creates topics with its own names."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.local.local_kafka import LocalKafka, local_kafka


@pytest.fixture(scope="session")
def broker() -> Iterator[LocalKafka]:
    """A running broker. A test that stops it must start it again."""
    with local_kafka() as kafka:
        yield kafka


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and "broker" in getattr(item, "fixturenames", ()):
            item.add_marker("broker")
