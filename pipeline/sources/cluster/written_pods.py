"""What was written of each pod, for a million of them: columns, and no object per pod.

Owes the rest: by uid, the node under which its record lies and a digest of its value, in 30 bytes a
place; which of them a whole list did not have. An open-addressing table: linear probing, grown at
two thirds, deleted places kept as marks until then.
"""

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

_FREE: Final = 0
_GONE: Final = 1
_HELD: Final = 2
_LEAST: Final = 1024

Uid = tuple[int, int]


class Change(NamedTuple):
    """What `put` found: whether the record differs from the one written last, and the node under
    which that one lies, None if there was none."""

    differs: bool
    before: str | None


class Seen:
    """Not for several threads. Texts of nodes are kept once, while there are pods on them; uids
    that are no UUID (a file, a test) are kept as texts."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._odd: dict[Uid, str] = {}
        self._held = self._used = 0
        self._allocate(_LEAST)

    def __len__(self) -> int:
        return self._held

    @property
    def nbytes(self) -> int:
        """Memory of the columns."""
        columns = (self._high, self._low, self._digests, self._nodes, self._listed, self._states)
        return sum(column.nbytes for column in columns)

    def put(self, uid: str, node: str, value: bytes) -> Change:
        """Note that the record of `uid` lies under `node` and has this value."""
        key, is_odd = _key(uid)
        number = self._number(node)
        digest = int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")
        place, is_held = self._find(key)
        before, differs = None, True
        if is_held:
            before = self._name_at(place)
            differs = before != node or self._digest_at[place] != digest
        else:
            if self._used + 1 > 2 * len(self._states) // 3:
                self._grow()
                place, _ = self._find(key)
            self._used += self._state_at[place] == _FREE
            self._held += 1
            self._state_at[place] = _HELD
            self._high_at[place], self._low_at[place] = key
            if is_odd:
                self._odd[key] = uid
        self._node_at[place] = number
        self._digest_at[place] = digest
        self._listed_at[place] = True
        return Change(differs, before)

    def node_of(self, uid: str) -> str | None:
        """The node under which the record of a pod lies, None if there is none."""
        place, is_held = self._find(_key(uid)[0])
        return self._name_at(place) if is_held else None

    def keep(self, uid: str) -> None:
        """Note that a list has the pod, whose record stays as it is."""
        place, is_held = self._find(_key(uid)[0])
        if is_held:
            self._listed_at[place] = True

    def drop(self, uid: str) -> str | None:
        """Forget a pod; gives the node under which its record lies, None if there was none."""
        key, _ = _key(uid)
        place, is_held = self._find(key)
        if not is_held:
            return None
        self._state_at[place] = _GONE
        self._held -= 1
        self._odd.pop(key, None)
        return self._name_at(place)

    def begin(self) -> None:
        """A whole list begins: what is put or kept from now on is in it."""
        self._listed[:] = False

    def missing(self) -> Iterator[tuple[str, str]]:
        """Uid and node of each pod that was not put or kept since `begin`, as they come to be
        dropped."""
        places = np.flatnonzero((self._states == _HELD) & ~self._listed)
        for place in places.tolist():
            key = int(self._high[place]), int(self._low[place])
            yield self._text(key), self._name_at(place)

    # -- the table

    def _allocate(self, size: int) -> None:
        self._high = np.zeros(size, np.uint64)
        self._low = np.zeros(size, np.uint64)
        self._digests = np.zeros(size, np.uint64)
        self._nodes = np.zeros(size, np.int32)
        self._listed = np.zeros(size, np.bool_)
        self._states = np.zeros(size, np.uint8)
        # One by one, places of an array cost three times as much.
        self._high_at, self._low_at = self._high.data, self._low.data
        self._digest_at, self._node_at = self._digests.data, self._nodes.data
        self._listed_at, self._state_at = self._listed.data, self._states.data

    def _grow(self) -> None:
        """A table of the size that it should have, with what this one holds: who finds a place
        taken, or is not the first at it, looks at the next."""
        held = np.flatnonzero(self._states == _HELD)
        high, low = self._high[held], self._low[held]
        digests, nodes, listed = self._digests[held], self._nodes[held], self._listed[held]
        self._allocate(max(_LEAST, 1 << (2 * len(held)).bit_length()))
        mask = len(self._states) - 1
        places = (_mixed(high, low) & np.uint64(mask)).astype(np.int64)
        left = np.arange(len(held))
        while len(left):
            waiting = left[self._states[places[left]] == _FREE]
            taken, first = np.unique(places[waiting], return_index=True)
            placed = waiting[first]
            self._states[taken] = _HELD
            self._high[taken], self._low[taken] = high[placed], low[placed]
            self._digests[taken], self._nodes[taken] = digests[placed], nodes[placed]
            self._listed[taken] = listed[placed]
            left = np.setdiff1d(left, placed, assume_unique=True)
            places[left] = (places[left] + 1) & mask
        self._used = len(held)

    def _find(self, key: Uid) -> tuple[int, bool]:
        """The place of a uid and that it is held; else the place where it may be put."""
        high, low = key
        mask = len(self._state_at) - 1
        place = _mix(high, low) & mask
        free = -1
        while True:
            state = self._state_at[place]
            if state == _FREE:
                return (place if free < 0 else free), False
            if state == _GONE:
                free = place if free < 0 else free
            elif self._low_at[place] == low and self._high_at[place] == high:
                return place, True
            place = (place + 1) & mask

    # -- texts

    def _name_at(self, place: int) -> str:
        return self._names[self._node_at[place]]

    def _number(self, node: str) -> int:
        number = self._numbers.get(node)
        if number is None:
            if len(self._names) >= max(_LEAST, 2 * self._held):
                self._forget_names()
            number = self._numbers[node] = len(self._names)
            self._names.append(node)
        return number

    def _forget_names(self) -> None:
        """Let go of nodes of which there is no pod any more: autoscaled ones come for ever."""
        held = np.flatnonzero(self._states == _HELD)
        used, numbers = np.unique(self._nodes[held], return_inverse=True)
        self._nodes[held] = numbers
        self._names = [self._names[number] for number in used.tolist()]
        self._numbers = {name: number for number, name in enumerate(self._names)}

    def _text(self, key: Uid) -> str:
        odd = self._odd.get(key)
        return _uuid_text(key[0] << 64 | key[1]) if odd is None else odd


def _key(uid: str) -> tuple[Uid, bool]:
    """The number that is kept of a uid, and whether its text has to be kept, too: it is that of no
    UUID as Kubernetes writes it."""
    digits = uid.replace("-", "")
    if len(uid) == 36 and len(digits) == 32:
        try:
            whole = int(digits, 16)
        except ValueError:
            pass
        else:
            if _uuid_text(whole) == uid:
                return (whole >> 64, whole & _ALL), False
    whole = int.from_bytes(hashlib.blake2b(uid.encode(), digest_size=16).digest(), "big")
    return (whole >> 64, whole & _ALL), True


def _uuid_text(whole: int) -> str:
    digits = f"{whole:032x}"
    parts = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
    return "-".join(parts)


_FACTORS: Final = 0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F
_ALL: Final = 0xFFFF_FFFF_FFFF_FFFF


def _mix(high: int, low: int) -> int:
    """A number to begin looking at: every bit of a uid changes the lower ones of it."""
    mixed = (high * _FACTORS[0] + low) & _ALL
    mixed = ((mixed ^ (mixed >> 32)) * _FACTORS[1]) & _ALL
    return mixed ^ (mixed >> 29)


def _mixed(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """`_mix` of many."""
    mixed = high * np.uint64(_FACTORS[0]) + low
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(_FACTORS[1])
    found: npt.NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(29))
    return found
