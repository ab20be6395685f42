"""A sample that is like others before is read from its bytes: the same is in it, the same is
refused, and no sample changes how another is read."""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import InvalidRecordError, RecordError
from pipeline.topics.arrow import MAX_ROWS, SAMPLE_SCHEMA, read_batch, read_samples
from pipeline.topics.flatbuffer import header_table, metadata_entries, table_at
from pipeline.topics.sample_heads import columns_of, keep_head, known_head, own_columns
from pipeline.topics.sample_layouts import keep_layout
from pipeline.topics.sample_rows import SampleRows, read_rows
from pipeline.topics.samples import (
    LIST_COLUMNS,
    NUMBER_COLUMNS,
    SampleBatch,
    SampleHeader,
    encode_samples,
)
from tests.topics import golden
from tests.topics.alike import assert_same, forget, is_alike, stores
from tests.topics.hostile import HEADER, bit_flips, node_row, sample_with, stream

LAWS = settings(max_examples=150, deadline=None)
VALID = encode_samples(SampleBatch(golden.HEADER, golden.sample_rows()))
NEXT = replace(
    golden.HEADER,
    sequence=golden.HEADER.sequence + 1,
    window_start_ms=golden.HEADER.window_end_ms,
    window_end_ms=golden.HEADER.window_end_ms + 30_000,
)
Columns = Mapping[str, pa.Array]


@pytest.fixture(autouse=True)
def _nothing_was_read() -> Iterator[None]:
    forget()
    yield
    forget()


def read_as_others(data: bytes) -> SampleRows | RecordError:
    """What is in `data`, or why it is refused: read beside whatever was read before, and found the
    same as by `read_samples`, which remembers nothing."""
    try:
        header, batch = read_samples(data)
    except RecordError as error:
        with pytest.raises(type(error)):
            read_rows(data)
        return error
    rows = read_rows(data)
    assert_same(rows, header, batch)
    return rows


# ---- samples at random


SPECIAL = (np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, -1.0, 5e-324, 1e300)
HEADERS = st.builds(
    SampleHeader,
    node=st.sampled_from(["n", "node-1", "node-22", "a.b"]),
    machine_id=st.sampled_from(["", "m", "1", "node-1", "ü" * 9]),
    boot_id=st.sampled_from(["", "b", "boot"]),
    epoch=st.integers(0, 10**13),
    sequence=st.integers(0, 10**6),
    window_start_ms=st.just(1_700_000_000_000) | st.integers(0, 10**12),
    window_end_ms=st.just(0),
    simulated=st.booleans(),
).map(lambda header: replace(header, window_end_ms=header.window_start_ms + 30_000))


class Shape:
    """Which columns samples have and how many rows; what they are filled with follows a seed."""

    def __init__(self, names: list[str], rows: int, points: int, sparse: float) -> None:
        self.names, self.rows, self.points, self.sparse = names, rows, points, sparse

    def columns(self, seed: int, pods: int) -> dict[str, pa.Array]:
        """Columns with the numbers of `seed` and the pods of `pods`."""
        random, texts = np.random.default_rng(seed), np.random.default_rng(pods)
        ids = [f"{texts.integers(10**6):06d}-{row}" for row in range(self.rows - 1)]
        kinds = ["node", *texts.choice(["pod", "pod", "tier", "host_app"], self.rows - 1)]
        found = {"kind": pa.array(kinds, pa.string()), "id": pa.array(["", *ids])}
        for name in self.names:
            if name == "qos":
                values = texts.choice(["Burstable", "BestEffort", ""], self.rows).tolist()
                found[name] = pa.array([v or None for v in values], pa.string())
            elif name in LIST_COLUMNS:
                found[name] = self._lists(random)
            else:
                found[name] = self._numbers(random, self.rows)
        return found

    def _numbers(self, random: np.random.Generator, count: int) -> pa.Array:
        values = random.gamma(2.0, 3.0, count)
        special = random.random(count) < 0.05
        values[special] = random.choice(SPECIAL, int(special.sum()))
        nulls = random.random(count) < self.sparse
        return pa.array(values, mask=nulls if self.sparse else None)

    def _lists(self, random: np.random.Generator) -> pa.Array:
        lists: list[list[float | None] | None] = [None] * self.rows
        lists[0] = self._numbers(random, self.points).to_pylist()
        if self.rows > 2 and self.sparse:
            lists[-1] = [1.5]
        return pa.array(lists, pa.list_(pa.float64()))


