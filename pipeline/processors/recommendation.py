"""Recommend requests for the pods of an owner, as the Vertical Pod Autoscaler does.

All pods of a workload get the same request. Target and bounds are quantiles of the sum of the
histograms of its pods on all nodes; median and maximum of the pods' own peaks are given beside
them. Without samples a recommendation is unknown, never 0.

Formulas: recommender of the Vertical Pod Autoscaler. Quantiles get 15 percent on top; with c days
of history the lower bound is multiplied by (1 + 0.001 / c)**-2 and the upper one by 1 + 1 / c; the
minimum is 25 millicores and 250 MiB. The autoscaler also counts deleted pods, learns memory as one
peak a day, and adds memory after an OOM kill.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.exchange.import_models import Histogram, rebucket
from pipeline.processors.model.entity_models import NEVER
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
"""Quantiles of lower bound, target and upper bound, for both resources."""
POD_PEAK: Final = (0.95, 0.98)
"""Quantiles of a pod's own cpu and memory, as the predictor `percentile` has by default."""

_DAY_MS: Final = 86_400_000
OWNERS_AT_ONCE: Final = 2048
"""Quantiles of more owners at once would need a copy of all histograms."""
_FACTOR: Final = (100.0 + MARGIN_PERCENT) / 100.0


class PodOwner(NamedTuple):
    """The controller of a pod by the pod's record: a ReplicaSet, not the Deployment behind it. A
    pod without a controller is its own owner."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return "/".join(self)


class Advice(NamedTuple):
    """The recommendation of one resource in cores or bytes, NaN is unknown: the request of each
    pod (`target`), and the bounds within which an existing request may stay. `peak_median` and
    `peak_max` summarize the own peaks of the `pods` that have any of the `samples`."""

    lower: float
    target: float
    upper: float
    confidence_days: float
    samples: int
    pods: int
    peak_median: float
    peak_max: float


class Recommendation(NamedTuple):
    """The recommendation for each of the `pods` of an owner. `end_ms` is the end of the newest
    window of all nodes with models of its pods, `NEVER` without any."""

    owner: PodOwner
    pods: int
    end_ms: int
    cpu: Advice
    memory: Advice

    @property
    def known(self) -> bool:
        return not (np.isnan(self.cpu.target) and np.isnan(self.memory.target))


class WorkloadSums:
    """Sum the models of pods by owner. Nodes are added one after the other, in any order.

    Memory: a histogram per owner and resource, and nine numbers per pod. `unrecorded_pods` counts
    pods with models and an unknown owner. Raises `PredictorError` like a bank.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._learner = Learner(config, None)
        self._sums = [
            [_Sum(profile.layouts[r], profile.half_life_ms[r]) for profile in config.profiles]
            for r in range(len(RESOURCES))
        ]
        self._numbers: dict[PodOwner, int] = {}
        self._pods: list[int] = []
        self._parts: list[_Pods] = []
        self.unrecorded_pods = 0

    def count(self, owner: PodOwner) -> int:
        """Count a pod of `owner`, with models or without. Returns the owner's number."""
        number = self._numbers.setdefault(owner, len(self._pods))
        if number == len(self._pods):
            self._pods.append(0)
        self._pods[number] += 1
        return number

    def add(self, node: str, state: bytes, owners: Mapping[str, int]) -> None:
        """Add the pods in the model state of a node; `owners` are numbers of `count` by UID. Raises
        CheckpointError, and adds nothing, for a state that does not fit the configuration."""
        restored = self._learner.restore_node(self._learner.decode_state(node, state))
        try:
            known = [
                (owners[uid], row) for uid, row in restored.row_by_uid.items() if uid in owners
            ]
            self.unrecorded_pods += len(restored.row_by_uid) - len(known)
            if known:
                self._add(restored, *np.array(known, np.int64).T)
        finally:
            self._learner.release([restored])

    def recommendations(self) -> list[Recommendation]:
        """The recommendation for each owner, by namespace, kind and name."""
        pods = _Pods.concatenated(self._parts)
        ends = np.full(len(self._pods), NEVER, np.int64)
        np.maximum.at(ends, pods.owner, pods.end_ms)
        cpu, memory = (
            _advice(pods, r, _quantiles(self._sums[r], ends), FLOOR[r])
            for r in range(len(RESOURCES))
        )
        rows = zip(self._numbers, self._pods, ends.tolist(), cpu, memory, strict=True)
        return sorted(
            (Recommendation(*row) for row in rows),
            key=lambda each: (each.owner.namespace, each.owner.kind, each.owner.name),
        )

    def _add(self, node: NodeModels, owners: IntArray, rows: IntArray) -> None:
        """Add the `rows` (n,) of a node, which belong to pods of `owners` (n,)."""
        models = self._learner.models
        profiles, samples = models.profile[rows], models.samples[rows]
        for r, sums in enumerate(self._sums):
            for profile, total in enumerate(sums):
                own = np.flatnonzero((profiles == profile) & (samples[:, r] > 0))
                reference_ms = node.reference_ms[profile][r]
                if len(own) and reference_ms is not None:
                    total.add(owners[own], models.histograms[r].dense(rows[own]), reference_ms)
        peaks = models.quantile(rows, np.broadcast_to(POD_PEAK, (len(rows), 2)))
        self._parts.append(
            _Pods(
                owner=owners,
                samples=samples,
                observed_ms=samples * node.window_ms,
                first_ms=models.first_ms[rows],
                last_ms=models.last_ms[rows],
                end_ms=np.full(len(rows), node.end_ms),
                peaks=np.where(models.idle(rows), 0.0, peaks),
            )
        )


