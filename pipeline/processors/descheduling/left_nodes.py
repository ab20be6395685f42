"""Nodes that pods of a workload were moved off, for as long as the workload rests.

The planner moves no pod of a workload within `WORKLOAD_REST_SECONDS` of an eviction. If a scheduler
puts the replacement back in that time, the node gets hot again, and nothing may relieve it.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from pipeline.errors import InvalidRecordError
from pipeline.processors.descheduling.cool_downs import WORKLOAD_REST_SECONDS
from pipeline.processors.descheduling.remembered_moves import EVICTED
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import decode_json
from pipeline.topics.eviction_plans import LONGEST_NAME

_EVICTOR: Final = "evictor"
_MOST_PODS: Final = 10_000
"""Evicted pods that are remembered: the oldest are forgotten first. An evictor of the default pace
evicts far fewer in half an hour."""


_Key = tuple[str, str]
"""A plan and the UID of a pod: another plan for a pod that left is refused, which says nothing."""


class _Departure(NamedTuple):
    workload: str
    node: str
    at: float


class LeftNodes:
    """The nodes that pods of each workload left by a plan, by actions of the evictor, in any order
    and with repeats. Pods that made room for a waiting one do not count: their node is not hot.
    Times are Unix times by the broker's clock, but not later than by that of this process."""

    def __init__(self) -> None:
        self._departures: OrderedDict[_Key, _Departure] = OrderedDict()
        self._keys: dict[str, set[_Key]] = {}  # by workload

    def __len__(self) -> int:
        """The number of evicted pods that are remembered."""
        return len(self._departures)

    def take(self, value: bytes | None, appended_at: float, now: float) -> bool:
        """Take a record of actions that the broker appended at this time; False if it is none of
        the evictor about a pod of a workload, or too old. Raises `RecordError`."""
        # Most actions are of the cluster actuator.
        if value is None or b'"evictor"' not in value:
            return False
        action = decode_json(ActionRecord, value)
        if action.actuator != _EVICTOR or not action.workload or action.waiting:
            return False
        uids = filter(None, action.before.values())
        for text in (action.node, action.workload, action.plan, *uids):
            if len(text) > LONGEST_NAME:
                reason = f"a name has {len(text)} characters, more than {LONGEST_NAME}"
                raise InvalidRecordError(reason)
        # Not by the evictor's clock: each reader, at any time, has to know the same age.
        at = min(appended_at, now)
        for uid in action.before.values():
            if not uid:
                continue
            if action.outcome in EVICTED and now - at < WORKLOAD_REST_SECONDS:
                self._put((action.plan, uid), _Departure(action.workload, action.node, at))
            elif action.outcome == "refused":
                self._drop((action.plan, uid))
        self._forget(now)
        return True

    def of_workload(self, workload: str, now: float) -> dict[str, float]:
        """The nodes that pods of this workload (kind/namespace/name) left within the rest, and when
        the last one did."""
        left_at: dict[str, float] = {}
        for key in self._keys.get(workload, ()):
            _, node, at = self._departures[key]
            # The clock may have been set back.
            if abs(now - at) < WORKLOAD_REST_SECONDS:
                left_at[node] = max(at, left_at.get(node, at))
        return left_at

    def _put(self, key: _Key, departure: _Departure) -> None:
        self._drop(key)
        self._departures[key] = departure
        self._keys.setdefault(departure.workload, set()).add(key)

    def _drop(self, key: _Key) -> None:
        if (departure := self._departures.pop(key, None)) is not None:
            keys = self._keys[departure.workload]
            keys.remove(key)
            if not keys:
                del self._keys[departure.workload]

    def _forget(self, now: float) -> None:
        """Drop those that are too old, and of too many the oldest."""
        while self._departures:
            key, departure = next(iter(self._departures.items()))
            if abs(now - departure.at) < WORKLOAD_REST_SECONDS:
                break
            self._drop(key)
        if len(self._departures) > _MOST_PODS:
            # They are in the order of reading, which is not that of time after a restart. Many at
            # once, because sorting costs.
            by_time = sorted(self._departures, key=lambda key: self._departures[key].at)
            for key in by_time[: _MOST_PODS // 10]:
                self._drop(key)
