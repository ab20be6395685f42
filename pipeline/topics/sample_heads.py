"""The head of a sample: the message that says which columns it has and, in metadata, its header.

From window to window of a node only a few values of the header change, and seldom in length. So a
head that pyarrow has read is kept as a *template*: where these values lie, and all other bytes.
Another head that is the same in all other bytes has the same columns, and its values are the bytes
in those places. A template is *proven* before it is kept: pyarrow reads it with other values, and
must find these and nothing else changed. Otherwise one who lets a value and a column's name share
their bytes would have the name read as a value.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa

from pipeline.errors import RecordError
from pipeline.topics.arrow import SAMPLE_FIELDS, read_header
from pipeline.topics.byte_cache import Kept
from pipeline.topics.flatbuffer import Entry, metadata_entries
from pipeline.topics.samples import NUMBER_COLUMNS, SampleHeader

# These decide how a head is read, and a few of them serve all nodes.
_CONSTANT: Final = frozenset({b"schema", b"version", b"simulated"})
_FIELDS: Final = {field.name: field for field in SAMPLE_FIELDS}
_NUMBERS: Final = frozenset(NUMBER_COLUMNS)
_COLUMNS_KEPT: Final = 256
_MOST_HEAD_BYTES: Final = 16 * 1024
_MOST_ALIKE: Final = 16
_FRAME: Final = 8  # mark and length, before the message


class Columns:
    """The columns of a sample: `at` says where each lies among them; of numbers, `numbers` says
    where they lie and `rows` which place each has among the numbers. One object for a schema, as
    long as it is kept."""

    def __init__(self, names: Sequence[str]) -> None:
        self.at: Mapping[str, int] = {name: place for place, name in enumerate(names)}
        self.numbers = [place for name, place in self.at.items() if name in _NUMBERS]
        self.rows: Mapping[str, int] = {names[at]: row for row, at in enumerate(self.numbers)}
        self.schema = pa.schema([_FIELDS[name] for name in self.at])


@lru_cache(maxsize=_COLUMNS_KEPT)
def columns_of(names: tuple[str, ...]) -> Columns:
    """The columns of these names, all of `SAMPLE_FIELDS`."""
    return Columns(names)


def own_columns(schema: pa.Schema) -> Columns | None:
    """The columns of a schema that has some of `SAMPLE_FIELDS`, each as it is there, and no others;
    None for any other schema."""
    try:
        names = tuple(schema.names)
    except UnicodeDecodeError:
        return None
    if not _FIELDS.keys() >= set(names):
        return None
    columns = columns_of(names)
    return columns if schema.equals(columns.schema) else None


class _Template(NamedTuple):
    """A head in pieces, one `constant` before, between and after the values of the `variable`
    entries; `said` is what the other entries say."""

    pieces: struct.Struct
    constant: tuple[bytes, ...]
    variable: tuple[str, ...]
    said: Mapping[str, str]
    columns: Columns


_templates: Kept[int, tuple[_Template, ...]] = Kept(most_bytes=64 << 20)


def known_head(head: bytes) -> tuple[Columns, SampleHeader] | None:
    """What is in a head that is like one that was kept; None for any other, and for one that may
    not be read without an error."""
    for template in _templates.get(len(head)) or ():
        pieces = template.pieces.unpack(head)
        if pieces[::2] == template.constant:
            try:
                values = map(bytes.decode, pieces[1::2])
                return template.columns, read_header(
                    {**template.said, **dict(zip(template.variable, values, strict=True))}
                )
            except (RecordError, UnicodeDecodeError):
                return None
    return None


def keep_head(head: bytes, schema: pa.Schema, columns: Columns) -> None:
    """Keep the head of a sample that was found good, from which pyarrow read `schema`."""
    alike = _templates.get(len(head)) or ()
    if len(head) > _MOST_HEAD_BYTES or any(
        template.pieces.unpack(head)[::2] == template.constant for template in alike
    ):
        return
    template = _template(head, schema, columns)
    if template is not None:
        alike = (template, *alike)[:_MOST_ALIKE]
        _templates.put(len(head), alike, len(alike) * 2 * len(head))


def _template(head: bytes, schema: pa.Schema, columns: Columns) -> _Template | None:
    try:
        entries = list(metadata_entries(memoryview(head)[_FRAME:]))
    except struct.error:
        return None
    values = sorted(
        Entry(key, _FRAME + start, _FRAME + end)
        for key, start, end in entries
        if key not in _CONSTANT
    )
    values.sort(key=lambda value: value.start)
    cuts = [0, *(place for value in values for place in value[1:]), len(head)]
    apart = all(start <= end for start, end in pairwise(cuts))
    if not (apart and len(schema.metadata or {}) == len(entries) and _proven(head, values, schema)):
        return None
    pieces = struct.Struct("".join(f"{end - start}s" for start, end in pairwise(cuts)))
    metadata = {key.decode(): text.decode() for key, text in schema.metadata.items()}
    variable = tuple(value.key.decode() for value in values)
    return _Template(
        pieces=pieces,
        constant=pieces.unpack(head)[::2],
        variable=variable,
        said={key: text for key, text in metadata.items() if key not in variable},
        columns=columns,
    )


def _proven(head: bytes, values: Sequence[Entry], schema: pa.Schema) -> bool:
    """Whether all that changes with the bytes of `values` are these values, and they are those
    bytes: tried with two heads in which each bit of them is once 0 and once 1."""
    return all(
        _says(changed, said, schema)
        for changed, said in (_filled(head, values, inverse) for inverse in (0, 0xFF))
    )


def _filled(head: bytes, values: Iterable[Entry], inverse: int) -> tuple[bytes, dict[bytes, bytes]]:
    """`head` with other values of the same lengths, no two alike, and these values."""
    changed, said, count = bytearray(head), {}, 0
    for key, start, end in values:
        text = bytes((count + place) % 251 ^ inverse for place in range(end - start))
        changed[start:end] = said[key] = text
        count += len(text)
    return bytes(changed), said


def _says(head: bytes, said: Mapping[bytes, bytes], schema: pa.Schema) -> bool:
    try:
        found = pa.ipc.read_schema(pa.py_buffer(head))
    except (pa.ArrowException, OSError, ValueError, TypeError):
        return False
    same = found.remove_metadata().equals(schema.remove_metadata(), check_metadata=True)
    return bool(same) and found.metadata == {**(schema.metadata or {}), **said}
