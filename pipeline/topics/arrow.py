"""Read Arrow IPC streams from untrusted bytes.

The exporter does not import this module, because pyarrow takes 25 MB of memory.
"""

import struct
from typing import Final

import pyarrow as pa

from pipeline.errors import InvalidRecordError, RecordError, UndecodableRecordError

MAX_ROWS: Final = 4_096
"""A kubelet runs some hundreds of pods at most. The size of a record does not bound its rows: a
column of nulls states its length and has no bytes."""

# What pyarrow raises for invalid bytes; UnicodeDecodeError is a ValueError.
_ARROW_ERRORS: Final = (
    pa.ArrowException, OSError, EOFError, ValueError, TypeError, MemoryError, OverflowError,
    struct.error,
)  # fmt: skip
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
_HEADER, _COMPRESSION = 2, 3  # fields of Message and RecordBatch in Arrow's Message.fbs


def schema_end(stream: memoryview) -> int:
    """Position in an IPC stream at which its first message, the schema, ends."""
    return 8 + int.from_bytes(stream[4:8], "little")


def read_schema(message: bytes) -> pa.Schema:
    """Read the schema message of an IPC stream; raises `UndecodableRecordError`."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(message))
    except _ARROW_ERRORS as error:
        raise UndecodableRecordError(f"no Arrow schema: {str(error)[:200]}") from error


def read_batch(stream: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """Read the one record batch of an IPC stream with this schema, and validate it fully.

    Raises `UndecodableRecordError` for invalid bytes, and `InvalidRecordError` if the schema is not
    followed by exactly one uncompressed batch of 1 to `MAX_ROWS` rows.
    """
    try:
        source = pa.BufferReader(stream)
        source.seek(schema_end(stream))
        message = pa.ipc.read_message(source)
        if message.type != "record batch":
            raise InvalidRecordError(f"stream has a {message.type}, not only one record batch")
        if _is_compressed(memoryview(message.metadata)):
            # Decompression trusts a length in the record: 4 MiB can become 64 GiB.
            raise InvalidRecordError("buffers are compressed", hint="let Kafka compress, not Arrow")
        rest = bytes(stream[source.tell() :])
        if rest not in (b"", _END):
            if _END.startswith(rest):
                raise UndecodableRecordError("stream ends inside its end marker")
            raise InvalidRecordError("stream has more than one record batch")
        batch = pa.ipc.read_record_batch(message, schema)
        if not 0 < batch.num_rows <= MAX_ROWS:
            raise InvalidRecordError(f"batch has {batch.num_rows} rows, not 1 to {MAX_ROWS}")
        batch.validate(full=True)
    except RecordError:  # a ValueError, too
        raise
    except _ARROW_ERRORS as error:
        raise UndecodableRecordError(f"no Arrow record batch: {str(error)[:200]}") from error
    return batch


def _is_compressed(message: memoryview) -> bool:
    """Whether the RecordBatch in a verified message has the field `compression`. pyarrow obeys this
    field and does not show it."""
    (root,) = struct.unpack_from("<I", message)
    header = _field(message, root, _HEADER)
    (offset,) = struct.unpack_from("<I", message, header)
    return _field(message, header + offset, _COMPRESSION) != 0


def _field(message: memoryview, table: int, number: int) -> int:
    """Position of a field of a flatbuffers table; 0 if the table does not have this field."""
    vtable = table - struct.unpack_from("<i", message, table)[0]
    size, slot = struct.unpack_from("<H", message, vtable)[0], 4 + 2 * number
    offset: int = struct.unpack_from("<H", message, vtable + slot)[0] if slot < size else 0
    return table + offset if offset else 0
