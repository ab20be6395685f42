"""Changes of cgroup values, and the records about them.

A quota may change every second. So a feature has a record when it begins to change values after a
quiet minute, and then one a minute that sums up the changes since the last.
"""

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from pipeline.processors.node_qos.cgroup_values import Place, Value, text_of_value
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord

QUIET_SECONDS: Final = 60.0
PLACES_NAMED: Final = 20
"""Places that a record names; the rest is counted."""
_ACTUATOR: Final = "node-actuator"

ChangeOutcome = Literal["done", "observed", "failed"]


class Change(NamedTuple):
    """A value of a place that changed, would change, or could not be changed.

    `before` is None for a value that could not be read. `error` is the reason of a failure.
    """

    place: Place
    before: Value | None
    after: Value
    features: tuple[str, ...]
    why: str
    outcome: ChangeOutcome
    error: str = ""


class ChangeSummary:
    """Sums up changes by feature and outcome; `due` has the records that are to be published."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._open: dict[tuple[str, ChangeOutcome], dict[Place, Change]] = {}
        self._counts: dict[tuple[str, ChangeOutcome], int] = {}
        self._published: dict[tuple[str, ChangeOutcome], float] = {}

    def add(self, changes: Iterable[Change]) -> None:
        """Take the changes of a round. Of several changes of a place the first `before` stays."""
        for change in changes:
            key = (change.features[0] if change.features else "restore", change.outcome)
            places = self._open.setdefault(key, {})
            first = places.get(change.place, change)
            places[change.place] = change._replace(before=first.before)
            self._counts[key] = self._counts.get(key, 0) + 1

    def due(self, now: float) -> list[ActionRecord]:
        """The records that are due at `now` (Unix time), each at most once a minute."""
        ready = [
            key
            for key in self._open
            if not 0 <= now - self._published.get(key, -QUIET_SECONDS) < QUIET_SECONDS
        ]
        return [self._record(key, now) for key in ready]

    def rest(self, now: float) -> list[ActionRecord]:
        """The records of all changes that were not published yet, at the end of the process."""
        return [self._record(key, now) for key in list(self._open)]

    def _record(self, key: tuple[str, ChangeOutcome], now: float) -> ActionRecord:
        changes = list(self._open.pop(key).values())
        count = self._counts.pop(key)
        self._published[key] = now
        feature, outcome = key
        named = changes[:PLACES_NAMED]
        more = f"; {len(changes) - len(named)} more places" if len(changes) > len(named) else ""
        return ActionRecord(
            node=self._node,
            at=format_time(now),
            actuator=_ACTUATOR,
            action=feature,
            outcome=outcome,
            why=f"{changes[-1].why} ({count} changes{more})",
            before={
                str(c.place): None if c.before is None else text_of_value(c.before) for c in named
            },
            after={str(c.place): text_of_value(c.after) for c in named},
            error=next((change.error for change in changes if change.error), ""),
        )
