"""Batches that a broker accepts are decoded as aiokafka does, or returned as unreadable records.

With a broker: tests/integration/test_hostile_batches.py.
"""

import gzip
import re
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import cramjam
import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UnreadableRecordError
from pipeline.kafka.record_batches import MAX_HEADERS, FetchedBatches, unpack
from pipeline.topics.codec import Record, UnreadableValue, decode_json, decode_pack
from pipeline.topics.registry import MAX_RECORD_BYTES
from pipeline.topics.sample_rows import read_header, read_rows
from pipeline.topics.windows import decode_window, sample_offset_of
from tests.kafka.raw_batches import GZIP, LZ4, NOW_MS, SNAPPY, ZSTD, raw_batch, raw_record

TP = TopicPartition("t", 0)
CONTROL = 0x20
TRANSACTIONAL = 0x10


def fetched(data: bytes, offset: int = 0, aborted: Sequence[tuple[int, int]] = ()) -> list[Any]:
    """What a consumer gets of one fetch."""
    return list(partition_records(data, offset, aborted))


def partition_records(
    data: bytes, offset: int = 0, aborted: Sequence[tuple[int, int]] = ()
) -> PartitionRecords:
    return PartitionRecords(
        TP, FetchedBatches(data), list(aborted), offset, None, None, True, 1
    )  # fmt: skip


def reason_of(record: Any) -> str:
    assert isinstance(record.value, UnreadableValue)
    return record.value.reason


HEADER = st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5))
RECORD = st.tuples(
    st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=300),
    st.lists(HEADER, max_size=3), st.integers(0, NOW_MS),
)  # fmt: skip


@given(st.lists(RECORD, min_size=1, max_size=8), st.integers(0, 4))
def test_batches_of_ordinary_producers_are_decoded_as_aiokafka_does(
    records: list[tuple[bytes | None, bytes | None, list[Any], int]], codec: int
) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, 0, 7, 0, 0, 1_000_000)
    for delta, (key, value, headers, at_ms) in enumerate(records):
        builder.append(delta, at_ms, key, value, headers)
    data = bytes(builder.build())
    fields = "offset", "timestamp", "timestamp_type", "key", "value"
    expected = [
        [*(getattr(record, field) for field in fields), tuple(record.headers)]
        for record in DefaultRecordBatch(data)
    ]
    read = [[*(getattr(record, f) for f in fields), record.headers] for record in fetched(data)]
    assert read == expected


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (raw_batch(raw_record(0, b"k", b"v", [(b"\xff\xfe", b"")])), "invalid record: 'utf-8'"),
        (raw_batch(raw_record(0, b"k", b"v", [(b"", b"")] * 101)), "101 headers"),
        (raw_batch(b"junk" * 9, codec=ZSTD), "zstd of 36 bytes is damaged"),
        (raw_batch(b"junk" * 9, codec=LZ4), "lz4 of 36 bytes is damaged"),
        (raw_batch(b"junk" * 9, codec=SNAPPY), "snappy of 36 bytes is damaged"),
        (raw_batch(b"\x1f\x8bjunk" * 9, codec=GZIP), "gzip of 54 bytes is damaged"),
        (raw_batch(gzip.compress(b"x" * 99, mtime=0)[:-9], codec=GZIP), "ends early"),
        (raw_batch(raw_record(0, b"k", b"v"), codec=6), "unknown compression codec 6"),
        (raw_batch(raw_record(0, b"k", b"v"))[:-1] + b"!", "wrong checksum"),
        (raw_batch(raw_record(0, b"k", b"v")[:-2]), "wrong frame"),
        (raw_batch(raw_record(7, b"k", b"v")), "wrong frame"),
        (raw_batch(b"\xff" * 30), "wrong frame"),
    ],
    ids=lambda value: value if isinstance(value, str) else "batch",
)  # fmt: skip
def test_an_unreadable_record_is_refused_and_reading_goes_on(batch: bytes, reason: str) -> None:
    following = raw_batch(raw_record(0, b"k", b"next"), base_offset=1)
    *_, unreadable, after = fetched(batch + following)
    assert reason in reason_of(unreadable)
    assert (after.offset, after.value) == (1, b"next")
    with pytest.raises(UnreadableRecordError, match=re.escape(reason)):
        decode_json(Record, unreadable.value)


