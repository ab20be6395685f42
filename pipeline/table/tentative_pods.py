"""Pods that were placed and are not seen on their nodes yet: until when each counts there.

Owes the rest: who is due in time that does not grow with how many there are, however a clock is
set.
"""

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

TENTATIVE_SECONDS: Final = 5.0
LONGEST_TENTATIVE_SECONDS: Final = 3600.0


class TentativePods:
    """UIDs, each until a time in seconds."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        # By when they are due, with some that were removed, or put again, since.
        self._due: list[tuple[float, str]] = []
        self._latest = -math.inf

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, uid: object) -> bool:
        return uid in self._until

    def __iter__(self) -> Iterator[str]:
        return iter(self._until)

    def put(self, uid: str, until: float) -> None:
        """A pod counts until then."""
        self._until[uid] = until
        heappush(self._due, (until, uid))
        self._latest = max(until, self._latest)

    def remove(self, uid: str) -> None:
        """A pod does not count any more, or is seen where it is; none is no mistake."""
        self._until.pop(uid, None)

    def due(self, now: float) -> list[str]:
        """Who counts no longer, each told once, to be removed. Who would count for longer than
        anybody may is due, too: a clock was set back."""
        longest, due = now + LONGEST_TENTATIVE_SECONDS, dict[str, None]()
        if self._latest > longest:
            due |= {uid: None for uid, until in self._until.items() if until > longest}
            stay = (until for until in self._until.values() if until <= longest)
            self._latest = max(stay, default=-math.inf)
        while self._due and self._due[0][0] <= now:
            until, uid = heappop(self._due)
            if self._until.get(uid) == until:
                due[uid] = None
        return [*due]
