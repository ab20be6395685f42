"""Models of workloads: what their pods on a node use, for longer than any of the pods lives.

The model of a pod ends with the pod. A rollout replaces all pods of a workload, so requests are
recommended from models of workloads instead, one for each node and workload. They stay for eight
half-lives after the last pod. The histograms of a workload on all nodes add up to that of the
workload.

Formulas: aggregation of the Vertical Pod Autoscaler. Weights halve in 24 hours. A cpu sample weighs
its pod's request, at least 0.1 cores. Memory enters as one peak of each pod and 24 hours, counted
from the pod's first sample; a higher peak of the same 24 hours replaces it. An OOM kill counts as a
peak above what the pod used (`oom_peaks.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.column_store import Column
from pipeline.processors.model.entity_models import NEVER, NO_ROW, EntityModels
from pipeline.processors.model.histogram import decay_factor, shift_factor, shifted_reference_ms
from pipeline.processors.model.model_config import RESOURCES, VPA
from pipeline.processors.model.node_models import NodeModels
from pipeline.processors.model.oom_peaks import (
    PodOomKill,
    WorkloadOomKills,
    in_total,
    needed_bytes,
)
from pipeline.processors.model.training_batch import ListedPods, TrainingBatch
from pipeline.topics.windows import OomKill
from pipeline.topics.workloads import NO_WORKLOAD, Workload

HALF_LIFE_MS: Final = VPA.half_life_ms[0]
RETAINED_MS: Final = 8 * HALF_LIFE_MS
"""How long a model stays without samples: a weight is then 1/256 of what it was."""
MAX_ABSENT: Final = 1000
"""Workloads of a node without pods whose models stay: jobs may have new names for ever."""
PEAK_INTERVAL_MS: Final = 86_400_000

POD_COLUMNS: Final[Mapping[str, Column]] = {
    "memory_peak": Column(),
    "memory_peak_end_ms": Column((), "<i8", NEVER),
}
"""Of each pod the highest memory of its present 24 hours, and when these end."""
COLUMNS: Final[Mapping[str, Column]] = {"pods": Column((), "<i8")}
"""The number of pods that a workload ever had on the node."""

_CPU_LAYOUT, _MEMORY_LAYOUT = VPA.layouts
_CHECK_MS: Final = 3_600_000
_Times = TypeVar("_Times", int, IntArray)


class WorkloadModels:
    """The models of workloads, one row for each node and workload in `models`.

    Of `models.samples`, cpu counts samples and memory peaks. `pods` are the models of pods, whose
    `workload` is a row of `models`; the rows of a node are in its `workload_rows`. `dropped` counts
    models that were dropped because a node had too many.
    """

    def __init__(self, pods: EntityModels) -> None:
        self.models = EntityModels((VPA,), COLUMNS)
        self._pods = pods
        self.dropped = 0

    def __len__(self) -> int:
        """Models in use."""
        return len(self.models)

    def assign(self, node: NodeModels, listed: ListedPods) -> None:
        """Give each listed pod the row of its workload.

        A pod whose workload is not known keeps the last one that was.
        """
        if not listed.workloads:
            return
        new = {*listed.workloads} - node.workload_rows.keys() - {None, NO_WORKLOAD}
        if new:
            rows = self.models.allocate(np.zeros(len(new), np.int8)).tolist()
            node.workload_rows.update(zip(sorted(filter(None, new)), rows, strict=True))
        known = np.array([workload is not None for workload in listed.workloads], np.bool_)
        row_of = node.workload_rows.get
        # Neither `NO_WORKLOAD` nor None has a row.
        places = np.array([row_of(each or NO_WORKLOAD, NO_ROW) for each in listed.workloads])
        changed = np.flatnonzero(known & (places != self._pods.workload[node.pod_rows]))
        if len(changed):
            pods, places = node.pod_rows[changed], places[changed]
            self._pods.workload[pods] = places
            for name, column in POD_COLUMNS.items():
                self._pods.store[name][pods] = column.empty
            np.add.at(self.models.store["pods"], places[places != NO_ROW], 1)
        if new and len(node.workload_rows) > MAX_ABSENT:
            surplus = self._surplus(node)
            self._drop(node, surplus)
            self.dropped += len(surplus)

    def move_reference(self, node: NodeModels, end_ms: int) -> None:
        """Move the decay reference of the node's workloads, for samples of this time."""
        old = node.workload_reference_ms
        new = shifted_reference_ms(old, end_ms, HALF_LIFE_MS)
        node.workload_reference_ms = new
        if old is not None and new != old and node.workload_rows:
            for r in range(len(RESOURCES)):
                factor = shift_factor(old, new, HALF_LIFE_MS)
                profiles = np.zeros(len(node.workload_rows), np.int8)
                self.models.histograms[r].scale(_rows(node), factor, profiles)

    def expire(self, node: NodeModels, start_ms: int, end_ms: int) -> None:
        """Once an hour of event time, drop models without pods whose last sample is outdated."""
        if start_ms // _CHECK_MS == end_ms // _CHECK_MS:
            return
        last_ms = self.models.last_ms
        self._drop(
            node,
            [
                workload
                for workload, row in self._absent(node).items()
                if last_ms[row] < end_ms - RETAINED_MS
            ],
        )
        for workload, kills in [*node.workload_oom_kills.items()]:
            if kills.killed_ms < end_ms - RETAINED_MS:
                del node.workload_oom_kills[workload]

    def release(self, nodes: Sequence[NodeModels]) -> None:
        """Drop the models of all workloads of these nodes."""
        self.models.release(np.concatenate([_rows(node) for node in nodes]))

    def train(
        self, batch: TrainingBatch, nodes: Sequence[NodeModels], rows: IntArray, usage: FloatArray
    ) -> None:
        """Add one sample of each pod to its workload.

        `rows` (p,) are the models of the pods and `usage` (p, 2) is what they used, NaN is unknown.
        """
        places = self._pods.workload.take(rows)
        weights = np.concatenate([node.listed.cpu_weights for node in nodes])
        weights *= _decay_factors(nodes).take(batch.window_index)
        end_ms = batch.end_ms.take(batch.window_index)
        cpu, memory = np.ascontiguousarray(usage.T)
        known = (places != NO_ROW) & ~np.isnan(cpu)
        some = slice(None) if known.all() else np.flatnonzero(known)
        self._add_cpu(places[some], cpu[some], weights[some], end_ms[some])
        self._add_memory(batch, nodes, rows, places, memory, end_ms)
        for head, node in zip(batch.heads, nodes, strict=True):
            for kill in head.oom_kills:
                self._add_oom_kill(node, kill, head.end_ms)

    def _add_cpu(
        self, places: IntArray, values: FloatArray, weights: FloatArray, end_ms: IntArray
    ) -> None:
        models = self.models
        models.histograms[0].add_repeated(places, _CPU_LAYOUT.digitize(values), weights)
        np.add.at(models.samples.reshape(-1), 2 * places, 1)
        self._remember_times(places, end_ms)

    def _add_memory(
        self,
        batch: TrainingBatch,
        nodes: Sequence[NodeModels],
        rows: IntArray,
        places: IntArray,
        values: FloatArray,
        end_ms: IntArray,
    ) -> None:
        """Add the peaks that are higher than the pod's last one, or the first of its 24 hours."""
        peaks, peak_ends = (self._pods.store[name] for name in POD_COLUMNS)
        has_ended = end_ms >= peak_ends.take(rows)
        # Both are False for an unknown usage.
        changed = (values > peaks.take(rows)) | (has_ended & (values >= 0.0))
        at = np.flatnonzero(changed & (places != NO_ROW))
        if not len(at):
            return
        rows, places, end_ms, has_ended = rows[at], places[at], end_ms[at], has_ended[at]
        buckets = _MEMORY_LAYOUT.digitize(values[at])
        old_buckets = _MEMORY_LAYOUT.digitize(peaks[rows])
        ends = peak_ends[rows]
        begun = np.where(ends == NEVER, end_ms, ends)
        ends = np.where(has_ended, _next_end_ms(begun, end_ms), ends)
        peaks[rows], peak_ends[rows] = values[at], ends
        references = [node.workload_reference_ms or 0 for node in nodes]
        weights = np.array(
            [
                decay_factor(end, references[window], HALF_LIFE_MS)
                for end, window in zip(
                    ends.tolist(), batch.window_index[at].tolist(), strict=True
                )
            ]
        )  # fmt: skip
        moved = np.flatnonzero(~has_ended & (buckets != old_buckets))
        added = np.flatnonzero(has_ended | (buckets != old_buckets))
        if len(added):
            histograms = self.models.histograms[1]
            histograms.subtract(places[moved], old_buckets[moved], weights[moved])
            histograms.add_repeated(places[added], buckets[added], weights[added])
        np.add.at(self.models.samples.reshape(-1), 2 * places[has_ended] + 1, 1)
        self._remember_times(places, end_ms)

    def _add_oom_kill(self, node: NodeModels, kill: OomKill, end_ms: int) -> None:
        """Add a kill as the peak that it counts as, unless the pod has no workload with a model,
        the kill is in the future or too old, or it or a later one of the pod counted already."""
        row = node.row_by_uid.get(kill.pod, NO_ROW)
        place = NO_ROW if row == NO_ROW else int(self._pods.workload[row])
        known = node.pod_oom_kills.get(kill.pod)
        is_new = known is None or known.killed_ms < kill.killed_ms
        is_recent = end_ms - PEAK_INTERVAL_MS <= kill.killed_ms <= end_ms
        if place == NO_ROW or not is_new or not is_recent:
            return
        peaks, peak_ends = (self._pods.store[name] for name in POD_COLUMNS)
        old_peak, interval_end_ms = float(peaks[row]), int(peak_ends[row])
        usage = old_peak if known is None else known.usage(old_peak, interval_end_ms)
        peak = needed_bytes(max(kill.request_bytes, usage))
        has_ended = kill.killed_ms >= interval_end_ms
        if has_ended:
            begun_ms = kill.killed_ms if interval_end_ms == NEVER else interval_end_ms
            interval_end_ms = _next_end_ms(begun_ms, kill.killed_ms)
            usage = 0.0
        if has_ended or peak > old_peak:
            weight = decay_factor(interval_end_ms, node.workload_reference_ms or 0, HALF_LIFE_MS)
            self._replace_peak(place, None if has_ended else old_peak, peak, weight)
            peaks[row], peak_ends[row] = peak, interval_end_ms
            added = peak
        else:
            added = old_peak if usage != old_peak else 0.0
        node.pod_oom_kills[kill.pod] = PodOomKill(kill.killed_ms, interval_end_ms, added, usage)
        self._remember_times(np.array([place]), np.array([end_ms]))
        workload = next(each for each, own in node.workload_rows.items() if own == place)
        counted = WorkloadOomKills(kill.killed_ms, peak, 1)
        of_all = node.workload_oom_kills
        of_all[workload] = in_total(of_all.get(workload), counted)

    def _replace_peak(self, place: int, old_peak: float | None, peak: float, weight: float) -> None:
        """Add a peak to a workload, in place of an old one if there is one."""
        histograms, at, weights = self.models.histograms[1], np.array([place]), np.array([weight])
        bucket = _MEMORY_LAYOUT.digitize(np.array([peak]))
        if old_peak is None:
            self.models.samples[place, 1] += 1
        else:
            old_bucket = _MEMORY_LAYOUT.digitize(np.array([old_peak]))
            if (old_bucket == bucket).all():
                return
            histograms.subtract(at, old_bucket, weights)
        histograms.add_repeated(at, bucket, weights)

    def _remember_times(self, places: IntArray, end_ms: IntArray) -> None:
        first_ms = self.models.first_ms
        new = places[first_ms.take(places) == NEVER]
        self.models.last_ms[places] = end_ms
        if len(new):
            first_ms[new] = self.models.last_ms[new]

    def _absent(self, node: NodeModels) -> dict[Workload, int]:
        """The rows of workloads to which no pod with a model belongs."""
        pods = np.array([*node.row_by_uid.values()], np.int64)
        present = {*self._pods.workload[pods].tolist()}
        return {workload: row for workload, row in node.workload_rows.items() if row not in present}

    def _surplus(self, node: NodeModels) -> list[Workload]:
        """The workloads beyond `MAX_ABSENT` without pods: those longest absent, of the namespaces
        that have most, so that one with ever new names does not push out the others'."""
        absent = self._absent(node)
        if len(absent) <= MAX_ABSENT:
            return []
        last_ms = self.models.last_ms
        newest = sorted(absent, key=lambda workload: (-last_ms[absent[workload]], workload))
        in_namespace: defaultdict[str, int] = defaultdict(int)
        ranks = {}
        for workload in newest:
            ranks[workload] = in_namespace[workload.namespace]
            in_namespace[workload.namespace] += 1
        newest.sort(key=lambda workload: ranks[workload])
        return newest[MAX_ABSENT:]

    def _drop(self, node: NodeModels, workloads: Sequence[Workload]) -> None:
        if workloads:
            rows = [node.workload_rows.pop(workload) for workload in workloads]
            for workload in workloads:
                node.workload_oom_kills.pop(workload, None)
            self.models.release(np.array(rows, np.int64))


def _next_end_ms(begun_ms: _Times, time_ms: _Times) -> _Times:
    """The end of the 24 hours in which a time is, counted from `begun_ms`."""
    return begun_ms + ((time_ms - begun_ms) // PEAK_INTERVAL_MS + 1) * PEAK_INTERVAL_MS


def _rows(node: NodeModels) -> IntArray:
    return np.array([*node.workload_rows.values()], np.int64)


def _decay_factors(nodes: Sequence[NodeModels]) -> FloatArray:
    """The weight of a sample of now on each node."""
    known: dict[tuple[int, int], float] = {}
    factors = []
    for node in nodes:
        key = node.end_ms, node.workload_reference_ms or 0
        if key not in known:
            known[key] = decay_factor(*key, HALF_LIFE_MS)
        factors.append(known[key])
    return np.array(factors)
