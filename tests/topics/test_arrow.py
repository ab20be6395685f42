"""Reading samples whose bytes may be anything: the outcome of every kind of bad record is defined,
and its cost is bounded by its size."""

import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

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
from pipeline.topics.arrow import MAX_ROWS, SAMPLE_FIELDS, read_batch, read_samples
from pipeline.topics.nodes import check_node_name
from pipeline.topics.registry import MAX_SAMPLE_BYTES
from pipeline.topics.samples import (
    COLUMNS,
    LIST_COLUMNS,
    NUMBER_COLUMNS,
    TEXT_COLUMNS,
    SampleBatch,
    encode_samples,
)
from tests.topics import golden
from tests.topics.hostile import HEADER, bit_flips, node_row, replaced, sample_with, stream, write

VALID = encode_samples(SampleBatch(golden.HEADER, golden.sample_rows()))
REPOSITORY = Path(__file__).parent.parent.parent


@contextmanager
def bounded_memory(limit_bytes: int) -> Iterator[None]:
    """Fails if pyarrow or Python allocate more than `limit_bytes` inside."""
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    tracemalloc.start()
    try:
        yield
        grown = max(pool.bytes_allocated() - before, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert grown < limit_bytes


# ---- what is read


def _rows() -> st.SearchStrategy[list[dict[str, Any]]]:
    number = st.none() | st.floats(allow_nan=False)
    more = st.dictionaries(st.sampled_from(NUMBER_COLUMNS), number, max_size=5)
    points = st.dictionaries(
        st.sampled_from(LIST_COLUMNS), st.none() | st.lists(number, max_size=5), max_size=3
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
def test_round_trip(rows: list[dict[str, Any]]) -> None:
    header, read = read_samples(encode_samples(SampleBatch(golden.HEADER, rows)))
    assert header == golden.HEADER
    assert tuple(read.schema) == SAMPLE_FIELDS
    for row, expected in zip(read.to_pylist(), rows, strict=True):
        assert row == {name: expected.get(name) for name in COLUMNS}


def test_writing_an_unknown_column_is_an_error_of_the_writer() -> None:
    with pytest.raises(ValueError, match=r"has no column .*gpu"):
        encode_samples(SampleBatch(HEADER, [{"kind": "node", "id": "", "gpu": 1.0}]))


def test_unknown_columns_are_dropped_and_missing_ones_are_null() -> None:
    data = stream(node_row(gpu=[1.0], deep=[{"a": [{"b": 1}]}], coverage=[0.5]))
    _, rows = read_samples(data)
    assert rows.schema.names == list(COLUMNS)
    assert rows.column("coverage").to_pylist() == [0.5]
    assert rows.column("memory_bytes_avg").to_pylist() == [None]
    assert rows.column("points_cpu_cores").to_pylist() == [None]


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint64(), pa.int64(), pa.float16(), pa.float32(), pa.float64()], ids=str
)
def test_numbers_of_any_width_are_read_as_floats(kind: pa.DataType) -> None:
    _, rows = read_samples(stream(node_row(coverage=pa.array([1.0]).cast(kind))))
    assert rows.column("coverage").to_pylist() == [1.0]
    assert rows.column("coverage").type == pa.float64()


def test_an_integer_beyond_the_floats_is_rounded() -> None:
    _, rows = read_samples(stream(node_row(memory_bytes_avg=pa.array([2**63 - 1]))))
    assert rows.column("memory_bytes_avg").to_pylist() == [2.0**63]


def test_a_column_of_nulls_has_any_type() -> None:
    columns = {name: pa.nulls(1) for name in COLUMNS if name not in ("kind", "id")}
    _, rows = read_samples(stream(node_row(**columns)))
    assert tuple(rows.schema) == SAMPLE_FIELDS
    assert rows.column("qos").to_pylist() == [None]


