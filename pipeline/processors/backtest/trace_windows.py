"""The windows that a worker would have joined, made from a trace: one of each node in each step.

All pods are of class prod and active, their ages count from the start of their first stay, and a
node uses what its pods use. Pods of one step are in the order of nodes and UIDs; what is known of
them is built again only for nodes whose pods changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.model_config import RESOURCES
from pipeline.processors.model.resource_pairs import TO_KUBERNETES, group_sums
from pipeline.processors.model.training_batch import (
    NO_PODS,
    ListedPods,
    TrainingBatch,
    WindowHead,
    listed_pods,
)
from pipeline.topics.workloads import NO_WORKLOAD, Workload

_PROD: Final = CLASS_CODES["prod"]
_NO_POINTS: Final = np.zeros((0, 3))
_ENOUGH: Final = np.full(2, 2.0**60)
"""Allocatable that is never the limit: what is given away is judged against the requests alone."""


def windows(trace: Trace) -> Iterator[tuple[IntArray, TrainingBatch]]:
    """For each step the running stays (p,), in the order of the windows' pods, and these windows.

    Usage is in cores and bytes. A resource that no pod has is unknown; a pod without a resource
    that others have uses nothing of it. Where the usage of a pod is unknown, that of its node is.
    """
    usage = trace.usage / TO_KUBERNETES
    lacks = (trace.limits == 0.0) & np.isin(RESOURCES, trace.resources)
    nodes, step_ms = len(trace.nodes), trace.step_seconds * 1000
    by_uid = np.lexsort((np.array(trace.pods), trace.node_index))
    changed, began = _changed_nodes(trace), _began(trace)
    allocatable, nothing = np.tile(_ENOUGH, (nodes, 1)), np.zeros((nodes, 2))
    listed = [NO_PODS] * nodes
    stays, window_index = np.zeros(0, np.int64), np.zeros(0, np.int64)
    uses_nothing = lacks[stays]
    for step in range(trace.steps):
        if step in changed:
            start, end = trace.start[by_uid], trace.end[by_uid]
            stays = by_uid[(start <= step) & (step < end)]
            window_index, uses_nothing = trace.node_index[stays], lacks[stays]
            _relist(trace, listed, changed[step], stays)
        start_ms = trace.start_seconds * 1000 + step * step_ms
        end_ms = start_ms + step_ms
        elapsed = step - trace.start[stays]
        pod_usage = usage.take(trace.first_sample[stays] + elapsed, axis=0)
        pod_usage[uses_nothing] = 0.0
        yield (
            stays,
            TrainingBatch(
                heads=[
                    WindowHead(name, "", 0, start_ms, end_ms, end_ms, 1.0, None, _NO_POINTS, pods)
                    for name, pods in zip(trace.nodes, listed, strict=True)
                ],
                allocatable=allocatable,
                node_usage=group_sums(window_index, pod_usage, nodes),
                host_apps=nothing,
                system=nothing,
                window_index=window_index,
                pod_usage=pod_usage,
                pod_coverage=np.full(len(stays), np.nan),
                pod_ages=((step + 1 - began[stays]) * trace.step_seconds).astype(np.float64),
            ),
        )


def _began(trace: Trace) -> IntArray:
    """The step at which the pod of each stay began: that of the first stay if it has returned."""
    began = trace.start.copy()
    for stay, earlier in enumerate(trace.earlier_stays.tolist()):
        if earlier >= 0:
            began[stay] = began[earlier]
    return began


def _changed_nodes(trace: Trace) -> dict[int, IntArray]:
    """The nodes whose pods change, by step."""
    steps = np.concatenate([trace.start, trace.end])
    nodes = np.concatenate([trace.node_index, trace.node_index])
    pairs = np.unique(np.stack([steps, nodes], axis=1), axis=0)
    bounds, starts = np.unique(pairs[:, 0], return_index=True)
    parts = np.split(pairs[:, 1], starts[1:])
    return dict(zip(bounds.tolist(), parts, strict=True))


def _relist(trace: Trace, listed: list[ListedPods], nodes: IntArray, stays: IntArray) -> None:
    """Put the running `stays`, ordered by node, into `listed` for these nodes."""
    bounds = np.searchsorted(trace.node_index[stays], np.stack([nodes, nodes + 1]))
    for node, first, last in zip(nodes.tolist(), *bounds.tolist(), strict=True):
        own = stays[first:last]
        listed[node] = listed_pods(
            tuple(trace.pods[stay] for stay in own.tolist()),
            np.full(len(own), _PROD, np.int8),
            trace.requests[own],
            np.ones(len(own), np.bool_),
            np.zeros(len(own), np.bool_),
            tuple(_workload(trace.workloads[stay]) for stay in own.tolist())
            if trace.workloads
            else (),
        )


def _workload(name: str) -> Workload:
    """The workload of a stay: a trace knows only its name."""
    return Workload("", "", name) if name else NO_WORKLOAD
