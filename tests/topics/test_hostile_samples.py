"""Samples whose bytes may be anything: each invalid record is refused with a reason, and its cost
is bounded by its size."""

import resource
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
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
from pipeline.topics.arrow import MAX_ROWS
from pipeline.topics.nodes import check_node_name
from pipeline.topics.registry import MAX_SAMPLE_BYTES
from pipeline.topics.sample_rows import read_header, read_rows, read_samples
from pipeline.topics.samples import NUMBER_COLUMNS, SampleBatch, encode_samples
from tests.topics import golden
from tests.topics.hostile import (
    HEADER,
    bit_flips,
    header_with,
    lists,
    node_row,
    replaced,
    rows_of,
    sample,
    stream,
)

VALID = encode_samples(SampleBatch(golden.HEADER, golden.sample_rows()))
STREAM = VALID.index(b"\n") + 1
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


# ---- the header


@pytest.mark.parametrize(
    "data",
    [b"\x00", b"ARROW1\x00\x00", b'{"version":1,"node":"n"}', b"\xff\xff\xff\xff", b"\x00" * 64,
     b"\n", b"\n\n", b"{}", b"\xff" * 4096, b"[" * 100_000, VALID[:STREAM],
     VALID[STREAM:], b"\xff\n" + VALID[STREAM:]],
)  # fmt: skip
def test_bytes_without_a_header_and_a_stream_are_undecodable(data: bytes) -> None:
    with pytest.raises(UndecodableRecordError):
        read_rows(data)


def test_a_header_nested_beyond_measure_is_refused() -> None:
    for line in (b"[" * 100_000, b'{"version":1,"node":' + b"[" * 100_000):
        with pytest.raises(RecordError):
            read_rows(line + VALID[STREAM - 1 :])


def test_an_empty_record_says_so() -> None:
    with pytest.raises(UndecodableRecordError, match="empty"):
        read_rows(b"")


@pytest.mark.parametrize("version", [2, 0, 999])
def test_an_unknown_version_is_refused(version: int) -> None:
    data = sample(node_row(), header=header_with(version=version))
    for read in (read_rows, read_header):
        with pytest.raises(UnsupportedVersionError, match=f"version {version}"):
            read(data)


INVALID_NUMBERS: tuple[Any, ...] = ("", "1", 1.5, -1, 1 << 54, [], True, 1e300)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *(
            ({name: value}, name)
            for name in ("epoch", "sequence", "window_end_ms")
            for value in INVALID_NUMBERS
        ),
        *(
            ({name: value}, name)
            for name in ("machine_id", "boot_id", "source")
            for value in ("m" * 129, "a\n", "\x1b[31m", "ü")
        ),
        *(
            ({name: None}, name)
            for name in sorted({*HEADER.__struct_fields__} - {"simulated", "source"})
        ),
        *(
            ({"window_start_ms": start, "window_end_ms": end}, "window")
            for start, end in (
                (30_000, 30_000), (30_000, 0), (-30_000, 0), (0, 86_400_001), (0, 2**53 + 1),
                (253_402_300_799_000, 253_402_300_799_001),
            )
        ),
        *(
            ({"node": node}, "node name")
            for node in (
                "", "a b", "Node", "node/1", "-a", "a-", ".", "ü", "a\n", "a\x00", "a" * 254,
                "n" * 300,
            )
        ),
    ],
)  # fmt: skip
def test_an_invalid_header_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRecordError, match=says):
        read_rows(sample(node_row(), header=header_with(**changes)))


def test_a_header_may_have_unknown_fields_and_lack_simulated() -> None:
    header = header_with(simulated=None, zone="b")
    assert read_rows(sample(node_row(), header=header)).header == HEADER
    assert read_rows(sample(node_row(), header=header_with(simulated=True))).header.simulated


@pytest.mark.parametrize("node", ["a", "1", "node-1", "ip-10-0-0-1.eu.example", "a" * 253])
def test_a_valid_node_name_is_accepted(node: str) -> None:
    check_node_name(node)


# ---- columns and rows


