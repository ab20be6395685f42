"""With nodeFit a pod leaves only if another node could run it."""

from typing import Any, cast

import msgspec
import pytest

from actuators.eviction import other_nodes
from pipeline.errors import KubernetesError
from pipeline.kube.api_client import Api
from pipeline.processors.eviction.live_pods import read_live_pod
from pipeline.processors.eviction.migration_policy import MigrationPolicy, Protections
from pipeline.processors.policy.selectors import Selector
from pipeline.topics.pods import PodRecord
from tests.actuators.simulated_cluster import SimulatedPod
from tests.actuators.test_relief import World

FIT = MigrationPolicy(protections=Protections(evict_all_bare_pods=True), node_fit=True)
TAINT = {"key": "a", "value": "b", "effect": "NoSchedule"}


def node(name: str, cpu: Any = "4", **more: Any) -> Any:
    taints, unschedulable = more.pop("taints", []), more.pop("unschedulable", False)
    return {
        "metadata": {"name": name, "labels": more},
        "spec": {"taints": taints, "unschedulable": unschedulable},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}},
    }


def requesting(cpu: str) -> Any:
    return {"resources": {"requests": {"cpu": cpu}}}


def record(world: World, pod: SimulatedPod) -> PodRecord:
    return read_live_pod(msgspec.json.encode(world.cluster._manifest(pod))).record


@pytest.mark.parametrize(
    ("other", "more", "fits"),
    [
        (node("b"), {}, True),
        (node("b", cpu="1"), {}, False),
        (node("b", cpu="4500m"), {}, True),
        (node("b", cpu="3500m"), {}, False),  # 2 of them are taken
        (node("n"), {}, False),  # its own node
        (node("b", unschedulable=True), {}, False),
        (node("b", taints=[TAINT]), {}, False),
        (node("b", taints=[TAINT]), {"tolerations": [{"operator": "Exists"}]}, True),
    ],
)
async def test_a_pod_leaves_only_if_another_node_could_run_it(
    other: Any, more: Any, fits: bool
) -> None:
    world = World(policy=FIT)
    pod = world.cluster.add_pod("n", **requesting("2"), **more)
    world.cluster.add_pod("b", **requesting("2"))
    world.cluster.nodes = [node("n", cpu="64"), other]
    outcomes = await world.run(world.plan(pod))
    assert outcomes == (["intended", "done"] if fits else ["refused"])
    assert fits or world.last_error == "NodeFit: no other node could run the pod"


async def test_the_selectors_of_pod_and_policy_choose_the_nodes() -> None:
    world, queries = World(), list[Any]()
    answer = world.cluster.request

    async def request(method: str, path: str, *, params: Any = None, **more: Any) -> bytes:
        if path == "/api/v1/nodes":
            queries.append(params)
        return await answer(method, path, params=params, **more)

    world.cluster.request = request  # type: ignore[method-assign]
    pod = record(world, world.cluster.add_pod("n"))
    selected = PodRecord(
        node="n", uid="u", cgroup_uid="u", namespace="d", name="u", node_selector={"disk": "ssd"}
    )
    among = Selector(match_labels={"pool": "gold"})
    for each in (pod, selected):
        await other_nodes.no_other_node(cast(Api, world.cluster), each, among)
    assert [query["labelSelector"] for query in queries] == ["pool=gold", "disk=ssd,pool=gold"]


async def test_a_skipped_gate_asks_for_no_node() -> None:
    policy = MigrationPolicy(
        protections=FIT.protections, node_fit=True, skipped_gates=frozenset({"NodeFit"})
    )
    world = World(policy=policy)
    pod = world.cluster.add_pod("n", **requesting("2"))
    assert await world.run(world.plan(pod)) == ["intended", "done"]
    assert {action.skipped for action in world.log} == {("NodeFit",)}


async def test_many_full_nodes_are_asked_a_few_at_a_time() -> None:
    world = World(policy=FIT)
    pod = world.cluster.add_pod("n", **requesting("3"))
    names = [f"full-{number}" for number in range(60)]
    for name in names:
        world.cluster.add_pod(name, **requesting("2"))
    world.cluster.nodes = [node(name) for name in names]
    with pytest.raises(KubernetesError, match="20 nodes have no room"):
        await other_nodes.no_other_node(cast(Api, world.cluster), record(world, pod), None)
    assert await world.run(world.plan(pod, seconds=20.0), seconds=21.0) == ["refused"]
    assert "20 nodes have no room" in world.last_error
    # Each attempt asks others: one of them is found.
    world.cluster.nodes += [node(f"empty-{number}") for number in range(40)]
    assert await world.run(world.plan(pod, seconds=120.0), seconds=121.0) == [
        "refused", "intended", "done",
    ]  # fmt: skip


@pytest.mark.parametrize("invalid", ["node", "pod"])
async def test_room_that_is_not_known_is_neither_promised_nor_denied(invalid: str) -> None:
    world = World(policy=FIT)
    pod = world.cluster.add_pod("n", **requesting("1"))
    world.cluster.nodes = [node("b", cpu="much" if invalid == "node" else "4")]
    if invalid == "pod":
        world.cluster.add_pod("b", **requesting("much"))
    with pytest.raises(KubernetesError, match="not known"):
        await other_nodes.no_other_node(cast(Api, world.cluster), record(world, pod), None)
    world.cluster.nodes.append(node("c"))
    assert await world.run(world.plan(pod)) == ["intended", "done"]


async def test_other_modes_say_that_no_node_fits() -> None:
    world = World(policy=FIT, mode="observe")
    assert await world.run(world.plan(world.cluster.add_pod("n"))) == ["refused"]
    assert world.last_error.startswith("NodeFit")
