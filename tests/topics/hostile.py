"""Arrow streams that a broken or hostile writer could send."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.topics.samples import SampleHeader

HEADER = SampleHeader(
    node="node-1", machine_id="m", boot_id="b", epoch=1, sequence=0,
    window_start_ms=0, window_end_ms=30_000,
)  # fmt: skip


def stream(
    columns: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
    compression: str | None = None,
    batches: int = 1,
) -> bytes:
    """An IPC stream of `columns` (arrays, or lists whose type pyarrow guesses) below `metadata`,
    by default the header of a sample."""
    arrays = [
        value if isinstance(value, pa.Array) else pa.array(value) for value in columns.values()
    ]
    return write(list(columns), arrays, metadata, compression, batches)


def write(
    names: Sequence[str],
    arrays: Sequence[pa.Array],
    metadata: Mapping[str, str] | None = None,
    compression: str | None = None,
    batches: int = 1,
) -> bytes:
    """As `stream`, with names that may repeat."""
    schema = pa.schema(
        [pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)],
        metadata=HEADER.metadata() if metadata is None else metadata,
    )
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for _ in range(batches):
            writer.write_batch(pa.RecordBatch.from_arrays(list(arrays), schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def node_row(**more: Any) -> dict[str, Any]:
    """The least that a sample must hold, and more."""
    return {"kind": ["node"], "id": [""], **more}


def replaced(data: bytes, old: int, new: int) -> bytes:
    """`data` with the 64-bit number `old`, which must be in it, written as `new`."""
    before, after = struct.pack("<q", old), struct.pack("<q", new)
    assert before in data
    return data.replace(before, after)


def bit_flips(data: bytes, stride: int = 1) -> Any:
    """`data` with one bit changed, for every `stride`th bit."""
    for position in range(0, len(data) * 8, stride):
        changed = bytearray(data)
        changed[position >> 3] ^= 1 << (position & 7)
        yield bytes(changed)


def sample_with(**changes: str | None) -> dict[str, str]:
    """The header of a valid sample with some entries replaced, or removed where None."""
    metadata: dict[str, str] = HEADER.metadata()
    for name, value in changes.items():
        if value is None:
            del metadata[name]
        else:
            metadata[name] = value
    return metadata