@pytest.mark.parametrize("count", [0, 2, 3, 500])
def test_a_stream_has_one_batch(count: int) -> None:
    with pytest.raises(RecordError, match="batch"):
        read_rows(sample(node_row(), batches=count))


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in node_row().items() if key != name}


_POINTS = pa.list_(pa.list_(pa.float64(), 3))


@pytest.mark.parametrize(
    ("says", "columns", "metadata"),
    [
        ("0 rows", rows_of([], []), {"statistics": "[]"}),
        *(
            (f"column '{name}' is missing", _without(name), {"statistics": "[]"})
            for name in ("kind", "id", "statistics")
        ),
        *(
            (None, rows_of(kinds, ids), {"statistics": "[]"})
            for kinds, ids in (
                (["pod"], ["a"]),
                (["node", "node"], ["", "a"]),
                (["node", "pod", "pod"], ["", "a", "a"]),
                (["node", "pod"], ["", None]),
                (["node", None], ["", "a"]),
                (["node", "container"], ["", "a"]),
                ([None], [None]),
            )
        ),
        *(
            (
                "control character, a quote or a backslash",
                rows_of(["node", kind], ["", f"a{character}b"]),
                {"statistics": "[]"},
            )
            for kind in ("pod", "host_app")
            for character in ("\x00", "\x1b", "\n", '"', "\\", "\x7f", "\x9b")
        ),
        *(
            ("are null", node_row(**{"statistics": lists([[1.0]])} | column),
             {"statistics": '["coverage"]'})
            for column in (
                {"statistics": pa.array([None], pa.list_(pa.float64(), 1))},
                {"points": pa.array([None], _POINTS)},
                {"points": pa.array([[None]], _POINTS)},
            )
        ),
        *(
            (None, node_row(statistics=lists([[1.0, 1.0]])), metadata)
            for metadata in (
                {}, {"statistics": ""}, {"statistics": "{}"}, {"statistics": "[1]"},
                {"statistics": b"\xff"}, {"statistics": "[" * 100_000},
                {"statistics": '["coverage","coverage"]'}, {"statistics": b'["\xff"]'},
            )
        ),
    ],
)  # fmt: skip
def test_invalid_rows_columns_and_names_of_statistics_are_refused(
    says: str | None, columns: dict[str, Any], metadata: dict[Any, Any]
) -> None:
    with pytest.raises(InvalidRecordError, match=says):
        read_rows(sample(columns, metadata=metadata))


@pytest.mark.parametrize("name", ["kind", "id", "qos", "statistics"])
def test_two_columns_of_one_name_are_refused(name: str) -> None:
    columns = node_row(qos=[""])
    arrays = [v if isinstance(v, pa.Array) else pa.array(v) for v in columns.values()]
    twice = [*arrays, arrays[list(columns).index(name)]]
    data = header_with() + b"\n" + stream([*columns, name], twice, {"statistics": "[]"})
    with pytest.raises(InvalidRecordError, match=f"two columns have the name '{name}'"):
        read_rows(data)


_WRONG: dict[str, tuple[str, Any]] = {
    "binary": ("qos", [b"x"]),
    "number": ("qos", [1]),
    "null": ("qos", pa.nulls(1)),
    "large text": ("id", pa.array(["x"], pa.large_string())),
    "view": ("id", pa.array(["x"], pa.string_view())),
    "dictionary": ("id", pa.array(["x"]).dictionary_encode()),
    "run-end": (
        "id", pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["x"])),
    ),
    "no list": ("statistics", [1.0]),
    "list of any size": ("statistics", [[1.0]]),
    "wider list": ("statistics", lists([[1.0, 2.0]])),
    "list of integers": ("statistics", pa.array([[1]], pa.list_(pa.int64(), 1))),
    "list of floats": ("statistics", pa.array([[1]], pa.list_(pa.float32(), 1))),
    "list of texts": ("statistics", pa.array([["x"]], pa.list_(pa.string(), 1))),
    "list of dictionaries": (
        "statistics",
        pa.FixedSizeListArray.from_arrays(pa.array([1.0]).dictionary_encode(), 1),
    ),
    "struct": ("statistics", [{"a": 1.0}]),
    "points of pairs": ("points", pa.array([[[1.0, 2.0]]], pa.list_(pa.list_(pa.float64(), 2)))),
    "points of lists": ("points", [[[1.0, 2.0, 3.0]]]),
    "points of numbers": ("points", [[1.0]]),
    "large list of points": (
        "points", pa.array([[[1.0] * 3]], pa.large_list(pa.list_(pa.float64(), 3))),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "column"), _WRONG.values(), ids=_WRONG.keys())
