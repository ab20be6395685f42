"""The gaps once more, slowly: sample by sample, in exact fractions, from the fields of a trace."""

from collections.abc import Sequence
from fractions import Fraction
from math import floor, isnan
from typing import NamedTuple

from pipeline.processors.backtest.trace import Trace

QUANTILES = (Fraction(95, 100), Fraction(99, 100), Fraction(1))
Values = list[Fraction | None]


class Reference(NamedTuple):
    pods: int
    unknown_pods: int
    without_request: int
    without_limit: int
    steps: int
    unknown_steps: int
    usage_mean: Fraction | None
    of_requests: Values
    of_limits: Values
    usage: Values
    pods_alone: Values


def quantile(values: Sequence[Fraction], q: Fraction) -> Fraction:
    """The quantile with linear interpolation between the samples beside it."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def sample(trace: Trace, stay: int, step: int, r: int) -> Fraction | None:
    row = trace.first_sample[stay] + step - trace.start[stay]
    value = float(trace.usage[row, r])
    return None if isnan(value) else Fraction(value)


def quotient(part: Fraction, whole: Fraction) -> Fraction | None:
    return part / whole if whole else None


def shares(used: list[Fraction], given: list[Fraction]) -> Values:
    """Mean and peak."""
    each = [u / g for u, g in zip(used, given, strict=True) if g]
    return [quotient(sum(used, Fraction(0)), sum(given, Fraction(0))), max(each, default=None)]


def measure(trace: Trace, stays: Sequence[int], r: int) -> Reference:
    own = {
        stay: [
            value
            for step in range(int(trace.start[stay]), int(trace.end[stay]))
            if (value := sample(trace, stay, step, r)) is not None
        ]
        for stay in stays
    }
    counted = [stay for stay in stays if own[stay]]
    totals, alone, unknown_steps = [], [], 0
    used: tuple[list[Fraction], list[Fraction]] = ([], [])
    given: tuple[list[Fraction], list[Fraction]] = ([], [])
    for step in range(trace.steps):
        running = [stay for stay in counted if trace.start[stay] <= step < trace.end[stay]]
        usage = {stay: sample(trace, stay, step, r) for stay in running}
        known = {stay: value for stay, value in usage.items() if value is not None}
        if not running:
            continue
        if len(known) < len(running):
            unknown_steps += 1
            continue
        totals.append(sum(known.values(), Fraction(0)))
        alone.append([sum((quantile(own[s], q) for s in running), Fraction(0)) for q in QUANTILES])
        for n, amounts in enumerate((trace.requests, trace.limits)):
            having = [stay for stay in running if amounts[stay, r]]
            used[n].append(sum((known[stay] for stay in having), Fraction(0)))
            given[n].append(sum((Fraction(float(amounts[s, r])) for s in having), Fraction(0)))
    nothing: Values = [None] * len(QUANTILES)
    return Reference(
        pods=len(counted),
        unknown_pods=len(stays) - len(counted),
        without_request=sum(not trace.requests[stay, r] for stay in counted),
        without_limit=sum(not trace.limits[stay, r] for stay in counted),
        steps=len(totals),
        unknown_steps=unknown_steps,
        usage_mean=quotient(sum(totals, Fraction(0)), Fraction(len(totals))),
        of_requests=shares(used[0], given[0]),
        of_limits=shares(used[1], given[1]),
        usage=[quantile(totals, q) for q in QUANTILES] if totals else nothing,
        pods_alone=[
            quantile([row[n] for row in alone], q) for n, q in enumerate(QUANTILES)
        ] if totals else nothing,
    )  # fmt: skip