def test_other_records_of_its_batch_are_read() -> None:
    bad = raw_record(1, b"bad", b"v", [(b"ok", b""), (b"\xff", b"")])
    payload = raw_record(0, b"a", b"0") + bad + raw_record(2, b"c", b"2", [(b"h", b"1")])
    first, unreadable, last = fetched(raw_batch(payload, 3, base_offset=40), offset=40)
    assert (first.offset, first.value, unreadable.offset) == (40, b"0", 41)
    assert unreadable.key == b"bad"
    assert (last.offset, last.value, last.headers) == (42, b"2", (("h", b"1"),))


def test_the_first_offset_stands_for_an_unreadable_batch() -> None:
    data = raw_batch(b"junk", 5, codec=ZSTD, base_offset=10)
    records = partition_records(data, 10)
    (record,) = records
    assert (record.offset, record.key, record.value) == (10, b"", data)
    assert records.next_fetch_offset == 15
    records = partition_records(data, 12)
    assert list(records) == []
    assert records.next_fetch_offset == 15


def test_no_record_leads_out_of_its_batch() -> None:
    far = raw_record(0, b"k", b"0") + raw_record(2**31 - 1, b"k", b"far")
    records = partition_records(raw_batch(far, 2))
    assert [record.offset for record in records] == [0, 1]
    assert records.next_fetch_offset == 2


@pytest.mark.parametrize(
    ("deltas", "expected"), [([1, 1], [1]), ([0, 1, 1], [0, 1]), ([0, 0], [0, 1]), ([1, 0], [1])]
)
def test_repeated_offsets_do_not_take_the_offset_of_the_next_batch(
    deltas: list[int], expected: list[int]
) -> None:
    """The broker accepts them in an uncompressed batch."""
    payload = b"".join(raw_record(delta, b"k", b"v") for delta in deltas)
    data = raw_batch(payload, len(deltas), last_delta=1)
    data += raw_batch(raw_record(0, b"k", b"next"), base_offset=2)
    records = fetched(data)
    assert [record.offset for record in records] == [*expected, 2]
    assert records[-1].value == b"next"


@pytest.mark.parametrize("timestamp_ms", [-(2**62), -5, 2**62])
def test_a_timestamp_is_a_date(timestamp_ms: int) -> None:
    (record,) = fetched(raw_batch(raw_record(0, b"k", b"v"), timestamp_ms=timestamp_ms))
    assert 0 <= record.timestamp < 253_402_300_800_000


def test_control_records_are_not_returned_and_end_aborted_transactions() -> None:
    def transactional(offset: int, value: bytes, flags: int = TRANSACTIONAL) -> bytes:
        batch = bytearray(raw_batch(raw_record(0, b"\0\0\0\0", value), base_offset=offset))
        return patched(batch, 21, struct.pack(">h", flags), 43, struct.pack(">q", 77))

    marker = transactional(1, b"", TRANSACTIONAL | CONTROL)
    damaged = marker[:-1] + b"\1"
    for end in (marker, damaged):
        data = transactional(0, b"aborted") + end + transactional(2, b"good")
        assert [record.value for record in fetched(data, aborted=[(77, 0)])] == [b"good"]


def patched(batch: bytearray, *places: Any) -> bytes:
    """A batch with bytes replaced, and the checksum that belongs to it."""
    for position, content in zip(places[::2], places[1::2], strict=True):
        batch[position : position + len(content)] = content
    batch[17:21] = struct.pack(">I", calc_crc32c(bytes(batch[21:])))
    return bytes(batch)


def test_no_codec_decodes_an_unreadable_value() -> None:
    (record,) = fetched(raw_batch(raw_record(0, b"k", b'{"version":1}', [(b"\xff", b"")])))
    decoders: list[Callable[[bytes], Any]] = [
        partial(decode_json, Record),
        partial(decode_pack, Record),
        read_rows,
        read_header,
    ]
    for decode in (*decoders, decode_window, sample_offset_of):
        with pytest.raises(UnreadableRecordError):
            decode(record.value)


