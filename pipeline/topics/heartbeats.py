"""`springtide.heartbeats`: the watcher lives, and until when its topics are complete, by source.

The watcher writes one every few seconds, after all records before it: without them nothing tells a
watcher that is dead, or that lost its API server, from a cluster in which nothing changes. The file
source and simulated fleets write none. A dedicated topic keeps other records out of `nodes` and
`pods`, whose readers take every key for a node or a pod.
"""

import math
from typing import Final, Literal, NamedTuple

from pipeline.times import parse_time
from pipeline.topics.codec import Record

WATCHER: Final = "cluster"
"""The source of the watcher's records."""
HEARTBEAT_SECONDS: Final = 5.0
"""Between two heartbeats."""
LATE_SECONDS: Final = 30.0
"""Without a heartbeat for so long the watcher counts as dead: a standby leads after 15 s."""


class HeartbeatRecord(Record, frozen=True, kw_only=True):
    """All changes that `source`, the watcher, saw before `at` (RFC 3339, UTC, by its clock) are on
    its topics; None: it has not read its first lists. It repeats `at` while it lists again."""

    source: Literal["cluster"]
    at: str | None

    def __post_init__(self) -> None:
        try:
            if self.at is not None:
                parse_time(self.at)
        except ValueError as error:
            raise ValueError(f"at is not a time: {error}") from error


class WatcherTrouble(NamedTuple):
    """What is wrong with the watcher: no heartbeat came for so long (`is_dead`), or for so long
    none said that Nodes and Pods are complete."""

    is_dead: bool
    seconds: float

    def __str__(self) -> str:
        if self.is_dead:
            return f"no heartbeat for {self.seconds:.0f} s"
        return f"alive, but it has listed Nodes and Pods for {self.seconds:.0f} s"


class Heartbeats:
    """The heartbeats that a reader has received, with their age by the reader's clock: that of the
    watcher may be wrong by any time.

    `have_come`: there was any. `complete_until` is the newest `at`, UTC seconds of the watcher's
    clock; `complete_at` when it came.
    """

    def __init__(self) -> None:
        self.have_come = False
        self.complete_until: float | None = None
        self.complete_at = self._came_at = math.inf  # as soon as somebody looks

    def take(self, at: float | None) -> None:
        """Take a heartbeat with this `at`, UTC seconds."""
        self.have_come, self._came_at = True, math.inf
        if at is not None and at != self.complete_until:
            self.complete_until, self.complete_at = at, math.inf

    def is_same(self, other: "Heartbeats") -> bool:
        """Whether another reader of the topic has found no other heartbeat."""
        mine, others = self.complete_until, other.complete_until
        return self.have_come and other.have_come and mine == others

    def observe(self, now: float) -> None:
        """Let heartbeats that were taken since the last call have come at `now`, UTC seconds or
        those of any other clock of the reader. The first call begins to wait for them."""
        # Also if a clock was set back.
        self._came_at, self.complete_at = min(self._came_at, now), min(self.complete_at, now)

    def age(self, now: float) -> float:
        """Seconds since the last heartbeat came, or since the first call of `observe`."""
        self.observe(now)
        return now - self._came_at

    def incomplete_seconds(self, now: float) -> float:
        """Seconds since a heartbeat with a new `at` came, or since the first call of `observe`."""
        self.observe(now)
        return now - self.complete_at

    def trouble(self, now: float) -> WatcherTrouble | None:
        """What is wrong with the watcher at `now`; None if nothing is."""
        if (age := self.age(now)) > LATE_SECONDS:
            return WatcherTrouble(True, age)
        if (seconds := self.incomplete_seconds(now)) > LATE_SECONDS:
            return WatcherTrouble(False, seconds)
        return None
