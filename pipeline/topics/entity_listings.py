"""The entities of a sample's rows, decoded once while the samples of a node repeat them."""

import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import InvalidRecordError
from pipeline.topics.samples import KINDS, MAX_CONTAINERS, MAX_CONTAINERS_PER_POD

_CODES: Final = {kind: code for code, kind in enumerate(KINDS)}
_MAX_ID_BYTES: Final = 253
# JSON takes two to six bytes for each of these characters, and terminals may obey them. A
# prediction contains each UID twice.
_FORBIDDEN: Final = re.compile(r'[\x00-\x1f"\\\x7f-\x9f]')
_CACHED_LISTINGS: Final = 16_384
_CACHED_BYTES: Final = 32 * 1024


class Listing(NamedTuple):
    """The entities of a sample's rows: `kinds` (rows,) as codes of `KINDS`, `ids` as texts.

    `node` is the row of the node, `pods` (pods,) are the rows of pods and `uids` their ids, both in
    order of the ids. `container_ids` are the ids of each pod's containers, `()` if the sample has
    no containers. Equal listings are usually one object. Nobody may write to the arrays.
    """

    kinds: npt.NDArray[np.int8]
    ids: tuple[str, ...]
    node: int
    pods: npt.NDArray[np.intp]
    uids: tuple[str, ...]
    container_ids: tuple[tuple[str, ...], ...] = ()

    @property
    def container_order(self) -> npt.NDArray[np.intp]:
        """Positions in the sample, row by row, of the containers of `uids`, (containers,)."""
        lengths = np.zeros(len(self.ids), np.intp)
        lengths[self.pods] = [len(ids) for ids in self.container_ids] or 0
        starts = np.cumsum(lengths) - lengths
        counts = lengths[self.pods]
        within = np.arange(counts.sum()) - (np.cumsum(counts) - counts).repeat(counts)
        order: npt.NDArray[np.intp] = starts[self.pods].repeat(counts) + within
        return order


def listing_of(
    kinds: pa.StringArray, ids: pa.StringArray, container_ids: pa.ListArray | None = None
) -> Listing:
    """The listing of these columns of a validated record batch; `container_ids` are lists of texts,
    None without containers.

    Raises `InvalidRecordError` unless one row is the node and each row has a kind and an id of its
    own, and only pods have containers, each with an id of its own and not too many.
    """
    if kinds.null_count or ids.null_count:
        raise InvalidRecordError("a row has no kind or no id")
    texts = [kinds, ids]
    lengths: tuple[int, ...] = ()
    if container_ids is not None and len(container_ids.values):
        if container_ids.null_count or container_ids.values.null_count:
            raise InvalidRecordError("a container has no id")
        if len(container_ids.values) > MAX_CONTAINERS:
            raise InvalidRecordError(f"sample has more than {MAX_CONTAINERS} containers")
        lengths = tuple(container_ids.value_lengths().to_pylist())
        texts.append(container_ids.flatten())
    buffers = [
        b"" if buffer is None else buffer.to_pybytes()
        for text in texts
        for buffer in text.buffers()[1:]
    ]
    if sum(map(len, buffers)) > _CACHED_BYTES:
        return _listing(kinds.to_pylist(), ids.to_pylist(), _split(texts[2:], lengths))
    return _cached(len(kinds), lengths, *buffers)


@lru_cache(maxsize=_CACHED_LISTINGS)
def _cached(rows: int, lengths: tuple[int, ...], *buffers: bytes) -> Listing:
    sizes = (rows, rows, sum(lengths))
    texts = [
        pa.StringArray.from_buffers(size, pa.py_buffer(offsets), pa.py_buffer(text))
        for size, offsets, text in zip(sizes, buffers[::2], buffers[1::2], strict=False)
    ]
    kinds, ids = (text.to_pylist() for text in texts[:2])
    return _listing(kinds, ids, _split(texts[2:], lengths))


def _split(
    container_ids: Sequence[pa.StringArray], lengths: Sequence[int]
) -> list[tuple[str, ...]]:
    """The ids of the containers of each row; none without `container_ids`."""
    if not container_ids:
        return []
    ids = iter(container_ids[0].to_pylist())
    return [tuple(islice(ids, length)) for length in lengths]


def _listing(
    kinds: Sequence[str], ids: Sequence[str], containers: Sequence[tuple[str, ...]]
) -> Listing:
    _check(kinds, ids)
    _check_containers(kinds, containers)
    codes = np.array([_CODES[kind] for kind in kinds], np.int8)
    # Models keep the UIDs.
    names = tuple(map(sys.intern, ids))
    pods = sorted(np.flatnonzero(codes == _CODES["pod"]).tolist(), key=names.__getitem__)
    return Listing(
        codes,
        names,
        list(kinds).index("node"),
        np.array(pods, np.intp),
        tuple(names[row] for row in pods),
        tuple(containers[row] for row in pods) if containers else (),
    )


def _check_containers(kinds: Sequence[str], containers: Sequence[tuple[str, ...]]) -> None:
    for kind, ids in zip(kinds, containers, strict=bool(containers)):
        if not ids:
            continue
        if kind != "pod":
            raise InvalidRecordError(f"a {kind} has containers")
        if len(ids) > MAX_CONTAINERS_PER_POD:
            raise InvalidRecordError(f"a pod has more than {MAX_CONTAINERS_PER_POD} containers")
        if len({*ids}) < len(ids):
            raise InvalidRecordError("two containers of a pod have the same id")
        if any(len(id.encode()) > _MAX_ID_BYTES for id in ids) or _FORBIDDEN.search(" ".join(ids)):
            raise InvalidRecordError("id of a container is too long or has a forbidden character")


def _check(kinds: Sequence[str], ids: Sequence[str]) -> None:
    if kinds.count("node") != 1:
        raise InvalidRecordError(f"batch has {kinds.count('node')} node rows, not one")
    if not set(kinds) <= set(KINDS):
        raise InvalidRecordError(f"kind of a row is not one of {', '.join(KINDS)}")
    if any(len(name.encode()) > _MAX_ID_BYTES for name in ids):
        raise InvalidRecordError(f"id of a row is longer than {_MAX_ID_BYTES} bytes")
    if _FORBIDDEN.search(" ".join(ids)):
        raise InvalidRecordError("id of a row has a control character, a quote or a backslash")
    if len(set(zip(kinds, ids, strict=True))) != len(ids):
        raise InvalidRecordError("two rows have the same kind and id")
