"""Columns that the models learn from: one window of each of several nodes, and their pods.

Usage arrays have two columns, cpu in cores and memory in bytes; requests and allocatable have
millicores and bytes, as Kubernetes counts them. NaN is unknown. Nobody writes to these arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import numpy as np

from pipeline.processors.arrays import BoolArray, ByteArray, FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES, CLASSES
from pipeline.processors.model.resource_pairs import stack_rows
from pipeline.topics.nodes import Strategy
from pipeline.topics.pool_outcomes import PoolOutcomesRecord
from pipeline.topics.windows import OomKill
from pipeline.topics.workload_histories import WorkloadHistoryRecord
from pipeline.topics.workloads import Workload

UNKNOWN_CLASS: Final = CLASS_CODES["unknown"]
_T = TypeVar("_T")
_LARGEST: Final = float(np.finfo(np.float64).max)
_LEAST_CPU_WEIGHT: Final = 0.1
# A pod may request any amount: an absurd one must not outweigh all other pods of its workload.
_MOST_REQUESTED_CORES: Final = 1000.0


@dataclass(frozen=True, slots=True, eq=False)
class ListedPods:
    """The pods that a window lists and what is known of them, by ascending UID.

    `cpu_weights` are the weights of their cpu samples for their workload. `workloads` has an item
    for each pod, None if unknown; without items all are unknown. `containers` are the containers
    whose usage the window has: UID of the pod and name, None if unknown. `only_containers` has for
    each other pod the name of its only container, None if unknown or several; without items all
    are. Windows of a node share one object until one of its pods changes.
    """

    uids: tuple[str, ...]
    classes: ByteArray
    requests: FloatArray
    active: BoolArray
    ended: BoolArray
    cpu_weights: FloatArray
    workloads: tuple[Workload | None, ...] = ()
    containers: tuple[tuple[str, str | None], ...] = ()
    only_containers: tuple[str | None, ...] = ()


def listed_pods(
    uids: tuple[str, ...],
    classes: ByteArray,
    requests: FloatArray,
    active: BoolArray,
    ended: BoolArray,
    workloads: tuple[Workload | None, ...] = (),
    containers: tuple[tuple[str, str | None], ...] = (),
    only_containers: tuple[str | None, ...] = (),
) -> ListedPods:
    """The pods with invalid classes as `unknown` and invalid requests as NaN."""
    is_class = (classes >= 0) & (classes < len(CLASSES))
    classes = np.where(is_class, classes, np.int8(UNKNOWN_CLASS)).astype(np.int8)
    # As the Vertical Pod Autoscaler up to 1.3 was meant to, whose samples had no request: in cores,
    # at least 0.1. Later releases weigh all samples alike.
    weights = np.fmax(valid(requests[:, 0] / 1000.0, _MOST_REQUESTED_CORES), _LEAST_CPU_WEIGHT)
    return ListedPods(
        uids, classes, valid(requests), active, ended, weights, workloads, containers,
        only_containers,
    )  # fmt: skip


class WindowHead(NamedTuple):
    """The facts of one window: its node, exporter and time, and the pods that it lists.

    `machine_id` and the exporter's `epoch` tell two exporters under one node name apart, `source`
    two providers.
    `appended_ms` is when the broker appended the sample.
    `coverage` is the share of the window that was measured. `strategy` is None where that of the
    bank's settings is in force. `points` (m, 3) were measured of the node: seconds after the
    start, cores, bytes. `pool_outcomes` are those of the node's pool, in few windows, and
    `workload_histories` those of workloads that came to the node. `oom_kills` may repeat those of
    earlier windows.
    """

    node: str
    machine_id: str
    epoch: int
    start_ms: int
    end_ms: int
    appended_ms: int
    coverage: float
    strategy: Strategy | None
    points: FloatArray
    pods: ListedPods
    source: str = ""
    pool_outcomes: PoolOutcomesRecord | None = None
    workload_histories: Sequence[WorkloadHistoryRecord] = ()
    oom_kills: Sequence[OomKill] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """n windows and their p pods: pods of all windows in their order, those of one by UID.

    `node_usage`, `host_apps` (the sum of host applications), `system` and `allocatable` are
    (n, 2); a `system` of None is computed as node - pods - host applications. `window_index` (p,)
    is the index of each pod's window, `pod_usage` (p, 2) its usage, `pod_coverage` (p,) the share
    of the window in which it was seen, NaN: as long as the node; `pod_ages` (p,) are seconds.
    `container_usage` are the arrays (c, 2) of the containers of each window, `()` without any.
    """

    heads: Sequence[WindowHead]
    allocatable: FloatArray
    node_usage: FloatArray
    host_apps: FloatArray
    system: FloatArray | None
    window_index: IntArray
    pod_usage: FloatArray
    pod_coverage: FloatArray
    pod_ages: FloatArray
    container_usage: Sequence[FloatArray] = ()

    @property
    def end_ms(self) -> IntArray:
        """End of each window, (n,)."""
        return np.array([head.end_ms for head in self.heads], np.int64)

    def select(self, positions: Sequence[int]) -> TrainingBatch:
        """The windows at these ascending positions."""
        if len(positions) == len(self.heads):
            return self
        chosen = np.zeros(len(self.heads), np.bool_)
        chosen[positions] = True
        pods = chosen.take(self.window_index)
        return TrainingBatch(
            heads=[self.heads[position] for position in positions],
            allocatable=self.allocatable[chosen],
            node_usage=self.node_usage[chosen],
            host_apps=self.host_apps[chosen],
            system=None if self.system is None else self.system[chosen],
            window_index=(np.cumsum(chosen) - 1)[self.window_index[pods]],
            pod_usage=self.pod_usage[pods],
            pod_coverage=self.pod_coverage[pods],
            pod_ages=self.pod_ages[pods],
            container_usage=[
                self.container_usage[position] for position in positions if self.container_usage
            ],
        )


@dataclass(slots=True, kw_only=True)
class NodeWindow:
    """One window of one node for `training_batch`, its pods in any order; arrays are read only.

    Workers get a `TrainingBatch` from `WindowBatch`; this is for callers that have plain arrays,
    such as the suite of predictors.

    `pod_usage` (p, 2) is the training statistic of each pod, `node_usage` and `host_apps` (2,) that
    of the node and of the sum of host applications. `pod_coverages` (p,) are the shares of the
    window in which each pod was seen; None: as long as the node. `pod_ages` (p,) are seconds since
    creation. `pod_active` is False for pods that are being deleted or have ended, `pod_ended` True
    for the latter; None: no pod has ended. `pod_workloads`, `containers` and `only_containers` are
    as in `ListedPods`, `container_usage` (c, 2) is the usage of `containers`, `points`,
    `epoch`, `machine_id`, `source`, `strategy`, `pool_outcomes`, `workload_histories` and
    `oom_kills` those of `WindowHead`. An `appended_ms` of None is `end_ms`.
    """

    node: str
    machine_id: str
    epoch: int
    start_ms: int
    end_ms: int
    coverage: float
    node_usage: FloatArray
    appended_ms: int | None = None
    source: str = ""
    host_apps: FloatArray = field(default_factory=lambda: np.zeros(2))
    points: FloatArray = field(default_factory=lambda: np.zeros((0, 3)))
    allocatable: FloatArray = field(default_factory=lambda: np.full(2, np.nan))
    strategy: Strategy | None = None
    pod_uids: Sequence[str] = ()
    pod_classes: ByteArray = field(default_factory=lambda: np.zeros(0, np.int8))
    pod_usage: FloatArray = field(default_factory=lambda: np.zeros((0, 2)))
    pod_coverages: FloatArray | None = None
    requests: FloatArray = field(default_factory=lambda: np.zeros((0, 2)))
    pod_ages: FloatArray = field(default_factory=lambda: np.zeros(0))
    pod_active: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))
    pod_ended: BoolArray | None = None
    pod_workloads: Sequence[Workload | None] = ()
    containers: Sequence[tuple[str, str | None]] = ()
    container_usage: FloatArray = field(default_factory=lambda: np.zeros((0, 2)))
    only_containers: Sequence[str | None] = ()
    pool_outcomes: PoolOutcomesRecord | None = None
    workload_histories: Sequence[WorkloadHistoryRecord] = ()
    oom_kills: Sequence[OomKill] = ()


def training_batch(windows: Sequence[NodeWindow]) -> TrainingBatch:
    """The columns of some windows, at least one. Of a UID that a window lists twice the first
    counts."""
    orders = [_uid_order(window.pod_uids) for window in windows]
    both = list(zip(windows, orders, strict=True))
    return TrainingBatch(
        heads=[_head(window, order) for window, order in both],
        allocatable=stack_rows([window.allocatable for window in windows]),
        node_usage=stack_rows([window.node_usage for window in windows]),
        host_apps=stack_rows([window.host_apps for window in windows]),
        system=None,
        window_index=np.arange(len(windows)).repeat([len(order) for order in orders]),
        pod_usage=np.concatenate([window.pod_usage[order] for window, order in both]),
        pod_coverage=np.concatenate(
            [
                np.full(len(order), np.nan)
                if window.pod_coverages is None
                else window.pod_coverages[order]
                for window, order in both
            ]
        ),
        pod_ages=np.concatenate([window.pod_ages[order] for window, order in both]),
        container_usage=[window.container_usage for window in windows],
    )


def _uid_order(uids: Sequence[str]) -> IntArray:
    first = {uid: position for position, uid in reversed(list(enumerate(uids)))}
    return np.array([first[uid] for uid in sorted(first)], np.int64)


def _in_order(values: Sequence[_T], order: IntArray) -> tuple[_T, ...]:
    return tuple(values[position] for position in order.tolist()) if values else ()


def _head(window: NodeWindow, order: IntArray) -> WindowHead:
    ended = window.pod_ended
    return WindowHead(
        node=window.node,
        machine_id=window.machine_id,
        epoch=window.epoch,
        start_ms=window.start_ms,
        end_ms=window.end_ms,
        appended_ms=window.end_ms if window.appended_ms is None else window.appended_ms,
        coverage=window.coverage,
        strategy=window.strategy,
        points=window.points,
        source=window.source,
        pool_outcomes=window.pool_outcomes,
        workload_histories=window.workload_histories,
        oom_kills=window.oom_kills,
        pods=listed_pods(
            tuple(window.pod_uids[position] for position in order.tolist()),
            window.pod_classes[order],
            window.requests[order],
            window.pod_active[order],
            np.zeros(len(order), np.bool_) if ended is None else ended[order],
            _in_order(window.pod_workloads, order),
            tuple(window.containers),
            _in_order(window.only_containers, order),
        ),
    )


def valid(values: FloatArray, largest: FloatArray | float = _LARGEST) -> FloatArray:
    """The values with NaN for those that are negative, infinite or above `largest`."""
    values = np.asarray(values, dtype=np.float64)
    # Filled in, for numpy compares rows with a row of two at ten times the cost.
    limits = np.empty(values.shape)
    limits[:] = largest
    return np.where((values >= 0.0) & (values <= limits), values, np.nan)


def system_remainder(
    node: FloatArray, pods: FloatArray, host_apps: FloatArray | float = 0.0
) -> FloatArray:
    """Usage of the system: max(node - pods - host_apps, 0); NaN where any of them is NaN."""
    left = node - pods - host_apps
    return np.where(left < 0.0, 0.0, left)


NO_PODS: Final = listed_pods(
    (), np.zeros(0, np.int8), np.zeros((0, 2)), np.zeros(0, np.bool_), np.zeros(0, np.bool_)
)
