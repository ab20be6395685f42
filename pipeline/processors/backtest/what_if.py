"""Replay a trace under a policy: Mid and Batch, violations and alerts that would have been.

Windows go through the processors that a worker calls, in event time: models and peaks, hot nodes
with their debounce, Mid and Batch. Nothing reacts to what is offered: pods of Mid and Batch, which
would use it, are not in a trace. A pod that is moved uses on its new node what it used before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.backtest.protocol import (
    TOLERANCE,
    MachineScores,
    outcomes,
    score,
    scored_steps,
)
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.trace_samples import (
    MOVED,
    STATISTIC,
    Placement,
    sampled_windows,
)
from pipeline.processors.hot_nodes.detection import Applied, detect
from pipeline.processors.model import bank as model_bank
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import RESOURCES, ModelConfig
from pipeline.processors.model.node_peaks import PeakColumns
from pipeline.processors.model.resource_pairs import group_sums
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.processors.overcommit.node_offers import NodeOffers, offers
from pipeline.processors.overcommit.window_columns import Prod
from pipeline.topics.alerts import RULES, AlertRecord
from pipeline.topics.windows import NodeFacts

_NO_POSITION: Final = {"generation": 0, "offset": 0, "epoch": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedPolicy:
    """Settings of models, and the facts of each node with its policy in force, by name."""

    config: ModelConfig
    facts: Mapping[str, NodeFacts]


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedStep:
    """What was known after a step: the offers of the nodes `offering` (m,), in their order, None
    without any; what Prod leaves unused (k, 2), NaN unknown; changes of alerts; and the nodes that
    pods left after it."""

    step: int
    offering: IntArray
    offers: NodeOffers | None
    reclaimable: FloatArray
    changes: Sequence[AlertRecord]
    left: Sequence[int] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """The cluster after a step: which nodes have an open alert, (k,), their usage (k, 2), and the
    names, nodes (p,), usage and requests (p, 2) of their pods in millicores and bytes, NaN unknown.
    `seconds_since_move` (p,) is infinite for a pod that did not move."""

    has_alert: BoolArray
    usage: FloatArray
    pods: Sequence[str]
    node: IntArray
    pod_usage: FloatArray
    requests: FloatArray
    seconds_since_move: FloatArray


Relief = Callable[[Moment], Sequence[tuple[int, int]]]
"""The pods that leave their nodes, by place, and the nodes where they land."""


def replay_policy(
    trace: Trace,
    policy: ReplayedPolicy,
    relief: Relief | None = None,
    placement: Placement | None = None,
) -> Iterator[ReplayedStep]:
    """Replay all steps; the moves of `relief` change the `placement`. Raises `PredictorError` for a
    predictor that fails."""
    placement = placement or Placement(trace)
    bank = Bank(replace(policy.config, training_statistic=STATISTIC))
    nodes = [(bank, name) for name in trace.nodes]
    places = np.arange(len(nodes))
    for step, windows in enumerate(sampled_windows(trace, policy.facts, placement)):
        batch = WindowBatch(windows)
        applied = model_bank.apply([bank] * len(nodes), batch.training(STATISTIC))
        peaks = model_bank.peaks(nodes)
        detection = detect(Applied(nodes, batch, places, applied, peaks, lambda _: _NO_POSITION))
        decided = Prod(peaks.decided(_reclaimable), peaks.decided(_prod_peak))
        offering = np.flatnonzero([window.node.overcommit is not None for window in windows])
        own = Prod(decided.reclaimable[offering], decided.peak[offering])
        has_alert = np.array([bool(alerts) for alerts in detection.open_alerts])
        left = []
        if relief is not None and has_alert.any():
            left = _relieve(trace, placement, step, has_alert, relief)
        yield ReplayedStep(
            step,
            offering,
            offers(batch.select(offering.tolist()), own, ()) if len(offering) else None,
            decided.reclaimable,
            [record for _, record in detection.changes],
            left,
        )


def _relieve(
    trace: Trace, placement: Placement, step: int, has_alert: BoolArray, relief: Relief
) -> list[int]:
    """Move pods after a step; returns the nodes that they leave."""
    by_node = [placement.running(node, step) for node in range(len(trace.nodes))]
    runs = [run for own in by_node for run in own]
    node = np.repeat(np.arange(len(by_node)), [len(own) for own in by_node])
    pod_usage = placement.usage(runs, step)
    age = (step + 1 - np.array([run.start for run in runs])) * trace.step_seconds
    has_moved = np.array([MOVED in run.pod for run in runs])
    moves = relief(
        Moment(
            has_alert=has_alert,
            usage=group_sums(node, pod_usage, len(by_node)),
            pods=[run.pod for run in runs],
            node=node,
            pod_usage=pod_usage,
            requests=trace.requests[[run.stay for run in runs]],
            seconds_since_move=np.where(has_moved, age, np.inf),
        )
    )
    for pod, target in moves:
        placement.move(runs[pod], int(node[pod]), target, step)
    return [int(node[pod]) for pod, _ in moves]


def _reclaimable(columns: PeakColumns) -> FloatArray:
    return columns.reclaimable.amount


def _prod_peak(columns: PeakColumns) -> FloatArray:
    return columns.reclaimable.peak - columns.reclaimable.system


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PolicyOutcome:
    """What a policy would have done after the burn-in, per node, k of them.

    `mid` and `batch` (k, 2) are means of known offers in millicores and bytes, NaN without any.
    `scores` are those of the protocol by resource, without a resource whose predictions cannot be
    judged. `alerts` (k, rules) counts alerts that opened, `hot_seconds` (k, rules) is how long they
    were open. `evictions` (k,) counts the pods that left a node.
    """

    nodes: tuple[str, ...]
    mid: FloatArray
    batch: FloatArray
    scores: Mapping[str, MachineScores]
    alerts: IntArray
    hot_seconds: FloatArray
    evictions: IntArray


@dataclass(slots=True)
class _Totals:
    """Sums over the steps of a replay."""

    nodes: Mapping[str, int]
    mid: FloatArray
    batch: FloatArray
    counts: IntArray
    alerts: IntArray
    hot_seconds: FloatArray
    open_since: dict[tuple[int, int], float] = field(default_factory=dict)

    def add_offers(self, step: ReplayedStep) -> None:
        if step.offers is None:
            return
        known = step.offering[step.offers.known]
        self.mid[known] += step.offers.mid.amount[step.offers.known]
        self.batch[known] += step.offers.batch.amount[step.offers.known]
        self.counts[known] += 1

    def add_changes(self, step: ReplayedStep, end: float, begin: float) -> None:
        """`begin` and `end` are those of the counted time so far, seconds from step 0."""
        for record in step.changes:
            key = self.nodes[record.node], RULES.index(record.rule)
            if record.transition == "opened":
                self.open_since[key] = end
                self.alerts[key] += end > begin
            elif record.transition == "closed":
                self.close(key, end, begin)

    def close(self, key: tuple[int, int], end: float, begin: float) -> None:
        since = self.open_since.pop(key)
        self.hot_seconds[key] += max(end - max(since, begin), 0.0)


def replay_outcome(
    trace: Trace,
    policy: ReplayedPolicy,
    burn_in_steps: int,
    stride: int,
    relief: Relief | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> PolicyOutcome:
    """Replay a policy and sum up what it would have done from the burn-in on. Every `stride` steps
    a prediction is judged, by the pods that are on its node with the moves of `relief`."""
    nodes, seconds = len(trace.nodes), trace.step_seconds
    horizon = max(round(policy.config.horizon_seconds / seconds), 1)
    at = scored_steps(trace.steps, horizon, burn_in_steps, stride)
    columns = {step: column for column, step in enumerate(at.tolist())}
    reclaimable = np.full((nodes, len(at), 2), np.nan)
    totals = _Totals(
        nodes={name: node for node, name in enumerate(trace.nodes)},
        mid=np.zeros((nodes, 2)),
        batch=np.zeros((nodes, 2)),
        counts=np.zeros(nodes, np.int64),
        alerts=np.zeros((nodes, len(RULES)), np.int64),
        hot_seconds=np.zeros((nodes, len(RULES))),
    )
    begin = float(burn_in_steps * seconds)
    placement, evictions = Placement(trace), np.zeros(nodes, np.int64)
    for step in replay_policy(trace, policy, relief, placement):
        if step.step >= burn_in_steps:
            totals.add_offers(step)
            np.add.at(evictions, np.array(step.left, np.int64), 1)
        totals.add_changes(step, float((step.step + 1) * seconds), begin)
        if (column := columns.get(step.step)) is not None:
            reclaimable[:, column] = step.reclaimable
        progress(step.step + 1)
    for key in [*totals.open_since]:
        totals.close(key, float(trace.steps * seconds), begin)
    return PolicyOutcome(
        nodes=trace.nodes,
        mid=_means(trace, totals.mid, totals.counts),
        batch=_means(trace, totals.batch, totals.counts),
        scores=_scores(placement.moved_trace(), at, horizon, reclaimable),
        alerts=totals.alerts,
        hot_seconds=totals.hot_seconds,
        evictions=evictions,
    )


def _means(trace: Trace, sums: FloatArray, counts: IntArray) -> FloatArray:
    """Mean offers (k, 2); NaN without an offer, and for a resource that no pod has."""
    means = np.full(sums.shape, np.nan)
    np.divide(sums, counts[:, None], out=means, where=counts[:, None] > 0)
    means[:, ~np.isin(RESOURCES, trace.resources)] = np.nan
    return means


def _scores(
    trace: Trace, at: IntArray, horizon: int, reclaimable: FloatArray
) -> dict[str, MachineScores]:
    """How what was left unused compares with what happened, by resource."""
    if not len(at):
        return {}
    happened = outcomes(trace, at, horizon)
    peaks = happened.requests - reclaimable
    return {
        resource: score(
            peaks[..., r], happened.requests[..., r], happened.oracle[..., r], float(TOLERANCE[r])
        )
        for r, resource in enumerate(RESOURCES)
        if resource in trace.resources
    }
