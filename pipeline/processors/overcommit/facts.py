"""What resources are worked out from: columns over nodes, over their pods, and over strategies.

An amount is a row of `RESOURCES`: millicores, bytes. What is unknown of a node counts as 0, but for
its usage, which says itself whether it is known.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.processors.classes import CLASS_CODES
from pipeline.processors.policy.colocation import STATIC
from pipeline.topics.overcommit import Overcommit

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

RESOURCES: Final = ("cpu_millicores", "memory_bytes")

USAGE: Final = 0
REQUEST: Final = 1
MAX_USAGE_REQUEST: Final = 2
_POLICIES: Final = {"request": REQUEST, "maxUsageRequest": MAX_USAGE_REQUEST}

NO_LIMIT: Final = -1
_MOST_PERCENT: Final = 10_000

_LOW: Final = np.array([CLASS_CODES["batch"], CLASS_CODES["free"]])
# What has no class, or none that is known, is treated as Prod.
_PROD: Final = np.array([CLASS_CODES[name] for name in ("prod", "none", "unknown")])


class Nodes(NamedTuple):
    """Of each node: amounts (nodes, 2) in int64, and whether its usage is known (nodes,).

    `allocatable` is that of Prod. `kubelet_reserved` and `annotated_reserved` are kept for others,
    `system` is used by what is no pod and no host application, `prod_apps` and `mid_apps` by host
    applications of these classes. `reclaimable` is what Prod leaves unused, margin and all,
    `prod_peak` its peak, where `has_peak` says that it is known.
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
        """The larger reservation, per resource."""
        return np.maximum(self.kubelet_reserved, self.annotated_reserved)


class Pods(NamedTuple):
    """Of each pod (pods,): its node, class and whether it is LSE; whether it is listed as Running
    or Pending, or only its usage was reported; requests and usage (pods, 2) in int64."""

    node: npt.NDArray[np.int64]
    class_code: npt.NDArray[np.int64]
    is_lse: BoolArray
    is_listed: BoolArray
    has_usage: BoolArray
    request: IntArray
    usage: IntArray

    @property
    def is_low(self) -> BoolArray:
        """Whether it lives on what is left over: Batch and Free."""
        return np.isin(self.class_code, _LOW)

    @property
    def is_prod(self) -> BoolArray:
        """Whether it is Prod, or may be."""
        return np.isin(self.class_code, _PROD)


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

    def column(*fields: str, unset: int = 0) -> IntArray:
        said = [[getattr(one, field) for field in fields] for one in of]
        values = [[unset if value is None else value for value in row] for row in said]
        return np.array(values, np.int64).reshape(len(of), len(fields)).clip(-1, _MOST_PERCENT)

    policies = [
        [
            # Memory alone is handed on by requests.
            MAX_USAGE_REQUEST if one.cpu_calculate_policy == "maxUsageRequest" else USAGE,
            _POLICIES.get(one.memory_calculate_policy, USAGE),
        ]
        for one in of
    ]
    return Strategies(
        reclaim_percent=column("cpu_reclaim_threshold_percent", "memory_reclaim_threshold_percent"),
        policy=np.array(policies, np.int64).reshape(len(of), 2),
        batch_percent=column(
            "batch_cpu_threshold_percent", "batch_memory_threshold_percent", unset=NO_LIMIT
        ),
        mid_percent=column("mid_cpu_threshold_percent", "mid_memory_threshold_percent", unset=100),
        mid_unallocated_percent=column("mid_unallocated_percent"),
        mid_static_percent=column(
            "mid_static_cpu_reserved_percent", "mid_static_memory_reserved_percent"
        ),
        is_static=np.array([one.mid_reclaim_mode == STATIC for one in of], bool),
        degrade_seconds=60 * column("degrade_time_minutes")[:, 0],
        mid_reclaim_percent=column("mid_reclaim_percent")[:, 0],
        promises_once=np.array([one.promise_once for one in of], bool),
        buffer_percent=column("buffer_percent", "buffer_percent"),
    )


def is_fresh(ages_seconds: npt.NDArray[np.float64], strategies: Strategies) -> BoolArray:
    """Whether what is known of each node (nodes,) may be used: exactly at the limit it still is. An
    age of NaN is of a node of which nothing is known."""
    fresh: BoolArray = ages_seconds <= strategies.degrade_seconds
    return fresh


def percent_of(amounts: IntArray, percents: IntArray) -> IntArray:
    """`amounts` times `percents` in hundredths, cut towards 0; exact where a product would not fit
    into 64 bits."""
    size = np.abs(percents)
    whole, rest = np.divmod(amounts, 100)
    cut: IntArray = np.sign(percents) * (whole * size + rest * size // 100)
    return cut


def by_node(nodes: int, pods: Pods, amounts: IntArray, of: BoolArray) -> IntArray:
    """The sum per node (nodes, 2) of the amounts of these pods."""
    sums = np.zeros((nodes, len(RESOURCES)), np.int64)
    np.add.at(sums, pods.node[of], amounts[of])
    return sums
