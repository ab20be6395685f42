"""What a report shows of single nodes: some of them over time, and the worst violations explained.

Amounts are millicores and bytes, times are steps of the trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.backtest.protocol import MachineScores, effective, is_violation
from pipeline.processors.backtest.trace import Trace

WORST_VIOLATIONS: Final = 6
RISEN_PODS: Final = 3
"""Pods named for each violation."""
_ROLES: Final = ("worst", "median", "best")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NodeSeries:
    """A node from step `first_step` on: `usage` (n,) of the pods that ran, NaN unknown, and their
    `requests` (n,). Predictions were made `at` steps (q,): `predicted` (q,) and `real_peak` (q,),
    the highest usage in the horizon of the pods of then, both cut at the requests, and `is_missed`
    (q,) where the prediction was too low. NaN where nothing is scored."""

    node: str
    first_step: int
    usage: FloatArray
    requests: FloatArray
    at: IntArray
    predicted: FloatArray
    real_peak: FloatArray
    is_missed: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownNode:
    """A node with its scores, shown for its rate of violations: the worst, median or best one."""

    role: str
    violation: float
    savings: float
    series: NodeSeries


@dataclass(frozen=True, slots=True, kw_only=True)
class RisenPod:
    """A pod whose usage at the peak was above its past: its highest usage up to the prediction."""

    pod: str
    usage: float
    past_peak: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstPod:
    """A pod that used at the peak what it had used before, but much more than its mean up to the
    prediction."""

    pod: str
    usage: float
    past_mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A prediction at `step` that the peak at `peak_step` exceeded, and what explains it.

    `pods` ran at `step`. Those of `risen` used more at the peak than ever before, at most
    `RISEN_PODS` of the `risen_count` whose rises are highest; `risen_by` is the sum of all rises.
    If that is less than half of what was missing, `bursts` are as many of the other pods, those
    that used most above their own mean.
    `new_pods` ran for less than a horizon and used `new_usage` at the peak. `unknown` is the share
    of samples of these pods in the horizon before that are unknown.
    """

    node: str
    step: int
    peak_step: int
    predicted: float
    real_peak: float
    requests: float
    pods: int
    risen: tuple[RisenPod, ...]
    bursts: tuple[BurstPod, ...]
    risen_count: int
    risen_by: float
    new_pods: int
    new_usage: float
    unknown: float
    series: NodeSeries


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What a report shows of one variant in one suite."""

    step_seconds: int
    start_seconds: int
    horizon_steps: int
    nodes: tuple[ShownNode, ...]
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Judged:
    """The predictions of one resource, the index `resource`, at steps `at` (q,), for all nodes:
    `predictions`, `requests` and `oracle` (k, q), as `score` takes them, and their scores."""

    trace: Trace
    resource: int
    horizon_steps: int
    at: IntArray
    predictions: FloatArray
    requests: FloatArray
    oracle: FloatArray
    tolerance: float
    machines: MachineScores


def details(judged: Judged) -> Details:
    """The nodes with the worst, the median and the best rate of violations, and the worst
    violations: those that lacked most. Of a node, violations are more than a horizon apart."""
    trace = judged.trace
    whole = slice(0, trace.steps)
    nodes = tuple(
        ShownNode(
            role=role,
            violation=float(judged.machines.violation[node]),
            savings=float(judged.machines.savings[node]),
            series=_series(judged, node, whole),
        )
        for role, node in _chosen(judged.machines)
    )
    return Details(
        step_seconds=trace.step_seconds,
        start_seconds=trace.start_seconds,
        horizon_steps=judged.horizon_steps,
        nodes=nodes,
        violations=tuple(_violation(judged, node, q) for node, q in _worst(judged)),
    )


def _chosen(machines: MachineScores) -> list[tuple[str, int]]:
    """Roles and nodes, the worst first: by the rate of violations, then by least savings. With few
    nodes there are fewer roles."""
    scored = np.flatnonzero(machines.points > 0)
    order = scored[np.lexsort((machines.savings[scored], -machines.violation[scored]))].tolist()
    if len(order) < len(_ROLES):
        return [*zip(("worst", "best"), order, strict=False)]
    return [*zip(_ROLES, (order[0], order[(len(order) - 1) // 2], order[-1]), strict=True)]


def _missing(judged: Judged) -> FloatArray:
    """By how much each prediction was too low, (k, q); 0 where it held, or is not scored."""
    peaks = effective(judged.predictions, judged.requests)
    missed = (judged.requests > 0.0) & is_violation(peaks, judged.oracle, judged.tolerance)
    return np.where(missed, judged.oracle - peaks, 0.0)


def _worst(judged: Judged) -> Iterator[tuple[int, int]]:
    """Node and position in `at` of the worst violations."""
    missing = _missing(judged)
    for _ in range(WORST_VIOLATIONS):
        node, q = divmod(int(missing.argmax()), missing.shape[1])
        if not missing[node, q] > 0.0:
            return
        yield node, q
        # Violations nearby missed the same peak, or the same rise.
        missing[node, np.abs(judged.at - judged.at[q]) <= judged.horizon_steps] = 0.0


def _series(judged: Judged, node: int, steps: slice) -> NodeSeries:
    """A node in a span of steps."""
    trace, r = judged.trace, judged.resource
    usage, requests = np.zeros((2, trace.steps))
    for stay in range(*trace.node_starts[node : node + 2].tolist()):
        running = slice(int(trace.start[stay]), int(trace.end[stay]))
        usage[running] += _usage(trace, stay, r)
        requests[running] += trace.requests[stay, r]
    own = (judged.at >= steps.start) & (judged.at < steps.stop)
    scored = (judged.requests[node, own] > 0.0) & ~np.isnan(judged.oracle[node, own])
    peaks = effective(judged.predictions[node, own], judged.requests[node, own])
    return NodeSeries(
        node=trace.nodes[node],
        first_step=steps.start,
        usage=usage[steps],
        requests=requests[steps],
        at=judged.at[own],
        predicted=np.where(scored, peaks, np.nan),
        real_peak=np.where(scored, judged.oracle[node, own], np.nan),
        is_missed=_missing(judged)[node, own] > 0.0,
    )


def _usage(trace: Trace, stay: int, r: int) -> FloatArray:
    """The usage of a stay; that of a pod without the resource is zero, not unknown."""
    usage = trace.stay_usage(stay)[:, r]
    return usage if trace.limits[stay, r] > 0.0 else np.zeros_like(usage)


class _Pod(NamedTuple):
    """A pod that runs at a step: its `name`, the step at which it `began`, and its usage over the
    whole trace, 0 where it does not run, and whether it `ran`, (steps,) each."""

    name: str
    began: int
    usage: FloatArray
    ran: BoolArray


def _running(judged: Judged, node: int, step: int) -> Iterator[_Pod]:
    """The pods of a node at a step, with all stays of those that returned to it."""
    trace = judged.trace
    earlier = trace.earlier_stays.tolist()
    first, end = trace.node_starts[node : node + 2].tolist()
    later = {earlier[stay]: stay for stay in range(first, end)}
    for stay in range(first, end):
        if not trace.start[stay] <= step < trace.end[stay]:
            continue
        while earlier[stay] >= 0:
            stay = earlier[stay]
        usage, ran = np.zeros(trace.steps), np.zeros(trace.steps, np.bool_)
        name, began = trace.pods[stay], int(trace.start[stay])
        next_stay: int | None = stay
        while next_stay is not None:
            span = slice(int(trace.start[next_stay]), int(trace.end[next_stay]))
            usage[span], ran[span] = _usage(trace, next_stay, judged.resource), True
            next_stay = later.get(next_stay)
        yield _Pod(name, began, usage, ran)


def _violation(judged: Judged, node: int, q: int) -> Violation:
    trace, step, horizon = judged.trace, int(judged.at[q]), judged.horizon_steps
    pods = [*_running(judged, node, step)]
    after = np.array([pod.usage[step + 1 : step + 1 + horizon] for pod in pods])
    past_peak = np.array(
        [np.fmax.reduce(pod.usage[: step + 1][pod.ran[: step + 1]]) for pod in pods]
    )
    recent = slice(max(step + 1 - horizon, 0), step + 1)
    samples = sum(int(pod.ran[recent].sum()) for pod in pods)
    unknown = sum(int(np.isnan(pod.usage[recent]).sum()) for pod in pods)
    peak = int(after.sum(axis=0).argmax())
    at_peak = after[:, peak]
    rise = np.maximum(at_peak - past_peak, 0.0)
    is_new = np.array([step + 1 - pod.began < horizon for pod in pods])
    by_rise = np.argsort(-rise, kind="stable")
    by_rise = by_rise[rise[by_rise] > 0.0]  # NaN is not
    predicted = effective(judged.predictions[node, q], judged.requests[node, q])
    around = slice(max(step - 2 * horizon, 0), min(step + horizon + 1, trace.steps))
    real_peak = float(judged.oracle[node, q])
    is_unexplained = rise[by_rise].sum() < (real_peak - predicted) / 2
    return Violation(
        node=trace.nodes[node],
        step=step,
        peak_step=step + 1 + peak,
        predicted=float(predicted),
        real_peak=real_peak,
        requests=float(judged.requests[node, q]),
        pods=len(pods),
        bursts=_bursts(pods, step, at_peak, rise) if is_unexplained else (),
        risen=tuple(
            RisenPod(
                pod=pods[row].name,
                usage=float(at_peak[row]),
                past_peak=float(past_peak[row]),
            )
            for row in by_rise[:RISEN_PODS].tolist()
        ),
        risen_count=len(by_rise),
        risen_by=float(rise[by_rise].sum()),
        new_pods=int(is_new.sum()),
        new_usage=float(at_peak[is_new].sum()),
        unknown=unknown / max(samples, 1),
        series=_series(judged, node, around),
    )


def _bursts(
    pods: Sequence[_Pod], step: int, at_peak: FloatArray, rise: FloatArray
) -> tuple[BurstPod, ...]:
    """The pods without a rise that used most above their mean, at most `RISEN_PODS`."""
    means = np.array([_known_mean(pod.usage[: step + 1][pod.ran[: step + 1]]) for pod in pods])
    above = np.where(rise > 0.0, 0.0, at_peak - means)
    order = [row for row in np.argsort(-above, kind="stable").tolist() if above[row] > 0.0]
    return tuple(
        BurstPod(pod=pods[row].name, usage=float(at_peak[row]), past_mean=float(means[row]))
        for row in order[:RISEN_PODS]
    )


def _known_mean(usage: FloatArray) -> float:
    known = usage[~np.isnan(usage)]
    return float(known.mean()) if len(known) else np.nan
