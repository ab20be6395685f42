"""Plans with a fake API server: what stops an eviction, and what does not."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from itertools import chain, repeat
from typing import Any, TypeVar, cast

import pytest

from actuators.eviction.eviction_gate import EvictionGate
from actuators.eviction.plan_execution import PlanExecutor
from actuators.eviction.received_plans import receive
from actuators.rate_limit import RateLimit
from pipeline.clock import ManualClock
from pipeline.errors import (
    ApiRefusedError,
    ApiUnavailableError,
    BrokerUnavailableError,
    KubernetesError,
    NotFoundError,
)
from pipeline.kube.api_client import Api
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod, WaitingPod

PLAN = EvictionPlanRecord(
    node="n", id="w/n", at=format_time(ManualClock().now()),
    valid_until=format_time(ManualClock().now() + 240.0), planner="test", why="",
    pods=(LeavingPod(uid="u", pod_class="mid"),),
    waiting=WaitingPod(namespace="default", name="w", uid="w", priority=9500),
)  # fmt: skip
PODS, STOP = "/api/v1/pods", "/stop"
WAITING = "/api/v1/namespaces/default/pods/w"
VICTIM = "/api/v1/namespaces/default/pods/u"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def pod(uid: str, node: str = "n", tier: str = "mid", priority: int = 0, **limits: str) -> Any:
    containers = [{"name": "main", "resources": {"limits": limits}}]
    labels = {"koordinator.sh/priority-class": f"koord-{tier}"}
    return {
        "metadata": {"name": uid, "namespace": "default", "uid": uid, "labels": labels},
        "spec": {"nodeName": node, "priority": priority, "containers": containers},
    }


def listed(*items: Any) -> Any:
    return {"kind": "SomeList", "metadata": {"resourceVersion": "7"}, "items": items}


class FakeApi:
    """An API server with a victim and a pod that waits; `answers` by path replace its own."""

    clock = ManualClock()

    def __init__(self, **answers: Any) -> None:
        waiting = pod("w", node="", tier="prod", priority=9500)
        self.answers: dict[str, Any] = {
            PODS: listed(pod("u")), WAITING: waiting, BUDGETS: listed(),
            STOP: NotFoundError("no ConfigMap", reason="NotFound"), VICTIM: pod("u"),
        } | answers  # fmt: skip
        self.requests: list[str] = []
        self.on_request: Callable[[str], None] = lambda path: None

    async def request(self, method: str, path: str, body: Any = None, **_: object) -> bytes:
        is_dry_run = bool(body) and "dryRun" in body["deleteOptions"]
        self.requests.append(f"dry run {path}" if is_dry_run else f"{method} {path}")
        self.on_request(path)
        answer = {} if method == "POST" else self.answers[path]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    async def create(self, path: str, body: Any) -> Any:
        """Take an Event."""

    @property
    def evictions(self) -> int:
        return sum(request.startswith("POST") for request in self.requests)


class FakeActions(list[ActionRecord]):
    """Actions in the order in which they were taken; `fails` is raised instead of a delivery."""

    fails: Exception | None = None

    def put(self, action: ActionRecord) -> None:
        self.append(action)

    async def write(self, action: ActionRecord) -> None:
        if self.fails is not None:
            raise self.fails
        self.append(action)


ResultT = TypeVar("ResultT")


async def in_time(running: Coroutine[Any, Any, ResultT], clock: ManualClock) -> ResultT:
    """Run while the clock moves, for two minutes at most."""
    task = asyncio.create_task(running)
    for _ in range(240):
        if task.done():
            break
        await clock.advance(0.5)
    return await asyncio.wait_for(task, 0)


async def execute(
    api: FakeApi, actions: FakeActions | None = None, may_evict: Callable[[], bool] = lambda: True
) -> list[str]:
    """Execute the plan, and return the outcomes of its actions, the last with its error."""
    actions, clock = FakeActions() if actions is None else actions, ManualClock()
    gate = EvictionGate(cast(Api, api), STOP, RateLimit(1.0, clock), clock, actions, may_evict)
    result = await in_time(PlanExecutor(gate, "act").execute(receive(PLAN, clock)), clock)
    assert result.outcome == actions[-1].outcome
    return [action.outcome for action in actions[:-1]] + [
        " ".join(filter(None, (actions[-1].outcome, actions[-1].error)))
    ]


async def test_a_plan_is_executed_and_each_eviction_recorded_before_it_happens() -> None:
    api, actions = FakeApi(), FakeActions()
    recorded: list[list[str]] = []
    api.on_request = lambda path: recorded.append([action.outcome for action in actions])
    assert await execute(api, actions) == ["intended", "done"]
    assert (api.evictions, recorded[-1]) == (1, ["intended"])
    assert {(action.plan, action.waiting) for action in actions} == {("w/n", "w")}


@pytest.mark.parametrize("other", [
    pod("other", memory="7Ei", cpu="7E"), pod("other", memory="much"),
    {"metadata": {"uid": "other"}, "spec": 7},
])  # fmt: skip
async def test_another_pod_on_the_node_stops_no_plan(other: Any) -> None:
    api = FakeApi(**{PODS: listed(other, pod("u"))})
    assert await execute(api) == ["intended", "done"]


async def test_a_victim_with_huge_amounts_is_evicted() -> None:
    assert await execute(FakeApi(**{PODS: listed(pod("u", memory="7Ei"))})) == ["intended", "done"]


@pytest.mark.parametrize("path", [PODS, BUDGETS])
@pytest.mark.parametrize("answer", [{}, {"items": []}, listed() | {"kind": "Pod"}, b"<html>"])
async def test_an_answer_that_is_no_list_evicts_nothing(path: str, answer: Any) -> None:
    api = FakeApi(**{path: answer})
    (outcome,) = await execute(api)
    assert "invalid answer" in outcome
    assert api.evictions == 0


async def test_a_proxy_that_does_not_know_the_kill_switch_stops_evictions() -> None:
    api = FakeApi(**{STOP: NotFoundError("404 page not found")})
    assert await execute(api) == [
        "refused Stopped: cannot read the kill switch: 404 page not found"
    ]
    assert api.evictions == 0


async def test_the_kill_switch_is_read_directly_before_the_eviction() -> None:
    api, actions = FakeApi(), FakeActions()

    def stop_once_recorded(path: str) -> None:
        if actions:
            api.answers[STOP] = {}

    api.on_request = stop_once_recorded
    assert await execute(api, actions) == [
        "intended",
        f"refused Stopped: evictions are stopped by {STOP}",
    ]
    assert (api.requests[-1], api.evictions) == (f"GET {STOP}", 0)


async def test_a_lease_that_is_lost_while_the_kill_switch_is_read_stops_the_eviction() -> None:
    api, held = FakeApi(), [True]
    api.on_request = lambda path: held.__setitem__(0, path != STOP)
    assert await execute(api, may_evict=lambda: held[0]) == [
        "refused Stopped: another evictor holds the lease"
    ]
    assert api.evictions == 0


async def test_an_eviction_that_cannot_be_recorded_does_not_happen() -> None:
    api, actions = FakeApi(), FakeActions()
    actions.fails = BrokerUnavailableError("no broker")
    assert await execute(api, actions) == ["failed NotRecorded: no broker"]
    assert api.evictions == 0


@pytest.mark.parametrize(
    ("error", "made_room"),
    [
        (ApiUnavailableError("answer lost"), True),
        (ApiUnavailableError("error after the eviction", was_done=True), True),
        (KubernetesError("invalid answer"), True),
        (ApiUnavailableError("disruption budget", was_done=False), False),
        (ApiRefusedError("forbidden"), False),
    ],
)
async def test_an_eviction_that_may_have_happened_counts_as_one(
    error: KubernetesError, made_room: bool
) -> None:
    api, clock = FakeApi(), ManualClock()

    def fail_once_sent(path: str) -> None:
        if api.evictions:
            raise error

    api.on_request = fail_once_sent
    actions, rate = FakeActions(), RateLimit(1.0, clock)
    gate = EvictionGate(cast(Api, api), STOP, rate, clock, actions, lambda: True)
    result = await in_time(PlanExecutor(gate, "act").execute(receive(PLAN, clock)), clock)
    assert result == ("failed", made_room, True)
    assert gate.history.is_leaving("u") == made_room


@pytest.mark.parametrize("path", [PODS, WAITING])
@pytest.mark.parametrize(
    "invalid",
    [
        b"", b"<html>", b"null", b"\xff", listed(None) | {"spec": 7},
        {"items": [{"metadata": {"name": 1}}], "metadata": {"name": 1}},
        b'{"items":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)  # fmt: skip
async def test_an_invalid_answer_fails_the_plan(invalid: Any, path: str) -> None:
    api = FakeApi(**{path: invalid})
    (outcome,) = await execute(api)
    assert outcome.startswith("failed")
    assert api.evictions == 0


async def test_slow_checks_do_not_bring_evictions_closer_together() -> None:
    """The limit counts evictions, not the waits before their checks."""
    clock, evicted = ManualClock(), list[float]()
    api, limit = FakeApi(), RateLimit(0.1, clock)
    checks = chain((5.0,), repeat(0.0))  # the first answer is too old, and is asked for again

    def answer(path: str) -> None:
        if path == STOP:
            clock.suspend(next(checks))
        elif path.endswith("/eviction") and api.evictions > len(evicted):
            evicted.append(clock.monotonic())

    api.on_request = answer
    for _ in range(2):
        gate = EvictionGate(cast(Api, api), STOP, limit, clock, FakeActions(), lambda: True)
        executor = PlanExecutor(gate, "act")
        executing = asyncio.create_task(executor.execute(receive(PLAN, clock)))
        while not executing.done():
            await clock.advance(0.5)
    assert evicted[1] - evicted[0] >= 10.0
