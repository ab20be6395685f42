"""What answers of the Eviction API mean."""

import pytest

from pipeline.processors.eviction.eviction_answers import (
    LONGEST_WAIT_SECONDS,
    action_for,
    may_have_happened,
    meaning_of,
    next_step,
)


@pytest.mark.parametrize(
    ("status", "action"),
    [
        (200, "accepted"), (201, "accepted"), (400, "fail_bug"), (401, "fail_auth"),
        (403, "fail_report"), (404, "done"), (409, "drop_replan"), (422, "fail_bug"),
        (429, "retry_later"), (500, "fail_report"), (502, "retry_later"), (503, "retry_later"),
        (504, "retry_later"), (599, "retry_later"), (302, "fail_bug"), (None, "unknown"),
    ],
)  # fmt: skip
def test_each_answer_has_one_action_with_a_meaning(status: int | None, action: str) -> None:
    assert action_for(status) == action
    assert meaning_of(action_for(status))


def test_a_lost_answer_or_a_failed_server_may_hide_an_eviction() -> None:
    statuses = [200, 201, 403, 404, 409, 422, 429, 500, 502, 503, 504, None]
    assert [s for s in statuses if may_have_happened(s)] == [200, 201, 404, 500, 502, 504, None]


def test_retries_wait_as_asked_and_end_at_the_deadline() -> None:
    def wait(status: int | None, retry_after: float | None, waited: float = 0.0) -> float | None:
        step = next_step(status, retry_after, waited_seconds=waited, deadline_seconds=60.0)
        return step.wait_seconds

    assert (wait(429, None), wait(429, 10.0), wait(None, None)) == (5.0, 10.0, 5.0)
    assert wait(429, 86_400.0) == LONGEST_WAIT_SECONDS
    assert (wait(429, 10.0, 50.0), wait(429, 10.0, 51.0)) == (10.0, None)
    assert [wait(status, 1.0) for status in (201, 404, 409, 500, 403, 422)] == [None] * 6
