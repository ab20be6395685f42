"""Bounds on what Mid and Batch pods of a node may request, by its newest record of resources.

A Node offers what the cluster actuator last wrote. That may be more than there is: an actuator that
is dead, or late, withdraws nothing. So the extender compares requests with the newest record, too:

- The record of the last window: its amount and the buffer, which is held back so that changes
  between two writes of a Node need no refusal.
- An older record: its amount alone, because usage may have risen by now.
- A late record: what is certain. For Mid the lower bound of the predictors; for Batch what is left
  if Prod reaches its predicted peak and Mid takes all of its offer.
- A record older than `degrade_time_minutes` and than two windows: nothing, as for the actuator.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np

from pipeline.errors import InvalidPolicyError
from pipeline.processors.arrays import BoolArray, FloatArray
from pipeline.processors.overcommit.status_patch import normalize_cpu
from pipeline.processors.overcommit.third_party import third_party_allocation
from pipeline.processors.policy.normalization import RATIO, read_ratio
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.resource_amounts import BATCH, MID, Resources

BOUNDED: Final = (*MID, *BATCH)
"""The resources with a bound, in the order of `Amounts`."""
_OLD_AFTER_WINDOWS: Final = 1.25
"""A record arrives some seconds after its window, and the next one a window later."""
_LATE_AFTER_WINDOWS: Final = 2.0
_LONGEST_WINDOW_SECONDS: Final = 3600.0
"""The longest window that an exporter sends: a longer one counts as this."""

Amounts = tuple[int, int, int, int]
"""Millicores and bytes of Mid, then of Batch."""
NOTHING: Final[Amounts] = (0, 0, 0, 0)


class MidPart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The fields of `MidTerms` that bounds depend on."""

    prod_peak: Resources = Resources()
    buffer: Resources = Resources()


