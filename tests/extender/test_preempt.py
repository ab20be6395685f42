"""Preempt: no eviction in vain, and Batch before Mid before Prod."""

import json
from typing import Any

import pytest

from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.times import format_time
from pipeline.topics.resource_amounts import Resources
from tests.extender.conftest import POD, Start
from tests.table.records import NOW, ROOM, any_pod, node_state, running

RESERVES = {"node.koordinator.sh/reservation": '{"resources": {"cpu": "2"}}'}


def cluster() -> Table:
    """Nodes that reserve 2 of 4 cores, with requests of 2; `hot` is over its threshold."""
    table = Table()
    for name, cpu in (("one", 1.0), ("two", 1.0), ("three", 1.0), ("hot", 3.9)):
        table.put_state(node_state(name, cpu=cpu))
        table.put_node(TableNode(node=name, allocatable=ROOM, annotations=RESERVES))
    for uid, node, pod_class in (
        ("m1", "one", "mid"), ("p1", "one", "prod"), ("b2", "two", "batch"), ("p2", "two", "prod"),
        ("b3", "three", "batch"), ("m3", "three", "mid"), ("b4", "hot", "batch"),
    ):  # fmt: skip
        pod = any_pod(uid, pod_class=pod_class, requests=Resources(cpu_millicores=1000))
        table.put_pod(running(pod, node))
    return table


def asked(**victims: list[str]) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "900m"}}}]}
    return {
        "Pod": POD | {"spec": spec},
        "NodeNameToVictims": None,
        "NodeNameToMetaVictims": {
            node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0}
            for node, uids in victims.items()
        },
    }


async def answer(start: Start, body: Any, mode: Any = "act") -> dict[str, list[str]]:
    response = await (await start(mode=mode, table=cluster())).post("/preempt", json=body)
    assert response.status == 200, await response.text()
    result = (await response.json())["NodeNameToMetaVictims"]
    return {node: [pod["UID"] for pod in victims["Pods"]] for node, victims in result.items()}


@pytest.mark.parametrize(
    ("victims", "left"),
    [
        ({"one": ["m1"]}, ["one"]),
        # Batch goes before Mid, and Mid before Prod.
        ({"one": ["m1"], "two": ["b2"]}, ["two"]),
        ({"one": ["m1"], "three": ["b3", "m3"]}, ["one", "three"]),
        ({"one": ["p1"], "three": ["m3"]}, ["three"]),
        ({"one": ["p1"], "two": ["p2"]}, ["one", "two"]),
        # An unknown pod ranks as Prod, and its eviction makes no room.
        ({"one": ["stranger"], "two": ["p2"]}, ["two"]),
        # That would not make the usage of the last window any lower.
        ({"hot": ["b4"]}, []),
        ({"one": []}, []),
        ({}, []),
    ],
)
async def test_preempt_answers_with_nodes_where_evictions_help_and_cost_least(
    start: Start, victims: dict[str, list[str]], left: list[str]
) -> None:
    assert await answer(start, asked(**victims)) == {node: victims[node] for node in left}


async def test_whole_pods_are_answered_by_their_uids(start: Start) -> None:
    victim = {"metadata": {"name": "x", "namespace": "d", "uid": "b2"}, "spec": {"priority": 5000}}
    body = asked() | {
        "NodeNameToMetaVictims": None,
        "NodeNameToVictims": {"two": {"Pods": [victim], "NumPDBViolations": 1}},
    }
    response = await (await start(table=cluster())).post("/preempt", json=body)
    assert await response.json() == {
        "NodeNameToMetaVictims": {"two": {"Pods": [{"UID": "b2"}], "NumPDBViolations": 1}}
    }


async def test_in_observe_preempt_changes_nothing(start: Start) -> None:
    victims = {"hot": ["b4"], "one": ["m1"], "two": ["b2"]}
    assert await answer(start, asked(**victims), mode="observe") == victims


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b'{"Pod": {}, "NodeNameToMetaVictims": {"a": {"Pods": [{}]}}}',
     b'{"Pod": {}, "NodeNameToVictims": {"a": {"Pods": [5]}}}',
     b'{"Pod": {}, "NodeNameToVictims": {"a": {"Pods": [{"metadata": {}}]}}}', b'{"Pod": 5}'],
)  # fmt: skip
async def test_an_invalid_request_is_answered_with_its_problem(start: Start, body: bytes) -> None:
    response = await (await start()).post("/preempt", data=body)
    assert response.status == 400
    assert json.loads(await response.read())["Hint"]


async def test_fewer_violated_budgets_come_before_cheaper_classes(start: Start) -> None:
    body = asked(one=["m1"], two=["b2"])
    body["NodeNameToMetaVictims"]["two"]["NumPDBViolations"] = 1
    assert await answer(start, body) == {"one": ["m1"]}


async def test_pods_in_flight_leave_with_their_victims(start: Start) -> None:
    """Nothing of it is in the last window, which is why its node was refused."""
    table = Table()
    for name in ("here", "there"):
        table.put_state(node_state(name, cpu=0.4))
        table.put_node(TableNode(node=name, allocatable=ROOM))
        table.put_pod(
            any_pod(
                f"young-{name}", node=name, pod_class="mid", phase="Pending",
                scheduled_at=format_time(NOW - 5), scalars={"kubernetes.io/mid-cpu": 3000},
            )
        )  # fmt: skip
    client = await start(mode="act", table=table)
    # Naming a pod of another node here does not remove it.
    body = asked(here=["young-here"], there=["young-here"])
    response = await client.post("/preempt", json=body)
    assert [*(await response.json())["NodeNameToMetaVictims"]] == ["here"]
    table.drop_pod("here", "young-here")
    left = await client.post("/filter", json={"Pod": body["Pod"], "NodeNames": ["here", "there"]})
    assert (await left.json())["NodeNames"] == ["here"]


def test_counting_pods_again_gives_the_same() -> None:
    table = cluster()
    row = table.lookup(["three"])[0]
    both = table.pods.amounts_of(["b3", "m3", "b3", "m1", "stranger"], int(row))
    assert both.tolist() == table.pods.sums[row].tolist()
    assert [table.pods.class_of(uid) for uid in ("b3", "m3", "p1", "x")] == [
        "batch", "mid", "prod", None,
    ]  # fmt: skip
