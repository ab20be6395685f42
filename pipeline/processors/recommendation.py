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
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, compress
from typing import Final, NamedTuple

import numpy as np

from pipeline.errors import CheckpointError
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model import saved_containers, state_codec
from pipeline.processors.model.column_store import Column, Columns
from pipeline.processors.model.model_config import ENTITIES, RESOURCES
from pipeline.processors.model.oom_peaks import WorkloadOomKills, in_total
from pipeline.processors.model.workload_models import COLUMNS
from pipeline.processors.summed_models import DAY_MS, OBSERVED, SummedModels
from pipeline.topics.samples import MAX_CONTAINERS_PER_POD
from pipeline.topics.workloads import Workload, WorkloadContainer

MAX_PER_NAMESPACE: Final = 10_000
"""Workloads of a namespace with a recommendation: jobs may have new names for ever."""

_AT_ONCE: Final = 1024
"""More workloads at once would need a dense copy of all histograms, and hold up a caller's event
loop for more than some milliseconds."""
_SUM_COLUMNS: Final = {
    **COLUMNS, **OBSERVED, "present": Column((), "<i8"),
    "replicas": Column((), "<i8"), "requested": Column((2,)),
}  # fmt: skip


class Advice(NamedTuple):
    """The recommendation of one resource in cores or bytes, NaN is unknown: the request of each
    pod (`target`), and the bounds within which an existing request may stay."""

    lower: float
    target: float
    upper: float


class ContainerAdvice(NamedTuple):
    """The recommendation for a container of each pod of a workload."""

    name: str
    cpu: Advice
    memory: Advice


