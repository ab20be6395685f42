"""Names of nodes as columns: ten thousand of a question are found without an object for each.

Owes the rest: the row of each name, exactly as a dictionary would have it. A name is compared by
all of its bytes, eight at a time; the hash decides only where to look. What is touched is what it
costs, for in a busy process none of it is in the caches: so there is no column that is not needed.
"""

from collections.abc import Iterator, Sequence
from typing import Final, overload

import numpy as np
import numpy.typing as npt

RowArray = npt.NDArray[np.intp]
Words = list[npt.NDArray[np.uint64]]

LONGEST: Final = 256
"""Longer names are none of a Node, and not read here: each would make a column of all."""
_WORD: Final = 8
_BEHIND: Final = LONGEST + _WORD
# By how many bytes of a word are left: which of its bits count.
_LEFT: Final = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], np.uint64)
_QUOTE, _COMMA, _BLANK = b'", '
_FIRST_PLAIN, _LAST_PLAIN = b" ~"
_ROOMY: Final = 4
# Odd, and its bits without order: those of the golden ratio.
_ODD: Final = 0x9E3779B97F4A7C15
_FACTOR: Final = np.uint64(_ODD)
_HALF: Final = np.uint64(32)
_LAST_NUMBER: Final = np.uint64((1 << 64) - 1)