PACKERS: dict[int, Callable[[bytes], bytes]] = {
    GZIP: gzip.compress,
    SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
    LZ4: lambda data: bytes(cramjam.lz4.compress(data)),
    ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
}  # fmt: skip


@pytest.mark.parametrize("codec", PACKERS)
def test_a_bomb_takes_no_more_than_the_limit(codec: int) -> None:
    bomb = PACKERS[codec](bytes(16 * MAX_RECORD_BYTES))
    tracemalloc.start()
    (record,) = fetched(raw_batch(bomb, codec=codec))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "unpacks to more than" in reason_of(record)
    assert peak < 3 * MAX_RECORD_BYTES


def test_many_blocks_of_snappy_are_limited_together() -> None:
    block = bytes(cramjam.snappy.compress_raw(bytes(1000)))
    header = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    stream = header + (struct.pack(">i", len(block)) + block) * 5
    assert unpack(SNAPPY, stream, 5000) == bytes(5000)
    with pytest.raises(UnreadableRecordError, match="too long"):
        unpack(SNAPPY, stream, 4999)


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_several_frames_are_read_as_one(codec: int) -> None:
    packed = PACKERS[codec](b"one") + PACKERS[codec](b"two")
    assert unpack(codec, packed) == b"onetwo"


@pytest.mark.parametrize("first", [99, 100, 101, 102])
def test_members_of_gzip_are_limited_together(first: int) -> None:
    """A limit of 0 bytes for the second member would mean no limit to zlib."""
    with pytest.raises(UnreadableRecordError, match="too long"):
        unpack(GZIP, gzip.compress(bytes(first)) + gzip.compress(bytes(5_000_000)), 100)


def test_what_follows_a_gzip_stream_is_ignored_as_java_does() -> None:
    assert unpack(GZIP, gzip.compress(b"one") + b"trailing") == b"one"


def test_a_fetch_of_many_bombs_is_read_in_parts() -> None:
    packed = PACKERS[ZSTD](raw_record(0, b"k", bytes(MAX_RECORD_BYTES // 2)))
    data = b"".join(raw_batch(packed, codec=ZSTD, base_offset=offset) for offset in range(9))
    records = partition_records(data)
    assert len(list(records)) == 2
    assert records.next_fetch_offset == 2  # the next fetch starts here


def test_many_headers_are_not_decoded() -> None:
    headers = [(b"", b"")] * (MAX_RECORD_BYTES // 4)
    data = raw_batch(raw_record(0, b"k", b"v", headers))
    tracemalloc.start()
    (record,) = fetched(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert f"at most {MAX_HEADERS}" in reason_of(record)
    assert peak < 3 * len(data)


RECORDS = st.lists(st.integers(-1, 6).map(lambda delta: raw_record(delta, b"k", b"v"))).map(
    b"".join
)


@given(st.binary(max_size=120) | RECORDS, st.integers(1, 5), st.integers(0, 7), st.integers(0, 5))
def test_no_payload_raises_or_leaves_its_batch(
    payload: bytes, count: int, codec: int, last: int
) -> None:
    records = partition_records(raw_batch(payload, count, codec=codec, last_delta=last))
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    assert all(0 <= offset <= last for offset in offsets)
    assert records.next_fetch_offset == last + 1


@given(st.integers(0, 3), st.data())
def test_no_damaged_stream_raises_anything_else(index: int, data: Any) -> None:
    codec = list(PACKERS)[index]
    packed = bytearray(PACKERS[codec](b"node-1 node-2 node-3" * 20))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(UnreadableRecordError):
        assert len(unpack(codec, bytes(packed), 10_000)) <= 10_000


@pytest.mark.parametrize(("codec", "packer"), [(LZ4, cramjam.lz4), (ZSTD, cramjam.zstd)])
def test_a_small_batch_takes_little_memory(codec: int, packer: Any) -> None:
    """A buffer of the limit for each batch would take most of the time of a fetch."""
    payload = bytes(packer.compress(raw_record(0, b"k", b"v" * 1000)))
    data = raw_batch(payload, codec=codec)
    fetched(data)
    tracemalloc.start()
    try:
        (record,) = fetched(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (record.value, peak < 100_000) == (b"v" * 1000, True)
