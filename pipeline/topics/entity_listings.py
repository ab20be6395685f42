"""Which entities the rows of a sample are, decoded once while a node's samples repeat it."""

import sys
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.topics.arrow import check_entities
from pipeline.topics.byte_cache import Kept
from pipeline.topics.samples import KINDS

Key: TypeAlias = tuple[int | bytes, ...]

# A listing of more rows or bytes is decoded each time. A text's buffer may hold far more than its
# rows use.
MOST_ROWS_KEPT: Final = 512
_MOST_BYTES_KEPT: Final = 64 * 1024
_CODES: Final = {kind: code for code, kind in enumerate(KINDS)}


class Listing(NamedTuple):
    """Which entities the rows of a sample are: `kinds` by code of `KINDS`, `ids` as texts.

    `node` is the row of the node, `pods` are the rows of pods, `uids` their ids, both in order of
    the ids. Equal listings of a node's windows are mostly one object; nobody may write to it.
    """

    kinds: npt.NDArray[np.int8]
    ids: tuple[str, ...]
    node: int
    pods: npt.NDArray[np.intp]
    uids: tuple[str, ...]


_listings: Kept[Key, Listing] = Kept(most_bytes=128 << 20)


def known_listing(key: Key) -> Listing | None:
    """The listing that was made of these bytes: the number of rows, then offsets and texts of the
    kinds and of the ids. They are known to be good, then."""
    return _listings.get(key)


def listing_of(kinds: pa.StringArray, ids: pa.StringArray) -> Listing:
    """The listing of these kinds and ids; raises `InvalidRecordError` if they are none."""
    key = _key(kinds, ids)
    if key is None:
        return _listing(kinds.to_pylist(), ids.to_pylist())
    found = _listings.get(key)
    if found is None:
        found = _listing(kinds.to_pylist(), ids.to_pylist())
        # The bytes, and once more as texts and numbers.
        _listings.put(key, found, 2 * sum(map(len, key[1:])))
    return found


def _key(*columns: pa.StringArray) -> tuple[int, *tuple[bytes, ...]] | None:
    """The bytes that `columns` are made of; None if they are too many, or not all of them."""
    rows, size = len(columns[0]), 0
    buffers: list[pa.Buffer | None] = []
    for column in columns:
        valid, offsets, texts = column.buffers()
        if valid is not None or column.offset or offsets is None:
            return None
        size += offsets.size + (0 if texts is None else texts.size)
        buffers += (offsets.slice(0, 4 * (rows + 1)), texts)
    if rows > MOST_ROWS_KEPT or size > _MOST_BYTES_KEPT:
        return None
    return rows, *(b"" if buffer is None else buffer.to_pybytes() for buffer in buffers)


def _listing(kinds: Sequence[str | None], ids: Sequence[str | None]) -> Listing:
    check_entities(kinds, ids)
    codes = np.array([_CODES[kind or ""] for kind in kinds], np.int8)
    # Whoever keeps a pod's uid keeps this text.
    names = tuple(sys.intern(name or "") for name in ids)
    node = list(kinds).index("node")
    pods = sorted(np.flatnonzero(codes == _CODES["pod"]).tolist(), key=names.__getitem__)
    return Listing(codes, names, node, np.array(pods, np.intp), tuple(names[row] for row in pods))
