"""Derive a node's Mid and Batch from its resources record, with the numbers filled in.

Lines (see `derivation`) are in whole millicores and bytes. Results are those of the record, so that
an error of the worker is visible. The formulas and the order of their terms are declared beside
their computation, in `overcommit.mid` and `overcommit.batch`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from pipeline.processors.explain.derivation import (
    RESOURCES,
    Resource,
    fill_in,
    input_line,
    step_line,
    unknown_line,
)
from pipeline.processors.overcommit import batch, mid
from pipeline.processors.overcommit.tier import TermLine
from pipeline.times import parse_time
from pipeline.topics.node_resources import BatchTerms, MidTerms, NodeResourcesRecord
from pipeline.topics.resource_amounts import Resources

TIERS: Final = ("mid", "batch")

_AFTER: Final = (
    "how much of it a Node offers also follows from its annotations, its age and the last write: "
    "see docs/reference/actuator.md"
)


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
            lines += ["", f"{resource.name} for {tier}"]
            lines += (f"  {line}" for line in _offer_lines(record, tier, resource))
    return [*lines, "", _AFTER]


def _offer_lines(record: NodeResourcesRecord, tier: str, resource: Resource) -> Iterator[str]:
    """Yield the lines that derive the offer of one resource to one tier."""
    offer = record.mid if tier == "mid" else record.batch
    if offer is None:
        # Without size or usage of the node the terms have no meaning.
        yield unknown_line("offered", "the size or the usage of the node is unknown")
        return
    terms = _amounts(record.mid_terms if tier == "mid" else record.batch_terms, resource)
    terms["capacity"] = _amount(record.batch_terms.capacity, resource)
    text = (mid if tier == "mid" else batch).formula_text(record, resource.name, terms)
    unit, offered, buffer = resource.whole_unit, _amount(offer, resource), terms["buffer"]
    yield text.heading
    yield from (_line(line, text.values, unit) for line in text.lines)
    expression = fill_in(text.amount, text.values)
    yield step_line(f"amount, {text.amount}", expression, offered + buffer, unit)
    if buffer:
        yield input_line("buffer, held back", buffer, unit)
        yield step_line("offered, amount - buffer", f"{offered + buffer} - {buffer}", offered, unit)
    if tier == "mid" and record.mid_lower_bound is not None:
        yield input_line(
            "if the record is late, at most", _amount(record.mid_lower_bound, resource), unit
        )


def _line(line: TermLine, values: Mapping[str, float], unit: str) -> str:
    label, value = line.label or line.name, values[line.name]
    if line.unknown:
        return unknown_line(label, line.unknown)
    if not line.expression:
        return input_line(label, value, unit)
    return step_line(f"{label}, {line.expression}", fill_in(line.expression, values), value, unit)


def _amounts(terms: MidTerms | BatchTerms, resource: Resource) -> dict[str, int]:
    named = msgspec.structs.asdict(terms)
    return {name: _amount(amounts, resource) for name, amounts in named.items()}


def _amount(amounts: Resources, resource: Resource) -> int:
    amount = amounts.cpu_millicores if resource.name == "cpu" else amounts.memory_bytes
    return amount or 0
