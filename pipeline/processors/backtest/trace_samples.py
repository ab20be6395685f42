"""The windows that the join would have written for a trace: those of samples, with all facts.

Unlike `trace_windows`, which has just what models learn from, these carry everything that Mid,
Batch and hot nodes are computed from. All pods run and are of class prod, and nothing else uses the
node. Usage has one value per step, the average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.join.pod_facts import PodRow
from pipeline.processors.join.sample_join import ListingFacts, NodeObjects, join, listing_facts
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.resource_pairs import TO_KUBERNETES
from pipeline.topics.nodes import Strategy
from pipeline.topics.sample_rows import encode_arrays, read_rows
from pipeline.topics.samples import SYSTEM_TIER, SampleHeader
from pipeline.topics.windows import NodeFacts, Window

STATISTIC: Final = "avg"
"""The statistic that models have to learn from."""
_COLUMNS: Final = ("cpu_cores_avg", "memory_bytes_avg")
MOVED: Final = "~moved-"
"""In the name of a pod that moved, before the number of the move."""
_PROD: Final = CLASS_CODES["prod"]


def with_record_names(trace: Trace) -> Trace:
    """The trace with names of nodes and pods, in the same order, that records may have: in files
    they may be any text."""
    pods = {pod: f"pod-{n:08}" for n, pod in enumerate(sorted({*trace.pods}))}
    return replace(
        trace,
        nodes=tuple(f"node-{n:08}" for n in range(len(trace.nodes))),
        pods=tuple(pods[pod] for pod in trace.pods),
    )


class Run(NamedTuple):
    """A pod on a node in the steps [start, end), which uses what the stay of this number of the
    trace uses."""

    stay: int
    pod: str
    start: int
    end: int


class Placement:
    """Where the pods of a trace run; they may move."""

    def __init__(self, trace: Trace) -> None:
        self._trace: Final = trace
        self._runs: Final[list[list[Run]]] = [[] for _ in trace.nodes]
        self.moves = 0
        columns = (trace.node_index, trace.start, trace.end)
        rows = zip(trace.pods, *(column.tolist() for column in columns), strict=True)
        for stay, (pod, node, start, end) in enumerate(rows):
            self._runs[node].append(Run(stay, pod, start, end))

    def running(self, node: int, step: int) -> list[Run]:
        """The pods of a node at a step, by name."""
        own = [run for run in self._runs[node] if run.start <= step < run.end]
        return sorted(own, key=lambda run: run.pod)

    def move(self, run: Run, source: int, target: int, step: int) -> None:
        """Let a pod run on another node after this step, as a new pod that uses the same."""
        if run.end <= step + 1:
            return  # it ends anyway
        self.moves += 1
        runs = self._runs[source]
        runs[runs.index(run)] = run._replace(end=step + 1)
        name = f"{run.pod.partition(MOVED)[0]}{MOVED}{self.moves}"
        self._runs[target].append(Run(run.stay, name, step + 1, run.end))

    def moved_trace(self) -> Trace:
        """The trace with its pods where they ran; itself without a move."""
        if not self.moves:
            return self._trace
        trace = self._trace
        rows = sorted(
            (node, run.start, run.pod, run.end, run.stay)
            for node, runs in enumerate(self._runs)
            for run in runs
        )
        nodes, starts, pods, ends, stays = zip(*rows, strict=True)
        own, start = np.array(stays, np.int64), np.array(starts, np.int64)
        return replace(
            trace,
            pods=tuple(pods),
            node_index=np.array(nodes, np.int64),
            start=start,
            end=np.array(ends, np.int64),
            requests=trace.requests[own],
            limits=trace.limits[own],
            series_index=trace.series_index[own],
            first_sample=trace.first_sample[own] + start - trace.start[own],
            workloads=tuple(trace.workloads[stay] for stay in stays) if trace.workloads else (),
        )

    def usage(self, runs: Sequence[Run], step: int) -> FloatArray:
        """The usage of these pods at a step, (p, 2) millicores and bytes. A pod uses nothing of a
        resource that it does not have; NaN of others is unknown."""
        trace = self._trace
        stays = np.array([run.stay for run in runs], np.int64)
        used = trace.usage[trace.first_sample[stays] + step - trace.start[stays]]
        return np.where(trace.limits[stays] == 0.0, 0.0, used)


def sampled_windows(
    trace: Trace, facts: Mapping[str, NodeFacts], placement: Placement | None = None
) -> Iterator[list[Window]]:
    """The window of each node for each step, nodes in the order of the trace, with these facts by
    node. Pods run where `placement` has them at that time.

    A resource that no pod has is used by nobody; callers leave its results out. Where the usage of
    a pod is unknown, that of its node is.
    """
    placement = placement or Placement(trace)
    nodes = [_Node(trace, node, facts[name]) for node, name in enumerate(trace.nodes)]
    for step in range(trace.steps):
        yield [node.window(step, placement) for node in nodes]


class _Node:
    """The pods of a node, and what of them stays the same from step to step."""

    def __init__(self, trace: Trace, node: int, facts: NodeFacts) -> None:
        self._trace: Final = trace
        self._node: Final = node
        self._facts: Final = facts
        self._running: list[Run] = []
        self._pods: dict[str, PodRow] = {}
        self._pod_facts: ListingFacts | None = None

    def window(self, step: int, placement: Placement) -> Window:
        running = placement.running(self._node, step)
        if running != self._running:
            self._running = running
            self._pods = {run.pod: _pod(self._trace, run) for run in running}
            self._pod_facts = None
        used = placement.usage(running, step) / TO_KUBERNETES
        sample = read_rows(_sample(self._header(step), [*self._pods], used))
        self._pod_facts = listing_facts(sample.listing, self._pods, self._pod_facts)
        return join(
            sample,
            NodeObjects(None, self._pods),
            Strategy(),
            sample_offset=step,
            appended_ms=sample.header.window_end_ms,
            pod_facts=self._pod_facts,
            facts=self._facts,
        )

    def _header(self, step: int) -> SampleHeader:
        trace = self._trace
        start_ms = (trace.start_seconds + step * trace.step_seconds) * 1000
        return SampleHeader(
            node=trace.nodes[self._node], machine_id="", boot_id="", epoch=0, sequence=step,
            window_start_ms=start_ms, window_end_ms=start_ms + trace.step_seconds * 1000,
        )  # fmt: skip


def _pod(trace: Trace, run: Run) -> PodRow:
    requests, limits = trace.requests[run.stay].tolist(), trace.limits[run.stay].tolist()
    return PodRow(
        pod_class=_PROD,
        namespace="default",
        name=run.pod,
        phase="Running",
        request_cpu_millicores=requests[0],
        request_memory_bytes=requests[1],
        limit_cpu_millicores=limits[0] or None,
        limit_memory_bytes=limits[1] or None,
        created_seconds=float(trace.start_seconds + run.start * trace.step_seconds),
        deleting=False,
        uid=run.pod,
    )


def _sample(header: SampleHeader, pods: Sequence[str], used: FloatArray) -> bytes:
    """The sample of a node whose pods use this much, (p, 2) cores and bytes."""
    rows = np.concatenate([used.sum(axis=0)[None], used, np.zeros((1, 2))])
    return encode_arrays(
        header,
        kinds=["node", *["pod"] * len(pods), "tier"],
        ids=["", *pods, SYSTEM_TIER],
        statistics={
            "coverage": pa.array(np.ones(len(rows)), pa.float64()),
            **{
                name: pa.array(rows[:, r], pa.float64(), from_pandas=True)
                for r, name in enumerate(_COLUMNS)
            },
        },
    )
