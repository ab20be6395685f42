"""Decode fetched record batches, so that no batch that a broker accepts stops a consumer.

aiokafka 0.14 decodes a batch inside the fetch. If it cannot, it raises the same error at each fetch
from then on: for a header key that is not UTF-8, bytes after a gzip stream, a checksum that a disk
has changed. It also unpacks without a limit: 33 kB of zstd take 2 GiB. `install` replaces its
decoder in this process.

An unreadable record is returned with an `UnreadableValue`, which no codec decodes: consumers refuse
it as they refuse any other invalid record. The first offset of an unreadable batch stands for all
of its records. A batch may unpack to `MAX_RECORD_BYTES`, its limit without compression.
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import cramjam
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecord
from aiokafka.record.util import calc_crc32c

from pipeline.errors import UnreadableRecordError
from pipeline.topics.codec import UnreadableValue
from pipeline.topics.registry import MAX_RECORD_BYTES

MAX_HEADERS: Final = 100
"""Headers of a record: each takes 2 bytes in a batch, and 70 in memory."""

# Offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and last timestamp,
# producer id and epoch, sequence, number of records.
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
_MAGIC: Final = 16
_AFTER_CRC: Final = 21
_CODEC, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_ABORT_MARKER: Final = b"\0\0\0\0"
_MAX_TIMESTAMP_MS: Final = 253_402_300_799_999  # the last one with a date
_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER_BYTES: Final = 16
_GZIP_START: Final = b"\x1f\x8b"
_USUAL_BYTES, _USUAL_RATIO = 4096, 10


def install() -> None:
    """Let all aiokafka consumers of this process decode with this module."""
    fetcher.MemoryRecords = FetchedBatches


class FetchedBatches:
    """The batches of one partition in a fetch response, instead of aiokafka's `MemoryRecords`.

    After `MAX_RECORD_BYTES` of unpacked data there are no more: aiokafka fetches the others again.
    """

    def __init__(self, data: bytes) -> None:
        self.unpacked_bytes = 0
        self._data = data
        self._start = 0

    def size_in_bytes(self) -> int:
        return len(self._data)

    def has_next(self) -> bool:
        return self.unpacked_bytes < MAX_RECORD_BYTES and self._end() <= len(self._data)

    def next_batch(self) -> "FetchedBatch":
        start, self._start = self._start, self._end()
        return FetchedBatch(self, self._data, start, self._start)

    def _end(self) -> int:
        if len(self._data) - self._start < _OFFSET_AND_LENGTH.size:
            return len(self._data) + 1
        _, length = _OFFSET_AND_LENGTH.unpack_from(self._data, self._start)
        return self._start + _OFFSET_AND_LENGTH.size + int(length)


class FetchedBatch(Iterator[DefaultRecord]):
    """A batch, with the attributes that aiokafka's `PartitionRecords` reads."""

    def __init__(self, owner: FetchedBatches, data: bytes, start: int, end: int) -> None:
        self._owner, self._data, self._start, self._end = owner, data, start, end
        self.is_control_batch = self.is_transactional = False
        self.producer_id = -1
        if data[_MAGIC + start] == 2:
            (
                self.base_offset, _, _, _, self._crc, self._attributes, self._last_delta,
                self._first_ms, self._last_ms, self.producer_id, _, _, self._count,
            ) = _HEADER.unpack_from(data, start)  # fmt: skip
            self.is_transactional = bool(self._attributes & _TRANSACTIONAL)
            self.is_control_batch = bool(self._attributes & _CONTROL)
            self._records = self._decode()
        else:
            self.base_offset, _ = _OFFSET_AND_LENGTH.unpack_from(data, start)
            self._attributes = self._last_delta = self._first_ms = self._last_ms = 0
            self._records = iter([self._unreadable_batch("message format older than version 2")])
        self.next_offset = self.base_offset + self._last_delta + 1

    def validate_crc(self) -> bool:
        """True: a batch with another checksum is returned as unreadable, and not refused."""
        return True

    def __next__(self) -> DefaultRecord:
        return next(self._records)

    def _decode(self) -> Iterator[DefaultRecord]:
        try:
            payload, position, end = self._payload()
        except UnreadableRecordError as error:
            yield self._unreadable_batch(error.message)
            return
        last = -1
        for _ in range(self._count):
            if last >= self._last_delta:
                # The rest has no offset in this batch, and must not take one of the next batch.
                return
            try:
                length, start = _varint(payload, position)
                time_delta, fields = _varint(payload, start + 1)
                delta, fields = _varint(payload, fields)
            except IndexError:
                length, start, time_delta, delta, fields = -1, position, 0, last + 1, position
            position = start + length
            if not (length >= 0 and position <= end and last < delta <= self._last_delta):
                # The broker does not check the offsets of uncompressed records.
                yield self._unreadable(last + 1, payload[start:end], "record with a wrong frame")
                return
            last = delta
            try:
                key, value, headers = _fields(payload, fields, position)
            except (IndexError, ValueError) as error:
                raw, reason = payload[start:position], f"invalid record: {error}"
                yield self._unreadable(delta, raw, reason, _key(payload, fields, position))
            else:
                yield self._record(delta, time_delta, key, value, headers)

    def _payload(self) -> tuple[bytes, int, int]:
        """The records as bytes, and their start and end in them."""
        data, start, end = self._data, self._start, self._end
        checked = memoryview(data)[start + _AFTER_CRC : end]
        if calc_crc32c(checked) != self._crc:
            raise UnreadableRecordError("wrong checksum")
        codec = self._attributes & _CODEC
        if not codec:
            return data, start + _HEADER.size, end
        if codec not in _CODECS:
            raise UnreadableRecordError(f"unknown compression codec {codec}")
        payload = unpack(codec, data[start + _HEADER.size : end])
        self._owner.unpacked_bytes += len(payload)
        return payload, 0, len(payload)

    def _record(
        self,
        delta: int,
        time_delta: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> DefaultRecord:
        by_broker = bool(self._attributes & _APPEND_TIME)
        at_ms = self._last_ms if by_broker else self._first_ms + time_delta
        return DefaultRecord(
            self.base_offset + delta, min(max(at_ms, 0), _MAX_TIMESTAMP_MS), int(by_broker), key,
            value, headers,
        )  # fmt: skip

    def _unreadable(
        self, delta: int, raw: bytes, reason: str, key: bytes | None = b""
    ) -> DefaultRecord:
        return self._record(delta, 0, key, UnreadableValue(raw, reason), [])

    def _unreadable_batch(self, reason: str) -> DefaultRecord:
        # A control batch ends a transaction. That of an aborted one is looked for by its key.
        key = _ABORT_MARKER if self.is_control_batch else b""
        return self._unreadable(0, self._data[self._start : self._end], reason, key)


def unpack(codec: int, packed: bytes, limit: int = MAX_RECORD_BYTES) -> bytes:
    """Unpack the records of a batch. Raises `UnreadableRecordError` if they are damaged, or are
    longer than `limit`; no more memory than that is taken."""
    name, unpacked = _CODECS[codec]
    try:
        return unpacked(packed, limit)
    except (cramjam.DecompressionError, zlib.error, struct.error, OSError, ValueError) as error:
        text = f"{name} of {len(packed)} bytes is damaged, or unpacks to more than {limit}"
        raise UnreadableRecordError(f"{text}: {error}") from error


def _gzip(packed: bytes, limit: int) -> bytes:
    """Unpack all members; what follows the last is ignored, as Java does."""
    records = bytearray()
    while packed.startswith(_GZIP_START):
        member = zlib.decompressobj(wbits=31)
        records += member.decompress(packed, limit + 1 - len(records))
        if len(records) > limit:
            raise ValueError("too long")
        if not member.eof:
            raise ValueError("ends early")
        packed = member.unused_data
    return bytes(records)


def _snappy(packed: bytes, limit: int) -> bytes:
    """Unpack a block, or a stream of blocks in the form of xerial's library, which Java writes."""
    if not packed.startswith(_XERIAL):
        return _snappy_block(packed, limit)
    records, start = bytearray(), _XERIAL_HEADER_BYTES
    while start < len(packed):
        (length,) = struct.unpack_from(">i", packed, start)
        if length < 0:
            raise ValueError("negative block")
        records += _snappy_block(packed[start + 4 : start + 4 + length], limit - len(records))
        start += 4 + length
    return bytes(records)


def _snappy_block(packed: bytes, limit: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(packed) > limit:
        raise ValueError("too long")
    return bytes(cramjam.snappy.decompress_raw(packed))


def _by_buffer(unpack_into: Callable[[bytes, bytearray], int]) -> Callable[[bytes, int], bytes]:
    """Unpack into a buffer that ends at the limit. A smaller one is tried first: to allocate the
    limit for each batch takes ten times as long as to decode it."""

    def unpacked(packed: bytes, limit: int) -> bytes:
        size = min(limit, _USUAL_BYTES + _USUAL_RATIO * len(packed))
        while True:
            records = bytearray(size)
            try:
                return bytes(memoryview(records)[: unpack_into(packed, records)])
            except cramjam.DecompressionError:
                if size == limit:
                    raise
                size = limit

    return unpacked


_CODECS: Final[Mapping[int, tuple[str, Callable[[bytes, int], bytes]]]] = {
    1: ("gzip", _gzip),
    2: ("snappy", _snappy),
    3: ("lz4", _by_buffer(cramjam.lz4.decompress_into)),
    4: ("zstd", _by_buffer(cramjam.zstd.decompress_into)),
}


def _fields(
    data: bytes, position: int, end: int
) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    """Key, value and headers of the record in `data[position:end]`."""
    key, position = _bytes(data, position)
    value, position = _bytes(data, position)
    count, position = _varint(data, position)
    headers: list[tuple[str, bytes | None]] = []
    if not 0 <= count <= MAX_HEADERS:
        raise ValueError(f"{count} headers, at most {MAX_HEADERS} are read")
    for _ in range(count):
        name, position = _bytes(data, position)
        content, position = _bytes(data, position)
        headers.append(((name or b"").decode(), content))
    if position != end:
        raise ValueError("its fields do not end where it ends")
    return key, value, headers


def _key(data: bytes, position: int, end: int) -> bytes | None:
    try:
        key, position = _bytes(data, position)
    except IndexError:
        return b""
    return key if position <= end else b""


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position)
    if length < 0:
        return None, position
    return data[position : position + length], position + length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag number of at most ten bytes, and the position after it."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    number = byte & 0x7F
    for shift in range(7, 70, 7):
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
    raise IndexError("number of more than ten bytes")
