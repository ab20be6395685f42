"""Windows are published once, on the grid and after the delay."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock

import pytest

from pipeline.clock import ManualClock
from pipeline.errors import SampleSourceError
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage, TimeWindow
from pipeline.settings import ProviderSettings, Settings
from pipeline.sources.compacted_writer import Entry
from pipeline.sources.provider import window_rounds
from pipeline.sources.provider.status_page import Status
from pipeline.sources.provider.window_rounds import WindowPublisher
from pipeline.tasks import cancel_tasks
from pipeline.topics.sample_rows import read_samples

SETTINGS = Settings(provider=ProviderSettings(kind="prometheus", window_seconds=60))
START = 1_699_999_980.0  # on the grid of minutes


class FakeProvider:
    """Returns one node or fails, after `seconds`."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.requests: list[tuple[float, TimeWindow]] = []
        self.fails = False
        self.seconds = 0.0

    async def fetch(self, window: TimeWindow) -> FetchedUsage:
        self.requests.append((self.clock.now(), window))
        await self.clock.sleep(self.seconds)
        if self.fails:
            raise SampleSourceError("no")
        return FetchedUsage(nodes={"n1": {"cpu_cores_avg": 1.0, "coverage": 1.0}})


class Running:
    """A publisher with a fake provider, and the written entries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now: float) -> None:
        self.clock = ManualClock(now)
        self.provider = FakeProvider(self.clock)
        self.status = Status(SETTINGS.provider, self.clock)
        self.status.leads = True
        self.written: list[Entry] = []

        async def write(producer: Any, kafka: Any, source: str, entries: list[Entry]) -> None:
            assert source == "provider"
            self.written += entries

        async def encode(batches: Any) -> list[Entry]:
            # The manual clock does not wait for threads.
            return window_rounds.encode_entries(batches)

        monkeypatch.setattr(window_rounds, "write", write)
        monkeypatch.setattr(window_rounds, "encode_in_threads", encode)
        producer: Any = None
        self.publisher = WindowPublisher(self.provider, SETTINGS, self.clock, self.status, producer)
        follower: Any = AsyncMock()  # it has caught up
        self.task = asyncio.create_task(self.publisher.publish_windows(follower))

    @property
    def ends(self) -> list[float]:
        """The ends of the written windows in seconds after START."""
        headers = [read_samples(entry.value or b"").header for entry in self.written]
        return [header.window_end_ms / 1000 - START for header in headers]


async def test_windows_follow_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, START + 30)
    # The previous leader may not have published the last window.
    for seconds, windows in ((0, 1), (34, 1), (1, 2), (180, 5)):
        await running.clock.advance(seconds)
        assert running.ends == [60 * number for number in range(windows)]
    assert [time - START for time, _ in running.provider.requests] == [30, 65, 125, 185, 245]
    assert running.status.is_ready
    await cancel_tasks(running.task)


async def test_failed_window_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, START + 10)
    await running.clock.advance(0)
    running.provider.fails = True
    await running.clock.advance(120)
    assert running.status.is_ready
    await running.clock.advance(90)
    assert (running.status.is_ready, running.status.document()["message"]) == (False, "no")
    running.provider.fails = False
    await running.clock.advance(60)
    assert (running.status.is_ready, running.ends) == (True, [0, 240])
    await cancel_tasks(running.task)


async def test_slow_source_skips_windows_and_stays_on_the_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Running(monkeypatch, START + 10)
    running.provider.seconds = 130
    await running.clock.advance(600)
    assert running.ends == [0, 120, 240, 360]
    await cancel_tasks(running.task)


async def test_publishing_resumes_after_the_clock_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Running(monkeypatch, START + 10)
    await running.clock.advance(60)
    assert running.ends == [0, 60]
    running.clock.jump(-3600)
    await running.clock.advance(125)
    assert running.ends[:2] == [0, 60]
    assert running.ends[2] < 0
    await cancel_tasks(running.task)
