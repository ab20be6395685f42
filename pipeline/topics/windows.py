"""`springtide.windows`: the log of record. A sample and what was known beside it.

Written by the join agent only, keyed by node. Everything after the join (models, peaks, node
state) is a pure function of this topic. A window carries the offset of its sample, so that the
join finds by reading its own output where to go on. A *departure* says that a node was deleted.

A record is four parts behind a mark and their sizes: its head and the node's facts as JSON, what
was known of the rows and the sample itself as Arrow streams. A good sample goes in as it came, and
the rest of a node seldom changes: so nothing is encoded twice, and read anew only where it differs.
"""

import dataclasses
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import InvalidRecordError, UndecodableRecordError
from pipeline.topics.arrow import (
    SAMPLE_FIELDS,
    check_schema,
    known_columns,
    metadata_int,
    metadata_of,
    metadata_text,
    read_batch,
    read_header,
    read_metadata,
)
from pipeline.topics.codec import check_version
from pipeline.topics.known_columns import CLASSES as CLASSES
from pipeline.topics.known_columns import CREATED, POD_FIELDS, Known, known_of, read_known
from pipeline.topics.nodes import Strategy, check_node_name
from pipeline.topics.overcommit_terms import Overcommit
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.sample_rows import Listing, SampleRows, read_rows, rows_of
from pipeline.topics.samples import SampleHeader

Floats = npt.NDArray[np.float64]

VERSION: Final = 1
SCHEMA_NAME: Final = "springtide.windows"

FIELDS: Final = (*SAMPLE_FIELDS, *POD_FIELDS)

_SCHEMA: Final = pa.schema(FIELDS)
_MARK: Final = b"STWINDOW"
_SIZES: Final = struct.Struct("<4I")
_FIRST: Final = len(_MARK) + _SIZES.size
_NODES_KEPT: Final = 16_384
_MOST_FACTS_KEPT: Final = 4_096


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the join knew of the node: `known` is false where only its own samples speak of it.

    `allocatable` is that of the node as it is, before amplification. `overcommit` is None where it
    takes no part. `reserved` is what its annotation keeps for others, `host_apps` the classes of
    host applications by name. `unmeasured` is what pods of the node ask for that the sample lacks,
    in sum by class: those that run or are about to.
    """

    known: bool = False
    allocatable: Resources = Resources()
    capacity: Resources = Resources()
    strategy: Strategy = Strategy()
    strategy_hash: str = ""
    overcommit: Overcommit | None = None
    reserved: Resources = Resources()
    host_apps: dict[str, str] = msgspec.field(default_factory=dict)
    unmeasured: dict[str, Resources] = msgspec.field(default_factory=dict)


class WindowRows:
    """The rows of a window: what was measured in `sample`, and what was `known` beside it.

    A column is read when it is asked for: as numbers by `number`, as Arrow by `column`; `batch` has
    all of `FIELDS`.
    """

    def __init__(self, sample: SampleRows, known: Known) -> None:
        self.sample = sample
        self.known = known

    @property
    def num_rows(self) -> int:
        return len(self.sample)

    @property
    def listing(self) -> Listing:
        """Which entities the rows are."""
        return self.sample.listing

    @cached_property
    def ages(self) -> Floats:
        """Seconds from each pod's creation to the window's end, NaN is unknown."""
        if CREATED.name not in self.known.batch.schema.names:
            return self.known.number("age_seconds")
        return np.maximum(
            self.sample.header.window_end_ms / 1000 - self.known.number(CREATED.name), 0.0
        )

    def number(self, name: str) -> Floats:
        """One column of numbers, NaN is unknown; nobody may write to it."""
        if name == "age_seconds":
            return self.ages
        return self.known.number(name) if name in _POD_COLUMNS else self.sample.number(name)

    def column(self, name: str) -> pa.Array:
        """One column of `FIELDS`; raises `KeyError` for another name."""
        if name == "age_seconds":
            unknown = np.isnan(self.ages)
            return pa.array(np.where(unknown, 0.0, self.ages), pa.float64(), mask=unknown)
        return (self.known if name in _POD_COLUMNS else self.sample).column(name)

    @cached_property
    def batch(self) -> pa.RecordBatch:
        """All columns of `FIELDS`."""
        return pa.RecordBatch.from_arrays(
            [self.column(field.name) for field in FIELDS], schema=_SCHEMA
        )


def window_rows(header: SampleHeader, batch: pa.RecordBatch) -> WindowRows:
    """The rows in `batch`, whose columns are some of `FIELDS`."""
    return WindowRows(rows_of(header, batch), known_of(batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One record of the log; a departure has no rows.

    `sample_offset` is where its sample lay (-1 for a departure), `appended_ms` when the broker
    appended that. `bad_values` counts per column the values that were made null.
    """

    type: Literal["window", "departure"]
    header: SampleHeader
    rows: WindowRows
    node: NodeFacts
    sample_offset: int
    appended_ms: int
    bad_values: Mapping[str, int]


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """What a window says first. `node` is that of a departure, which has no sample to say it."""

    version: int = VERSION
    type: Literal["window", "departure"]
    sample_offset: Annotated[int, msgspec.Meta(ge=-1, le=1 << 53)]
    appended_ms: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
    node: str = ""
    bad_values: dict[str, int] = {}


_POD_COLUMNS: Final = frozenset(field.name for field in (*POD_FIELDS, CREATED))
_json = msgspec.json.Encoder(order="deterministic")
_heads = msgspec.json.Decoder(_Head)
_node_facts = msgspec.json.Decoder(NodeFacts)


