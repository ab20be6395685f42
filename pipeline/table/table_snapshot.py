"""Snapshots of the table on disk, from which an extender answers at once after a restart.

A snapshot has offsets of the topics, and its table is at least as new as these: reading on from
them leads to the same table, because older records replace nothing. The file is complete or absent
(written beside, then renamed). Snapshots of another version or of other amounts, and damaged ones,
are ignored; everything is then read from the topics. The table is copied in one step, and written
while it changes.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.errors import CheckpointError, RecordError
from pipeline.processors.loadaware.pod_amounts import Counting
from pipeline.table import limits
from pipeline.table.node_columns import NodeRecords, OfferedResources, TableNode
from pipeline.table.pod_arrays import POD_ARRAYS, PodArrays
from pipeline.table.recent_rates import with_state
from pipeline.table.state_table import Table
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.result_header import Position as LogPosition

VERSION: Final = 5

_TEXTS: Final = ("head", "records", "uids", "cgroups")
_KINDS: Final[tuple[type[Any], ...]] = (NodeStateRecord, TableNode, OfferedResources)

# RuntimeError: the archive claims to be encrypted, or an unknown compression.
_DAMAGE_ERRORS: Final = (
    ValueError, KeyError, IndexError, EOFError, RuntimeError, msgspec.MsgspecError, RecordError,
)  # fmt: skip

Position = tuple[str, int, int]
"""Topic, partition, and the offset to read next."""


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    saved_at: float
    counted: tuple[str, ...]
    counting: str
    positions: tuple[Position, ...]
    names: tuple[str, ...]
    sizes: tuple[tuple[int, int, int], ...]
    topic_ids: dict[str, str] = {}
    complete_until: float | None = None
    has_heartbeats: bool = False
    pending: tuple[str, ...] = ()
    dropped_states: dict[str, LogPosition] = {}
    dropped_resources: dict[str, LogPosition] = {}


class Restored(NamedTuple):
    table: Table
    positions: tuple[Position, ...]
    topic_ids: Mapping[str, str]
    saved_at: float


class Copied(NamedTuple):
    """A copy of the table at one moment, and the offsets at which the topics continue."""

    names: Sequence[str]
    rows: Sequence[NodeRecords]
    pods: PodArrays
    counting: Counting
    positions: tuple[Position, ...]
    at: float
    topic_ids: Mapping[str, str]
    complete_until: float | None
    has_heartbeats: bool
    pending: Sequence[str]
    dropped_states: Mapping[str, LogPosition]
    dropped_resources: Mapping[str, LogPosition]


def copied(
    table: Table, positions: Sequence[Position], now: float, topic_ids: Mapping[str, str]
) -> Copied:
    """Copy the table; a million pods take about fifty milliseconds."""
    names, rows = table.rows()
    pods, counting = table.pods.columns(), table.pods.counting
    return Copied(
        names, rows, pods, counting, tuple(positions), now, dict(topic_ids),
        table.heartbeats.complete_until, table.heartbeats.have_come, [*table.pending],
        table.dropped_states.positions.copy(), table.dropped_resources.positions.copy(),
    )  # fmt: skip


def save(path: Path, copy: Copied) -> int:
    """Write a snapshot; returns its bytes. May run in another thread than the table's. Raises
    OSError."""
    pods = copy.pods
    records = [*_encoded(copy.rows)]
    uids = [*_texts(pods.uids)]
    # The cgroup of most pods is named by their UID.
    others = {i: name for i, name in enumerate(pods.cgroup_uids) if name != uids[i]}
    head = _Head(
        version=VERSION,
        saved_at=copy.at,
        counted=copy.counting.names,
        counting=_counting(copy.counting),
        positions=copy.positions,
        names=tuple(copy.names),
        sizes=tuple((len(state), len(node), len(offered)) for state, node, offered in records),
        topic_ids=dict(copy.topic_ids),
        complete_until=copy.complete_until,
        has_heartbeats=copy.has_heartbeats,
        pending=tuple(copy.pending),
        dropped_states=dict(copy.dropped_states),
        dropped_resources=dict(copy.dropped_resources),
    )
    texts = {
        "head": msgspec.json.encode(head),
        "records": b"".join(part for row in records for part in row),
        "uids": "\n".join(uids).encode(),
        "cgroups": msgspec.json.encode(others),
    }
    arrays = {name: np.frombuffer(text, np.uint8) for name, text in texts.items()}
    return _write(path, arrays | dict(pods.arrays))


def is_ours(path: Path) -> bool:
    """Whether a file starts like a snapshot, damaged or not, or is empty. Raises OSError."""
    with path.open("rb") as file:
        begin = file.read(100)
    # A zip archive has the name of its first member after thirty bytes.
    firsts = [f"{name}.npy".encode() for name in (*_TEXTS, *POD_ARRAYS)]
    return not begin or (begin.startswith(b"PK\x03\x04") and begin[30:].startswith(tuple(firsts)))


def _write(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> int:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path.stat().st_size


def load(path: Path, empty: Table) -> Restored | None:
    """Fill the table `empty`, which declares columns and amounts, from a snapshot; None if there is
    no file.

    Raises CheckpointError for a snapshot that does not fit or is damaged, OSError if the file
    cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            head = msgspec.json.decode(archive["head"].tobytes(), type=_Head)
            _must_fit(head, empty.pods.counting)
            rows = [*_decoded(head.sizes, archive["records"].tobytes())]
            uids = archive["uids"].tobytes().decode().split("\n") if len(archive["uids"]) else []
            others = msgspec.json.decode(archive["cgroups"].tobytes(), type=dict[int, str])
            cgroups = [*uids]
            for position, name in others.items():
                cgroups[position] = name
            arrays = {name: archive[name] for name in POD_ARRAYS}
            empty.restore(head.names, rows, PodArrays(uids, cgroups, arrays))
            if head.has_heartbeats:
                empty.heartbeats.take(head.complete_until)
            empty.pending.update(head.pending)
            empty.dropped_states.restore(head.dropped_states)
            empty.dropped_resources.restore(head.dropped_resources)
    except FileNotFoundError:
        return None
    except CheckpointError:
        raise
    except _DAMAGE_ERRORS as error:
        raise _damaged(error) from error
    except Exception as error:
        # A damaged archive, or head of an array, raises errors of these modules.
        if type(error).__module__ in ("zipfile", "zlib", "tokenize"):
            raise _damaged(error) from error
        raise
    return Restored(empty, head.positions, head.topic_ids, head.saved_at)


