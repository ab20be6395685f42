"""The table on disk, so that an extender that starts again answers at once, and then catches up.

Owes the rest: a file that is whole or not there; what it holds is at least as new as the positions
in the logs that it names, so that reading on from there leads to the same table. What does not fit
(another version, other things counted, damage) is no snapshot: all is read from the logs then.

It is copied at one moment, of the table as of the positions, and written while that goes on.
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
from pipeline.table.node_columns import NodeRecords, OfferedResources, TableNode
from pipeline.table.pod_columns import POD_ARRAYS, PodArrays
from pipeline.table.state_table import Table
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_state import NodeStateRecord

VERSION: Final = 3

_AT_ONCE: Final = 100
_UIDS_AT_ONCE: Final = 10_000
_TEXTS: Final = ("head", "records", "uids", "cgroups")
_KINDS: Final[tuple[type[Any], ...]] = (NodeStateRecord, TableNode, OfferedResources)

# Of an archive that says to be encrypted, or packed in a way that there is none, RuntimeError.
_OF_DAMAGE: Final = (
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


class Restored(NamedTuple):
    table: Table
    positions: tuple[Position, ...]
    saved_at: float


class Copied(NamedTuple):
    """The table as it was at one moment, and from where on the logs go on."""

    names: Sequence[str]
    rows: Sequence[NodeRecords]
    pods: PodArrays
    counting: Counting
    positions: tuple[Position, ...]
    at: float


def copied(table: Table, positions: Sequence[Position], now: float) -> Copied:
    """A copy to be saved: a million pods take some fifty milliseconds."""
    names, rows = table.rows()
    return Copied(names, rows, table.pods.columns(), table.pods.counting, tuple(positions), now)


def save(path: Path, copy: Copied) -> int:
    """Write a snapshot; the bytes written. May be called in another thread than that of the table.
    Raises OSError."""
    pods = copy.pods
    records = [*_encoded(copy.rows)]
    uids = [*_texts(pods.uids)]
    # Of most pods the cgroup is named by the uid.
    others = {place: name for place, name in enumerate(pods.cgroup_uids) if name != uids[place]}
    head = _Head(
        version=VERSION,
        saved_at=copy.at,
        counted=copy.counting.names,
        counting=_counting(copy.counting),
        positions=copy.positions,
        names=tuple(copy.names),
        sizes=tuple(tuple(map(len, of_row)) for of_row in records),  # type: ignore[misc]
    )
    texts = {
        "head": msgspec.json.encode(head),
        "records": b"".join(part for of_row in records for part in of_row),
        "uids": "\n".join(uids).encode(),
        "cgroups": msgspec.json.encode(others),
    }
    arrays = {name: np.frombuffer(text, np.uint8) for name, text in texts.items()}
    return _write(path, arrays | dict(pods.arrays))


def is_ours(path: Path) -> bool:
    """Whether a file is a snapshot, as far as its beginning shows, which is there of a damaged one,
    too; an empty one may become one. Raises OSError."""
    with path.open("rb") as file:
        begin = file.read(100)
    # A zip archive names its first member behind a header of thirty bytes.
    firsts = [f"{name}.npy".encode() for name in (*_TEXTS, *POD_ARRAYS)]
    return not begin or (begin.startswith(b"PK\x03\x04") and begin[30:].startswith(tuple(firsts)))


def _write(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path.stat().st_size


def load(path: Path, empty: Table) -> Restored | None:
    """The table in the snapshot, made of `empty`, which it needs for what columns and amounts there
    are; None where there is none.

    Raises CheckpointError for one that does not fit or is damaged, OSError for a file that cannot
    be read.
    """
    try:
        with np.load(path, allow_pickle=False) as found:
            head = msgspec.json.decode(found["head"].tobytes(), type=_Head)
            _must_fit(head, empty.pods.counting)
            rows = [*_decoded(head.sizes, found["records"].tobytes())]
            uids = found["uids"].tobytes().decode().split("\n") if len(found["uids"]) else []
            others = msgspec.json.decode(found["cgroups"].tobytes(), type=dict[int, str])
            cgroups = [*uids]
            for place, name in others.items():
                cgroups[place] = name
            arrays = {name: found[name] for name in POD_ARRAYS}
            empty.restore(head.names, rows, PodArrays(uids, cgroups, arrays))
    except FileNotFoundError:
        return None
    except CheckpointError:
        raise
    except _OF_DAMAGE as error:
        raise _damaged(error) from error
    except Exception as error:
        # A damaged archive has errors of its own kind, and so has the head of an array.
        if type(error).__module__ in ("zipfile", "zlib", "tokenize"):
            raise _damaged(error) from error
        raise
    return Restored(empty, head.positions, head.saved_at)


def _must_fit(head: _Head, counting: Counting) -> None:
    if head.version != VERSION:
        raise CheckpointError(f"it is of version {head.version}, read is {VERSION}")
    if (head.counted, head.counting) != (counting.names, _counting(counting)):
        raise CheckpointError("the plugins or their arguments were others when it was written")


def _damaged(error: Exception) -> CheckpointError:
    return CheckpointError(f"it is damaged: {error!s:.200}")


def _counting(counting: Counting) -> str:
    """What two snapshots must have alike, so that amounts mean the same."""
    return msgspec.json.encode([counting.load_aware, counting.packing]).decode()


def _encoded(rows: Sequence[NodeRecords]) -> Iterator[tuple[bytes, ...]]:
    for at, row in enumerate(rows):
        if at % _AT_ONCE == 0:
            time.sleep(0)  # others may have the interpreter
        yield tuple(b"" if record is None else encode_json(record) for record in row)


def _decoded(sizes: Sequence[tuple[int, int, int]], data: bytes) -> Iterator[NodeRecords]:
    at = 0
    for of_row in sizes:
        records: list[Any] = []
        for kind, size in zip(_KINDS, of_row, strict=True):
            records.append(decode_json(kind, data[at : at + size]) if size else None)
            at += size
        yield NodeRecords(*records)


def _texts(uids: Sequence[str]) -> Iterator[str]:
    for at, uid in enumerate(uids):
        if at % _UIDS_AT_ONCE == 0:
            time.sleep(0)
        yield uid
