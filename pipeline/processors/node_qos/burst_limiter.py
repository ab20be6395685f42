"""How long a container may use more CPU than its limit: a bucket of tokens."""

from typing import Final
from zlib import crc32

_EARNS_BELOW_PERCENT: Final = 60.0
_SPENDS_FROM_PERCENT: Final = 100.0


class BurstLimiter:
    """Tokens of one container, in percent of its limit times seconds, as in Koordinator.

    A second above the limit spends what is above 100%, a second below 60 % earns what is unused.
    Tokens stay within `capacity`, which is `period_seconds` at the highest quota, and its negative.
    """

    def __init__(self, period_seconds: int, max_percent: int, *, tokens: float, at: float) -> None:
        self.period_seconds = period_seconds
        self.max_percent = max_percent
        self.capacity = period_seconds * max(max_percent - 100, 0)
        self.tokens = tokens
        self._at = at

    @property
    def allows(self) -> bool:
        """Whether the quota may be above the limit."""
        return self.tokens > 0

    def use(self, usage_percent: float | None, at: float) -> None:
        """Count usage, in percent of the limit, since the last call; None if it is unknown.

        Only whole seconds count, and the rest of a second counts with the next.
        """
        seconds = int(at - self._at)
        if seconds < 0:
            self._at = at
            return
        self._at += seconds
        if usage_percent is None:
            return
        if usage_percent >= _SPENDS_FROM_PERCENT or usage_percent < _EARNS_BELOW_PERCENT:
            tokens = self.tokens + (_SPENDS_FROM_PERCENT - usage_percent) * seconds
            self.tokens = min(max(tokens, -self.capacity), self.capacity)


def first_limiter(path: str, period_seconds: int, max_percent: int, at: float) -> BurstLimiter:
    """The limiter of a container that had none. It starts with less than half of its capacity,
    differently by the container's path, so that not all containers run dry at once."""
    limiter = BurstLimiter(period_seconds, max_percent, tokens=0.0, at=at)
    limiter.tokens = limiter.capacity / 2 * (crc32(path.encode()) / 2**32)
    return limiter
