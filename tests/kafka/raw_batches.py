"""Record batches built byte by byte: what a broker accepts, and no ordinary producer sends."""

import gzip
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import cramjam
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import for_code
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.util import calc_crc32c, encode_varint

from pipeline.kafka.follow import TopicPartition
from pipeline.topics.registry import MAX_RECORD_BYTES

GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CRC_END: Final = 21
_BEFORE_LENGTH_END: Final = 12
NOW_MS: Final = 1_700_000_000_000


def raw_record(
    delta: int, key: bytes | None, value: bytes | None, headers: Sequence[tuple[bytes, bytes]] = ()
) -> bytes:
    """A record of a batch; header keys are bytes."""
    body = bytearray(b"\0\0")
    encode_varint(delta, body.append)
    for part in (key, value):
        _put_bytes(body, part)
    encode_varint(len(headers), body.append)
    for name, content in headers:
        _put_bytes(body, name)
        _put_bytes(body, content)
    framed = bytearray()
    encode_varint(len(body), framed.append)
    return bytes(framed + body)


def raw_batch(
    payload: bytes,
    count: int = 1,
    *,
    codec: int = 0,
    base_offset: int = 0,
    timestamp_ms: int = NOW_MS,
    last_delta: int | None = None,
) -> bytes:
    """A batch around `payload`, which is already packed with `codec`."""
    last = count - 1 if last_delta is None else last_delta
    attributes = (codec, last, timestamp_ms, timestamp_ms, -1, -1, -1, count)
    length = _HEADER.size - _BEFORE_LENGTH_END + len(payload)
    signed = _HEADER.pack(base_offset, length, -1, 2, 0, *attributes)[_CRC_END:] + payload
    start = _HEADER.pack(base_offset, length, -1, 2, calc_crc32c(signed), *attributes)[:_CRC_END]
    return start + signed


async def produce_raw(client: Mapping[str, Any], tp: TopicPartition, batch: bytes) -> int:
    """Append a batch to a partition and return its first offset; raise the broker's error."""
    connection = AIOKafkaClient(**client)
    await connection.bootstrap()
    try:
        await connection.set_topics([tp.topic])
        node = connection.cluster.leader_for_partition(tp)
        request = ProduceRequest(None, -1, 30_000, [(tp.topic, [(tp.partition, batch)])])
        response = await connection.send(node, request)
    finally:
        await connection.close()
    (_, ((_, code, offset, *_),)) = response.topics[0]
    error = for_code(code)
    if code:
        raise error(f"{tp.topic}[{tp.partition}] refuses the batch")
    return int(offset)


def _put_bytes(body: bytearray, part: bytes | None) -> None:
    encode_varint(-1 if part is None else len(part), body.append)
    body += part or b""


@cache
def hostile_batches(
    key: bytes, value: bytes, bomb_bytes: int = 16 * MAX_RECORD_BYTES
) -> dict[str, bytes]:
    """Batches that a broker accepts; each has a record that must not be used, by its reason. Some
    have a value of `bomb_bytes` in a few kilobytes."""
    not_utf8 = [(b"\xff\xfe", b"")]
    bomb = raw_record(0, key, bytes(bomb_bytes))
    return {
        "invalid record: 'utf-8' codec": raw_batch(raw_record(0, key, value, not_utf8)),
        "can't decode byte 0xff": raw_batch(
            bytes(cramjam.zstd.compress(raw_record(0, key, value, not_utf8))), codec=ZSTD
        ),
        "zstd of": raw_batch(bytes(cramjam.zstd.compress(bomb)), codec=ZSTD),
        "gzip of": raw_batch(gzip.compress(bomb, 1), codec=GZIP),
        "100000 headers": raw_batch(raw_record(0, key, value, [(b"", b"")] * 100_000)),
        "wrong frame": raw_batch(raw_record(2**30, key, value)),
    }
