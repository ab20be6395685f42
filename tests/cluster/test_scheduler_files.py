"""The files that users give to kube-scheduler, given to a real one: it takes them as they are, and
does what they are for."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pipeline.local.control_plane import ControlPlane, local_control_plane
from tests.cluster.asking import PORT, Cluster, all_bound
from tests.cluster.objects import apply, node, pod
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

FREE, CROWDED = "free", "crowded"


@pytest.fixture(params=["observe", "act"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def asking(project: Path, mode: str) -> Iterator[ControlPlane]:
    """A node of which much is asked for and little used, and one that is the other way round. Of
    the file it is another here where extender and API server are, and how long is waited: on a busy
    machine an answer that is late must not be one that is not heard."""
    tree = yaml.safe_load((project / "deploy" / "scheduler" / f"{mode}.yaml").read_text())
    (extender,) = tree["extenders"]
    extender |= {"urlPrefix": f"http://127.0.0.1:{PORT}", "httpTimeout": "20s"}
    del tree["clientConnection"], tree["leaderElection"]
    with local_control_plane(scheduler=tree) as plane:
        plane.kubectl("create", "namespace", "springtide-system")
        apply(plane, node(FREE), node(CROWDED))
        apply(plane, pod("asks", on=CROWDED, cpu="6", memory="24Gi"))
        yield plane


async def test_observe_leaves_all_as_it_was_and_act_goes_by_usage(
    cluster: Cluster, mode: str
) -> None:
    await cluster.uses({FREE: 5.0, CROWDED: 0.5})
    extender = cluster.extender("--fine-scores", "--mode", mode)
    with extender:
        await until(lambda: "table caught up" in extender.text(), 60)
        cluster.create("asked", 2, cpu="100m", memory="64Mi")
        await until(all_bound(cluster, "asked", 2), 60)
        # It was asked, and nobody refused the question.
        assert extender.text().count("/prioritize") >= 2
    expected = {"observe": {FREE}, "act": {CROWDED}}[mode]
    assert set(cluster.landed("asked").values()) == expected
