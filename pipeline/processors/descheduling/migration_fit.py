"""Move only pods that the evictor would find a node for, by `nodeFit` of MigrationController."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import (
    Arrival,
    Landing,
    LandingSimulator,
    Rejected,
)
from pipeline.processors.descheduling.node_fit import FitSimulator

NOWHERE: Final = "no node that nodeSelector of MigrationController selects could run the pod"


class SelectedFit:
    """Lands each pod where `landing` does, if the node is selected, or another node is that could
    run the pod: the evictor refuses others. `is_selected` is (nodes,)."""

    def __init__(
        self, landing: LandingSimulator, nodes: ClusterNodes, pods: ClusterPods,
        is_selected: BoolArray,
    ) -> None:  # fmt: skip
        self._landing, self._pods, self._is_selected = landing, pods, is_selected
        self._fit = FitSimulator(nodes, pods)

    def land(self, pod: int, targets: IntArray, arrivals: Sequence[Arrival]) -> Landing:
        """Choose one of the targets; none if no selected node could run the pod."""
        landing = self._landing.land(pod, targets, arrivals)
        if landing.node is None or self._is_selected[landing.node]:
            return landing
        selected = np.flatnonzero(self._is_selected)
        others = selected[selected != self._pods.node[pod]]
        if self._fit.land(pod, others, arrivals).node is not None:
            return landing
        return Landing(None, None, (Rejected(landing.node, NOWHERE),), len(targets))
