"""Reading Arrow IPC records whose bytes may be anything, with pyarrow.

One place decides what a columnar record must be: one batch, valid to the last offset, of bounded
size, uncompressed, with a header in the schema's metadata. Everything else raises an error of
`pipeline.errors` that a dead letter can carry. The exporter does not import this module (pyarrow
costs it 25 MB).
"""

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from pipeline.errors import InvalidRecordError, UndecodableRecordError
from pipeline.topics import samples
from pipeline.topics.codec import check_version
from pipeline.topics.flatbuffer import field_at, header_table, table_at
from pipeline.topics.nodes import check_node_name
from pipeline.topics.samples import KINDS, LIST_COLUMNS, NUMBER_COLUMNS, TEXT_COLUMNS, SampleHeader

MAX_ROWS: Final = 4_096
"""Rows of a record: a kubelet runs some hundreds of pods at most. A column of nulls states its
length and has no bytes, so that the size of a record bounds nothing."""

_MAX_ID_BYTES: Final = 253
# JSON takes two to six bytes for each of these, and a terminal may obey what is left of them. A
# prediction says each UID twice.
_UNFIT = re.compile(r'[\x00-\x1f"\\\x7f-\x9f]')
_LAST_MS: Final = 253_402_300_799_000
MARK: Final = b"\xff\xff\xff\xff"
"""What each message of a stream begins with; the length of its metadata follows."""
END: Final = MARK + bytes(4)
_DATA, _COMPRESSION = 1, 3  # of DictionaryBatch, of RecordBatch
_MAX_DICTIONARIES = 64
_MAX_INT = 1 << 53
_MAX_WINDOW_MS = 86_400_000
_MOST_DIGITS = 16
_NUMBERS_KEPT = 4_096
_NODES_KEPT = 16_384
_TYPES: dict[str, pa.DataType] = {
    **{name: pa.string() for name in TEXT_COLUMNS},
    **{name: pa.float64() for name in NUMBER_COLUMNS},
    **{name: pa.list_(pa.float64()) for name in LIST_COLUMNS},
}
SAMPLE_FIELDS: tuple[pa.Field, ...] = tuple(pa.field(name, kind) for name, kind in _TYPES.items())
SAMPLE_SCHEMA: Final = pa.schema(SAMPLE_FIELDS)

# What pyarrow raises for bytes that are not what they say; UnicodeDecodeError is a ValueError.
_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, MemoryError, OverflowError)


def read_batch(data: bytes) -> pa.RecordBatch:
    """The one record batch in the IPC stream `data`, fully validated.

    Raises `UndecodableRecordError` for bytes that are no Arrow stream or whose buffers do not
    hold together, `InvalidRecordError` for a stream with no batch or several, with compressed
    buffers or with more than `MAX_ROWS` rows.
    """
    if not data:
        raise UndecodableRecordError("record is empty")
    try:
        batch = _usual_batch(data)
        batch = _any_batch(data) if batch is None else batch
        if batch.num_rows <= MAX_ROWS:
            batch.validate(full=True)
    except InvalidRecordError:
        raise
    except (*_ARROW_ERRORS, StopIteration, struct.error) as error:
        raise UndecodableRecordError(f"no Arrow stream: {str(error)[:200]}") from error
    if batch.num_rows > MAX_ROWS:
        raise InvalidRecordError(f"batch has {batch.num_rows} rows, more than {MAX_ROWS}")
    return batch


def read_metadata(batch: pa.RecordBatch) -> Mapping[str, str]:
    """The schema's metadata as text; raises `UndecodableRecordError` if it is not UTF-8."""
    return metadata_of(batch.schema)


def metadata_of(schema: pa.Schema) -> Mapping[str, str]:
    """The metadata of `schema` as text; raises `UndecodableRecordError` if it is not UTF-8."""
    try:
        return {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}
    except UnicodeDecodeError as error:
        raise UndecodableRecordError("schema metadata is not UTF-8") from error


def metadata_text(metadata: Mapping[str, str], name: str) -> str:
    """A header that must be there; raises `InvalidRecordError` if it is not."""
    if name not in metadata:
        raise InvalidRecordError(f"header {name!r} is missing")
    return metadata[name]


