"""Read what a node's annotation reserves for processes outside of Kubernetes.

Koordinator's [node reservation](https://koordinator.sh/docs/user-manuals/node-reservation).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.topics.resource_amounts import LARGEST_AMOUNT, millicores, whole_bytes

ANNOTATION: Final = "node.koordinator.sh/reservation"
RESOURCE_STATUS: Final = "scheduling.koordinator.sh/resource-status"
"""Annotation by which a scheduler gives a pod (LSE, LSR) CPUs of its own."""

# The most that Linux can be built for. `_MOST_LETTERS` holds all their numbers, with a space each.
MOST_CPUS: Final = 8192
_MOST_LETTERS: Final = 6 * MOST_CPUS
_RANGE: Final = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?", re.ASCII)


_Quantity = str | int | float


class _Written(msgspec.Struct, frozen=True, rename="camel"):
    resources: dict[str, _Quantity] = msgspec.field(default_factory=dict)
    reserved_cpus: str = msgspec.field(default="", name="reservedCPUs")
    apply_policy: str = ""


class _Status(msgspec.Struct, frozen=True):
    cpuset: str = ""


class Reservation(NamedTuple):
    """Reserved amounts, None where not stated, and the reserved CPUs by number."""

    cpu_millicores: int | None = None
    memory_bytes: int | None = None
    cpus: frozenset[int] = frozenset()
    apply_policy: str = ""

    @property
    def trims_allocatable(self) -> bool:
        """Whether the scheduler sees less allocatable; not if only CPUs by number are reserved."""
        return self.apply_policy != "ReservedCPUsOnly"


def reservation(annotations: Mapping[str, str]) -> Reservation:
    """Read the reservation from a node's annotations; CPUs by number override their amount.

    An unknown `applyPolicy` counts as the default. Raises InvalidPolicyError for an invalid
    annotation.
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
    cpus = cpu_numbers(written.reserved_cpus, f"annotation {ANNOTATION}")
    return Reservation(len(cpus) * 1000 if cpus else cpu, memory, cpus, written.apply_policy)


def valid_reservation(annotations: Mapping[str, str]) -> Reservation:
    """The reservation; nothing is reserved by an invalid annotation."""
    try:
        return reservation(annotations)
    except InvalidPolicyError:
        return Reservation()


def _amount(text: _Quantity | None, read: Callable[[_Quantity], int]) -> int | None:
    amount = None if text is None else read(text)
    if amount is not None and not 0 <= amount <= LARGEST_AMOUNT:
        raise ValueError(f"{text} is not an amount to reserve")
    return amount


@lru_cache(maxsize=1024)
def pinned_cpus(status: str) -> frozenset[int]:
    """The CPUs by number that a pod has for itself, by its annotation `RESOURCE_STATUS`; none if it
    is invalid."""
    try:
        written = msgspec.json.decode(status, type=_Status)
        return cpu_numbers(written.cpuset, f"annotation {RESOURCE_STATUS}")
    except (msgspec.DecodeError, UnicodeError, RecursionError, InvalidPolicyError):
        return frozenset()


def cpu_numbers(text: str, where: str) -> frozenset[int]:
    """The numbers in a CPU list such as "0-3,8", each below `MOST_CPUS`. Overlapping ranges cost no
    more than their union. Raises InvalidPolicyError, which names `where` the list is."""
    cpus: set[int] = set()
    end = 0
    for first, last in sorted(_ranges(text, where)):
        cpus.update(range(max(first, end), last + 1))
        end = max(end, last + 1)
    return frozenset(cpus)


def _ranges(text: str, where: str) -> Iterator[tuple[int, int]]:
    """The first and the last number of each part, in any order."""
    if len(text) > _MOST_LETTERS:
        raise InvalidPolicyError(
            f"{where}: the list of CPUs has {len(text)} letters, allowed are {_MOST_LETTERS}"
        )
    for part in text.split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part.strip())
        first = int(match[1]) if match else 0
        last = int(match[2] or first) if match else -1
        if not first <= last < MOST_CPUS:
            raise InvalidPolicyError(f"{where}: {text!r:.60} is not a list of CPUs")
        yield first, last
