"""Expiry of placed pods: pods that count on a node before their record arrives.

Every request looks for expired pods, so that takes time that does not grow with their number, also
after the clock was set back.
"""

import math
from collections.abc import Iterator
from heapq import heappop, heappush

from pipeline.table import limits


class TentativePods:
    """UIDs, each with the time in seconds at which it expires."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        # A heap by expiry; entries of removed and renewed pods are dropped when they come up.
        self._expiries: list[tuple[float, str]] = []
        self._latest = -math.inf

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, uid: object) -> bool:
        return uid in self._until

    def __iter__(self) -> Iterator[str]:
        return iter(self._until)

    def put(self, uid: str, until: float) -> None:
        """Let a pod count until then."""
        self._until[uid] = until
        heappush(self._expiries, (until, uid))
        self._latest = max(until, self._latest)

    def remove(self, uid: str) -> None:
        """Remove a pod; unknown pods are ignored."""
        self._until.pop(uid, None)

    def expired(self, now: float) -> list[str]:
        """The pods that have expired, each returned once; the caller removes them. Includes pods
        that would count for longer than `LONGEST_TENTATIVE_SECONDS`."""
        latest, expired = now + limits.LONGEST_TENTATIVE_SECONDS, dict[str, None]()
        if self._latest > latest:
            expired |= {uid: None for uid, until in self._until.items() if until > latest}
            others = (until for until in self._until.values() if until <= latest)
            self._latest = max(others, default=-math.inf)
        while self._expiries and self._expiries[0][0] <= now:
            until, uid = heappop(self._expiries)
            if self._until.get(uid) == until:
                expired[uid] = None
        return [*expired]
