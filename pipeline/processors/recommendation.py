"""Recommend requests for the pods of an owner, as the Vertical Pod Autoscaler does.

Each pod of a workload gets the same request. The histograms of all its pods on all nodes are added
up; target and bounds are quantiles of the sum. Median and maximum of the pods' own peaks are given
beside them. Without samples a recommendation is unknown, never 0.

Formulas: recommender of the Vertical Pod Autoscaler. Quantiles get 15 percent on top; with c days
of history the lower bound is multiplied by (1 + 0.001 / c)**-2 and the upper one by 1 + 1 / c; in
the end none is below 25 millicores and 250 MiB. The autoscaler also counts deleted pods, learns
memory as one peak a day, and adds memory after a kill.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.exchange.import_models import Histogram, converted
from pipeline.processors.model.entity_columns import NEVER
from pipeline.processors.model.histogram import (
    Layout,
    decay_factor,
    is_empty,
    merge,
    quantiles,
    shift_factor,
    shifted_reference_ms,
)
from pipeline.processors.model.learner import Learner
from pipeline.processors.model.model_config import RESOURCES, ModelConfig
from pipeline.processors.model.node_models import NodeModels
from pipeline.processors.predictors.vpa import FLOOR, MARGIN_PERCENT, TARGET

FRACTIONS: Final = (0.5, TARGET, 0.95)
"""Of lower bound, target and upper bound, for both resources."""
POD_PEAK: Final = (0.95, 0.98)
"""Of cpu and memory: those of the predictor `percentile` by default."""

_DAY_MS: Final = 86_400_000
OWNERS_AT_ONCE: Final = 2048
"""Owners whose quantiles are found together: a copy of all histograms is not needed for it."""
_FACTOR: Final = (100.0 + MARGIN_PERCENT) / 100.0


class PodOwner(NamedTuple):
    """What controls a pod, as far as the pod says: a ReplicaSet, not the Deployment behind it. A
    pod that nothing controls is its own."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return "/".join(self)


class Advice(NamedTuple):
    """Of one resource, cores or bytes, NaN unknown: what each pod should ask for (`target`), and
    the bounds within which what it asks for may stay. `peak_median` and `peak_max` are of what each
    of the `pods` that have any of the `samples` needs by itself."""

    lower: float
    target: float
    upper: float
    confidence_days: float
    samples: int
    pods: int
    peak_median: float
    peak_max: float


class Recommendation(NamedTuple):
    """For each of the `pods` of an owner; `end_ms` is the end of the newest window of the nodes
    that have models of any, `NEVER` if there are none."""

    owner: PodOwner
    pods: int
    end_ms: int
    cpu: Advice
    memory: Advice

    @property
    def known(self) -> bool:
        """Whether anything is recommended."""
        return not (np.isnan(self.cpu.target) and np.isnan(self.memory.target))


