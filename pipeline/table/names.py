"""Names of nodes as columns: ten thousand of a question are found without an object for each.

Owes the rest: the row of each name, exactly as a dictionary would have it. A name is compared by
all of its bytes, eight at a time; the hash decides only where to look.
"""

from collections.abc import Iterator, Sequence
from typing import Final, overload

import numpy as np
import numpy.typing as npt

RowArray = npt.NDArray[np.intp]
Words = list[npt.NDArray[np.uint64]]

_WORD: Final = 8
# By how many bytes of a word are left: which of its bits count.
_LEFT: Final = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], np.uint64)
_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_ROOMY: Final = 4
# Odd, and its bits without order: those of the golden ratio.
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)


class Names(Sequence[str]):
    """The names in a JSON array as its writer wrote it: `data` with a word of nothing behind it,
    and where each begins and ends there, (names,)."""

    def __init__(
        self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.intp],
        ends: npt.NDArray[np.intp],
    ) -> None:  # fmt: skip
        self._data = data
        self._starts = starts
        self._ends = ends
        self._texts: list[str] | None = None
        self._words: Words | None = None

    @classmethod
    def read(cls, json: bytes) -> "Names | None":
        """The names of an array of plain texts, written without blanks; None for any other."""
        data = np.frombuffer(json + bytes(_WORD), np.uint8)
        text = data[:-_WORD]
        if json[:2] != b'["' or json[-2:] != b'"]' or not _is_plain(text):
            return None
        quotes = np.flatnonzero(text == _QUOTE)
        starts, ends = quotes[::2] + 1, quotes[1::2]
        if len(starts) != len(ends) or (starts[1:] != ends[:-1] + 3).any():
            return None
        if (text[ends[:-1] + 1] != _COMMA).any():
            return None
        return cls(data, starts, ends)

    @classmethod
    def of(cls, names: Sequence[str]) -> "Names | None":
        """These names; None where one is not plain."""
        return cls.read(('["' + '","'.join(names) + '"]').encode()) if names else None

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            return self.texts()[place]
        return self._data[self._starts[place] : self._ends[place]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts())

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Names) and self.texts() == other.texts())

    __hash__ = None  # type: ignore[assignment]

    def texts(self) -> list[str]:
        """All names."""
        if self._texts is None:
            self._texts = self.json()[2:-2].decode().split('","') if len(self) else []
        return self._texts

    def take(self, places: RowArray) -> "Names":
        """Some of these names, by their places, in this order."""
        return Names(self._data, self._starts[places], self._ends[places])

    def json(self) -> bytes:
        """The array of these names."""
        if not len(self):
            return b"[]"
        # Those that lay side by side still do.
        breaks = np.flatnonzero(self._starts[1:] != self._ends[:-1] + 3)
        begins = self._starts[np.append(0, breaks + 1)] - 1
        ends = self._ends[np.append(breaks, len(self) - 1)] + 1
        text = self._data.data
        runs = (text[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True))
        return b"[" + b",".join(runs) + b"]"

    def lengths(self) -> npt.NDArray[np.intp]:
        """How many bytes each has."""
        return self._ends - self._starts

    def words(self) -> Words:
        """The bytes of each name as words, (names,) each; what is behind its end is 0."""
        if self._words is None:
            every = np.ndarray((len(self._data) - _WORD + 1,), np.uint64, self._data, strides=(1,))
            left = self.lengths()
            count = -(-max(int(left.max(initial=0)), 0) // _WORD)
            self._words = [
                every[np.minimum(self._starts + _WORD * at, len(every) - 1)]
                & _LEFT[np.clip(left - _WORD * at, 0, _WORD)]
                for at in range(count)
            ]
        return self._words

    def may_repeat(self) -> bool:
        """Whether one may be there twice; rarely so where none is."""
        found = np.sort(_mixed(self.lengths(), self.words()))
        return bool((found[1:] == found[:-1]).any())


class NameIndex:
    """Rows by name, of names that each are there once; `rows` (names,) are theirs."""

    def __init__(self, names: Sequence[str], rows: RowArray) -> None:
        plain = [at for at, name in enumerate(names) if name and _is_plain_text(name)]
        known = Names.of([names[at] for at in plain])
        self._rows = np.append(rows[plain], -1)
        self._lengths = np.append(known.lengths() if known else [], -1).astype(np.intp)
        words = known.words() if known else []
        self._words = [np.append(one, np.uint64(0)) for one in words]
        size = 1 << max(_ROOMY * len(plain), 1).bit_length()
        self._shift = np.uint64(64 - size.bit_length() + 1)
        self._places = np.full(size, -1, np.int32)
        if known:
            self._fill(self._slots(known.lengths(), words))

    def rows(self, names: Names) -> RowArray:
        """The row of each name, (names,); -1 for one that is not known."""
        lengths, words = names.lengths(), names.words()[: len(self._words)]
        # Of shorter names all further words are nothing.
        words += [np.zeros(len(names), np.uint64)] * (len(self._words) - len(words))
        slots = self._slots(lengths, words)
        found = np.full(len(names), -1, np.intp)
        left = np.arange(len(names))
        while len(left):
            places = self._places[slots]
            same = lengths[left] == self._lengths[places]
            for known, asked in zip(self._words, words, strict=True):
                same &= known[places] == asked[left]
            found[left[same]] = self._rows[places[same]]
            # Whoever finds another name looks further; behind nobody there is nothing.
            going_on = ~same & (places >= 0)
            left, slots = left[going_on], (slots[going_on] + 1) % len(self._places)
        return found

    def _slots(self, lengths: npt.NDArray[np.intp], words: Words) -> npt.NDArray[np.int64]:
        return (_mixed(lengths, words) >> self._shift).astype(np.int64)

    def _fill(self, slots: npt.NDArray[np.int64]) -> None:
        left = np.arange(len(slots))
        while len(left):
            free = self._places[slots[left]] == -1
            self._places[slots[left[free]]] = left[free]
            left = left[self._places[slots[left]] != left]
            slots[left] = (slots[left] + 1) % len(self._places)


def _mixed(lengths: npt.NDArray[np.intp], words: Words) -> npt.NDArray[np.uint64]:
    """A number of all of a name, (names,), spread over all of its bits."""
    mixed = lengths.astype(np.uint64) * _FACTOR
    for word in words:
        mixed = (mixed ^ word) * _FACTOR
        mixed ^= mixed >> np.uint64(29)
    return mixed * _FACTOR


def _is_plain(text: npt.NDArray[np.uint8]) -> bool:
    """Whether no byte of it means another than itself."""
    return bool(((text >= 32) & (text < 127) & (text != _BACKSLASH)).all())


def _is_plain_text(name: str) -> bool:
    return name.isascii() and name.isprintable() and '"' not in name and "\\" not in name
