"""Derive a node's Mid and Batch from its resources record, with the numbers filled in.

Lines (see `derivation`) are in whole millicores and bytes. Results are those of the record.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from pipeline.processors.explain.derivation import (
    RESOURCES,
    Resource,
    filled_in,
    given,
    step,
    unknown,
)
from pipeline.processors.policy.colocation_config import STATIC
from pipeline.times import parse_time
from pipeline.topics.node_resources import BatchTerms, MidTerms, NodeResourcesRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.resource_amounts import Resources

TIERS: Final = ("mid", "batch")

_AFTER: Final = (
    "how much of it a Node offers also follows from its annotations, its age and the last write: "
    "see docs/reference/actuator.md"
)

_LEFT: Final = "max(allocated - prod_peak, 0)"
_SHARED: Final = "max(trunc(allocated * share / 100) - prod_peak, 0)"
_RECLAIMABLE: Final[Mapping[str, str]] = {
    "proposal": _SHARED,
    "proposal-unallocated": _SHARED,
    "v1.3": _LEFT,
    "v1.6": f"min({_LEFT}, unused)",
}
"""What Prod leaves unused, by formula of Mid; for other formulas the predictor decides it."""

_BELOW: Final = "min(reclaimable, limit)"
_HANDED_ON: Final = "trunc(unallocated * percent / 100)"
_MID: Final[Mapping[str, str]] = {
    "proposal": _BELOW,
    "proposal-unallocated": f"{_BELOW} + unallocated",
    "v1.3": _BELOW,
    "v1.6": f"{_BELOW} + {_HANDED_ON}",
    "source": f"min(reclaimable + {_HANDED_ON}, limit)",
}
_FIXED: Final = "min(trunc(capacity * fixed / 100), trunc(capacity * most / 100))"
_TAKEN: Final[Mapping[str, str]] = {
    "request": "reserved + requested",
    "maxUsageRequest": "outside + larger",
    "usage": "outside + used",
}
_BATCH: Final = "max(capacity - margin - taken - promised, 0)"


def explain_offers(
    record: NodeResourcesRecord,
    *,
    now: float | None = None,
    resources: Sequence[str] = tuple(RESOURCES),
    tiers: Sequence[str] = TIERS,
) -> list[str]:
    """The lines for these resources and tiers; `now` (UTC seconds) adds the age."""
    age = "" if now is None else f", {now - parse_time(record.as_of):.1f} s ago"
    lines = [f"what node {record.node} has for lower tiers, as of {record.as_of}{age}"]
    for resource in map(RESOURCES.__getitem__, resources):
        for tier in tiers:
            lines.append("")
            lines.append(f"{resource.name} for {tier}")
            if (record.mid if tier == "mid" else record.batch) is None:
                # Without size or usage of the node the terms have no meaning.
                why = "the size or the usage of the node is unknown"
                lines.append(f"  {unknown('offered', why)}")
                continue
            parts = _mid(record, resource) if tier == "mid" else _batch(record, resource)
            lines.extend(f"  {line}" for line in parts)
    return [*lines, "", _AFTER]


def _mid(record: NodeResourcesRecord, resource: Resource) -> Iterator[str]:
    strategy, unit = record.strategy, resource.whole_unit
    formula = strategy.mid_formula if strategy.mid_formula in _MID else Overcommit().mid_formula
    terms = _amounts(record.mid_terms, resource)
    is_static = strategy.mid_reclaim_mode == STATIC
    yield f"formula: {'a fixed share' if is_static else formula}"
    if is_static:
        fixed = getattr(strategy, f"mid_static_{resource.name}_reserved_percent")
        most = getattr(strategy, f"mid_{resource.name}_threshold_percent")
        capacity = _of(record.batch_terms.capacity, resource)
        values = {"capacity": capacity, "fixed": fixed, "most": most}
        yield from _given(values, ("capacity",), unit)
        yield from _offered(record.mid, resource, _FIXED, values, terms["buffer"])
        return
    percent, share = strategy.mid_unallocated_percent, strategy.mid_reclaim_percent
    values = terms | {"percent": percent, "share": share}
    is_peak_known = record.mid_terms.prod_peak != Resources()
    yield from _given(values, ("allocatable", "allocated", "unused", "unallocated"), unit)
    yield given("limit, the most that the policy allows for Mid", terms["limit"], unit)
    if is_peak_known:
        yield given("prod_peak, with margin and what was not measured", terms["prod_peak"], unit)
    else:
        yield unknown("prod_peak", f"{record.predictor} has no peak of Prod")
    left = _RECLAIMABLE.get(formula)
    if left is None:
        label = f"reclaimable, by {record.predictor}, at most unused"
        yield given(label, terms["reclaimable"], unit)
    elif not is_peak_known:
        yield given("reclaimable, 0 without a peak", terms["reclaimable"], unit)
    else:
        expression = filled_in(left, values)
        yield step(f"reclaimable, {left}", expression, terms["reclaimable"], unit)
    yield from _offered(record.mid, resource, _MID[formula], values, terms["buffer"])
    lower_bound = record.mid_lower_bound
    if lower_bound is not None:
        yield given("if the record is late, at most", _of(lower_bound, resource), unit)


def _batch(record: NodeResourcesRecord, resource: Resource) -> Iterator[str]:
    strategy, unit = record.strategy, resource.whole_unit
    policy, limit = _policy(strategy, resource), _limit(strategy, resource)
    terms = _amounts(record.batch_terms, resource)
    formula = _TAKEN[policy]
    yield f"policy: {policy}"
    summands = formula.split(" + ")
    yield from _given(terms, ("capacity", "margin", "promised", *summands), unit)
    taken = sum(terms[name] for name in summands)
    yield step(f"taken, {formula}", filled_in(formula, terms), taken, unit)
    values = terms | {"taken": taken}
    amount = _BATCH
    if limit is not None:
        values["percent"] = limit
        amount = f"min({_BATCH}, trunc(capacity * percent / 100))"
    yield from _offered(record.batch, resource, amount, values, terms["buffer"])


def _offered(
    offer: Resources | None,
    resource: Resource,
    formula: str,
    values: Mapping[str, float],
    buffer: int,
) -> Iterator[str]:
    """From the terms to the offered amount."""
    unit, offered = resource.whole_unit, _of(offer or Resources(), resource)
    yield step(f"amount, {formula}", filled_in(formula, values), offered + buffer, unit)
    if buffer:
        yield given("buffer, held back", buffer, unit)
        yield step("offered, amount - buffer", f"{offered + buffer} - {buffer}", offered, unit)


def _given(values: Mapping[str, float], names: Sequence[str], unit: str) -> Iterator[str]:
    return (given(name, values[name], unit) for name in names)


def _amounts(terms: MidTerms | BatchTerms, resource: Resource) -> dict[str, int]:
    named = msgspec.structs.asdict(terms)
    return {name: _of(amounts, resource) for name, amounts in named.items()}


def _of(amounts: Resources, resource: Resource) -> int:
    amount = amounts.cpu_millicores if resource.name == "cpu" else amounts.memory_bytes
    return amount or 0


def _policy(strategy: Overcommit, resource: Resource) -> str:
    """The calculate policy in force. An unknown policy counts as usage, and so does request for
    cpu."""
    policy: str = getattr(strategy, f"{resource.name}_calculate_policy")
    is_known = policy in _TAKEN and (policy != "request" or resource.name == "memory")
    return policy if is_known else "usage"


def _limit(strategy: Overcommit, resource: Resource) -> int | None:
    percent: int | None = getattr(strategy, f"batch_{resource.name}_threshold_percent")
    return percent
