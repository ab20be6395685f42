"""Columns of nodes, of their pods, and of policies: the inputs of Mid and Batch.

Rows are nodes or pods, so that one numpy call computes all nodes. Amounts are int64, millicores and
bytes: a sum is exact, and the same wherever it is computed. Unknown amounts of a node are 0;
`has_usage` and `has_peak` tell whether usage and peak are known.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.resource_pairs import column_pair
from pipeline.topics.overcommit_policy import Overcommit

NO_LIMIT: Final = -1
_MOST_PERCENT: Final = 10_000

# By the code of a class.
_LOW: Final = np.array([name in ("batch", "free") for name in CLASS_CODES])
# Pods without a class, or with an unknown one, are treated as Prod.
_PROD: Final = np.array([name in ("prod", "none", "unknown") for name in CLASS_CODES])


class NodeAmounts(NamedTuple):
    """Amounts of nodes (nodes, 2) in int64, and flags (nodes,).

    `allocatable` is that of Prod. `kubelet_reserved` and `annotated_reserved` are reserved for
    other processes. `system` is the usage of neither pods nor host applications, `prod_apps` and
    `mid_apps` that of host applications by class. `prod_peak` is the peak of Prod with the safety
    margin, `reclaimable` what its requests leave above that peak.
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
        return _LOW.take(self.class_code)

    @property
    def is_prod(self) -> BoolArray:
        """Whether the class is Prod, none or unknown."""
        return _PROD.take(self.class_code)

    def select(self, selected: BoolArray) -> "PodAmounts":
        (rows,) = selected.nonzero()
        columns: Iterable[Any] = self
        return PodAmounts(*(column.take(rows, axis=0) for column in columns))


class PolicyColumns:
    """The policies of n nodes: one column for each field of `Overcommit`."""

    def __init__(self, policies: Sequence[Overcommit]) -> None:
        self._rows = np.array([_row(policy) for policy in policies], _ROW)
        self._pairs: dict[str, npt.NDArray[Any]] = {}

    def column(self, field: str) -> npt.NDArray[Any]:
        """The values of a field, (n,)."""
        return self._rows[field]

    def pair(self, field: str) -> npt.NDArray[Any]:
        """The values for cpu and memory, (n, 2), of the two fields that have the resource in place
        of `{}`, or of one field for both."""
        values = self._pairs.get(field)
        if values is None:
            cpu, memory = (self._rows[field.format(resource)] for resource in ("cpu", "memory"))
            values = self._pairs[field] = column_pair(cpu, memory)
        return values


_TYPES: Final = {str: object, bool: np.bool_, float: np.float64}
_ROW: Final = np.dtype(
    [
        (field, _TYPES.get(type(value), np.int64))
        for field, value in msgspec.structs.asdict(Overcommit()).items()
    ],
    align=True,
)


@lru_cache(maxsize=4096)  # most nodes have that of their pool
def _row(policy: Overcommit) -> tuple[Any, ...]:
    """Return the fields of a policy in order, with `NO_LIMIT` in place of None and whole numbers
    clipped to -1 and 10,000."""
    return tuple(
        NO_LIMIT if value is None
        else min(max(value, NO_LIMIT), _MOST_PERCENT) if type(value) is int
        else value
        for value in msgspec.structs.astuple(policy)
    )  # fmt: skip


def percent_of(amounts: IntArray, percents: IntArray) -> IntArray:
    """`amounts` times `percents` in hundredths, cut toward 0; exact also if the product exceeds 64
    bits."""
    size = np.abs(percents)
    whole, rest = np.divmod(amounts, 100)
    cut: IntArray = np.sign(percents) * (whole * size + rest * size // 100)
    return cut


def sum_by_node(
    nodes: int, pods: PodAmounts, amounts: IntArray, counted: BoolArray | None = None
) -> IntArray:
    """The sum (nodes, 2) of the amounts of the `counted` pods, or of all, exact in 64 bits."""
    node = pods.node
    if counted is not None:
        (rows,) = counted.nonzero()
        node, amounts = node.take(rows), amounts.take(rows, axis=0)
    if (node[1:] < node[:-1]).any():
        order = node.argsort(kind="stable")
        node, amounts = node.take(order), amounts.take(order, axis=0)
    sums = np.zeros((nodes, 2), np.int64)
    starts = node.searchsorted(np.arange(nodes + 1))
    (some,) = np.diff(starts).nonzero()
    if len(some):
        sums[some] = np.add.reduceat(amounts, starts[some], axis=0)
    return sums
