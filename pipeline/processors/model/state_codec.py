"""Encode the exact state of one node's models.

Equal states are equal bytes: pods are in UID order, and row numbers or other nodes leave no trace.
Layout: 8 bytes of magic and version, a CRC-32 of the rest: 4 bytes of size, then MessagePack of
that size, compressed by zstd. Everything is checked before a bank is changed: a model restored from
damaged bytes would be wrong for days without anyone noticing.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import CheckpointError, CheckpointLayoutError
from pipeline.processors.arrays import ByteArray, FloatArray, IntArray
from pipeline.processors.model.column_store import Columns
from pipeline.processors.model.corroboration import SecondSource
from pipeline.processors.model.entity_models import COLUMNS, NO_ROW, EntityModels
from pipeline.processors.model.model_config import ENTITIES, RESOURCES, Profile
from pipeline.processors.model.node_models import NodeModels
from pipeline.processors.model.training_batch import ListedPods, listed_pods
from pipeline.topics.nodes import Strategy
from pipeline.topics.workloads import Workload

MAGIC: Final = b"STBANK"
VERSION: Final = 4
HEADER: Final = struct.Struct("<6sHI")
SIZE: Final = struct.Struct("<I")
# The bits of weights are nearly random: a higher level costs time and saves next to nothing.
COMPRESSION: Final = pa.Codec("zstd", compression_level=1)
_LARGEST: Final = 1 << 30
_NODE_FIELDS: Final = (
    "machine_id", "epoch", "end_ms", "appended_ms", "window_ms", "coverage", "strategy",
    "applied", "gaps", "workload_reference_ms", "source", "second",
)  # fmt: skip
"""Fields of `NodeModels` that a state has unchanged."""


class WorkloadState(msgspec.Struct, frozen=True, kw_only=True):
    """The models of workloads, with columns and histograms as in `ModelState`."""

    samples: bytes
    first_ms: bytes
    last_ms: bytes
    columns: dict[str, bytes]
    bucket_counts: tuple[bytes, bytes]
    buckets: tuple[bytes, bytes]
    bucket_weights: tuple[bytes, bytes]


_WORKLOAD_COLUMNS: Final = {name: COLUMNS[name] for name in ("samples", "first_ms", "last_ms")}


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """The models of a node. Columns are little-endian array bytes: first the entities of every
    node, then the pods in the order of `uids`, which is ascending.

    `columns` are those of predictors, `node_columns` those per node. `listed` are the positions in
    `uids` of the pods of the last window, which `classes`, `requests`, `ages`, `active` and `ended`
    belong to. Histograms have one entry per resource. `workloads` are those with a model, in
    ascending order, and `workload_models` their models; `pod_workloads` are the positions in
    `workloads` of the entities and pods, -1 without one.
    """

    fingerprint: str
    node: str
    machine_id: str
    epoch: int
    end_ms: int
    appended_ms: int
    window_ms: int
    coverage: float
    strategy: Strategy
    applied: int
    gaps: int
    reference_ms: tuple[tuple[int | None, int | None], ...]
    allocatable: bytes
    uids: tuple[str, ...]
    listed: bytes
    classes: bytes
    requests: bytes
    ages: bytes
    active: bytes
    ended: bytes
    weight: bytes
    mean: bytes
    squares: bytes
    samples: bytes
    first_ms: bytes
    last_ms: bytes
    seen_ms: bytes
    profile: bytes
    columns: dict[str, bytes]
    node_columns: dict[str, bytes]
    bucket_counts: tuple[bytes, bytes]
    buckets: tuple[bytes, bytes]
    bucket_weights: tuple[bytes, bytes]
    workload_reference_ms: int | None
    workloads: tuple[Workload, ...]
    workload_models: WorkloadState
    pod_workloads: bytes
    source: str = ""
    second: SecondSource | None = None


def pack(column: npt.NDArray[Any], dtype: str) -> bytes:
    """A column as little-endian bytes of `dtype`."""
    return np.ascontiguousarray(column, dtype=dtype).tobytes()


def unpack(data: bytes, dtype: str, *shape: int) -> npt.NDArray[Any]:
    """The column of this shape in bytes of `pack`. Raises CheckpointError for another length."""
    size = np.dtype(dtype).itemsize * math.prod(shape)
    if len(data) != size:
        raise CheckpointError(
            f"a column of the node state has {len(data)} bytes instead of {size}",
            hint="rebuild the node from the windows log",
        )
    return np.frombuffer(data, dtype).astype(np.dtype(dtype).newbyteorder("=")).reshape(shape)


def pack_columns(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Arrays of columns of `EntityModels` as fields of a state."""
    return {name: pack(array, COLUMNS[name].dtype) for name, array in arrays.items()}