SHAPES = st.builds(
    Shape,
    st.lists(st.sampled_from(["qos", *NUMBER_COLUMNS, *LIST_COLUMNS]), max_size=30, unique=True),
    st.integers(1, 200),
    st.integers(0, 40),
    st.sampled_from([0.0, 0.0, 0.02, 0.5, 1.0]),
)


def by_arrow(header: SampleHeader, columns: Columns) -> bytes:
    return stream(columns, header.metadata())


def by_slices(header: SampleHeader, columns: Columns) -> bytes:
    """As a writer does that sends a part of larger arrays."""
    parts = {
        name: pa.concat_arrays([column, column, column]).slice(len(column), len(column))
        for name, column in columns.items()
    }
    return stream(parts, header.metadata())


def by_exporter(header: SampleHeader, columns: Columns) -> bytes:
    values = {name: column.to_pylist() for name, column in columns.items()}
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    return encode_samples(SampleBatch(header, rows))


WRITERS = st.sampled_from([by_arrow, by_slices, by_exporter])
Writer = Callable[[SampleHeader, Columns], bytes]


@given(SHAPES, WRITERS, HEADERS, HEADERS, st.booleans(), st.booleans())
@LAWS
def test_what_is_in_a_sample_does_not_depend_on_what_was_read_before(
    shape: Shape, write: Writer, one: SampleHeader, other: SampleHeader, churn: bool, pause: bool
) -> None:
    if pause:
        forget()
    for seed, header in enumerate((one, other, one, other)):
        data = write(header, shape.columns(seed, pods=seed // 2 if churn else 0))
        assert not isinstance(read_as_others(data), RecordError)


@given(SHAPES, WRITERS, st.integers(0, 10**6))
@LAWS
def test_the_next_sample_of_a_node_is_not_decoded(shape: Shape, write: Writer, seed: int) -> None:
    if shape.sparse not in (0.0, 1.0):
        shape.sparse = 0.0
    first = read_rows(write(golden.HEADER, shape.columns(seed, pods=1)))
    second = read_as_others(write(NEXT, shape.columns(seed + 1, pods=1)))
    assert isinstance(second, SampleRows)
    assert is_alike(second) or not shape.rows
    assert second.listing is first.listing


def test_a_sample_of_an_exporter_is_read_from_its_bytes() -> None:
    assert not is_alike(read_rows(VALID))
    again = read_rows(encode_samples(SampleBatch(NEXT, golden.sample_rows())))
    assert is_alike(again)
    assert again.header == NEXT


def test_other_pods_are_seen() -> None:
    def pods(*ids: str, qos: str = "Burstable") -> bytes:
        kinds = ["node", *("pod" for _ in ids)]
        return stream({"kind": kinds, "id": ["", *ids], "qos": [None, *(qos for _ in ids)]})

    first = read_as_others(pods("a", "b"))
    other = read_as_others(pods("a", "c"))
    assert isinstance(first, SampleRows)
    assert isinstance(other, SampleRows)
    assert (first.listing.uids, other.listing.uids) == (("a", "b"), ("a", "c"))
    again = read_as_others(pods("a", "b", qos="Guarantee"))
    assert isinstance(again, SampleRows)
    assert again.listing is first.listing
    assert again.column("qos").to_pylist() == [None, "Guarantee", "Guarantee"]
    assert is_alike(read_rows(pods("a", "b", qos="Guarantee")))


def test_nulls_may_lie_in_other_rows() -> None:
    def sample(*values: float | None) -> bytes:
        kinds, ids = ["node", "pod", "pod"], ["", "a", "b"]
        return stream({"kind": kinds, "id": ids, "coverage": values, "cpu_cores_avg": [1.0] * 3})

    read_rows(sample(1.0, None, 0.5))
    moved = read_as_others(sample(None, 1.0, 0.5))
    assert isinstance(moved, SampleRows)
    assert is_alike(moved)
    more = read_as_others(sample(None, None, 0.5))
    assert isinstance(more, SampleRows)
    assert not is_alike(more)


def test_bits_behind_the_last_row_are_nobodys() -> None:
    def sample(behind: int) -> bytes:
        bits = pa.py_buffer(bytes([0b101 | behind]))
        number = pa.Array.from_buffers(
            pa.float64(), 3, [bits, pa.array([1.0, 2.0, 3.0]).buffers()[1]]
        )
        text = pa.Array.from_buffers(
            pa.string(), 3, [bits, *pa.array(["x", "y", "z"]).buffers()[1:]]
        )
        rows = {"kind": ["node", "pod", "pod"], "id": ["", "a", "b"]}
        return stream({**rows, "qos": text, "coverage": number})

    samples = [sample(behind) for behind in (0, 0b1000, 0b10111000, 0b11111000)]
    read_rows(samples[0])
    read_rows(samples[0])
    counts = [len(store) for store in stores()]
    for data in samples[1:]:
        rows = read_as_others(data)
        assert isinstance(rows, SampleRows)
        assert is_alike(rows)
    assert [len(store) for store in stores()] == counts


def test_points_are_taken_from_the_nodes_row() -> None:
    def sample(*points: list[float | None] | None) -> bytes:
        rows = {"kind": ["pod", "node", "tier"], "id": ["a", "", "t"]}
        return stream({**rows, "points_cpu_cores": pa.array(points, pa.list_(pa.float64()))})

    for points in ([[1.0], [2.0, None], [3.0]], [[1.0, 2.0], None, []], [None, [], [1.0, 4.0]],
                   [None, None, None], [[], [], []], [[], [1.0, 5.0, 2.0, 3.0], []]):  # fmt: skip
        read_as_others(sample(*points))
        again = read_as_others(sample(*points))
        assert isinstance(again, SampleRows)
        assert is_alike(again)
        assert repr(again.points("points_cpu_cores").tolist()) == repr(
            [np.nan if point is None else point for point in points[1] or []]
        )


@pytest.mark.parametrize("place", range(4))
def test_nulls_that_the_writer_did_not_count(place: int) -> None:
    def sample(*values: float | None) -> bytes:
        texts = [None if value is None else "x" for value in values]
        rows = {"kind": ["node", "pod", "pod"], "id": ["", "a", "b"], "qos": texts}
        data = stream({**rows, "coverage": values})
        begins = [at for at in range(len(data)) if data.startswith(struct.pack("<q", 3), at)]
        nodes = [at for at in begins if data[at + 8 : at + 16] in map(_eight, range(4))]
        at = nodes[place] + 8
        return data[:at] + _eight(-1) + data[at + 8 :]

    for values in ((None, None, 0.5), (0.5, None, None), (None, 0.5, 0.5), (None, None, 0.5)):
        for _ in range(2):
            read_as_others(sample(*values))


def test_what_was_not_counted_proves_no_count() -> None:
    def sample(valid: int, said: int | None = None) -> bytes:
        texts = pa.array(["x", "y", "z"]).buffers()[1:]
        qos = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(bytes([valid])), *texts])
        data = stream({"kind": ["node", "pod", "pod"], "id": ["", "a", "b"], "qos": qos})
        if said is None:
            return data
        counted = _eight(3) + _eight(qos.null_count)
        assert data.count(counted) == 1
        return data.replace(counted, _eight(3) + _eight(said))

    for data in (sample(0b101, -1), sample(0b001, -1), sample(0b001, -1), sample(0b101)):
        assert not isinstance(read_as_others(data), RecordError)
    assert isinstance(read_as_others(sample(0b001, 1)), RecordError)


