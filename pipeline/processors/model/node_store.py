"""The columns of all nodes: a node gets rows, gives them back, and survives as bytes.

Which columns there are is declared by the models and by the predictors. What is in them is up to
the learner; the exact state of a node can be taken out as bytes and put back into any rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from pipeline.errors import PredictorError
from pipeline.processors.arrays import ByteArray, IntArray
from pipeline.processors.model import (
    alert_columns,
    day_slots,
    drift,
    pending_peaks,
    publish_policy,
    saved_models,
    usage_points,
)
from pipeline.processors.model.column_store import Column, Columns
from pipeline.processors.model.container_models import ContainerModels
from pipeline.processors.model.entity_models import EntityModels
from pipeline.processors.model.model_config import ENTITIES, ModelConfig
from pipeline.processors.model.node_models import NodeModels, node_slots
from pipeline.processors.model.pending_peaks import Schedule, pending_columns
from pipeline.processors.model.predictor import Predictor, node_columns
from pipeline.processors.model.workload_models import POD_COLUMNS, WorkloadModels

NODE_COLUMNS: Final[Mapping[str, Column]] = {
    **publish_policy.COLUMNS,
    **usage_points.COLUMNS,
    **drift.COLUMNS,
}
"""Columns per node, by slot."""
_OWN_COLUMNS: Final[dict[str, Column]] = {**day_slots.COLUMNS, **POD_COLUMNS}
"""Columns per entity beside those of predictors."""


class NodeStore:
    """All columns of nodes. `NodeModels` have the row numbers of a node; the caller owns these rows
    until `release`.

    `models` has a row per entity, `workloads` one per node and workload, `containers` one of each
    of its containers. By slot, a row per node:
    `slots`, the peaks that are followed in `pending`, which follow `schedule`, and the state of
    hot-node detection in `alerts`. `profiles` (E,) are the numbers of the profiles of `ENTITIES`.
    `fingerprint` is a hash of all that shapes what is learned. Raises `PredictorError` if two
    predictors declare one column.
    """

    def __init__(self, config: ModelConfig, predictors: Mapping[str, Predictor]) -> None:
        self.schedule = Schedule.of(
            config.accuracy_interval_seconds, config.entity_horizon_seconds("prod")
        )
        by_row = _columns(predictors, _OWN_COLUMNS, _row_columns)
        self.models = EntityModels(config.profiles, by_row, self.schedule.pending)
        self.workloads = WorkloadModels(self.models)
        self.containers = ContainerModels()
        self.slots = Columns(_columns(predictors, NODE_COLUMNS, node_columns))
        self.alerts = Columns(alert_columns.COLUMNS)
        self.pending = Columns(pending_columns(self.schedule, [*predictors]))
        self._free_slots: list[int] = []
        profiles = [config.profile_index(entity) for entity in ENTITIES]
        self.profiles: ByteArray = np.array(profiles, np.int8)
        self._profile_count = len(config.profiles)
        columns = self.models.store.fingerprint + self.slots.fingerprint
        self.fingerprint = config.fingerprint(columns)

    @property
    def nbytes(self) -> int:
        """Memory of the columns, spare rows included."""
        slots = self.slots.nbytes + self.alerts.nbytes + self.pending.nbytes
        others = self.workloads.models.nbytes + self.containers.models.nbytes
        return self.models.nbytes + others + slots

    def new_node(self, machine_id: str, epoch: int) -> NodeModels:
        """A node whose models are empty, without pods."""
        return NodeModels(
            machine_id=machine_id,
            epoch=epoch,
            entity_rows=self.models.allocate(self.profiles),
            slot=self._new_slot(),
            reference_ms=[[None, None] for _ in range(self._profile_count)],
        )

    def _new_slot(self) -> int:
        if not self._free_slots:
            have = len(self.slots["points_second"])
            more = max((have + 1) * 3 // 2, 16)
            for columns in (self.slots, self.alerts, self.pending):
                columns.grow(more)
            self._free_slots.extend(range(more - 1, have - 1, -1))
        return self._free_slots.pop()

    def reset(self, node: NodeModels) -> None:
        """Clear the models of the node itself, its system and its classes, but not its pods.
        Alerts stay: their end is to be published."""
        self.models.clear(node.entity_rows)
        self.slots.clear(np.array([node.slot]))
        pending_peaks.abandon(self.pending, np.array([node.slot]), self.schedule)

    def release(self, nodes: Sequence[NodeModels]) -> None:
        """Drop all models of these nodes, at least one."""
        self.models.release(np.concatenate([node.all_rows() for node in nodes]))
        self.workloads.release(nodes)
        self.containers.release(nodes)
        slots = node_slots(nodes)
        for columns in (self.slots, self.alerts, self.pending):
            columns.clear(slots)
        self._free_slots.extend(slots.tolist())

    def encode_state(self, name: str, node: NodeModels) -> bytes:
        """The exact state of the models of `node`, called `name`."""
        return saved_models.capture(
            name,
            node,
            self.models,
            self.workloads.models,
            self.containers.models,
            self.slots,
            self.fingerprint,
            alert_columns.pack(self.alerts, node.slot),
            pending_peaks.pack(self.pending, node.slot, self.models.in_cohort[_rows(node)]),
        )

    def encode_workloads(self, name: str, node: NodeModels) -> bytes:
        """The models of the workloads and entities of `node`, called `name`, without its pods and
        columns per node."""
        return saved_models.capture(
            name,
            node.without_pods(),
            self.models,
            self.workloads.models,
            self.containers.models,
            Columns({}),
            self.fingerprint,
            alerts={},
            pending={},
        )

    def decode_state(self, name: str, data: bytes) -> saved_models.CheckedState:
        """The state in `data`, for `restore_node`. Raises CheckpointError if it is damaged, of
        another version, of another node than `name`, or of another fingerprint."""
        return saved_models.read(
            name, data, self.models, self.workloads.models, self.slots, self.fingerprint
        )

    def restore_node(self, state: saved_models.CheckedState) -> NodeModels:
        """A node with the models of a state."""
        node = saved_models.install(
            state,
            self.models,
            self.workloads.models,
            self.containers.models,
            self.slots,
            self._new_slot(),
        )
        alert_columns.unpack(self.alerts, node.slot, state.state.alerts)
        rows = _rows(node)
        in_cohort = self.models.in_cohort[rows]
        pending_peaks.unpack(self.pending, node.slot, state.state.pending, in_cohort)
        self.models.in_cohort[rows] = in_cohort
        return node


def _rows(node: NodeModels) -> IntArray:
    """The rows of the entities of a node and of its pods by UID."""
    pods = [row for _, row in sorted(node.row_by_uid.items())]
    return np.concatenate([node.entity_rows, np.array(pods, np.int64)])


def _row_columns(predictor: Predictor) -> Mapping[str, Column]:
    return predictor.columns


def _columns(
    predictors: Mapping[str, Predictor],
    own: Mapping[str, Column],
    declared: Callable[[Predictor], Mapping[str, Column]],
) -> dict[str, Column]:
    """Our `own` columns and the `declared` ones of the predictors. Raises `PredictorError` if two
    have one name."""
    columns = dict(own)
    for name, predictor in predictors.items():
        if taken := sorted(declared(predictor).keys() & columns.keys()):
            raise PredictorError(f"predictor {name}: column {taken[0]!r} is another one's")
        columns |= declared(predictor)
    return columns
