"""The little of flatbuffers that is needed to see what pyarrow does not show of an Arrow message.

For messages that pyarrow has read, and so verified; of any other bytes, whatever is found is
somewhere in them or raises `struct.error`. Numbers of fields are those of Arrow's Message.fbs and
Schema.fbs.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

_HEADER = 2  # of Message: its Schema, DictionaryBatch or RecordBatch
_CUSTOM_METADATA = 2  # of Schema
_KEY, _VALUE = 0, 1  # of KeyValue


class Entry(NamedTuple):
    """An entry of a schema's metadata; its value lies in the message at `start` up to `end`."""

    key: bytes
    start: int
    end: int


def header_table(message: memoryview) -> int | None:
    """Where in a message its header lies."""
    (root,) = struct.unpack_from("<I", message)
    return table_at(message, root, _HEADER)


def metadata_entries(message: memoryview) -> Iterator[Entry]:
    """The metadata of the schema in a message, in its order."""
    schema = header_table(message)
    vector = None if schema is None else table_at(message, schema, _CUSTOM_METADATA)
    if vector is None:
        return
    for item in range(_number(message, vector)):
        place = vector + 4 + 4 * item
        entry = place + _number(message, place)
        (key, key_end), (start, end) = (_text(message, entry, field) for field in (_KEY, _VALUE))
        yield Entry(bytes(message[key:key_end]), start, end)


def table_at(buffer: memoryview, table: int, field: int) -> int | None:
    """Where that lies to which a field of a table points; None if the table does not have it."""
    position = field_at(buffer, table, field)
    return None if position is None else position + _number(buffer, position)


def field_at(buffer: memoryview, table: int, field: int) -> int | None:
    """Where a field of a table lies; None if the table does not have it."""
    vtable = table - int(struct.unpack_from("<i", buffer, table)[0])
    (size,) = struct.unpack_from("<H", buffer, vtable)
    slot = 4 + 2 * field
    if slot + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", buffer, vtable + slot)
    return table + int(offset) if offset else None


def _text(buffer: memoryview, table: int, field: int) -> tuple[int, int]:
    """Where a text begins and ends; one that is not there is empty."""
    position = table_at(buffer, table, field)
    if position is None:
        return 0, 0
    return position + 4, position + 4 + _number(buffer, position)


def _number(buffer: memoryview, position: int) -> int:
    return int(struct.unpack_from("<I", buffer, position)[0])