def test_a_layout_is_taken_only_from_the_bytes_that_were_read() -> None:
    batch = read_batch(VALID)
    columns = own_columns(batch.schema)
    assert columns is not None
    assert keep_layout(columns, VALID[:-1] + b"\1", batch) is None
    assert keep_layout(columns, bytes(bytearray(VALID)), batch) is None
    assert keep_layout(columns, VALID, batch) is not None


def _eight(number: int) -> bytes:
    return struct.pack("<q", number)


def test_a_long_sample_is_not_kept() -> None:
    kinds = ["node", *("pod" for _ in range(MAX_ROWS - 1))]
    data = stream({"kind": kinds, "id": [str(i) for i in range(MAX_ROWS)]})
    for _ in range(2):
        rows = read_as_others(data)
        assert isinstance(rows, SampleRows)
        assert not is_alike(rows)
    assert not any(map(len, stores()))


def test_a_sample_in_other_columns_is_decoded_each_time() -> None:
    data = stream(node_row(coverage=[0.5], gpu=[1.0]))
    for _ in range(2):
        rows = read_as_others(data)
        assert isinstance(rows, SampleRows)
        assert not is_alike(rows)


# ---- hostile


def _examples() -> list[bytes]:
    rows = {"kind": ["node", "pod", "pod"], "id": ["", "a", "b"], "qos": [None, "x", None]}
    points = [[1.0, None, 2.0], None, [3.0]]
    columns = {**rows, "coverage": [1.0, None, 0.5], "points_cpu_cores": points}
    return [VALID, stream(columns), stream({**columns, "coverage": [0.1, 0.2, 0.3]})]


