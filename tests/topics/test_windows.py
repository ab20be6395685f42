"""The log of record: what the join wrote is decoded, and anything else is refused."""

import tracemalloc
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import (
    InvalidRecordError,
    RecordError,
    UndecodableRecordError,
    UnsupportedVersionError,
)
from pipeline.processors.kubernetes.pod_classes import CLASSES as PROCESSOR_CLASSES
from pipeline.topics.nodes import Strategy
from pipeline.topics.pod_columns import CLASSES, DecodedPods, encode_pod_columns, read_pod_columns
from pipeline.topics.sample_rows import read_rows
from pipeline.topics.windows import (
    NodeFacts,
    decode_window,
    departure,
    encode_window,
    sample_offset_of,
)
from tests.topics import golden
from tests.topics.hostile import bit_flips, header_with, node_row, sample
from tests.topics.window_values import columns

WINDOW = golden.window_record()
VALID = encode_window(WINDOW)
HEAD = {"version": 1, "type": "window", "sample_offset": 1, "appended_ms": 1}


def with_lines(changes: dict[int, bytes]) -> bytes:
    """The window with some of its parts (head, node, pods, sample) replaced."""
    lines = VALID.split(b"\n", 3)
    return b"\n".join(changes.get(number, line) for number, line in enumerate(lines))


def head(**changes: Any) -> bytes:
    return msgspec.json.encode(HEAD | changes)


def pods(**changes: Any) -> bytes:
    return msgspec.json.encode({"pod_class": ["prod", "free"]} | changes)


def test_classes_have_the_codes_of_the_processors() -> None:
    assert CLASSES == PROCESSOR_CLASSES


def test_a_departure_has_the_row_of_the_node_and_no_value() -> None:
    window = decode_window(encode_window(departure("node-1", 1_700_000_000_000)))
    assert (window.type, window.header.node, window.sample_offset, window.appended_ms) == (
        "departure", "node-1", -1, 1_700_000_000_000,
    )  # fmt: skip
    assert (len(window.rows), len(window.rows.pods)) == (1, 0)
    assert window.rows.sample.numbers.size == window.rows.sample.points.size == 0


def test_the_offset_is_decoded_without_a_copy_of_the_rows() -> None:
    large = VALID + bytes(4_000_000)
    tracemalloc.start()
    try:
        assert sample_offset_of(large) == WINDOW.sample_offset
        assert tracemalloc.get_traced_memory()[1] < 400_000
    finally:
        tracemalloc.stop()


def test_the_offset_of_a_departure_is_minus_one() -> None:
    assert sample_offset_of(encode_window(departure("n", 1))) == -1


@given(
    st.integers(0, 2**53), st.integers(0, 2**53),
    st.dictionaries(st.text(max_size=8), st.integers(0, 2**40), max_size=4),
    st.floats(0, 1000), st.text(max_size=20),
)  # fmt: skip
def test_a_window_is_decoded_as_it_was_encoded(
    offset: int, appended: int, bad: dict[str, int], margin: float, strategy_hash: str
) -> None:
    facts = NodeFacts(strategy=Strategy(safety_margin_percent=margin), strategy_hash=strategy_hash)
    window = type(WINDOW)(
        type="window", header=golden.HEADER, rows=WINDOW.rows, node=facts,
        sample_offset=offset, appended_ms=appended, bad_values=bad,
    )  # fmt: skip
    data = encode_window(window)
    read = decode_window(data)
    assert (read.header, read.node, read.bad_values, read.sample_offset, read.appended_ms) == (
        window.header, facts, bad, offset, appended,
    )  # fmt: skip
    assert columns(read) == columns(window)
    assert encode_window(read) == data


def test_the_order_of_bad_values_does_not_change_the_bytes() -> None:
    parts = {name: getattr(WINDOW, name) for name in WINDOW.__struct_fields__}
    one, other = (
        encode_window(type(WINDOW)(**(parts | {"bad_values": bad})))
        for bad in ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    )
    assert one == other


def test_the_sample_is_copied_as_it_was_read() -> None:
    window = decode_window(VALID)
    assert VALID.endswith(b"\n" + window.rows.sample.data)
    assert read_rows(window.rows.sample.data).header == WINDOW.header


def test_facts_that_repeat_are_decoded_once() -> None:
    """Those with records of the fleet differ each time: kept, they would push out the others."""
    parts = {name: getattr(WINDOW, name) for name in WINDOW.__struct_fields__}
    facts = msgspec.structs.replace(WINDOW.node, pool_outcomes=None, workload_histories=())
    for node, is_kept in ((facts, True), (WINDOW.node, False)):
        data = encode_window(type(WINDOW)(**(parts | {"node": node})))
        one, other = decode_window(data), decode_window(bytes(bytearray(data)))
        assert one.rows.pods is other.rows.pods
        assert one.rows.listing is other.rows.listing
        assert one.node == other.node
        assert (one.node is other.node) == is_kept


def test_the_age_of_a_pod_follows_from_its_creation() -> None:
    end = WINDOW.header.window_end_ms / 1000
    for created, ages in (
        ([end - 60.5, end + 1], [60.5, 0.0]),
        ([None, 0.0], [np.nan, end]),
        ([], [np.nan, np.nan]),
    ):
        rows = decode_window(with_lines({2: pods(created_seconds=created)})).rows
        assert np.array_equal(rows.ages, ages, equal_nan=True)