def unpack_columns(state: ModelState) -> dict[str, npt.NDArray[Any]]:
    """The columns of `EntityModels`, a row per entity and then per pod."""
    count = len(ENTITIES) + len(state.uids)
    return {
        name: unpack(getattr(state, name), column.dtype, count, *column.shape)
        for name, column in COLUMNS.items()
    }


SparseHistograms = tuple[IntArray, IntArray, FloatArray]
"""Filled buckets of some rows: their number per row, then buckets and weights of all rows."""


def pack_histograms(by_resource: Iterable[SparseHistograms]) -> dict[str, Any]:
    """The histograms of cpu and memory as fields of a state."""
    counts, buckets, weights = zip(*by_resource, strict=True)
    return {
        "bucket_counts": tuple(pack(column, "<u2") for column in counts),
        "buckets": tuple(pack(column, "<u2") for column in buckets),
        "bucket_weights": tuple(pack(column, "<f8") for column in weights),
    }


def encode(state: ModelState) -> bytes:
    """The state as bytes; equal states give equal bytes."""
    plain = msgspec.msgpack.encode(state)
    body: bytes = SIZE.pack(len(plain)) + COMPRESSION.compress(plain, asbytes=True)
    return HEADER.pack(MAGIC, VERSION, zlib.crc32(body)) + body


def decode(data: bytes) -> ModelState:
    """The state in `data`. Raises CheckpointError if it is not one of this version, or damaged."""
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise CheckpointError(f"not a node state: {len(data)} bytes that begin {data[:8]!r}")
    _, version, crc = HEADER.unpack_from(data)
    if version != VERSION:
        raise CheckpointLayoutError(
            f"node state of layout version {version}; this release reads {VERSION}",
            hint="rebuild the node from the windows log, or use the release that wrote it",
        )
    body = data[HEADER.size :]
    if zlib.crc32(body) != crc:
        raise CheckpointError(
            f"node state of {len(data)} bytes is damaged: its checksum does not match",
            hint="rebuild the node from the windows log",
        )
    try:
        return msgspec.msgpack.decode(_unpacked(body), type=ModelState)
    except (struct.error, OSError, ValueError, msgspec.DecodeError) as error:
        raise CheckpointError(f"node state cannot be read: {error}") from error


def is_damaged(data: bytes) -> bool:
    """Whether `data` is not a state, of any layout, as it was written."""
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        return True
    return bool(HEADER.unpack_from(data)[2] != zlib.crc32(data[HEADER.size :]))


def _unpacked(body: bytes) -> pa.Buffer:
    (size,) = SIZE.unpack_from(body)
    if size > _LARGEST:
        raise ValueError(f"it would have {size} bytes")
    return COMPRESSION.decompress(body[SIZE.size :], decompressed_size=size)


def dense_weights(state: ModelState, resource: int, profiles: Sequence[Profile]) -> FloatArray:
    """The histograms of one resource, a row per entity and pod, as wide as the widest layout of
    `profiles`, which are those of the model that the state is of."""
    most = max(profile.layouts[resource].num_buckets for profile in profiles)
    counts, buckets, values = _sparse(state, resource, len(ENTITIES) + len(state.uids))
    weights = np.zeros((len(counts), most))
    weights[np.repeat(np.arange(len(counts)), counts), buckets] = values
    return weights


def capture(
    name: str,
    node: NodeModels,
    models: EntityModels,
    workload_models: EntityModels,
    slots: Columns,
    fingerprint: str,
) -> bytes:
    """The state of a node as bytes."""
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
        )
    )


