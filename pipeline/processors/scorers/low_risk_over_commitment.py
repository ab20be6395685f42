"""LowRiskOverCommitment of Trimaran: avoid nodes whose limits exceed allocatable, and nodes whose
load exceeds requests.

risk = weight * limits + (1 - weight) * load, per resource; the worst resource decides. Source: the
plugin's code.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.scorers import trimaran
from pipeline.processors.scorers.beta import fit, probability_below
from pipeline.processors.scorers.load_statistics import (
    Load,
    average_percent,
    load,
    resource_unit,
    shares,
)
from pipeline.processors.scorers.rounding import clamp, round_half_away
from pipeline.processors.scorers.scorer import NodesView, PodDemand, Scorer, usage_expires

_RESOURCES: Final = ("cpu", "memory")
_DEFAULT_SMOOTHING: Final = 5
_DEFAULT_WEIGHT: Final = 0.5
_BEST_EFFORT: Final = 0
"""The score of every node for a pod without requests and limits."""
_MOST_SPREAD: Final = 0.99
"""Of the largest variance that a distribution of that mean can have."""


class LowRiskOverCommitmentArgs(trimaran.TrimaranArgs, frozen=True, kw_only=True):
    smoothing_window_size: int | None = None
    risk_limit_weights: dict[str, float] | None = None


class RequestSums(NamedTuple):
    """Sums over the pods of nodes of one resource, (nodes,) each: of requests, and of limits that
    are at least the requests; with the pod that is to be placed, and before."""

    request: FloatArray
    limit: FloatArray
    request_before: FloatArray
    limit_before: FloatArray

    def capped(self, allocatable: FloatArray) -> "RequestSums":
        """With requests of at most allocatable; limits are not capped."""
        return self._replace(
            request=np.minimum(self.request, allocatable),
            request_before=np.minimum(self.request_before, allocatable),
        )


def sums_with_pod(
    requests: FloatArray, limits: FloatArray, pod_request: float, pod_limit: float
) -> RequestSums:
    """The sums with a pod and before it. `limits` are sums of limits that are at least the
    requests; the pod's limit is raised to its request."""
    added = max(pod_limit, pod_request)
    return RequestSums(requests + pod_request, limits + added, requests, limits)


Remember = Callable[[FloatArray, Callable[[FloatArray], FloatArray]], FloatArray]
"""Compute a function of inputs (n, nodes), or take a former result."""


def _compute(inputs: FloatArray, function: Callable[[FloatArray], FloatArray]) -> FloatArray:
    return function(inputs)


def limit_risk(capacity: FloatArray, sums: RequestSums) -> FloatArray:
    """The part of limits above capacity, as a share of the part above requests, (nodes,)."""
    above = sums.limit - capacity
    with np.errstate(all="ignore"):
        risk = above / (sums.limit - sums.request)
    return np.where(above > 0, risk, 0.0)


def load_risk(
    capacity: FloatArray,
    sums: RequestSums,
    load: Load,
    smoothing_window: float = 5.0,
    remember: Remember = _compute,
) -> FloatArray:
    """The probability that load exceeds requests, given that it is below the limits,
    (nodes,). Where usage is unknown, the highest of the nodes whose usage is known, 0 without any:
    upstream takes 0 everywhere, so that a node scores better because its usage is unknown."""
    inputs = np.array([capacity, sums.request_before, sums.limit_before, *load])
    risk = remember(inputs, partial(_excess, smoothing_window=smoothing_window))
    known = np.isfinite(load.average)
    highest = np.where(known, risk, 0.0).max(initial=0.0)
    return np.where(known, risk, highest)


