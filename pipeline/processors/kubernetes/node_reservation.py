"""What a node's annotation keeps for processes outside of Kubernetes (colocation 9)."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from pipeline.errors import InvalidPolicyError
from pipeline.processors.arrays import IntArray
from pipeline.topics.resource_amounts import millicores, whole_bytes

ANNOTATION: Final = "node.koordinator.sh/reservation"
APPLY_POLICIES: Final = ("", "Default", "ReservedCPUsOnly")

# What Linux can be built for at most. All of them by number, with a space each, are no longer.
MOST_CPUS: Final = 8192
_MOST_LETTERS: Final = 6 * MOST_CPUS
_RANGE: Final = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?", re.ASCII)
_MOST: Final = 2**53


_Quantity = str | int | float


class _Written(msgspec.Struct, frozen=True, rename="camel"):
    resources: dict[str, _Quantity] = msgspec.field(default_factory=dict)
    reserved_cpus: str = msgspec.field(default="", name="reservedCPUs")
    apply_policy: str = ""


class Reservation(NamedTuple):
    """Amounts that are kept, None where nothing is said of one; CPUs by number, if they are."""

    cpu_millicores: int | None = None
    memory_bytes: int | None = None
    cpus: frozenset[int] = frozenset()
    apply_policy: str = ""

    @property
    def trims_allocatable(self) -> bool:
        """Whether the scheduler sees less: not where only the CPUs themselves are kept."""
        return self.apply_policy != "ReservedCPUsOnly"


def reservation(annotations: Mapping[str, str]) -> Reservation:
    """What the annotations keep; of CPUs by number and by amount the numbers count.

    An `applyPolicy` that nobody knows is the usual one. Raises InvalidPolicyError for an annotation
    that cannot be read: then nothing is kept.
    """
    text = annotations.get(ANNOTATION)
    if text is None:
        return Reservation()
    try:
        written = msgspec.json.decode(text, type=_Written)
        cpu = _amount(written.resources.get("cpu"), millicores)
        memory = _amount(written.resources.get("memory"), whole_bytes)
    except (msgspec.DecodeError, ValueError, UnicodeError, RecursionError) as error:
        raise InvalidPolicyError(f"annotation {ANNOTATION}: {error!s:.200}") from error
    cpus = _cpus(written.reserved_cpus)
    return Reservation(len(cpus) * 1000 if cpus else cpu, memory, cpus, written.apply_policy)


def _amount(text: _Quantity | None, read: Callable[[_Quantity], int]) -> int | None:
    amount = None if text is None else read(text)
    if amount is not None and not 0 <= amount <= _MOST:
        raise ValueError(f"{text} is no amount to keep")
    return amount


def _cpus(text: str) -> frozenset[int]:
    """The numbers in a list as the kernel writes it, "0-3,8", each below `MOST_CPUS`. The work is
    bounded by the length of the text and by the numbers, not by how often it says them."""
    found: set[int] = set()
    beyond = 0
    for first, last in sorted(_ranges(text)):
        found.update(range(max(first, beyond), last + 1))
        beyond = max(beyond, last + 1)
    return frozenset(found)


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    """The first and the last number of each part, in any order."""
    if len(text) > _MOST_LETTERS:
        raise InvalidPolicyError(
            f"annotation {ANNOTATION}: reservedCPUs has {len(text)} letters, allowed is "
            f"{_MOST_LETTERS}"
        )
    for part in text.split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part.strip())
        first = int(match[1]) if match else 0
        last = int(match[2] or first) if match else -1
        if not first <= last < MOST_CPUS:
            raise InvalidPolicyError(f"annotation {ANNOTATION}: {text!r:.60} is no list of CPUs")
        yield first, last


def kubelet_reserved(capacity: IntArray, allocatable: IntArray) -> IntArray:
    """What the kubelet keeps of each node, (nodes, 2): capacity less allocatable, never below 0."""
    kept: IntArray = np.maximum(capacity - allocatable, 0)
    return kept


def trimmed(allocatable: IntArray, of: Sequence[Reservation]) -> IntArray:
    """What a scheduler sees of each node's allocatable, (nodes, 2): less what its annotation keeps,
    never below 0, where the policy says so. Extended resources are not trimmed."""
    kept = [
        (one.cpu_millicores or 0, one.memory_bytes or 0) if one.trims_allocatable else (0, 0)
        for one in of
    ]
    seen: IntArray = np.maximum(allocatable - np.array(kept, np.int64).reshape(len(of), 2), 0)
    return seen
