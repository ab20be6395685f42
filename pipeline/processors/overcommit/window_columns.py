"""From windows and the peaks of Prod to the columns that Mid and Batch are worked out from.

Owes the rest: `Nodes` and `Pods` of many nodes at once, in whole millicores and bytes. Usage is
rounded up: what is used is not handed on. Pods that a sample lacks are there with what they ask
for, in sum by class.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.join.window_batch import WindowUsage, amounts
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.reclaimable import TO_KUBERNETES
from pipeline.processors.overcommit.node_reservation import kubelet_reserved
from pipeline.processors.overcommit.resource_columns import Nodes, Pods
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.windows import Window

_UNMEASURED_LIMIT = 2**53
_NOTHING = np.zeros((0, 2), np.int64)
_NONE = np.zeros(0, bool)
_NO_USAGE = (0.0, 0.0)


class Prod(NamedTuple):
    """What one predictor says of Prod on each node, (nodes, 2) in millicores and bytes, NaN is
    unknown: what it leaves unused, and its peak with the margin, without the system."""

    reclaimable: FloatArray
    peak: FloatArray


def whole_up(usage: FloatArray) -> IntArray:
    """Cores and bytes (.., 2) as whole millicores and bytes, rounded up; NaN is 0."""
    units = np.array(usage)
    units[..., 0] *= TO_KUBERNETES[0]
    # Half a millionth is what arithmetic on floats leaves, and not what was used.
    return _whole(np.ceil(np.round(units, 6), out=units))


def _whole(values: FloatArray) -> IntArray:
    found: IntArray = np.where(np.isnan(values), 0.0, values).astype(np.int64)
    return found


def nodes_of(windows: Sequence[Window], usages: Sequence[WindowUsage], prod: Prod) -> Nodes:
    """The columns of these nodes, one for each window."""
    of_nodes = [window.node for window in windows]
    capacity = _stated([of.capacity for of in of_nodes])
    allocatable = _stated([of.allocatable for of in of_nodes])
    usage = _rows([used.node for used in usages])
    apps = np.array([_by_class(w, used) for w, used in zip(windows, usages, strict=True)])
    apps = apps.reshape(-1, 2, 2)
    return with_prod(
        Nodes(
            capacity=_whole(capacity),
            allocatable=_whole(allocatable),
            kubelet_reserved=kubelet_reserved(_whole(capacity), _whole(allocatable)),
            annotated_reserved=_whole(_stated([of.reserved for of in of_nodes])),
            usage=whole_up(usage),
            has_usage=_has_both(usage),
            system=whole_up(_rows([used.system for used in usages])),
            prod_apps=whole_up(apps[:, 0]),
            mid_apps=whole_up(apps[:, 1]),
            reclaimable=_NOTHING,
            prod_peak=_NOTHING,
            has_peak=_NONE,
        ),
        prod,
    )


def with_prod(nodes: Nodes, prod: Prod) -> Nodes:
    """The same nodes with what another predictor says of Prod."""
    return nodes._replace(
        reclaimable=_whole(prod.reclaimable),
        prod_peak=_whole(np.ceil(prod.peak)),
        has_peak=_has_both(prod.peak),
    )


def is_known(windows: Sequence[Window], usages: Sequence[WindowUsage]) -> BoolArray:
    """Of which nodes all is known that Mid and Batch need: capacity, allocatable, and what the node
    and its system use."""
    return (
        _has_both(_stated([window.node.capacity for window in windows]))
        & _has_both(_stated([window.node.allocatable for window in windows]))
        & _has_both(_rows([used.node for used in usages]))
        & _has_both(_rows([used.system for used in usages]))
    )


def _has_both(values: FloatArray) -> BoolArray:
    known = ~np.isnan(values)
    return known[:, 0] & known[:, 1]


def _rows(of: Sequence[FloatArray]) -> FloatArray:
    return np.concatenate(of).reshape(-1, 2)


def pods_of(windows: Sequence[Window], usages: Sequence[WindowUsage]) -> Pods:
    """The columns of the pods of these nodes, and for each class what those ask for that were not
    seen. A pod that began within the window will use all the time what it used then; one that has
    ended counts for its part of the window."""
    counts = [len(used.pods) for used in usages]
    listed = np.concatenate([used.facts.listed for used in usages])
    usage: FloatArray = np.where(
        listed[:, None],
        np.concatenate([used.pods_seen for used in usages]),
        np.concatenate([used.pods for used in usages]),
    )
    request = _whole(np.concatenate([used.facts.requests for used in usages]))
    known: BoolArray = ~np.isnan(usage)
    seen = Pods(
        node=np.arange(len(windows)).repeat(counts),
        class_code=np.concatenate([used.facts.classes for used in usages]).astype(np.int64),
        is_lse=np.concatenate([used.facts.exclusive for used in usages]),
        is_listed=listed,
        has_usage=known[:, 0] | known[:, 1],
        request=request,
        # Of what was not measured the request is all that is known.
        usage=np.where(known, whole_up(usage), request),
    )
    return _joined(seen, _unmeasured(windows))


def _unmeasured(windows: Sequence[Window]) -> Pods:
    rows = [
        (node, CLASS_CODES.get(name, CLASS_CODES["unknown"]), _amount(asked))
        for node, window in enumerate(windows)
        for name, asked in window.node.unmeasured.items()
    ]
    count = len(rows)
    return Pods(
        node=np.array([node for node, _, _ in rows], np.int64),
        class_code=np.array([code for _, code, _ in rows], np.int64),
        is_lse=np.zeros(count, bool),
        is_listed=np.ones(count, bool),
        has_usage=np.zeros(count, bool),
        request=np.array([asked for _, _, asked in rows], np.int64).reshape(count, 2),
        usage=np.zeros((count, 2), np.int64),
    )


def _joined(one: Pods, other: Pods) -> Pods:
    """Both in order of the nodes."""
    if not len(other.node):
        return one
    order = np.concatenate((one.node, other.node)).argsort(kind="stable")
    return Pods(
        *(np.concatenate(both).take(order, axis=0) for both in zip(one, other, strict=True))
    )


def _by_class(window: Window, used: WindowUsage) -> tuple[Sequence[float], Sequence[float]]:
    """What host applications of Prod and Mid use, in sum. One whose class nobody says counts as
    Prod: Koordinator loses sight of it (colocation 17)."""
    if not len(used.hosts):
        return _NO_USAGE, _NO_USAGE
    prod, mid = np.zeros(2), np.zeros(2)
    known, listing = window.node.host_apps, used.facts.listing
    for row, usage in zip(used.facts.hosts.tolist(), np.nan_to_num(used.hosts), strict=True):
        of = known.get(listing.ids[row], "prod")
        if of == "mid":
            mid = mid + usage
        elif of not in ("batch", "free"):
            prod = prod + usage
    return prod.tolist(), mid.tolist()


def _stated(of: Sequence[Resources]) -> FloatArray:
    return np.array([amounts(one) for one in of], float).reshape(-1, 2)


def _amount(asked: Resources) -> tuple[int, int]:
    cpu, memory = asked.cpu_millicores or 0, asked.memory_bytes or 0
    return min(max(cpu, 0), _UNMEASURED_LIMIT), min(max(memory, 0), _UNMEASURED_LIMIT)
