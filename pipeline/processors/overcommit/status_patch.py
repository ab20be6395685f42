"""What is written of Batch and Mid to nodes, and when it must be (colocation 11).

Owes the rest: whole amounts of the extended resources in the order of `WRITTEN`, `ABSENT` where a
resource goes from the node: it is removed, not set to 0. What is written is not due again.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.policy.normalization import LARGEST_RATIO
from pipeline.topics.resource_amounts import BATCH, MID, whole_bytes

WRITTEN: Final = (*BATCH, *MID)
"""Of both the CPU in millicores and the memory in bytes, as whole numbers."""

ABSENT: Final = -1
UNREADABLE: Final = -2

_MILLION: Final = 1_000_000
_LARGEST_THRESHOLD: Final = 1000.0


class WrittenAmounts(NamedTuple):
    """What each node is to have, (nodes, 4) in the order of `WRITTEN`, and what it had for Batch
    before the share of third parties was taken, (nodes, 2), which is 0 where Batch goes."""

    amounts: IntArray
    origin: IntArray


class KnownTiers(NamedTuple):
    """Of which nodes there is an amount, (nodes,): not where colocation is off, or where what it is
    worked out from is unknown or too old."""

    batch: BoolArray
    mid: BoolArray


def written(
    batch: IntArray, mid: IntArray, known: KnownTiers, ratios: FloatArray, third_party: IntArray
) -> WrittenAmounts:
    """What is written of these amounts, (nodes, 2) each.

    The CPU of Batch is that of a normal CPU: `ratios` (nodes,) says how many of them each CPU is,
    NaN where nobody does. Mid is not scaled, it is measured on the node. `third_party` (nodes, 2)
    is what others than Kubernetes have of Batch already.
    """
    has_batch, has_mid = known.batch[:, None], known.mid[:, None]
    whole = normalized(batch, ratios)
    left = np.maximum(whole - third_party, 0)
    return WrittenAmounts(
        amounts=np.hstack([np.where(has_batch, left, ABSENT), np.where(has_mid, mid, ABSENT)]),
        origin=np.where(has_batch, whole, 0),
    )


def normalized(batch: IntArray, ratios: FloatArray) -> IntArray:
    """Amounts (nodes, 2) with the CPU times the ratio (nodes,), cut to thousandths of a millicore,
    and rounded up. A ratio that is none (NaN, 1 or less, or more than it may be) changes nothing.
    """
    counts = (ratios > 1) & (ratios <= LARGEST_RATIO)
    millionths = np.rint(np.where(counts, ratios, 1.0) * _MILLION).astype(np.int64)
    whole, rest = np.divmod(batch[:, 0], _MILLION)
    thousandths = rest * millionths // 1000
    cpu = whole * millionths - (-thousandths // 1000)
    return np.column_stack([cpu, batch[:, 1]])


def is_due(
    old: IntArray,
    new: IntArray,
    thresholds: FloatArray,
    ages_seconds: FloatArray,
    longest_seconds: FloatArray,
) -> BoolArray:
    """Which nodes' status must be written, (nodes,).

    `old` and `new` (nodes, resources) are what is there and what is wanted. It is due where a
    resource appears or goes, where one differs by more than `thresholds` times what was there, so
    from 0 by anything, and where the last write was more than `longest_seconds` ago, or nobody
    knows when (NaN). Exactly at either limit it is not due. A threshold of NaN counts as 0.
    """
    comes_or_goes = np.minimum(old, new) < 0
    differs = (old != new) & (comes_or_goes | (np.abs(new - old) > _part(old, thresholds)))
    late = ~(ages_seconds <= longest_seconds)
    due: BoolArray = differs.any(axis=1) | late
    return due


def _part(old: IntArray, thresholds: FloatArray) -> IntArray:
    """`old` times the threshold of its node, cut; by the digits of the threshold, not by what is
    left of them in a float."""
    bounded = np.nan_to_num(thresholds, nan=0.0).clip(0.0, _LARGEST_THRESHOLD)
    millionths = np.rint(bounded * _MILLION).astype(np.int64)[:, None]
    whole, rest = np.divmod(np.maximum(old, 0), _MILLION)
    part: IntArray = whole * millionths + rest * millionths // _MILLION
    return part


def amounts_on(resources: Mapping[str, Any], names: Sequence[str] = WRITTEN) -> list[int]:
    """What the `allocatable` of a Node's status says of these resources: `ABSENT` where it says
    nothing, `UNREADABLE` where it is no amount that we could have written."""
    return [_amount(resources[name]) if name in resources else ABSENT for name in names]


def _amount(text: Any) -> int:
    if not isinstance(text, str | int | float):
        return UNREADABLE
    try:
        amount = whole_bytes(text)
    except InvalidRecordError:
        return UNREADABLE
    return amount if amount >= 0 else UNREADABLE


def status_patch(amounts: Sequence[int], names: Sequence[str] = WRITTEN) -> dict[str, Any]:
    """The merge patch of a Node's status that gives it these amounts: the same as capacity and as
    allocatable. A resource without an amount is taken from both."""
    said = {
        name: None if amount < 0 else str(amount)
        for name, amount in zip(names, amounts, strict=True)
    }
    return {"status": {"capacity": said, "allocatable": dict(said)}}
