"""The columns that Mid and Batch are computed from, made of windows and of the peaks of Prod.

Amounts of many nodes at once are in whole millicores and bytes. Usage is rounded up, so that
nothing in use is offered. Pods that a sample lacks count their requests, in sum by class.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.resource_pairs import TO_KUBERNETES
from pipeline.processors.model.window_batch import WindowBatch, amounts
from pipeline.processors.overcommit.resource_columns import NodeAmounts, PodAmounts
from pipeline.topics.resource_amounts import LARGEST_AMOUNT, Resources
from pipeline.topics.windows import Window

_NOTHING = np.zeros((0, 2), np.int64)
_NONE = np.zeros(0, bool)
_NO_USAGE = (0.0, 0.0)


class Prod(NamedTuple):
    """Prod on each node by one predictor, (nodes, 2) in millicores and bytes, NaN is unknown: what
    it leaves unused, and its peak with the safety margin, without the system."""

    reclaimable: FloatArray
    peak: FloatArray


def round_up(usage: FloatArray) -> IntArray:
    """Cores and bytes (.., 2) as whole millicores and bytes, rounded up; NaN is 0."""
    units = np.array(usage)
    units[..., 0] *= TO_KUBERNETES[0]
    # Half a millionth is what arithmetic on floats leaves, and not what was used.
    return _whole(np.ceil(np.round(units, 6), out=units))


def _whole(values: FloatArray) -> IntArray:
    return np.where(np.isnan(values), 0.0, values).astype(np.int64)


def node_amounts(batch: WindowBatch, prod: Prod) -> NodeAmounts:
    """The columns of the nodes of these windows."""
    facts = [window.node for window in batch.windows]
    capacity = _whole(amounts([node.capacity for node in facts]))
    allocatable = _whole(amounts([node.allocatable for node in facts]))
    average = batch.average
    apps = np.array([_host_apps(batch, i) for i in range(len(batch))])
    return with_prod(
        NodeAmounts(
            capacity=capacity,
            allocatable=allocatable,
            kubelet_reserved=np.maximum(capacity - allocatable, 0),
            annotated_reserved=_whole(amounts([node.reserved for node in facts])),
            usage=round_up(average.node),
            has_usage=_has_both(average.node),
            system=round_up(average.system),
            prod_apps=round_up(apps[:, 0]),
            mid_apps=round_up(apps[:, 1]),
            reclaimable=_NOTHING,
            prod_peak=_NOTHING,
            has_peak=_NONE,
        ),
        prod,
    )


def with_prod(nodes: NodeAmounts, prod: Prod) -> NodeAmounts:
    """The nodes with Prod by another predictor."""
    return nodes._replace(
        reclaimable=_whole(prod.reclaimable),
        prod_peak=_whole(np.ceil(prod.peak)),
        has_peak=_has_both(prod.peak),
    )


def has_valid_amounts(batch: WindowBatch) -> BoolArray:
    """Marks nodes with everything that Mid and Batch need: capacity, allocatable, and usage of
    the node and of its system."""
    return (
        _has_both(amounts([window.node.capacity for window in batch.windows]))
        & _has_both(amounts([window.node.allocatable for window in batch.windows]))
        & _has_both(batch.average.node)
        & _has_both(batch.average.system)
    )


def _has_both(values: FloatArray) -> BoolArray:
    known = ~np.isnan(values)
    return known[:, 0] & known[:, 1]


def pod_amounts(batch: WindowBatch) -> PodAmounts:
    """The columns of the pods of these windows, and the requests of pods that were not measured as
    one more pod a class.

    A running pod counts what it used while it lived, one that has ended its part of the window.
    """
    running = np.concatenate([facts.running for facts in batch.facts])
    average = batch.average
    usage: FloatArray = np.where(running[:, None], average.pods_alive, average.pods)
    request = _whole(np.concatenate([facts.pods.requests for facts in batch.facts]))
    known: BoolArray = ~np.isnan(usage)
    seen = PodAmounts(
        node=batch.window_index,
        class_code=np.concatenate([facts.pods.classes for facts in batch.facts]).astype(np.int64),
        is_lse=np.concatenate([facts.exclusive for facts in batch.facts]),
        is_listed=running,
        has_usage=known[:, 0] | known[:, 1],
        request=request,
        # Of what was not measured the request is all that is known.
        usage=np.where(known, round_up(usage), request),
    )
    return _joined(seen, _unmeasured(batch.windows))


def _unmeasured(windows: Sequence[Window]) -> PodAmounts:
    rows = [
        (node, CLASS_CODES.get(name, CLASS_CODES["unknown"]), _amount(asked))
        for node, window in enumerate(windows)
        for name, asked in window.node.unmeasured.items()
    ]
    count = len(rows)
    return PodAmounts(
        node=np.array([node for node, _, _ in rows], np.int64),
        class_code=np.array([code for _, code, _ in rows], np.int64),
        is_lse=np.zeros(count, bool),
        is_listed=np.ones(count, bool),
        has_usage=np.zeros(count, bool),
        request=np.array([asked for _, _, asked in rows], np.int64).reshape(count, 2),
        usage=np.zeros((count, 2), np.int64),
    )


def _joined(measured: PodAmounts, unmeasured: PodAmounts) -> PodAmounts:
    """Both in order of the nodes."""
    if not len(unmeasured.node):
        return measured
    columns = [np.concatenate(both) for both in zip(measured, unmeasured, strict=True)]
    order = columns[0].argsort(kind="stable")
    return PodAmounts(*(column.take(order, axis=0) for column in columns))


def _host_apps(batch: WindowBatch, i: int) -> tuple[Sequence[float], Sequence[float]]:
    """The usage of host applications of Prod and Mid on one node, in sum. An application of
    unknown class counts as Prod; Koordinator ignores it."""
    facts, usages = batch.facts[i], batch.average.hosts[batch.host_slices[i]]
    if not len(usages):
        return _NO_USAGE, _NO_USAGE
    prod, mid = np.zeros(2), np.zeros(2)
    classes, ids = batch.windows[i].node.host_apps, facts.listing.ids
    for row, usage in zip(facts.hosts.tolist(), np.nan_to_num(usages), strict=True):
        app_class = classes.get(ids[row], "prod")
        if app_class == "mid":
            mid = mid + usage
        elif app_class not in ("batch", "free"):
            prod = prod + usage
    return prod.tolist(), mid.tolist()


def _amount(asked: Resources) -> tuple[int, int]:
    cpu, memory = asked.cpu_millicores or 0, asked.memory_bytes or 0
    return min(max(cpu, 0), LARGEST_AMOUNT), min(max(memory, 0), LARGEST_AMOUNT)
