"""Encode and decode records: JSON for topics that people read, MessagePack for checkpoints.

Encoding is deterministic (fields in declared order, mappings sorted by key): equal records have
equal bytes. Decoding ignores unknown fields. It raises `UndecodableRecordError` for bytes that are
not JSON or MessagePack, `InvalidRecordError` for a broken schema, and `UnsupportedVersionError` for
another major version; each has the `reason` of a dead letter.
"""

from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from pipeline.errors import (
    InvalidRecordError,
    RecordError,
    UndecodableRecordError,
    UnreadableRecordError,
    UnsupportedVersionError,
)

_json = msgspec.json.Encoder(order="deterministic")
_pack = msgspec.msgpack.Encoder(order="deterministic")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every record: its first field is the major version of its layout.

    Within a version fields are only added, always with a default. A breaking change is a new
    version in a new topic.

    version: Major version of the layout.
    """

    version: int = 1


class UnreadableValue(bytes):
    """The bytes that a broker returned in place of a readable record: not decoded, no tombstone."""

    reason: str

    def __new__(cls, raw: bytes, reason: str) -> "UnreadableValue":
        value = super().__new__(cls, raw)
        value.reason = reason
        return value


_UPGRADE_READERS: Final = "upgrade the readers before the writers"
_UNKNOWN_VALUE: Final = "Invalid enum value"
"""How msgspec begins its error for a value that a newer release may have added."""
DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
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


def check_readable(data: bytes | None) -> None:
    """Raise `UnreadableRecordError` for an `UnreadableValue`."""
    if isinstance(data, UnreadableValue):
        raise UnreadableRecordError(data.reason)


def decode_error(what: str, error: Exception) -> RecordError:
    """Return the error for a record or a part of it, if decoding raised one of `DECODE_ERRORS`."""
    if isinstance(error, msgspec.ValidationError):
        is_new = str(error).startswith(_UNKNOWN_VALUE)
        return InvalidRecordError(
            f"{what} breaks its schema: {error}", hint=_UPGRADE_READERS if is_new else None
        )
    return UndecodableRecordError(f"{what} cannot be decoded: {error}")


def check_version(version: int, supported: int, what: str) -> None:
    """Raise `UnsupportedVersionError` unless `version` is the `supported` one."""
    if version != supported:
        raise UnsupportedVersionError(
            f"{what} has version {version}, this build reads version {supported}",
            hint=_UPGRADE_READERS,
        )


@cache
def _version_of(kind: type[Record]) -> int:
    return int(next(f.default for f in msgspec.structs.fields(kind) if f.name == "version"))


def _decode(decode: Any, kind: type[RecordT], data: bytes) -> RecordT:
    name = kind.__name__
    check_readable(data)
    try:
        # The version first: another version may break the schema, too.
        check_version(decode(data, type=_Versioned).version, _version_of(kind), name)
        record: RecordT = decode(data, type=kind)
    except DECODE_ERRORS as error:
        raise decode_error(name, error) from error
    return record
