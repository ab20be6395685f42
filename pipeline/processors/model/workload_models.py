"""Models of workloads: what their pods on a node use, for longer than any of the pods lives.

The model of a pod ends with the pod. A rollout replaces all pods of a workload, so requests are
recommended from models of workloads instead, one for each node and workload. They stay for eight
half-lives after the last pod. The histograms of a workload on all nodes add up to that of the
workload.

Formulas: `workload_samples.py`. A cpu sample weighs its pod's request, at least 0.1 cores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.column_store import Column
from pipeline.processors.model.entity_models import NEVER, NO_ROW, EntityModels
from pipeline.processors.model.histogram import decay_factor, shift_factor, shifted_reference_ms
from pipeline.processors.model.model_config import RESOURCES, VPA
from pipeline.processors.model.node_models import NodeModels
from pipeline.processors.model.oom_peaks import WorkloadOomKills, in_total
from pipeline.processors.model.training_batch import ListedPods, TrainingBatch
from pipeline.processors.model.workload_samples import (
    HALF_LIFE_MS,
    Peaks,
    add_cpu,
    add_memory,
    add_oom_kill,
)
from pipeline.topics.windows import OomKill
from pipeline.topics.workloads import NO_WORKLOAD, Workload

RETAINED_MS: Final = 8 * HALF_LIFE_MS
"""How long a model stays without samples: a weight is then 1/256 of what it was."""
MAX_ABSENT: Final = 1000
"""Workloads of a node without pods whose models stay: jobs may have new names for ever."""
POD_COLUMNS: Final[Mapping[str, Column]] = {
    "memory_peak": Column(),
    "memory_peak_end_ms": Column((), "<i8", NEVER),
}
"""Of each pod the highest memory of its present 24 hours, and when these end."""
COLUMNS: Final[Mapping[str, Column]] = {"pods": Column((), "<i8")}
"""The number of pods that a workload ever had on the node."""

EXPIRY_CHECK_MS: Final = 3_600_000
"""Models expire once an hour of event time."""


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

    def expire(self, node: NodeModels, oldest_ms: int) -> None:
        """Drop models without pods whose last sample was before this time."""
        last_ms = self.models.last_ms
        self._drop(
            node,
            [workload for workload, row in self._absent(node).items() if last_ms[row] < oldest_ms],
        )
        for workload, kills in [*node.workload_oom_kills.items()]:
            if kills.killed_ms < oldest_ms:
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
        weights *= decay_factors(nodes).take(batch.window_index)
        end_ms = batch.end_ms.take(batch.window_index)
        cpu, memory = np.ascontiguousarray(usage.T)
        known = (places != NO_ROW) & ~np.isnan(cpu)
        some = slice(None) if known.all() else np.flatnonzero(known)
        add_cpu(self.models, places[some], cpu[some], weights[some], end_ms[some])
        peaks, peak_ends = (self._pods.store[name] for name in POD_COLUMNS)
        references = np.array([node.workload_reference_ms or 0 for node in nodes], np.int64)
        at, changed = add_memory(
            self.models,
            places,
            memory,
            end_ms,
            Peaks(peaks.take(rows), peak_ends.take(rows)),
            references.take(batch.window_index),
        )
        peaks[rows[at]], peak_ends[rows[at]] = changed
        for head, node in zip(batch.heads, nodes, strict=True):
            for kill in head.oom_kills:
                self._add_oom_kill(node, kill, head.end_ms)

    def _add_oom_kill(self, node: NodeModels, kill: OomKill, end_ms: int) -> None:
        """Add a kill as the peak that it counts as, unless the pod has no workload with a model,
        the kill is in the future or too old, or it or a later one of the pod counted already."""
        row = node.row_by_uid.get(kill.pod, NO_ROW)
        if row == NO_ROW:
            return
        place = int(self._pods.workload[row])
        peaks, peak_ends = (self._pods.store[name] for name in POD_COLUMNS)
        counted = add_oom_kill(
            self.models,
            place,
            kill.killed_ms,
            kill.request_bytes,
            node.pod_oom_kills.get(kill.pod),
            float(peaks[row]),
            int(peak_ends[row]),
            end_ms,
            node.workload_reference_ms or 0,
        )
        if counted is None:
            return
        peaks[row], peak_ends[row] = counted.peak_bytes, counted.peak_end_ms
        node.pod_oom_kills[kill.pod] = counted.kill
        workload = next(each for each, own in node.workload_rows.items() if own == place)
        of_all = node.workload_oom_kills
        total = WorkloadOomKills(kill.killed_ms, counted.counted_bytes, 1)
        of_all[workload] = in_total(of_all.get(workload), total)

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


def _rows(node: NodeModels) -> IntArray:
    return np.array([*node.workload_rows.values()], np.int64)


def decay_factors(nodes: Sequence[NodeModels]) -> FloatArray:
    """The weight of a sample of now on each node."""
    known: dict[tuple[int, int], float] = {}
    factors = []
    for node in nodes:
        key = node.end_ms, node.workload_reference_ms or 0
        if key not in known:
            known[key] = decay_factor(*key, HALF_LIFE_MS)
        factors.append(known[key])
    return np.array(factors)
