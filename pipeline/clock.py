"""The one clock.

Results depend on event time only. Whoever does need the wall clock (staleness, the exporter's grid,
pauses) takes a `Clock` as an argument, so that a test can hand in a `ManualClock`. Times are UTC
seconds since 1970 as floats; `pipeline.times` writes them.
"""

import asyncio
import heapq
import time
from typing import Protocol

from pipeline.times import format_time, parse_time

__all__ = ["Clock", "ManualClock", "SystemClock", "format_time", "parse_time"]


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> float:
        """UTC seconds since 1970; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of monotonic time; at the next turn of the loop if <= 0."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class ManualClock:
    """A clock that moves when it is told to.

    `await clock.advance(s)` moves wall and monotonic time together and wakes the sleepers whose
    time has come, each at its own moment and in order; `jump(s)` moves the wall clock alone, as a
    correction by NTP or by hand does.
    """

    def __init__(self, now: float = 1_700_000_000.0, monotonic: float = 0.0) -> None:
        self._now = now
        self._monotonic = monotonic
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = 0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._order += 1
        heapq.heappush(self._sleepers, (self._monotonic + seconds, self._order, wake))
        await wake

    def jump(self, seconds: float) -> None:
        """Move the wall clock only, forward or back."""
        self._now += seconds

    async def advance(self, seconds: float) -> None:
        """Let `seconds` >= 0 pass. Sleepers wake on the way and may go to sleep again."""
        if seconds < 0:
            raise ValueError(f"monotonic time does not go back: advance({seconds})")
        end = self._monotonic + seconds
        await _let_others_run()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, wake = heapq.heappop(self._sleepers)
            self._move_to(due)
            if not wake.done():
                wake.set_result(None)
            await _let_others_run()
        self._move_to(end)

    def _move_to(self, monotonic: float) -> None:
        self._now += monotonic - self._monotonic
        self._monotonic = monotonic


async def _let_others_run() -> None:
    # A task that wakes often needs a few turns of the loop before it sleeps again.
    for _ in range(10):
        await asyncio.sleep(0)