def test_bad_numbers_are_left_for_the_join_to_count() -> None:
    bad = [float("nan"), float("inf"), -1.0, 1e300]
    kinds, ids = ["node", "pod", "pod", "pod"], ["", "a", "b", "c"]
    _, rows = read_samples(stream({"kind": kinds, "id": ids, "cpu_cores_avg": bad}))
    assert str(rows.column("cpu_cores_avg").to_pylist()) == str(bad)


def test_a_record_as_large_as_the_topic_allows() -> None:
    pods = MAX_ROWS - 1
    rows = [
        {"kind": "pod", "id": f"{i:0200d}", **dict.fromkeys(NUMBER_COLUMNS[:48], 1.0)}
        for i in range(pods)
    ]
    data = encode_samples(SampleBatch(HEADER, [{"kind": "node", "id": ""}, *rows]))
    assert 0.9 * MAX_SAMPLE_BYTES < len(data) <= MAX_SAMPLE_BYTES
    assert read_samples(data)[1].num_rows == pods + 1


# ---- what is refused


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00", b"ARROW1\x00\x00", b'{"version":1,"node":"n"}', b"\xff\xff\xff\xff",
     b"\x00" * 64,
     b"\xff\xff\xff\xff\x00\x00\x00\x00", b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\xff" * 4096],
)  # fmt: skip
def test_what_is_no_stream(data: bytes) -> None:
    with pytest.raises(RecordError):
        read_samples(data)


def test_an_empty_record_says_so() -> None:
    with pytest.raises(UndecodableRecordError, match="empty"):
        read_samples(b"")


@pytest.mark.parametrize("count", [0, 2, 3, 500])
def test_not_one_batch(count: int) -> None:
    with pytest.raises(InvalidRecordError, match=f"holds {count} batches, not one"):
        read_samples(stream(node_row(), batches=count))


def test_no_rows() -> None:
    with pytest.raises(InvalidRecordError, match="no rows"):
        read_samples(stream({"kind": pa.array([], pa.string()), "id": pa.array([], pa.string())}))


@pytest.mark.parametrize("version", ["2", "0", "999"])
def test_unknown_version(version: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"version {version}"):
        read_samples(stream(node_row(), sample_with(version=version)))


@pytest.mark.parametrize("text", ["", "x", "1.0", "１", "1_0", " 1", "+1", "9" * 17, "1e3"])
@pytest.mark.parametrize("name", ["version", "epoch", "window_end_ms"])
def test_header_that_is_no_number(name: str, text: str) -> None:
    with pytest.raises(InvalidRecordError, match=f"{name}.* is no whole number"):
        read_samples(stream(node_row(), sample_with(**{name: text})))


@pytest.mark.parametrize("name", sorted(set(HEADER.metadata()) - {"simulated"}))
def test_header_that_is_missing(name: str) -> None:
    with pytest.raises(InvalidRecordError, match=name):
        read_samples(stream(node_row(), sample_with(**{name: None})))


def test_samples_of_an_exporter_that_does_not_know_simulated_are_real() -> None:
    assert not read_samples(stream(node_row(), sample_with(simulated=None)))[0].simulated
    assert read_samples(stream(node_row(), sample_with(simulated="true")))[0].simulated


@pytest.mark.parametrize(
    ("start", "end"), [(30_000, 30_000), (30_000, 0), (-30_000, 0), (0, 86_400_001), (0, 2**53 + 1)]
)
def test_window_that_is_none(start: int, end: int) -> None:
    with pytest.raises(InvalidRecordError):
        read_samples(
            stream(node_row(), sample_with(window_start_ms=str(start), window_end_ms=str(end)))
        )


@pytest.mark.parametrize(
    "node",
    ["", "a b", "Node", "node/1", "-a", "a-", ".", "ü", "a\n", "a\x00", "a" * 254, "n" * 300],
)
def test_node_name_that_is_none(node: str) -> None:
    with pytest.raises(InvalidRecordError, match="node name"):
        read_samples(stream(node_row(), sample_with(node=node)))


@pytest.mark.parametrize("node", ["a", "1", "node-1", "ip-10-0-0-1.eu.example", "a" * 253])
def test_node_name(node: str) -> None:
    check_node_name(node)


