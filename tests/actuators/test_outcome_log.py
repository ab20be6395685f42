"""The evictor's log: one line per pod and outcome, at a bounded rate."""

import logging
from typing import Any

import pytest

from actuators.eviction.outcome_log import LINES_PER_MINUTE, REMEMBERED, OutcomeLog
from pipeline.clock import ManualClock
from pipeline.topics.actions import ActionRecord


def action(pod: str, outcome: Any = "refused", **fields: Any) -> ActionRecord:
    return ActionRecord(
        **{
            "node": "db", "at": "2023-11-14T22:12:00Z", "actuator": "evictor", "action": "evict",
            "outcome": outcome, "why": "plan 7: it is hot", "plan": "7",
            "before": {pod: f"uid of {pod}"}, "error": "evictions are stopped by /x",
        } | fields
    )  # fmt: skip


def fields_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.__dict__["fields"] for record in caplog.records]


@pytest.fixture(autouse=True)
def at_level_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "actuators.eviction.outcome_log")


def test_each_outcome_of_a_pod_is_logged_once_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = OutcomeLog(ManualClock())
    for _ in range(2):
        log.note(action("d/a", "intended"))
        log.note(action("d/a"))
        log.note(action("d/a", "done", error=""))
    assert fields_of(caplog) == [
        {"pod": "d/a", "node": "db", "outcome": "refused", "why": "evictions are stopped by /x",
         "plan": "7"},
        {"pod": "d/a", "node": "db", "outcome": "done", "why": "plan 7: it is hot", "plan": "7"},
    ]  # fmt: skip


def test_a_refused_plan_and_a_later_plan_have_lines_of_their_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = OutcomeLog(ManualClock())
    log.note(action("d/a"))
    log.note(action("d/a", plan="8"))
    log.note(action("", before={}, plan="9"))
    log.note(action("", before={}, plan="", action="mark the log"))
    assert [line["pod"] for line in fields_of(caplog)] == ["d/a", "d/a", "all pods of the plan"]


async def test_lines_are_few_a_minute_and_dropped_ones_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    log = OutcomeLog(clock)
    for number in range(LINES_PER_MINUTE + 40):
        log.note(action(f"d/{number}", error="x" * 9000))
    lines = fields_of(caplog)
    assert (len(lines), len(lines[0]["why"])) == (LINES_PER_MINUTE, 500)
    await clock.advance(60)
    log.note(action("d/last"))
    log.note(action("d/one more"))
    dropped, *lines = fields_of(caplog)[-3:]
    assert (dropped, [line["pod"] for line in lines]) == ({"lines": 40}, ["d/last", "d/one more"])


async def test_remembered_lines_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    log = OutcomeLog(clock)
    for number in range(REMEMBERED + 2):
        log.note(action(f"d/{number}"))
        if number % LINES_PER_MINUTE == 0:
            await clock.advance(60)
    assert len(log._logged) == REMEMBERED
    before = len(caplog.records)
    log.note(action("d/0"))
    log.note(action(f"d/{REMEMBERED}"))
    assert len(caplog.records) == before + 1
