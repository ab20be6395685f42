"""Window after window: on the grid, after the delay, none twice, and none in a hurry."""

import asyncio
from typing import Any

import pytest

from pipeline.clock import ManualClock
from pipeline.errors import ProviderError
from pipeline.processors.provided.fetched_usage import FetchedUsage, TimeWindow
from pipeline.settings import ProviderSettings, Settings
from pipeline.sources.compacted_writer import Entry
from pipeline.sources.providers import window_rounds
from pipeline.sources.providers.status_page import Status
from pipeline.sources.providers.window_rounds import Rounds
from pipeline.tasks import cancel_tasks
from pipeline.topics.sample_rows import read_samples

SETTINGS = Settings(provider=ProviderSettings(kind="prometheus", window_seconds=60))
START = 1_699_999_980.0  # on the grid of minutes


class FakeProvider:
    """Gives one node, or fails; takes its time."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.asked: list[tuple[float, TimeWindow]] = []
        self.fails = False
        self.seconds = 0.0

    async def fetch(self, window: TimeWindow) -> FetchedUsage:
        self.asked.append((self.clock.now(), window))
        await self.clock.sleep(self.seconds)
        if self.fails:
            raise ProviderError("no")
        return FetchedUsage(nodes={"n1": {"cpu_cores_avg": 1.0, "coverage": 1.0}})


class CaughtUp:
    async def caught_up(self) -> None:
        return


class Running:
    """Rounds of a fake provider, and what they wrote."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now: float) -> None:
        self.clock = ManualClock(now)
        self.provider = FakeProvider(self.clock)
        self.status = Status(SETTINGS.provider, self.clock)
        self.status.leads = True
        self.written: list[Entry] = []

        async def write(producer: Any, kafka: Any, source: str, entries: list[Entry]) -> None:
            assert source == "provider"
            self.written += entries

        async def encoded(batches: Any) -> list[Entry]:
            return window_rounds._entries(batches)  # threads know nothing of a clock that is moved

        monkeypatch.setattr(window_rounds, "write_batches", write)
        monkeypatch.setattr(window_rounds, "_encoded", encoded)
        producer: Any = None
        self.rounds = Rounds(self.provider, SETTINGS, self.clock, self.status, producer)
        follower: Any = CaughtUp()
        self.task = asyncio.create_task(self.rounds._rounds(follower))

    @property
    def ends(self) -> list[float]:
        """The ends of the windows that were written, as seconds after START."""
        headers = [read_samples(entry.value or b"").header for entry in self.written]
        return [header.window_end_ms / 1000 - START for header in headers]


async def test_windows_follow_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, START + 30)
    await running.clock.advance(0)
    # The one before may not have been published by whoever led then.
    assert running.ends == [0]
    await running.clock.advance(34)
    assert running.ends == [0]
    await running.clock.advance(1)
    assert running.ends == [0, 60]
    await running.clock.advance(180)
    assert running.ends == [0, 60, 120, 180, 240]
    assert [at - START for at, _ in running.provider.asked] == [30, 65, 125, 185, 245]
    assert running.status.is_ready
    await cancel_tasks(running.task)


async def test_a_window_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, START + 10)
    await running.clock.advance(0)
    running.provider.fails = True
    await running.clock.advance(120)
    assert running.status.is_ready
    await running.clock.advance(90)
    assert not running.status.is_ready
    assert running.status.document()["message"] == "no"
    running.provider.fails = False
    await running.clock.advance(60)
    assert running.status.is_ready
    assert running.ends == [0, 240]
    await cancel_tasks(running.task)


async def test_a_slow_source_costs_windows_and_not_the_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Running(monkeypatch, START + 10)
    running.provider.seconds = 130
    await running.clock.advance(600)
    assert running.ends == [0, 120, 240, 360]
    await cancel_tasks(running.task)


async def test_a_clock_that_is_set_back_silences_us_for_a_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Running(monkeypatch, START + 10)
    await running.clock.advance(60)
    assert running.ends == [0, 60]
    running.clock.jump(-3600)
    await running.clock.advance(125)
    assert running.ends[:2] == [0, 60]
    assert len(running.ends) >= 3
    assert running.ends[2] < 0
    await cancel_tasks(running.task)
