"""Resource Central: the sum over pods of a high percentile of each pod's recent usage."""

import math
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model import day_slots
from pipeline.processors.model.entity_models import EntityModels
from pipeline.processors.model.model_config import SYSTEM
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.declaration import Declaration, Term
from pipeline.processors.predictors.options import between, choice, fraction
from pipeline.processors.predictors.pod_sums import (
    POD_SUM,
    POD_SUM_TERMS,
    SYSTEM_TERM,
    pod_sum_peaks,
)
from pipeline.processors.predictors.stateless import Stateless

_SLOT_SECONDS: Final = day_slots.SLOT_MS / 1000
_DAY_SECONDS: Final = day_slots.SLOTS * _SLOT_SECONDS


class ResourceCentral(Stateless):
    """Peak_ResourceCentral of Koordinator's node prediction."""

    name = "resource-central"
    prod: Literal["pair", "classes"] = "pair"
    declaration: Final = Declaration(
        summary="sum over the pods of a percentile of each pod's recent usage",
        options=(
            fraction("cpu", 0.99, "percentile of cpu"),
            fraction("memory", 0.99, "percentile of memory"),
            between(
                "history_seconds", _DAY_SECONDS, _SLOT_SECONDS, _DAY_SECONDS,
                "how far back usage counts",
            ),
            choice(
                "interpolation", "rank", ("rank", "linear"),
                "`rank`: a value that was measured; `linear`: between two of them",
            ),
        ),
        terms=(*POD_SUM_TERMS, SYSTEM_TERM, Term("fraction", "")),
        formulas=POD_SUM,
        without_formula="a percentile of the slots of its history",
        unknown="no recent samples",
    )  # fmt: skip

    def __init__(self, **options: Any) -> None:
        given = self.declaration.checked(options)
        self._places: list[tuple[IntArray, FloatArray | None]]
        self._fractions = [given["cpu"], given["memory"]]
        if given["interpolation"] == "linear":
            self._places = [linear_places(fraction) for fraction in self._fractions]
        else:
            self._places = [(ranks_of(fraction), None) for fraction in self._fractions]
        self._slots = math.ceil(given["history_seconds"] / _SLOT_SECONDS)

    def peak(self, view: View) -> Peaks:
        system = self._percentiles(view.models, view.entities[:, SYSTEM])
        pods = self._percentiles(view.models, view.pods)
        fractions = np.broadcast_to(self._fractions, (*view.entities.shape, 2))
        return pod_sum_peaks(view, pods, system, fraction=fractions)

    def _percentiles(self, models: EntityModels, rows: IntArray) -> FloatArray:
        """The percentiles (n, 2) of the slots of these rows; NaN for a row without values."""
        recent = models.store["recent"], models.store["recent_slot"]
        columns = [
            day_slots.percentile(*recent, rows, r, self._slots, *places)
            for r, places in enumerate(self._places)
        ]
        return np.stack(columns, axis=1)


def ranks_of(fraction: float) -> IntArray:
    """The index of a percentile among n ascending values, by n: the first value that at least this
    share of them does not exceed. Exact fractions, so that rounding moves no rank."""
    exact = Fraction(str(fraction))
    return np.array([max(math.ceil(n * exact) - 1, 0) for n in range(day_slots.SLOTS + 1)])


def linear_places(fraction: float) -> tuple[IntArray, FloatArray]:
    """Where a percentile lies among n ascending values that are as far apart as ranks, by n: the
    index of the value before it, and the share of the way to the next one. So do numpy, and the
    simulator of Bashir et al."""
    exact = Fraction(str(fraction))
    places = [max(n - 1, 0) * exact for n in range(day_slots.SLOTS + 1)]
    ranks = np.array([math.floor(place) for place in places])
    return ranks, np.array([float(place - math.floor(place)) for place in places])


PREDICTOR: Final = ResourceCentral
