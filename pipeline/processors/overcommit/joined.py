"""From windows and the peaks of Prod to the columns that Mid and Batch are worked out from.

Owes the rest: `Nodes` and `Pods` of many nodes at once, in whole millicores and bytes. Usage is
rounded up: what is used is not handed on. Pods that a sample lacks are there with what they ask
for, in sum by class.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.processors.classes import CLASS_CODES
from pipeline.processors.columns import WindowUsage, amounts
from pipeline.processors.overcommit.facts import BoolArray, IntArray, Nodes, Pods
from pipeline.processors.overcommit.reserved import kubelet_reserved
from pipeline.processors.reclaimable import TO_KUBERNETES
from pipeline.topics.resources import Resources
from pipeline.topics.windows import Window

Floats = npt.NDArray[np.float64]

_UNMEASURED_LIMIT = 2**53


class Prod(NamedTuple):
    """What one predictor says of Prod on each node, (nodes, 2) in millicores and bytes, NaN is
    unknown: what it leaves unused, and its peak with the margin, without the system."""

    reclaimable: Floats
    peak: Floats


def whole_up(usage: Floats) -> IntArray:
    """Cores and bytes (.., 2) as whole millicores and bytes, rounded up; NaN is 0."""
    # Half a millionth is what arithmetic on floats leaves, and not what was used.
    units = np.ceil(np.round(np.nan_to_num(usage * TO_KUBERNETES), 6))
    return _whole(units)


def _whole(values: Floats) -> IntArray:
    found: IntArray = np.nan_to_num(values).astype(np.int64)
    return found


def nodes_of(windows: Sequence[Window], usages: Sequence[WindowUsage], prod: Prod) -> Nodes:
    """The columns of these nodes, one for each window."""
    of_nodes = [window.node for window in windows]
    capacity, allocatable, annotated = (
        _stated([getattr(of, name) for of in of_nodes])
        for name in ("capacity", "allocatable", "reserved")
    )
    usage = np.array([used.node for used in usages]).reshape(-1, 2)
    apps = [_by_class(w, used) for w, used in zip(windows, usages, strict=True)]
    has_peak: BoolArray = np.asarray(~np.isnan(prod.peak).any(axis=1))
    return Nodes(
        capacity=capacity,
        allocatable=allocatable,
        kubelet_reserved=kubelet_reserved(capacity, allocatable),
        annotated_reserved=annotated,
        usage=whole_up(usage),
        has_usage=~np.isnan(usage).any(axis=1),
        system=whole_up(np.array([used.system for used in usages]).reshape(-1, 2)),
        prod_apps=whole_up(np.array([prod_apps for prod_apps, _ in apps]).reshape(-1, 2)),
        mid_apps=whole_up(np.array([mid_apps for _, mid_apps in apps]).reshape(-1, 2)),
        reclaimable=_whole(prod.reclaimable),
        prod_peak=_whole(np.ceil(prod.peak)),
        has_peak=has_peak,
    )


def is_known(windows: Sequence[Window], usages: Sequence[WindowUsage]) -> BoolArray:
    """Of which nodes all is known that Mid and Batch need: capacity, allocatable, and what the node
    and its system use."""
    needed = [
        [*amounts(w.node.capacity), *amounts(w.node.allocatable), *used.node, *used.system]
        for w, used in zip(windows, usages, strict=True)
    ]
    known: BoolArray = ~np.isnan(np.array(needed, float).reshape(-1, 8)).any(axis=1)
    return known


def pods_of(windows: Sequence[Window], usages: Sequence[WindowUsage]) -> Pods:
    """The columns of the pods of these nodes, and for each class what those ask for that were not
    seen."""
    counts = [len(used.pods) for used in usages]
    usage = np.concatenate([used.pods for used in usages])
    request = _whole(np.concatenate([used.facts.requests for used in usages]))
    known = ~np.isnan(usage)
    seen = Pods(
        node=np.arange(len(windows)).repeat(counts),
        class_code=np.concatenate([used.facts.classes for used in usages]).astype(np.int64),
        is_lse=np.concatenate([used.facts.exclusive for used in usages]),
        is_listed=np.concatenate([used.facts.listed for used in usages]),
        has_usage=known.any(axis=1),
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
    return Pods(*(np.concatenate(both) for both in zip(one, other, strict=True)))


def _by_class(window: Window, used: WindowUsage) -> tuple[Floats, Floats]:
    """What host applications of Prod and Mid use, in sum. One whose class nobody says counts as
    Prod: Koordinator loses sight of it (colocation 17)."""
    prod, mid = np.zeros(2), np.zeros(2)
    if not len(used.hosts):
        return prod, mid
    known, listing = window.node.host_apps, used.facts.listing
    for row, usage in zip(used.facts.hosts.tolist(), np.nan_to_num(used.hosts), strict=True):
        of = known.get(listing.ids[row], "prod")
        if of == "mid":
            mid = mid + usage
        elif of not in ("batch", "free"):
            prod = prod + usage
    return prod, mid


def _stated(of: Sequence[Resources]) -> IntArray:
    stated = np.array([amounts(one) for one in of], float).reshape(-1, 2)
    return _whole(stated)


def _amount(asked: Resources) -> tuple[int, int]:
    cpu, memory = asked.cpu_millicores or 0, asked.memory_bytes or 0
    return min(max(cpu, 0), _UNMEASURED_LIMIT), min(max(memory, 0), _UNMEASURED_LIMIT)
