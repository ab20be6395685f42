"""OOM kills of containers, for the windows of their nodes.

Which kills are known when a sample is joined is chance, as with pods. The windows keep what was
known, so that models are a function of windows alone. A kill is in all windows of some minutes,
because models do not apply every window: a second source may send half of them. They count it once.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pipeline.processors.join.pod_facts import LONGEST_CONTAINER_NAME
from pipeline.times import time_or_none
from pipeline.topics.resource_amounts import LARGEST_AMOUNT
from pipeline.topics.windows import MOST_OOM_KILLS, OomKill

REPEATED_MS: Final = 600_000
"""How long windows repeat a kill, by their ends."""
LATEST_MS: Final = 86_400_000
"""A kill this long before a window is too late for it. The Vertical Pod Autoscaler is stricter: it
counts kills only within the present 24 hours of a container."""
FUTURE_MS: Final = 600_000
"""How far a kill may be ahead of the broker's clock."""
MOST_KILLS: Final = 4096
"""Kills on a node that wait for a window, as many as it can list pods."""


class _KnownKill(NamedTuple):
    """A kill, and the end of the first window that has it, None before."""

    killed_ms: int
    request_bytes: float
    container_request_bytes: float
    first_ms: int | None = None


class JoinedOomKills:
    """The last OOM kill of each container of one partition, until no window repeats it."""

    def __init__(self) -> None:
        # By node, then by pod and name of the container.
        self._nodes: dict[str, dict[tuple[str, str], _KnownKill]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._nodes.values()))

    def observe(
        self,
        node: str,
        cgroup_uid: str,
        killed_at: Mapping[str, str],
        request_bytes: float | None,
        container_requests: Mapping[str, int | None],
        appended_ms: int,
    ) -> None:
        """Note the last kill of each container of a pod, in a record appended at `appended_ms`.

        `killed_at` and `container_requests`, in bytes, are by container. A kill that is known
        already or older, or in the future, changes nothing.
        """
        latest_ms = appended_ms + FUTURE_MS
        seconds = ((time_or_none(text), name) for name, text in killed_at.items())
        times = ((round(1000 * each), name) for each, name in seconds if each is not None)
        # A container that was killed while the node's clock was wrong must not hide another one.
        for killed_ms, name in sorted(each for each in times if 0 <= each[0] <= latest_ms):
            requests = _plausible(request_bytes), _plausible(container_requests.get(name))
            container = name if len(name) <= LONGEST_CONTAINER_NAME else ""
            self._note(node, (cgroup_uid, container), _KnownKill(killed_ms, *requests))

    def _note(self, node: str, key: tuple[str, str], kill: _KnownKill) -> None:
        kills = self._nodes.setdefault(node, {})
        known = kills.get(key)
        if known is None or known.killed_ms < kill.killed_ms:
            kills.pop(key, None)
            kills[key] = kill
            if len(kills) > MOST_KILLS:
                del kills[next(iter(kills))]

    def forget_node(self, node: str) -> None:
        """Drop the kills of a node without further windows."""
        self._nodes.pop(node, None)

    def joined(self, node: str, end_ms: int) -> tuple[OomKill, ...]:
        """Return the kills for a window that ends at `end_ms`, those known longest first.

        Kills that are too many, or after the end of the window, wait for later windows.
        """
        known = self._nodes.get(node)
        if known is None:
            return ()
        waiting = {
            key: kill
            for key, kill in known.items()
            if kill.killed_ms >= end_ms - LATEST_MS
            and (kill.first_ms is None or end_ms <= kill.first_ms + REPEATED_MS)
        }
        ready = [key for key, kill in waiting.items() if kill.killed_ms <= end_ms]
        for key in ready[:MOST_OOM_KILLS]:
            if waiting[key].first_ms is None:
                waiting[key] = waiting[key]._replace(first_ms=end_ms)
        if waiting:
            self._nodes[node] = waiting
        else:
            del self._nodes[node]
        return tuple(
            OomKill(
                pod=pod,
                killed_ms=known[pod, container].killed_ms,
                request_bytes=known[pod, container].request_bytes,
                container=container,
                container_request_bytes=known[pod, container].container_request_bytes,
            )
            for pod, container in ready[:MOST_OOM_KILLS]
        )


def _plausible(request_bytes: float | None) -> float:
    return float(min(max(request_bytes or 0, 0), LARGEST_AMOUNT))
