"""Usage of targets with the pods that a plan has put on them, and the room that is left.

A target takes a pod only if its usage stays within its limits, in every resource that the pod uses;
that of Prod, too, for pods of Prod. Reaching a limit exactly is allowed.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import Arrival, Landing, LandingSimulator
from pipeline.processors.descheduling.resting_targets import land_elsewhere

SORTED_TARGETS: Final = 256
"""Targets in order of their heat; others are asked only if all of these refuse a pod."""


class TargetLimits(NamedTuple):
    """What targets may use of the watched resources, (nodes, watched). Usage of Prod is compared
    for the resources `is_prod_watched` (watched,)."""

    high: FloatArray
    prod_high: FloatArray
    is_prod_watched: BoolArray


class Bookings:
    """Books pods on targets; `columns` are the watched resources among those of `nodes`.

    `usage` and `prod_usage` (nodes, watched) are projected: nodes with all bookings. Pods that are
    booked have known usage.
    """

    def __init__(
        self, nodes: ClusterNodes, pods: ClusterPods, landing: LandingSimulator,
        columns: Sequence[int], limits: TargetLimits, *, node_fit: bool = True,
    ) -> None:  # fmt: skip
        self._nodes, self._pods, self._landing = nodes, pods, landing
        self._limits = limits._replace(
            high=np.asfortranarray(limits.high), prod_high=np.asfortranarray(limits.prod_high)
        )
        self._full = np.maximum(self._limits.high, 1.0)
        self._node_fit = node_fit
        columns = [*columns]
        # Each resource of all nodes is contiguous, because columns are read whole.
        self.usage: FloatArray = np.array(nodes.usage[:, columns], order="F")
        self.prod_usage: FloatArray = np.array(nodes.prod_usage[:, columns], order="F")
        self._at_first = self.usage.copy()
        self.used: FloatArray = pods.usage[:, columns]
        self._arrivals: list[Arrival] = []

    def land(self, pod: int, targets: IntArray) -> Landing:
        """Where a pod would land now: on a target with room for its usage."""
        roomy = self._with_room(pod, targets)
        return land_elsewhere(self._pods, pod, roomy, partial(self._land, pod))

    def _land(self, pod: int, roomy: IntArray) -> Landing:
        if not len(roomy):
            return Landing(None)
        if not self._node_fit:
            return Landing(int(roomy[0]))
        return self._landing.land(pod, roomy, self._arrivals)

    def book(self, pod: int, landing: Landing) -> None:
        """Put a pod on the node where it lands."""
        assert landing.node is not None
        self._arrivals.append(Arrival(pod, landing.node))
        self._add(pod, landing.node, 1.0)

    def unbook(self, moves: Sequence[tuple[int, Landing]]) -> None:
        """Undo the last bookings."""
        for pod, landing in moves:
            assert landing.node is not None
            self._add(pod, landing.node, -1.0)
        del self._arrivals[len(self._arrivals) - len(moves) :]

    def leave(self, pod: int, node: int) -> None:
        """Take a pod off the node that it leaves."""
        self._add(pod, node, -1.0)

    def why_nowhere(self, pod: int, targets: IntArray, landing: Landing) -> str:
        """Why a pod landed nowhere."""
        if landing.rejections:
            return f"refused by all {landing.rejections} targets that have room for its usage"
        used = self.used[pod]
        with np.errstate(invalid="ignore"):
            is_within = self._at_first[targets] + used <= self._limits.high[targets]
        if not (is_within | (used <= 0)).all(axis=1).any():
            return "too large: it would make every target hot"
        return "no target has room left for its usage, after the other moves"

    def _with_room(self, pod: int, targets: IntArray) -> IntArray:
        """The targets that have room for the pod. The `SORTED_TARGETS` that stay the coolest come
        first, in this order."""
        used, limits = self.used[pod], self._limits
        is_prod = bool(self._pods.is_prod[pod])
        fits, heat = np.ones(len(self.usage), np.bool_), np.zeros(len(self.usage))
        # A plan asks thousands of times: whole columns of all nodes are cheaper than picked rows.
        with np.errstate(invalid="ignore"):
            for index in np.flatnonzero(used > 0).tolist():
                after = self.usage[:, index] + used[index]
                fits &= after <= limits.high[:, index]
                np.maximum(heat, after / self._full[:, index], out=heat)
                if is_prod and limits.is_prod_watched[index]:
                    prod_after = self.prod_usage[:, index] + used[index]
                    fits &= prod_after <= limits.prod_high[:, index]
        targets = targets[fits[targets]]
        heat = heat[targets]
        if len(targets) > SORTED_TARGETS:
            coolest = np.argpartition(heat, SORTED_TARGETS)
            targets, heat = targets[coolest], heat[coolest[:SORTED_TARGETS]]
        order = np.lexsort((self._nodes.by_name[targets[:SORTED_TARGETS]], heat))
        return np.concatenate([targets[order], targets[SORTED_TARGETS:]])

    def _add(self, pod: int, node: int, sign: float) -> None:
        self.usage[node] += sign * self.used[pod]
        if self._pods.is_prod[pod]:
            self.prod_usage[node] += sign * self.used[pod]
