"""Decide what each node offers now, from its resources record and the record's age.

A record younger than the node's `updateTimeThresholdSeconds`, or than two windows, is offered as it
is. After that the lower bound of Mid is offered, and no tier grows. After `degradeTimeMinutes`
nothing is offered. An age equal to a limit is below it. The offer is removed if colocation is off
for the node, or if usage or size are unknown. Third parties keep their allocation while their
annotation is invalid.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.errors import InvalidPolicyError, InvalidRecordError
from pipeline.processors.arrays import IntArray
from pipeline.processors.overcommit.resource_columns import Policies, is_fresh
from pipeline.processors.overcommit.status_patch import ABSENT, WRITTEN, KnownTiers, is_due, written
from pipeline.processors.overcommit.third_party import origin_on, origin_text, taken
from pipeline.processors.policy.normalization import read_ratio
from pipeline.times import parse_time
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.resource_amounts import BATCH, Resources

_NOTHING: Final = (0, 0)
# The next window needs this many windows to arrive.
_WINDOWS: Final = 2.0
_MOST: Final = 2**53


class OfferCase(NamedTuple):
    """A node: its strategy, None if colocation is off; its resources record, if any; its
    annotations and `amounts` (in the order of `WRITTEN`); for how long these are unchanged, NaN if
    unknown; and whether the annotation of Batch before third parties is written, too."""

    strategy: Overcommit | None
    resources: NodeResourcesRecord | None
    annotations: Mapping[str, str]
    amounts: Sequence[int]
    unchanged_seconds: float
    says_origin: bool = True


class Offer(NamedTuple):
    """The amounts of a node, `ABSENT` for removed ones, and why; whether to write them now.
    `origin` is the annotation to write with them. `problems` are of invalid annotations of the
    node."""

    amounts: tuple[int, ...]
    origin: str
    why: str
    is_due: bool
    problems: tuple[str, ...]


class _Wanted(NamedTuple):
    """Amounts before normalization and third parties, None for no offer."""

    mid: tuple[int, int] | None
    batch: tuple[int, int] | None
    why: str


def check_amounts(record: NodeResourcesRecord) -> None:
    """Raise `InvalidRecordError` if a record offers a negative or too large amount."""
    for name in ("mid", "mid_lower_bound", "batch"):
        of: Resources | None = getattr(record, name)
        for amount in () if of is None else _pair(of):
            if not 0 <= amount <= _MOST:
                raise InvalidRecordError(f"{name} has an amount that is not from 0 to 2**53")


def offers_now(cases: Sequence[OfferCase], now: float) -> list[Offer]:
    """Decide the offer of each node at `now`, UTC seconds."""
    if not cases:
        return []
    in_force = [case.strategy or Overcommit() for case in cases]
    ages = np.array([_age(case, now) for case in cases])
    fresh = is_fresh(ages, Policies(in_force)).tolist()
    wanted = [_wanted(*one) for one in zip(cases, ages.tolist(), fresh, strict=True)]
    ratios, parties, problems = zip(*(_annotated(case.annotations) for case in cases), strict=True)
    old = np.array([case.amounts for case in cases], np.int64)
    origin = np.array([origin_on(case.annotations) for case in cases], np.int64)
    is_unread = np.array([one is None for one in parties])[:, None]
    party = np.where(is_unread, _taken_before(old, origin), _column(parties))
    found = written(
        _column([one.batch for one in wanted]),
        _column([one.mid for one in wanted]),
        KnownTiers(
            np.array([one.batch is not None for one in wanted]),
            np.array([one.mid is not None for one in wanted]),
        ),
        np.array(ratios, float),
        party,
    )
    amounts = found.amounts
    late = np.array([one.why.startswith(_LATE) for one in wanted])[:, None]
    bounded = late | (is_unread & _IS_BATCH)
    amounts = np.where(bounded, np.where(old < 0, ABSENT, np.minimum(amounts, old)), amounts)
    # The annotation changes with the amounts, and is as large a difference.
    says = (amounts >= 0).any(axis=1) & np.array([case.says_origin for case in cases])
    # The amount before third parties must not grow either.
    most = np.where(origin < 0, np.maximum(amounts[:, : len(BATCH)], 0), origin)
    origins = np.where(late | is_unread, np.minimum(found.origin, most), found.origin)
    before = np.hstack([old, np.where(says[:, None], origin, ABSENT)])
    after = np.hstack([amounts, np.where(says[:, None], origins, ABSENT)])
    due = is_due(
        before,
        after,
        np.array([one.resource_diff_threshold for one in in_force]),
        np.array([case.unchanged_seconds for case in cases]),
        np.array([one.update_time_threshold_seconds for one in in_force], float),
    )
    # A write without a difference is not needed.
    due = due & (before != after).any(axis=1)
    return [
        Offer(tuple(of), origin_text(origin), one.why, is_due, wrong)
        for of, origin, one, is_due, wrong in zip(
            amounts.tolist(), origins.tolist(), wanted, due.tolist(), problems, strict=True
        )
    ]


_LATE: Final = "late"
_IS_BATCH: Final = np.array([name in BATCH for name in WRITTEN])


def _taken_before(amounts: IntArray, origin: IntArray) -> IntArray:
    """The last known allocation of third parties, (nodes, 2): `origin` less the present Batch, 0 if
    either is missing."""
    batch = amounts[:, : len(BATCH)]
    return np.where(np.minimum(batch, origin) < 0, 0, np.maximum(origin - batch, 0))


def _age(case: OfferCase, now: float) -> float:
    """Seconds since the end of the last window; NaN without a record."""
    return math.nan if case.resources is None else now - parse_time(case.resources.as_of)


def _wanted(case: OfferCase, age: float, is_fresh: bool) -> _Wanted:
    strategy, found = case.strategy, case.resources
    if strategy is None:
        return _Wanted(None, None, "colocation is off for the node")
    if found is None:
        return _Wanted(None, None, "there is no resources record yet")
    if not is_fresh:
        return _Wanted(None, None, f"stale: as of {found.as_of}")
    mid, batch = found.mid, found.batch
    if mid is None or batch is None:
        return _Wanted(None, None, "usage or size of the node is unknown")
    late_after = max(strategy.update_time_threshold_seconds, _WINDOWS * found.window_seconds)
    if abs(age) > late_after:
        why = f"{_LATE}: as of {found.as_of}, the lower bound"
        return _Wanted(_pair(found.mid_lower_bound or Resources()), _pair(batch), why)
    return _Wanted(_pair(mid), _pair(batch), f"as of {found.as_of}")


def _annotated(
    annotations: Mapping[str, str],
) -> tuple[float, tuple[int, int] | None, tuple[str, ...]]:
    """CPU ratio, allocation of third parties (None if invalid), and problems of both annotations.
    An invalid ratio counts as none, which offers the least Batch."""
    problems: list[str] = []
    ratio, party = float("nan"), None
    try:
        said = read_ratio(annotations)
        ratio = float("nan") if said is None else float(said)
    except InvalidPolicyError as error:
        problems.append(error.message)
    try:
        party = taken(annotations)
    except InvalidPolicyError as error:
        problems.append(error.message)
    return ratio, party, tuple(problems)


def _pair(amount: Resources) -> tuple[int, int]:
    return amount.cpu_millicores or 0, amount.memory_bytes or 0


def _column(of: Sequence[tuple[int, int] | None]) -> IntArray:
    return np.array([one or _NOTHING for one in of], np.int64).reshape(len(of), 2)
