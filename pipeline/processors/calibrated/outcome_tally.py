"""What a node tells its pool: its outcomes by bin of `pooled_margins`, and how much risk it
left.

Both fade by themselves. So a pool is the sum of what its nodes state now, whatever they stated
before: a record that is repeated, late or lost changes nothing for long.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.calibrated.outcome_quantiles import quantiles_of
from pipeline.processors.calibrated.pooled_margins import BINS, POOL_HALF_LIFE_DAYS
from pipeline.topics.pool_outcomes import PROBABILITIES, OutcomeQuantiles, ResourceOutcomes

UNSPENT_HALF_LIFE_DAYS: Final = 3.0
"""Nodes do not know the debt of their pool, so that nothing bounds it but its half-life."""
_LEAST_WEIGHT: Final = 1e-3
_DIGITS: Final = 4


class OutcomeTally:
    """The outcomes of one node and resource. `judged` and `unspent` count steps."""

    def __init__(self) -> None:
        self._bins: IntArray = np.zeros(0, np.int64)  # ascending
        self._weights: FloatArray = np.zeros(0)
        self.judged = self.unspent = 0.0

    def fade(self, steps: int, horizon: Horizon) -> None:
        """Let `steps` pass."""
        days = steps / horizon.steps_of_days(1.0)
        factor = 0.5 ** (days / UNSPENT_HALF_LIFE_DAYS)
        self.judged, self.unspent = self.judged * factor, self.unspent * factor
        self._weights = self._weights * 0.5 ** (days / POOL_HALF_LIFE_DAYS)
        kept = self._weights >= _LEAST_WEIGHT
        self._bins, self._weights = self._bins[kept], self._weights[kept]

    def add(self, bins: IntArray, weight: float) -> None:
        """Add outcomes that weigh `weight` horizons each."""
        weights = np.concatenate([self._weights, np.full(len(bins), weight)])
        self._bins, own = np.unique(np.concatenate([self._bins, bins]), return_inverse=True)
        self._weights = np.bincount(own, weights).astype(np.float64)

    def spend(self, steps: float, unspent: float) -> None:
        """Count a prediction that stands for `steps`; `unspent` is the risk that it took less the
        measured one."""
        self.judged += steps
        self.unspent += steps * unspent

    def forget_risk(self) -> None:
        """Drop what counts for another risk."""
        self.judged = self.unspent = 0.0

    def record(
        self, pending_steps: float, pending_unspent: float, horizon: Horizon
    ) -> ResourceOutcomes:
        """The outcomes for the pool. Running predictions stand for `pending_steps`; the sum of what
        they do not spend so far is `pending_unspent`."""
        day = horizon.steps_of_days(1.0)
        return ResourceOutcomes(
            distribution=self._quantiles(),
            judged_days=round((self.judged + pending_steps) / day, _DIGITS),
            unspent_days=round(self.unspent / day, _DIGITS),
            running_days=round(pending_unspent / day, _DIGITS),
        )

    def _quantiles(self) -> OutcomeQuantiles | None:
        if not len(self._bins):
            return None
        histogram = np.zeros(BINS)
        histogram[self._bins] = self._weights
        return OutcomeQuantiles(
            weight=round(float(histogram.sum()), _DIGITS),
            quantiles=tuple(quantiles_of(histogram, PROBABILITIES)),
        )

    def state(self) -> dict[str, Any]:
        return {
            "bins": self._bins.tobytes(),
            "weights": self._weights.tobytes(),
            "judged": self.judged,
            "unspent": self.unspent,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`. Raises ValueError or KeyError if it is damaged."""
        bins = np.frombuffer(state["bins"], np.int64)
        weights = np.frombuffer(state["weights"], np.float64)
        if len(bins) != len(weights) or (np.diff(bins, prepend=-1, append=BINS) <= 0).any():
            raise ValueError("outcomes are damaged")
        self._bins, self._weights = bins.copy(), weights.copy()
        self.judged, self.unspent = float(state["judged"]), float(state["unspent"])
