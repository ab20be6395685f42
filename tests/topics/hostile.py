"""Samples that a broken or hostile writer could send."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from pipeline.topics.codec import encode_json
from pipeline.topics.samples import SampleHeader

HEADER = SampleHeader(
    node="node-1", machine_id="m", boot_id="b", epoch=1, sequence=0,
    window_start_ms=0, window_end_ms=30_000,
)  # fmt: skip


def header_with(**changes: Any) -> bytes:
    """The header of a valid sample with some fields replaced, or removed where None."""
    fields = msgspec.json.decode(encode_json(HEADER)) | changes
    return msgspec.json.encode({k: v for k, v in fields.items() if v is not None})


def sample(
    columns: Mapping[str, Any],
    statistics: Sequence[str] = (),
    header: bytes = encode_json(HEADER),
    metadata: Mapping[str | bytes, str | bytes] | None = None,
    compression: str | None = None,
    batches: int = 1,
) -> bytes:
    """A record of these columns, arrays or lists whose type pyarrow guesses.

    `metadata` replaces that of the schema, which names `statistics`.
    """
    arrays = {name: v if isinstance(v, pa.Array) else pa.array(v) for name, v in columns.items()}
    named: Any = {"statistics": msgspec.json.encode(statistics)} if metadata is None else metadata
    return header + b"\n" + stream(list(arrays), list(arrays.values()), named, compression, batches)


def stream(
    names: Sequence[str],
    arrays: Sequence[pa.Array],
    metadata: Mapping[str, Any],
    compression: str | None = None,
    batches: int = 1,
) -> bytes:
    """An Arrow stream; names may repeat."""
    fields = [pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)]
    schema = pa.schema(fields, metadata=metadata)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for _ in range(batches):
            writer.write_batch(pa.RecordBatch.from_arrays(list(arrays), schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def lists(rows: Sequence[Sequence[float | None]]) -> pa.Array:
    """A column of lists, all of the first one's length."""
    return pa.array(rows, pa.list_(pa.float64(), len(rows[0])))


def node_row(*, statistics: Any = None, **more: Any) -> dict[str, Any]:
    """The columns that a sample must have, for a row of the node, and more columns."""
    return {"kind": ["node"], "id": [""], "statistics": statistics or lists([[]]), **more}


def rows_of(kinds: Sequence[str | None], ids: Sequence[str | None]) -> dict[str, Any]:
    """The columns that a sample must have, for these entities."""
    texts = {"kind": pa.array(kinds, pa.string()), "id": pa.array(ids, pa.string())}
    return {**texts, "statistics": lists([[] for _ in kinds] or [[]])[: len(kinds)]}


def replaced(data: bytes, old: int, new: int) -> bytes:
    """`data` with the 64-bit number `old`, which must be in it, written as `new`."""
    before, after = struct.pack("<q", old), struct.pack("<q", new)
    assert before in data
    return data.replace(before, after)


def bit_flips(data: bytes, stride: int = 1) -> Iterator[bytes]:
    """`data` with one bit changed, for every `stride`th bit."""
    for position in range(0, len(data) * 8, stride):
        changed = bytearray(data)
        changed[position >> 3] ^= 1 << (position & 7)
        yield bytes(changed)
