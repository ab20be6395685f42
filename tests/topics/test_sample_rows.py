"""Samples are decoded as they were encoded, by workers and by pyarrow alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.topics.sample_rows import encode_arrays, read_header, read_rows, read_samples
from pipeline.topics.samples import KINDS, LIST_COLUMNS, NUMBER_COLUMNS, SampleBatch, encode_samples
from tests.topics import golden
from tests.topics.hostile import HEADER, lists, node_row, rows_of, sample

VALID = encode_samples(SampleBatch(golden.HEADER, golden.sample_rows()))
DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "reference" / "topics.md"


def _rows() -> st.SearchStrategy[list[dict[str, Any]]]:
    number = st.none() | st.floats()
    more = st.dictionaries(st.sampled_from(NUMBER_COLUMNS), number, max_size=5)
    points = st.lists(st.tuples(number, number, number), max_size=5).map(
        lambda rows: dict(zip(LIST_COLUMNS, map(list, zip(*rows, strict=True)), strict=False))
    )
    node = st.builds(lambda m, p: {"kind": "node", "id": "", **m, **p}, more, points)
    characters = st.characters(exclude_categories=("Cc", "Cs"), exclude_characters='"\\')
    ids = st.text(characters, max_size=40)
    pod = st.builds(
        lambda i, q, m: {"kind": "pod", "id": i, "qos": q, **m},
        ids, st.sampled_from([None, "Burstable", "BestEffort"]), more,
    )  # fmt: skip
    pods = st.lists(pod, max_size=8, unique_by=lambda row: row["id"])
    return st.builds(lambda first, rest: [first, *rest], node, pods)


@given(_rows())
def test_a_sample_is_decoded_as_it_was_encoded(rows: list[dict[str, Any]]) -> None:
    read = read_samples(encode_samples(SampleBatch(golden.HEADER, rows)))
    assert read.header == golden.HEADER
    for row, expected in zip(read.rows, rows, strict=True):
        known = {name: value for name, value in expected.items() if value is not None}
        assert repr(dict(sorted(row.items()))) == repr(dict(sorted(known.items())))


@given(_rows())
def test_equal_samples_are_equal_bytes(rows: list[dict[str, Any]]) -> None:
    assert len({encode_samples(SampleBatch(golden.HEADER, rows)) for _ in range(3)}) == 1


def test_an_unknown_column_is_an_error_of_the_writer() -> None:
    with pytest.raises(ValueError, match=r"has no column .*gpu"):
        encode_samples(SampleBatch(HEADER, [{"kind": "node", "id": "", "gpu": 1.0}]))


def test_pyarrow_alone_reads_a_sample_as_the_document_shows() -> None:
    (code,) = [
        block.removeprefix("python")
        for block in DOCUMENT.read_text().split("```")
        if block.startswith("python") and "open_stream" in block
    ]
    names: dict[str, Any] = {"value": VALID}
    exec(code, names)
    expected = golden.sample_rows()
    assert names["header"]["node"] == golden.HEADER.node
    assert [row["id"] for row in names["rows"]] == [row["id"] for row in expected]
    for row, known in zip(names["rows"], expected, strict=True):
        for name in NUMBER_COLUMNS:
            assert repr(row[name]) == repr(known.get(name))
    assert names["rows"][0]["points"] == [[n, n, n] for n in expected[0]["points_cpu_cores"]]


# ---- arrays


def test_rows_have_a_listing_statistics_and_points() -> None:
    rows = read_rows(VALID)
    listing = rows.listing
    assert [KINDS[code] for code in listing.kinds] == ["node", "pod", "pod", "tier", "host_app"]
    uids = (golden.POD, golden.STATIC_POD)
    assert (listing.node, listing.pods.tolist(), listing.uids, listing.ids) == (
        0, [1, 2], uids, ("", *uids, "besteffort", "nginx"),
    )  # fmt: skip
    assert rows.qos == ["", "Burstable", "Guaranteed", "", ""]
    assert tuple(rows.statistic_rows) == NUMBER_COLUMNS
    assert rows.numbers.shape == rows.null.shape == (len(NUMBER_COLUMNS), 5)
    assert rows.null_count == rows.null.sum() == np.isnan(rows.numbers).sum() - 1
    assert rows.numbers.flags.aligned
    expected = [[n] * 3 for n in (0.0, 1.0, np.nan, 2.5)]
    assert np.array_equal(rows.points, expected, equal_nan=True)
    assert rows.null_points.tolist() == [[False] * 3, [False] * 3, [True] * 3, [False] * 3]
    assert read_header(VALID) == rows.header == golden.HEADER


def test_statistics_and_columns_that_a_sample_lacks_are_unknown() -> None:
    rows = read_rows(sample(node_row()))
    assert np.isnan(rows.number("cpu_cores_avg")).all()
    shapes = rows.numbers.shape, rows.points.shape, rows.null_points.shape
    assert (*shapes, rows.qos, rows.null_count) == ((0, 1), (0, 3), (0, 3), [""], 0)


def test_unknown_statistics_and_columns_are_ignored() -> None:
    columns = node_row(gpu=[1.0], statistics=lists([[1.0, None, 3.0, None]]))
    rows = read_rows(sample(columns, ["gpu_avg", "coverage", "cpu_cores_avg", "gpu_max"]))
    assert dict(rows.statistic_rows) == {"coverage": 0, "cpu_cores_avg": 1}
    numbers = [rows.number(name).tolist() for name in ("cpu_cores_avg", "coverage")]
    assert numbers == [[3.0], pytest.approx([np.nan], nan_ok=True)]
    assert (rows.null.tolist(), rows.null_count) == ([[True], [False]], 1)
    assert dict(read_samples(rows.data).rows[0]) == {"kind": "node", "id": "", "cpu_cores_avg": 3.0}
    assert read_samples(
        rows.replace(rows.numbers, rows.points, rows.container_usage).data
    ) == read_samples(rows.data)


def test_columns_may_be_in_any_order() -> None:
    columns = rows_of(["pod", "node"], ["a", ""]) | {"qos": ["Burstable", None]}
    data = sample(dict(reversed(columns.items())))
    assert read_samples(data) == SampleBatch(
        HEADER, [{"kind": "pod", "id": "a", "qos": "Burstable"}, {"kind": "node", "id": ""}]
    )


def test_points_are_those_of_the_node_row() -> None:
    triples = [[[1.0] * 3], [[2.0, None, 3.0], [4.0, 5.0, 6.0]], []]
    points = pa.array(triples, pa.list_(pa.list_(pa.float64(), 3)))
    rows = read_rows(sample(rows_of(["pod", "node", "tier"], ["a", "", "t"]) | {"points": points}))
    assert np.array_equal(rows.points, [[2.0, np.nan, 3.0], [4.0, 5.0, 6.0]], equal_nan=True)


def test_null_and_nan_are_told_apart() -> None:
    rows = read_rows(
        sample(node_row(statistics=lists([[np.nan, None]])), ["coverage", "cpu_cores_avg"])
    )
    assert np.isnan(rows.numbers).all()
    assert rows.null.tolist() == [[False], [True]]


def test_replacing_numbers_leaves_everything_else() -> None:
    rows = read_rows(VALID)
    numbers, points = rows.numbers * 2, rows.points * 2
    again = rows.replace(numbers, points, rows.container_usage)
    assert np.array_equal(again.numbers, numbers, equal_nan=True)
    assert np.array_equal(again.points, points, equal_nan=True)
    assert np.array_equal(again.null, np.isnan(numbers))
    assert (again.header, again.listing, again.qos) == (rows.header, rows.listing, rows.qos)


def test_a_sample_is_encoded_from_arrays() -> None:
    data = encode_arrays(
        HEADER, kinds=["pod", "node"], ids=["a", ""],
        statistics={"coverage": pa.array([0.5, None])}, points=pa.array([1.0, 2.0, None]),
    )  # fmt: skip
    assert read_samples(data) == SampleBatch(
        HEADER,
        [
            {"kind": "pod", "id": "a", "coverage": 0.5},
            {"kind": "node", "id": "",
             **{name: [n] for name, n in zip(LIST_COLUMNS, (1.0, 2.0, None), strict=True)}},
        ],
    )  # fmt: skip


# ---- what windows share


def test_samples_share_their_listing_while_it_is_repeated() -> None:
    one, other = (
        read_rows(sample(node_row(statistics=lists([[v]])), ["coverage"])) for v in (0.5, 1.0)
    )
    assert one.listing is other.listing
    assert one.statistic_rows is other.statistic_rows
    for kinds, ids, node, uids in (
        (["node", "pod"], ["", "a"], 0, ("a",)),
        (["node", "pod"], ["", "b"], 0, ("b",)),
        (["pod", "node"], ["", "a"], 1, ("",)),
    ):
        listing = read_rows(sample(rows_of(kinds, ids))).listing
        assert (listing.node, listing.uids) == (node, uids)


def test_a_listing_of_many_bytes_is_read_and_not_shared() -> None:
    ids = ["", *(f"{i:0200d}" for i in range(200))]
    data = sample(rows_of(["node"] + ["pod"] * 200, ids))
    one, other = read_rows(data).listing, read_rows(data).listing
    assert one.uids == other.uids == tuple(ids[1:])
    assert one is not other