def test_foreign_schema() -> None:
    with pytest.raises(InvalidRecordError, match="schema is 'other'"):
        read_samples(stream(node_row(), sample_with(schema="other")))
    with pytest.raises(InvalidRecordError, match="schema"):
        read_samples(stream(node_row(), {}))


def test_metadata_that_is_no_text() -> None:
    data = stream(node_row(), sample_with(boot_id="boot-id-here")).replace(
        b"boot-id-here", b"\xff" * 12
    )
    with pytest.raises(UndecodableRecordError, match="UTF-8"):
        read_samples(data)


def test_text_that_is_no_text() -> None:
    data = stream({"kind": ["node"], "id": ["xyzxyz"]}).replace(
        b"xyzxyz", b"\xff\xfe\xff\xfe\xff\xfe"
    )
    with pytest.raises(UndecodableRecordError):
        read_samples(data)


def test_column_name_that_is_no_text() -> None:
    data = stream(node_row(namename=[1.0])).replace(b"namename", b"\xff" * 8)
    with pytest.raises(RecordError):
        read_samples(data)


@pytest.mark.parametrize(
    ("kinds", "ids"),
    [
        (["pod"], ["a"]),
        (["node", "node"], ["", "a"]),
        (["node", "pod", "pod"], ["", "a", "a"]),
        (["node", "pod"], ["", None]),
        (["node", None], ["", "a"]),
        (["node", "container"], ["", "a"]),
        ([None], [None]),
    ],
)
def test_rows_that_contradict_each_other(kinds: list[Any], ids: list[Any]) -> None:
    columns = {"kind": pa.array(kinds, pa.string()), "id": pa.array(ids, pa.string())}
    with pytest.raises(InvalidRecordError):
        read_samples(stream(columns))


def test_two_columns_of_one_name() -> None:
    arrays = [pa.array(["node"]), pa.array([""]), pa.array([1.0]), pa.array([2.0])]
    with pytest.raises(InvalidRecordError, match="two columns of one name"):
        read_samples(write(["kind", "id", "coverage", "coverage"], arrays))


_WRONG = {
    "text for a number": {"coverage": ["1.0"]},
    "bool for a number": {"coverage": [True]},
    "binary for text": {"qos": [b"x"]},
    "number for text": {"qos": [1]},
    "large text": {"qos": pa.array(["x"], pa.large_string())},
    "view": {"qos": pa.array(["x"], pa.string_view())},
    "dictionary": {"qos": pa.array(["x"]).dictionary_encode()},
    "dictionary of numbers": {"coverage": pa.array([1.0]).dictionary_encode()},
    "run-end": {
        "coverage": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([1.0]))
    },
    "decimal": {"coverage": pa.array([1], pa.decimal128(10, 2))},
    "time": {"coverage": pa.array([1], pa.timestamp("s"))},
    "list for a number": {"coverage": [[1.0]]},
    "struct": {"coverage": [{"a": 1.0}]},
    "number for a list": {"points_cpu_cores": [1.0]},
    "list of integers": {"points_cpu_cores": [[1]]},
    "list of lists": {"points_cpu_cores": [[[1.0]]]},
    "list of nulls": {"points_cpu_cores": pa.array([[None]], pa.list_(pa.null()))},
    "large list": {"points_cpu_cores": pa.array([[1.0]], pa.large_list(pa.float64()))},
    "fixed list": {"points_cpu_cores": pa.array([[1.0]], pa.list_(pa.float64(), 1))},
    "map": {"points_cpu_cores": pa.array([[(1.0, 1.0)]], pa.map_(pa.float64(), pa.float64()))},
}  # fmt: skip


@pytest.mark.parametrize("columns", _WRONG.values(), ids=_WRONG.keys())
def test_column_of_another_type(columns: dict[str, Any]) -> None:
    (name,) = columns
    with pytest.raises(InvalidRecordError, match=f"column '{name}' is"):
        read_samples(stream(node_row(**columns)))


