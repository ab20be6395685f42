"""After Autopilot: cpu by its load-weighted quantile, memory by its recent maximum.

From the moving-window recommender of Rzadca et al., Autopilot: workload autoscaling at Google
(EuroSys 2020).
"""

import math
from typing import Any, Final, Literal

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model import day_slots
from pipeline.processors.model.entity_models import EntityModels
from pipeline.processors.model.histogram import quantile_buckets
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.declaration import Declaration, Term
from pipeline.processors.predictors.options import between, fraction
from pipeline.processors.predictors.stateless import Stateless

_CPU, _MEMORY = range(2)
_SLOT_SECONDS: Final = day_slots.SLOT_MS / 1000
_DAY_SECONDS: Final = day_slots.SLOTS * _SLOT_SECONDS


class Autopilot(Stateless):
    """Predicts cpu by the load-weighted quantile, and memory by its maximum: a job that works in
    bursts gets the cpu that its work needs, and the memory that it reached within the window."""

    name = "autopilot"
    prod: Literal["pair", "classes"] = "pair"
    declaration: Final = Declaration(
        summary="cpu: load-weighted quantile of the histogram; memory: maximum of its window",
        options=(
            fraction("cpu", 0.95, "quantile of cpu, by load"),
            between(
                "memory_window_seconds", _DAY_SECONDS, _SLOT_SECONDS, _DAY_SECONDS,
                "window of the maximum of memory",
            ),
        ),
        terms=(
            Term("fraction", "", note="cpu only"),
            Term("window_seconds", "s", note="memory only"),
        ),
        without_formula="a load-weighted quantile of cpu, the highest memory of the window",
        unknown="no recent samples",
    )  # fmt: skip

    def __init__(self, **options: Any) -> None:
        given = self.declaration.checked(options)
        self._fraction: float = given["cpu"]
        self._window_seconds: float = given["memory_window_seconds"]

    def peak(self, view: View) -> Peaks:
        """Return the load-weighted quantile of cpu and the highest memory of the window."""
        models, rows = view.models, view.all_rows
        slots = math.ceil(self._window_seconds / _SLOT_SECONDS)
        recent = models.store["recent"], models.store["recent_slot"]
        memory = day_slots.maximum(*recent, rows, _MEMORY, slots)
        cpu = load_weighted_quantile(models, rows, self._fraction)
        entities, pods = view.split(np.stack([cpu, memory], axis=1))
        terms = {
            "fraction": np.broadcast_to([self._fraction, np.nan], entities.shape),
            "window_seconds": np.broadcast_to([np.nan, self._window_seconds], entities.shape),
        }
        return Peaks(entities, pods, terms)


def load_weighted_quantile(models: EntityModels, rows: IntArray, fraction: float) -> FloatArray:
    """Return cores (n,) below which this share of the load of each row's histogram lies.

    The load of a bucket is its weight times its end; the answer is the end of a bucket. 0 for a row
    whose samples were all 0, NaN for one without samples.
    """
    histograms = models.histograms[_CPU]
    quantiles = np.full(len(rows), np.nan)
    for profile, layout in enumerate(histograms.layouts):
        own = np.flatnonzero(models.profile[rows] == profile)
        weights = histograms.dense(rows[own])[:, : layout.num_buckets]
        buckets = quantile_buckets(weights * layout.ends, (fraction,))[0]
        quantiles[own] = np.where(buckets < 0, np.nan, layout.ends[buckets])
    return np.where(models.idle(rows)[:, _CPU], 0.0, quantiles)


PREDICTOR: Final = Autopilot
