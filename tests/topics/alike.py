"""Samples that are like others that were read before, and what is kept of these."""

from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.topics import entity_listings, sample_heads, sample_layouts
from pipeline.topics.byte_cache import Kept
from pipeline.topics.sample_rows import SampleRows
from pipeline.topics.samples import (
    COLUMNS,
    KINDS,
    LIST_COLUMNS,
    NUMBER_COLUMNS,
    SampleHeader,
)

_STORES: tuple[tuple[Any, str], ...] = (
    (entity_listings, "_listings"),
    (sample_heads, "_templates"),
    (sample_layouts, "_layouts"),
    (sample_layouts, "_proven"),
    (sample_layouts, "_gaps"),
)


def stores() -> list[Kept[Any, Any]]:
    """All that keep anything."""
    return [getattr(module, name) for module, name in _STORES]


def forget() -> None:
    """Let no sample have been read."""
    for module, name in _STORES:
        setattr(module, name, Kept(getattr(module, name).most_bytes))


def is_alike(rows: SampleRows) -> bool:
    """Whether the sample was like one before, and so not decoded."""
    return type(rows._rows).__name__ == "_Encoded"


def assert_same(rows: SampleRows, header: SampleHeader, batch: pa.RecordBatch) -> None:
    """`rows` say what `read_samples` says: numbers to the last bit, but for the bits of a NaN."""
    assert rows.header == header
    assert len(rows) == batch.num_rows
    kinds, ids = (batch.column(name).to_pylist() for name in ("kind", "id"))
    listing, node = rows.listing, kinds.index("node")
    assert ([KINDS[code] for code in listing.kinds], list(listing.ids)) == (kinds, ids)
    pods = sorted((i for i, kind in enumerate(kinds) if kind == "pod"), key=ids.__getitem__)
    assert (listing.node, listing.pods.tolist()) == (node, pods)
    assert listing.uids == tuple(ids[pod] for pod in pods)
    assert rows.numbers.shape == (len(rows.places), len(rows))
    assert rows.numbers.flags.aligned
    for name in NUMBER_COLUMNS:
        column = batch.column(name)
        expected = np.array(column.to_numpy(zero_copy_only=False), np.float64)
        assert same_bits(rows.number(name), expected), name
    for name in LIST_COLUMNS:
        points = batch.column(name)[node].values
        expected = np.empty(0) if points is None else points.to_numpy(zero_copy_only=False)
        assert same_bits(rows.points(name), np.array(expected, np.float64)), name
        # In the place of a null is anything, so that only what is there can be looked for.
        flat = batch.column(name).flatten().drop_null().to_numpy()
        assert set(flat[flat == flat].tolist()) <= set(rows.all_points(name).tolist())
    present = [batch.column(name) for name in rows.places]
    assert rows.nulls == sum(column.null_count for column in present)
    for name in COLUMNS:
        # By text, since NaN is not equal to itself.
        assert repr(rows.column(name).to_pylist()) == repr(batch.column(name).to_pylist())
        assert rows.has(name) or batch.column(name).null_count == batch.num_rows


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether these are the same floats; NaN is NaN, but 0.0 is not -0.0."""
    equal = np.array_equal(one, other, equal_nan=True)
    return equal and np.array_equal(np.signbit(one[one == one]), np.signbit(other[other == other]))
