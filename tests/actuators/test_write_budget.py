"""The limit of writes follows the number of Nodes unless it is set."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from actuators.cluster.cluster_actuator import ClusterActuator, writes_per_second
from actuators.cluster.feature import NODES_WATCH
from actuators.cluster.write_queue import Write
from pipeline.clock import ManualClock
from pipeline.settings import ActuatorSettings, Settings
from pipeline.tasks import cancel_tasks


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


@pytest.mark.parametrize(("nodes", "writes"), [(1, 20), (6000, 200)])
async def test_the_queue_writes_as_often_as_the_number_of_nodes_allows(
    nodes: int, writes: int
) -> None:
    clock, done, unused = ManualClock(), list[str](), cast(Any, None)
    lease = cast(Any, SimpleNamespace(is_held=True))
    actuator = ClusterActuator(unused, Settings(), clock, lease)

    def write(name: str) -> Write:
        async def execute() -> None:
            done.append(name)

        return Write(execute, lambda _: None)

    for number in range(nodes):
        node = {"metadata": {"name": f"n{number}", "uid": f"u{number}"}, "status": {}}
        for follower in actuator.watches[NODES_WATCH]:
            follower.observed(msgspec.json.encode(node))
    actuator.decide(everything=True)
    for number in range(2 * writes):
        actuator.queue.put("test", str(number), write(str(number)))
    working = asyncio.create_task(actuator.queue.run())
    await clock.advance(1.0)
    await cancel_tasks(working)
    assert len(done) == pytest.approx(writes, abs=2)
