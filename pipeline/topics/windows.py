"""`springtide.windows`: the log of record. A sample batch and what was known beside it.

Written by the join agent only, keyed by node. Everything after the join (models, peaks, node
state) is a pure function of this topic. A window carries the offset of its sample, so that the
join finds by reading its own output where to go on. A *departure* says that a node was deleted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from pipeline.errors import InvalidRecordError, UndecodableRecordError
from pipeline.topics.arrow import (
    SAMPLE_FIELDS,
    check_rows,
    check_schema,
    known_columns,
    metadata_int,
    metadata_of,
    metadata_text,
    read_batch,
    read_header,
    read_metadata,
)
from pipeline.topics.nodes import Strategy
from pipeline.topics.resources import Resources
from pipeline.topics.samples import SampleHeader

VERSION: Final = 1
SCHEMA_NAME: Final = "springtide.windows"

CLASSES: Final = ("prod", "mid", "batch", "free", "none", "unknown")
"""Classes by code: the index is what `pod_class` holds as dictionary index."""

POD_FIELDS: Final = (
    pa.field("pod_class", pa.dictionary(pa.int8(), pa.string())),
    pa.field("namespace", pa.string()),
    pa.field("name", pa.string()),
    pa.field("koordinator_qos", pa.string()),
    pa.field("phase", pa.string()),
    pa.field("owner_kind", pa.string()),
    pa.field("owner_name", pa.string()),
    pa.field("request_cpu_millicores", pa.float64()),
    pa.field("request_memory_bytes", pa.float64()),
    pa.field("limit_cpu_millicores", pa.float64()),
    pa.field("limit_memory_bytes", pa.float64()),
    pa.field("age_seconds", pa.float64()),
    pa.field("deleting", pa.bool_()),
)
FIELDS: Final = (*SAMPLE_FIELDS, *POD_FIELDS)


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the join knew of the node: `known` is false where only its own samples speak of it."""

    known: bool = False
    allocatable: Resources = Resources()
    capacity: Resources = Resources()
    strategy: Strategy = Strategy()
    strategy_hash: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One record of the log: `rows` has the columns `FIELDS`; a departure has no rows.

    `sample_offset` is where its sample lay (-1 for a departure), `appended_ms` when the broker
    appended that. `bad_values` counts per column the values that were made null.
    """

    type: Literal["window", "departure"]
    header: SampleHeader
    rows: pa.RecordBatch
    node: NodeFacts
    sample_offset: int
    appended_ms: int
    bad_values: Mapping[str, int]


_SCHEMA = pa.schema(FIELDS)
_CLASSES = pa.array(CLASSES, pa.string())
_facts = msgspec.json.Encoder(order="deterministic")


def departure(node: str, appended_ms: int) -> Window:
    """The record that tells the models that `node` is gone."""
    header = SampleHeader(
        node=node, machine_id="", boot_id="", epoch=0, sequence=0,
        window_start_ms=0, window_end_ms=1,
    )  # fmt: skip
    return Window(
        type="departure",
        header=header,
        rows=_class_codes(pa.RecordBatch.from_pylist([], schema=_SCHEMA)),
        node=NodeFacts(),
        sample_offset=-1,
        appended_ms=appended_ms,
        bad_values={},
    )


def encode_window(window: Window) -> bytes:
    """The window as an Arrow IPC stream; equal windows are equal bytes."""
    metadata: dict[str, str] = window.header.metadata()
    metadata |= {
        "schema": SCHEMA_NAME,
        "version": str(VERSION),
        "type": window.type,
        "sample_offset": str(window.sample_offset),
        "appended_ms": str(window.appended_ms),
        "node_facts": _facts.encode(window.node).decode(),
        "bad_values": _facts.encode(dict(window.bad_values)).decode(),
    }
    sink = pa.BufferOutputStream()
    schema = _SCHEMA.with_metadata(metadata)
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(window.rows.replace_schema_metadata(metadata))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_window(data: bytes) -> Window:
    """The window in `data`. Raises the errors of `read_samples`."""
    batch = read_batch(data)
    metadata = read_metadata(batch)
    check_schema(metadata, SCHEMA_NAME, VERSION)
    kind = metadata_text(metadata, "type")
    if kind not in ("window", "departure"):
        raise InvalidRecordError(f"type {kind[:40]!r} is neither window nor departure")
    rows = _class_codes(known_columns(batch, _SCHEMA))
    if kind == "window":
        check_rows(rows)
    return Window(
        type="window" if kind == "window" else "departure",
        header=read_header(metadata),
        rows=rows,
        node=_struct(metadata, "node_facts", NodeFacts),
        sample_offset=metadata_int(metadata, "sample_offset"),
        appended_ms=metadata_int(metadata, "appended_ms"),
        bad_values=_struct(metadata, "bad_values", dict[str, int]),
    )


def sample_offset_of(data: bytes) -> int:
    """Only the offset of the sample that a record of this topic came from, -1 if from none.

    Reads the schema and leaves the rows alone: the join scans its own output with this.
    """
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise UndecodableRecordError(f"no Arrow stream: {str(error)[:200]}") from error
    metadata = metadata_of(schema)
    check_schema(metadata, SCHEMA_NAME, VERSION)
    return metadata_int(metadata, "sample_offset")


def _class_codes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """`rows` with `pod_class` on the dictionary CLASSES, whatever dictionary the writer had."""
    column = rows.column("pod_class")
    if column.dictionary.equals(_CLASSES):
        return rows
    code = {name: index for index, name in enumerate(CLASSES)}
    codes = [code.get(name, code["unknown"]) for name in column.dictionary.to_pylist()]
    indices = [None if index is None else codes[index] for index in column.indices.to_pylist()]
    mapped = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), _CLASSES)
    return rows.set_column(
        rows.schema.get_field_index("pod_class"), _SCHEMA.field("pod_class"), mapped
    )


def _struct(metadata: Mapping[str, str], name: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(metadata_text(metadata, name), type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidRecordError(f"header {name!r}: {error}") from error
