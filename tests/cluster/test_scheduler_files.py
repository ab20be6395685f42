"""A real kube-scheduler reads the configuration files of deploy/scheduler, and obeys them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pipeline.local.control_plane import ControlPlane, local_control_plane
from tests.cluster.extender_cluster import PORT, Cluster, add_nodes
from tests.cluster.objects import apply, node, pod

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

FREE, CROWDED = "free", "crowded"


@pytest.fixture(params=["observe", "act"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def asking_plane(project: Path, mode: str) -> Iterator[ControlPlane]:
    """A node with high requests and low usage, and a node with the reverse.

    The file is changed in addresses, and in the time-out: the machine may be busy.
    """
    tree = yaml.safe_load((project / "deploy" / "scheduler" / f"{mode}.yaml").read_text())
    (extender,) = tree["extenders"]
    extender |= {"urlPrefix": f"http://127.0.0.1:{PORT}", "httpTimeout": "20s"}
    del tree["clientConnection"], tree["leaderElection"]
    with local_control_plane(scheduler=tree) as plane:
        plane.kubectl("create", "namespace", "springtide-system")
        # Else the only node that takes pods already would get them in both modes.
        asyncio.run(add_nodes(plane, node(FREE), node(CROWDED)))
        apply(plane, pod("requests", on=CROWDED, cpu="6", memory="24Gi"))
        yield plane


async def test_observe_changes_nothing_and_act_decides_by_usage(
    cluster: Cluster, mode: str
) -> None:
    await cluster.use({FREE: 5.0, CROWDED: 0.5})
    async with cluster.extender("--fine-scores", mode=mode) as extender:
        nodes = await cluster.place("new", 2, cpu="100m", memory="64Mi")
        # In both modes the scheduler asked the extender.
        assert extender.text().count("/prioritize") >= 2
    assert {*nodes} == {"observe": {FREE}, "act": {CROWDED}}[mode]
