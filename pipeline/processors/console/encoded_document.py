"""Documents as bytes with a tag, so that a client does not fetch again what it has.

Columns of documents are arrays and amounts are whole, so that 10,000 nodes take less than a
megabyte. A document has no time of its own: while its subject stays the same, so do its bytes.
"""

import gzip
import hashlib
from typing import Final, NamedTuple

import msgspec
import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.topics.hot_node_policy import DEFAULT_POOL, HotNodePolicy

LARGEST: Final = 2.0**53
"""JavaScript has no exact whole numbers above."""
_COMPRESSION: Final = 5
"""Of zlib: higher levels take twice the time to save 3%."""


class EncodedDocument(NamedTuple):
    """The bytes of a document, the same compressed by gzip, and a tag that names them."""

    body: bytes
    compressed: bytes
    etag: str


NO_DOCUMENT: Final = EncodedDocument(b"", b"", "")


def encode_document(document: msgspec.Struct) -> EncodedDocument:
    """The bytes of the document; equal documents have equal bytes."""
    body = msgspec.json.encode(document)
    compressed = gzip.compress(body, _COMPRESSION, mtime=0)
    return EncodedDocument(body, compressed, hashlib.sha256(body).hexdigest()[:32])


def whole(amounts: FloatArray) -> list[int | None]:
    """Rounded to whole numbers; None for NaN, below zero, and what a browser cannot count."""
    is_known = (amounts >= 0.0) & (amounts <= LARGEST)
    rounded = np.rint(np.where(is_known, amounts, 0.0)).astype(np.int64).tolist()
    if is_known.all():
        return list(rounded)
    known = is_known.tolist()
    return [value if known[index] else None for index, value in enumerate(rounded)]


def pool_of(policy: HotNodePolicy | None) -> str:
    """The node pool that hot-node policies put a node into."""
    return DEFAULT_POOL if policy is None else policy.pool
