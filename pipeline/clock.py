"""The clock interface, the system clock, and a manual clock for tests.

Results depend on event time only. Code that needs the wall clock (staleness, the exporter's grid,
pauses) takes a `Clock` as an argument. Times are UTC seconds since 1970; `pipeline.times` formats
them.
"""

import asyncio
import heapq
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now(self) -> float:
        """Return UTC seconds since 1970. They may jump."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start. They never decrease, and they count the time
        for which the machine was suspended."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`, without the time for which the machine was suspended; if <= 0, for
        the next turn of the event loop."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class ManualClock:
    """A clock that moves only by `advance`, `jump` and `suspend`."""

    def __init__(self, now: float = 1_700_000_000.0, monotonic: float = 0.0) -> None:
        self._now = now
        self._monotonic = monotonic
        self._suspended = 0.0
        self.sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = 0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic + self._suspended

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._order += 1
        heapq.heappush(self.sleepers, (self._monotonic + seconds, self._order, wake))
        await wake

    def jump(self, seconds: float) -> None:
        """Move the wall clock alone, forward or back, as a correction by NTP does."""
        self._now += seconds

    def suspend(self, seconds: float) -> None:
        """Let `seconds` pass while the machine is suspended: sleepers do not notice them."""
        self._now += seconds
        self._suspended += seconds

    async def advance(self, seconds: float) -> None:
        """Move both clocks by `seconds` >= 0. Sleepers wake in order, each at its own time."""
        if seconds < 0:
            raise ValueError(f"monotonic time does not go back: advance({seconds})")
        end = self._monotonic + seconds
        await _run_other_tasks()
        while self.sleepers and self.sleepers[0][0] <= end:
            wake_at, _, wake = heapq.heappop(self.sleepers)
            self._move_to(wake_at)
            if not wake.done():
                wake.set_result(None)
            await _run_other_tasks()
        self._move_to(end)

    def _move_to(self, monotonic: float) -> None:
        self._now += monotonic - self._monotonic
        self._monotonic = monotonic


async def _run_other_tasks() -> None:
    # A woken task may need a few turns of the event loop before it sleeps again.
    for _ in range(10):
        await asyncio.sleep(0)