def _pack_workloads(models: EntityModels, rows: IntArray) -> WorkloadState:
    return WorkloadState(
        **pack_columns({name: getattr(models, name)[rows] for name in _WORKLOAD_COLUMNS}),
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
    workloads, the `pods` of the last window with their `ages` and positions in `state.uids`."""

    state: ModelState
    profiles: ByteArray
    columns: dict[str, npt.NDArray[Any]]
    histograms: list[SparseHistograms]
    pods: ListedPods
    workload_columns: dict[str, npt.NDArray[Any]]
    workload_histograms: list[SparseHistograms]
    pod_workloads: IntArray
    positions: IntArray
    ages: FloatArray
    allocatable: FloatArray


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
    histograms = [_sparse(state, r, rows) for r in range(len(RESOURCES))]
    _check_profiles(state, profiles, histograms, models)
    workload_histograms = read_workloads(state, workload_models)
    pod_workloads = unpack(state.pod_workloads, "<i4", rows).astype(np.int64)
    if ((pod_workloads < NO_ROW) | (pod_workloads >= len(state.workloads))).any():
        raise CheckpointError(f"state of node {name!r:.100} has a pod of an unknown workload")
    positions = unpack(state.listed, "<u4", len(state.listed) // 4).astype(np.int64)
    if len(positions) and positions.max() >= len(state.uids):
        raise CheckpointError(f"state of node {name!r:.100} lists a pod that it does not hold")
    count = len(positions)
    checked = CheckedState(
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
        positions=positions,
        ages=unpack(state.ages, "<f8", count),
        allocatable=unpack(state.allocatable, "<f8", 2),
    )
    models.store.check(state.columns, rows)
    workload_models.store.check(state.workload_models.columns, len(state.workloads))
    slots.check(state.node_columns, 1)
    return checked


def workload_columns(state: WorkloadState, count: int) -> dict[str, npt.NDArray[Any]]:
    """The columns of `count` models of workloads."""
    return {
        name: unpack(getattr(state, name), column.dtype, count, *column.shape)
        for name, column in _WORKLOAD_COLUMNS.items()
    }


def read_workloads(state: ModelState, models: EntityModels) -> list[SparseHistograms]:
    """The histograms of workloads by resource. Raises CheckpointError for invalid ones."""
    if list(state.workloads) != sorted({*state.workloads}):
        raise CheckpointError(f"workloads of node {state.node!r:.100} are not in ascending order")
    by_resource = []
    for r, histograms in enumerate(models.histograms):
        sparse = _sparse(state.workload_models, r, len(state.workloads))
        if (sparse[1] >= histograms.layouts[0].num_buckets).any():
            raise CheckpointError(
                f"state of node {state.node!r:.100} has a bucket outside the layout of workloads"
            )
        by_resource.append(sparse)
    return by_resource


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
    slots: Columns,
    slot: int,
) -> NodeModels:
    """Write a state that `read` has checked into new rows and `slot`; returns its node."""
    state, listed_uids = checked.state, {*checked.pods.uids}
    rows = models.allocate(checked.profiles)
    models.store.unpack(rows, state.columns)
    slots.unpack(np.array([slot]), state.node_columns)
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
    )


def _install_workloads(checked: CheckedState, models: EntityModels) -> IntArray:
    state = checked.state
    rows = models.allocate(np.zeros(len(state.workloads), np.int8))
    models.store.unpack(rows, state.workload_models.columns)
    for name, column in checked.workload_columns.items():
        getattr(models, name)[rows] = column
    for histograms, sparse in zip(models.histograms, checked.workload_histograms, strict=True):
        histograms.load(rows, *sparse)
    return rows


def _sparse(state: ModelState | WorkloadState, resource: int, rows: int) -> SparseHistograms:
    counts = unpack(state.bucket_counts[resource], "<u2", rows)
    filled = int(counts.sum())
    return (
        counts.astype(np.int64),
        unpack(state.buckets[resource], "<u2", filled).astype(np.int64),
        unpack(state.bucket_weights[resource], "<f8", filled),
    )