EXAMPLES = _examples()


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_each_flipped_bit_is_read_or_refused_alike(number: int) -> None:
    for data in EXAMPLES:
        read_rows(data)
    for data in bit_flips(EXAMPLES[number], stride=29):
        read_as_others(data)
    for data in EXAMPLES:
        assert not isinstance(read_as_others(data), RecordError)
        assert is_alike(read_rows(data))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_changed_bytes_are_read_or_refused_alike(data: st.DataObject) -> None:
    for example in EXAMPLES:
        read_rows(example)
    changed = bytearray(data.draw(st.sampled_from(EXAMPLES)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        run = data.draw(st.binary(min_size=1, max_size=8))
        match data.draw(st.sampled_from(["write", "insert", "cut", "end", "more"])):
            case "write":
                changed[at : at + len(run)] = run
            case "insert":
                changed[at:at] = run
            case "cut":
                del changed[at : at + len(run)]
            case "end":
                del changed[len(changed) - len(run) :]
            case _:
                changed += run
    read_as_others(bytes(changed))
    assert not isinstance(read_as_others(EXAMPLES[0]), RecordError)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("node", "node-1", "node_1"), ("node", "node-1", "Node-1"), ("epoch", "1", "x"),
        ("epoch", "1", "-"), ("sequence", "0", " "), ("window_end_ms", "30000", "00000"),
        ("window_start_ms", "0", "9"), ("window_end_ms", "30000", "-3000"),
    ],
)  # fmt: skip
def test_a_header_that_cannot_be_is_refused_where_all_else_is_known(
    name: str, old: str, new: str
) -> None:
    assert HEADER.metadata()[name] == old
    read_rows(stream(node_row()))
    read_as_others(stream(node_row(), sample_with(**{name: new})))


def test_a_header_that_is_no_text_is_refused_where_all_else_is_known() -> None:
    good = stream(node_row(), sample_with(machine_id="12345678"))
    read_rows(good)
    with pytest.raises(RecordError):
        read_rows(good.replace(b"12345678", b"1234567\xff"))


def _changed_metadata(data: bytes, of: str, target: Callable[[bytes], int]) -> bytes:
    """`data` in which the value of a metadata entry is the text at `target`, in the message."""
    changed = bytearray(data)
    message = memoryview(data)[8 : 8 + int.from_bytes(data[4:8], "little")]
    schema = header_table(message) or 0
    vector = table_at(message, schema, 2) or 0
    place = target(bytes(message))
    for item, entry in enumerate(metadata_entries(message)):
        if entry.key == of.encode():
            slot = vector + 4 + 4 * item
            table = slot + struct.unpack_from("<I", message, slot)[0]
            vtable = table - struct.unpack_from("<i", message, table)[0]
            field = table + struct.unpack_from("<H", message, vtable + 6)[0]
            struct.pack_into("<I", changed, 8 + field, (place - field) % 2**32)
    return bytes(changed)


def _text_at(text: bytes) -> Callable[[bytes], int]:
    return lambda message: message.rindex(struct.pack("<I", len(text)) + text + b"\0")


def test_a_value_that_is_also_the_name_of_a_column_makes_no_template() -> None:
    """Otherwise whoever sends this could have any name of a column taken for this one."""
    data = encode_samples(SampleBatch(HEADER, [{"kind": "node", "id": "", "coverage": 0.5}]))
    crafted = _changed_metadata(data, "machine_id", _text_at(b"coverage"))
    found = read_as_others(crafted)
    assert isinstance(found, SampleRows)
    assert found.header.machine_id == "coverage"
    assert not is_alike(read_rows(crafted))
    renamed = read_as_others(crafted.replace(b"coverage", b"coveragE"))
    assert isinstance(renamed, SampleRows)
    assert not renamed.has("coverage")


