"""LowRiskOverCommitment of Trimaran: avoid nodes whose limits go beyond what they have, and whose
load goes beyond what was asked for.

risk = weight * limits + (1 - weight) * load, per resource; the worst resource decides. Source: what
the plugin does (scheduling 3.3).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.scorers.beta import below, fit
from pipeline.processors.scorers.load_statistics import Load, shares
from pipeline.processors.scorers.rounding import clamp, half_away

BEST_EFFORT: Final = 0
"""The score of every node for a pod that asks for nothing."""

_MOST_SPREAD: Final = 0.99
"""Of the largest variance that a distribution of that mean can have."""


class Asked(NamedTuple):
    """What the pods of nodes ask for of one resource, (nodes,) each: sums of requests, and of
    limits that are at least the requests; with the pod that is to be placed, and without."""

    request: FloatArray
    limit: FloatArray
    request_before: FloatArray
    limit_before: FloatArray

    def capped(self, allocatable: FloatArray) -> "Asked":
        """With requests of no more than what is there; limits stay."""
        return self._replace(
            request=np.minimum(self.request, allocatable),
            request_before=np.minimum(self.request_before, allocatable),
        )


def asked(requests: FloatArray, limits: FloatArray, pod_request: float, pod_limit: float) -> Asked:
    """What is asked for with a pod and without it; `limits` are the sums of each pod's, which count
    as its request where they are lower, as that of the pod does here."""
    added = max(pod_limit, pod_request)
    return Asked(requests + pod_request, limits + added, requests, limits)


def limit_risk(capacity: FloatArray, asked: Asked) -> FloatArray:
    """How far limits go beyond capacity, as a share of what they are above requests."""
    above = asked.limit - capacity
    with np.errstate(all="ignore"):
        risk = above / (asked.limit - asked.request)
    return np.where(above > 0, risk, 0.0)


def load_risk(
    capacity: FloatArray, asked: Asked, load: Load, smoothing_window: float = 5.0
) -> FloatArray:
    """How likely load is above what was asked for, given that it stays below limits; 0 where the
    resource was not measured, as upstream has it."""
    of = shares(capacity, load)
    mean = of.mean
    spread = np.minimum(
        of.deviation * np.sqrt(smoothing_window), np.sqrt(_MOST_SPREAD * mean * (1 - mean))
    )
    with np.errstate(all="ignore"):
        asked_share = clamp(asked.request_before / capacity)
        limit_share = asked.limit_before / capacity
    within = below(mean, spread, asked_share)
    is_limited = (asked.limit_before < capacity) & (asked.request_before <= asked.limit_before)
    under_limit = below(mean, spread, clamp(limit_share))
    can_be_scaled = is_limited & fit(mean, spread).is_fit & (under_limit > 0)
    scaled = clamp(within / np.where(can_be_scaled, under_limit, 1.0))
    within = np.where(can_be_scaled, scaled, within)
    within = np.where(is_limited & (asked.limit_before == 0), 1.0, within)
    return np.where(np.isfinite(load.average), 1 - within, 0.0)


def risk(
    capacity: FloatArray,
    asked: Asked,
    load: Load,
    *,
    limit_weight: float = 0.5,
    smoothing_window: float = 5.0,
) -> FloatArray:
    """The risk of one resource, (nodes,), 0 to 1."""
    of_load = load_risk(capacity, asked, load, smoothing_window)
    return clamp(limit_weight * limit_risk(capacity, asked) + (1 - limit_weight) * of_load)


def low_risk(risks: Sequence[FloatArray]) -> IntArray:
    """The score of nodes by the risks of their resources, each (nodes,)."""
    worst = np.maximum.reduce(np.array(risks))
    return half_away((1 - worst) * 100)