class BatchPart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The fields of `BatchTerms` that bounds depend on."""

    capacity: Resources = Resources()
    margin: Resources = Resources()
    outside: Resources = Resources()
    buffer: Resources = Resources()


class OfferTerms(NamedTuple):
    """The fields of a `NodeResourcesRecord` that bounds depend on."""

    mid: Resources | None
    mid_lower_bound: Resources | None
    batch: Resources | None
    mid_terms: MidPart
    batch_terms: BatchPart
    strategy: Overcommit


class OfferBounds(NamedTuple):
    """The bounds by a record: with the `buffer`, as `published`, and `certain`."""

    buffered: Amounts
    published: Amounts
    certain: Amounts


def offer_bounds(terms: OfferTerms, annotations: Mapping[str, str]) -> OfferBounds:
    """The bounds of a node with these annotations, in the amounts of its status: Batch in normal
    CPUs, without the allocations of third parties. An amount that is unknown is not offered."""
    mid, batch = _pair(terms.mid), _pair(terms.batch)
    mid_buffer = _buffer(terms.mid_terms.buffer, terms.mid)
    batch_buffer = _buffer(terms.batch_terms.buffer, terms.batch)
    certain_mid = _smaller(_pair(terms.mid_lower_bound), mid)
    certain_batch = _smaller(_certain_batch(terms, mid, mid_buffer, batch_buffer), batch)
    if RATIO in annotations:
        batch_total = _normalized(_sum(batch, batch_buffer), annotations)
        batch, certain_batch = (_normalized(each, annotations) for each in (batch, certain_batch))
    else:
        batch_total = _sum(batch, batch_buffer)
    taken = _third_parties(annotations)
    return OfferBounds(
        (*_sum(mid, mid_buffer), *_less(batch_total, taken)),
        (*mid, *_less(batch, taken)),
        (*certain_mid, *_less(certain_batch, taken)),
    )


def bounds_in_force(
    buffered: FloatArray,
    published: FloatArray,
    certain: FloatArray,
    ages: FloatArray,
    window_seconds: FloatArray,
    degrade_seconds: FloatArray,
    late_after_seconds: float,
) -> FloatArray:
    """The bounds that apply to records of these ages, (nodes, resources), NaN without a record.

    The first three are (nodes, resources), the others (nodes,). A record from the future is as
    doubtful as an old one.
    """
    next_due = next_record_seconds(window_seconds)
    with np.errstate(invalid="ignore"):
        age = np.abs(ages)
        is_old = age >= _OLD_AFTER_WINDOWS / _LATE_AFTER_WINDOWS * next_due
        is_late = age >= np.maximum(late_after_seconds, next_due)
        bounds = np.where(is_old[:, None], published, buffered)
        bounds = np.where(is_late[:, None], certain, bounds)
    withdrawn = is_withdrawn(ages, window_seconds, degrade_seconds)
    in_force: FloatArray = np.where(withdrawn[:, None], 0.0, bounds)
    return in_force


def is_withdrawn(
    ages: FloatArray, window_seconds: FloatArray, degrade_seconds: FloatArray
) -> BoolArray:
    """Whether records of these ages offer nothing, (nodes,): they are older than `degrade_seconds`,
    and than two windows, in which the next record may arrive. False for NaN, without a record.

    Data as far in the future are withdrawn, too, because one of two clocks is wrong.
    """
    longest = np.maximum(degrade_seconds, next_record_seconds(window_seconds))
    with np.errstate(invalid="ignore"):
        result: BoolArray = np.abs(ages) > longest
    return result


def next_record_seconds(window_seconds: FloatArray) -> FloatArray:
    """The age at which a record is late, because the next one is missing, (nodes,): two windows,
    0 where their length is unknown or impossible."""
    windows = np.clip(np.nan_to_num(window_seconds), 0.0, _LONGEST_WINDOW_SECONDS)
    return _LATE_AFTER_WINDOWS * windows


_Pair = tuple[int, int]


def _certain_batch(terms: OfferTerms, mid: _Pair, mid_buffer: _Pair, batch_buffer: _Pair) -> _Pair:
    """Batch at Prod's predicted peak; nothing if that is unknown."""
    peak = terms.mid_terms.prod_peak
    part = terms.batch_terms
    if peak.cpu_millicores is None or peak.memory_bytes is None:
        return 0, 0
    promised = _sum(mid, mid_buffer) if terms.strategy.promise_once else (0, 0)
    taken = (_pair(part.margin), _pair(part.outside), _pair(peak), promised, batch_buffer)
    left = _pair(part.capacity)
    for each in taken:
        left = _less(left, each)
    return left


def _normalized(batch: _Pair, annotations: Mapping[str, str]) -> _Pair:
    try:
        ratio = read_ratio(annotations)
    except InvalidPolicyError:
        ratio = None
    cpu, memory = normalize_cpu(
        np.array([batch], np.int64), np.array([np.nan if ratio is None else float(ratio)])
    )[0].tolist()
    return cpu, memory


def _third_parties(annotations: Mapping[str, str]) -> _Pair:
    """Their allocation; nothing while the annotation is invalid: the offer of the Node, which is a
    bound as well, retains the last one."""
    try:
        return third_party_allocation(annotations)
    except InvalidPolicyError:
        return 0, 0


def _buffer(buffer: Resources, offer: Resources | None) -> _Pair:
    """The buffer of the amounts that are offered: an unknown one has none."""
    cpu, memory = _pair(buffer)
    has_cpu = offer is not None and offer.cpu_millicores is not None
    has_memory = offer is not None and offer.memory_bytes is not None
    return cpu if has_cpu else 0, memory if has_memory else 0


def _pair(amount: Resources | None) -> _Pair:
    return (0, 0) if amount is None else (amount.cpu_millicores or 0, amount.memory_bytes or 0)


def _sum(one: _Pair, other: _Pair) -> _Pair:
    return one[0] + other[0], one[1] + other[1]


def _less(one: _Pair, other: _Pair) -> _Pair:
    return max(one[0] - other[0], 0), max(one[1] - other[1], 0)


def _smaller(one: _Pair, other: _Pair) -> _Pair:
    return min(one[0], other[0]), min(one[1], other[1])