def test_two_values_in_one_place_make_no_template() -> None:
    header = replace(HEADER, boot_id="the-boot", machine_id="the-same")
    data = encode_samples(SampleBatch(header, [{"kind": "node", "id": ""}]))
    crafted = _changed_metadata(data, "boot_id", _text_at(b"the-same"))
    found = read_as_others(crafted)
    assert isinstance(found, SampleRows)
    assert found.header.boot_id == found.header.machine_id == "the-same"
    assert not is_alike(read_rows(crafted))
    read_as_others(crafted.replace(b"the-same", b"the-samE"))


def test_a_value_may_lie_anywhere_and_no_sample_is_read_wrong() -> None:
    """Over other texts, lengths, positions, tables: whatever happens to read as a text."""
    data = encode_samples(SampleBatch(HEADER, [{"kind": "node", "id": "", "coverage": 0.5}]))
    size, random, kept = 8 + int.from_bytes(data[4:8], "little"), np.random.default_rng(3), 0
    for place in range(0, size - 8, 2):
        crafted = _changed_metadata(data, "machine_id", lambda _, at=place: at)  # type: ignore[misc]
        if isinstance(read_as_others(crafted), RecordError):
            continue
        read_rows(crafted)
        kept += known_head(crafted[:size]) is not None
        entries = metadata_entries(memoryview(crafted)[8:size])
        start, end = next((e.start, e.end) for e in entries if e.key == b"machine_id")
        for _ in range(20):
            changed = bytearray(crafted)
            changed[8 + start : 8 + end] = random.integers(0, 128, end - start, np.uint8).tobytes()
            read_as_others(bytes(changed))
    assert kept


def test_a_null_too_many_is_refused_though_each_part_was_proven() -> None:
    """Validity and number of nulls are each good with another sample's."""

    def sample(*qos: str | None) -> bytes:
        return stream({"kind": ["node", "pod", "pod"], "id": ["", "a", "b"], "qos": qos})

    one, two = sample(None, "xxxx", "x"), sample(None, None, "xxxxx")
    for data in (one, two):
        assert not isinstance(read_as_others(data), RecordError)
    assert len(one) == len(two)
    mixed = 0
    for place in range(0, len(one), 8):
        error = read_as_others(one[:place] + two[place:])
        mixed += isinstance(error, RecordError)
    assert mixed


def test_what_is_like_a_sample_but_for_its_frame_is_refused() -> None:
    read_rows(VALID)
    at = 8 + int.from_bytes(VALID[4:8], "little")
    for place in (*range(8), *range(at, at + 8), *range(len(VALID) - 8, len(VALID))):
        for bits in (0x01, 0x80, 0xFF):
            changed = bytearray(VALID)
            changed[place] ^= bits
            read_as_others(bytes(changed))
    for data in (VALID[:-8], VALID + bytes(8), VALID + VALID[-8:], VALID[:at] + VALID[-8:]):
        read_as_others(data)


def test_many_unlike_samples_are_kept_within_bounds() -> None:
    for count in range(1, 60):
        more = {name: [0.5] for name in NUMBER_COLUMNS[: count % 30]}
        metadata = sample_with(machine_id="m" * count)
        read_rows(stream(node_row(**more), metadata | {"x" * count: "y"}))
    for store in stores():
        assert store.bytes <= store.most_bytes


def test_all_columns_of_this_version_are_those_of_the_schema() -> None:
    columns = own_columns(SAMPLE_SCHEMA)
    assert columns is not None
    assert tuple(columns.rows) == NUMBER_COLUMNS
    with pytest.raises(InvalidRecordError):
        read_rows(stream(node_row(coverage=["1"])))


def test_a_head_that_says_nothing_makes_no_template() -> None:
    schema = pa.schema([("kind", pa.string())])
    for head in (b"", VALID[:9], schema.serialize().to_pybytes()):
        keep_head(head, schema, columns_of(("kind",)))
    assert known_head(schema.serialize().to_pybytes()) is None


def test_a_head_of_any_bytes_is_not_known() -> None:
    read_rows(VALID)
    head = VALID[: 8 + int.from_bytes(VALID[4:8], "little")]
    assert known_head(head) is not None
    assert known_head(b"") is None
    assert known_head(bytes(len(head))) is None
