"""Calibrated peaks of a pool of nodes as a stream: `observe` usage, `predict` peaks.

The setting is the risk: the share of time in which usage of the pods that run now may exceed the
prediction within the horizon. The pool learns one resource; it feeds outcomes back to itself as
they become known, so nothing of the future is used. It is deterministic, and a pool restored from
`state` continues exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.calibrated import (
    borrowed_history,
    fleet_prior,
    futures,
    pending_outcomes,
    pod_history,
    pooled_margins,
    risk_budget,
    risk_level,
    shape,
    workload_history,
)
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.calibrated.limits import HIGHEST_RISK, LOWEST_RISK
from pipeline.processors.calibrated.pending_outcomes import NEVER
from pipeline.processors.calibrated.pod_usage import PodUsage
from pipeline.processors.calibrated.pool_state import PoolState
from pipeline.processors.calibrated.workload_history import HourlyPeaks
from pipeline.processors.group_runs import group_runs
from pipeline.topics.pool_outcomes import ResourceOutcomes

_NONE_ELSEWHERE: Final[Mapping[int, HourlyPeaks]] = MappingProxyType({})
_NO_REQUEST: Final = 1e-9
_HELD_SECONDS: Final = 3600
"""Usage between two samples of a node is known if they are at most so far apart."""
_KNOWN_SHARE: Final = 0.9
"""An outcome counts if usage was known in this share of the horizon."""
_PODS_AT_ONCE: Final = 1000
"""Nodes with so many pods are predicted together: their futures fit into the CPU cache."""


@dataclass(frozen=True, slots=True)
class PoolPeaks:
    """Predicted peaks: node ids, ascending; the sum of the requests of each node's pods; peaks
    (nodes, risks), at most that sum, at least as high at a lower risk."""

    nodes: IntArray
    requests: FloatArray
    peaks: FloatArray


class CalibratedPool:
    """Learner and predictor of one pool of nodes and one resource.

    `risks` are declared risks, ascending, within those of `limits`. Raises ValueError if they are
    not.
    `prior` (bins,) stands for outcomes of other fleets, see `pooled_margins`; by default that
    of `fleet_prior`. A pool of a `single_node` has a smaller experience, no budget to spend
    elsewhere, and beside its own margins and level those of a larger pool that `use_pool` gives it.
    The histories of at most `most_departed` ended pods stay for new ones to borrow.
    """

    def __init__(
        self,
        horizon: Horizon,
        risks: Sequence[float],
        prior: FloatArray | None = None,
        *,
        single_node: bool = False,
        most_departed: int = 0,
    ) -> None:
        self.risks: Final = np.array(risks, np.float64)
        is_allowed = (self.risks >= LOWEST_RISK) & (self.risks <= HIGHEST_RISK)
        if not len(risks) or (np.diff(self.risks) <= 0).any() or not is_allowed.all():
            raise ValueError(f"declared risks must ascend, from {LOWEST_RISK} to {HIGHEST_RISK}")
        self._horizon: Final = horizon
        self._prior: Final = fleet_prior.histogram() if prior is None else prior
        self._repayment: Final = risk_level.repayment_steps(
            horizon.steps, horizon.steps_of_days(1.0)
        )
        self._windows: Final = futures.windows_of(horizon)
        self._most_departed: Final = most_departed
        self._single_node: Final = single_node
        self._pool_level: float | None = None
        self._state: Final = PoolState.empty(horizon, len(risks), single_node=single_node)

    @property
    def size(self) -> tuple[int, int]:
        """Number of pods and of nodes that have rows."""
        return len(self._state.pods), len(self._state.nodes)

    @property
    def margins(self) -> FloatArray:
        """Weights of the outcomes of the pool by bin, see `pooled_margins`."""
        return self._state.pool_margins

    def knows(self, pods: IntArray) -> BoolArray:
        """Which of these pods were in the last step."""
        known: BoolArray = self._state.pods.find(pods) >= 0
        return known

    def highest_usage(self, pods: IntArray) -> FloatArray:
        """The highest usage of each of these pods within its history, NaN if it has none."""
        rows = self._state.pods.find(pods)
        highest = np.full(len(pods), np.nan)
        known = rows >= 0
        highest[known] = self._state.pods["maxima"][rows[known]].max(axis=1)
        return highest

    def highest_usage_of_workloads(
        self, workloads: IntArray, elsewhere: Mapping[int, HourlyPeaks]
    ) -> FloatArray:
        """The highest usage of any pod of each of these workloads within the histories that a new
        one could take over, NaN if there is none."""
        state = self._state
        return borrowed_history.highest_usage(state.pods, state.departed, workloads, elsewhere)

    def outcome_weights(self, nodes: IntArray) -> FloatArray:
        """The weight of the outcomes of each of these nodes, which have rows, in horizons."""
        rows = self._state.nodes.find(nodes)
        weights: FloatArray = self._state.nodes["margins"][rows].sum(axis=1).astype(np.float64)
        return weights

    def use_pool(self, margins: FloatArray | None, level: float | None) -> None:
        """Predict a single node with the margins and the level of risk of the pool of its nodes, by
        itself where they are None."""
        unknown = np.zeros(pooled_margins.BINS)
        self._state.pool_margins = unknown if margins is None else margins
        self._pool_level = level

    def outcomes(self) -> ResourceOutcomes:
        """The outcomes of a single node for the pool of its nodes."""
        if self._state.tally is None:
            raise ValueError("a pool of several nodes states no outcomes")
        slots, unspent = self._pending_unspent()
        return self._state.tally.record(
            float(self._state.intervals[slots].sum()), float(unspent[0]), self._horizon
        )

    def forget_predictions(self) -> None:
        """Drop pending predictions and the debt: they belong to another risk."""
        state = self._state
        if state.tally is not None:
            state.tally.forget_risk()
        state.debt[:] = 0.0
        state.made_steps[:] = NEVER
        state.nodes["shapes"][:] = 0.0
        state.last_made = NEVER

    def workload_histories(self) -> dict[int, HourlyPeaks]:
        """The longest history of each workload, see `workload_history`."""
        state = self._state
        return workload_history.of_workloads(state.pods, state.departed, state.step, self._horizon)

    # -- learn

    def observe(
        self, step: int, usage: PodUsage, elsewhere: Mapping[int, HourlyPeaks] = _NONE_ELSEWHERE
    ) -> None:
        """Learn the samples of `step`, which must be later than the last; pods that are missing
        have ended."""
        state = self._state
        if step <= state.step:
            raise ValueError(f"step {step} is not after step {state.step}")
        horizon, usage = self._horizon, usage.in_order()
        self._fill_skipped_blocks(step)
        rows, node_rows = self._admit(step, usage, elsewhere)
        known = np.where(np.isnan(usage.usage), state.pods["usage"][rows], usage.usage)
        known = np.clip(known, 0.0, usage.limits)
        is_peak = self._node_peaks(step, node_rows, known, usage.requests)
        pod_history.record(state.pods, rows, known, is_peak, step, horizon)
        pending_outcomes.follow(
            state.nodes,
            state.made_steps,
            step,
            node_rows,
            state.pods["arrived"][rows],
            known,
            horizon,
        )
        pod_history.learn_horizons(state.pods, rows, step, horizon, state.experience)
        self._count_known(step)
        if state.tally is not None and state.step != NEVER:
            state.tally.fade(step - state.step, horizon)
        state.step = step
        for slot, outcomes in pending_outcomes.ended(state.nodes, state.made_steps, step, horizon):
            if state.known_steps[slot] >= _KNOWN_SHARE * horizon.steps:
                self._learn(outcomes, float(state.intervals[slot]))

    def _count_known(self, step: int) -> None:
        """Count the steps whose usage is known for the predictions whose horizon runs."""
        passed = step - self._state.step
        if passed * self._horizon.step_seconds > _HELD_SECONDS:
            passed = 1
        self._state.known_steps[self._state.made_steps > NEVER] += passed

    def _admit(
        self, step: int, usage: PodUsage, elsewhere: Mapping[int, HourlyPeaks]
    ) -> tuple[IntArray, IntArray]:
        """Rows of the pods and of the node of each, after new ones got theirs and ended ones lost
        theirs."""
        state = self._state
        pods, nodes, departed = state.pods, state.nodes, state.departed
        rows = pods.find(usage.pods)
        new = rows < 0
        before = rows[~new]
        if len(pods) > len(before):
            ended = pods.rows[~np.isin(pods.rows, before)]
            pod_history.learn_ends(pods, ended, step, self._horizon, state.experience)
            borrowed_history.keep(
                departed, pods, ended, state.step, self._most_departed, self._horizon
            )
            pods.remove(ended)
        borrowed_history.expire(departed, step, self._horizon)
        if new.any():
            rows[new] = pods.add(usage.pods[new])
            pod_history.begin(pods, rows[new], usage.requests[new], step)
        pods["request"][rows] = usage.requests
        pods["limit"][rows] = usage.limits
        if usage.workloads is not None:
            known = usage.workloads >= 0
            pods["workload"][rows[known]] = usage.workloads[known]
        if new.any():
            borrowed_history.take_over(
                pods, rows[new], before, departed, step, self._horizon, elsewhere, state.experience
            )
        pods["node"][rows] = usage.nodes
        node_rows = nodes.find(usage.nodes)
        unknown = np.unique(usage.nodes[node_rows < 0])
        if len(unknown):
            nodes.add(unknown)
            node_rows = nodes.find(usage.nodes)
        nodes["last_step"][node_rows] = step
        gone = nodes.rows[nodes["last_step"][nodes.rows] < step - self._horizon.ring_steps]
        if len(gone):
            nodes.remove(gone)
        return rows, node_rows

    def _fill_skipped_blocks(self, step: int) -> None:
        """Blocks that began since the last step have no samples yet; the rings have older ones. In
        a block without any sample, pods used what they used last: a gap is not 0."""
        state = self._state
        length = self._horizon.block_steps
        block = step // length
        for ring in (state.pods["maxima"], state.pods["at_node_peak"], state.nodes["shares"]):
            first = max(state.step // length + 1, block - ring.shape[1] + 1)
            ring[:, np.arange(first, block + 1) % ring.shape[1]] = 0.0
        maxima = state.pods["maxima"]
        skipped = np.arange(max(state.step // length + 1, block - maxima.shape[1] + 1), block)
        if len(skipped) and state.step != NEVER:
            maxima[:, skipped % maxima.shape[1]] = state.pods["usage"][:, None]

    def _node_peaks(
        self, step: int, node_rows: IntArray, usage: FloatArray, requests: FloatArray
    ) -> BoolArray:
        """Whether the node of each pod uses more than at any earlier sample of the block."""
        nodes, count = self._state.nodes, len(self._state.nodes["id"])
        total = np.bincount(node_rows, usage, minlength=count)
        requested = np.bincount(node_rows, requests, minlength=count)
        block = step // self._horizon.block_steps
        higher = (nodes["block"] != block) | (total > nodes["block_peak"])
        nodes["block_peak"][higher] = total[higher]
        nodes["block"][higher] = block
        shares = nodes["shares"][:, block % nodes["shares"].shape[1]]
        np.maximum(shares, total / np.maximum(requested, _NO_REQUEST), out=shares)
        of_pods: BoolArray = higher[node_rows]
        return of_pods

    def _learn(self, outcomes: pending_outcomes.Outcomes, interval: float) -> None:
        """Feed back the outcomes of the predictions of one step, which stand for `interval`."""
        state = self._state
        if not len(outcomes.nodes):
            return
        horizon = self._horizon
        self._fade(state.step - max(state.learned_step, 0))
        state.learned_step = state.step
        bins = pooled_margins.bins_of(outcomes.ratios)
        # Outcomes of one horizon overlap: together they weigh as much as one. In the pool, so do
        # those of its nodes.
        weight = interval / horizon.steps
        # Risk that nodes could not take is not unspent: it says nothing of the margins.
        unspent = outcomes.risks.mean(axis=0) - outcomes.exceeded.mean(axis=0)
        if state.tally is not None:
            state.tally.add(bins, weight)
            state.tally.spend(interval, float(unspent[0]))
        else:
            np.add.at(state.pool_margins, bins, weight / len(bins))
        state.nodes["margins"][outcomes.nodes, bins] += weight
        half_life = horizon.steps_of_days(risk_level.DEBT_HALF_LIFE_DAYS)
        debt = state.debt * 0.5 ** (interval / half_life) + interval * unspent
        state.debt[:] = risk_level.bounded(debt, self.risks, self._repayment)

    def _fade(self, steps: int) -> None:
        days = steps / self._horizon.steps_of_days(1.0)
        if not self._single_node:
            self._state.pool_margins *= 0.5 ** (days / pooled_margins.POOL_HALF_LIFE_DAYS)
        self._state.nodes["margins"][:] *= np.float32(
            0.5 ** (days / pooled_margins.NODE_HALF_LIFE_DAYS)
        )

    # -- predict

    def predict(self) -> PoolPeaks:
        """Predict the peaks from the last observed step on. One prediction in each `audit_steps` is
        remembered, to be compared with its outcome."""
        pods, step = self._state.pods, self._state.step
        order = np.lexsort((pods["id"][pods.rows], pods["node"][pods.rows]))
        rows = pods.rows[order]
        ids, starts = np.unique(pods["node"][rows], return_index=True)
        if not len(rows):
            return PoolPeaks(ids, np.zeros(0), np.zeros((0, len(self.risks))))
        requests = np.add.reduceat(pods["request"][rows], starts)
        shapes = self._shapes(rows, starts, ids, np.maximum(requests, _NO_REQUEST))
        node_rows = self._state.nodes.find(ids)
        peaks, risks = self._peaks(node_rows, shapes)
        peaks *= requests[:, None]
        if step - self._state.last_made >= self._horizon.audit_steps:
            self._remember(node_rows, requests, shapes, peaks, risks)
        return PoolPeaks(ids, requests, peaks)

    def _shapes(
        self, rows: IntArray, starts: IntArray, ids: IntArray, requests: FloatArray
    ) -> FloatArray:
        """Shape of each node as a share of its requests."""
        shapes = np.empty(len(ids))
        for nodes, own in group_runs(starts, len(rows), _PODS_AT_ONCE):
            shapes[nodes] = self._shapes_at_once(
                rows[own], starts[nodes] - own.start, ids[nodes], requests[nodes]
            )
        return shapes

    def _shapes_at_once(
        self, rows: IntArray, starts: IntArray, ids: IntArray, requests: FloatArray
    ) -> FloatArray:
        state, horizon = self._state, self._horizon
        pods, step = state.pods, state.step
        future = futures.future_peaks(
            pods,
            rows,
            starts,
            ids,
            step,
            horizon,
            self._windows,
            state.experience,
        )
        past = shape.past_peaks(pods, rows, starts, step, horizon, state.experience)
        shares = shape.highest_shares(state.nodes, state.nodes.find(ids), step, horizon)
        return shape.shape(future, past, shares, requests)

    def _peaks(self, nodes: IntArray, shapes: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Peak of each node at each declared risk as a share of its requests, and the risk that it
        takes, (nodes, risks)."""
        distributions = pooled_margins.combined(
            self._state.pool_margins, self._state.nodes["margins"][nodes], self._prior
        )
        above = pooled_margins.survival(distributions)
        peaks, taken = np.empty((2, len(nodes), len(self.risks)))
        for i, level in enumerate(self.levels()):
            if self._single_node:
                factors = pooled_margins.margins(above, np.full((len(nodes), 1), level))[:, 0]
                peaks[:, i] = np.minimum(shapes * factors, 1.0)
                taken[:, i] = np.where(peaks[:, i] < 1.0, level, 0.0)
                continue
            levels = np.tile(level * risk_budget.FACTORS, (len(nodes), 1))
            shares = shapes[:, None] * pooled_margins.margins(above, levels)
            peaks[:, i], taken[:, i] = risk_budget.spend(shares, levels, level)
        # A lower risk never has a lower peak.
        peaks = np.maximum.accumulate(peaks[:, ::-1], axis=1)[:, ::-1]
        return peaks, taken

    def levels(self) -> FloatArray:
        """Level of risk at which to predict now, for each declared risk."""
        if self._pool_level is not None:
            return np.array([self._pool_level])
        _, pending = self._pending_unspent()
        return risk_level.level(self.risks, self._state.debt, pending, self._repayment)

    def _pending_unspent(self) -> tuple[IntArray, FloatArray]:
        """Slots of running predictions, and for each declared risk the sum of what these do not
        spend so far, times the steps for which each stands."""
        slots, rates = pending_outcomes.expected_rates(self._state.nodes, self._state.made_steps)
        return slots, self._state.intervals[slots] @ (self.risks - rates)

    def _remember(
        self,
        rows: IntArray,
        requests: FloatArray,
        shapes: FloatArray,
        peaks: FloatArray,
        risks: FloatArray,
    ) -> None:
        state = self._state
        slot = int(np.argmin(state.made_steps))
        first = state.last_made == NEVER
        interval = self._horizon.audit_steps if first else state.step - state.last_made
        state.intervals[slot] = min(interval, self._horizon.steps)
        # A node that gives nothing away takes no risk, however much its pods use.
        peaks = np.where(peaks < requests[:, None], peaks, np.inf)
        pending_outcomes.enter(state.nodes, rows, slot, shapes * requests, peaks, risks)
        state.made_steps[slot] = state.step
        state.known_steps[slot] = 0
        state.last_made = state.step

    def state(self) -> dict[str, Any]:
        """Everything the pool has learned, of bytes, integers and mappings."""
        return self._state.pack()

    def restore(self, packed: Mapping[str, Any]) -> None:
        """Continue from `packed`, the state of a pool with the same horizon and risks. Raises
        CheckpointError or ValueError if it is damaged or of another pool."""
        self._state.restore(packed)
