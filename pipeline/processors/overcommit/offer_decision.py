"""Decide what each node offers now, from its resources record and the record's age.

A record younger than the node's `updateTimeThresholdSeconds`, or than two windows, is offered as it
is. An older record may hide a rise of usage: then the lower bound of Mid is offered, and no tier
grows. After `degradeTimeMinutes` and two windows nothing is offered. An age equal to a limit is
below it.

The offer is removed if colocation is off for the node, or if usage or size are unknown. Third
parties retain their last known allocation while their annotation is invalid, because their pods
still run.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.errors import InvalidPolicyError, InvalidRecordError
from pipeline.processors.arrays import IntArray
from pipeline.processors.overcommit.offer_bounds import is_withdrawn, next_record_seconds
from pipeline.processors.overcommit.resource_columns import PolicyColumns
from pipeline.processors.overcommit.status_patch import (
    ABSENT,
    EXTENDED_RESOURCES,
    amounts_to_write,
    is_due,
)
from pipeline.processors.overcommit.third_party import (
    encode_origin,
    read_origin,
    third_party_allocation,
)
from pipeline.processors.policy.normalization import read_ratio
from pipeline.times import parse_time
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.resource_amounts import BATCH, LARGEST_AMOUNT, Resources

_ABSENT: Final = (ABSENT, ABSENT)


class OfferInputs(NamedTuple):
    """The state of a node that its offer depends on.

    `policy` is None if colocation is off, `resources` is the record of the node, if any. `amounts`
    (in the order of `EXTENDED_RESOURCES`) and `annotations` are those of the Node, unchanged for
    `unchanged_seconds`, NaN if unknown. With `writes_origin` the annotation with Batch before third
    parties is written, too.
    """

    policy: Overcommit | None
    resources: NodeResourcesRecord | None
    annotations: Mapping[str, str]
    amounts: Sequence[int]
    unchanged_seconds: float
    writes_origin: bool = True


class Offer(NamedTuple):
    """The amounts of a node, `ABSENT` for removed ones, and why; whether to write them now.
    `origin` is the annotation to write with them. `problems` are of invalid annotations of the
    node."""

    amounts: tuple[int, ...]
    origin: str
    why: str
    is_due: bool
    problems: tuple[str, ...]


class _PlainOffer(NamedTuple):
    """The offer of a node before normalization and third parties; None is no offer. An offer that
    `is_late` may hide a rise of usage."""

    mid: tuple[int, int] | None
    batch: tuple[int, int] | None
    why: str
    is_late: bool = False


def check_amounts(record: NodeResourcesRecord) -> None:
    """Raise `InvalidRecordError` if a record offers a negative or too large amount."""
    for name in ("mid", "mid_lower_bound", "batch"):
        offer: Resources | None = getattr(record, name)
        if offer is not None and not all(0 <= amount <= LARGEST_AMOUNT for amount in _pair(offer)):
            raise InvalidRecordError(f"{name} has an amount that is not from 0 to 2**53")


def offers_now(nodes: Sequence[OfferInputs], now: float) -> list[Offer]:
    """Decide the offer of each node at `now`, UTC seconds.

    Arrays are (nodes, tiers and resources) in the order of `EXTENDED_RESOURCES`; those about Batch
    before third parties, `*_origin`, are (nodes, resources); flags of a node are (nodes, 1).
    """
    if not nodes:
        return []
    policies = [node.policy or Overcommit() for node in nodes]
    ages = np.array([_age(node, now) for node in nodes])
    windows = np.array([node.resources.window_seconds if node.resources else 0 for node in nodes])
    degrade = 60.0 * PolicyColumns(policies).column("degrade_time_minutes")
    withdrawn = is_withdrawn(ages, windows, degrade).tolist()
    next_due = next_record_seconds(windows).tolist()
    plain = list(map(_plain_offer, nodes, ages.tolist(), next_due, withdrawn))
    ratios, allocations, problems = zip(
        *(_read_annotations(node.annotations) for node in nodes), strict=True
    )
    old = np.array([node.amounts for node in nodes], np.int64)
    old_origin = np.array([read_origin(node.annotations) for node in nodes], np.int64)
    is_invalid = np.array([allocation is None for allocation in allocations])[:, None]
    new = amounts_to_write(
        _column([offer.batch for offer in plain]),
        _column([offer.mid for offer in plain]),
        np.array(ratios, float),
        np.where(is_invalid, _last_allocation(old, old_origin), _column(allocations)),
    )
    # A late record may hide a rise of usage, and an invalid annotation an allocation. A node
    # without an amount gets none then, because any amount would be growth.
    is_late = np.array([offer.is_late for offer in plain])[:, None]
    must_not_grow = is_late | (is_invalid & _IS_BATCH)
    not_grown = np.where(old < 0, ABSENT, np.minimum(new.amounts, old))
    amounts = np.where(must_not_grow, not_grown, new.amounts)
    # The amount before third parties must not grow either; without one, Batch limits it.
    largest_origin = np.where(old_origin < 0, np.maximum(amounts[:, : len(BATCH)], 0), old_origin)
    new_origin = np.where(is_late | is_invalid, np.minimum(new.origin, largest_origin), new.origin)
    # The annotation changes with the amounts, and is as large a difference.
    writes_origin = np.array([node.writes_origin for node in nodes]) & (amounts >= 0).any(axis=1)
    before = np.hstack([old, np.where(writes_origin[:, None], old_origin, ABSENT)])
    after = np.hstack([amounts, np.where(writes_origin[:, None], new_origin, ABSENT)])
    due = is_due(
        before,
        after,
        np.array([policy.resource_diff_threshold for policy in policies]),
        np.array([node.unchanged_seconds for node in nodes]),
        np.array([policy.update_time_threshold_seconds for policy in policies], float),
    )
    # A write without a difference is not needed.
    due &= (before != after).any(axis=1)
    return [
        Offer(tuple(node_amounts), encode_origin(origin), offer.why, node_due, node_problems)
        for node_amounts, origin, offer, node_due, node_problems in zip(
            amounts.tolist(), new_origin.tolist(), plain, due.tolist(), problems, strict=True
        )
    ]


_IS_BATCH: Final = np.array([name in BATCH for name in EXTENDED_RESOURCES])


def _last_allocation(amounts: IntArray, origin: IntArray) -> IntArray:
    """The last known allocation of third parties, (nodes, 2): `origin` less the present Batch, 0 if
    either is missing."""
    batch = amounts[:, : len(BATCH)]
    return np.where(np.minimum(batch, origin) < 0, 0, np.maximum(origin - batch, 0))


def _age(node: OfferInputs, now: float) -> float:
    """Seconds since the end of the last window; NaN without a record."""
    return math.nan if node.resources is None else now - parse_time(node.resources.as_of)


def _plain_offer(node: OfferInputs, age: float, next_due: float, is_withdrawn: bool) -> _PlainOffer:
    policy, record = node.policy, node.resources
    if policy is None:
        return _PlainOffer(None, None, "colocation is off for the node")
    if record is None:
        return _PlainOffer(None, None, "there is no resources record yet")
    if is_withdrawn:
        return _PlainOffer(None, None, f"stale: as of {record.as_of}")
    if record.mid is None or record.batch is None:
        return _PlainOffer(None, None, "usage or size of the node is unknown")
    batch = _pair(record.batch)
    # A record from the future is as doubtful as an old one: one of the clocks is wrong.
    if abs(age) > max(policy.update_time_threshold_seconds, next_due):
        least = _pair(record.mid_lower_bound or Resources())
        why = f"late: as of {record.as_of}, the lower bound"
        return _PlainOffer(least, batch, why, is_late=True)
    return _PlainOffer(_pair(record.mid), batch, f"as of {record.as_of}")


def _read_annotations(
    annotations: Mapping[str, str],
) -> tuple[float, tuple[int, int] | None, tuple[str, ...]]:
    """CPU ratio, allocation of third parties (None if invalid), and problems of both annotations.
    An invalid ratio counts as none, which offers the least Batch."""
    problems: list[str] = []
    ratio, allocation = None, None
    try:
        ratio = read_ratio(annotations)
    except InvalidPolicyError as error:
        problems.append(error.message)
    try:
        allocation = third_party_allocation(annotations)
    except InvalidPolicyError as error:
        problems.append(error.message)
    return math.nan if ratio is None else float(ratio), allocation, tuple(problems)


def _pair(amount: Resources) -> tuple[int, int]:
    return amount.cpu_millicores or 0, amount.memory_bytes or 0


def _column(pairs: Sequence[tuple[int, int] | None]) -> IntArray:
    return np.array([pair or _ABSENT for pair in pairs], np.int64).reshape(len(pairs), 2)
