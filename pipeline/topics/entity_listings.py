"""The entities of a sample's rows, decoded once while the samples of a node repeat them."""

import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import InvalidRecordError
from pipeline.topics.samples import KINDS

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
    order of the ids. Equal listings are usually one object. Nobody may write to the arrays.
    """

    kinds: npt.NDArray[np.int8]
    ids: tuple[str, ...]
    node: int
    pods: npt.NDArray[np.intp]
    uids: tuple[str, ...]


def listing_of(kinds: pa.StringArray, ids: pa.StringArray) -> Listing:
    """The listing of these two columns of a validated record batch.

    Raises `InvalidRecordError` unless one row is the node and each row has a kind and an id of its
    own.
    """
    if kinds.null_count or ids.null_count:
        raise InvalidRecordError("a row has no kind or no id")
    columns = kinds.buffers()[1:] + ids.buffers()[1:]
    buffers = [b"" if buffer is None else buffer.to_pybytes() for buffer in columns]
    if sum(map(len, buffers)) > _CACHED_BYTES:
        return _listing(kinds.to_pylist(), ids.to_pylist())
    return _cached(len(kinds), *buffers)


@lru_cache(maxsize=_CACHED_LISTINGS)
def _cached(rows: int, kind_offsets: bytes, kinds: bytes, id_offsets: bytes, ids: bytes) -> Listing:
    texts = [
        pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(text)).to_pylist()
        for offsets, text in ((kind_offsets, kinds), (id_offsets, ids))
    ]
    return _listing(*texts)


def _listing(kinds: Sequence[str], ids: Sequence[str]) -> Listing:
    _check(kinds, ids)
    codes = np.array([_CODES[kind] for kind in kinds], np.int8)
    # Models keep the UIDs.
    names = tuple(map(sys.intern, ids))
    pods = sorted(np.flatnonzero(codes == _CODES["pod"]).tolist(), key=names.__getitem__)
    uids = tuple(names[row] for row in pods)
    return Listing(codes, names, list(kinds).index("node"), np.array(pods, np.intp), uids)


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
