"""Pods that were deleted, for as long as a window may still hold what they used.

A window is joined after its end, and who ran in it may be gone by then: a pod of Batch that nobody
knew any more would count as Prod. Event time alone decides how long one is kept, the broker's of
the tombstone and that of the windows: no clock.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from pipeline.processors.join.pod_facts import PodRow, gone_row

LONGEST_MS: Final = 3_600_000
"""How long one is kept on a node of which no window comes, by the time of the tombstones."""

_NONE: Final[Mapping[str, PodRow]] = {}


class _Gone(NamedTuple):
    row: PodRow
    last_ms: int


class GonePods:
    """Deleted pods of one partition, by node and by the uid in their cgroup's name."""

    def __init__(self) -> None:
        # The node of which nothing was heard for longest is the first.
        self._nodes: dict[str, dict[str, _Gone]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._nodes.values()))

    def rows(self, node: str) -> Mapping[str, PodRow]:
        """What windows say of those of `node`."""
        pods = self._nodes.get(node)
        return _NONE if pods is None else {uid: pod.row for uid, pod in pods.items()}

    def add(self, node: str, cgroup_uid: str, row: PodRow, gone_ms: int) -> None:
        """A pod was deleted: its tombstone was appended at `gone_ms`."""
        pods = self._nodes.pop(node, {})
        pods.pop(cgroup_uid, None)
        self._nodes[node] = pods | {cgroup_uid: _Gone(gone_row(row), gone_ms)}
        self._keep(node, gone_ms - LONGEST_MS)
        while (first := next(iter(self._nodes))) != node:
            self._keep(first, gone_ms - LONGEST_MS)
            if first in self._nodes:
                break

    def forget(self, node: str, cgroup_uid: str) -> None:
        """Another pod has this cgroup."""
        self._nodes.get(node, {}).pop(cgroup_uid, None)

    def forget_node(self, node: str) -> None:
        """No window of the node will be joined."""
        self._nodes.pop(node, None)

    def joined(self, node: str, listed: Collection[str], start_ms: int, end_ms: int) -> None:
        """A window of `node` was joined, in which the pods `listed` ran: those that were gone
        before it and did not run in it will be in none that follows."""
        pods = self._nodes.pop(node, None)
        if pods is None:
            return
        seen = pods.keys() & set(listed)
        kept = {
            uid: pod._replace(last_ms=max(pod.last_ms, end_ms)) if uid in seen else pod
            for uid, pod in pods.items()
            if uid in seen or pod.last_ms >= start_ms
        }
        if kept:
            self._nodes[node] = kept

    def _keep(self, node: str, since_ms: int) -> None:
        pods = self._nodes[node]
        for uid in [uid for uid, pod in pods.items() if pod.last_ms < since_ms]:
            del pods[uid]
        if not pods:
            del self._nodes[node]