# ---- what must not cost more than it weighs


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_buffers_are_refused_unread(codec: str) -> None:
    bomb = stream(node_row(bomb=pa.nulls(1), zeros=pa.array([0.0])), compression=codec)
    with pytest.raises(InvalidRecordError, match="compressed"):
        read_batch(bomb)
    zeros = stream({"zeros": pa.array([0.0] * 2_000_000)}, compression=codec)
    assert len(zeros) < 100_000
    with bounded_memory(2**20), pytest.raises(InvalidRecordError, match="compressed"):
        read_batch(zeros)
    for claim in (2**31, 2**40, 2**62, -2, -1):
        with bounded_memory(2**20), pytest.raises(InvalidRecordError, match="compressed"):
            read_batch(replaced(zeros, 16_000_000, claim))


def test_compressed_dictionaries_are_refused_unread() -> None:
    values = pa.array(["x" * 1_000_000, "y"])
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), values)
    plain, packed = (
        list(pa.ipc.MessageReader.open_stream(stream(node_row(extra=dictionary), compression=c)))
        for c in (None, "zstd")
    )
    assert [message.type for message in plain] == ["schema", "dictionary", "record batch"]
    # Only the dictionary is compressed.
    mixed = (plain[0], packed[1], plain[2])
    data = b"".join(message.serialize().to_pybytes() for message in mixed)
    assert len(data) < 10_000
    with bounded_memory(2**20), pytest.raises(InvalidRecordError, match="compressed"):
        read_samples(data)
    good = b"".join(message.serialize().to_pybytes() for message in plain)
    assert read_samples(good)[1].num_rows == 1


@pytest.mark.parametrize("claim", [MAX_ROWS + 1, 2**31, 2**40, 2**62])
def test_rows_without_bytes_are_refused(claim: int) -> None:
    data = replaced(stream({"kind": pa.nulls(77_777), "id": pa.nulls(77_777)}), 77_777, claim)
    assert len(data) < 2_000
    with bounded_memory(2**20), pytest.raises(InvalidRecordError, match=f"{claim} rows"):
        read_samples(data)


@pytest.mark.parametrize("claim", [-1, -(2**62)])
def test_fewer_than_no_rows(claim: int) -> None:
    with pytest.raises(UndecodableRecordError):
        read_samples(replaced(stream({"kind": pa.nulls(77_777)}), 77_777, claim))


def test_the_most_rows_that_are_read() -> None:
    kinds = pa.array(["node"] + ["pod"] * (MAX_ROWS - 1))
    ids = pa.array([str(i) for i in range(MAX_ROWS)])
    assert read_samples(stream({"kind": kinds, "id": ids}))[1].num_rows == MAX_ROWS


def test_the_longest_id_that_is_read() -> None:
    longest = "ä" * 126 + "x"
    rows = {"kind": ["node", "pod"], "id": ["", longest]}
    assert read_samples(stream(rows))[1].column("id").to_pylist() == ["", longest]
    with pytest.raises(InvalidRecordError, match="longer than 253 bytes"):
        read_samples(stream({"kind": ["node", "pod"], "id": ["", longest + "y"]}))


@pytest.mark.parametrize("unfit", ["\x00", "\x1b", "\n", '"', "\\", "\x7f", "\x9b"])
@pytest.mark.parametrize("kind", ["pod", "host_app"])
def test_an_id_that_json_would_have_to_escape_is_refused(kind: str, unfit: str) -> None:
    with pytest.raises(InvalidRecordError, match="control character, a quote or a backslash"):
        read_samples(stream({"kind": ["node", kind], "id": ["", f"a{unfit}b"]}))


def test_one_long_text_said_often_is_refused() -> None:
    text = pa.array(["x" * 1_000_000])
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 4_000, pa.int32()), text)
    columns = {"kind": ["node"] + ["pod"] * 3_999, "id": [str(i) for i in range(4_000)]}
    data = stream({**columns, "qos": repeated})
    with bounded_memory(2**26), pytest.raises(InvalidRecordError, match="'qos' is dictionary"):
        read_samples(data)


