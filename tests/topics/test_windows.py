"""The log of record: what the join wrote is read, and anything else is refused."""

import struct
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
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
from pipeline.topics.arrow import read_samples
from pipeline.topics.nodes import Strategy
from pipeline.topics.windows import (
    CLASSES,
    FIELDS,
    NodeFacts,
    decode_window,
    departure,
    encode_window,
    sample_offset_of,
    window_rows,
)
from tests.topics import golden
from tests.topics.hostile import bit_flips, replaced, stream

WINDOW = golden.window_record()
VALID = encode_window(WINDOW)
FIRST = (golden.FOLDER / "windows.002.arrow").read_bytes()
"""The same window in the first layout: one Arrow stream, with the rest in its metadata."""
METADATA: dict[str, str] = {
    key.decode(): value.decode()
    for key, value in pa.ipc.read_schema(pa.py_buffer(FIRST)).metadata.items()
}


def changed(**changes: str) -> dict[str, str]:
    return METADATA | changes


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in METADATA.items() if key != name}


def columns(**changes: Any) -> dict[str, Any]:
    batch = WINDOW.rows.batch
    return dict(zip(batch.schema.names, batch.columns, strict=True)) | changes


def with_parts(*changes: tuple[int, bytes]) -> bytes:
    """The window with some of its parts (head, facts, known, sample) replaced."""
    parts = split(VALID)
    for place, part in changes:
        parts[place] = part
    return joined(parts)


def split(data: bytes) -> list[bytes]:
    assert data[:8] == b"STWINDOW"
    sizes, parts, at = struct.unpack_from("<4I", data, 8), [], 24
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    assert at == len(data)
    return parts


def joined(parts: Sequence[bytes]) -> bytes:
    return b"STWINDOW" + struct.pack("<4I", *map(len, parts)) + b"".join(parts)


def known(**values: Any) -> bytes:
    return stream(values, {})


def test_classes_have_the_codes_of_the_processors() -> None:
    assert CLASSES == PROCESSOR_CLASSES


def test_departure_is_read_as_such() -> None:
    window = decode_window(encode_window(departure("node-1", 1_700_000_000_000)))
    assert (window.type, window.header.node, window.rows.num_rows) == ("departure", "node-1", 0)
    assert (window.sample_offset, window.appended_ms) == (-1, 1_700_000_000_000)
    assert window.rows.batch.schema.equals(pa.schema(FIELDS))


def test_the_offset_is_found_without_a_copy_of_the_rows() -> None:
    large = with_parts((3, bytes(4_000_000)))
    tracemalloc.start()
    try:
        assert sample_offset_of(large) == WINDOW.sample_offset
        assert tracemalloc.get_traced_memory()[1] < 400_000
    finally:
        tracemalloc.stop()


