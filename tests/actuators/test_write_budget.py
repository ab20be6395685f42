"""The limit of writes follows the number of Nodes unless it is set."""

import pytest

from actuators.cluster.cluster_actuator import writes_per_second
from pipeline.settings import ActuatorSettings, Settings


@pytest.mark.parametrize(
    ("fixed", "nodes", "limit"),
    [(None, 0, 20), (None, 600, 20), (None, 10_000, 10_000 / 30), (5.0, 10_000, 5)],
)
def test_the_limit_of_writes_follows_the_number_of_nodes(
    fixed: float | None, nodes: int, limit: float
) -> None:
    settings = Settings(actuator=ActuatorSettings(writes_per_second=fixed))
    assert writes_per_second(settings, nodes) == limit
    # A NodeMetric per node and minute fits in, with as many other writes.
    assert fixed is not None or limit >= 2 * nodes / 60
