"""A control plane for the tests of a folder, and settings by which one is its administrator."""

from collections.abc import Iterator

import pytest

from pipeline.local.control_plane import ControlPlane, local_control_plane


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    with local_control_plane() as plane:
        plane.kubectl("create", "namespace", "springtide-system")
        plane.kubectl("create", "namespace", "koordinator-system")
        yield plane
