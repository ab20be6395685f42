"""A plan fails, and evicts no pod, if the API server's answers are invalid."""

from typing import cast

import pytest

from actuators.cluster.write_queue import RateLimit
from actuators.eviction.plan_execution import PlanExecutor
from pipeline.clock import ManualClock
from pipeline.kube.api_client import Api
from pipeline.topics.actions import ActionRecord
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod, WaitingPod

NOON = "2024-01-01T12:00:00Z"
PLAN = EvictionPlanRecord(
    node="n", id="w/n", at=NOON, valid_until=NOON, planner="test", why="",
    pods=(LeavingPod(uid="u", pod_class="mid"),),
    waiting=WaitingPod(namespace="default", name="w", uid="w", priority=9500),
)  # fmt: skip


class Answers:
    """An API server with these answers, the last again and again."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = [*answers]
        self.methods: list[str] = []

    async def request(self, method: str, path: str, **_: object) -> bytes:
        self.methods.append(method)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


@pytest.mark.parametrize(
    "invalid",
    [
        b"", b"<html>", b"null", b"\xff", b'{"items":[null],"spec":7}',
        b'{"items":[{"metadata":{"name":1}}],"metadata":{"name":1}}',
        b'{"items":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", [(), (b'{"items":[]}',)])
async def test_an_invalid_answer_fails_the_plan(invalid: bytes, before: tuple[bytes, ...]) -> None:
    api, clock, actions = Answers(*before, invalid), ManualClock(), list[ActionRecord]()
    executor = PlanExecutor(
        cast(Api, api), "act", "/stop", RateLimit(1.0, clock), clock, actions.append, lambda: True
    )
    assert (await executor.execute(PLAN)).outcome == "failed"
    assert [action.outcome for action in actions] == ["failed"]
    assert set(api.methods) == {"GET"}