class WorkloadSums:
    """Sums over pods by owner, to which nodes are added one after the other, in any order.

    Kept are a histogram per owner and resource and nine numbers per pod. `strangers` counts pods
    with models of which nobody has said whose they are. Raises `PredictorError` as a bank does.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._learner = Learner(config, None)
        self._sums = [
            [_Sum(profile.layouts[r], profile.half_life_ms[r]) for profile in config.profiles]
            for r in range(len(RESOURCES))
        ]
        self._numbers: dict[PodOwner, int] = {}
        self._pods: list[int] = []
        self._seen: list[_Pods] = []
        self.strangers = 0

    def count(self, owner: PodOwner) -> int:
        """Take note of a pod of `owner`, with models or without; gives the owner's number."""
        number = self._numbers.setdefault(owner, len(self._pods))
        if number == len(self._pods):
            self._pods.append(0)
        self._pods[number] += 1
        return number

    def add(self, node: str, state: bytes, owners: Mapping[str, int]) -> None:
        """Add the pods of a node whose models are in `state`; `owners` are their numbers by UID.

        Raises CheckpointError, and adds nothing, for a state that does not fit the configuration.
        """
        models = self._learner.restored(self._learner.checked(node, state))
        try:
            found = [(owners[uid], row) for uid, row in models.pods.items() if uid in owners]
            self.strangers += len(models.pods) - len(found)
            if found:
                numbers, rows = np.array(found, np.int64).T
                self._add(models, numbers, rows)
        finally:
            self._learner.release([models])

    def recommendations(self) -> list[Recommendation]:
        """One for each owner, by namespace, kind and name."""
        count = len(self._pods)
        seen = _Pods.together(self._seen)
        ends = np.full(count, NEVER, np.int64)
        np.maximum.at(ends, seen.owner, seen.end_ms)
        cpu, memory = (
            _advice(seen, r, _quantiles(self._sums[r], ends), FLOOR[r])
            for r in range(len(RESOURCES))
        )
        found = zip(self._numbers, self._pods, ends.tolist(), cpu, memory, strict=True)
        return sorted(
            (Recommendation(*fields) for fields in found),
            key=lambda one: (one.owner.namespace, one.owner.kind, one.owner.name),
        )

    def _add(self, models: NodeModels, owners: IntArray, at: IntArray) -> None:
        """Add the rows `at` (n,) of a node, which are of pods of `owners` (n,)."""
        rows = self._learner.rows
        profiles, samples = rows.profile[at], rows.samples[at]
        for r, sums in enumerate(self._sums):
            for profile, one in enumerate(sums):
                mine = np.flatnonzero((profiles == profile) & (samples[:, r] > 0))
                reference_ms = models.reference_ms[profile][r]
                if len(mine) and reference_ms is not None:
                    one.add(owners[mine], rows.buckets[r].dense(at[mine]), reference_ms)
        peaks = rows.quantile(at, np.broadcast_to(POD_PEAK, (len(at), 2)))
        self._seen.append(
            _Pods(
                owner=owners,
                samples=samples,
                observed_ms=samples * models.window_ms,
                first_ms=rows.first_ms[at],
                last_ms=rows.last_ms[at],
                end_ms=np.full(len(at), models.end_ms),
                peaks=np.where(rows.idle(at), 0.0, peaks),
            )
        )