def test_a_column_of_another_type_is_refused(name: str, column: Any) -> None:
    columns = node_row(statistics=lists([[1.0]])) | {name: column}
    with pytest.raises(InvalidRecordError, match=f"column '{name}' is"):
        read_rows(sample(columns, ["coverage"]))


def test_text_that_is_not_utf_8_is_refused() -> None:
    data = sample(rows_of(["node"], ["xyzxyz"]))
    with pytest.raises(UndecodableRecordError):
        read_rows(data.replace(b"xyzxyz", b"\xff\xfe\xff\xfe\xff\xfe"))


def test_an_unknown_column_may_have_any_name_and_type() -> None:
    depth = pa.array([1.0])
    for _ in range(10):
        depth = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), depth)
    data = sample(node_row(namename=[1.0], deep=depth, structs=[{"a": [{"b": 1}]}]))
    assert len(read_rows(data)) == 1
    assert len(read_rows(data.replace(b"namename", b"\xff" * 8))) == 1


def test_the_longest_id_is_253_bytes() -> None:
    longest = "ä" * 126 + "x"
    assert read_rows(sample(rows_of(["node", "pod"], ["", longest]))).listing.uids == (longest,)
    with pytest.raises(InvalidRecordError, match="longer than 253 bytes"):
        read_rows(sample(rows_of(["node", "pod"], ["", longest + "y"])))


# ---- cost


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_buffers_are_refused_undecompressed(codec: str) -> None:
    with pytest.raises(InvalidRecordError, match="compressed"):
        read_rows(sample(node_row(nulls=pa.nulls(1), zeros=[0.0]), compression=codec))
    zeros = sample(rows_of(["node"], ["0" * 16_000_000]), compression=codec)
    assert len(zeros) < 100_000
    with bounded_memory(2**20), pytest.raises(InvalidRecordError, match="compressed"):
        read_rows(zeros)
    for claim in (2**31, 2**40, 2**62, -2, -1):
        with bounded_memory(2**20), pytest.raises(InvalidRecordError, match="compressed"):
            read_rows(replaced(zeros, 16_000_000, claim))


def test_dictionaries_are_refused_undecoded() -> None:
    text = pa.array(["x" * 1_000_000])
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 4_000, pa.int32()), text)
    columns = rows_of(["node"] + ["pod"] * 3_999, [str(i) for i in range(4_000)])
    for codec in (None, "zstd"):
        data = sample(columns | {"extra": repeated}, compression=codec)
        with bounded_memory(2**22), pytest.raises(InvalidRecordError, match="has a dictionary"):
            read_rows(data)


@pytest.mark.parametrize("claim", [-1, -(2**62), MAX_ROWS + 1, 2**31, 2**40, 2**62])
def test_a_wrong_number_of_rows_is_refused(claim: int) -> None:
    count = 77
    columns = rows_of(["node"] + ["pod"] * (count - 1), [str(i) for i in range(count)])
    with bounded_memory(2**20), pytest.raises(RecordError):
        read_rows(replaced(sample(columns), count, claim))


def test_the_most_rows_are_4096() -> None:
    kinds, ids = ["node"] + ["pod"] * MAX_ROWS, [str(i) for i in range(MAX_ROWS + 1)]
    assert len(read_rows(sample(rows_of(kinds[:-1], ids[:-1])))) == MAX_ROWS
    with pytest.raises(InvalidRecordError, match=f"{MAX_ROWS + 1} rows"):
        read_rows(sample(rows_of(kinds, ids)))


