"""A short chaos run with real parts: `make chaos` runs longer, with 200 nodes and any seed."""

import os
from pathlib import Path

import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.local.kafka_cluster import local_cluster
from tests.chaos.run import chaos
from tests.cluster.objects import Existing, delete_others
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(400)]

SEED = int(os.environ.get("CHAOS_SEED", "23"))


async def test_no_guarantee_is_violated_under_faults(
    plane: ControlPlane, permanent: Existing, tmp_path: Path
) -> None:
    lines: list[str] = []
    with local_cluster() as cluster:
        found = await chaos(
            plane, cluster, tmp_path, seed=SEED, seconds=20, nodes=20, instances=2,
            report=lines.append,
        )  # fmt: skip
    await until(lambda: delete_others(plane, permanent), 120)
    assert found == [], f"seed {SEED}: {lines}"
