"""When to read: on the whole multiples of the interval in UTC, whatever clock and process do.

A tick is named by the grid point it belongs to, not by the microsecond at which the process woke
up, so that windows end where they say. What went wrong since the tick before is part of the tick:
grid points that were missed (process stopped, machine busy) and a wall clock that was moved.
"""

from typing import Final, NamedTuple

from pipeline.clock import Clock

# Waking up this much of an interval too early, by clock slewing, still is that grid point.
_EARLY: Final = 0.1
# Slewing moves a clock by half a millisecond a second; more than this was a step.
_STEP_SECONDS: Final = 0.2


class Tick(NamedTuple):
    """One moment of reading."""

    at_ms: int
    """Grid point, milliseconds since 1970."""
    monotonic: float
    """Seconds on the monotonic clock, at the start of the reading."""
    missed: int
    """Grid points since the last tick that nobody read at."""
    stepped_seconds: float
    """How far the wall clock was moved since the last tick, 0.0 if it was not."""


class Ticker:
    """Gives one tick after the other."""

    def __init__(self, clock: Clock, interval_ms: int) -> None:
        self._clock = clock
        self._interval_ms = interval_ms
        self._last: tuple[int, float, float] | None = None  # grid point, wall, monotonic

    async def next(self) -> Tick:
        """Sleep to the next grid point; at once if it has passed already.

        After a step of the clock the grid point may be any, an earlier one as well.
        """
        while True:
            target_ms = self._grid_point(self._clock.now()) + self._interval_ms
            await self._clock.sleep(target_ms / 1000 - self._clock.now())
            wall, monotonic = self._clock.now(), self._clock.monotonic()
            at_ms = self._grid_point(wall)
            if self._last is None:
                self._last = (at_ms, wall, monotonic)
                return Tick(at_ms, monotonic, 0, 0.0)
            last_ms, last_wall, last_monotonic = self._last
            stepped = (wall - last_wall) - (monotonic - last_monotonic)
            if abs(stepped) < _STEP_SECONDS:
                stepped = 0.0
                if at_ms <= last_ms:
                    continue  # the clock is being slewed back: this point was read at
            self._last = (at_ms, wall, monotonic)
            passed = round((monotonic - last_monotonic) * 1000 / self._interval_ms)
            return Tick(at_ms, monotonic, max(0, passed - 1), stepped)

    def _grid_point(self, wall: float) -> int:
        steps = int(wall * 1000 / self._interval_ms + _EARLY)
        return steps * self._interval_ms
