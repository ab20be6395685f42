"""The one clock, and the one way to write a time.

Results depend on event time only. Whoever does need the wall clock (staleness, the exporter's grid,
pauses) takes a `Clock` as an argument, so that a test can hand in a `ManualClock`. Times are UTC
seconds since 1970 as floats inside the program and RFC 3339 with `Z` in records and on screens.
"""

import asyncio
import heapq
import re
import time
from datetime import UTC, datetime
from typing import Protocol

_RFC3339 = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:[Zz]|[+-]\d{2}:\d{2})"
)


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


def format_time(seconds: float) -> str:
    """RFC 3339 in UTC with `Z`: whole seconds as such, else milliseconds.

    >>> format_time(1_700_000_010), format_time(1_700_000_010.25)
    ('2023-11-14T22:13:30Z', '2023-11-14T22:13:30.250Z')
    """
    milliseconds = round(seconds * 1000)
    whole, rest = divmod(milliseconds, 1000)
    text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{rest:03d}Z" if rest else f"{text}Z"


def parse_time(text: str) -> float:
    """Seconds since 1970 of an RFC 3339 time with a zone; ValueError if it is not one.

    >>> parse_time("2023-11-14T22:13:30Z"), parse_time("2023-11-14T23:13:30.250+01:00")
    (1700000010.0, 1700000010.25)
    """
    if not _RFC3339.fullmatch(text):
        raise ValueError(f"not an RFC 3339 time with a zone: {text!r:.100}")
    return datetime.fromisoformat(text.upper()).timestamp()
