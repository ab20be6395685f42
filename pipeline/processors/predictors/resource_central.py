"""Resource Central's: the sum over pods of a high percentile of what each used of late."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final, Literal

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model import day_slots
from pipeline.processors.model.entity_columns import Rows
from pipeline.processors.model.model_config import SYSTEM
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.option_checks import check_between, check_fraction
from pipeline.processors.predictors.pod_sums import pod_sums, with_system
from pipeline.processors.predictors.stateless import Stateless

_SLOT_SECONDS: Final = day_slots.SLOT_MS / 1000
_DAY_SECONDS: Final = day_slots.SLOTS * _SLOT_SECONDS


class ResourceCentral(Stateless):
    """By default p99 of a day, for both resources. Raises ValueError for a fraction that is none
    and a history shorter than a slot or longer than what is kept.

    Formula: node prediction by Koordinator, Peak_ResourceCentral.
    """

    name = "resource-central"
    prod: Literal["pair", "classes"] = "pair"

    def __init__(
        self, cpu: float = 0.99, memory: float = 0.99, history_seconds: float = _DAY_SECONDS
    ) -> None:
        self._fractions = [check_fraction("cpu", cpu), check_fraction("memory", memory)]
        self._ranks = [_ranks(fraction) for fraction in self._fractions]
        history = check_between("history_seconds", history_seconds, _SLOT_SECONDS, _DAY_SECONDS)
        self._slots = math.ceil(history / _SLOT_SECONDS)

    def peak(self, view: View) -> Peaks:
        """Terms: those of `PodSums`, of the node `system`, and the `fraction` of the percentile."""
        system = self._percentiles(view.rows, view.entities[:, SYSTEM])
        pods = self._percentiles(view.rows, view.pods)
        sums = pod_sums(view, pods)
        whole, term = with_system(sums.total, system)
        whole[:, SYSTEM] = system
        fraction = np.broadcast_to(self._fractions, whole.shape)
        terms = {**sums.terms, "system": term, "fraction": fraction}
        return Peaks(whole, pods, terms, bare=np.full_like(whole, np.nan))

    def _percentiles(self, rows: Rows, at: IntArray) -> FloatArray:
        """Of the slots of these rows that have a value, (n, 2); NaN where none has."""
        kept = rows.store["recent"], rows.store["recent_slot"]
        columns = [
            day_slots.percentile(*kept, at, r, self._slots, ranks)
            for r, ranks in enumerate(self._ranks)
        ]
        return np.stack(columns, axis=1)


def _ranks(fraction: float) -> IntArray:
    """Where a percentile of n ascending values stands, by n: the first one that at least this
    share of them does not exceed. Whole numbers, so that no rounding moves a rank."""
    exact = Fraction(str(fraction))
    return np.array([max(math.ceil(n * exact) - 1, 0) for n in range(day_slots.SLOTS + 1)])