def departure(node: str, appended_ms: int) -> Window:
    """The record that tells the models that `node` is gone."""
    header = SampleHeader(
        node=node, machine_id="", boot_id="", epoch=0, sequence=0,
        window_start_ms=0, window_end_ms=1,
    )  # fmt: skip
    return Window(
        type="departure",
        header=header,
        rows=window_rows(header, pa.RecordBatch.from_pylist([], schema=_SCHEMA)),
        node=NodeFacts(),
        sample_offset=-1,
        appended_ms=appended_ms,
        bad_values={},
    )


def encode_window(window: Window) -> bytes:
    """The window as a record; equal windows are equal bytes."""
    departs = window.type == "departure"
    head = _Head(
        type=window.type,
        sample_offset=window.sample_offset,
        appended_ms=window.appended_ms,
        node=window.header.node if departs else "",
        bad_values=dict(window.bad_values),
    )
    rows = (b"", b"") if departs else (window.rows.known.data, window.rows.sample.data)
    parts = (_json.encode(head), _json.encode(window.node), *rows)
    return b"".join((_MARK, _SIZES.pack(*map(len, parts)), *parts))


def decode_window(data: bytes) -> Window:
    """The window in `data`. Raises the errors of `read_samples`."""
    if not data.startswith(_MARK):
        return _decode_stream(data)
    first, facts, known, sample = (data[start:end] for start, end in pairwise(_bounds(data)))
    head = _head(first)
    if head.type == "departure":
        check_node_name(head.node)
        return departure(head.node, head.appended_ms)
    rows = WindowRows(read_rows(sample), read_known(known))
    if len(rows.known) != rows.num_rows:
        raise InvalidRecordError(f"{len(rows.known)} rows are known of {rows.num_rows}")
    return Window(
        type=head.type,
        header=rows.sample.header,
        rows=rows,
        node=_kept_facts(facts),
        sample_offset=head.sample_offset,
        appended_ms=head.appended_ms,
        bad_values=head.bad_values,
    )


def as_decoded(window: Window, data: bytes) -> Window:
    """What `decode_window` gives of `data`, which `encode_window` made of `window`, without reading
    its rows again: the sample must be as `read_rows` gave it, `known` as `read_known` did. Raises
    what `decode_window` raises."""
    start, facts, end, *_ = _bounds(data)
    head = _head(data[start:facts])
    return dataclasses.replace(
        window,
        node=_kept_facts(data[facts:end]),
        sample_offset=head.sample_offset,
        appended_ms=head.appended_ms,
        bad_values=head.bad_values,
    )


def sample_offset_of(data: bytes) -> int:
    """Only the offset of the sample that a record of this topic came from, -1 if from none.

    Leaves the rows alone: the join scans its own output with this.
    """
    if data.startswith(_MARK):
        start, end, *_ = _bounds(data)
        return _head(data[start:end]).sample_offset
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise UndecodableRecordError(f"no Arrow stream: {str(error)[:200]}") from error
    metadata = metadata_of(schema)
    check_schema(metadata, SCHEMA_NAME, VERSION)
    return metadata_int(metadata, "sample_offset")


def _bounds(data: bytes) -> list[int]:
    """Where the parts lie: each ends where the next begins."""
    if len(data) < _FIRST:
        raise UndecodableRecordError("window ends before its parts")
    sizes = _SIZES.unpack_from(data, len(_MARK))
    if _FIRST + sum(sizes) != len(data):
        raise UndecodableRecordError(f"parts of the window have not {len(data)} bytes")
    return list(accumulate(sizes, initial=_FIRST))


def _head(data: bytes) -> _Head:
    head: _Head = _decode_json(_heads, data)
    check_version(head.version, VERSION, SCHEMA_NAME)
    return head


def _facts(data: bytes) -> NodeFacts:
    facts: NodeFacts = _decode_json(_node_facts, data)
    return facts


_read_facts = lru_cache(maxsize=_NODES_KEPT)(_facts)


def _kept_facts(data: bytes) -> NodeFacts:
    return _read_facts(data) if len(data) <= _MOST_FACTS_KEPT else _facts(data)


def _decode_json(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise InvalidRecordError(f"window breaks its schema: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableRecordError(f"window cannot be decoded: {error}") from error


def _decode_stream(data: bytes) -> Window:
    """A window of the first layout: one Arrow stream of all columns, the rest in its metadata."""
    batch = read_batch(data)
    metadata = read_metadata(batch)
    check_schema(metadata, SCHEMA_NAME, VERSION)
    kind = metadata_text(metadata, "type")
    if kind not in ("window", "departure"):
        raise InvalidRecordError(f"type {kind[:40]!r} is neither window nor departure")
    header = read_header(metadata)
    rows = window_rows(header, known_columns(batch, _SCHEMA))
    if kind == "window":
        _ = rows.listing
    return Window(
        type="window" if kind == "window" else "departure",
        header=header,
        rows=rows,
        node=_struct(metadata, "node_facts", NodeFacts),
        sample_offset=metadata_int(metadata, "sample_offset"),
        appended_ms=metadata_int(metadata, "appended_ms"),
        bad_values=_struct(metadata, "bad_values", dict[str, int]),
    )


def _struct(metadata: Mapping[str, str], name: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(metadata_text(metadata, name), type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidRecordError(f"header {name!r}: {error}") from error
