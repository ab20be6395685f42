"""Usage of the pods of a calibrated pool."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class PodUsage:
    """Usage of all pods of a pool at one step: ids of pods and of their nodes, int64 and not
    negative, amounts in one unit (millicores or MiB), float64. `usage` is NaN where unknown: the
    last known usage stands for it. `workloads` are ids of workloads, not negative, -1 where a pod
    has none or it is unknown: a new pod takes over the history of another pod of its workload."""

    pods: IntArray
    nodes: IntArray
    usage: FloatArray
    requests: FloatArray
    limits: FloatArray
    workloads: IntArray | None = None

    def in_order(self) -> Self:
        """The same with ascending ids of pods: what the fleet learns must not depend on the order.
        Raises ValueError if a pod is listed twice."""
        ascent = np.diff(self.pods)
        if (ascent > 0).all():
            return self
        order = np.argsort(self.pods, kind="stable")
        if (np.diff(self.pods[order]) == 0).any():
            raise ValueError("a pod is listed twice")
        return type(self)(
            self.pods[order],
            self.nodes[order],
            self.usage[order],
            self.requests[order],
            self.limits[order],
            None if self.workloads is None else self.workloads[order],
        )