def bounds(
    found: FloatArray, confidence_days: FloatArray, floor: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Lower bound, target and upper bound from the quantiles `found` (3, n) of n owners with so
    many days of history (n,); NaN unknown, as the upper bound is while there is no history."""
    lower, target, upper = found * _FACTOR
    with np.errstate(divide="ignore", invalid="ignore"):
        lower = lower * (1.0 + 0.001 / confidence_days) ** -2.0
        upper = upper * (1.0 + 1.0 / confidence_days)
    upper[np.isinf(upper)] = np.nan
    return np.maximum(lower, floor), np.maximum(target, floor), np.maximum(upper, floor)


class _Pods(NamedTuple):
    """Pods with models, (n,) or by resource (n, 2): samples, how long they observed the pod, when
    the first and last one was, the end of the node's last window, and the pod's own peak."""

    owner: IntArray
    samples: IntArray
    observed_ms: IntArray
    first_ms: IntArray
    last_ms: IntArray
    end_ms: IntArray
    peaks: FloatArray

    @classmethod
    def together(cls, parts: Iterable[_Pods]) -> _Pods:
        none, pairs = np.zeros(0, np.int64), np.zeros((0, 2), np.int64)
        nobody = cls(none, pairs, pairs, none, none, none, np.zeros((0, 2)))
        return cls(*(np.concatenate(columns) for columns in zip(nobody, *parts, strict=True)))


class _Sum:
    """Histograms of one resource and profile by owner, (owners, buckets), with one reference."""

    def __init__(self, layout: Layout, half_life_ms: int) -> None:
        self.layout = layout
        self.half_life_ms = half_life_ms
        self.reference_ms = 0
        self.weights: FloatArray = np.zeros((0, layout.num_buckets))

    def add(self, owners: IntArray, dense: FloatArray, reference_ms: int) -> None:
        """Add the weights (n, at least our buckets) of pods of `owners` (n,). Their reference and
        ours are multiples of the half-life, so what brings them here is an exact power of two."""
        if len(self.weights) == 0:
            self.reference_ms = reference_ms
        before = self.reference_ms
        self.reference_ms = shifted_reference_ms(before, reference_ms, self.half_life_ms)
        if self.reference_ms != before:
            self.weights *= shift_factor(before, self.reference_ms, self.half_life_ms)
        self.weights = _resized(self.weights, int(owners.max()) + 1)
        worth = decay_factor(reference_ms, self.reference_ms, self.half_life_ms)
        np.add.at(self.weights, owners, dense[:, : self.layout.num_buckets] * worth)

    def left(self, owner: int, at_ms: int) -> Histogram:
        """What an owner's histogram is worth beside a sample of `at_ms`."""
        worth = decay_factor(self.reference_ms, at_ms, self.half_life_ms)
        return Histogram(self.layout, self.weights[owner] * worth, at_ms, self.half_life_ms)


def _quantiles(sums: list[_Sum], ends_ms: IntArray) -> FloatArray:
    """Lower, target and upper quantile of each owner, (3, owners), over its pods of all profiles;
    NaN where there is nothing."""
    owners = len(ends_ms)
    filled = np.zeros((len(sums), owners), np.bool_)
    for number, one in enumerate(sums):
        filled[number, : len(one.weights)] = ~is_empty(one.weights[:owners])
    mixed = filled.sum(axis=0) > 1
    found = np.full((3, owners), np.nan)
    for number, one in enumerate(sums):
        alone = np.flatnonzero(filled[number] & ~mixed)
        for first in range(0, len(alone), OWNERS_AT_ONCE):
            some = alone[first : first + OWNERS_AT_ONCE]
            found[:, some] = quantiles(one.weights[some], one.layout, FRACTIONS)
    for owner in np.flatnonzero(mixed).tolist():
        parts = [sums[number] for number in np.flatnonzero(filled[:, owner])]
        # Into the buckets that reach farthest every value fits.
        layout = max((one.layout for one in parts), key=lambda layout: float(layout.ends[-1]))
        whole = np.zeros(layout.num_buckets)
        for one in parts:
            merge(whole, converted(one.left(owner, int(ends_ms[owner])), layout))
        found[:, owner] = quantiles(whole[None], layout, FRACTIONS)[:, 0]
    return found


def _advice(seen: _Pods, resource: int, found: FloatArray, floor: float) -> list[Advice]:
    """What follows of one resource from its `_quantiles` and from the pods that were seen."""
    owners = found.shape[1]
    peaks = seen.peaks[:, resource]
    known = np.flatnonzero(~np.isnan(peaks))
    # By owner, and for each owner by peak.
    order = known[np.lexsort((peaks[known], seen.owner[known]))]
    own, first, pods = np.unique(seen.owner[order], return_index=True, return_counts=True)
    median, highest = np.full((2, owners), np.nan)
    samples, counts = np.zeros((2, owners), np.int64)
    confidence = np.zeros(owners)
    if len(own):
        peaks = peaks[order]
        median[own] = (peaks[first + (pods - 1) // 2] + peaks[first + pods // 2]) / 2
        highest[own] = peaks[first + pods - 1]
        samples[own] = np.add.reduceat(seen.samples[order, resource], first)
        observed_ms = np.add.reduceat(seen.observed_ms[order, resource], first)
        began_ms = np.minimum.reduceat(seen.first_ms[order], first)
        lasted_ms = np.maximum.reduceat(seen.last_ms[order], first) - began_ms
        confidence[own], counts[own] = np.minimum(lasted_ms, observed_ms) / _DAY_MS, pods
    # What never used any has no first bucket's end for its quantile.
    found = np.where(highest == 0.0, 0.0, found)
    columns = (
        *bounds(found, confidence, floor), confidence, samples, counts, median, highest,
    )  # fmt: skip
    return [Advice(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _resized(weights: FloatArray, owners: int) -> FloatArray:
    """With room for so many owners, and for more of them at a time than one."""
    if owners <= len(weights):
        return weights
    grown = np.zeros((max(owners, len(weights) * 3 // 2, 256), weights.shape[1]))
    grown[: len(weights)] = weights
    return grown
