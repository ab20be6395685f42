"""Count the moves of a plan against its caps."""

from collections import Counter
from typing import Final

from pipeline.processors.descheduling.cluster_columns import ClusterPods

CAP: Final = "maxNoOfPodsToEvict"
"""How the names of caps, and reasons that name a cap, begin."""


class MoveCounts:
    """The moves of a plan so far, with those of its earlier strategies."""

    def __init__(self, pods: ClusterPods) -> None:
        self._pods = pods
        self._total = 0
        self._of_node: Counter[int] = Counter()
        self._of_namespace: Counter[str] = Counter()
        for pod in pods.moved:
            self.add(pod)

    def add(self, pod: int, count: int = 1) -> None:
        """Count a pod that moves."""
        self._total += count
        self._of_node[int(self._pods.node[pod])] += count
        self._of_namespace[self._pods.records[pod].namespace] += count

    def remove(self, pod: int) -> None:
        """Count a pod no longer, because it stays."""
        self.add(pod, -1)

    def objection(self, pod: int) -> str | None:
        """The cap that one more move of this pod would exceed; None if it may move."""
        caps, namespace = self._pods.caps, self._pods.records[pod].namespace
        for name, cap, count in (
            ("Total", caps.total, self._total),
            ("PerNode", caps.per_node, self._of_node[int(self._pods.node[pod])]),
            ("PerNamespace", caps.per_namespace, self._of_namespace[namespace]),
        ):
            if cap is not None and count >= cap:
                return f"{CAP}{name}, {cap}, is reached"
        return None
