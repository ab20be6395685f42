"""Calibrated peaks of a pool of nodes as a stream: `observe` usage, `predict` peaks.

The setting is the risk: the share of time in which usage of the pods that run now may exceed the
prediction within the horizon. The pool learns one resource; it feeds outcomes back to itself as
they become known, so nothing of the future is used. It is deterministic, and a pool restored from
`state` continues exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
)
from pipeline.processors.calibrated.entity_rows import EntityRows
from pipeline.processors.calibrated.fleet_experience import FLEET, SINGLE_NODE, FleetExperience
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.calibrated.limits import HIGHEST_RISK, LOWEST_RISK
from pipeline.processors.calibrated.outcome_tally import OutcomeTally
from pipeline.processors.calibrated.pending_outcomes import NEVER
from pipeline.processors.model.column_store import Column
from pipeline.topics.pool_outcomes import ResourceOutcomes

_NO_REQUEST: Final = 1e-9
_NO_MARGINS: Final = np.zeros(pooled_margins.BINS)
_NO_MARGINS.flags.writeable = False
_HELD_SECONDS: Final = 3600
"""Usage between two samples of a node is known if they are at most so far apart."""
_KNOWN_SHARE: Final = 0.9
"""An outcome counts if usage was known in this share of the horizon."""
_ARRAYS: Final = ("pool_margins", "debt", "intervals", "made_steps", "known_steps")
_NUMBERS: Final = ("step", "last_made", "learned_step")


@dataclass(frozen=True, slots=True)
class PodUsage:
    """Usage of all pods of a pool at one step: ids of pods and of their nodes, int64 and not
    negative, amounts in one unit (millicores or MiB), float64. `usage` is NaN where unknown: the
    last known usage stands for it. `workloads` are ids of workloads, not negative, -1 where a pod
    has none or it is unknown: a new pod takes over the history of another pod of its workload."""

    pods: IntArray
    nodes: IntArray
    usage: FloatArray
    requests: FloatArray
    limits: FloatArray
    workloads: IntArray | None = None


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
        self._pods = EntityRows(pod_history.pod_columns(horizon))
        self._departed = borrowed_history.departed_rows(horizon)
        self._most_departed: Final = most_departed
        self._nodes = EntityRows(
            {
                "last_step": Column((), "<i8"),  # with pods
                "block": Column((), "<i8", -1.0),
                "block_peak": Column(),
                "shares": Column((shape.week_blocks(horizon),), "<f4"),  # used of requests
                "margins": Column((pooled_margins.BINS,), "<f4"),
                **pending_outcomes.pending_columns(horizon, len(self.risks)),
            }
        )
        self._single_node: Final = single_node
        self._experience = FleetExperience(horizon.blocks, SINGLE_NODE if single_node else FLEET)
        self._pool_margins = _NO_MARGINS if single_node else _NO_MARGINS.copy()
        self._pool_level: float | None = None
        self._tally: Final = OutcomeTally() if single_node else None
        self._arrays: Final = _ARRAYS[1:] if single_node else _ARRAYS
        self._debt = np.zeros(len(self.risks))
        self._made_steps = np.full(horizon.audits, NEVER, np.int64)
        self._known_steps = np.zeros(horizon.audits, np.int64)
        self._intervals = np.zeros(horizon.audits)  # steps that each pending prediction stands for
        self._step = self._last_made = self._learned_step = NEVER

    @property
    def size(self) -> tuple[int, int]:
        """Number of pods and of nodes that have rows."""
        return len(self._pods), len(self._nodes)

    @property
    def margins(self) -> FloatArray:
        """Weights of the outcomes of the pool by bin, see `pooled_margins`."""
        return self._pool_margins

    def knows(self, pods: IntArray) -> BoolArray:
        """Which of these pods were in the last step."""
        known: BoolArray = self._pods.find(pods) >= 0
        return known

    def highest_usage(self, pods: IntArray) -> FloatArray:
        """The highest usage of each of these pods within its history, NaN if it has none."""
        rows = self._pods.find(pods)
        highest = np.full(len(pods), np.nan)
        known = rows >= 0
        highest[known] = self._pods["maxima"][rows[known]].max(axis=1)
        return highest

    def highest_usage_of_workloads(self, workloads: IntArray) -> FloatArray:
        """The highest usage of any pod of each of these workloads within the histories that a new
        one could take over, NaN if there is none."""
        return borrowed_history.highest_usage(self._pods, self._departed, workloads)

    def outcome_weights(self, nodes: IntArray) -> FloatArray:
        """The weight of the outcomes of each of these nodes, which have rows, in horizons."""
        rows = self._nodes.find(nodes)
        weights: FloatArray = self._nodes["margins"][rows].sum(axis=1).astype(np.float64)
        return weights

    def use_pool(self, margins: FloatArray | None, level: float | None) -> None:
        """Predict a single node with the margins and the level of risk of the pool of its nodes, by
        itself where they are None."""
        self._pool_margins = _NO_MARGINS if margins is None else margins
        self._pool_level = level

    def outcomes(self) -> ResourceOutcomes:
        """The outcomes of a single node for the pool of its nodes."""
        if self._tally is None:
            raise ValueError("a pool of several nodes states no outcomes")
        slots, unspent = self._pending_unspent()
        return self._tally.record(
            float(self._intervals[slots].sum()), float(unspent[0]), self._horizon
        )

    def forget_predictions(self) -> None:
        """Drop pending predictions and the debt: they belong to another risk."""
        if self._tally is not None:
            self._tally.forget_risk()
        self._debt[:] = 0.0
        self._made_steps[:] = NEVER
        self._nodes["shapes"][:] = 0.0
        self._last_made = NEVER

    # -- learn

    def observe(self, step: int, usage: PodUsage) -> None:
        """Learn the samples of `step`, which must be later than the last; pods that are missing
        have ended."""
        if step <= self._step:
            raise ValueError(f"step {step} is not after step {self._step}")
        horizon, usage = self._horizon, _in_order(usage)
        self._fill_skipped_blocks(step)
        rows = self._admit(step, usage)
        known = np.where(np.isnan(usage.usage), self._pods["usage"][rows], usage.usage)
        known = np.clip(known, 0.0, usage.limits)
        self._pods["request"][rows] = usage.requests
        self._pods["limit"][rows] = usage.limits
        node_rows = self._nodes.find(usage.nodes)
        is_peak = self._node_peaks(step, node_rows, known, usage.requests)
        pod_history.record(self._pods, rows, known, is_peak, step, horizon)
        pending_outcomes.follow(
            self._nodes,
            self._made_steps,
            step,
            node_rows,
            self._pods["arrived"][rows],
            known,
            horizon,
        )
        pod_history.learn_horizons(self._pods, rows, step, horizon, self._experience)
        self._count_known(step)
        if self._tally is not None and self._step != NEVER:
            self._tally.fade(step - self._step, horizon)
        self._step = step
        for slot, outcomes in pending_outcomes.ended(self._nodes, self._made_steps, step, horizon):
            if self._known_steps[slot] >= _KNOWN_SHARE * horizon.steps:
                self._learn(outcomes, float(self._intervals[slot]))

    def _count_known(self, step: int) -> None:
        """Count the steps whose usage is known for the predictions whose horizon runs."""
        passed = step - self._step
        if passed * self._horizon.step_seconds > _HELD_SECONDS:
            passed = 1
        self._known_steps[self._made_steps > NEVER] += passed

    def _admit(self, step: int, usage: PodUsage) -> IntArray:
        """Rows of the pods, after new ones and new nodes got theirs and ended ones lost theirs."""
        pods, nodes = self._pods, self._nodes
        rows = pods.find(usage.pods)
        new = rows < 0
        before = rows[~new]
        if len(pods) > len(before):
            ended = pods.rows[~np.isin(pods.rows, before)]
            pod_history.learn_ends(pods, ended, step, self._horizon, self._experience)
            borrowed_history.keep(
                self._departed, pods, ended, self._step, self._most_departed, self._horizon
            )
            pods.remove(ended)
        borrowed_history.expire(self._departed, step, self._horizon)
        if new.any():
            rows[new] = pods.add(usage.pods[new])
            pod_history.begin(pods, rows[new], usage.requests[new], step)
        if usage.workloads is not None:
            known = usage.workloads >= 0
            pods["workload"][rows[known]] = usage.workloads[known]
        if new.any():
            borrowed_history.take_over(pods, rows[new], before, self._departed, step, self._horizon)
        pods["node"][rows] = usage.nodes
        present = np.unique(usage.nodes)
        unknown = present[nodes.find(present) < 0]
        if len(unknown):
            nodes.add(unknown)
        nodes["last_step"][nodes.find(present)] = step
        gone = nodes.rows[nodes["last_step"][nodes.rows] < step - self._horizon.ring_steps]
        if len(gone):
            nodes.remove(gone)
        return rows

    def _fill_skipped_blocks(self, step: int) -> None:
        """Blocks that began since the last step have no samples yet; the rings have older ones. In
        a block without any sample, pods used what they used last: a gap is not 0."""
        length = self._horizon.block_steps
        block = step // length
        for ring in (self._pods["maxima"], self._pods["at_node_peak"], self._nodes["shares"]):
            first = max(self._step // length + 1, block - ring.shape[1] + 1)
            ring[:, np.arange(first, block + 1) % ring.shape[1]] = 0.0
        maxima = self._pods["maxima"]
        skipped = np.arange(max(self._step // length + 1, block - maxima.shape[1] + 1), block)
        if len(skipped) and self._step != NEVER:
            maxima[:, skipped % maxima.shape[1]] = self._pods["usage"][:, None]

    def _node_peaks(
        self, step: int, node_rows: IntArray, usage: FloatArray, requests: FloatArray
    ) -> BoolArray:
        """Whether the node of each pod uses more than at any earlier sample of the block."""
        nodes, count = self._nodes, len(self._nodes["id"])
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
        if not len(outcomes.nodes):
            return
        horizon = self._horizon
        self._fade(self._step - max(self._learned_step, 0))
        self._learned_step = self._step
        bins = pooled_margins.bins_of(outcomes.ratios)
        # Outcomes of one horizon overlap: together they weigh as much as one. In the pool, so do
        # those of its nodes.
        weight = interval / horizon.steps
        unspent = self.risks - outcomes.exceeded.mean(axis=0)
        if self._tally is not None:
            self._tally.add(bins, weight)
            self._tally.spend(interval, float(unspent[0]))
        else:
            np.add.at(self._pool_margins, bins, weight / len(bins))
        self._nodes["margins"][outcomes.nodes, bins] += weight
        half_life = horizon.steps_of_days(risk_level.DEBT_HALF_LIFE_DAYS)
        self._debt *= 0.5 ** (interval / half_life)
        debt = self._debt + interval * unspent
        self._debt = risk_level.bounded(debt, self.risks, self._repayment)

    def _fade(self, steps: int) -> None:
        days = steps / self._horizon.steps_of_days(1.0)
        if not self._single_node:
            self._pool_margins *= 0.5 ** (days / pooled_margins.POOL_HALF_LIFE_DAYS)
        self._nodes["margins"][:] *= np.float32(0.5 ** (days / pooled_margins.NODE_HALF_LIFE_DAYS))

    # -- predict

    def predict(self) -> PoolPeaks:
        """Predict the peaks from the last observed step on. One prediction in each `audit_steps` is
        remembered, to be compared with its outcome."""
        pods, step = self._pods, self._step
        order = np.lexsort((pods["id"][pods.rows], pods["node"][pods.rows]))
        rows = pods.rows[order]
        ids, starts = np.unique(pods["node"][rows], return_index=True)
        if not len(rows):
            return PoolPeaks(ids, np.zeros(0), np.zeros((0, len(self.risks))))
        requests = np.add.reduceat(pods["request"][rows], starts)
        shapes = self._shapes(rows, starts, ids, np.maximum(requests, _NO_REQUEST))
        node_rows = self._nodes.find(ids)
        peaks, risks = self._peaks(node_rows, shapes)
        peaks *= requests[:, None]
        if step - self._last_made >= self._horizon.audit_steps:
            self._remember(node_rows, requests, shapes, peaks, risks)
        return PoolPeaks(ids, requests, peaks)

    def _shapes(
        self, rows: IntArray, starts: IntArray, ids: IntArray, requests: FloatArray
    ) -> FloatArray:
        """Shape of each node as a share of its requests."""
        pods, step, horizon = self._pods, self._step, self._horizon
        future = futures.future_peaks(
            pods,
            rows,
            starts,
            ids,
            step,
            horizon,
            self._windows,
            self._experience,
        )
        past = shape.past_peaks(pods, rows, starts, step, horizon, self._experience)
        shares = shape.highest_shares(self._nodes, self._nodes.find(ids), step, horizon)
        return shape.shape(future, past, shares, requests)

    def _peaks(self, nodes: IntArray, shapes: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Peak of each node at each declared risk as a share of its requests, and the risk that it
        takes, (nodes, risks)."""
        distributions = pooled_margins.combined(
            self._pool_margins, self._nodes["margins"][nodes], self._prior
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
        return risk_level.level(self.risks, self._debt, pending, self._repayment)

    def _pending_unspent(self) -> tuple[IntArray, FloatArray]:
        """Slots of running predictions, and for each declared risk the sum of what these do not
        spend so far, times the steps for which each stands."""
        slots, rates = pending_outcomes.expected_rates(self._nodes, self._made_steps)
        return slots, self._intervals[slots] @ (self.risks - rates)

    def _remember(
        self,
        rows: IntArray,
        requests: FloatArray,
        shapes: FloatArray,
        peaks: FloatArray,
        risks: FloatArray,
    ) -> None:
        slot = int(np.argmin(self._made_steps))
        first = self._last_made == NEVER
        interval = self._horizon.audit_steps if first else self._step - self._last_made
        self._intervals[slot] = min(interval, self._horizon.steps)
        # A node that gives nothing away takes no risk, however much its pods use.
        peaks = np.where(peaks < requests[:, None], peaks, np.inf)
        pending_outcomes.enter(self._nodes, rows, slot, shapes * requests, peaks, risks)
        self._made_steps[slot] = self._step
        self._known_steps[slot] = 0
        self._last_made = self._step

    # -- state

    def state(self) -> dict[str, Any]:
        """Everything the pool has learned, of bytes, integers and mappings."""
        return {
            "pods": self._pods.pack(),
            "departed": self._departed.pack(),
            "nodes": self._nodes.pack(),
            "experience": self._experience.state(),
            "tally": None if self._tally is None else self._tally.state(),
            **{name: getattr(self, f"_{name}").tobytes() for name in self._arrays},
            **{name: int(getattr(self, f"_{name}")) for name in _NUMBERS},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, of a pool with the same horizon and risks. Raises CheckpointError
        or ValueError if it is damaged or of another pool."""
        for name in self._arrays:
            own = getattr(self, f"_{name}")
            saved = np.frombuffer(state[name], own.dtype).reshape(own.shape)
            setattr(self, f"_{name}", saved.copy())
        pods = dict(state["pods"])
        if "departed" not in state:  # the pool did not know workloads yet
            unknown = np.full(len(pods["id"]) // 8, borrowed_history.NO_WORKLOAD)
            pods["workload"] = self._pods.columns.columns["workload"].pack(unknown)
        self._pods.restore(pods)
        self._departed.restore(state.get("departed", {}))
        self._nodes.restore(state["nodes"])
        self._experience.restore(state["experience"])
        if self._tally is not None and "tally" in state:  # else the pool stated no outcomes yet
            self._tally.restore(state["tally"])
        for name in _NUMBERS:
            setattr(self, f"_{name}", int(state[name]))


def _in_order(usage: PodUsage) -> PodUsage:
    """The same with ascending ids of pods: what the fleet learns must not depend on the order.
    Raises ValueError if a pod is listed twice."""
    ascent = np.diff(usage.pods)
    if (ascent > 0).all():
        return usage
    order = np.argsort(usage.pods, kind="stable")
    if (np.diff(usage.pods[order]) == 0).any():
        raise ValueError("a pod is listed twice")
    return PodUsage(
        usage.pods[order],
        usage.nodes[order],
        usage.usage[order],
        usage.requests[order],
        usage.limits[order],
        None if usage.workloads is None else usage.workloads[order],
    )
