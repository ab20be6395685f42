"""LoadAwareScheduling's comparison: usage plus pods in flight plus the pod, over capacity.

Many nodes are compared in one call. Amounts and rounding are those of the plugin's filter and
score, so that the extender and Koordinator's scheduler decide alike.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.scorers.rounding import MAX_SCORE

PASSES: Final = 0
EXPIRED: Final = 1
USAGE: Final = 2


class NodeUsage(NamedTuple):
    """Arrays (nodes,), amounts (nodes, resources) in whole millicores and bytes.

    `capacity` is 0 where a node has nothing of a resource. `compared` is the usage that counts,
    with pods in flight; where it `is_estimated` (nodes, resources), usage is unknown and `compared`
    is the sum of the estimates of all pods. `is_reported`: the node was ever reported; `has_usage`:
    the last report had usage of any resource.
    """

    capacity: IntArray
    compared: IntArray
    is_estimated: BoolArray
    is_reported: BoolArray
    has_usage: BoolArray


class Verdict(NamedTuple):
    """The verdict on each node, (nodes,): `PASSES`, `EXPIRED` or `USAGE`; with `USAGE` the index of
    the first resource over its threshold and its percent, else -1 and NaN."""

    code: npt.NDArray[np.int64]
    resource: npt.NDArray[np.int64]
    percent: FloatArray


def aggregated_usage(
    by_span: Mapping[int, FloatArray], span_seconds: int, usage: FloatArray
) -> FloatArray:
    """A statistic of usage over a span, (nodes, resources), NaN where a node has none. A span of 0
    is the longest that a node has of a resource, and `usage` if it has none. `by_span` is by
    seconds."""
    if span_seconds:
        statistic = by_span.get(span_seconds)
        return np.full_like(usage, np.nan) if statistic is None else statistic
    for _, longer in sorted(by_span.items()):
        usage = np.where(np.isfinite(longer), longer, usage)
    return usage


def compared_usage(usage: FloatArray, in_flight: IntArray, estimated: IntArray) -> IntArray:
    """Usage plus pods in flight, (nodes, resources); where usage of a resource is unknown, the
    `estimated` usage of all pods of the node."""
    known = np.isfinite(usage)
    if known.all():
        return usage.astype(np.int64) + in_flight
    whole = np.where(known, usage, 0.0).astype(np.int64)
    return np.where(known, whole + in_flight, estimated)


def over_thresholds(percent: FloatArray, thresholds: IntArray) -> BoolArray:
    """Whether usage, rounded half up to a whole percent, is above a threshold; 0 switches it off.

    As in Koordinator, with a threshold of 65, 65.4% passes and 65.5% does not. NaN passes.
    """
    # A rounded percentage exceeds n from n + 0.5 on.
    return (thresholds > 0) & (percent >= np.floor(thresholds) + 0.5)


@lru_cache(maxsize=16)
def _none_refused(nodes: int) -> Verdict:
    verdict = Verdict(np.full(nodes, PASSES), np.full(nodes, -1), np.full(nodes, np.nan))
    for values in verdict:
        values.flags.writeable = False
    return verdict


def judge(
    nodes: NodeUsage,
    estimate: IntArray,
    thresholds: IntArray,
    expired: BoolArray,
    *,
    passes_expired: bool = False,
) -> Verdict:
    """Judge nodes for a pod that will use `estimate` (resources,).

    `thresholds` are percent, (nodes, resources) or one row for all nodes; 0 switches one off.
    `expired` (nodes,) is all False if age does not count. Nodes without thresholds and nodes that
    were never reported pass.
    """
    with np.errstate(all="ignore"):
        percent = (nodes.compared + estimate) / nodes.capacity * 100
    over = over_thresholds(percent, thresholds) & (nodes.capacity > 0)
    is_over: BoolArray = np.logical_or.reduce(over, axis=1)
    if not np.count_nonzero(is_over) and (passes_expired or not np.count_nonzero(expired)):
        return _none_refused(len(is_over))
    is_judged = thresholds.any(axis=1) & nodes.is_reported
    too_much = is_judged & is_over & ~(expired & passes_expired)
    code = np.where(too_much, USAGE, PASSES)
    if not passes_expired:
        code = np.where(is_judged & expired, EXPIRED, code)
    resource, shown = np.full(len(code), -1), np.full(len(code), np.nan)
    if too_much.any():
        # The first resource that is over last. Column by column: each is contiguous in memory.
        for index in reversed(range(over.shape[1])):
            refuses = over[:, index] & (code == USAGE)
            np.copyto(resource, index, where=refuses)
            np.copyto(shown, percent[:, index], where=refuses)
    return Verdict(code, resource, shown)


def score(
    nodes: NodeUsage,
    estimate: IntArray,
    expired: BoolArray,
    weights: IntArray,
    dominant_weight: int = 0,
) -> IntArray:
    """The share of each node that is left with the pod, (nodes,) from 0 to 100: the mean by
    `weights` (resources,), the worst resource weighing `dominant_weight` more. 0 where usage of all
    resources is unknown, or expired.

    The share of a resource whose usage is unknown is estimated, and at most the lowest share that
    is known of any node: a node never scores better because its usage is unknown.
    """
    total = int(weights.sum()) + dominant_weight
    if total <= 0:
        return np.zeros(len(nodes.has_usage), np.int64)
    left = np.maximum(nodes.capacity - nodes.compared - estimate, 0)
    shares = left * MAX_SCORE // np.maximum(nodes.capacity, 1)
    is_scored = nodes.is_reported & nodes.has_usage & ~expired
    if np.count_nonzero(nodes.is_estimated):
        known = is_scored[:, None] & ~nodes.is_estimated & (nodes.capacity > 0)
        lowest = np.where(known, shares, MAX_SCORE).min(axis=0, initial=MAX_SCORE)
        shares = np.where(nodes.is_estimated, np.minimum(shares, lowest), shares)
    # Column by column: each is contiguous in memory.
    summed = sum(share * weight for share, weight in zip(shares.T, weights.tolist(), strict=True))
    if dominant_weight:
        summed = summed + dominant_weight * np.minimum(shares.min(axis=1), MAX_SCORE)
    return np.where(is_scored, summed // total, 0)
