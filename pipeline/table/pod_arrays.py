"""Arrays of pods, as the parts of the table exchange them and as snapshots store them.

Arrays and not objects, because a large cluster has a million pods and each request reads many.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.eviction.eviction_objections import is_never_evicted
from pipeline.processors.loadaware.pod_amounts import Pod
from pipeline.table import limits
from pipeline.table.node_names import RowArray
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.resource_amounts import Usage

NEVER_EVICTED: Final = 2**31
"""Stored instead of the priority of a pod that may not be evicted for another."""


class ReportedUsage(NamedTuple):
    """Reported usage of nodes by row: the ends of their last windows (NaN: none), the lengths of
    these windows, (rows,), and their states."""

    as_of_seconds: FloatArray
    window_seconds: FloatArray
    states: Sequence[NodeStateRecord | None]


POD_ARRAYS: Final = (
    "node", "class", "priority", "is_pending", "scheduled", "deadline", "amounts", "flying"
)  # fmt: skip


class PodArrays(NamedTuple):
    """Pods as a snapshot stores them: UIDs, cgroup UIDs and the arrays `POD_ARRAYS`, in one order;
    there is no pod where `node` is -1."""

    uids: list[str]
    cgroup_uids: list[str]
    arrays: Mapping[str, npt.NDArray[Any]]


class EvictablePods(NamedTuple):
    """Pods of lower classes than Prod, (pods,) each: `slots` in the pod table (valid until it
    changes), `node` as an index into the requested nodes, class code, priority (`NEVER_EVICTED`:
    not evictable), and `amounts` (pods, amounts)."""

    slots: RowArray
    node: RowArray
    class_code: npt.NDArray[np.int8]
    priority: IntArray
    amounts: IntArray


def priority_of(pod: Pod) -> int:
    """The priority above which other pods may evict this one; `NEVER_EVICTED` if none may."""
    if pod.deleted_at is not None or is_never_evicted(pod):
        return NEVER_EVICTED
    return min(max(pod.priority or 0, -NEVER_EVICTED), NEVER_EVICTED)


def reported_amount(usage: Usage, resource: str) -> int:
    """Usage in whole millicores or bytes; 0 where it is unknown or impossible."""
    used = {"cpu": usage.cpu_cores, "memory": usage.memory_bytes}.get(resource) or 0.0
    if not 0.0 <= used <= limits.LARGEST_USAGE:
        return 0
    return round(1000 * used if resource == "cpu" else used)


def grown(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array at twice its length, the new half 0."""
    return np.concatenate([values, np.zeros_like(values)])
