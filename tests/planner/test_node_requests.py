"""Requests of nodes for relief: what they ask for leaves them, by a plan like any other."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest

from actuators.planner.planner import take_request
from actuators.planner.relief_rounds import FIRST_NODES, PAUSE_SECONDS
from pipeline.errors import RecordError, UnknownNodeError
from pipeline.processors.descheduling.node_requests import NodeRequests
from pipeline.processors.eviction.eviction_objections import PREEMPTIBLE
from pipeline.topics.codec import encode_json
from pipeline.topics.eviction_requests import MOST_PODS
from pipeline.topics.pods import Owner
from tests.extender.relief_world import ReliefWorld
from tests.planner.test_other_strategies import asked, policy_of
from tests.planner.test_relief_rounds import Planning
from tests.processors.joined import NODE_ROW, header, joined, known_pod, logged, pod_row
from tests.processors.joined import view_of as view
from tests.table.records import GIB, NOW

CORES = {"free": 0.5, "low": 0.5, "high": 1.0, "big": 2.0, "prod": 4.0}
CLASSES = {"free": "free", "low": "batch", "high": "batch", "big": "batch", "prod": "prod"}
PRIORITIES = {"free": 3000, "low": 5000, "high": 5500, "big": 5500, "prod": 9000}


def planning_of(**fields: Any) -> Planning:
    world = ReliefWorld().node("n", 9.0).node("target", 1.0)
    rows = [pod_row(uid, cpu_cores_avg=c, memory_bytes_avg=GIB) for uid, c in CORES.items()]
    window = joined(NODE_ROW, *rows, view=view(*map(known_pod, CORES)), of=header("n", 0))
    assert world.table.pod_history.put(logged(window))
    for uid, cores in CORES.items():
        owner = Owner(kind="ReplicaSet", name=uid)
        world.pod("n", uid, cores, owner=owner, pod_class=CLASSES[uid], priority=PRIORITIES[uid])
    return Planning(world, policy_of("NodeRequests", **fields))


def ask(planning: Planning, **fields: Any) -> None:
    now = planning.clock.now()
    request = asked("n", now, **({"classes": ("free", "batch")} | fields))
    assert planning.rounds.requests.take(request, now, now)


async def planned_pods(planning: Planning) -> list[str]:
    await planning.after(PAUSE_SECONDS)
    return [pod.name for plan in planning.plans for pod in plan.pods]


@pytest.mark.parametrize(
    ("fields", "leaving"),
    [
        ({"cpu_millicores": 400}, ["free"]),
        ({"cpu_millicores": 900}, ["free", "low"]),
        ({"cpu_millicores": 2000}, ["free", "low", "high"]),
        # The large pod and one of the small ones suffice: the others stay after all.
        ({"cpu_millicores": 2500}, ["free", "big"]),
        ({"memory_bytes": 1}, ["free"]),
        ({"memory_bytes": 2 << 30, "cpu_millicores": 100}, ["free", "low"]),
        ({"cpu_millicores": 100, "classes": ("prod",)}, ["prod"]),
        ({"cpu_millicores": 100, "classes": ()}, []),
        # More than all of them use: what helps leaves, of equal rank the best fit first.
        ({"cpu_millicores": 9000}, ["free", "low", "big", "high"]),
    ],
)
async def test_the_fewest_pods_of_these_classes_leave_in_the_documented_order(
    fields: dict[str, Any], leaving: list[str]
) -> None:
    planning = planning_of()
    ask(planning, **fields)
    assert await planned_pods(planning) == leaving
    assert planning.reads == [{"n"}]


@pytest.mark.parametrize(
    ("fields", "leaving"),
    [
        # As named, whatever they use and whatever their rank.
        ({"pods": ("high", "free")}, ["high", "free"]),
        ({"pods": ("big",), "classes": ("free",)}, []),
        ({"pods": ("prod", "low")}, ["low"]),
        ({"pods": ("gone", "low", "low")}, ["low"]),
        ({"pods": ("gone",)}, []),
    ],
)
async def test_pods_that_a_request_names_leave_and_no_others(
    fields: dict[str, Any], leaving: list[str]
) -> None:
    planning = planning_of()
    ask(planning, cpu_millicores=9000, **fields)
    assert await planned_pods(planning) == leaving


async def test_a_named_pod_that_may_not_move_stays() -> None:
    planning = planning_of()
    labels = {PREEMPTIBLE: "false"}
    planning.world.pod("n", "low", 0.5, pod_class="batch", labels=labels)
    ask(planning, cpu_millicores=1, pods=("low", "free"))
    assert await planned_pods(planning) == ["free"]


async def test_a_named_pod_of_unknown_usage_leaves() -> None:
    """The node measures more often than windows arrive: it knows what it asks for."""
    world = ReliefWorld().node("n", 9.0).node("target", 1.0)
    owner = Owner(kind="ReplicaSet", name="a")
    planning = Planning(world.pod("n", "a", 2.0, pod_class="batch", owner=owner),
                        policy_of("NodeRequests"))  # fmt: skip
    ask(planning, cpu_millicores=400, pods=("a",))
    assert await planned_pods(planning) == ["a"]


async def test_a_request_is_planned_at_once_and_says_who_asks() -> None:
    planning = planning_of()
    assert await planning.after() == []
    assert planning.reads == []
    ask(planning, cpu_millicores=400)
    assert await planning.after(PAUSE_SECONDS) == ["n"]
    (plan,) = planning.plans
    assert plan.strategy == "NodeRequests"
    assert plan.why.startswith("the node asks for relief: agent: memory is reclaimed; 1 pod leaves")
    # A repeat, and another request, wait for the plan that is under way, and for its effect.
    ask(planning, cpu_millicores=400)
    assert await planning.after(PAUSE_SECONDS) == []
    planning.act(plan, "done")
    ask(planning, cpu_millicores=900, id="another")
    assert await planning.after(PAUSE_SECONDS) == []
    assert await planning.after(300.0) == []
    ask(planning, cpu_millicores=400, id="third")
    assert await planning.after(PAUSE_SECONDS) == ["n"]
    assert [[pod.name for pod in plan.pods] for plan in planning.plans] == [["free"], ["low"]]


async def test_a_request_that_ended_or_was_withdrawn_moves_nothing() -> None:
    planning = planning_of()
    ask(planning, cpu_millicores=400)
    ask(planning)  # nothing any more
    assert await planning.after(PAUSE_SECONDS) == []
    now = planning.clock.now()
    old = asked("n", now - 400, cpu_millicores=400)
    assert not planning.rounds.requests.take(old, now, now - 301)
    assert await planning.after(PAUSE_SECONDS) == []
    assert planning.reads == []


async def test_nodes_are_not_heard_without_the_strategy() -> None:
    planning = planning_of()
    planning.rounds.policy = policy_of("FragmentationAware")
    ask(planning, cpu_millicores=400)
    await planning.after()
    assert not [plan for plan in planning.plans if plan.strategy == "NodeRequests"]


async def test_pods_of_unknown_usage_stay() -> None:
    world = ReliefWorld().node("n", 9.0).node("target", 1.0).pod("n", "a", 2.0, pod_class="batch")
    planning = Planning(world, policy_of("NodeRequests"))
    ask(planning, cpu_millicores=400)
    assert await planning.after() == []
    assert planning.reads == [{"n"}]


@pytest.mark.parametrize("skew", [-86_400, 0, 86_400])
def test_clocks_of_nodes_do_not_matter(skew: float) -> None:
    requests = NodeRequests({"n", "other"}.__contains__)
    assert requests.take(asked("n", NOW + skew, cpu_millicores=1), NOW, NOW - 10)
    assert requests.open(NOW)["n"].until == NOW + 290
    assert requests.open(NOW + 290) == {}


VALID = asked("n", NOW, cpu_millicores=1)


@pytest.mark.parametrize(
    "fields",
    [
        {"at": "soon"}, {"valid_until": ""}, {"cpu_millicores": -1}, {"memory_bytes": 1 << 60},
        {"classes": ("best",)}, {"id": "r" * 513}, {"node": "Not A Node"}, {"node": "other"},
        {"pods": ("u",) * (MOST_PODS + 1)}, {"pods": ("u" * 513,)},
    ],
)  # fmt: skip
def test_garbage_is_refused_and_changes_nothing(fields: dict[str, Any]) -> None:
    requests = NodeRequests({"n", "other"}.__contains__)
    assert take_request(requests, b"n", encode_json(VALID), NOW, NOW)
    before = dict(requests.open(NOW))
    value = encode_json(msgspec.structs.replace(VALID, **fields))
    with pytest.raises(RecordError):
        take_request(requests, b"n", value, NOW, NOW)
    assert requests.open(NOW) == before


@pytest.mark.parametrize("value", [b"", b"[]", b"{", b'{"node": 1}'])
def test_a_record_of_another_kind_is_refused(value: bytes) -> None:
    with pytest.raises(RecordError):
        take_request(NodeRequests({"n", "other"}.__contains__), b"n", value, NOW, NOW)
    assert not take_request(NodeRequests({"n", "other"}.__contains__), b"n", None, NOW, NOW)


async def test_requests_of_nodes_that_do_not_exist_keep_no_node_out() -> None:
    planning = planning_of()
    now = planning.clock.now()
    for number in range(10_000):
        made_up = asked(f"made-up-{number}", now, cpu_millicores=400)
        with suppress(UnknownNodeError):
            planning.rounds.requests.take(made_up, now, now)
    ask(planning, cpu_millicores=400)
    assert {*planning.rounds.requests.open(now)} == {"n"}
    assert await planned_pods(planning) == ["free"]


async def test_nodes_that_ask_all_the_time_keep_no_other_node_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They come first by name, have no pod that may leave, and fill a round with new requests."""
    monkeypatch.setattr("actuators.planner.relief_rounds.NODES_OF_A_ROUND", FIRST_NODES)
    planning = planning_of()
    names = [f"a{number}" for number in range(FIRST_NODES)]
    for name in names:
        planning.world.node(name, 1.0)
    for turn in range(20):
        now = planning.clock.now()
        for name in names:
            request = asked(name, now, id=f"{turn}", cpu_millicores=400)
            assert planning.rounds.requests.take(request, now, now)
        ask(planning, cpu_millicores=400)
        await planning.after(PAUSE_SECONDS)
        if turn == 1:
            assert [plan.node for plan in planning.plans] == ["n"]
    assert all(len(nodes) <= FIRST_NODES for nodes in planning.reads)


def test_a_clock_that_was_set_ends_no_request() -> None:
    requests = NodeRequests({"n", "other"}.__contains__)
    requests.take(VALID, NOW, NOW)
    requests.shift(3600.0)
    assert {*requests.open(NOW + 3600)} == {"n"}
