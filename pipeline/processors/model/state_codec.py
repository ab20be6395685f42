"""Encode the exact state of one node's models.

Layout: 8 bytes of magic and version, a CRC-32 of the rest: 4 bytes of size, then MessagePack of
that size, compressed by zstd.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import CheckpointError, CheckpointLayoutError
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.corroboration import SecondSource
from pipeline.processors.model.entity_models import COLUMNS, EntityModels
from pipeline.processors.model.model_config import ENTITIES, Profile
from pipeline.processors.model.oom_peaks import PodOomKill, WorkloadOomKills
from pipeline.topics.nodes import Strategy
from pipeline.topics.workloads import Workload, WorkloadContainer

MAGIC: Final = b"STBANK"
VERSION: Final = 4
HEADER: Final = struct.Struct("<6sHI")
SIZE: Final = struct.Struct("<I")
# The bits of weights are nearly random: a higher level costs time and saves next to nothing.
COMPRESSION: Final = pa.Codec("zstd", compression_level=1)
_LARGEST: Final = 1 << 30


class WorkloadState(msgspec.Struct, frozen=True, kw_only=True):
    """The models of workloads, with columns and histograms as in `ModelState`."""

    samples: bytes
    first_ms: bytes
    last_ms: bytes
    columns: dict[str, bytes]
    bucket_counts: tuple[bytes, bytes]
    buckets: tuple[bytes, bytes]
    bucket_weights: tuple[bytes, bytes]


class ContainerState(msgspec.Struct, frozen=True, kw_only=True):
    """The containers of a node: `names` of those with a model, in ascending order, and their
    `models`; `only` are the names of containers of workloads whose pods have one. `places` are the
    containers of pods in ascending order, `place_names` their positions in `names`, -1 without one,
    `peaks` and `peak_ends_ms` their peaks. `kills` are the last OOM kills of `places`.
    """

    names: tuple[WorkloadContainer, ...]
    models: WorkloadState
    only: tuple[tuple[Workload, str], ...]
    places: tuple[tuple[str, str], ...]
    place_names: bytes
    peaks: bytes
    peak_ends_ms: bytes
    kills: tuple[tuple[tuple[str, str], PodOomKill], ...]


WORKLOAD_COLUMNS: Final = {name: COLUMNS[name] for name in ("samples", "first_ms", "last_ms")}


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """The models of a node. Columns are little-endian array bytes: first the entities of every
    node, then the pods in the order of `uids`, which is ascending.

    `columns` are those of predictors, `node_columns` those per node. `listed` are the positions in
    `uids` of the pods of the last window, which `classes`, `requests`, `ages`, `active` and `ended`
    belong to. Histograms have one entry per resource. `workloads` are those with a model, in
    ascending order, and `workload_models` their models; `pod_workloads` are the positions in
    `workloads` of the entities and pods, -1 without one. `alerts` are the columns of hot-node
    detection (`alert_columns`), empty where it has not seen the node; `pending` are the peaks that
    are followed (`pending_peaks`). OOM kills are those of `uids` and `workloads` that have some.
    `containers` is None without any, and in states of older releases.
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
    alerts: dict[str, bytes] = msgspec.field(default_factory=dict)
    pending: dict[str, bytes] = msgspec.field(default_factory=dict)
    pod_oom_kills: dict[str, PodOomKill] = msgspec.field(default_factory=dict)
    workload_oom_kills: tuple[tuple[Workload, WorkloadOomKills], ...] = ()
    containers: ContainerState | None = None


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
    counts, buckets, values = stored_histograms(state, resource, len(ENTITIES) + len(state.uids))
    weights = np.zeros((len(counts), most))
    weights[np.repeat(np.arange(len(counts)), counts), buckets] = values
    return weights


def workload_columns(state: WorkloadState, count: int) -> dict[str, npt.NDArray[Any]]:
    """The columns of `count` models of workloads."""
    return {
        name: unpack(getattr(state, name), column.dtype, count, *column.shape)
        for name, column in WORKLOAD_COLUMNS.items()
    }


def read_workloads(state: ModelState, models: EntityModels) -> list[SparseHistograms]:
    """The histograms of workloads by resource. Raises CheckpointError for invalid ones."""
    if list(state.workloads) != sorted({*state.workloads}):
        raise CheckpointError(f"workloads of node {state.node!r:.100} are not in ascending order")
    by_resource = []
    for r, histograms in enumerate(models.histograms):
        sparse = stored_histograms(state.workload_models, r, len(state.workloads))
        if (sparse[1] >= histograms.layouts[0].num_buckets).any():
            raise CheckpointError(
                f"state of node {state.node!r:.100} has a bucket outside the layout of workloads"
            )
        by_resource.append(sparse)
    return by_resource


def check_oom_kills(state: ModelState) -> None:
    """Raise CheckpointError for OOM kills of a pod or workload that the state does not hold."""
    workloads = {workload for workload, _ in state.workload_oom_kills}
    if state.pod_oom_kills.keys() - {*state.uids} or workloads - {*state.workloads}:
        raise CheckpointError(f"state of node {state.node!r:.100} has OOM kills of no model")


def stored_histograms(
    state: ModelState | WorkloadState, resource: int, rows: int
) -> SparseHistograms:
    """The histograms of one resource: of each row the number of filled buckets, then the buckets
    and their weights, row by row."""
    counts = unpack(state.bucket_counts[resource], "<u2", rows)
    filled = int(counts.sum())
    return (
        counts.astype(np.int64),
        unpack(state.buckets[resource], "<u2", filled).astype(np.int64),
        unpack(state.bucket_weights[resource], "<f8", filled),
    )