def test_unknown_facts_are_ignored_and_missing_ones_are_unknown() -> None:
    facts = {0: head(more=[]), 1: b'{"known":true,"zone":"b"}'}
    facts[2] = pods(gpu=[1, 2], request_cpu_millicores=[500, None])
    window = decode_window(with_lines(facts))
    decoded = map(window.rows.pods.decode().column, ("request_cpu_millicores", "deleting"))
    assert [*decoded] == [(500.0, None), (None, None)]
    assert (window.node, window.sample_offset, window.bad_values) == (NodeFacts(known=True), 1, {})


INVALID = {
    "head": [
        b"", b"{}", b"[]", b"\xff", b"[" * 100_000, head(type="arrival"), head(sample_offset=-2),
        head(sample_offset=1e300), head(appended_ms=(1 << 53) + 1), head(bad_values={"a": "b"}),
        head(type="departure"), head(type="departure", node="A b"),
    ],
    "node": [
        b"", b"null", b'{"known":1}', b"[" * 100_000, b"[]", b'{"strategy_hash":"\xff"}',
        b'{"allocatable":{"cpu_millicores":"1"}}',
    ],
    "pods": [
        b"", b"[]", b"\xff", b"[" * 100_000, b"{}", b'{"pod_class":[1,2]}', pods(phase=["Running"]),
        pods(phase=[1, 2]), pods(deleting=["no", "no"]), pods(pod_class=["prod"]),
        pods(pod_class=["prod"] * 3), pods(pod_class=[]), pods(request_memory_bytes=["1", "2"]),
    ],
    "sample": [
        b"", b"junk", b"{}\njunk", sample(node_row()),
        sample(node_row(), header=header_with(node="A")),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("number", "part"),
    [(number, part) for number, parts in enumerate(INVALID.values()) for part in parts],
)
def test_an_invalid_part_is_refused(number: int, part: bytes) -> None:
    with pytest.raises(RecordError):
        decode_window(with_lines({number: part}))


@pytest.mark.parametrize("version", [0, 2, 77])
def test_an_unknown_version_is_refused(version: int) -> None:
    for read in (decode_window, sample_offset_of):
        with pytest.raises(UnsupportedVersionError, match=f"version {version}"):
            read(with_lines({0: head(version=version)}))


def test_a_window_without_a_sample_is_refused() -> None:
    for count in (1, 2, 3):
        with pytest.raises(UndecodableRecordError):
            decode_window(b"\n".join(VALID.split(b"\n", 3)[:count]))


def test_bytes_behind_the_sample_are_refused() -> None:
    with pytest.raises(InvalidRecordError):
        decode_window(VALID + b"x")


@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data: bytes) -> None:
    for hostile in (data, b"\xff\xff\xff\xff" + data, VALID[:60] + data):
        for read in (decode_window, sample_offset_of):
            with pytest.raises(RecordError):
                read(hostile)


def test_every_truncation_is_refused() -> None:
    for length in {*range(len(VALID))} - {len(VALID) - 8}:
        with pytest.raises(UndecodableRecordError):
            decode_window(VALID[:length])


def test_flipped_bits_are_read_or_refused() -> None:
    for data in bit_flips(VALID, stride=17):
        for read in (decode_window, sample_offset_of):
            with suppress(RecordError):
                read(data)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2), st.text(max_size=30) | st.integers().map(str))
def test_changed_lines_are_read_or_refused(number: int, text: str) -> None:
    with suppress(RecordError):
        decode_window(with_lines({number: text.encode()}))


# -- facts about pods


def test_pod_columns_give_arrays_in_order_of_the_pods() -> None:
    columns = encode_pod_columns(
        DecodedPods(
            pod_class=("prod", None, "of tomorrow", "batch"),
            phase=("Running", "Gone", None, "Succeeded"),
            koordinator_qos=("LSE", "LS", None, "LSE"), deleting=(True, False, None, False),
            created_seconds=(1.0, None, 2.5, 0.0), request_memory_bytes=(None, 1.0, 2.0, 3.0),
        )
    )  # fmt: skip
    unknown = CLASSES.index("unknown")
    arrays = (
        columns.classes,
        columns.ended,
        columns.listed,
        columns.exclusive,
        columns.terminating,
    )
    assert [array.tolist() for array in arrays] == [
        [0, unknown, unknown, CLASSES.index("batch")],
        [False, True, False, True],
        [True, False, False, False],
        [True, False, False, True],
        [True, False, False, False],
    ]
    assert np.array_equal(columns.created, [1.0, np.nan, 2.5, 0.0], equal_nan=True)
    requests = [[np.nan] * 4, [np.nan, 1.0, 2.0, 3.0]]
    assert np.array_equal(columns.requests.T, requests, equal_nan=True)
    assert columns.decode().column("name") == (None,) * 4


def test_pod_columns_are_decoded_once_unless_they_are_long() -> None:
    few, many = (DecodedPods(pod_class=("prod",), name=("x" * size,)) for size in (1, 100_000))
    assert encode_pod_columns(few) is encode_pod_columns(few)
    assert encode_pod_columns(many) is not encode_pod_columns(many)
    assert encode_pod_columns(many).decode().name == many.name


def test_equal_lines_give_one_object() -> None:
    line = encode_pod_columns(DecodedPods(pod_class=("prod", "mid"))).data
    assert read_pod_columns(bytes(bytearray(line))) is read_pod_columns(line)
