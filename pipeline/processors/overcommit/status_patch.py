"""The amounts of Batch and Mid in a Node's status, and when they have to be written.

Small changes are not written, because each write of a Node wakes every client that watches Nodes.
Amounts are whole and in the order of `EXTENDED_RESOURCES`; `ABSENT` removes a resource from the
node.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.policy.normalization import LARGEST_RATIO
from pipeline.times import parse_time
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.resource_amounts import BATCH, MID, Resources, whole_bytes

EXTENDED_RESOURCES: Final = (*BATCH, *MID)
"""The extended resources: cpu in millicores and memory in bytes of Batch and of Mid."""

ABSENT: Final = -1
UNREADABLE: Final = -2

_MILLION: Final = 1_000_000
_LARGEST_THRESHOLD: Final = 1000.0


class StatusAmounts(NamedTuple):
    """The amounts of each node, (nodes, 4) in the order of `EXTENDED_RESOURCES`, and its Batch
    before the share of third parties is taken, (nodes, 2), 0 if Batch is removed."""

    amounts: IntArray
    origin: IntArray


def amounts_to_write(
    batch: IntArray, mid: IntArray, ratios: FloatArray, third_party: IntArray
) -> StatusAmounts:
    """The amounts to write for `batch` and `mid` (nodes, 2), whose rows are `ABSENT` where nothing
    is offered.

    The cpu of Batch is scaled to normal CPUs: `ratios` (nodes,) is the worth of a node's CPU, NaN
    if unknown. Mid is not scaled. `third_party` (nodes, 2) is the allocation of third parties.
    """
    has_batch, whole = batch[:, :1] >= 0, normalize_cpu(batch, ratios)
    left = np.maximum(whole - third_party, 0)
    return StatusAmounts(
        amounts=np.hstack([np.where(has_batch, left, ABSENT), mid]),
        origin=np.where(has_batch, whole, 0),
    )


def normalize_cpu(batch: IntArray, ratios: FloatArray) -> IntArray:
    """Amounts (nodes, 2) with cpu times the ratio (nodes,), cut to thousandths of a millicore and
    rounded up. An invalid ratio (NaN, 1 or less, above its limit) changes nothing.
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

    A write from `old` to `new` (nodes, resources) is due if a resource appears or is removed, if
    one differs by more than `thresholds` times its old amount, and if the last write was more than
    `longest_seconds` ago, or at an unknown time (NaN). Exactly at a limit it is not due. A
    threshold of NaN counts as 0.
    """
    appears_or_disappears = np.minimum(old, new) < 0
    differs = (old != new) & (appears_or_disappears | (np.abs(new - old) > _part(old, thresholds)))
    late = ~(ages_seconds <= longest_seconds)
    due: BoolArray = differs.any(axis=1) | late
    return due


def needs_view(old: NodeResourcesRecord | None, new: NodeResourcesRecord | None) -> bool:
    """Whether resources changed so much that a Node's status would be written: smaller changes
    alone make no new view."""
    if old is None or new is None:
        return old is not new
    strategy = new.strategy
    due = is_due(
        np.array([_amounts(old)]),
        np.array([_amounts(new)]),
        np.array([strategy.resource_diff_threshold]),
        np.array([parse_time(new.as_of) - parse_time(old.as_of)]),
        np.array([float(strategy.update_time_threshold_seconds)]),
    )
    return bool(due[0])


def _amounts(record: NodeResourcesRecord) -> list[int]:
    amounts: list[int] = []
    for resources in (record.batch, record.mid, record.mid_lower_bound):
        known = resources or Resources()
        both = (known.cpu_millicores, known.memory_bytes)
        amounts += [-1 if amount is None else amount for amount in both]
    return amounts


def _part(old: IntArray, thresholds: FloatArray) -> IntArray:
    """`old` times the threshold of its node, cut. Computed in millionths, so that rounding of
    floats does not matter."""
    bounded = np.nan_to_num(thresholds, nan=0.0).clip(0.0, _LARGEST_THRESHOLD)
    millionths = np.rint(bounded * _MILLION).astype(np.int64)[:, None]
    whole, rest = np.divmod(np.maximum(old, 0), _MILLION)
    part: IntArray = whole * millionths + rest * millionths // _MILLION
    return part


def read_amounts(
    resources: Mapping[str, Any], names: Sequence[str] = EXTENDED_RESOURCES
) -> list[int]:
    """The amounts of these resources in the `allocatable` of a Node's status: `ABSENT` if missing,
    `UNREADABLE` if invalid."""
    return [_amount(resources[name]) if name in resources else ABSENT for name in names]


def _amount(text: Any) -> int:
    if not isinstance(text, str | int | float):
        return UNREADABLE
    try:
        amount = whole_bytes(text)
    except InvalidRecordError:
        return UNREADABLE
    return amount if amount >= 0 else UNREADABLE


def status_patch(
    amounts: Sequence[int], names: Sequence[str] = EXTENDED_RESOURCES
) -> dict[str, Any]:
    """The merge patch that sets these amounts as capacity and allocatable of a Node's status, and
    removes absent ones."""
    resources = {
        name: None if amount < 0 else str(amount)
        for name, amount in zip(names, amounts, strict=True)
    }
    return {"status": {"capacity": resources, "allocatable": dict(resources)}}
