"""The clean-up of the control plane that tests of the cluster use."""

from tests.cluster.conftest import permanent

__all__ = ["permanent"]
