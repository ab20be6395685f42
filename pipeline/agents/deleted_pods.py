"""Remember deleted pods while a window may still contain their usage.

A window is joined after its end, when a pod that ran in it may already be deleted. Usage of an
unknown pod would count as Prod. Only event time decides how long a pod is remembered (the append
time of its tombstone, and the times of the windows), so that a worker that catches up with a
backlog joins as one that keeps pace.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from pipeline.processors.join.pod_facts import PodRow, deleted_row

LONGEST_MS: Final = 3_600_000
"""How long a pod is remembered on a node without windows, by the append time of tombstones."""


class _DeletedPod(NamedTuple):
    row: PodRow
    last_ms: int


class DeletedPods:
    """Deleted pods of one partition, by node and by the UID in their cgroup's name."""

    def __init__(self) -> None:
        # In order of the last change, so that `add` need not look at every node for expired pods.
        self._nodes: dict[str, dict[str, _DeletedPod]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._nodes.values()))

    def rows(self, node: str) -> Mapping[str, PodRow]:
        """Return the facts of the deleted pods of `node`, by UID."""
        return {uid: pod.row for uid, pod in self._nodes.get(node, {}).items()}

    def add(self, node: str, cgroup_uid: str, row: PodRow, deleted_ms: int) -> None:
        """Add a pod whose tombstone was appended at `deleted_ms`."""
        pods = self._nodes.pop(node, {})
        pods.pop(cgroup_uid, None)
        self._nodes[node] = pods | {cgroup_uid: _DeletedPod(deleted_row(row), deleted_ms)}
        self._expire(node, deleted_ms - LONGEST_MS)
        while (first := next(iter(self._nodes))) != node:
            self._expire(first, deleted_ms - LONGEST_MS)
            if first in self._nodes:
                break

    def forget(self, node: str, cgroup_uid: str) -> None:
        """Drop a deleted pod because another pod uses its cgroup."""
        self._nodes.get(node, {}).pop(cgroup_uid, None)

    def forget_node(self, node: str) -> None:
        """Drop all pods of a node without further windows."""
        self._nodes.pop(node, None)

    def joined(self, node: str, listed: Collection[str], start_ms: int, end_ms: int) -> None:
        """Drop the pods of `node` that no later window can contain.

        Call it after a window from `start_ms` to `end_ms` with the pods `listed` was joined. A pod
        that was deleted before the window and is not listed in it is dropped.
        """
        pods = self._nodes.pop(node, None)
        if pods is None:
            return
        seen = pods.keys() & set(listed)
        remaining = {
            uid: pod._replace(last_ms=max(pod.last_ms, end_ms)) if uid in seen else pod
            for uid, pod in pods.items()
            if uid in seen or pod.last_ms >= start_ms
        }
        if remaining:
            self._nodes[node] = remaining

    def _expire(self, node: str, since_ms: int) -> None:
        pods = self._nodes[node]
        for uid in [uid for uid, pod in pods.items() if pod.last_ms < since_ms]:
            del pods[uid]
        if not pods:
            del self._nodes[node]