def metadata_int(metadata: Mapping[str, str], name: str) -> int:
    """A whole number of a header; raises `InvalidRecordError` for anything else."""
    text = metadata_text(metadata, name)
    try:
        return _whole_number(text)
    except ValueError as error:
        raise InvalidRecordError(f"header {name!r} is {error}: {text[:40]!r}") from None


@lru_cache(maxsize=_NUMBERS_KEPT)  # all nodes have the same windows
def _whole_number(text: str) -> int:
    # A regular expression would be right, too, and three times as slow.
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
        raise ValueError("no whole number")
    value = int(text)
    if abs(value) > _MAX_INT:
        raise ValueError("out of range")
    return value


_check_node_name = lru_cache(maxsize=_NODES_KEPT)(check_node_name)


def check_schema(metadata: Mapping[str, str], name: str, version: int) -> None:
    """Raise `InvalidRecordError` or `UnsupportedVersionError` unless this is `name`, `version`."""
    found = metadata_text(metadata, "schema")
    if found != name:
        raise InvalidRecordError(f"schema is {found[:80]!r}, not {name}")
    check_version(metadata_int(metadata, "version"), version, name)


def read_header(metadata: Mapping[str, str]) -> SampleHeader:
    """Who measured and which window; raises `InvalidRecordError` if it does not say."""
    header = SampleHeader(
        node=metadata_text(metadata, "node"),
        machine_id=metadata_text(metadata, "machine_id"),
        boot_id=metadata_text(metadata, "boot_id"),
        epoch=metadata_int(metadata, "epoch"),
        sequence=metadata_int(metadata, "sequence"),
        window_start_ms=metadata_int(metadata, "window_start_ms"),
        window_end_ms=metadata_int(metadata, "window_end_ms"),
        simulated=metadata.get("simulated") == "true",
    )
    _check_node_name(header.node)
    if not 0 < header.window_end_ms - header.window_start_ms <= _MAX_WINDOW_MS:
        raise InvalidRecordError("window is not longer than 0 s and at most a day")
    if header.window_start_ms < 0:
        raise InvalidRecordError("window begins before 1970")
    if header.window_end_ms > _LAST_MS:
        raise InvalidRecordError("window ends after the year 9999")
    return header


def read_samples(data: bytes) -> tuple[SampleHeader, pa.RecordBatch]:
    """Header and rows of a record of `springtide.samples`, in the columns of this version.

    Unknown columns are dropped, missing ones are null; the types are those of the registry.
    Raises `UndecodableRecordError`, `UnsupportedVersionError` or `InvalidRecordError`.
    """
    header, batch = open_sample(data)
    read = known_columns(batch, SAMPLE_SCHEMA)
    check_entities(read.column("kind").to_pylist(), read.column("id").to_pylist())
    return header, read


def open_sample(data: bytes) -> tuple[SampleHeader, pa.RecordBatch]:
    """Header of a record of `springtide.samples` and its rows, one at least, as they are there:
    neither columns nor entities are looked at. Raises the errors of `read_samples`."""
    batch = read_batch(data)
    metadata = read_metadata(batch)
    check_schema(metadata, samples.SCHEMA_NAME, samples.VERSION)
    header = read_header(metadata)
    if batch.num_rows == 0:
        raise InvalidRecordError("batch has no rows")
    return header, batch


