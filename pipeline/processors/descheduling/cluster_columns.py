"""Nodes and pods as strategies see them: columns, with one row per node or pod.

Amounts are floats: cpu in millicores, memory in bytes, other resources in whole units. NaN is
unknown, which is never zero. The resource `pods` counts pods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.descheduling.node_requests import NodeRequest
from pipeline.topics.nodes import Taint
from pipeline.topics.pods import PodRecord


@dataclass(frozen=True, kw_only=True)
class ClusterNodes:
    """n nodes; arrays are (n, resources) or (n,).

    Percentages are of `capacity`. `usage` and `prod_usage` are unknown where the last window is too
    old. `requested` are the requests of all pods on a node, which may not exceed `allocatable`.
    `peak` is the predicted peak, for display only. `is_last_window` (n, 2) is where usage of cpu
    and memory is that of the last window instead of the pool's span; None is nowhere. `taken_cpus`
    are the CPUs that a node reserves by number and that pods on it have for themselves, of nodes
    with any, by place. `asked` are the requests for relief of nodes, likewise.
    """

    names: Sequence[str]
    resources: tuple[str, ...]
    capacity: FloatArray
    usage: FloatArray
    prod_usage: FloatArray
    allocatable: FloatArray
    requested: FloatArray
    is_cordoned: BoolArray
    labels: Sequence[Mapping[str, str]]
    taints: Sequence[Sequence[Taint]]
    peak: FloatArray | None = None
    is_last_window: BoolArray | None = None
    taken_cpus: Mapping[int, frozenset[int]] = field(default_factory=dict)
    asked: Mapping[int, NodeRequest] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def by_name(self) -> IntArray:
        """The place of each node in the order of names, (n,): ties end the same way each time."""
        places = np.empty(len(self), np.int64)
        places[np.argsort(np.array(self.names, object), kind="stable")] = np.arange(len(self))
        return places


@dataclass(frozen=True, kw_only=True)
class PodRanks:
    """What decides which pod leaves first, (pods,) each: lower first, but newer before older."""

    pod_class: IntArray
    priority: IntArray
    kube_qos: IntArray
    qos: IntArray
    deletion_cost: IntArray
    eviction_cost: IntArray
    created_seconds: FloatArray

    def take(self, pods: IntArray) -> "PodRanks":
        """The ranks of some pods, in their order."""
        return PodRanks(**{name: column[pods] for name, column in vars(self).items()})


class MoveCaps(NamedTuple):
    """How many pods a plan moves at most, in all, off each node and of each namespace; None is no
    limit."""

    total: int | None = None
    per_node: int | None = None
    per_namespace: int | None = None


NO_CAPS: Final = MoveCaps()


@dataclass(frozen=True, kw_only=True)
class ClusterPods:
    """p pods; arrays are (p, resources) or (p,).

    `node` is the index of a pod's node. `expected` is what a pod adds to the usage of its target:
    `usage`, and where that is unknown the estimate of the extender's filters. Prod are the pods
    that alerts count as Prod. Only pods that `may_move` are moved; `objections` has the reason for
    others. `records` decide where a pod fits. `moved` are the pods that earlier strategies of the
    plan move, which count for the `caps` of the plan. `resting_targets` are, by the node of a pod,
    the nodes where it may not go.
    """

    node: IntArray
    usage: FloatArray
    expected: FloatArray
    requests: FloatArray
    is_prod: BoolArray
    may_move: BoolArray
    ranks: PodRanks
    records: Sequence[PodRecord]
    objections: Mapping[int, str]
    caps: MoveCaps = NO_CAPS
    moved: tuple[int, ...] = ()
    resting_targets: Mapping[int, frozenset[int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.node)

    @cached_property
    def _by_node(self) -> tuple[IntArray, IntArray]:
        order = np.argsort(self.node, kind="stable")
        return order, self.node[order]

    def on(self, node: int) -> IntArray:
        """The pods on a node, ascending."""
        order, nodes = self._by_node
        first, end = np.searchsorted(nodes, [node, node + 1])
        return order[first:end]

    def title(self, pod: int) -> str:
        """`namespace/name` of a pod."""
        record = self.records[pod]
        return f"{record.namespace}/{record.name}"
