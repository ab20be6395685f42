"""A limit on the rate of events, for writes and evictions."""

from pipeline.clock import Clock


class RateLimit:
    """At most `per_second` events per second, evenly spaced. `per_second` may change."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self.per_second = per_second
        self._clock = clock
        self._next = clock.monotonic()

    def happened(self, seconds_ago: float) -> None:
        """Count an event of a former leader; its clock may differ."""
        left = 1.0 / self.per_second - max(seconds_ago, 0.0)
        self._next = max(self._next, self._clock.monotonic() + left)

    @property
    def left_seconds(self) -> float:
        """How long until the next event may happen, 0 if it may now."""
        return max(self._next - self._clock.monotonic(), 0.0)

    async def wait(self) -> None:
        """Return when the next event may happen."""
        while (left := self.left_seconds) > 0:
            await self._clock.sleep(left)
        self._next = self._clock.monotonic() + 1.0 / self.per_second
