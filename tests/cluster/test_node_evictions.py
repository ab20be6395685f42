"""A node asks for an eviction, the planner plans it and the evictor evicts: real cgroups, a real
broker, a real API server, and every role as a process.

In the first test a Prod pod works, the node actuator holds best-effort pods down, and its rule
`BECPUEvict` finds that too little is left for the Batch pod. The others ask by memory, which needs
no time.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.settings import Settings
from pipeline.times import format_time
from pipeline.topics.eviction_requests import EvictionRequestRecord
from tests.cluster.asking_node import ACT, ACT_ON_MEMORY, BATCH_POD, SPARE, AskingNode, asking_node
from tests.cluster.objects import delete
from tests.integration.actuated_node import NODE
from tests.processes import until

pytestmark = [
    pytest.mark.plane, pytest.mark.cgroups, pytest.mark.slow, pytest.mark.timeout(600)
]  # fmt: skip

POD = f"default/{BATCH_POD}"
REPEATS = 300
"""Requests of other names that repeat what the node asks for, at once."""
SETTLED_SECONDS = 12.0
"""Time in which a planner would have planned again, and an evictor would have evicted again."""


@pytest.fixture
async def asking(
    plane: ControlPlane, settings: Settings, tmp_path: Path
) -> AsyncIterator[AskingNode]:
    async with asking_node(plane, settings, tmp_path) as asking:
        yield asking


def repeats(request: EvictionRequestRecord, count: int) -> list[EvictionRequestRecord]:
    """The request made again now, each time with another name."""
    now = time.time()
    return [
        msgspec.structs.replace(
            request, id=f"repeat/{now}/{number}", at=format_time(now),
            valid_until=format_time(now + 60),
        )
        for number in range(count)
    ]  # fmt: skip


async def repeat_each_second(
    asking: AskingNode, request: EvictionRequestRecord, seconds: float
) -> None:
    for _ in range(round(seconds)):
        await asking.repeat(*repeats(request, 1))
        await asyncio.sleep(1)


async def test_a_request_that_is_repeated_while_no_planner_runs_evicts_its_pod_once(
    asking: AskingNode,
) -> None:
    uid, prod = asking.uid(), asking.prod_uids()
    cgroup = asking.run_pods()
    began = time.monotonic()
    asking.node.act(*ACT)
    # For a feature in mode observe the node only says what it would ask for.
    await until(lambda: asking.actions("be_memory_evict"), 120, asking.node.log)
    (observed,) = await asking.actions("be_memory_evict")
    assert (observed.outcome, observed.before) == ("observed", {POD: uid})
    with asking.evictor():
        await until(asking.requests, 120, asking.node.log)
        request = (await asking.requests())[0]
        assert (request.requester, request.pods) == ("node-actuator", (uid,))
        assert request.classes == ("batch",)
        assert request.why.startswith("BECPUEvict: best-effort pods may use ")
        assert "BEMemoryEvict" not in request.why
        await asking.repeat(*repeats(request, REPEATS))
        await repeat_each_second(asking, request, 5)
        # The node itself repeats what did not change every 20 seconds.
        page = asking.node.page()
        asked = page['springtide_node_actuator_eviction_requests_total{result="asked"}']
        assert asked <= 1 + (time.monotonic() - began) / 20
        assert asking.uid() == uid
        with asking.planner():
            await until(lambda: asking.uid() not in ("", uid), 120, asking.plan_now)
            asking.node.tree.remove(cgroup)
            await repeat_each_second(asking, request, SETTLED_SECONDS)
            await until(lambda: is_withdrawn(asking), 120, asking.node.log)
    (eviction,) = asking.evictions()
    assert (eviction.name, eviction.uid) == (BATCH_POD, uid)
    assert eviction.agent.startswith("springtide-evictor")
    (plan,) = await asking.plans()
    assert (plan.node, plan.strategy) == (NODE, "NodeRequests")
    assert [(pod.uid, pod.target) for pod in plan.pods] == [(uid, SPARE)]
    for action in (
        *await asking.actions("be_cpu_evict"), *await asking.actions("evict")
    ):  # fmt: skip
        assert (action.node, action.before) == (NODE, {POD: uid})
    assert [action.outcome for action in await asking.actions("evict")] == ["intended", "done"]
    assert "the node asks for relief: node-actuator: BECPUEvict" in asking.events()
    assert asking.pods()[BATCH_POD]["spec"]["nodeName"] == SPARE
    assert asking.prod_uids() == prod


async def is_withdrawn(asking: AskingNode) -> bool:
    """Whether the last request of the node itself names no pod."""
    own = [each for each in await asking.requests() if each.id.startswith(f"{NODE}/")]
    return not own[-1].pods


async def test_a_budget_that_allows_none_keeps_the_pod_and_the_action_says_so(
    asking: AskingNode,
) -> None:
    uid, prod = asking.uid(), asking.prod_uids()
    asking.allow_no_disruption()
    # A pod whose budget allows nothing waits until its plan ends.
    asking.let_plans_last(20)
    asking.run_pods()
    asking.node.act(*ACT_ON_MEMORY)
    with asking.evictor() as evictor:
        await evictor.logs("ready")
        with asking.planner():
            await until(lambda: asking.actions("evict", "refused"), 120, asking.plan_now)
    (plan,) = await asking.plans()
    assert [pod.uid for pod in plan.pods] == [uid]
    (refused,) = await asking.actions("evict")
    assert (refused.plan, refused.before) == (plan.id, {POD: uid})
    budget = "Forbidden: the disruption budget default/batch allows 0 evictions now, not 1"
    assert refused.error == budget
    assert asking.evictions() == []
    assert (asking.uid(), asking.prod_uids()) == (uid, prod)


async def test_an_evictor_in_mode_observe_evicts_nothing(asking: AskingNode) -> None:
    uid, prod = asking.uid(), asking.prod_uids()
    asking.run_pods()
    asking.node.act(*ACT_ON_MEMORY)
    with asking.planner(), asking.evictor("observe"):
        await until(lambda: asking.actions("evict"), 120, asking.plan_now)
        (observed,) = await asking.actions("evict")
        assert (observed.outcome, observed.before) == ("observed", {POD: uid})
    assert asking.evictions() == []
    assert (asking.uid(), asking.prod_uids()) == (uid, prod)


async def test_neither_a_successor_nor_a_prod_pod_leaves_for_an_old_request(
    asking: AskingNode,
) -> None:
    uid, prod = asking.uid(), asking.prod_uids()
    cgroup = asking.run_pods()
    actuator = asking.node.act(*ACT_ON_MEMORY)
    with asking.planner() as planner:
        await until(asking.plans, 120, asking.plan_now)
        request = (await asking.requests())[0]
        actuator.kill()
        # The successor has the name of the pod, and runs on the same node.
        asking.plane.kubectl("cordon", SPARE)
        asking.plane.kubectl("uncordon", NODE)
        delete(asking.plane, "pod", BATCH_POD)
        asking.node.tree.remove(cgroup)
        await until(lambda: asking.uid() not in ("", uid))
        await until(lambda: asking.pods()[BATCH_POD]["spec"].get("nodeName") == NODE)
        successor = asking.uid()
        # A target has room for every pod that a plan might name.
        asking.plane.kubectl("uncordon", SPARE)
        with asking.evictor():
            await until(lambda: asking.actions("evict"), 60, asking.plan_now)
            (refused,) = await asking.actions("evict")
            assert (refused.outcome, refused.before) == ("refused", {POD: uid})
            assert refused.error.startswith("Gone: ")
            stale = msgspec.structs.replace(request, pods=(uid, *prod))
            await repeat_each_second(asking, stale, SETTLED_SECONDS)
            await planner.logs("its class is none of those that may leave")
    assert [[pod.uid for pod in plan.pods] for plan in await asking.plans()] == [[uid]]
    assert asking.evictions() == []
    assert (asking.uid(), asking.prod_uids()) == (successor, prod)
