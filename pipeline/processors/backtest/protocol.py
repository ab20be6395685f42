"""The protocol by which predictors are judged: oracle, violations, severity and savings.

A prediction at step t knows the samples up to t and holds for the horizon, the steps t + 1 to
t + H. The oracle is the highest total usage, in the horizon, of the pods that run at t: a pod that
ends counts 0 from then on, and pods that arrive later do not count. A pod that returns to its node
soon (`Trace.earlier_stays`) had not ended; if it was absent at t, its return is an arrival.
Prediction and oracle are cut at the sum of the requests of the pods that run at t, because beyond
that nothing can be given away. The oracle of pods now on a machine is that of Bashir et al., Take
it to the limit (EuroSys 2021).

Where the usage of a pod is unknown in the horizon while the pod runs, the oracle is unknown, and
the prediction is not scored.

Amounts are millicores and bytes. A prediction of NaN is unknown: nothing is given away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.backtest.trace import MEBIBYTE, Trace

TOLERANCE: Final = np.array([1.0, MEBIBYTE])
"""A prediction that is lower than the oracle by no more than this (millicores, bytes) holds."""
_NO_CHANGE: Final = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """What happened after each of q predictions `at` steps (q,), ascending, on each of k nodes.

    `requests` (k, q, 2) are the sums of the requests of the pods that run, 0 without any; `oracle`
    (k, q, 2) is at most that, NaN where it is unknown.
    """

    at: IntArray
    requests: FloatArray
    oracle: FloatArray


def scored_steps(trace_steps: int, horizon_steps: int, burn_in_steps: int, stride: int) -> IntArray:
    """The steps whose predictions are scored: every `stride` steps from the burn-in on, as long as
    the whole horizon is in the trace."""
    return np.arange(burn_in_steps, trace_steps - horizon_steps, stride, dtype=np.int64)


def outcomes(trace: Trace, at: IntArray, horizon_steps: int) -> Outcomes:
    """The requests and the oracle at the steps `at`, ascending, whose horizons are in the trace."""
    shape = (len(trace.nodes), len(at), 2)
    requests, oracle = np.zeros(shape), np.zeros(shape)
    starts, earlier = trace.node_starts, trace.earlier_stays
    for node in range(len(trace.nodes)):
        stays = slice(int(starts[node]), int(starts[node + 1]))
        requests[node] = _requests(trace, stays, at)
        oracle[node] = _oracle(trace, stays, at, horizon_steps, earlier)
    return Outcomes(at, requests, np.minimum(oracle, requests))


def _requests(trace: Trace, stays: slice, at: IntArray) -> FloatArray:
    """The sum of the requests of the pods that run at each step, (q, 2)."""
    changes = np.zeros((trace.steps + 1, 2))
    np.add.at(changes, trace.start[stays], trace.requests[stays])
    np.subtract.at(changes, trace.end[stays], trace.requests[stays])
    return np.cumsum(changes, axis=0)[at]


def _oracle(
    trace: Trace, stays: slice, at: IntArray, horizon_steps: int, earlier: IntArray
) -> FloatArray:
    """The highest total usage in the horizon of the pods that run at each step, (q, 2).

    `total` is the usage of all pods that have arrived so far; those that have ended count nothing
    any more. So it answers for all steps until the next arrival at once, or until a pod ends that
    will return: then its later stays count no more.
    """
    oracle = np.zeros((len(at), 2))
    total = np.zeros((trace.steps, 2))
    later = {int(earlier[stay]): stay for stay in range(stays.start, stays.stop)}
    later.pop(-1, None)
    returns = np.array([*later], np.int64)
    changes = np.sort(np.concatenate([trace.start[stays], trace.end[returns]]))
    arrived = np.searchsorted(trace.start[stays], at, side="right") + stays.start
    groups = np.searchsorted(changes, at, side="right")
    added = stays.start
    for group in np.unique(groups):
        same = np.flatnonzero(groups == group)
        first, last = int(at[same[0]]), int(at[same[-1]])
        for stay in range(added, int(arrived[same[0]])):
            _add_usage(total, trace, stay)
        added = int(arrived[same[0]])
        after = total[first + 1 : last + horizon_steps + 1]
        if len(returns):
            after = after + _later_usage(trace, later, first)[first + 1 : last + horizon_steps + 1]
        oracle[same] = window_max(after, horizon_steps)[at[same] - first]
    return oracle


def _later_usage(trace: Trace, later: Mapping[int, int], step: int) -> FloatArray:
    """The usage in `later` stays of the pods that run at a step, (steps, 2)."""
    total = np.zeros((trace.steps, 2))
    for stay in later:
        if trace.start[stay] <= step < trace.end[stay]:
            while stay in later:
                stay = later[stay]
                _add_usage(total, trace, stay)
    return total


def _add_usage(total: FloatArray, trace: Trace, stay: int) -> None:
    # A pod without the resource uses nothing of it; NaN of others is unknown.
    usage = np.where(trace.limits[stay] > 0.0, trace.stay_usage(stay), 0.0)
    total[trace.start[stay] : trace.end[stay]] += usage


def window_max(values: FloatArray, length: int) -> FloatArray:
    """The highest of each `length` successive items of `values` (n, ..), (n - length + 1, ..); NaN
    if one of them is."""
    span = 1
    while 2 * span <= length:
        values = np.maximum(values[:-span], values[span:])
        span *= 2
    rest = length - span
    return np.maximum(values[:-rest], values[rest:]) if rest else values


@dataclass(frozen=True, slots=True, eq=False)
class MachineScores:
    """How predictions did on each of k machines, (k,) each; shares of 0 to 1.

    `points` is the number of scored predictions, of steps at which pods with requests ran and
    after which the oracle is known;
    `violation` the share of these that were too low; `severity` the mean of (oracle - prediction)
    / oracle over the latter, NaN without any; `savings` the mean of (requests - prediction) /
    requests, and `oracle_savings` the same of the oracle. `unknown` is the share of predictions
    that were unknown. All but `points` are NaN for a machine without points.
    """

    points: IntArray
    violation: FloatArray
    severity: FloatArray
    savings: FloatArray
    oracle_savings: FloatArray
    unknown: FloatArray


def effective(predictions: FloatArray, requests: FloatArray) -> FloatArray:
    """Predictions cut at the requests; the requests where a prediction is unknown."""
    return np.fmin(predictions, requests)


def is_violation(predictions: FloatArray, oracle: FloatArray, tolerance: float) -> BoolArray:
    """Whether effective predictions are too low."""
    return np.asarray(predictions < oracle - tolerance)


def score(
    predictions: FloatArray, requests: FloatArray, oracle: FloatArray, tolerance: float
) -> MachineScores:
    """Score the predictions of one resource, (k, q) as `requests` and `oracle`, the fields of
    `Outcomes`. `tolerance` is that of the resource in `TOLERANCE`."""
    scored = is_scored(requests, oracle)
    points = scored.sum(axis=1)
    effective_peaks = effective(predictions, requests)
    violated = scored & is_violation(effective_peaks, oracle, tolerance)
    shortfall = np.zeros_like(oracle)
    np.divide(oracle - effective_peaks, oracle, out=shortfall, where=violated)
    return MachineScores(
        points=points,
        violation=_mean(violated, points),
        severity=_mean(shortfall, violated.sum(axis=1)),
        savings=_mean(_saved(effective_peaks, requests, scored), points),
        oracle_savings=_mean(_saved(oracle, requests, scored), points),
        unknown=_mean(scored & np.isnan(predictions), points),
    )


def is_scored(requests: FloatArray, oracle: FloatArray) -> BoolArray:
    """Whether a prediction counts: pods with requests ran, and what happened is known."""
    return np.asarray((requests > 0.0) & ~np.isnan(oracle))


def _saved(peaks: FloatArray, requests: FloatArray, scored: BoolArray) -> FloatArray:
    """The share of the requests that may be given away; 0 where that is not scored."""
    saved = np.zeros_like(requests)
    np.divide(requests - peaks, requests, out=saved, where=scored)
    return saved


def _mean(values: FloatArray | BoolArray, counts: IntArray) -> FloatArray:
    """The sum of each row by its count, NaN where that is 0."""
    means = np.full(len(counts), np.nan)
    np.divide(values.sum(axis=1), counts, out=means, where=counts > 0)
    return means


@dataclass(frozen=True, slots=True)
class FleetScores:
    """How predictions did over all machines, each of which counts the same.

    `violation`, `severity` and `savings` are means of `MachineScores`; severity is over machines
    with a violation, NaN without any. `violation_p90` is the 90th percentile of the machines'
    rates. `of_oracle` is the savings by those of the oracle, NaN if that saves nothing. Standard
    errors count machines that hold the same series as one.
    """

    machines: int
    points: int
    violation: float
    violation_p90: float
    violation_error: float
    severity: float
    savings: float
    savings_error: float
    oracle_savings: float
    of_oracle: float
    unknown: float


def over_machines(machines: MachineScores, copies: float = 1.0) -> FleetScores:
    """Average over the machines that have points. `copies` is how many machines hold the same
    series (`Trace.copies`). Without a machine all scores are NaN."""
    has_points = machines.points > 0
    violation, savings = machines.violation[has_points], machines.savings[has_points]
    oracle = _average(machines.oracle_savings[has_points])
    severity = machines.severity[has_points]
    saved = _average(savings)
    return FleetScores(
        machines=int(has_points.sum()),
        points=int(machines.points.sum()),
        violation=_average(violation),
        violation_p90=float(np.percentile(violation, 90)) if len(violation) else np.nan,
        violation_error=_standard_error(violation, copies),
        severity=_average(severity[~np.isnan(severity)]),
        savings=saved,
        savings_error=_standard_error(savings, copies),
        oracle_savings=oracle,
        of_oracle=saved / oracle if oracle > _NO_CHANGE else np.nan,
        unknown=_average(machines.unknown[has_points]),
    )


def _average(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else np.nan


def _standard_error(values: FloatArray, copies: float) -> float:
    return float(values.std() / np.sqrt(len(values) / copies)) if len(values) else np.nan


def hindsight_savings(
    predictions: FloatArray,
    requests: FloatArray,
    oracle: FloatArray,
    tolerance: float,
    violation: float,
) -> float:
    """The savings if one factor on all predictions, (k, q), made the mean rate of violations just
    `violation`. It uses the outcomes: it compares shapes of predictors, and is not a score.

    NaN without points. An unknown prediction stays unknown.
    """
    scored = is_scored(requests, oracle)
    counts = scored.sum(axis=1)
    if not counts.any():
        return np.nan
    needed = np.zeros_like(oracle)
    peaks = np.where(np.isnan(predictions), np.inf, predictions)
    # A prediction is too low below this factor; no factor helps one of 0.
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(oracle > tolerance, (oracle - tolerance) / peaks, 0.0)[scored]
    weights = np.broadcast_to(1.0 / np.maximum(counts, 1)[:, None], scored.shape)[scored]
    order = np.argsort(-needed, kind="stable")
    rates = np.cumsum(weights[order]) / (counts > 0).sum()
    # The highest factor that violates no more than allowed; at rest everything is given away.
    place = int(np.searchsorted(rates, violation, side="right"))
    factor = needed[order[place]] if place < len(order) else 0.0
    if np.isinf(factor):
        return 0.0
    scaled = np.where(np.isnan(predictions), np.nan, predictions * factor)
    return _average(
        _mean(_saved(effective(scaled, requests), requests, scored), counts)[counts > 0]
    )
