"""A memory-efficient table of the pod records on the topic, for a million pods.

For each uid it stores the node of the record and a digest of its value, in 30 bytes a slot, and
whether the current list and the last doubtful one contain the pod. A dictionary would take several
times the memory. It is a hash table with open addressing and linear probing. It grows when two
thirds are used; deleted slots stay marked until then, because a search for another pod may have to
pass them.
"""

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

_FREE: Final = 0
_DELETED: Final = 1
_USED: Final = 2
_MIN_SLOTS: Final = 1024

# Marks of a pod: it is in the current list, it was missing in an earlier one.
_LISTED: Final = 1
_SUSPECT: Final = 2

Uid = tuple[int, int]


class Change(NamedTuple):
    """Whether a record differs from the last one of its pod, and the node of that last record;
    None if there was none."""

    differs: bool
    node_before: str | None


class WrittenPods:
    """The node and digest of each pod's record. Not thread-safe.

    Each node name is stored once, while pods are on the node. Uids that are not UUIDs (of a static
    pod, say) are stored as strings, too.
    """

    def __init__(self) -> None:
        self._node_names: list[str] = []
        self._node_numbers: dict[str, int] = {}
        self._other_uids: dict[Uid, str] = {}
        self._size = self._occupied = 0
        self._allocate(_MIN_SLOTS)

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        """Memory of the columns in bytes."""
        columns = (self._high, self._low, self._digests, self._nodes, self._marks, self._states)
        return sum(column.nbytes for column in columns)

    def put(self, uid: str, node: str, value: bytes) -> Change:
        """Remember that the record of `uid` is on `node` and has this value; mark it as listed."""
        key, is_other = _key(uid)
        number = self._node_number(node)
        digest = int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")
        slot, is_used = self._find(key)
        before, differs = None, True
        if is_used:
            before = self._node_at_slot(slot)
            differs = before != node or self._digest_view[slot] != digest
        else:
            if self._occupied + 1 > 2 * len(self._states) // 3:
                self._grow()
                slot, _ = self._find(key)
            self._occupied += self._state_view[slot] == _FREE
            self._size += 1
            self._state_view[slot] = _USED
            self._high_view[slot], self._low_view[slot] = key
            if is_other:
                self._other_uids[key] = uid
        self._node_view[slot] = number
        self._digest_view[slot] = digest
        self._mark_view[slot] = _LISTED
        return Change(differs, before)

    def node_of(self, uid: str) -> str | None:
        """Return the node of a pod's record, None if there is no record."""
        slot, is_used = self._find(_key(uid)[0])
        return self._node_at_slot(slot) if is_used else None

    def mark_listed(self, uid: str) -> None:
        """Mark a pod as listed without changing its record."""
        slot, is_used = self._find(_key(uid)[0])
        if is_used:
            self._mark_view[slot] = _LISTED

    def drop(self, uid: str) -> str | None:
        """Remove a pod; return the node of its record, None if there was no record."""
        key, _ = _key(uid)
        slot, is_used = self._find(key)
        if not is_used:
            return None
        self._state_view[slot] = _DELETED
        self._size -= 1
        self._other_uids.pop(key, None)
        return self._node_at_slot(slot)

    def begin(self) -> None:
        """Start a new list: no pod is marked as listed."""
        self._marks &= _SUSPECT

    def count_missing(self) -> tuple[int, int]:
        """Return the number of pods not listed since `begin`, and of those among them that were not
        suspects."""
        missing = self._missing()
        return int(missing.sum()), int((missing & (self._marks == 0)).sum())

    def suspect_missing(self) -> None:
        """Mark the pods not listed since `begin`, and no others, as suspects until they are listed
        again."""
        self._marks[:] = np.where(self._missing(), _SUSPECT, self._marks & _LISTED)

    def _missing(self) -> npt.NDArray[np.bool_]:
        missing: npt.NDArray[np.bool_] = (self._states == _USED) & (self._marks & _LISTED == 0)
        return missing

    def missing(self) -> Iterator[tuple[str, str]]:
        """Yield uid and node of each pod not listed since `begin`; the caller may drop it."""
        slots = np.flatnonzero(self._missing())
        for slot in slots.tolist():
            key = int(self._high[slot]), int(self._low[slot])
            yield self._text(key), self._node_at_slot(slot)

    @property
    def num_node_names(self) -> int:
        """Number of node names in memory."""
        return max(len(self._node_names), len(self._node_numbers))

    def forget_unused_nodes(self) -> None:
        """Drop the names of nodes without pods: an autoscaler makes new names for ever."""
        used_slots = np.flatnonzero(self._states == _USED)
        used, numbers = np.unique(self._nodes[used_slots], return_inverse=True)
        self._nodes[used_slots] = numbers
        self._node_names = [self._node_names[number] for number in used.tolist()]
        self._node_numbers = {name: number for number, name in enumerate(self._node_names)}

    # -- the table

    def _allocate(self, size: int) -> None:
        self._high = np.zeros(size, np.uint64)
        self._low = np.zeros(size, np.uint64)
        self._digests = np.zeros(size, np.uint64)
        self._nodes = np.zeros(size, np.int32)
        self._marks = np.zeros(size, np.uint8)
        self._states = np.zeros(size, np.uint8)
        # Access to single elements of an array costs three times as much.
        self._high_view, self._low_view = self._high.data, self._low.data
        self._digest_view, self._node_view = self._digests.data, self._nodes.data
        self._mark_view, self._state_view = self._marks.data, self._states.data

    def _grow(self) -> None:
        """Move all pods to a table of the right size.

        A pod whose slot is taken, or that is not the first to claim it, tries the next slot.
        """
        used_slots = np.flatnonzero(self._states == _USED)
        high, low = self._high[used_slots], self._low[used_slots]
        digests, nodes, marks = (
            self._digests[used_slots],
            self._nodes[used_slots],
            self._marks[used_slots],
        )
        self._allocate(max(_MIN_SLOTS, 1 << (2 * len(used_slots)).bit_length()))
        mask = len(self._states) - 1
        slots = (mix_arrays(high, low) & np.uint64(mask)).astype(np.int64)
        remaining = np.arange(len(used_slots))
        while len(remaining):
            waiting = remaining[self._states[slots[remaining]] == _FREE]
            taken, first = np.unique(slots[waiting], return_index=True)
            placed = waiting[first]
            self._states[taken] = _USED
            self._high[taken], self._low[taken] = high[placed], low[placed]
            self._digests[taken], self._nodes[taken] = digests[placed], nodes[placed]
            self._marks[taken] = marks[placed]
            remaining = np.setdiff1d(remaining, placed, assume_unique=True)
            slots[remaining] = (slots[remaining] + 1) & mask
        self._occupied = len(used_slots)

    def _find(self, key: Uid) -> tuple[int, bool]:
        """Return the slot of a uid and True, or a free slot for it and False."""
        high, low = key
        mask = len(self._state_view) - 1
        slot = mix(high, low) & mask
        free = -1
        while True:
            state = self._state_view[slot]
            if state == _FREE:
                return (slot if free < 0 else free), False
            if state == _DELETED:
                free = slot if free < 0 else free
            elif self._low_view[slot] == low and self._high_view[slot] == high:
                return slot, True
            slot = (slot + 1) & mask

    # -- texts

    def _node_at_slot(self, slot: int) -> str:
        return self._node_names[self._node_view[slot]]

    def _node_number(self, node: str) -> int:
        number = self._node_numbers.get(node)
        if number is None:
            if len(self._node_names) >= max(_MIN_SLOTS, 2 * self._size):
                self.forget_unused_nodes()
            number = self._node_numbers[node] = len(self._node_names)
            self._node_names.append(node)
        return number

    def _text(self, key: Uid) -> str:
        text = self._other_uids.get(key)
        return _uuid_text(key[0] << 64 | key[1]) if text is None else text


