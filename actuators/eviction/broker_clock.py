"""The wall clock of the broker that stamps plans and actions."""

from pipeline.clock import Clock


class BrokerClock:
    """A clock whose wall time is the broker's, as far as that is known, and advances with the
    monotonic clock.

    Ages of records are differences of the broker's times: by a wall clock that is ahead, evictions
    of a former leader would look older than they are.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_of_monotonic: float | None = None

    def set(self, appended_at: float | None) -> None:
        """Take the time at which the broker appended a record (Unix time), at once after its
        delivery. None, if the broker does not say, changes nothing."""
        if appended_at is not None:
            self._ahead_of_monotonic = appended_at - self._clock.monotonic()

    def now(self) -> float:
        """The broker's time, or a little less; that of the machine while it is not known."""
        if self._ahead_of_monotonic is None:
            return self._clock.now()
        return self._clock.monotonic() + self._ahead_of_monotonic

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
