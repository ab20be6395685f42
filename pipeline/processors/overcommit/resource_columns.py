"""Columns of nodes, of their pods, and of strategies: the inputs of Mid and Batch.

Amounts are rows of millicores and bytes. Unknown amounts of a node are 0; `has_usage` and
`has_peak` tell whether usage and peak are known.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.policy.colocation_config import STATIC
from pipeline.topics.overcommit_policy import Overcommit

RESOURCES: Final = ("cpu_millicores", "memory_bytes")

USAGE: Final = 0
REQUEST: Final = 1
MAX_USAGE_REQUEST: Final = 2
_POLICIES: Final = {"request": REQUEST, "maxUsageRequest": MAX_USAGE_REQUEST}

NO_LIMIT: Final = -1
_MOST_PERCENT: Final = 10_000
_COLUMNS: Final = 17

# By the code of a class.
_LOW: Final = np.array([name in ("batch", "free") for name in CLASS_CODES])
# Pods without a class, or with an unknown one, are treated as Prod.
_PROD: Final = np.array([name in ("prod", "none", "unknown") for name in CLASS_CODES])


class NodeAmounts(NamedTuple):
    """Amounts of nodes (nodes, 2) in int64, and flags (nodes,).

    `allocatable` is that of Prod. `kubelet_reserved` and `annotated_reserved` are reserved for
    other processes. `system` is the usage of neither pods nor host applications, `prod_apps` and
    `mid_apps` that of host applications by class. `reclaimable` is what Prod leaves unused beyond
    the margin, `prod_peak` its peak.
    """

    capacity: IntArray
    allocatable: IntArray
    kubelet_reserved: IntArray
    annotated_reserved: IntArray
    usage: IntArray
    has_usage: BoolArray
    system: IntArray
    prod_apps: IntArray
    mid_apps: IntArray
    reclaimable: IntArray
    prod_peak: IntArray
    has_peak: BoolArray

    @property
    def reserved(self) -> IntArray:
        """The larger reservation of each resource."""
        return np.maximum(self.kubelet_reserved, self.annotated_reserved)


class PodAmounts(NamedTuple):
    """Pods (pods,): node, class, whether the QoS is LSE, and whether the pod is listed as Running
    or Pending, or only its usage was reported; requests and usage (pods, 2) in int64. Sums are
    fastest in order of nodes."""

    node: npt.NDArray[np.int64]
    class_code: npt.NDArray[np.int64]
    is_lse: BoolArray
    is_listed: BoolArray
    has_usage: BoolArray
    request: IntArray
    usage: IntArray

    @property
    def is_low(self) -> BoolArray:
        """Whether the class is Batch or Free."""
        return _LOW.take(self.class_code)

    @property
    def is_prod(self) -> BoolArray:
        """Whether the class is Prod, none or unknown."""
        return _PROD.take(self.class_code)

    def of(self, some: BoolArray) -> "PodAmounts":
        """The pods for which `some` (pods,) is true."""
        (at,) = some.nonzero()
        columns: Iterable[Any] = self
        return PodAmounts(*(column.take(at, axis=0) for column in columns))


class Strategies(NamedTuple):
    """The percents and policies in force for each node, (nodes, 2) or (nodes,)."""

    reclaim_percent: IntArray
    policy: IntArray
    batch_percent: IntArray
    mid_percent: IntArray
    mid_unallocated_percent: IntArray
    mid_static_percent: IntArray
    is_static: BoolArray
    degrade_seconds: IntArray
    mid_reclaim_percent: IntArray
    promises_once: BoolArray
    buffer_percent: IntArray


def strategies(of: Sequence[Overcommit]) -> Strategies:
    """The columns of these strategies."""
    rows = np.array([_row(one) for one in of], np.int64).reshape(len(of), _COLUMNS)

    def both(first: int) -> IntArray:
        return rows[:, first : first + 2]

    return Strategies(
        policy=both(0),
        reclaim_percent=both(2),
        batch_percent=both(4),
        mid_percent=both(6),
        mid_static_percent=both(8),
        buffer_percent=both(10),
        mid_unallocated_percent=rows[:, 12:13],
        mid_reclaim_percent=rows[:, 13],
        degrade_seconds=60 * rows[:, 14],
        is_static=rows[:, 15].astype(np.bool_),
        promises_once=rows[:, 16].astype(np.bool_),
    )


@lru_cache(maxsize=4096)  # most nodes have that of their pool
def _row(of: Overcommit) -> tuple[int, ...]:
    """The columns of a strategy: pairs, numbers, flags."""
    percents = (
        of.cpu_reclaim_threshold_percent, of.memory_reclaim_threshold_percent,
        _or(of.batch_cpu_threshold_percent, NO_LIMIT),
        _or(of.batch_memory_threshold_percent, NO_LIMIT),
        of.mid_cpu_threshold_percent, of.mid_memory_threshold_percent,
        of.mid_static_cpu_reserved_percent, of.mid_static_memory_reserved_percent,
        of.buffer_percent, of.buffer_percent,
        of.mid_unallocated_percent, of.mid_reclaim_percent, of.degrade_time_minutes,
    )  # fmt: skip
    return (
        # Only memory may be offered by requests.
        MAX_USAGE_REQUEST if of.cpu_calculate_policy == "maxUsageRequest" else USAGE,
        _POLICIES.get(of.memory_calculate_policy, USAGE),
        *(min(max(percent, -1), _MOST_PERCENT) for percent in percents),
        of.mid_reclaim_mode == STATIC,
        of.promise_once,
    )


def _or(percent: int | None, unset: int) -> int:
    return unset if percent is None else percent


def is_fresh(ages_seconds: npt.NDArray[np.float64], strategies: Strategies) -> BoolArray:
    """Which nodes (nodes,) have fresh data: at most as old as the limit. NaN is an unknown age.
    Data as far in the future is stale, too, because one of two clocks is wrong."""
    fresh: BoolArray = np.abs(ages_seconds) <= strategies.degrade_seconds
    return fresh


def percent_of(amounts: IntArray, percents: IntArray) -> IntArray:
    """`amounts` times `percents` in hundredths, cut toward 0; exact also if the product exceeds 64
    bits."""
    size = np.abs(percents)
    whole, rest = np.divmod(amounts, 100)
    cut: IntArray = np.sign(percents) * (whole * size + rest * size // 100)
    return cut


def by_node(nodes: int, pods: PodAmounts, amounts: IntArray, of: BoolArray) -> IntArray:
    """The sum (nodes, 2) of the amounts of the pods marked by `of`, exact in 64 bits."""
    (at,) = of.nonzero()
    node = pods.node.take(at)
    if (node[1:] < node[:-1]).any():
        order = node.argsort(kind="stable")
        at, node = at.take(order), node.take(order)
    sums = np.zeros((nodes, len(RESOURCES)), np.int64)
    starts = node.searchsorted(np.arange(nodes + 1))
    (some,) = np.diff(starts).nonzero()
    if len(some):
        sums[some] = np.add.reduceat(amounts.take(at, axis=0), starts[some], axis=0)
    return sums