def test_a_record_as_large_as_the_topic_allows_is_read() -> None:
    rows = [
        {"kind": "pod", "id": f"{i:0240d}", **dict.fromkeys(NUMBER_COLUMNS, 1.0)}
        for i in range(MAX_SAMPLE_BYTES // (8 * len(NUMBER_COLUMNS) + 265))
    ]
    data = encode_samples(SampleBatch(HEADER, [{"kind": "node", "id": ""}, *rows]))
    assert 0.9 * MAX_SAMPLE_BYTES < len(data) <= MAX_SAMPLE_BYTES
    assert len(read_samples(data).rows) == len(rows) + 1


def test_a_tensor_is_refused() -> None:
    sink = pa.BufferOutputStream()
    pa.ipc.write_tensor(pa.Tensor.from_numpy(np.zeros((2, 2))), sink)
    tensor = sink.getvalue().to_pybytes()
    schema = VALID[: STREAM + 8 + int.from_bytes(VALID[STREAM + 4 : STREAM + 8], "little")]
    for data in (VALID[:STREAM] + tensor, VALID[:-8] + tensor, schema + tensor):
        with pytest.raises(RecordError):
            read_rows(data)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=2))
def test_points_at_wrong_offsets_are_refused(offsets: list[int]) -> None:
    values = [[float(i)] * 3 for i in range(13)]
    data = sample(node_row(points=pa.array([values], pa.list_(pa.list_(pa.float64(), 3)))))
    position = data.rindex(struct.pack("<2i", 0, 13))
    try:
        changed = data[:position] + struct.pack("<2i", *offsets) + data[position + 8 :]
        points = read_rows(changed).points
    except RecordError:
        return
    assert points.tolist() == values[offsets[0] : offsets[1]]


# ---- fuzz


def read_all(data: bytes) -> None:
    """Read everything that workers read of a sample, if it is one."""
    with suppress(RecordError):
        read_samples(data)
    with suppress(RecordError):
        read_header(data)


@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data: bytes) -> None:
    for prefix in (b"", VALID[:STREAM], VALID[: STREAM + 800]):
        with pytest.raises(RecordError):
            read_rows(prefix + data)


def test_every_truncation_is_refused() -> None:
    # A stream may lack its end marker of eight bytes.
    for length in {*range(len(VALID))} - {len(VALID) - 8}:
        with pytest.raises(UndecodableRecordError):
            read_rows(VALID[:length])


@pytest.mark.parametrize("more", [b"x", b"\0" * 8, VALID[-8:], VALID[STREAM:], VALID])
def test_bytes_behind_the_stream_are_refused(more: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="more than one record batch"):
        read_rows(VALID + more)


def test_flipped_bits_are_read_or_refused_and_do_not_change_how_others_are_read() -> None:
    """Schemas and listings are cached."""
    before = repr(read_samples(VALID))
    # A prime stride visits every position of a word in the course of the record.
    for data in bit_flips(VALID, stride=13):
        read_all(data)
    assert repr(read_samples(VALID)) == before


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_changed_and_moved_bytes_are_read_or_refused(data: st.DataObject) -> None:
    changed = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, len(VALID) - 1))
        run = data.draw(st.binary(min_size=1, max_size=12))
        if data.draw(st.booleans()):
            changed[position : position + len(run)] = run
        else:
            changed[position:position] = run
    read_all(bytes(changed))


@settings(max_examples=500, deadline=None)
@given(st.lists(st.integers(0, 8 * len(VALID) - 1), min_size=1, max_size=8))
def test_several_flipped_bits_are_read_or_refused(positions: list[int]) -> None:
    changed = bytearray(VALID)
    for position in positions:
        changed[position >> 3] ^= 1 << (position & 7)
    read_all(bytes(changed))


def test_reading_hostile_records_never_needs_much_memory() -> None:
    """In a process that may map 1.5 GiB above what the imports took, a claim of gigabytes that is
    believed even for a moment ends the process."""
    code = """
import random, resource
import tests.topics.test_hostile_samples as t
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + 3 * 2**29,) * 2)
chance = random.Random(7)
claims = [n.to_bytes(size, "little") for n, size in ((2**31 - 1, 4), (2**30, 4), (2**32, 8))]
for _ in range(6000):
    data = bytearray(t.VALID)
    for _ in range(chance.randint(1, 3)):
        at = t.STREAM + chance.randrange(0, len(data) - t.STREAM, 4)
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
