"""Recommend requests for workloads, as the Vertical Pod Autoscaler does.

All pods of a workload get the same request. Target and bounds are quantiles of the sum of its
models on all nodes (`workload_models.py`), so that pods that are gone count as long as their
samples weigh anything. Without samples a recommendation is unknown, never 0.

Formulas: recommender of the Vertical Pod Autoscaler. Quantiles get 15 percent on top; with c days
of history the lower bound is multiplied by (1 + 0.001 / c)**-2 and the upper one by 1 + 1 / c; the
minimum is 25 millicores and 250 MiB.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import compress
from typing import Final, NamedTuple

import numpy as np

from pipeline.errors import CheckpointError
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model import state_codec
from pipeline.processors.model.column_store import Column, Columns
from pipeline.processors.model.entity_models import NEVER, EntityModels
from pipeline.processors.model.histogram import (
    decay_factor,
    quantiles,
    shift_factor,
    shifted_reference_ms,
)
from pipeline.processors.model.model_config import ENTITIES, RESOURCES, VPA
from pipeline.processors.model.oom_peaks import WorkloadOomKills, in_total
from pipeline.processors.model.workload_models import COLUMNS, HALF_LIFE_MS
from pipeline.processors.predictors.vpa import FLOOR, MARGIN_PERCENT, TARGET
from pipeline.topics.workloads import Workload

FRACTIONS: Final = (0.5, TARGET, 0.95)
"""Quantiles of lower bound, target and upper bound, for both resources."""
MAX_PER_NAMESPACE: Final = 10_000
"""Workloads of a namespace with a recommendation: jobs may have new names for ever."""

_DAY_MS: Final = 86_400_000
_AT_ONCE: Final = 1024
"""More workloads at once would need a dense copy of all histograms, and hold up a caller's event
loop for more than some milliseconds."""
_FACTOR: Final = (100.0 + MARGIN_PERCENT) / 100.0
_SUM_COLUMNS: Final = {
    **COLUMNS, "present": Column((), "<i8"), "observed_ms": Column((), "<i8"),
    "replicas": Column((), "<i8"), "requested": Column((2,)),
}  # fmt: skip


class Advice(NamedTuple):
    """The recommendation of one resource in cores or bytes, NaN is unknown: the request of each
    pod (`target`), and the bounds within which an existing request may stay."""

    lower: float
    target: float
    upper: float


class Recommendation(NamedTuple):
    """The recommendation for each pod of a workload.

    `pods` were listed in the last window of their nodes, `pods_seen` ever had a model. `replicas`
    are the pods that have not ended and are not being deleted, `requested_millicores` and
    `requested_bytes` what they request together, NaN if that of one is unknown. `samples` are those
    of cpu, `history_days` the confidence in them. `last_ms` is the end of the newest window with a
    sample. `oom_kills` of the last eight half-lives count as peaks of memory, None: there were
    none.
    """

    workload: Workload
    replicas: int
    requested_millicores: float
    requested_bytes: float
    pods: int
    pods_seen: int
    samples: int
    history_days: float
    last_ms: int
    cpu: Advice
    memory: Advice
    oom_kills: WorkloadOomKills | None = None


class WorkloadSums:
    """Sum the models of workloads over nodes, which are added one after the other, in any order.

    A namespace has room for `MAX_PER_NAMESPACE` workloads: those with pods now come first, then
    those with the newest samples. While nodes are added, up to twice as many are kept, so that the
    choice hardly depends on the order; of a workload that was removed and comes again, only later
    nodes count. `left_out` counts removals.
    """

    def __init__(self) -> None:
        self._models = EntityModels((VPA,), _SUM_COLUMNS)
        self._rows: dict[Workload, int] = {}
        self._in_namespace: defaultdict[str, set[Workload]] = defaultdict(set)
        self._reference_ms: int | None = None
        self._oom_kills: dict[Workload, WorkloadOomKills] = {}
        self.left_out = 0

    def add(
        self, node: str, data: bytes, is_wanted: Callable[[Workload], bool] | None = None
    ) -> None:
        """Add the wanted workloads in the model state of a node, by default all. Raises
        CheckpointError, and adds nothing, for a state that is damaged or of another node."""
        state = state_codec.decode(data)
        state_codec.check_oom_kills(state)
        if state.node != node:
            raise CheckpointError(f"state of node {state.node!r:.100} given for {node!r:.100}")
        count, models = len(state.workloads), state.workload_models
        histograms = state_codec.read_workloads(state, self._models)
        columns = state_codec.workload_columns(models, count)
        kept = Columns(COLUMNS)
        values = kept.unpack(models.columns, count)
        kept.grow(count)
        kept.write(np.arange(count), values)
        present = _present(state, count)
        positions = [
            position
            for position, workload in enumerate(state.workloads)
            if is_wanted is None or is_wanted(workload)
        ]
        if not positions or state.workload_reference_ms is None:
            return
        own = np.array(positions, np.int64)
        workloads = [state.workloads[position] for position in positions]
        rows = self._allocated(workloads)
        of_node, of_all = dict(state.workload_oom_kills), self._oom_kills
        for workload in of_node.keys() & {*workloads}:
            of_all[workload] = in_total(of_all.get(workload), of_node[workload])
        factor = self._moved_to(state.workload_reference_ms)
        for sums, (counts, buckets, weights) in zip(
            self._models.histograms, histograms, strict=True
        ):
            row_of = np.full(count, NEVER)
            row_of[own] = rows
            bucket_rows = row_of.repeat(counts)
            wanted = bucket_rows != NEVER
            sums.add_repeated(bucket_rows[wanted], buckets[wanted], weights[wanted] * factor)
        totals = self._models
        samples = columns["samples"][own]
        totals.samples[rows] += samples
        totals.store["observed_ms"][rows] += samples[:, 0] * state.window_ms
        totals.store["pods"][rows] += kept["pods"][own]
        totals.store["present"][rows] += present.pods[own]
        totals.store["replicas"][rows] += present.replicas[own]
        totals.store["requested"][rows] += present.requested[own]
        first, last = columns["first_ms"][own], columns["last_ms"][own]
        before = totals.first_ms[rows]
        earliest = np.where(before == NEVER, first, np.minimum(before, first))
        totals.first_ms[rows] = np.where(first == NEVER, before, earliest)
        totals.last_ms[rows] = np.maximum(totals.last_ms[rows], last)
        for namespace in {workload.namespace for workload in workloads}:
            if len(self._in_namespace[namespace]) > 2 * MAX_PER_NAMESPACE:
                self._leave_out(namespace)

    def recommendations(self) -> Iterator[Recommendation]:
        """The recommendation for each workload with samples, by namespace, kind and name, computed
        for some hundreds at a time. After this, no node may be added."""
        for namespace in self._in_namespace:
            self._leave_out(namespace)
        workloads = sorted(self._rows)
        for first in range(0, len(workloads), _AT_ONCE):
            yield from self._recommendations(workloads[first : first + _AT_ONCE])

    def _recommendations(self, workloads: list[Workload]) -> Iterator[Recommendation]:
        rows = np.array([self._rows[workload] for workload in workloads], np.int64)
        models = self._models
        lifetime_ms = models.last_ms[rows] - models.first_ms[rows]
        days = np.minimum(lifetime_ms, models.store["observed_ms"][rows]) / _DAY_MS
        cpu, memory = (
            np.stack(bounds(self._quantiles(rows, resource), days, FLOOR[resource]), axis=1)
            for resource in range(len(RESOURCES))
        )
        # Without a target both bounds are unknown, too.
        known = ~(np.isnan(cpu[:, 1]) & np.isnan(memory[:, 1]))
        columns = (
            models.store["replicas"][rows].tolist(),
            *models.store["requested"][rows].T.tolist(),
            models.store["present"][rows].tolist(),
            models.store["pods"][rows].tolist(),
            models.samples[rows, 0].tolist(),
            days.tolist(),
            models.last_ms[rows].tolist(),
        )
        advice = (map(Advice._make, amounts.tolist()) for amounts in (cpu, memory))
        oom_kills = map(self._oom_kills.get, workloads)
        each = zip(workloads, *columns, *advice, oom_kills, strict=True)
        return (Recommendation(*row) for row in compress(each, known.tolist()))

    def _leave_out(self, namespace: str) -> None:
        """Remove the workloads of a namespace for which there is no room."""
        own = sorted(self._in_namespace[namespace])
        rows = np.array([self._rows[workload] for workload in own], np.int64)
        absent = self._models.store["present"][rows] == 0
        order = np.lexsort((-self._models.last_ms[rows], absent))[MAX_PER_NAMESPACE:]
        for position in order.tolist():
            del self._rows[own[position]]
            self._oom_kills.pop(own[position], None)
        self._in_namespace[namespace].difference_update(own[i] for i in order.tolist())
        self._models.release(rows[order])
        self.left_out += len(order)

    def _allocated(self, workloads: list[Workload]) -> IntArray:
        """The rows of these workloads, new ones if necessary."""
        new = [workload for workload in workloads if workload not in self._rows]
        rows = self._models.allocate(np.zeros(len(new), np.int8)).tolist()
        self._rows.update(zip(new, rows, strict=True))
        for workload in new:
            self._in_namespace[workload.namespace].add(workload)
        return np.array([self._rows[workload] for workload in workloads], np.int64)

    def _moved_to(self, reference_ms: int) -> float:
        """Move the common reference for weights with this one, and return the factor of these.
        Both are multiples of the half-life, so that factors are exact powers of two."""
        before = self._reference_ms
        self._reference_ms = shifted_reference_ms(before, reference_ms, HALF_LIFE_MS)
        if before is not None and before != self._reference_ms:
            rows = np.array([*self._rows.values()], np.int64)
            factor = shift_factor(before, self._reference_ms, HALF_LIFE_MS)
            for histograms in self._models.histograms:
                histograms.scale(rows, factor, self._models.profile[rows])
        return decay_factor(reference_ms, self._reference_ms, HALF_LIFE_MS)

    def _quantiles(self, rows: IntArray, resource: int) -> FloatArray:
        """Quantiles of `FRACTIONS`, (3, n), NaN without samples."""
        weights = self._models.histograms[resource].dense(rows)
        return quantiles(weights, VPA.layouts[resource], FRACTIONS)


def bounds(
    quantiles: FloatArray, confidence_days: FloatArray, floor: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Lower bound, target and upper bound from the `quantiles` (3, n) of n workloads with this many
    days of history (n,). NaN is unknown, as is the upper bound without history."""
    lower, target, upper = quantiles * _FACTOR
    with np.errstate(divide="ignore", invalid="ignore"):
        lower = lower * (1.0 + 0.001 / confidence_days) ** -2.0
        upper = upper * (1.0 + 1.0 / confidence_days)
    upper[np.isinf(upper)] = np.nan
    return np.maximum(lower, floor), np.maximum(target, floor), np.maximum(upper, floor)


class _Present(NamedTuple):
    """Of n workloads of a node: the pods of its last window (n,), the replicas among them (n,), and
    what these request together in millicores and bytes (n, 2), NaN if that of one is unknown."""

    pods: IntArray
    replicas: IntArray
    requested: FloatArray


def _present(state: state_codec.ModelState, count: int) -> _Present:
    """The pods in the last window by workload of `state`, which has `count` workloads.

    Raises CheckpointError for columns that differ in length.
    """
    pods = len(state.listed) // 4
    listed = state_codec.unpack(state.listed, "<u4", pods).astype(np.int64)
    places = state_codec.unpack(state.pod_workloads, "<i4", len(ENTITIES) + len(state.uids))
    places = places[len(ENTITIES) + listed]
    requests = state_codec.unpack(state.requests, "<f8", pods, len(RESOURCES))
    is_active = state_codec.unpack(state.active, "<u1", pods) != 0
    has_workload = places >= 0
    replicas = places[has_workload & is_active]
    requested = np.zeros((count, len(RESOURCES)))
    np.add.at(requested, replicas, requests[has_workload & is_active])
    return _Present(
        np.bincount(places[has_workload], minlength=count),
        np.bincount(replicas, minlength=count),
        requested,
    )
