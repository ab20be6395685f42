"""The local control plane, one per test process."""

from collections.abc import Iterator

import pytest

from pipeline.local.control_plane import ControlPlane, local_control_plane
from tests.chaos.audit_log import AUDIT_POLICY

NAMESPACES = ("springtide-system", "koordinator-system")


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A ready control plane with our namespaces and an audit log of pods. A test that stops a part
    starts it again."""
    with local_control_plane(audit_policy=AUDIT_POLICY) as plane:
        for name in NAMESPACES:
            plane.kubectl("create", "namespace", name)
        yield plane
