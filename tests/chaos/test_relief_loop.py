"""A closed loop of evictions and scheduling on real parts: no pod returns to the node that its
workload left, none is evicted again within its rest, and no target gets hot. `make chaos` ends with
a longer one."""

from pathlib import Path

import pytest

from pipeline.local.local_kafka import LocalKafka
from tests.broker import own_topics
from tests.chaos.relief_loop import Bugs, LoopResult, asking_plane, run_loop

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(900)]


async def run(broker: LocalKafka, folder: Path, bugs: Bugs, cycles: int) -> LoopResult:
    with asking_plane() as (plane, url):
        kafka = own_topics(broker)
        return await run_loop(plane, url, kafka, folder, bugs, cycles=cycles)


async def test_a_node_is_relieved_once_and_nothing_returns(
    broker: LocalKafka, tmp_path: Path
) -> None:
    result = await run(broker, tmp_path, {}, cycles=1)
    assert result.violations == []
    assert len(result.evictions) == 1
    assert result.placed_anew == 1


async def test_without_rests_and_last_resorts_the_monitor_names_them(
    broker: LocalKafka, tmp_path: Path
) -> None:
    bugs = {"extender": ("relieved_nodes_unmarked",), "planner": ("moves_forgotten",)}
    result = await run(broker, tmp_path, bugs, cycles=1)
    assert {violation.limit for violation in result.violations} >= {"return", "rest"}, result
