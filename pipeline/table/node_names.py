"""Lists of node names as Arrow arrays, from a request to its reply, and their rows.

A scheduler sends ten thousand names with every pod, each time in another order. Python strings
would take 1 ms to create, compare and look up, and 0.8 ms more to write into both replies: most of
the time of an answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.processors.arrays import BoolArray, IntArray

RowArray = npt.NDArray[np.intp]
Rows = RowArray | slice

UNKNOWN_ROW: Final = -1

_BETWEEN: Final = b'","'
_PLAIN_NAME: Final = rb'^[a-z0-9.-]*","$'
_MIN_LISTED_SHARE: Final = 1 / 8
"""Arrow scans all known names for each list, which is faster only for at least this share of
them."""


class NodeNames(Sequence[str]):
    """Names, each once, and their `rows` in `name_index`.

    `items` (names,) are the bytes of each name and the `","` that separates it from the next.
    """

    def __init__(self, items: pa.Array, rows: RowArray, name_index: "NameIndex") -> None:
        self.items, self.rows, self.name_index = items, rows, name_index
        self._texts: list[str] | None = None

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: Any) -> Any:
        if self._texts is None and isinstance(position, int):
            return self.items[position].as_py()[: -len(_BETWEEN)].decode()
        return self._strings()[position]

    def __iter__(self) -> Iterator[str]:
        return iter(self._strings())

    def _strings(self) -> list[str]:
        if self._texts is None:
            text = self.json().decode()
            self._texts = text[2:-2].split(_BETWEEN.decode()) if len(self) else []
        return self._texts

    def take(self, is_taken: BoolArray) -> "NodeNames":
        """The names where `is_taken` (names,) is true."""
        if is_taken.all():
            return self
        taken = np.flatnonzero(is_taken)
        items = pc.take(self.items, pa.array(taken), boundscheck=False)
        return NodeNames(items, self.rows[taken], self.name_index)

    def json(self) -> bytes:
        """A JSON array of the names."""
        if len(self) == 0:
            return b"[]"
        return b"".join((b'["', memoryview(self.items.buffers()[2])[:-2], b"]"))

    def followed_by(self, texts: Sequence[bytes], codes: IntArray) -> memoryview:
        """Each name followed by the text at its index in `codes` (names,), without the names whose
        code is negative."""
        chosen = np.flatnonzero(codes >= 0)
        if not len(chosen):
            return memoryview(b"")
        offsets = np.frombuffer(self.items.buffers()[1], np.int32)[: len(self) + 1]
        pieces = np.empty(2 * len(self) + 1, np.int32)
        pieces[::2], pieces[1::2] = offsets, offsets[1:] - len(_BETWEEN)
        buffers = [None, pa.py_buffer(pieces), self.items.buffers()[2]]
        names = pa.Array.from_buffers(pa.binary(), 2 * len(self), buffers)
        order = np.empty(2 * len(chosen), np.int64)
        order[::2], order[1::2] = 2 * chosen, 2 * len(self) + codes[chosen]
        both = pa.concat_arrays([names, pa.array(texts, pa.binary())])
        taken = pc.take(both, pa.array(order), boundscheck=False)
        return memoryview(taken.buffers()[2])


def joined(first: Sequence[str], other: Sequence[str]) -> Sequence[str]:
    """Names and other names, of which none is among the first."""
    if not (isinstance(first, NodeNames) and isinstance(other, NodeNames)):
        return [*first, *other]
    rows = np.concatenate((first.rows, first.name_index.lookup(other)))
    return NodeNames(pa.concat_arrays([first.items, other.items]), rows, first.name_index)


class NameIndex:
    """Finds the rows of names. `rows`, a dictionary from names to rows, must not change meanwhile:
    a table with other names makes another index."""

    def __init__(self, rows: Mapping[str, int]) -> None:
        self._rows = rows
        self._items = pa.array([name.encode() + _BETWEEN for name in rows], pa.binary())
        self._row_numbers = np.fromiter(rows.values(), np.intp, len(rows))

    def lookup(self, names: Sequence[str]) -> RowArray:
        """The row of each name, `UNKNOWN_ROW` for an unknown one."""
        if isinstance(names, NodeNames):
            return names.rows if names.name_index is self else self._find(names.items)
        return np.array([self._rows.get(name, UNKNOWN_ROW) for name in names], np.intp)

    def read(self, json: bytes) -> NodeNames | None:
        """The names of a JSON array. None for a list that needs a full decoder: no array as Go
        writes it, few or repeated names, or names that are neither known nor plain."""
        if not (json.startswith(b'["') and json.endswith(b'"]')) or b"\\" in json:
            return None
        # Known names have neither quotes nor escapes, so this is valid JSON if all items are known.
        text = b"".join((memoryview(json)[2:-1], _BETWEEN[1:]))
        quotes = np.flatnonzero(np.frombuffer(text, np.uint8) == ord('"'))
        count = len(quotes) // 2
        if len(quotes) % 2 or count < _MIN_LISTED_SHARE * len(self._rows):
            return None
        offsets = np.zeros(count + 1, np.int32)
        offsets[1:] = quotes[1::2] + 1
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        items = pa.Array.from_buffers(pa.binary(), count, buffers)
        rows = self._find(items)
        is_unknown = rows == UNKNOWN_ROW
        if is_unknown.any() and not self._are_new(items.filter(pa.array(is_unknown))):
            return None
        return NodeNames(items, rows, self)

    def _are_new(self, items: pa.Array) -> bool:
        """Whether the items are plain names, each once, and none of them is known."""
        are_plain = pc.all(pc.match_substring_regex(items, _PLAIN_NAME)).as_py()
        are_known = pc.any(pc.is_in(items, self._items)).as_py()
        return are_plain and not are_known and len(items.unique()) == len(items)

    def _find(self, items: pa.Array) -> RowArray:
        # A name that occurs twice is found where it occurs first. Known names that are not listed
        # go to one more place.
        positions = pc.index_in(self._items, items).fill_null(len(items)).to_numpy()
        rows: RowArray = np.full(len(items) + 1, UNKNOWN_ROW, np.intp)
        rows[positions] = self._row_numbers
        return rows[:-1]