def known_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` in exactly the columns of `schema`: unknown ones dropped, missing ones null.

    Numbers of another width become floats. Nothing else is converted: what a dictionary, a view
    or a run-length says in few bytes could be gigabytes when written out. Raises
    `InvalidRecordError` for another type and for a name that is there twice.
    """
    if batch.schema.equals(schema):
        return batch.replace_schema_metadata(None)
    try:
        names = batch.schema.names
    except UnicodeDecodeError as error:
        raise UndecodableRecordError("a column's name is not UTF-8") from error
    index = {name: i for i, name in enumerate(names)}
    if len(index) != len(names):
        raise InvalidRecordError("two columns of one name")
    columns = [
        _as_type(batch.column(index[field.name]), field)
        if field.name in index
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as_type(column: pa.Array, field: pa.Field) -> pa.Array:
    found = column.type
    if found == field.type:
        return column
    if pa.types.is_null(found):
        return pa.nulls(len(column), field.type)
    is_number = pa.types.is_integer(found) or pa.types.is_floating(found)
    if is_number and pa.types.is_floating(field.type):
        return column.cast(field.type, safe=False)
    kind = type(found).__name__ if pa.types.is_nested(found) else str(found)
    raise InvalidRecordError(f"column {field.name!r} is {kind[:80]}, not {field.type}")


def check_entities(kinds: Sequence[str | None], ids: Sequence[str | None]) -> None:
    """Raise `InvalidRecordError` unless there is one node row and each row names its entity."""
    if kinds.count("node") != 1:
        raise InvalidRecordError(f"batch has {kinds.count('node')} node rows, not one")
    if not set(kinds) <= set(KINDS):
        raise InvalidRecordError(f"kind of a row is none of {', '.join(KINDS)}")
    if any(name is not None and len(name.encode()) > _MAX_ID_BYTES for name in ids):
        raise InvalidRecordError(f"id of a row is longer than {_MAX_ID_BYTES} bytes")
    if any(name is not None and _UNFIT.search(name) for name in ids):
        raise InvalidRecordError("id of a row has a control character, a quote or a backslash")
    if None in ids or len(set(zip(kinds, ids, strict=True))) != len(ids):
        raise InvalidRecordError("two rows of one entity, or one without an id")


def write_stream(batch: pa.RecordBatch, metadata: Mapping[str, str]) -> bytes:
    """The batch as an Arrow IPC stream; equal batches are equal bytes."""
    sink = pa.BufferOutputStream()
    schema = batch.schema.with_metadata(metadata)
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(metadata))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def batch_at(data: bytes) -> int:
    """Where the first message of a stream, its schema, ends: there its batch begins, mostly."""
    return 8 + int.from_bytes(data[4:8], "little")


def usual_message(data: bytes) -> pa.Message | None:
    """The record batch of a stream of one schema, one batch and the end, as good writers send it;
    None if there is more, or less, to the stream, or anything that `read_batch` has to look at
    twice. Raises what pyarrow raises."""
    at = batch_at(data)
    marks = data[:4], data[at : at + 4]
    if marks != (MARK, MARK) or data[at : at + 8] == END:
        return None
    message = pa.ipc.read_message(pa.py_buffer(data).slice(at))
    body_at = at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")
    ends = len(data) == body_at + message.body.size + len(END) and data.endswith(END)
    if not ends or message.type != "record batch" or _is_compressed(message):
        return None
    return message


def _usual_batch(data: bytes) -> pa.RecordBatch | None:
    message = usual_message(data)
    if message is None:
        return None
    return pa.ipc.read_record_batch(message, pa.ipc.read_schema(pa.py_buffer(data)))


def _any_batch(data: bytes) -> pa.RecordBatch:
    _check_messages(pa.ipc.MessageReader.open_stream(pa.py_buffer(data)))
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()


def _check_messages(messages: Iterable[Any]) -> None:
    kinds: dict[str, int] = {}
    for message in messages:
        kinds[message.type] = kinds.get(message.type, 0) + 1
        if message.type in ("record batch", "dictionary") and _is_compressed(message):
            # Decompression trusts a length of the sender's: 4 MiB can become 64 GiB.
            raise InvalidRecordError("buffers are compressed", hint="let Kafka compress, not Arrow")
    batches = kinds.pop("record batch", 0)
    if batches != 1:
        raise InvalidRecordError(f"stream holds {batches} batches, not one")
    if kinds.pop("schema", 0) != 1 or kinds.pop("dictionary", 0) > _MAX_DICTIONARIES or kinds:
        raise InvalidRecordError("stream is not one schema, its dictionaries and one batch")


def _is_compressed(message: Any) -> bool:
    """Whether the RecordBatch in this message has the field `compression`, which pyarrow obeys
    but does not show."""
    buffer = memoryview(message.metadata)
    header = header_table(buffer)
    if message.type == "dictionary":
        header = None if header is None else table_at(buffer, header, _DATA)
    return header is not None and field_at(buffer, header, _COMPRESSION) is not None