def _excess(inputs: FloatArray, smoothing_window: float) -> FloatArray:
    """`load_risk` of nodes whose usage is known, (nodes,), each on its own. `inputs` (5, nodes) are
    capacity, requests and limits without the pod, average and deviation of the load."""
    capacity, requests, limits, average, deviation = inputs
    share = shares(capacity, Load(average, deviation))
    mean = share.mean
    spread = np.minimum(
        share.deviation * np.sqrt(smoothing_window), np.sqrt(_MOST_SPREAD * mean * (1 - mean))
    )
    with np.errstate(all="ignore"):
        request_share = clamp(requests / capacity)
        limit_share = limits / capacity
    within = probability_below(mean, spread, request_share)
    is_limited = (limits < capacity) & (requests <= limits)
    under_limit = probability_below(mean, spread, clamp(limit_share))
    can_be_scaled = is_limited & fit(mean, spread).is_fit & (under_limit > 0)
    scaled = clamp(within / np.where(can_be_scaled, under_limit, 1.0))
    within = np.where(can_be_scaled, scaled, within)
    excess: FloatArray = 1 - np.where(is_limited & (limits == 0), 1.0, within)
    return excess


def total_risk(
    capacity: FloatArray,
    sums: RequestSums,
    load: Load,
    *,
    limit_weight: float = 0.5,
    smoothing_window: float = 5.0,
    remember: Remember = _compute,
) -> FloatArray:
    """The risk of one resource, (nodes,), 0 to 1."""
    by_load = load_risk(capacity, sums, load, smoothing_window, remember)
    return clamp(limit_weight * limit_risk(capacity, sums) + (1 - limit_weight) * by_load)


def request_sums(nodes: NodesView, demand: PodDemand, resource: str) -> RequestSums:
    """Requests and limits of the pods of nodes and of the pod, in the unit of the resource."""
    scale = resource_unit(resource)
    return sums_with_pod(
        nodes.counted(f"request:{resource}") / scale,
        nodes.counted(f"bound:{resource}") / scale,
        demand.counted[f"request:{resource}"] / scale,
        demand.counted[f"bound:{resource}"] / scale,
    ).capped(nodes.allocatable(resource) / scale)


def score(nodes: NodesView, demand: PodDemand, args: LowRiskOverCommitmentArgs) -> IntArray:
    if not any(demand.counted[f"bound:{name}"] for name in _RESOURCES):
        return np.full(len(nodes), _BEST_EFFORT, np.int64)
    risks, smoothing_window = [], float(args.smoothing_window_size or 0)
    for resource in _RESOURCES:
        capacity = nodes.allocatable(resource) / resource_unit(resource)
        risks.append(
            total_risk(
                capacity,
                request_sums(nodes, demand, resource),
                load(nodes, resource, capacity),
                limit_weight=(args.risk_limit_weights or {}).get(resource, _DEFAULT_WEIGHT),
                smoothing_window=smoothing_window,
                remember=partial(nodes.remembered, f"load risk {resource} {smoothing_window}"),
            )
        )
    known = np.isfinite(average_percent(nodes, "cpu"))
    known |= np.isfinite(average_percent(nodes, "memory"))
    worst = np.maximum.reduce(np.array(risks))
    return np.where(known, round_half_away((1 - worst) * 100), 0)


def _defaults(args: LowRiskOverCommitmentArgs) -> LowRiskOverCommitmentArgs:
    def share(value: float | None) -> float:
        return _DEFAULT_WEIGHT if value is None or not 0 <= value <= 1 else value

    size, weights = args.smoothing_window_size, args.risk_limit_weights or {}
    return trimaran.with_defaults(
        args,
        smoothing_window_size=_DEFAULT_SMOOTHING if size is None or size <= 0 else size,
        risk_limit_weights={
            name: share(weights.get(name)) for name in dict.fromkeys(_RESOURCES) | weights
        },
    )


SCORER: Final = Scorer(
    name="LowRiskOverCommitment",
    source="Trimaran",
    text="avoids nodes whose limits exceed what they have, or whose load exceeds their requests",
    args=LowRiskOverCommitmentArgs,
    score=score,
    defaults=_defaults,
    notes=trimaran.notes,
    expiration_seconds=usage_expires,
)
