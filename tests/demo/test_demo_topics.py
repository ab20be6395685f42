"""A demo creates its topics also where its broker answers late."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.clock import Clock, SystemClock
from pipeline.errors import BrokerUnavailableError, DemoError
from pipeline.local import demo_topics
from pipeline.settings import KafkaSettings

Apply = Callable[[int], None]


class SteppedClock(SystemClock):
    """A clock that advances by a minute at each look."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 60.0
        return self.seconds


def is_running() -> None:
    """The broker has not ended."""


def create(
    monkeypatch: pytest.MonkeyPatch,
    apply: Apply,
    check: Callable[[], None] = is_running,
    clock: Clock | None = None,
) -> tuple[bool, int]:
    """Whether the topics were created, and the number of attempts."""
    attempts = 0
    stop = asyncio.Event()

    async def apply_topics(_: Any) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 5:
            stop.set()
        apply(attempts)

    monkeypatch.setattr(demo_topics, "apply_topics", apply_topics)
    monkeypatch.setattr(demo_topics, "_PAUSE_SECONDS", 0.0)
    created = asyncio.run(
        demo_topics.create_topics(KafkaSettings(), clock or SystemClock(), stop, check)
    )
    return created, attempts


def time_out(_: int) -> None:
    raise BrokerUnavailableError("no broker answers (TimeoutError)")


def time_out_twice(attempt: int) -> None:
    if attempt < 3:
        time_out(attempt)


def test_attempt_that_times_out_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert create(monkeypatch, time_out_twice) == (True, 3)


def test_signal_ends_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert create(monkeypatch, time_out) == (False, 5)


def test_after_three_minutes_the_error_names_load_and_no_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(DemoError, match=r"did not answer within .* s: no broker answers") as caught:
        create(monkeypatch, time_out, clock=SteppedClock())
    assert caught.value.hint == "this machine may be overloaded: try again when it is less busy"


def test_broker_that_ended_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise DemoError("the demo's broker ended")

    with pytest.raises(DemoError, match="broker ended"):
        create(monkeypatch, time_out, fail)
