"""Models of containers: what one container of a workload's pods uses on a node.

Only pods with several containers have them; of another pod its own usage is that of its container,
whose name `NodeContainers.only` has. A container is known by its pod and name, so that one
that is restarted continues. CPU and memory enter as samples of pods enter the models of workloads
(`workload_samples.py`): an average over the window, and the highest reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.model.entity_models import NEVER, NO_ROW, EntityModels
from pipeline.processors.model.histogram import shift_factor
from pipeline.processors.model.model_config import MAX_USAGE, VPA
from pipeline.processors.model.node_containers import NodeContainers, PodContainer
from pipeline.processors.model.node_models import NodeModels
from pipeline.processors.model.training_batch import ListedPods, TrainingBatch, valid
from pipeline.processors.model.workload_samples import (
    HALF_LIFE_MS,
    Peaks,
    add_cpu,
    add_memory,
    add_oom_kill,
)
from pipeline.topics.windows import OomKill
from pipeline.topics.workloads import NO_WORKLOAD, Workload, WorkloadContainer

MAX_MODELS: Final = 4096
"""Models of containers of a node: a sample has half as many containers."""


class ContainerModels:
    """The models of containers, one row for each node, workload and container in `models`.

    `dropped` counts models that were dropped because a node had too many.
    """

    def __init__(self) -> None:
        self.models = EntityModels((VPA,), {})
        self.dropped = 0

    def assign(self, node: NodeModels, listed: ListedPods) -> None:
        """Give each container of the listed pods the row of its container of a workload.

        A container whose name is not known has no row. That of a pod whose workload is not known
        keeps the last one that was.
        """
        own = node.containers
        if not listed.containers and not own.places and not any(listed.only_containers):
            return
        only, known = own.only, node.workload_rows
        for workload, name in zip(listed.workloads, listed.only_containers, strict=False):
            if workload in known and name is not None:
                only[workload] = name
        _forget_only(node)
        positions = {uid: position for position, uid in enumerate(listed.uids)}
        rows: dict[PodContainer, int] = {}
        sources: list[int] = []
        for source, (uid, name) in enumerate(listed.containers):
            if name is None:
                continue
            workload = listed.workloads[positions[uid]] if listed.workloads else None
            place = own.places.get((uid, name))
            if workload is not None:
                row = self._row(own, workload, name)
            else:
                row = NO_ROW if place is None else int(own.place_rows[place])
            if row != NO_ROW and (uid, name) not in rows:
                rows[uid, name] = row
                sources.append(source)
        self._place(own, rows, node.row_by_uid.keys())
        own.listed = np.array([own.places[key] for key in rows], np.int64)
        own.sources = np.array(sources, np.int64)
        own.pods = np.array([positions[uid] for uid, _ in rows], np.int64)
        self._drop_surplus(own)

    def _row(self, own: NodeContainers, workload: Workload, name: str) -> int:
        if workload == NO_WORKLOAD:
            return NO_ROW
        container = WorkloadContainer(*workload, name)
        if container not in own.rows:
            own.rows[container] = int(self.models.allocate(np.zeros(1, np.int8))[0])
        return own.rows[container]

    def _place(
        self, own: NodeContainers, rows: dict[PodContainer, int], pods: Iterable[str]
    ) -> None:
        """Keep the places of containers of these `pods` with their peaks, and add those of `rows`.
        The peaks of a container whose workload changed are those of the former one: they are
        forgotten."""
        present = {*pods}
        kept = {key: place for key, place in own.places.items() if key[0] in present}
        if len(kept | rows) > MAX_MODELS:  # pods whose containers have ever new names
            kept = {key: place for key, place in kept.items() if key in rows}
        keys = [*kept, *(key for key in rows if key not in kept)]
        old = np.array([*kept.values()], np.int64)
        more = len(keys) - len(kept)
        place_rows = np.append(own.place_rows[old], np.full(more, NO_ROW))
        peaks = np.append(own.peaks.bytes[old], np.zeros(more))
        ends = np.append(own.peaks.end_ms[old], np.full(more, NEVER))
        for place, key in enumerate(keys):
            row = rows.get(key, NO_ROW)
            if row not in (NO_ROW, place_rows[place]):
                place_rows[place], peaks[place], ends[place] = row, 0.0, NEVER
        own.places = {key: place for place, key in enumerate(keys)}
        own.place_rows, own.peaks = place_rows.astype(np.int64), Peaks(peaks, ends.astype(np.int64))
        for key in own.kills.keys() - own.places.keys():
            del own.kills[key]

    def _drop_surplus(self, own: NodeContainers) -> None:
        """Drop the models beyond `MAX_MODELS` that no pod has now, longest silent first."""
        surplus = len(own.rows) - MAX_MODELS
        if surplus <= 0:
            return
        used = {*own.place_rows.tolist()}
        last_ms = self.models.last_ms
        absent = [container for container, row in own.rows.items() if row not in used]
        absent.sort(key=lambda container: (last_ms[own.rows[container]], container))
        self._drop(own, absent[:surplus])
        self.dropped += len(absent[:surplus])

    def move_reference(self, node: NodeModels, old_ms: int | None) -> None:
        """Follow the decay reference of the node's workloads, which was `old_ms`."""
        new_ms, rows = node.workload_reference_ms, node.containers.model_rows()
        if old_ms is None or new_ms is None or new_ms == old_ms or not len(rows):
            return
        factor = shift_factor(old_ms, new_ms, HALF_LIFE_MS)
        for histograms in self.models.histograms:
            histograms.scale(rows, factor, np.zeros(len(rows), np.int8))

    def expire(self, node: NodeModels, oldest_ms: int) -> None:
        """Drop models that no pod has now and whose last sample was before this time."""
        own = node.containers
        _forget_only(node)
        used = {*own.place_rows.tolist()}
        last_ms = self.models.last_ms
        self._drop(own, [
            container for container, row in own.rows.items()
            if row not in used and last_ms[row] < oldest_ms
        ])  # fmt: skip

    def release(self, nodes: Sequence[NodeModels]) -> None:
        """Drop the models of all containers of these nodes."""
        self.models.release(np.concatenate([node.containers.model_rows() for node in nodes]))

    def train(
        self,
        batch: TrainingBatch,
        nodes: Sequence[NodeModels],
        is_short: BoolArray,
        factors: FloatArray,
    ) -> None:
        """Add one sample of each container to its model.

        `is_short` (p,) marks pods that were seen too briefly, `factors` (n,) are the weights of
        samples of now on each node.
        """
        starts = accumulate((len(head.pods.uids) for head in batch.heads), initial=0)
        numbers = [i for i, node in enumerate(nodes) if len(node.containers.listed)]
        if numbers:
            own = [nodes[i].containers for i in numbers]
            first_pod = [*starts]
            pods = np.concatenate([first_pod[i] + nodes[i].containers.pods for i in numbers])
            usage = valid(
                np.concatenate([batch.container_usage[i][nodes[i].containers.sources]
                                for i in numbers]), MAX_USAGE,
            )  # fmt: skip
            usage[is_short.take(pods)] = np.nan
            weights = np.concatenate([head.pods.cpu_weights for head in batch.heads]).take(pods)
            window_index = batch.window_index.take(pods)
            references = [node.workload_reference_ms or 0 for node in nodes]
            self._add(
                own,
                usage,
                weights * factors.take(window_index),
                batch.end_ms.take(window_index),
                np.array(references, np.int64).take(window_index),
            )
        for head, node in zip(batch.heads, nodes, strict=True):
            for kill in head.oom_kills:
                self._add_oom_kill(node, kill, head.end_ms)

    def _add(
        self,
        nodes: Sequence[NodeContainers],
        usage: FloatArray,
        weights: FloatArray,
        end_ms: IntArray,
        reference_ms: IntArray,
    ) -> None:
        """Add the `usage` (c, 2) of the containers in the last windows of these nodes."""
        rows = np.concatenate([own.place_rows.take(own.listed) for own in nodes])
        cpu, memory = np.ascontiguousarray(usage.T)
        known = np.flatnonzero(~np.isnan(cpu))
        add_cpu(self.models, rows[known], cpu[known], weights[known], end_ms[known])
        peaks, ends = (
            np.concatenate([own.peaks[column].take(own.listed) for own in nodes])
            for column in range(2)
        )
        at, changed = add_memory(
            self.models, rows, memory, end_ms, Peaks(peaks, ends), reference_ms
        )
        peaks[at], ends[at] = changed
        first = 0
        for own in nodes:
            place = slice(first, first := first + len(own.listed))
            own.peaks.bytes[own.listed], own.peaks.end_ms[own.listed] = peaks[place], ends[place]

    def _add_oom_kill(self, node: NodeModels, kill: OomKill, end_ms: int) -> None:
        own, key = node.containers, (kill.pod, kill.container)
        place = own.places.get(key)
        if place is None:
            return
        row, (peaks, ends) = int(own.place_rows[place]), own.peaks
        counted = add_oom_kill(
            self.models,
            row,
            kill.killed_ms,
            kill.container_request_bytes,
            own.kills.get(key),
            float(peaks[place]),
            int(ends[place]),
            end_ms,
            node.workload_reference_ms or 0,
        )
        if counted is None:
            return
        peaks[place], ends[place] = counted.peak_bytes, counted.peak_end_ms
        own.kills[key] = counted.kill

    def _drop(self, own: NodeContainers, containers: Sequence[WorkloadContainer]) -> None:
        if containers:
            rows = [own.rows.pop(container) for container in containers]
            self.models.release(np.array(rows, np.int64))


def _forget_only(node: NodeModels) -> None:
    """Forget the only containers of workloads that have no model any more."""
    for workload in node.containers.only.keys() - node.workload_rows.keys():
        del node.containers.only[workload]
