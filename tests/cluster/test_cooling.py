"""A pod that was refused because its node was hot is bound as soon as the node has cooled."""

from collections.abc import Iterator

import pytest

from pipeline.local.control_plane import ControlPlane, local_control_plane
from tests.cluster.extender_cluster import ALLOCATABLE, Cluster, scheduler_config
from tests.cluster.objects import apply, node, pod
from tests.cluster.roles import Role
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def asking_plane() -> Iterator[ControlPlane]:
    with local_control_plane(scheduler=scheduler_config({})) as plane:
        plane.kubectl("create", "namespace", "springtide-system")
        apply(plane, node("h1", **ALLOCATABLE))
        yield plane


async def test_a_cooled_node_gets_the_waiting_pod(cluster: Cluster) -> None:
    plane = cluster.plane
    await cluster.use({"h1": 60.0})
    async with cluster.extender():
        with Role("actuator", cluster.settings, "--mode", "act") as actuator:
            await actuator.logs("ready")
            assert "cpu usage exceed threshold" in await cluster.refusal(pod("waits", cpu="100m"))
            # Without the actuator the scheduler retries after five minutes.
            await cluster.use({"h1": 8.0})
            await until(lambda: cluster.nodes_of_pods("waits") == {"waits": "h1"}, 120)
    assert "springtide/cooled" in plane.kubectl("get", "node", "h1", "-o", "json")
