"""Doubt lists from which too many objects are missing, until a second list agrees.

A false answer of the API server (a proxy, an empty etcd, a member that is far behind) would else
delete the cluster from the topics.
"""

from collections.abc import AsyncIterator
from typing import Final, TypeVar

from pipeline.clock import Clock
from pipeline.logs import get_logger
from pipeline.metrics import gauge
from pipeline.sources.cluster.watched_kinds import Kind
from pipeline.tasks import next_within

log = get_logger(__name__)

DOUBTFUL = gauge(
    "watcher_doubtful_deletions",
    "Objects missing from the last list, kept until a second list a minute later agrees.",
    ["kind"],
)

CONFIRM_SECONDS: Final = 60.0
"""Time between a doubtful list and the list that confirms it."""
_USUAL_SHARE: Final = 5
"""A list may remove one of so many objects without confirmation."""
_USUAL_NUMBER: Final = 2
"""So many may always be missing, as in a small cluster, but not all Nodes."""

T = TypeVar("T")


class DoubtfulLists:
    """The lists of one kind: which of them may remove objects, and when to list again."""

    def __init__(self, kind: Kind, clock: Clock) -> None:
        self._kind = kind
        self._clock = clock
        self._doubted_at: float | None = None
        self._is_listing = False
        DOUBTFUL.labels(kind.name).set(0)

    def began(self) -> None:
        """A list starts."""
        self._is_listing = True

    def accepts(self) -> bool:
        """Whether the complete list may remove the objects that it does not contain. If not, they
        are suspects, and the next list after `CONFIRM_SECONDS` decides."""
        self._is_listing = False
        missing, new = self._kind.count_missing()
        is_new_doubt = self._doubted_at is None or not self._is_usual(new)
        is_accepted = self._is_usual(missing) or (not is_new_doubt and self._seconds_left() <= 0)
        if is_accepted:
            self._doubted_at = None
        elif is_new_doubt:
            self._kind.suspect_missing()
            self._doubted_at = self._clock.monotonic()
            log.error("list misses many known objects; listing again before their tombstones are "
                      "written", kind=self._kind.name, missing=missing, known=len(self._kind),
                      seconds=CONFIRM_SECONDS)  # fmt: skip
        DOUBTFUL.labels(self._kind.name).set(0 if is_accepted else missing)
        return is_accepted

    async def next_event(self, events: AsyncIterator[T]) -> T | None:
        """Return the next event of the kind, or None if it is time to list again."""
        if self._doubted_at is None or self._is_listing:
            return await anext(events)
        return await next_within(events, self._clock, self._seconds_left())

    def _seconds_left(self) -> float:
        since = self._clock.monotonic() if self._doubted_at is None else self._doubted_at
        return since + CONFIRM_SECONDS - self._clock.monotonic()

    def _is_usual(self, missing: int) -> bool:
        known = len(self._kind)
        if missing == known > 0 and self._kind.name == "Node":
            return False
        return missing <= max(_USUAL_NUMBER, known // _USUAL_SHARE)
