"""What is said of pods in arrays, between the table's parts and on disk.

Owes the rest: shapes and meaning of each, and how a pod's record becomes a number in one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.eviction.eviction_objections import is_never_evicted
from pipeline.processors.loadaware.pod_amounts import Pod
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.resource_amounts import Usage

STAYS: Final = 2**31
"""In the place of a priority: of a pod that does not leave for any other."""
_LARGEST_USAGE: Final = 2.0**43


class ReportedUsage(NamedTuple):
    """What is known of the usage of nodes: the ends of their last windows (NaN: none) and how long
    these are, (rows,), and their last states, by row."""

    as_of_seconds: FloatArray
    window_seconds: FloatArray
    states: Sequence[NodeStateRecord | None]


POD_ARRAYS: Final = (
    "node", "class", "priority", "is_pending", "scheduled", "deadline", "amounts", "flying"
)  # fmt: skip


class PodArrays(NamedTuple):
    """Pods as they are on disk: UIDs, the names of their cgroups and, by name, `POD_ARRAYS`, in one
    order; where the row is -1 there is no pod."""

    uids: list[str]
    cgroup_uids: list[str]
    arrays: Mapping[str, npt.NDArray[Any]]


class EvictablePods(NamedTuple):
    """Pods of lower classes than Prod, (pods,) each: their places, to be asked for UIDs while
    nothing has changed, the places of their nodes among those asked about, the codes of their
    classes, their priorities (`STAYS` for one that does not leave), and what counts of them, (pods,
    amounts)."""

    places: npt.NDArray[np.intp]
    node: npt.NDArray[np.intp]
    class_code: npt.NDArray[np.int8]
    priority: IntArray
    amounts: IntArray


def priority_of(pod: Pod) -> int:
    """The priority by which others may push the pod out; `STAYS` for one that must not be."""
    if pod.deleted_at is not None or is_never_evicted(pod):
        return STAYS
    return min(max(pod.priority or 0, -STAYS), STAYS)


def amount_of(usage: Usage, resource: str) -> int:
    """What was used in whole millicores or bytes; 0 where that is not known, or cannot be."""
    used = {"cpu": usage.cpu_cores, "memory": usage.memory_bytes}.get(resource) or 0.0
    if not 0.0 <= used <= _LARGEST_USAGE:
        return 0
    return round(1000 * used if resource == "cpu" else used)


def grown(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Twice as long, the new half empty."""
    return np.concatenate([values, np.zeros_like(values)])
