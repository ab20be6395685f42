"""Records to bytes and back: JSON where a person would look, MessagePack where only we do.

Bytes are deterministic (fields in declared order, mappings sorted by key), so equal records are
equal bytes. Reading accepts unknown fields and refuses, with an error of `pipeline.errors` whose
`reason` a dead letter carries, what is no record (`UndecodableRecordError`), what breaks the
schema (`InvalidRecordError`) and what a newer major version wrote (`UnsupportedVersionError`).
"""

from functools import cache
from typing import Any, TypeVar

import msgspec

from pipeline.errors import InvalidRecordError, UndecodableRecordError, UnsupportedVersionError

_json = msgspec.json.Encoder(order="deterministic")
_pack = msgspec.msgpack.Encoder(order="deterministic")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What every record has: the major version of its layout, first.

    From the first release on fields are only added within a version, always with a default. A
    breaking change is a new version in a new topic.
    """

    version: int = 1


RecordT = TypeVar("RecordT", bound=Record)


class _Versioned(msgspec.Struct, frozen=True):
    version: int


def encode_json(record: Record) -> bytes:
    """The record as one line of JSON. NaN and infinities become null: unknown is a value."""
    return _json.encode(record)


def decode_json(kind: type[RecordT], data: bytes) -> RecordT:
    """The record of type `kind` in `data`; raises one of the three errors named above."""
    return _decode(msgspec.json.decode, kind, data)


def encode_pack(record: Record) -> bytes:
    """The record as MessagePack."""
    return _pack.encode(record)


def decode_pack(kind: type[RecordT], data: bytes) -> RecordT:
    """The record of type `kind` in MessagePack `data`; raises one of the three errors above."""
    return _decode(msgspec.msgpack.decode, kind, data)


def check_version(found: int, supported: int, what: str) -> None:
    """Raise `UnsupportedVersionError` unless `found` is the version that this code reads."""
    if found != supported:
        raise UnsupportedVersionError(
            f"{what} has version {found}, this build reads version {supported}",
            hint="upgrade the readers before the writers",
        )


@cache
def _version_of(kind: type[Record]) -> int:
    return int(next(f.default for f in msgspec.structs.fields(kind) if f.name == "version"))


def _decode(decode: Any, kind: type[RecordT], data: bytes) -> RecordT:
    name = kind.__name__
    try:
        check_version(decode(data, type=_Versioned).version, _version_of(kind), name)
        record: RecordT = decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidRecordError(f"{name} breaks its schema: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableRecordError(f"{name} cannot be decoded: {error}") from error
    return record
