"""Encode and decode records: JSON for topics that people read, MessagePack for checkpoints.

Encoding is deterministic (fields in declared order, mappings sorted by key): equal records have
equal bytes. Decoding ignores unknown fields. It raises `UndecodableRecordError` for bytes that are
not JSON or MessagePack, `InvalidRecordError` for a broken schema, and `UnsupportedVersionError` for
another major version; each has the `reason` of a dead letter.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec

from pipeline.errors import InvalidRecordError, UndecodableRecordError, UnsupportedVersionError

_json = msgspec.json.Encoder(order="deterministic")
_pack = msgspec.msgpack.Encoder(order="deterministic")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every record: its first field is the major version of its layout.

    Within a version fields are only added, always with a default. A breaking change is a new
    version in a new topic.
    """

    version: int = 1


T = TypeVar("T")
RecordT = TypeVar("RecordT", bound=Record)


class _Versioned(msgspec.Struct, frozen=True):
    version: int


def encode_json(record: Record) -> bytes:
    """Encode a record as one line of JSON. NaN and infinities become null, which means unknown."""
    return _json.encode(record)


def decode_json(kind: type[RecordT], data: bytes) -> RecordT:
    """Decode JSON `data` as a record of type `kind`. Raises `RecordError`, as described above."""
    return _decode(msgspec.json.decode, kind, data)


def encode_pack(record: Record) -> bytes:
    """Encode a record as MessagePack."""
    return _pack.encode(record)


def decode_pack(kind: type[RecordT], data: bytes) -> RecordT:
    """Decode MessagePack `data` as a record of type `kind`. Raises as `decode_json` does."""
    return _decode(msgspec.msgpack.decode, kind, data)


def decode_part(decode: Callable[..., T], data: bytes, what: str, **options: Any) -> T:
    """Decode a part of a record; errors name it as `what`. Raises as `decode_json` does."""
    try:
        return decode(data, **options)
    except msgspec.ValidationError as error:
        raise InvalidRecordError(f"{what} breaks its schema: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableRecordError(f"{what} cannot be decoded: {error}") from error


def check_version(version: int, supported: int, what: str) -> None:
    """Raise `UnsupportedVersionError` unless `version` is the `supported` one."""
    if version != supported:
        raise UnsupportedVersionError(
            f"{what} has version {version}, this build reads version {supported}",
            hint="upgrade the readers before the writers",
        )


@cache
def _version_of(kind: type[Record]) -> int:
    return int(next(f.default for f in msgspec.structs.fields(kind) if f.name == "version"))


def _decode(decode: Any, kind: type[RecordT], data: bytes) -> RecordT:
    name = kind.__name__
    # The version first: another version may break the schema, too.
    version: int = decode_part(decode, data, name, type=_Versioned).version
    check_version(version, _version_of(kind), name)
    record: RecordT = decode_part(decode, data, name, type=kind)
    return record