def _key(uid: str) -> tuple[Uid, bool]:
    """Return the 128-bit key of a uid, and whether the uid must be stored as a string, too.

    That is the case unless it is a UUID in the spelling of Kubernetes.
    """
    digits = uid.replace("-", "")
    if len(uid) == 36 and len(digits) == 32:
        try:
            whole = int(digits, 16)
        except ValueError:
            pass
        else:
            if _uuid_text(whole) == uid:
                return (whole >> 64, whole & _MASK_64), False
    whole = int.from_bytes(hashlib.blake2b(uid.encode(), digest_size=16).digest(), "big")
    return (whole >> 64, whole & _MASK_64), True


def _uuid_text(whole: int) -> str:
    digits = f"{whole:032x}"
    parts = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
    return "-".join(parts)


_FACTORS: Final = 0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F
_MASK_64: Final = 0xFFFF_FFFF_FFFF_FFFF


def mix(high: int, low: int) -> int:
    """Hash a uid: each of its bits changes the lower bits of the result."""
    mixed = (high * _FACTORS[0] + low) & _MASK_64
    mixed = ((mixed ^ (mixed >> 32)) * _FACTORS[1]) & _MASK_64
    return mixed ^ (mixed >> 29)


def mix_arrays(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """`mix` for arrays."""
    mixed = high * np.uint64(_FACTORS[0]) + low
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(_FACTORS[1])
    hashes: npt.NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(29))
    return hashes
