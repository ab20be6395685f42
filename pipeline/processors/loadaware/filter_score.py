"""Koordinator's filter and score: usage with what is in flight and what the pod will use, of what
the node has (scheduling 1.6 to 1.8), for many nodes at once.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.loadaware.in_flight import Sums
from pipeline.processors.scorers.rounding import MAX_SCORE

PASSES: Final = 0
EXPIRED: Final = 1
USAGE: Final = 2


class Nodes(NamedTuple):
    """Arrays (nodes,), amounts (nodes, resources) in whole millicores and bytes.

    `capacity` is 0 where a node has nothing of a resource. `is_reported` says whether the node was
    ever reported, `has_usage` whether the last report had its usage; `updated_seconds` is its time,
    NaN for none. `compared` is the usage that counts with all that is in flight on the node.
    """

    capacity: IntArray
    compared: IntArray
    is_reported: BoolArray
    has_usage: BoolArray
    updated_seconds: FloatArray


class Verdict(NamedTuple):
    """Of each node, (nodes,): `PASSES`, `EXPIRED` or `USAGE`; for the last the first resource that
    is over, by its number, and the percent that it comes to; -1 and NaN else."""

    code: npt.NDArray[np.int64]
    resource: npt.NDArray[np.int64]
    percent: FloatArray


def aggregated_usage(
    by_span: Mapping[int, FloatArray], span_seconds: int, usage: FloatArray
) -> FloatArray:
    """One statistic of usage, (nodes, resources), of those `by_span` (seconds): of this span, all
    NaN where a node has none; for a span of 0 of the longest that it has, else `usage`."""
    if span_seconds:
        found = by_span.get(span_seconds)
        return np.full_like(usage, np.nan) if found is None else found
    for _, longer in sorted(by_span.items()):
        usage = np.where(_is_known(longer), longer, usage)
    return usage


def compared_usage(usage: FloatArray, in_flight: Sums) -> IntArray:
    """Usage with what is on its way; where a node has none, what its pods come to by estimates.
    What is unknown of one resource alone counts as 0."""
    known = np.isfinite(usage)
    if known.all():
        return usage.astype(np.int64) + in_flight.node_delta
    whole = np.where(known, usage, 0.0).astype(np.int64)
    any_known = np.logical_or.reduce(known, axis=1, keepdims=True)
    return np.where(any_known, whole + in_flight.node_delta, in_flight.node_estimated)


def _is_known(usage: FloatArray) -> BoolArray:
    """Whether anything is known of a node, (nodes, 1)."""
    known: BoolArray = np.logical_or.reduce(np.isfinite(usage), axis=1, keepdims=True)
    return known


def compared_prod(in_flight: Sums) -> IntArray:
    """Prod's usage with what of Prod is on its way."""
    return in_flight.prod_usage + in_flight.prod_delta


def judge(
    nodes: Nodes,
    asked: IntArray,
    thresholds: IntArray,
    expired: BoolArray,
    *,
    passes_expired: bool = False,
) -> Verdict:
    """Which nodes may take a pod that will use `asked` (resources,), by thresholds in percent,
    (nodes, resources) or one row for all, 0 for none. `expired` is all False where age is not
    looked at.

    A node passes without thresholds, and where nobody has reported it.
    """
    with np.errstate(all="ignore"):
        percent = (nodes.compared + asked) / nodes.capacity * 100
    # What is rounded, a half away from zero, is above a number from a half above its whole part on.
    limits = np.where(thresholds > 0, np.floor(thresholds) + 0.5, np.inf)
    over = (percent >= limits) & (nodes.capacity > 0)
    is_over = over.any(axis=1)
    is_judged = thresholds.any(axis=1) & nodes.is_reported
    too_much = is_judged & nodes.has_usage & is_over & ~(expired & passes_expired)
    code = np.where(too_much, USAGE, PASSES)
    if not passes_expired:
        code = np.where(is_judged & expired, EXPIRED, code)
    refused = np.flatnonzero(code == USAGE)
    resource, shown = np.full(len(code), -1), np.full(len(code), np.nan)
    resource[refused] = over[refused].argmax(axis=1)
    shown[refused] = percent[refused, resource[refused]]
    return Verdict(code, resource, shown)


def score(
    nodes: Nodes,
    asked: IntArray,
    expired: BoolArray,
    weights: IntArray,
    dominant_weight: int = 0,
) -> IntArray:
    """How much of each node is left with the pod, (nodes,) from 0 to 100: the mean by `weights`
    (resources,), with the worst resource by `dominant_weight`. 0 where nothing is known. No amount
    is below 0."""
    total = int(weights.sum()) + dominant_weight
    if total <= 0:
        return np.zeros(len(nodes.has_usage), np.int64)
    left = np.maximum(nodes.capacity - nodes.compared - asked, 0)
    shares = left * MAX_SCORE // np.maximum(nodes.capacity, 1)
    # Column by column: each lies in one piece.
    summed = sum(share * weight for share, weight in zip(shares.T, weights.tolist(), strict=True))
    if dominant_weight:
        summed = summed + dominant_weight * np.minimum(shares.min(axis=1), MAX_SCORE)
    return np.where(nodes.is_reported & nodes.has_usage & ~expired, summed // total, 0)
