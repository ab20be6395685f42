"""Batch that third parties such as Hadoop YARN allocate on a node.

They write their allocations to one annotation of the Node, and read the amount of Batch before
allocations from another.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.kubernetes.object_records import ORIGIN
from pipeline.processors.overcommit.status_patch import UNREADABLE, read_amounts
from pipeline.topics.resource_amounts import BATCH, LARGEST_AMOUNT, whole_bytes

ALLOCATIONS: Final = "node.koordinator.sh/thirdPartyAllocations"

_CLASS: Final = "koord-batch"


class _Allocation(msgspec.Struct, frozen=True):
    name: str = ""
    priority: str = ""
    resources: dict[str, str | int | float] | None = None


class _Allocations(msgspec.Struct, frozen=True):
    allocations: tuple[_Allocation, ...] | None = None


class _Origin(msgspec.Struct, frozen=True):
    resources: dict[str, str]


def third_party_allocation(annotations: Mapping[str, str]) -> tuple[int, int]:
    """The sum of third parties' allocations of a node's Batch, millicores and bytes. Raises
    InvalidPolicyError for an invalid annotation."""
    text = annotations.get(ALLOCATIONS)
    if text is None:
        return 0, 0
    try:
        allocations = msgspec.json.decode(text, type=_Allocations).allocations or ()
        batch = [each.resources or {} for each in allocations if each.priority == _CLASS]
        cpu, memory = (sum(_amount(each[name]) for each in batch if name in each) for name in BATCH)
    except (msgspec.DecodeError, ValueError, UnicodeError, RecursionError) as error:
        raise InvalidPolicyError(f"annotation {ALLOCATIONS}: {error!s:.200}") from error
    return min(cpu, LARGEST_AMOUNT), min(memory, LARGEST_AMOUNT)


def _amount(text: str | int | float) -> int:
    amount = whole_bytes(text)
    if amount < 0:
        raise ValueError(f"{text} is not an amount")
    return amount


def read_origin(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """Batch before third parties' allocations, in millicores and bytes, by a node's annotation:
    `ABSENT` if not stated, `UNREADABLE` if invalid."""
    text = annotations.get(ORIGIN)
    try:
        resources = {} if text is None else msgspec.json.decode(text, type=_Origin).resources
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return (UNREADABLE,) * len(BATCH)
    return tuple(read_amounts(resources, BATCH))


def encode_origin(amounts: Sequence[int]) -> str:
    """The annotation `ORIGIN` for these amounts of Batch.

    It is written with each status, also on a node without annotations, where Koordinator loses it.
    """
    resources = {name: str(amount) for name, amount in zip(BATCH, amounts, strict=True)}
    return msgspec.json.encode(_Origin(resources)).decode()
