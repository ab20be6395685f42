"""A limit on the rate of events, for writes and evictions."""

import math
from typing import Final

from pipeline.clock import Clock

_LONGEST_PAUSE_SECONDS: Final = 1e9
LONGEST_SLEEP_SECONDS: Final = 1.0
"""A pause is looked at again after this time, because the rate may have changed."""


class RateLimit:
    """A token bucket: up to `burst` events at once, and `per_second` on average; with a burst of 1
    they are evenly spaced. Both may change: the new ones hold at once, from the last event on."""

    def __init__(self, per_second: float, clock: Clock, burst: int = 1) -> None:
        self.per_second = per_second
        self.burst = burst
        self._clock = clock
        self._last = -math.inf
        self._tokens_then = 0.0

    def happened(self, seconds_ago: float) -> None:
        """Count events of a former leader, which may have used up the burst; its clock may
        differ."""
        at = self._clock.monotonic() - max(seconds_ago, 0.0)
        self._last, self._tokens_then = max(self._last, at), 0.0

    def happens_now(self) -> None:
        """Count the last event as of now: its preparation took time."""
        self._last = self._clock.monotonic()

    @property
    def left_seconds(self) -> float:
        """How long until the next event may happen, 0 if it may now."""
        return self.seconds_until(1)

    def seconds_until(self, count: int) -> float:
        """How long until so many further events may have happened."""
        pause = min(1.0 / self.per_second, _LONGEST_PAUSE_SECONDS)
        when = self._last + (count - self._tokens_then) * pause
        return max(when - self._clock.monotonic(), (count - self.burst) * pause, 0.0)

    async def wait(self) -> None:
        """Return when the next event may happen, and count it."""
        while (left := self.left_seconds) > 0:
            await self._clock.sleep(min(left, LONGEST_SLEEP_SECONDS))
        self.take()

    def take(self) -> None:
        """Count an event that may happen now."""
        now = self._clock.monotonic()
        tokens = self._tokens_then + (now - self._last) * self.per_second
        self._last, self._tokens_then = now, max(min(tokens, self.burst) - 1.0, 0.0)