def test_offset_of_the_sample_is_found_without_the_rows() -> None:
    assert sample_offset_of(VALID) == WINDOW.sample_offset
    assert sample_offset_of(encode_window(departure("n", 1))) == -1
    assert sample_offset_of(FIRST) == WINDOW.sample_offset
    assert sample_offset_of(FIRST[: len(FIRST) // 2]) == WINDOW.sample_offset


@given(
    st.integers(0, 2**53), st.integers(0, 2**53),
    st.dictionaries(st.text(max_size=8), st.integers(0, 2**40), max_size=4),
    st.floats(0, 1000), st.text(max_size=20),
)  # fmt: skip
def test_round_trip(
    offset: int, appended: int, bad: dict[str, int], margin: float, strategy_hash: str
) -> None:
    facts = NodeFacts(strategy=Strategy(safety_margin_percent=margin), strategy_hash=strategy_hash)
    window = type(WINDOW)(
        type="window", header=golden.HEADER, rows=WINDOW.rows, node=facts,
        sample_offset=offset, appended_ms=appended, bad_values=bad,
    )  # fmt: skip
    data = encode_window(window)
    read = decode_window(data)
    assert (read.header, read.node, read.bad_values) == (window.header, facts, bad)
    assert (read.sample_offset, read.appended_ms) == (offset, appended)
    assert read.rows.batch.equals(window.rows.batch)
    assert encode_window(read) == data


def test_order_of_what_was_counted_does_not_change_the_bytes() -> None:
    one = {"a": 1, "b": 2}
    other = {"b": 2, "a": 1}
    parts = {name: getattr(WINDOW, name) for name in WINDOW.__slots__}
    windows = [type(WINDOW)(**(parts | {"bad_values": bad})) for bad in (one, other)]
    assert encode_window(windows[0]) == encode_window(windows[1])


def test_slices_and_copies_are_the_same_bytes() -> None:
    batch = WINDOW.rows.batch
    twice = pa.Table.from_batches([batch, batch]).combine_chunks().to_batches()[0]
    parts = {name: getattr(WINDOW, name) for name in WINDOW.__slots__}
    rows = window_rows(WINDOW.header, twice.slice(batch.num_rows))
    assert encode_window(type(WINDOW)(**(parts | {"rows": rows}))) == VALID


def test_unknown_columns_and_headers_are_dropped_and_missing_ones_take_defaults() -> None:
    some = {"kind": ["node"], "id": [""], "gpu": [1.0], "request_cpu_millicores": [500]}
    facts = '{"known":true,"zone":"b"}'
    window = decode_window(stream(some, changed(node_facts=facts, more="x")))
    assert window.rows.batch.schema.equals(pa.schema(FIELDS))
    assert window.rows.column("request_cpu_millicores").to_pylist() == [500.0]
    assert window.rows.column("pod_class").to_pylist() == [None]
    assert window.rows.column("deleting").to_pylist() == [None]
    assert window.node == NodeFacts(known=True)


def test_classes_get_their_codes_whatever_dictionary_the_writer_had() -> None:
    names = ["batch", None, "prod", "of tomorrow", "batch"]
    classes = (
        pa.array(names, pa.string()).dictionary_encode().cast(FIELDS_BY_NAME["pod_class"].type)
    )
    assert classes.dictionary.to_pylist()[0] == "batch"
    window = decode_window(stream(columns(pod_class=classes), METADATA))
    column = window.rows.column("pod_class")
    assert column.to_pylist() == ["batch", None, "prod", "unknown", "batch"]
    assert column.indices.to_pylist() == [2, None, 0, 5, 2]


FIELDS_BY_NAME = {field.name: field for field in FIELDS}


@pytest.mark.parametrize("version", ["0", "2", "77"])
def test_unknown_version(version: str) -> None:
    data = stream(columns(), changed(version=version))
    for read in (decode_window, sample_offset_of):
        with pytest.raises(UnsupportedVersionError, match=f"version {version}"):
            read(data)


@pytest.mark.parametrize("name", sorted(set(METADATA) - {"simulated"}))
def test_header_that_is_missing(name: str) -> None:
    with pytest.raises(InvalidRecordError, match=name):
        decode_window(stream(columns(), without(name)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("schema", "springtide.samples"), ("type", "arrival"), ("type", ""),
        ("sample_offset", "x"), ("sample_offset", "9" * 16), ("appended_ms", "1.5"),
        ("node", "A b"), ("window_end_ms", "0"), ("node_facts", ""), ("node_facts", "[]"),
        ("node_facts", '{"known":1}'), ("node_facts", '{"allocatable":{"cpu_millicores":"1"}}'),
        ("node_facts", "[" * 100_000), ("bad_values", '{"a":"b"}'), ("bad_values", "null"),
    ],
)  # fmt: skip
def test_header_that_is_wrong(name: str, text: str) -> None:
    with pytest.raises(InvalidRecordError):
        decode_window(stream(columns(), changed(**{name: text})))


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("pod_class", ["prod"] * 5), ("pod_class", [1.0] * 5), ("deleting", ["no"] * 5),
        ("pod_class", pa.array(["prod"] * 5).dictionary_encode()), ("deleting", [1] * 5),
        ("namespace", [1] * 5), ("age_seconds", [["x"]] * 5),
    ],
)  # fmt: skip
def test_column_of_another_type(name: str, column: Any) -> None:
    with pytest.raises(InvalidRecordError, match=f"column '{name}' is"):
        decode_window(stream(columns(**{name: column}), METADATA))


