"""Save the models of one node as a state, and restore them.

Equal states are equal bytes: pods are in UID order, and row numbers or other nodes leave no trace.
`read` checks all of a state before `install` changes the models: a model restored from damaged
bytes would be wrong for days without anyone noticing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pipeline.errors import CheckpointError, CheckpointLayoutError
from pipeline.processors.arrays import ByteArray, FloatArray, IntArray
from pipeline.processors.model import saved_containers
from pipeline.processors.model.column_store import Columns
from pipeline.processors.model.entity_models import COLUMNS, NO_ROW, EntityModels
from pipeline.processors.model.model_config import ENTITIES, RESOURCES
from pipeline.processors.model.node_models import NodeModels
from pipeline.processors.model.state_codec import (
    WORKLOAD_COLUMNS,
    ModelState,
    SparseHistograms,
    WorkloadState,
    check_oom_kills,
    decode,
    encode,
    pack,
    pack_columns,
    pack_histograms,
    read_workloads,
    stored_histograms,
    unpack,
    unpack_columns,
    workload_columns,
)
from pipeline.processors.model.training_batch import ListedPods, listed_pods

_NODE_FIELDS: Final = (
    "machine_id", "epoch", "end_ms", "appended_ms", "window_ms", "coverage", "strategy",
    "applied", "gaps", "workload_reference_ms", "source", "second",
)  # fmt: skip
"""Fields of `NodeModels` that a state has unchanged."""


def capture(
    name: str,
    node: NodeModels,
    models: EntityModels,
    workload_models: EntityModels,
    container_models: EntityModels,
    slots: Columns,
    fingerprint: str,
    alerts: dict[str, bytes],
    pending: dict[str, bytes],
) -> bytes:
    """The state of a node as bytes; `alerts` is that of hot-node detection, `pending` that of the
    peaks that are followed."""
    workloads = sorted(node.workload_rows.items())
    workload_rows = np.array([row for _, row in workloads], np.int64)
    uids = tuple(sorted(node.row_by_uid))
    rows = np.concatenate(
        [node.entity_rows, np.array([node.row_by_uid[uid] for uid in uids], np.int64)]
    )
    position = {uid: i for i, uid in enumerate(uids)}
    return encode(
        ModelState(
            fingerprint=fingerprint,
            node=name,
            **{name: getattr(node, name) for name in _NODE_FIELDS},
            reference_ms=tuple((cpu, memory) for cpu, memory in node.reference_ms),
            allocatable=pack(node.allocatable, "<f8"),
            uids=uids,
            listed=pack(np.array([position[uid] for uid in node.listed.uids], np.int64), "<u4"),
            classes=pack(node.listed.classes, "<i1"),
            requests=pack(node.listed.requests, "<f8"),
            ages=pack(node.pod_ages, "<f8"),
            active=pack(node.listed.active, "<u1"),
            ended=pack(node.listed.ended, "<u1"),
            **pack_columns({name: getattr(models, name)[rows] for name in COLUMNS}),
            profile=pack(models.profile[rows], "<i1"),
            columns=models.store.pack(rows),
            node_columns=slots.pack(np.array([node.slot])),
            **pack_histograms(models.sparse(rows, r) for r in range(len(RESOURCES))),
            workloads=tuple(workload for workload, _ in workloads),
            workload_models=_pack_workloads(workload_models, workload_rows),
            pod_workloads=pack(_positions(models.workload[rows], workload_rows), "<i4"),
            alerts=alerts,
            pending=pending,
            pod_oom_kills=dict(sorted(node.pod_oom_kills.items())),
            workload_oom_kills=tuple(sorted(node.workload_oom_kills.items())),
            containers=saved_containers.capture(node.containers, container_models),
        )
    )


def _pack_workloads(models: EntityModels, rows: IntArray) -> WorkloadState:
    return WorkloadState(
        **pack_columns({name: getattr(models, name)[rows] for name in WORKLOAD_COLUMNS}),
        columns=models.store.pack(rows),
        **pack_histograms(models.sparse(rows, r) for r in range(len(RESOURCES))),
    )


def _positions(values: IntArray, rows: IntArray) -> IntArray:
    """The position in `rows` of each of these values, which are rows or `NO_ROW`."""
    order = np.argsort(rows)
    positions = np.full(len(values), NO_ROW)
    own = values != NO_ROW
    positions[own] = order[np.searchsorted(rows, values[own], sorter=order)]
    return positions


@dataclass(frozen=True, slots=True)
class CheckedState:
    """A state that fits the learner, and its arrays: `columns` of `EntityModels`, those of
    workloads, the `pods` of the last window with their `ages` and positions in `state.uids`. The
    values of `Columns` are in `store`, `node_store` and `workload_store`."""

    state: ModelState
    profiles: ByteArray
    columns: dict[str, npt.NDArray[Any]]
    histograms: list[SparseHistograms]
    pods: ListedPods
    workload_columns: dict[str, npt.NDArray[Any]]
    workload_histograms: list[SparseHistograms]
    pod_workloads: IntArray
    containers: saved_containers.CheckedContainers | None
    positions: IntArray
    ages: FloatArray
    allocatable: FloatArray
    store: dict[str, npt.NDArray[Any]]
    node_store: dict[str, npt.NDArray[Any]]
    workload_store: dict[str, npt.NDArray[Any]]


def read(
    name: str,
    data: bytes,
    models: EntityModels,
    workload_models: EntityModels,
    slots: Columns,
    fingerprint: str,
) -> CheckedState:
    """The state in `data`, checked for `install`. Raises CheckpointError if it does not fit."""
    state = decode(data)
    if state.node != name:
        raise CheckpointError(f"state of node {state.node!r:.100} given for node {name!r:.100}")
    if state.fingerprint != fingerprint:
        raise CheckpointLayoutError(
            f"state of node {name!r:.100} is of model {state.fingerprint!r:.40}, not of "
            f"{fingerprint!r}: settings that shape what is learned or what predictors keep differ",
            hint="rebuild the node from the windows log; "
            "docs/explanation/models.md names these settings",
        )
    profiles = unpack(state.profile, "<i1", len(ENTITIES) + len(state.uids))
    rows = len(ENTITIES) + len(state.uids)
    histograms = [stored_histograms(state, r, rows) for r in range(len(RESOURCES))]
    _check_profiles(state, profiles, histograms, models)
    workload_histograms = read_workloads(state, workload_models)
    pod_workloads = unpack(state.pod_workloads, "<i4", rows).astype(np.int64)
    if ((pod_workloads < NO_ROW) | (pod_workloads >= len(state.workloads))).any():
        raise CheckpointError(f"state of node {name!r:.100} has a pod of an unknown workload")
    check_oom_kills(state)
    positions = unpack(state.listed, "<u4", len(state.listed) // 4).astype(np.int64)
    if len(positions) and positions.max() >= len(state.uids):
        raise CheckpointError(f"state of node {name!r:.100} lists a pod that it does not hold")
    count = len(positions)
    return CheckedState(
        state=state,
        profiles=profiles,
        columns=unpack_columns(state),
        histograms=histograms,
        pods=listed_pods(
            uids=tuple(state.uids[i] for i in positions.tolist()),
            classes=unpack(state.classes, "<i1", count),
            requests=unpack(state.requests, "<f8", count, 2),
            active=unpack(state.active, "<u1", count).astype(np.bool_),
            ended=unpack(state.ended, "<u1", count).astype(np.bool_),
        ),
        workload_columns=workload_columns(state.workload_models, len(state.workloads)),
        workload_histograms=workload_histograms,
        pod_workloads=pod_workloads,
        containers=saved_containers.read(state.containers),
        positions=positions,
        ages=unpack(state.ages, "<f8", count),
        allocatable=unpack(state.allocatable, "<f8", 2),
        store=models.store.unpack(state.columns, rows),
        node_store=slots.unpack(state.node_columns, 1),
        workload_store=workload_models.store.unpack(
            state.workload_models.columns, len(state.workloads)
        ),
    )


def _check_profiles(
    state: ModelState, profiles: ByteArray, histograms: list[SparseHistograms], models: EntityModels
) -> None:
    num_profiles = len(models.histograms[0].layouts)
    if (
        len(state.reference_ms) != num_profiles
        or not ((profiles >= 0) & (profiles < num_profiles)).all()
    ):
        raise CheckpointError(f"state of node {state.node!r:.100} has an unknown profile")
    for cells, (counts, buckets, _) in zip(models.histograms, histograms, strict=True):
        most = np.array([layout.num_buckets for layout in cells.layouts])[profiles]
        if (buckets >= np.repeat(most, counts)).any():
            raise CheckpointError(
                f"state of node {state.node!r:.100} has a bucket outside the layout"
            )


def install(
    checked: CheckedState,
    models: EntityModels,
    workload_models: EntityModels,
    container_models: EntityModels,
    slots: Columns,
    slot: int,
) -> NodeModels:
    """Write a state that `read` has checked into new rows and `slot`; returns its node."""
    state, listed_uids = checked.state, {*checked.pods.uids}
    rows = models.allocate(checked.profiles)
    models.store.write(rows, checked.store)
    slots.write(np.array([slot]), checked.node_store)
    for name, column in checked.columns.items():
        getattr(models, name)[rows] = column
    for histograms, sparse in zip(models.histograms, checked.histograms, strict=True):
        histograms.load(rows, *sparse)
    workload_rows = _install_workloads(checked, workload_models)
    models.workload[rows] = np.append(workload_rows, NO_ROW)[checked.pod_workloads]
    entity_rows, pod_rows = rows[: len(ENTITIES)], rows[len(ENTITIES) :]
    return NodeModels(
        **{name: getattr(state, name) for name in _NODE_FIELDS},
        entity_rows=entity_rows,
        slot=slot,
        reference_ms=[list(pair) for pair in state.reference_ms],
        allocatable=checked.allocatable,
        row_by_uid=dict(zip(state.uids, pod_rows.tolist(), strict=True)),
        listed=checked.pods,
        pod_rows=pod_rows[checked.positions],
        absent_uids=tuple(uid for uid in state.uids if uid not in listed_uids),
        pod_ages=checked.ages,
        workload_rows=dict(zip(state.workloads, workload_rows.tolist(), strict=True)),
        pod_oom_kills=dict(state.pod_oom_kills),
        workload_oom_kills=dict(state.workload_oom_kills),
        containers=saved_containers.install(checked.containers, container_models),
    )


def _install_workloads(checked: CheckedState, models: EntityModels) -> IntArray:
    state = checked.state
    rows = models.allocate(np.zeros(len(state.workloads), np.int8))
    models.store.write(rows, checked.workload_store)
    for name, column in checked.workload_columns.items():
        getattr(models, name)[rows] = column
    for histograms, sparse in zip(models.histograms, checked.workload_histograms, strict=True):
        histograms.load(rows, *sparse)
    return rows
