"""Pods with CPUs of their own, and which of these their node reserves for others."""

from collections.abc import Callable, Mapping

from pipeline.processors.kubernetes.node_reservation import (
    ANNOTATION,
    RESOURCE_STATUS,
    pinned_cpus,
    valid_reservation,
)
from pipeline.processors.loadaware.pod_amounts import Pod
from pipeline.topics.pod_columns import ENDED


class PinnedPods:
    """The annotations of these pods by node. Snapshots do not have them: the planner, which asks
    for them, reads all pods at its start."""

    def __init__(self) -> None:
        self._statuses: dict[str, dict[str, str]] = {}
        self._changed: set[str] = set()
        self._taken: dict[str, frozenset[int]] = {}

    def put(self, pod: Pod) -> None:
        """Take the record of a pod."""
        status = pod.annotations.get(RESOURCE_STATUS)
        if status is None or pod.phase in ENDED:
            self.drop(pod.node, pod.uid)
        else:
            self._statuses.setdefault(pod.node, {})[pod.uid] = status
            self._changed.add(pod.node)

    def drop(self, node: str, uid: str) -> None:
        """Remove a pod from a node."""
        pods = self._statuses.get(node)
        if pods is not None and pods.pop(uid, None) is not None:
            self._changed.add(node)
            if not pods:
                del self._statuses[node]

    def node_changes(self, node: str) -> None:
        """Note that the record of a node has changed."""
        if node in self._statuses:
            self._changed.add(node)

    def taken(
        self, annotations_of: Callable[[str], Mapping[str, str]]
    ) -> Mapping[str, frozenset[int]]:
        """By node the reserved CPUs that pods have for themselves, of nodes with any.
        `annotations_of` gives the annotations of a node."""
        for node in self._changed:
            cpus = self._taken_on(node, annotations_of(node))
            if cpus:
                self._taken[node] = cpus
            else:
                self._taken.pop(node, None)
        self._changed.clear()
        return self._taken

    def _taken_on(self, node: str, annotations: Mapping[str, str]) -> frozenset[int]:
        if ANNOTATION not in annotations:
            return frozenset()
        reserved = valid_reservation(annotations).cpus
        own = [pinned_cpus(status) for status in self._statuses.get(node, {}).values()]
        return reserved & frozenset[int]().union(*own) if reserved else reserved