@pytest.mark.parametrize(
    "rows",
    [
        {"kind": ["pod"], "id": ["a"]},
        {"kind": ["node", "node"], "id": ["", "b"]},
        {"kind": ["node", "pod"], "id": ["", None]},
        {"kind": ["node", "pod", "pod"], "id": ["", "a", "a"]},
        {"kind": ["node", "galaxy"], "id": ["", "a"]},
        {"kind": ["node", None], "id": ["", "a"]},
        {"id": [""]},
    ],
)
def test_a_window_has_one_node_row_and_names_its_entities(rows: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecordError):
        decode_window(stream(rows, METADATA))
    assert decode_window(stream(rows, changed(type="departure"))).type == "departure"


def test_a_class_beyond_the_dictionary_is_refused() -> None:
    indices = pa.array([1, 2, 3, 4, 5], pa.int8())
    classes = pa.DictionaryArray.from_arrays(indices, pa.array(CLASSES))
    data = stream(columns(pod_class=classes), METADATA)
    beyond = data.replace(bytes([1, 2, 3, 4, 5]), bytes([1, 2, 99, 4, 5]))
    below = data.replace(bytes([1, 2, 3, 4, 5]), bytes([1, 2, 255, 4, 5]))
    for hostile in (beyond, below):
        assert hostile != data
        with pytest.raises(UndecodableRecordError):
            decode_window(hostile)


def test_compressed_windows_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="compressed"):
        decode_window(stream(columns(), METADATA, compression="zstd"))


def test_rows_without_bytes_are_refused() -> None:
    data = stream({"kind": pa.nulls(77_777)}, METADATA)
    with pytest.raises(InvalidRecordError, match="rows"):
        decode_window(replaced(data, 77_777, 2**40))


# -- the parts


def test_the_sample_goes_into_the_log_as_it_came() -> None:
    window = decode_window(VALID)
    sample = split(VALID)[3]
    assert window.rows.sample.data == sample
    header, batch = read_samples(sample)
    assert header == WINDOW.header
    assert batch.equals(window.rows.batch.select(batch.schema.names))


def test_what_is_known_is_decoded_once_while_it_does_not_change() -> None:
    one, other = decode_window(VALID), decode_window(bytes(bytearray(VALID)))
    assert one.rows.known is other.rows.known
    assert one.rows.listing is other.rows.listing
    assert one.node is other.node


def test_the_age_of_a_pod_follows_from_its_creation() -> None:
    end = WINDOW.header.window_end_ms / 1000
    facts = known(created_seconds=[None, end - 60.5, end + 1, None, None], age_seconds=[9.0] * 5)
    rows = decode_window(with_parts((2, facts))).rows
    assert rows.column("age_seconds").to_pylist() == [None, 60.5, 0.0, None, None]
    assert rows.batch.column("age_seconds").equals(rows.column("age_seconds"))


def test_unknown_facts_are_dropped_and_missing_ones_are_null() -> None:
    facts = known(gpu=[1] * 5, request_cpu_millicores=[None, 500, None, None, None])
    head = b'{"type":"window","sample_offset":7,"appended_ms":8,"more":[]}'
    window = decode_window(with_parts((0, head), (1, b'{"known":true,"zone":"b"}'), (2, facts)))
    assert window.rows.batch.schema.equals(pa.schema(FIELDS))
    assert window.rows.column("request_cpu_millicores").to_pylist() == [None, 500.0, *[None] * 3]
    assert window.rows.column("pod_class").to_pylist() == [None] * 5
    assert window.rows.known.classes.tolist() == [CLASSES.index("unknown")] * 5
    assert (window.node, window.sample_offset, window.bad_values) == (NodeFacts(known=True), 7, {})


