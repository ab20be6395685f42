"""The rows of a sample as arrays: what they say, and that they say what `read_samples` says."""

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import RecordError
from pipeline.topics.arrow import MAX_ROWS, read_samples
from pipeline.topics.sample_rows import SampleRows, read_rows, rows_of
from pipeline.topics.samples import (
    COLUMNS,
    KINDS,
    LIST_COLUMNS,
    NUMBER_COLUMNS,
    SampleBatch,
    encode_samples,
)
from tests.topics import golden
from tests.topics.alike import assert_same
from tests.topics.hostile import HEADER, bit_flips, node_row, stream

VALID = encode_samples(SampleBatch(golden.HEADER, golden.sample_rows()))


def read_both(data: bytes) -> SampleRows:
    """The rows of `data`, which the other reader must refuse or find the same in: both when it is
    new and when it is like one before."""
    try:
        header, batch = read_samples(data)
    except RecordError as error:
        for _ in range(2):
            with pytest.raises(RecordError) as refused:
                read_rows(data)
            assert refused.value.reason == error.reason
        raise
    for rows in (read_rows(data), read_rows(data)):
        assert_same(rows, header, batch)
    again_header, again = read_samples(rows.data)
    assert again_header == header
    assert repr(again.to_pylist()) == repr(batch.to_pylist())
    return rows


def test_what_is_in_the_rows() -> None:
    rows = read_both(VALID)
    listing = rows.listing
    assert [KINDS[code] for code in listing.kinds] == ["node", "pod", "pod", "tier", "host_app"]
    assert (listing.node, listing.pods.tolist()) == (0, [1, 2])
    assert listing.uids == (golden.POD, golden.STATIC_POD)
    assert listing.ids == ("", *listing.uids, "besteffort", "nginx")
    assert set(rows.places) == set(NUMBER_COLUMNS)
    assert rows.numbers.shape == (len(NUMBER_COLUMNS), 5)
    for name in LIST_COLUMNS:
        assert np.array_equal(rows.points(name), [0.0, 1.0, np.nan, 2.5], equal_nan=True)


def test_what_a_sample_does_not_have_is_unknown_and_not_made() -> None:
    rows = read_both(stream(node_row(coverage=[0.5])))
    assert rows.batch.schema.names == ["kind", "id", "coverage"]
    assert np.isnan(rows.number("cpu_cores_avg")).all()
    assert rows.points("points_cpu_cores").tolist() == []
    assert not rows.has("qos")


def test_a_sample_without_any_number() -> None:
    rows = read_both(stream(node_row()))
    assert rows.numbers.shape == (0, 1)


def test_a_sample_in_our_columns_stays_the_bytes_that_came() -> None:
    data = stream({"coverage": [0.5], "id": [""], "kind": ["node"]})
    for sample in (VALID, data):
        assert read_both(sample).data is sample


@pytest.mark.parametrize(
    "more",
    [
        {"gpu": [1.0]},
        {"coverage": pa.array([1], pa.int8())},
        {"qos": pa.nulls(1)},
        {"extra": pa.array(["x"]).dictionary_encode()},
    ],
    ids=["unknown", "integers", "nulls", "dictionary"],
)
def test_any_other_sample_is_written_anew_in_our_columns(more: dict[str, Any]) -> None:
    data = stream(node_row(cpu_cores_avg=[2.0], **more))
    rows = read_both(data)
    assert set(rows.batch.schema.names) <= set(COLUMNS)
    assert rows.data != data
    assert read_rows(rows.data).data is rows.data
    assert read_both(rows.data).number("cpu_cores_avg").tolist() == [2.0]


def test_a_listing_is_decoded_once_while_it_is_repeated() -> None:
    one, other = (read_rows(stream(node_row(coverage=[v]))) for v in (0.5, 1.0))
    assert one.listing is other.listing
    pods = {"kind": ["node", "pod"], "id": ["", "a"]}
    renamed = pods | {"id": ["", "b"]}
    assert read_rows(stream(pods)).listing.uids == ("a",)
    assert read_rows(stream(renamed)).listing.uids == ("b",)
    swapped = {"kind": ["pod", "node"], "id": ["", "a"]}
    assert read_rows(stream(swapped)).listing.node == 1


def test_a_long_listing_is_read_all_the_same() -> None:
    kinds = pa.array(["node"] + ["pod"] * (MAX_ROWS - 1))
    ids = pa.array([str(i) for i in range(MAX_ROWS)])
    assert len(read_both(stream({"kind": kinds, "id": ids})).listing.uids) == MAX_ROWS - 1


def test_no_listing_is_kept_whose_texts_lie_in_a_large_buffer() -> None:
    kinds = pa.array(["node", "pod"])
    ends = np.array([0, 0, 1], np.int32)
    texts = b"a" * 100_000
    ids = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(ends), pa.py_buffer(texts)])
    batch = pa.RecordBatch.from_arrays([kinds, ids], ["kind", "id"])
    one, other = (rows_of(HEADER, batch).listing for _ in range(2))
    assert one.uids == other.uids == ("a",)
    assert one is not other


def test_slices_have_listings_of_their_own() -> None:
    whole = pa.RecordBatch.from_pydict({"kind": ["tier", "node", "pod"], "id": ["x", "", "a"]})
    listing = rows_of(HEADER, whole.slice(1)).listing
    assert (listing.ids, listing.node, listing.uids) == (("", "a"), 0, ("a",))


# ---- hostile


def test_every_truncation_is_refused_alike() -> None:
    for length in range(0, len(VALID), 7):
        with suppress(RecordError):
            read_both(VALID[:length])


def test_flipped_bits_are_read_or_refused_alike() -> None:
    for data in bit_flips(VALID, stride=37):
        with suppress(RecordError):
            read_both(data)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_changed_and_moved_bytes_are_read_or_refused_alike(data: st.DataObject) -> None:
    changed = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(VALID) - 1))
        run = data.draw(st.binary(min_size=1, max_size=12))
        if data.draw(st.booleans()):
            changed[at : at + len(run)] = run
        else:
            changed[at:at] = run
    with suppress(RecordError):
        read_both(bytes(changed))


@pytest.mark.parametrize(
    "columns",
    [
        {"id": [""]},
        {"kind": ["node"]},
        {"kind": ["node", "pod"], "id": ["", None]},
        {"kind": ["node", "pod"], "id": ["", "\x01"]},
        {"kind": ["node", "node"], "id": ["", "a"]},
        {"kind": ["node", "pod", "pod"], "id": ["", "a", "a"]},
        {"kind": [None, "node"], "id": ["a", ""]},
        {"kind": pa.nulls(1), "id": pa.nulls(1)},
        {"kind": ["node"], "id": [""], "coverage": ["1"]},
        {"kind": pa.array([], pa.string()), "id": pa.array([], pa.string())},
    ],
)
def test_rows_that_are_none_are_refused_alike(columns: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        read_both(stream(columns))