class Recommendation(NamedTuple):
    """The recommendation for each pod of a workload.

    `pods` were listed in the last window of their nodes, `pods_seen` ever had a model. `replicas`
    are the pods that have not ended and are not being deleted, `requested_millicores` and
    `requested_bytes` what they request together, NaN if that of one is unknown. `samples` are those
    of cpu, `history_days` the confidence in them. `last_ms` is the end of the newest window with a
    sample. `oom_kills` of the last eight half-lives count as peaks of memory, None: there were
    none. `containers` are the recommendations for each container by name, empty if none is known.
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
    containers: tuple[ContainerAdvice, ...] = ()


class _OnlyContainer(NamedTuple):
    """The name of the only container of a workload's pods on the node whose last sample is the
    newest: a rollout may have renamed it."""

    last_ms: int
    name: str


class WorkloadSums:
    """Sum the models of workloads over nodes, which are added one after the other, in any order.

    A namespace has room for `MAX_PER_NAMESPACE` workloads: those with pods now come first, then
    those with the newest samples. While nodes are added, up to twice as many are kept, so that the
    choice hardly depends on the order; of a workload that was removed and comes again, only later
    nodes count. `left_out` counts removals.
    """

    def __init__(self) -> None:
        self._sums = SummedModels[Workload](_SUM_COLUMNS)
        self._containers = SummedModels[WorkloadContainer](OBSERVED)
        self._containers_of: defaultdict[Workload, set[WorkloadContainer]] = defaultdict(set)
        self._only_containers: dict[Workload, _OnlyContainer] = {}
        self._in_namespace: defaultdict[str, set[Workload]] = defaultdict(set)
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
        histograms = state_codec.read_workloads(state, self._sums.models)
        columns = state_codec.workload_columns(models, count)
        containers = saved_containers.read(state.containers)
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
        self._note_namespaces(workloads)
        of_node, of_all = dict(state.workload_oom_kills), self._oom_kills
        for workload in of_node.keys() & {*workloads}:
            of_all[workload] = in_total(of_all.get(workload), of_node[workload])
        reference_ms, window_ms = state.workload_reference_ms, state.window_ms
        rows = self._sums.add(workloads, own, columns, histograms, reference_ms, window_ms)
        totals = self._sums.models
        totals.store["pods"][rows] += kept["pods"][own]
        totals.store["present"][rows] += present.pods[own]
        totals.store["replicas"][rows] += present.replicas[own]
        totals.store["requested"][rows] += present.requested[own]
        if containers is not None:
            last_ms = columns["last_ms"][own].tolist()
            newest_ms = dict(zip(workloads, last_ms, strict=True))
            self._add_containers(containers, newest_ms, reference_ms, window_ms)
        for namespace in {workload.namespace for workload in workloads}:
            if len(self._in_namespace[namespace]) > 2 * MAX_PER_NAMESPACE:
                self._leave_out(namespace)

    def _add_containers(
        self,
        containers: saved_containers.CheckedContainers,
        workloads: Mapping[Workload, int],
        reference_ms: int,
        window_ms: int,
    ) -> None:
        """Add the containers of these `workloads`, whose last samples on the node are of these
        times."""
        state, only = containers.state, self._only_containers
        for workload, name in state.only:
            if workload in workloads:
                own = _OnlyContainer(workloads[workload], name)
                only[workload] = max(only.get(workload, own), own)
        positions = [i for i, name in enumerate(state.names) if name.workload in workloads]
        names = [state.names[position] for position in positions]
        self._containers.add(
            names,
            np.array(positions, np.int64),
            containers.columns,
            containers.histograms,
            reference_ms,
            window_ms,
        )
        for each in names:
            self._containers_of[each.workload].add(each)
        for workload in {each.workload for each in names}:
            if len(self._containers_of[workload]) > 2 * MAX_CONTAINERS_PER_POD:
                self._leave_out_containers(workload)

    def _leave_out_containers(self, workload: Workload) -> None:
        """Remove the containers of a workload beyond those that a pod may have, those with the
        oldest samples first: its pods may have new names for ever."""
        own = sorted(self._containers_of[workload])
        if len(own) <= MAX_CONTAINERS_PER_POD:
            return
        last_ms = self._containers.models.last_ms[self._containers.rows_of(own)]
        newest = np.argsort(-last_ms, kind="stable")
        removed = [own[position] for position in newest[MAX_CONTAINERS_PER_POD:].tolist()]
        self._containers_of[workload] -= {*removed}
        self._containers.remove(removed)

    def recommendations(self) -> Iterator[Recommendation]:
        """The recommendation for each workload with samples, by namespace, kind and name, computed
        for some hundreds at a time. After this, no node may be added."""
        for namespace in self._in_namespace:
            self._leave_out(namespace)
        for workload in self._containers_of:
            self._leave_out_containers(workload)
        workloads = sorted(self._sums.rows)
        for first in range(0, len(workloads), _AT_ONCE):
            yield from self._recommendations(workloads[first : first + _AT_ONCE])

    def _recommendations(self, workloads: list[Workload]) -> Iterator[Recommendation]:
        models, rows = self._sums.models, self._sums.rows_of(workloads)
        days, cpu, memory = self._sums.advice(rows, np.ones(len(rows)))
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
        containers = self._container_advice(workloads, models.last_ms[rows].tolist(), cpu, memory)
        each = zip(workloads, *columns, *advice, oom_kills, containers, strict=True)
        return (Recommendation(*row) for row in compress(each, known.tolist()))

    def _container_advice(
        self, workloads: list[Workload], last_ms: list[int], cpu: FloatArray, memory: FloatArray
    ) -> list[tuple[ContainerAdvice, ...]]:
        """The recommendations for the containers of each workload; `cpu` and `memory` (n, 3) are
        those for its pods. Containers that no pod has had for a day are left out."""
        newest_ms = self._containers.models.last_ms
        names = [
            [
                name
                for name in sorted(self._containers_of.get(workload, ()))
                if newest_ms[self._containers.rows[name]] > end_ms - DAY_MS
            ]
            for workload, end_ms in zip(workloads, last_ms, strict=True)
        ]
        rows = self._containers.rows_of([*chain.from_iterable(names)])
        shares = np.array([1 / len(own) for own in names for _ in own])
        amounts = self._amounts(rows, shares)
        result: list[tuple[ContainerAdvice, ...]] = []
        for i, (workload, own) in enumerate(zip(workloads, names, strict=True)):
            if own:
                result.append(
                    tuple(ContainerAdvice(each.container, *next(amounts)) for each in own)
                )
            elif (only := self._only_containers.get(workload)) is not None:
                advice = Advice(*cpu[i].tolist()), Advice(*memory[i].tolist())
                result.append((ContainerAdvice(only.name, *advice),))
            else:
                result.append(())
        return result

    def _amounts(self, rows: IntArray, shares: FloatArray) -> Iterator[tuple[Advice, Advice]]:
        """cpu and memory of containers with these `shares` (n,) of the floor of a pod."""
        for first in range(0, len(rows), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            _, cpu, memory = self._containers.advice(rows[part], shares[part])
            each = (map(Advice._make, amounts.tolist()) for amounts in (cpu, memory))
            yield from zip(*each, strict=True)

    def _leave_out(self, namespace: str) -> None:
        """Remove the workloads of a namespace for which there is no room."""
        own = sorted(self._in_namespace[namespace])
        rows, models = self._sums.rows_of(own), self._sums.models
        absent = models.store["present"][rows] == 0
        order = np.lexsort((-models.last_ms[rows], absent))[MAX_PER_NAMESPACE:]
        removed = {own[position] for position in order.tolist()}
        if not removed:
            return
        for workload in removed:
            self._oom_kills.pop(workload, None)
            self._only_containers.pop(workload, None)
        self._in_namespace[namespace] -= removed
        self._sums.remove(removed)
        for workload in removed:
            self._containers.remove(self._containers_of.pop(workload, ()))
        self.left_out += len(removed)

    def _note_namespaces(self, workloads: Iterable[Workload]) -> None:
        for workload in workloads:
            self._in_namespace[workload.namespace].add(workload)


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
