"""Reading Arrow IPC records whose bytes may be anything, with pyarrow.

One place decides what a columnar record must be: one non-empty batch, valid to the last offset,
with a header in the schema's metadata. Everything else raises an error of `pipeline.errors` that
a dead letter can carry. The exporter does not import this module (pyarrow costs it 25 MB).
"""

from collections.abc import Mapping

import pyarrow as pa

from pipeline.errors import InvalidRecordError, UndecodableRecordError
from pipeline.topics import samples
from pipeline.topics.codec import check_version
from pipeline.topics.samples import KINDS, LIST_COLUMNS, NUMBER_COLUMNS, TEXT_COLUMNS, SampleHeader

_MAX_MS = 1 << 53

_TYPES: dict[str, pa.DataType] = {
    **{name: pa.string() for name in TEXT_COLUMNS},
    **{name: pa.float64() for name in NUMBER_COLUMNS},
    **{name: pa.list_(pa.float64()) for name in LIST_COLUMNS},
}
SAMPLE_FIELDS: tuple[pa.Field, ...] = tuple(pa.field(name, kind) for name, kind in _TYPES.items())


def read_batch(data: bytes) -> pa.RecordBatch:
    """The one record batch in the IPC stream `data`, fully validated.

    Raises `UndecodableRecordError` for bytes that are no Arrow stream or whose buffers do not
    hold together, `InvalidRecordError` for a stream with no batch or several.
    """
    if not data:
        raise UndecodableRecordError("record is empty")
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            batches = list(reader)
        for batch in batches:
            batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise UndecodableRecordError(f"no Arrow stream: {str(error)[:200]}") from error
    if len(batches) != 1:
        raise InvalidRecordError(f"stream holds {len(batches)} batches, not one")
    return batches[0]


def read_metadata(batch: pa.RecordBatch) -> Mapping[str, str]:
    """The schema's metadata as text; raises `UndecodableRecordError` if it is not UTF-8."""
    try:
        return {k.decode(): v.decode() for k, v in (batch.schema.metadata or {}).items()}
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
        value = int(text)
    except ValueError as error:
        raise InvalidRecordError(f"header {name!r} is no whole number: {text[:40]!r}") from error
    if abs(value) > _MAX_MS:
        raise InvalidRecordError(f"header {name!r} is out of range: {text[:40]}")
    return value


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
    if not 0 < header.window_end_ms - header.window_start_ms <= 86_400_000:
        raise InvalidRecordError("window is not longer than 0 s and at most a day")
    if header.window_start_ms < 0:
        raise InvalidRecordError("window begins before 1970")
    return header


def check_node_name(node: str) -> None:
    """Raise `InvalidRecordError` for what Kubernetes would not take as a node's name."""
    if not 0 < len(node.encode()) <= 253:
        raise InvalidRecordError(f"node name has {len(node.encode())} bytes, not 1 to 253")
    if not all(c.isascii() and (c.isalnum() or c in "-.") for c in node) or node != node.lower():
        raise InvalidRecordError(f"node name {node[:80]!r} is not a lower-case DNS name")


def read_samples(data: bytes) -> tuple[SampleHeader, pa.RecordBatch]:
    """Header and rows of a record of `springtide.samples`, in the columns of this version.

    Unknown columns are dropped, missing ones are null; the types are those of the registry.
    Raises `UndecodableRecordError`, `UnsupportedVersionError` or `InvalidRecordError`.
    """
    batch = read_batch(data)
    metadata = read_metadata(batch)
    if metadata.get("schema") != samples.SCHEMA_NAME:
        raise InvalidRecordError(f"schema is {metadata.get('schema')!r}, not {samples.SCHEMA_NAME}")
    check_version(metadata_int(metadata, "version"), samples.VERSION, samples.SCHEMA_NAME)
    header = read_header(metadata)
    check_node_name(header.node)
    if batch.num_rows == 0:
        raise InvalidRecordError("batch has no rows")
    columns = [_column(batch, field) for field in SAMPLE_FIELDS]
    read = pa.RecordBatch.from_arrays(columns, schema=pa.schema(SAMPLE_FIELDS))
    _check_rows(read)
    return header, read


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    indices = batch.schema.get_all_field_indices(field.name)
    if not indices:
        return pa.nulls(batch.num_rows, field.type)
    if len(indices) > 1:
        raise InvalidRecordError(f"column {field.name!r} is there {len(indices)} times")
    found = batch.column(indices[0])
    if found.type.equals(field.type):
        return found
    try:
        return found.cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidRecordError(
            f"column {field.name!r} is {found.type}, not {field.type}"
        ) from error


def _check_rows(batch: pa.RecordBatch) -> None:
    kinds, ids = batch.column("kind").to_pylist(), batch.column("id").to_pylist()
    if kinds.count("node") != 1:
        raise InvalidRecordError(f"batch has {kinds.count('node')} node rows, not one")
    if not set(kinds) <= set(KINDS):
        raise InvalidRecordError(f"kind of a row is none of {', '.join(KINDS)}")
    if None in ids or len(set(zip(kinds, ids, strict=True))) != len(ids):
        raise InvalidRecordError("two rows of one entity, or one without an id")