def test_many_dictionaries_are_refused() -> None:
    columns = {f"x{i}": pa.array(["a"]).dictionary_encode() for i in range(65)}
    with pytest.raises(InvalidRecordError, match="dictionaries"):
        read_samples(stream(node_row(**columns)))
    del columns["x64"]
    assert read_samples(stream(node_row(**columns)))[1].num_rows == 1


def test_a_tensor_is_no_record() -> None:
    sink = pa.BufferOutputStream()
    pa.ipc.write_tensor(pa.Tensor.from_numpy(_array()), sink)
    with pytest.raises(RecordError):
        read_batch(sink.getvalue().to_pybytes())
    with pytest.raises(RecordError):
        read_batch(stream(node_row())[:-8] + sink.getvalue().to_pybytes())


def _array() -> Any:
    import numpy as np

    return np.zeros((2, 2))


def test_deeply_nested_types_are_read_or_refused() -> None:
    for depth in (10, 60):
        array = pa.array([1.0])
        for _ in range(depth):
            array = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), array)
        with suppress(RecordError):
            read_samples(stream(node_row(deep=array)))


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=2))
def test_offsets_that_lie_are_refused(offsets: list[int]) -> None:
    good = stream(node_row(points_cpu_cores=pa.array([[1.0, 2.0, 3.0]])))
    lie = b"".join(o.to_bytes(4, "little", signed=True) for o in offsets)
    before = (0).to_bytes(4, "little") + (3).to_bytes(4, "little")
    data = good.replace(before, lie)
    try:
        points = read_samples(data)[1].column("points_cpu_cores").to_pylist()[0]
    except RecordError:
        return
    assert points == [1.0, 2.0, 3.0][offsets[0] : offsets[1]]


# ---- fuzz


@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data: bytes) -> None:
    for prefix in (b"", b"\xff\xff\xff\xff", VALID[:800]):
        with pytest.raises(RecordError):
            read_samples(prefix + data)


def test_every_truncation_is_refused() -> None:
    with_end = VALID.rfind(b"\xff\xff\xff\xff\x00\x00\x00\x00")
    for length in range(with_end):
        with pytest.raises(RecordError):
            read_samples(VALID[:length])


def test_flipped_bits_are_read_or_refused() -> None:
    # A prime stride visits every position of a word in the course of the record.
    for data in bit_flips(VALID, stride=13):
        with suppress(RecordError):
            read_samples(data)


@settings(max_examples=300)
@given(st.data())
def test_changed_and_moved_bytes_are_read_or_refused(data: st.DataObject) -> None:
    changed = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(VALID) - 1))
        run = data.draw(st.binary(min_size=1, max_size=12))
        if data.draw(st.booleans()):
            changed[at : at + len(run)] = run
        else:
            changed[at:at] = run
    with suppress(RecordError):
        read_samples(bytes(changed))


def test_reading_hostile_records_never_needs_much_memory() -> None:
    """In a process that may map 1.5 GiB above what the imports took: a claim of gigabytes that is
    believed even for a moment ends it."""
    code = """
import random, resource
import tests.topics.test_arrow as t
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + 3 * 2**29,) * 2)
chance = random.Random(7)
claims = [n.to_bytes(size, "little") for n, size in ((2**31 - 1, 4), (2**30, 4), (2**32, 8))]
for _ in range(6000):
    data = bytearray(t.VALID)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(0, len(data), 4)
        claim = chance.choice(claims)
        data[at:at + len(claim)] = claim
    try:
        t.read_samples(bytes(data))
    except t.RecordError as error:
        assert "malloc" not in str(error), error
print("done")
"""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=100
    )
    assert run.stdout == "done\n", run.stderr[-2000:]
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2 * 2**20  # KiB


def test_text_columns_are_those_of_the_registry() -> None:
    assert [field.name for field in SAMPLE_FIELDS] == [
        *TEXT_COLUMNS,
        *NUMBER_COLUMNS,
        *LIST_COLUMNS,
    ]
