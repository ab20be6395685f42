"""Batch that others than Kubernetes hand out on a node, such as Hadoop YARN (colocation 11).

They say in one annotation what they took; in another they read what there was before it was taken.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.kubernetes.object_records import ORIGIN
from pipeline.processors.overcommit.status_patch import UNREADABLE, amounts_on
from pipeline.topics.resource_amounts import BATCH, whole_bytes

TAKEN: Final = "node.koordinator.sh/thirdPartyAllocations"

_CLASS: Final = "koord-batch"
_MOST: Final = 2**53


class _Allocation(msgspec.Struct, frozen=True):
    name: str = ""
    priority: str = ""
    resources: dict[str, str | int | float] | None = None


class _Allocations(msgspec.Struct, frozen=True):
    allocations: tuple[_Allocation, ...] | None = None


class _Origin(msgspec.Struct, frozen=True):
    resources: dict[str, str]


def taken(annotations: Mapping[str, str]) -> tuple[int, int]:
    """What third parties have of a node's Batch in sum, millicores and bytes.

    Raises InvalidPolicyError for an annotation that cannot be read: what they have is not known.
    """
    text = annotations.get(TAKEN)
    if text is None:
        return 0, 0
    try:
        said = msgspec.json.decode(text, type=_Allocations).allocations or ()
        of_batch = [one.resources or {} for one in said if one.priority == _CLASS]
        cpu, memory = (sum(_amount(one[name]) for one in of_batch if name in one) for name in BATCH)
    except (msgspec.DecodeError, ValueError, UnicodeError, RecursionError) as error:
        raise InvalidPolicyError(f"annotation {TAKEN}: {error!s:.200}") from error
    return min(cpu, _MOST), min(memory, _MOST)


def _amount(text: str | int | float) -> int:
    amount = whole_bytes(text)
    if amount < 0:
        raise ValueError(f"{text} is no amount to take")
    return amount


def origin_on(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """What a node says was there for Batch before third parties took theirs, millicores and bytes:
    `ABSENT` or `UNREADABLE` where it says nothing that we could have written."""
    text = annotations.get(ORIGIN)
    try:
        said = {} if text is None else msgspec.json.decode(text, type=_Origin).resources
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return (UNREADABLE,) * len(BATCH)
    return tuple(amounts_on(said, BATCH))


def origin_text(amounts: Sequence[int]) -> str:
    """The annotation `ORIGIN` that says of these amounts that they were there for Batch.

    It goes with each write of the status, on a node without annotations, too: upstream loses it
    there (colocation 17).
    """
    said = {name: str(amount) for name, amount in zip(BATCH, amounts, strict=True)}
    return msgspec.json.encode(_Origin(said)).decode()