def bounds(
    quantiles: FloatArray, confidence_days: FloatArray, floor: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Lower bound, target and upper bound from the `quantiles` (3, n) of n owners with this many
    days of history (n,). NaN is unknown, as is the upper bound without history."""
    lower, target, upper = quantiles * _FACTOR
    with np.errstate(divide="ignore", invalid="ignore"):
        lower = lower * (1.0 + 0.001 / confidence_days) ** -2.0
        upper = upper * (1.0 + 1.0 / confidence_days)
    upper[np.isinf(upper)] = np.nan
    return np.maximum(lower, floor), np.maximum(target, floor), np.maximum(upper, floor)


class _Pods(NamedTuple):
    """Pods with models, (n,) or by resource (n, 2): number of samples, observed time, times of the
    first and last sample, end of the node's last window, and the pod's own peak."""

    owner: IntArray
    samples: IntArray
    observed_ms: IntArray
    first_ms: IntArray
    last_ms: IntArray
    end_ms: IntArray
    peaks: FloatArray

    @classmethod
    def concatenated(cls, parts: Iterable[_Pods]) -> _Pods:
        column, pair = np.zeros(0, np.int64), np.zeros((0, 2), np.int64)
        empty = cls(column, pair, pair, column, column, column, np.zeros((0, 2)))
        return cls(*(np.concatenate(columns) for columns in zip(empty, *parts, strict=True)))


class _Sum:
    """Histograms of one resource and profile by owner, (owners, buckets), with one reference."""

    def __init__(self, layout: Layout, half_life_ms: int) -> None:
        self.layout = layout
        self.half_life_ms = half_life_ms
        self.reference_ms = 0
        self.weights: FloatArray = np.zeros((0, layout.num_buckets))

    def add(self, owners: IntArray, dense: FloatArray, reference_ms: int) -> None:
        """Add the weights (n, at least our buckets) of pods of `owners` (n,). Both references are
        multiples of the half-life, so the factor between them is an exact power of two."""
        if len(self.weights) == 0:
            self.reference_ms = reference_ms
        before = self.reference_ms
        self.reference_ms = shifted_reference_ms(before, reference_ms, self.half_life_ms)
        if self.reference_ms != before:
            self.weights *= shift_factor(before, self.reference_ms, self.half_life_ms)
        needed, size = int(owners.max()) + 1, len(self.weights)
        if needed > size:
            # Room for more owners than needed, so that few additions copy.
            grown = np.zeros((max(needed, size * 3 // 2, 256), self.layout.num_buckets))
            grown[:size] = self.weights
            self.weights = grown
        factor = decay_factor(reference_ms, self.reference_ms, self.half_life_ms)
        np.add.at(self.weights, owners, dense[:, : self.layout.num_buckets] * factor)

    def decayed(self, owner: int, time_ms: int) -> Histogram:
        """The histogram of an owner, relative to a sample at `time_ms`."""
        factor = decay_factor(self.reference_ms, time_ms, self.half_life_ms)
        return Histogram(self.layout, self.weights[owner] * factor, time_ms, self.half_life_ms)


def _quantiles(sums: list[_Sum], ends_ms: IntArray) -> FloatArray:
    """Lower, target and upper quantile of each owner, (3, owners), over its pods of all profiles;
    NaN without samples."""
    owners = len(ends_ms)
    filled = np.zeros((len(sums), owners), np.bool_)
    for number, total in enumerate(sums):
        filled[number, : len(total.weights)] = ~is_empty(total.weights[:owners])
    mixed = filled.sum(axis=0) > 1
    result = np.full((3, owners), np.nan)
    for number, total in enumerate(sums):
        alone = np.flatnonzero(filled[number] & ~mixed)
        for first in range(0, len(alone), OWNERS_AT_ONCE):
            part = alone[first : first + OWNERS_AT_ONCE]
            result[:, part] = quantiles(total.weights[part], total.layout, FRACTIONS)
    for owner in np.flatnonzero(mixed).tolist():
        own = [sums[number] for number in np.flatnonzero(filled[:, owner])]
        # Every value fits into the layout that reaches farthest.
        layout = max((total.layout for total in own), key=lambda layout: float(layout.ends[-1]))
        whole = np.zeros(layout.num_buckets)
        for total in own:
            merge(whole, rebucket(total.decayed(owner, int(ends_ms[owner])), layout))
        result[:, owner] = quantiles(whole[None], layout, FRACTIONS)[:, 0]
    return result


def _advice(pods: _Pods, resource: int, quantiles: FloatArray, floor: float) -> list[Advice]:
    """The advice of each owner for one resource, from its `_quantiles` and its pods."""
    owners = quantiles.shape[1]
    peaks = pods.peaks[:, resource]
    known = np.flatnonzero(~np.isnan(peaks))
    # By owner, and for each owner by peak.
    order = known[np.lexsort((peaks[known], pods.owner[known]))]
    present, first, count = np.unique(pods.owner[order], return_index=True, return_counts=True)
    median, highest = np.full((2, owners), np.nan)
    samples, counts = np.zeros((2, owners), np.int64)
    confidence = np.zeros(owners)
    if len(present):
        peaks = peaks[order]
        median[present] = (peaks[first + (count - 1) // 2] + peaks[first + count // 2]) / 2
        highest[present] = peaks[first + count - 1]
        samples[present] = np.add.reduceat(pods.samples[order, resource], first)
        observed_ms = np.add.reduceat(pods.observed_ms[order, resource], first)
        start_ms = np.minimum.reduceat(pods.first_ms[order], first)
        length_ms = np.maximum.reduceat(pods.last_ms[order], first) - start_ms
        confidence[present] = np.minimum(length_ms, observed_ms) / _DAY_MS
        counts[present] = count
    # The quantile of an idle pod is 0, not the end of the first bucket.
    quantiles = np.where(highest == 0.0, 0.0, quantiles)
    columns = (
        *bounds(quantiles, confidence, floor), confidence, samples, counts, median, highest,
    )  # fmt: skip
    return [Advice(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
