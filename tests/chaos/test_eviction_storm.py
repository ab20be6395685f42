"""Two evictors in a storm of plans and failures: the API server's audit log shows no eviction that
any limit forbids. `make chaos` has a longer one of any seed."""

import os
from pathlib import Path

import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.local.local_kafka import LocalKafka
from tests.broker import own_topics
from tests.chaos.eviction_storm import FAILURES, run_storm
from tests.cluster.objects import Existing, delete_others
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(600)]

SEED = int(os.environ.get("STORM_SEED", "11"))
EVICTIONS = 30
USER = "system:serviceaccount:springtide-system:springtide-evictor"


async def test_a_storm_exceeds_no_limit(
    plane: ControlPlane, broker: LocalKafka, permanent: Existing, tmp_path: Path
) -> None:
    result = await run_storm(plane, own_topics(broker), tmp_path, SEED, EVICTIONS)
    await until(lambda: delete_others(plane, permanent), 120)
    assert result.problems == []
    assert {eviction.user for eviction in result.evictions} == {USER}
    assert len(result.evictions) >= EVICTIONS
    assert result.failures >= {*map(str, FAILURES)}
