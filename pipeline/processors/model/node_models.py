"""The state of one node's models outside of the columns; `Bank`, `Learner` and
`NodeStore` change it.

It is a few values per node and window; everything per entity is in columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.corroboration import SecondSource
from pipeline.processors.model.entity_models import NEVER
from pipeline.processors.model.node_containers import NodeContainers
from pipeline.processors.model.oom_peaks import PodOomKill, WorkloadOomKills
from pipeline.processors.model.training_batch import NO_PODS, ListedPods
from pipeline.topics.node_state import Dispute
from pipeline.topics.nodes import Strategy
from pipeline.topics.workloads import Workload


@dataclass(slots=True)
class NodeModels:
    """The models of one node: row numbers of `EntityModels`, and facts of its last window.

    `entity_rows` are the rows of `ENTITIES`, `row_by_uid` those of all pods with a model, listed in
    the last window or not. `listed` are the pods of the last window, `pod_rows` and `pod_ages`
    (seconds) theirs; `absent_uids` are the other pods with a model. `slot` is the node's row in the
    columns per node. `reference_ms` are the decay references by profile and resource, None until
    something was learned. `workload_rows` are the rows of workloads that have a model, with or
    without pods, and `workload_reference_ms` is their decay reference. `pod_oom_kills` are those of
    pods with a model, `workload_oom_kills` those of workloads. `containers` are those of the pods
    and workloads. `appended_ms` is the newest append time of an applied sample. `source` is the
    provider that is believed, empty for an exporter; `second` is not believed.
    """

    machine_id: str
    epoch: int
    entity_rows: IntArray
    slot: int
    reference_ms: list[list[int | None]]
    end_ms: int = NEVER
    appended_ms: int = NEVER
    window_ms: int = 0
    coverage: float = 0.0
    strategy: Strategy = field(default_factory=Strategy)
    applied: int = 0
    gaps: int = 0
    allocatable: FloatArray = field(default_factory=lambda: np.full(2, np.nan))
    row_by_uid: dict[str, int] = field(default_factory=dict)
    listed: ListedPods = NO_PODS
    pod_rows: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    pod_ages: FloatArray = field(default_factory=lambda: np.zeros(0))
    absent_uids: tuple[str, ...] = ()
    workload_rows: dict[Workload, int] = field(default_factory=dict)
    workload_reference_ms: int | None = None
    pod_oom_kills: dict[str, PodOomKill] = field(default_factory=dict)
    workload_oom_kills: dict[Workload, WorkloadOomKills] = field(default_factory=dict)
    containers: NodeContainers = field(default_factory=NodeContainers)
    source: str = ""
    second: SecondSource | None = None

    @property
    def dispute(self) -> Dispute | None:
        """The dispute with the second source, unless that is silent."""
        if self.second is None or self.second.is_silent(self.appended_ms):
            return None
        return self.second.dispute

    def without_pods(self) -> NodeModels:
        """The same models, except those of pods."""
        nothing = np.zeros(0, np.int64)
        return replace(
            self, row_by_uid={}, listed=NO_PODS, pod_rows=nothing, pod_ages=np.zeros(0),
            absent_uids=(), pod_oom_kills={}, containers=self.containers.without_pods(),
        )  # fmt: skip

    def all_rows(self) -> IntArray:
        """Every row of the node: entities, then all pods with a model, in no order."""
        return np.concatenate([self.entity_rows, np.array([*self.row_by_uid.values()], np.int64)])


def node_slots(nodes: Sequence[NodeModels]) -> IntArray:
    """The rows of these nodes in the columns per node, (k,)."""
    return np.array([node.slot for node in nodes], np.int64)
