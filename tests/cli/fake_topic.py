"""A fake topic for commands that show past records, without a broker."""

from collections.abc import Sequence
from contextlib import asynccontextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pipeline.cli import past_records, past_time_option
from tests.table.records import NOW


def fake_topic(
    monkeypatch: pytest.MonkeyPatch,
    command: ModuleType,
    topic: str,
    polls: Sequence[Sequence[bytes]],
    since_seconds: float,
) -> None:
    """Let `command` read these records of `topic`, poll by poll; the first poll has all past ones.

    It has to ask for the records of the last `since_seconds`. After the last poll the user
    interrupts it.
    """
    left = [*polls]

    class Follower:
        is_caught_up = False

        async def begin(self, since_ms: dict[str, int]) -> None:
            assert since_ms == {topic: round(1000 * (NOW - since_seconds))}

        async def poll(self, timeout_seconds: float = 0.25) -> Any:
            self.is_caught_up = True
            if not left:
                raise KeyboardInterrupt
            return [
                SimpleNamespace(topic=topic, partition=0, offset=offset, value=value)
                for offset, value in enumerate(left.pop(0))
            ]

    @asynccontextmanager
    async def follower(*_: Any, **__: Any) -> Any:
        yield Follower()

    async def require(*_: Any) -> None:
        pass

    monkeypatch.setattr(past_records, "open_follower", follower)
    monkeypatch.setattr(past_records, "require_topics", require)
    clock = SimpleNamespace(now=lambda: NOW, monotonic=lambda: 5.0)
    for module in (command, past_time_option):
        monkeypatch.setattr(module, "SystemClock", lambda: clock, raising=False)
