"""Nodes that pods of a workload were moved off, for as long as the workload rests.

The planner moves no pod of a workload within `WORKLOAD_REST_SECONDS` of an eviction. If a scheduler
puts the replacement back in that time, the node gets hot again, and nothing may relieve it.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from pipeline.errors import InvalidRecordError
from pipeline.processors.descheduling.cool_downs import WORKLOAD_REST_SECONDS
from pipeline.processors.descheduling.remembered_moves import EVICTED
from pipeline.times import parse_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import decode_json
from pipeline.topics.eviction_plans import LONGEST_NAME

_EVICTOR: Final = "evictor"
_MOST_PODS: Final = 10_000
"""Evicted pods that are remembered: the oldest are forgotten first. An evictor of the default pace
evicts far fewer in half an hour."""


class _Departure(NamedTuple):
    workload: str
    node: str
    at: float


class LeftNodes:
    """The nodes that pods of each workload left by a plan, by actions of the evictor, in any order
    and with repeats. Pods that made room for a waiting one do not count: their node is not hot.
    Times are Unix times, by the clock of this process at most."""

    def __init__(self) -> None:
        self._departures: OrderedDict[str, _Departure] = OrderedDict()  # by UID of the pod
        self._uids: dict[str, set[str]] = {}  # by workload

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
        for text in (action.node, action.workload, *filter(None, action.before.values())):
            if len(text) > LONGEST_NAME:
                reason = f"a name has {len(text)} characters, more than {LONGEST_NAME}"
                raise InvalidRecordError(reason)
        try:
            at = min(max(parse_time(action.at), appended_at), now)
        except ValueError as error:
            raise InvalidRecordError(f"invalid time: {error}") from error
        for uid in action.before.values():
            if not uid:
                continue
            if action.outcome in EVICTED and now - at < WORKLOAD_REST_SECONDS:
                self._put(uid, _Departure(action.workload, action.node, at))
            elif action.outcome == "refused":
                self._drop(uid)
        self._forget(now)
        return True

    def of_workload(self, workload: str, now: float) -> dict[str, float]:
        """The nodes that pods of this workload (kind/namespace/name) left within the rest, and when
        the last one did."""
        left_at: dict[str, float] = {}
        for uid in self._uids.get(workload, ()):
            _, node, at = self._departures[uid]
            # The clock may have been set back.
            if abs(now - at) < WORKLOAD_REST_SECONDS:
                left_at[node] = max(at, left_at.get(node, at))
        return left_at

    def _put(self, uid: str, departure: _Departure) -> None:
        self._drop(uid)
        self._departures[uid] = departure
        self._uids.setdefault(departure.workload, set()).add(uid)

    def _drop(self, uid: str) -> None:
        if (departure := self._departures.pop(uid, None)) is not None:
            uids = self._uids[departure.workload]
            uids.remove(uid)
            if not uids:
                del self._uids[departure.workload]

    def _forget(self, now: float) -> None:
        """Drop the oldest while they are too old or too many."""
        while self._departures:
            uid, departure = next(iter(self._departures.items()))
            is_over = abs(now - departure.at) >= WORKLOAD_REST_SECONDS
            if not is_over and len(self._departures) <= _MOST_PODS:
                break
            self._drop(uid)