class Names(Sequence[str]):
    """The names in a JSON array as its writer wrote it: `data` with nothing behind it for as long
    as a name can be, and where each begins and ends there, (names,)."""

    def __init__(
        self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.intp],
        ends: npt.NDArray[np.intp],
    ) -> None:  # fmt: skip
        self._data = data
        self._starts = starts
        self._ends = ends
        self._texts: list[str] | None = None
        self._each: npt.NDArray[np.void] | None = None
        self._words: Words | None = None
        self._mixed: npt.NDArray[np.uint64] | None = None
        self.found: tuple[NameIndex, RowArray] | None = None
        """Where they were found last."""

    @classmethod
    def read(cls, json: bytes) -> "Names | None":
        """The names of an array of plain texts, written without blanks; None for any other, and
        where one is longer than `LONGEST`."""
        if json[:2] != b'["' or json[-2:] != b'"]' or b"\\" in json:
            return None
        data = np.frombuffer(json + bytes(_BEHIND), np.uint8)
        text = data[:-_BEHIND]
        if text.min() < _FIRST_PLAIN or text.max() > _LAST_PLAIN:
            return None
        quotes = np.flatnonzero(text == _QUOTE)
        starts, ends = quotes[::2] + 1, quotes[1::2]
        if len(starts) != len(ends) or (starts[1:] != ends[:-1] + 3).any():
            return None
        if (text[ends[:-1] + 1] != _COMMA).any() or (ends - starts).max() > LONGEST:
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

    @property
    def are_alike(self) -> bool:
        """Whether all in as many bytes as the longest are at most twice as long together."""
        lengths = self.lengths()
        return bool(lengths.max(initial=0) * len(lengths) <= 2 * lengths.sum())

    def words(self) -> Words:
        """The bytes of each name as words, (names,) each; what is behind its end is 0."""
        if self._words is None:
            left = self.lengths()
            shortest, longest = (int(left.min()), int(left.max())) if len(left) else (0, 0)
            count = -(-longest // _WORD)
            pieces = self._pieces()
            each = pieces.view(np.uint64).reshape(len(self), pieces.itemsize // _WORD)
            self._words = [*each.T[:count].copy()]
            for at in range(shortest // _WORD, count):
                self._words[at] &= _LEFT[np.clip(left - _WORD * at, 0, _WORD)]
        return self._words

    def ended(self) -> npt.NDArray[np.void]:
        """Each name with the quote at its end, and blanks where others are longer, (names,)."""
        lengths, pieces = self.lengths(), self._pieces()
        shortest, longest = (int(lengths.min()), int(lengths.max())) if len(self) else (0, 0)
        if shortest < longest:
            pieces = pieces.copy()
            texts = pieces.view(np.uint8).reshape(len(self), pieces.itemsize)
            texts = texts[:, shortest + 1 : longest + 1]
            behind = (lengths - shortest).astype(np.uint16)[:, None]
            texts[np.arange(longest - shortest, dtype=np.uint16) >= behind] = _BLANK
        return np.ndarray((len(self),), f"V{longest + 1}", pieces, strides=pieces.strides)

    def _pieces(self) -> npt.NDArray[np.void]:
        """The bytes from the first of each name on, in words enough for any with its end."""
        if self._each is None:
            size = _WORD * (int(self.lengths().max(initial=0)) // _WORD + 1)
            many = len(self._data) - size + 1
            every: npt.NDArray[np.void] = np.ndarray((many,), f"V{size}", self._data, strides=(1,))
            self._each = every[self._starts]
        return self._each

    def mixed(self) -> npt.NDArray[np.uint64]:
        """A number of all of each name, (names,), spread over all of its bits."""
        if self._mixed is None:
            mixed = np.zeros(len(self), np.uint64)
            for at, word in enumerate(self.words()):
                # A word of nothing adds nothing: a name is the same beside longer ones.
                mixed += (word ^ (word >> _HALF)) * np.uint64(pow(_ODD, at + 1, 1 << 64))
            self._mixed = (mixed ^ (mixed >> _HALF)) * _FACTOR
        return self._mixed

    def may_repeat(self) -> bool:
        """Whether one may be there twice; rarely so where none is."""
        mixed, each = self.mixed(), np.arange(len(self), dtype=np.int32)
        shift = _shift(len(self))
        slots = _slots(mixed, shift)
        last = np.empty(_size(shift), np.int32)
        last[slots] = each
        owners = last[slots]
        doubtful = owners != each
        # With whoever took their places all are there whose numbers may be alike.
        doubtful[owners[doubtful]] = True
        found = np.sort(mixed[doubtful])
        return bool((found[1:] == found[:-1]).any())


class NameIndex:
    """The places of `names`, of which each plain one is there once. One that is not plain, and one
    of nothing, is not found."""

    def __init__(self, names: Sequence[str]) -> None:
        plain = np.array([at for at, name in enumerate(names) if _is_plain_text(name)], np.int32)
        known = Names.of([names[at] for at in plain.tolist()])
        words = known.words() if known else []
        # The last is what is nowhere.
        self._words = [np.zeros(len(names) + 1, np.uint64) for _ in words]
        for mine, word in zip(self._words, words, strict=True):
            mine[plain] = word
        self._shift = _shift(len(plain))
        self._first = np.full(_size(self._shift), -1, np.int32)
        # Those whose slots others have, by their numbers, and the last of all numbers behind them.
        self._others = np.array([_LAST_NUMBER])
        self._other_places = np.array([-1])
        self._alike = 1
        if known:
            self._fill(known.mixed(), plain)

    def _fill(self, mixed: npt.NDArray[np.uint64], places: npt.NDArray[np.int32]) -> None:
        slots = _slots(mixed, self._shift)
        self._first[slots] = places
        others = np.flatnonzero(self._first[slots] != places)
        others = others[np.argsort(mixed[others])]
        self._others = np.append(mixed[others], _LAST_NUMBER)
        self._other_places = np.append(places[others], -1)
        _, counts = np.unique(self._others, return_counts=True)
        self._alike = int(counts.max())

    def rows(self, names: Names) -> RowArray:
        """The place of each name, (names,); -1 for one that is not known."""
        if names.found is None or names.found[0] is not self:
            names.found = self, self._find(names)
        return names.found[1]

    def _find(self, names: Names) -> RowArray:
        mixed, asked = names.mixed(), self._of_ours(names)
        places = self._first[_slots(mixed, self._shift)].astype(np.intp)
        same = self._are(places, asked)
        found: RowArray = np.where(same, places, -1)
        # Whoever finds another name there may be among the others.
        left = np.flatnonzero(~same & (places >= 0))
        at = np.searchsorted(self._others, mixed[left])
        asked = [word[left] for word in asked]
        # So many may have one number; whoever else comes behind has other words.
        for step in range(self._alike):
            places = self._other_places[np.minimum(at + step, len(self._others) - 1)]
            same = self._are(places, asked)
            found[left[same]] = places[same]
        for word in names.words()[len(self._words) :]:
            found[word != 0] = -1
        return found

    def _of_ours(self, names: Names) -> Words:
        """As many words of each as we have: of shorter names all further are nothing."""
        words = names.words()[: len(self._words)]
        return words + [np.zeros(len(names), np.uint64)] * (len(self._words) - len(words))

    def _are(self, places: RowArray, asked: Words) -> npt.NDArray[np.bool_]:
        """Whether these are the places of the names of these words."""
        same = places >= 0
        for known, word in zip(self._words, asked, strict=True):
            same &= known[places] == word
        return same


def _shift(names: int) -> np.uint64:
    """How many bits of a number are too many for a slot, with some slots for each name."""
    return np.uint64(64 - max(_ROOMY * names, 1).bit_length())


def _size(shift: np.uint64) -> int:
    return 1 << 64 - int(shift)


def _slots(mixed: npt.NDArray[np.uint64], shift: np.uint64) -> npt.NDArray[np.int64]:
    return (mixed >> shift).astype(np.int64)


def _is_plain_text(name: str) -> bool:
    fits = 0 < len(name) <= LONGEST and name.isascii() and name.isprintable()
    return fits and '"' not in name and "\\" not in name