@pytest.mark.parametrize(
    ("place", "part"),
    [
        (0, b""), (0, b"{}"), (0, b"[]"), (0, b"\xff"), (0, b"[" * 100_000),
        (0, b'{"type":"arrival","sample_offset":1,"appended_ms":1}'),
        (0, b'{"type":"window","sample_offset":-2,"appended_ms":1}'),
        (0, b'{"type":"window","sample_offset":1e300,"appended_ms":1}'),
        (0, b'{"type":"window","sample_offset":1,"appended_ms":9007199254740993}'),
        (0, b'{"type":"window","sample_offset":1,"appended_ms":1,"bad_values":{"a":"b"}}'),
        (0, b'{"type":"departure","sample_offset":-1,"appended_ms":1}'),
        (0, b'{"type":"departure","sample_offset":-1,"appended_ms":1,"node":"A b"}'),
        (1, b""), (1, b"null"), (1, b'{"known":1}'), (1, b"[" * 100_000),
        (2, b""), (2, b"junk"), (2, known(phase=["Running"])), (2, known(phase=[1] * 5)),
        (2, known(pod_class=["prod"] * 5)), (2, known(deleting=["no"] * 5)),
        (2, stream({"phase": ["Running"] * 5}, {}, compression="zstd")),
        (2, stream({"phase": ["Running"] * 5}, {}, batches=2)),
        (3, b""), (3, b"junk"), (3, stream({"kind": ["node"], "id": [""]}, METADATA)),
    ],
)  # fmt: skip
def test_a_part_that_is_none_is_refused(place: int, part: bytes) -> None:
    with pytest.raises(RecordError):
        decode_window(with_parts((place, part)))


def test_an_unknown_version_of_the_head_is_refused() -> None:
    head = b'{"version":2,"type":"window","sample_offset":1,"appended_ms":1}'
    for read in (decode_window, sample_offset_of):
        with pytest.raises(UnsupportedVersionError, match="version 2"):
            read(with_parts((0, head)))


def test_bytes_that_are_in_no_part_are_refused() -> None:
    for data in (VALID + b"x", VALID[:8], VALID[:23], b"STWINDOW" + b"\xff" * 16, VALID[:-1]):
        with pytest.raises(UndecodableRecordError):
            decode_window(data)


@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data: bytes) -> None:
    for hostile in (data, b"\xff\xff\xff\xff" + data, FIRST[:1000] + data, VALID[:24] + data):
        with pytest.raises(RecordError):
            decode_window(hostile)
        with pytest.raises(RecordError):
            sample_offset_of(hostile)


@pytest.mark.parametrize("valid", [VALID, FIRST], ids=["parts", "stream"])
def test_every_truncation_is_refused(valid: bytes) -> None:
    with_end = valid.rfind(b"\xff\xff\xff\xff\x00\x00\x00\x00")
    for length in range(with_end):
        with pytest.raises(RecordError):
            decode_window(valid[:length])


@pytest.mark.parametrize("valid", [VALID, FIRST], ids=["parts", "stream"])
def test_flipped_bits_are_read_or_refused(valid: bytes) -> None:
    for data in bit_flips(valid, stride=17):
        with suppress(RecordError):
            decode_window(data)
        with suppress(RecordError):
            sample_offset_of(data)


@settings(max_examples=200)
@given(st.data())
def test_changed_headers_are_read_or_refused(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(METADATA)))
    text = data.draw(st.text(max_size=30) | st.integers().map(str))
    with suppress(RecordError):
        window = decode_window(stream(columns(), changed(**{name: text})))
        assert isinstance(msgspec.json.encode(window.node), bytes)
