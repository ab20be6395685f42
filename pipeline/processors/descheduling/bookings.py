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
SAMPLING_STEP: Final = 16
"""One of so many targets is in the sample that tells where the sorted ones end."""


class TargetLimits(NamedTuple):
    """What targets may use of the watched resources, (nodes, watched). Usage of Prod is compared
    for the resources `is_prod_watched` (watched,)."""

    high: FloatArray
    prod_high: FloatArray
    is_prod_watched: BoolArray


class _Targets(NamedTuple):
    """The targets that were `asked` for, in the order of their names, and columns of theirs alone,
    (targets, watched): usage, and the limits below which it is full. `place` is the place of each
    node among them, -1 for others."""

    asked: IntArray
    targets: IntArray
    place: IntArray
    usage: FloatArray
    full: FloatArray


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
        self._limits = limits._replace(prod_high=np.asfortranarray(limits.prod_high))
        # Amounts are whole: no pod that uses a resource fits below a limit of less than 1.
        self._full = np.asfortranarray(np.where(limits.high < 1.0, 0.5, limits.high))
        self._node_fit = node_fit
        columns = [*columns]
        # Each resource of all nodes is contiguous, because columns are read whole.
        self.usage: FloatArray = np.array(nodes.usage[:, columns], order="F")
        self.prod_usage: FloatArray = np.array(nodes.prod_usage[:, columns], order="F")
        self._at_first = self.usage.copy()
        self.used: FloatArray = pods.usage[:, columns]
        self._arrivals: list[Arrival] = []
        self._targets: _Targets | None = None

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
            count = landing.rejections
            who = "the only target that has" if count == 1 else f"all {count} targets that have"
            return f"refused by {who} room for its usage"
        used = self.used[pod]
        is_within = self._at_first[targets] + used <= self._limits.high[targets]
        if not (is_within | (used <= 0)).all(axis=1).any():
            return "too large: it would make every target hot"
        return "no target has room left for its usage, after the other moves"

    def _with_room(self, pod: int, asked: IntArray) -> IntArray:
        """The targets that have room for the pod: `coolest_first` with it, those of equal heat and
        those beyond `SORTED_TARGETS` by name."""
        used, limits = self.used[pod], self._limits
        is_prod = bool(self._pods.is_prod[pod])
        columns = self._columns(asked)
        targets, heat = columns.targets, np.zeros(len(asked))
        for index in np.flatnonzero(used > 0).tolist():
            after = columns.usage[:, index] + used[index]
            after /= columns.full[:, index]
            np.maximum(heat, after, out=heat)
            if is_prod and limits.is_prod_watched[index]:
                prod_after = self.prod_usage[targets, index] + used[index]
                heat[~(prod_after <= limits.prod_high[targets, index])] = np.inf
        return targets[coolest_first(heat)]

    def _columns(self, asked: IntArray) -> _Targets:
        """The contiguous columns of targets: a plan asks about the same thousands of times."""
        if self._targets is None or self._targets.asked is not asked:
            targets = asked[np.argsort(self._nodes.by_name[asked])]
            place = np.full(len(self.usage), -1)
            place[targets] = np.arange(len(targets))
            of_targets = (np.asfortranarray(all_[targets]) for all_ in (self.usage, self._full))
            self._targets = _Targets(asked, targets, place, *of_targets)
        return self._targets

    def _add(self, pod: int, node: int, sign: float) -> None:
        self.usage[node] += sign * self.used[pod]
        if self._targets is not None and (place := self._targets.place[node]) >= 0:
            self._targets.usage[place] = self.usage[node]
        if self._pods.is_prod[pod]:
            self.prod_usage[node] += sign * self.used[pod]


def coolest_first(heat: FloatArray) -> IntArray:
    """The positions of targets whose `heat` (targets,) is at most 1: first the `SORTED_TARGETS`
    coolest in the order of their heat, then the others. Equal ones, and the others, keep their
    order."""
    is_left = heat <= 1.0
    near = fits = np.flatnonzero(is_left)
    if len(fits) > SORTED_TARGETS:
        # To sort those that a sample shows to be cool takes a tenth of the time of sorting all.
        sample = np.sort(heat[fits[::SAMPLING_STEP]])
        cool = np.flatnonzero(heat <= sample[: 2 * SORTED_TARGETS // SAMPLING_STEP][-1])
        near = cool if len(cool) >= SORTED_TARGETS else fits
    coolest = near[np.argsort(heat[near], kind="stable")[:SORTED_TARGETS]]
    is_left[coolest] = False
    return np.concatenate([coolest, np.flatnonzero(is_left)])
