"""Schedule collections at whole multiples of the interval in UTC.

The time of a tick is its grid point, not the microsecond at which the process woke up, so that
windows end exactly at their end. A tick also reports irregularities since the previous tick: missed
grid points (process stopped, machine busy) and steps of the wall clock.
"""

from typing import Final, NamedTuple

from pipeline.clock import Clock

# Clock slewing may wake the process early by this share of an interval.
_EARLY_SHARE: Final = 0.1
# Slewing moves a clock by half a millisecond a second; a larger difference is a step.
_STEP_SECONDS: Final = 0.2


class Tick(NamedTuple):
    """The time of one collection."""

    at_ms: int
    """Grid point, milliseconds since 1970."""
    missed: int
    """Number of grid points since the previous tick without a collection."""
    stepped_seconds: float
    """Step of the wall clock since the previous tick, 0.0 without a step."""


class Ticker:
    def __init__(self, clock: Clock, interval_ms: int) -> None:
        self._clock = clock
        self._interval_ms = interval_ms
        self._previous: tuple[int, float, float] | None = None  # grid point, wall, monotonic

    async def next(self) -> Tick:
        """Sleep until the next grid point.

        After a step of the clock the grid point may be earlier than the previous one.
        """
        while True:
            target_ms = self._grid_point(self._clock.now()) + self._interval_ms
            await self._clock.sleep(target_ms / 1000 - self._clock.now())
            wall, monotonic = self._clock.now(), self._clock.monotonic()
            at_ms = self._grid_point(wall)
            if self._previous is None:
                self._previous = (at_ms, wall, monotonic)
                return Tick(at_ms, 0, 0.0)
            previous_ms, previous_wall, previous_monotonic = self._previous
            stepped = (wall - previous_wall) - (monotonic - previous_monotonic)
            if abs(stepped) < _STEP_SECONDS:
                stepped = 0.0
                if at_ms <= previous_ms:
                    continue  # slewed back: this grid point has a collection already
            self._previous = (at_ms, wall, monotonic)
            passed = round((monotonic - previous_monotonic) * 1000 / self._interval_ms)
            return Tick(at_ms, max(0, passed - 1), stepped)

    def _grid_point(self, wall: float) -> int:
        steps = int(wall * 1000 / self._interval_ms + _EARLY_SHARE)
        return steps * self._interval_ms
