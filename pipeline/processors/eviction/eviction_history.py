"""The evictions of the past, and which of their pods still exist.

A new leader rebuilds it from the actions of former ones. An eviction is noted before it is asked
for, so that one whose answer was lost counts. All times are monotonic seconds of this process: a
step of the wall clock must not lift a limit.
"""

import math
from collections.abc import Collection, Iterator
from typing import Final

from pipeline.processors.eviction.migration_limits import (
    GRACE_SECONDS,
    Candidate,
    Eviction,
    Situation,
    WorkloadState,
)
from pipeline.topics.actions import ActionRecord
from pipeline.topics.workloads import Workload

_MOST_EVICTIONS: Final = 20_000
"""Evictions that are remembered. What is older counts as unknown."""
_CALL_SECONDS: Final = 60.0
"""An eviction is asked for at most this long after its record."""


class EvictionHistory:
    """Evictions of the last `seconds`. A pod that is gone counts as on the move for `ttl_seconds`
    after its eviction at most, until its replacement is Ready.

    `known_since` is when the history begins to be complete. Limits in time take evictions before it
    for as many as there may have been.
    """

    def __init__(self, seconds: float, ttl_seconds: float) -> None:
        self._seconds = seconds
        self._ttl_seconds = ttl_seconds
        # By UID, the oldest first: an UID is evicted once, a repeated call counts as the last one.
        self._evictions: dict[str, Eviction] = {}
        self._leaving: dict[str, Eviction] = {}
        self._gone: dict[str, Eviction] = {}
        self.known_since = -math.inf

    def __len__(self) -> int:
        return len(self._evictions)

    def keep(self, seconds: float, ttl_seconds: float) -> None:
        """Remember evictions for other times from now on."""
        self._seconds, self._ttl_seconds = seconds, ttl_seconds

    def copy(self) -> "EvictionHistory":
        """A copy, to book evictions that may not happen."""
        other = EvictionHistory(self._seconds, self._ttl_seconds)
        other._evictions = self._evictions.copy()
        other._leaving = self._leaving.copy()
        other._gone = self._gone.copy()
        other.known_since = self.known_since
        return other

    def extend(self, older: "EvictionHistory") -> None:
        """Take over evictions that were forgotten, from a history that reaches back further."""
        self._evictions = older._evictions | self._evictions
        self.known_since = min(self.known_since, older.known_since)
        self._bound()

    def unknown_seconds(self, now: float) -> float:
        """How much of the time is unknown on which limits may depend."""
        return min(max(self.known_since - (now - self._seconds), 0.0), self._seconds)

    @property
    def last_at(self) -> float | None:
        """When the last eviction was asked for; None if there is none."""
        return max((eviction.at for eviction in self._evictions.values()), default=None)

    @property
    def leaving(self) -> Collection[Eviction]:
        """Evictions whose pods are not known to be gone."""
        return tuple(self._leaving.values())

    def times_since(self, since: float) -> Iterator[float]:
        """When evictions were asked for, later than this."""
        return (eviction.at for eviction in self._evictions.values() if eviction.at > since)

    def is_leaving(self, uid: str) -> bool:
        """Whether the eviction of the pod was asked for, and the pod is not known to be gone."""
        return uid in self._leaving

    def note(self, pod: Candidate, at: float, grace_seconds: float = GRACE_SECONDS) -> None:
        """Remember that the pod's eviction is asked for at this time, and how long the pod may take
        to end."""
        self._evictions.pop(pod.uid, None)
        self._gone.pop(pod.uid, None)
        self._evictions[pod.uid] = self._leaving[pod.uid] = Eviction(pod, at, grace_seconds)
        self._bound()

    def leaves(self, pod: Candidate, at: float, grace_seconds: float) -> None:
        """Remember that the pod is being deleted since this time, for any cause. That limits how
        many pods leave at once, and not how often."""
        self._leaving.setdefault(pod.uid, Eviction(pod, at, grace_seconds))

    def learn(self, action: ActionRecord, at: float, now: float) -> None:
        """Take an action of a former leader, of the time `at`. Raises ValueError if it is
        invalid."""
        if action.outcome not in ("intended", "done", "marked") or not action.before:
            return
        ((path, uid),) = action.before.items()
        namespace, _, name = path.partition("/")
        workload = None
        if action.workload:
            kind, of_namespace, workload_name = action.workload.split("/", 2)
            workload = Workload(of_namespace, kind, workload_name)
        at += _CALL_SECONDS if action.outcome == "intended" else 0.0
        self.note(Candidate(uid or "", action.node, namespace, name, workload), min(at, now))

    def stays(self, uid: str) -> None:
        """Note that the API server refused an eviction. The attempt still counts against the limits
        of frequency."""
        self._leaving.pop(uid, None)

    def left(self, uid: str) -> None:
        """Note that an evicted pod is gone."""
        eviction = self._leaving.pop(uid, None)
        if eviction is not None:
            self._gone[uid] = eviction

    def forget(self, now: float) -> None:
        """Drop what no limit depends on any more."""
        self._gone = {
            uid: eviction
            for uid, eviction in self._gone.items()
            if now - eviction.at < self._ttl_seconds
        }
        old = [uid for uid, e in self._evictions.items() if now - e.at > self._seconds]
        for uid in old:
            if uid not in self._leaving:
                del self._evictions[uid]
        self.known_since = max(self.known_since, now - self._seconds)

    def _bound(self) -> None:
        while len(self._evictions) > _MOST_EVICTIONS:
            eviction = self._evictions.pop(next(iter(self._evictions)))
            self.known_since = max(self.known_since, eviction.at)

    def situation(
        self, pod: Candidate, now: float, state: WorkloadState | None = None
    ) -> Situation:
        """What limits of the pod's eviction depend on."""
        history = tuple(self._evictions.values())
        return Situation(
            now=now,
            leaving=tuple(eviction.pod for eviction in self._leaving.values()),
            replaced=self._replaced(pod, now),
            history=history,
            of_workload=tuple(e for e in history if e.pod.workload == pod.workload),
            of_namespace=tuple(e for e in history if e.pod.namespace == pod.namespace),
            state=state,
            known_seconds=now - self.known_since,
        )

    def _replaced(self, pod: Candidate, now: float) -> int:
        """How many evicted pods of the pod's workload may have no replacement yet."""
        since = now - self._ttl_seconds
        if self.known_since > since:
            return _MOST_EVICTIONS
        return sum(e.at > since and e.pod.workload == pod.workload for e in self._gone.values())