def _must_fit(head: _Head, counting: Counting) -> None:
    if head.version != VERSION:
        raise CheckpointError(f"it has version {head.version}, not {VERSION}")
    if (head.counted, head.counting) != (counting.names, _counting(counting)):
        raise CheckpointError("it was written with other plugins or arguments")


def _damaged(error: Exception) -> CheckpointError:
    return CheckpointError(f"it is damaged: {error!s:.200}")


def _counting(counting: Counting) -> str:
    """Two snapshots with the same text have the same amounts."""
    return msgspec.json.encode([counting.load_aware, counting.packing]).decode()


def _encoded(rows: Sequence[NodeRecords]) -> Iterator[tuple[bytes, ...]]:
    for index, row in enumerate(rows):
        if index % limits.SNAPSHOT_RECORDS_AT_ONCE == 0:
            time.sleep(0)  # let other threads run
        records = (row.state, row.node, row.resources)
        yield tuple(b"" if record is None else encode_json(record) for record in records)


def _decoded(sizes: Sequence[tuple[int, int, int]], data: bytes) -> Iterator[NodeRecords]:
    offset = 0
    for row_sizes in sizes:
        records: list[Any] = []
        for kind, size in zip(_KINDS, row_sizes, strict=True):
            records.append(decode_json(kind, data[offset : offset + size]) if size else None)
            offset += size
        state, node, resources = records
        rates = None if state is None else with_state(None, state)
        yield NodeRecords(state, node, resources, rates)


def _texts(uids: Sequence[str]) -> Iterator[str]:
    for index, uid in enumerate(uids):
        if index % limits.SNAPSHOT_UIDS_AT_ONCE == 0:
            time.sleep(0)
        yield uid
