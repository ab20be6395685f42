"""In the manner of Autopilot: cpu by where most of the load is, memory by its highest.

From the moving-window recommender of Rzadca et al., Autopilot: workload autoscaling at Google
(EuroSys 2020), its load-weighted percentile for cpu and its maximum for memory.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model import day_slots
from pipeline.processors.model.entity_columns import Rows
from pipeline.processors.model.histogram import quantile_buckets
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.option_checks import check_between, check_fraction
from pipeline.processors.predictors.stateless import Stateless

_CPU, _MEMORY = range(2)
_SLOT_SECONDS: Final = day_slots.SLOT_MS / 1000
_DAY_SECONDS: Final = day_slots.SLOTS * _SLOT_SECONDS


class Autopilot(Stateless):
    """By default the load-weighted p95 of cpu, and the highest memory of a day.

    Raises ValueError for a fraction that is none and a window shorter than a slot of the recent
    past or longer than what is kept.
    """

    name = "autopilot"
    prod: Literal["pair", "classes"] = "pair"

    def __init__(self, cpu: float = 0.95, memory_window_seconds: float = _DAY_SECONDS) -> None:
        self._fraction = check_fraction("cpu", cpu)
        self._window_seconds = check_between(
            "memory_window_seconds", memory_window_seconds, _SLOT_SECONDS, _DAY_SECONDS
        )

    def peak(self, view: View) -> Peaks:
        """Terms: the `fraction` for cpu, the `window_seconds` for memory."""
        rows, at = view.rows, view.all_rows
        slots = math.ceil(self._window_seconds / _SLOT_SECONDS)
        kept = rows.store["recent"], rows.store["recent_slot"]
        memory = day_slots.highest(*kept, at, _MEMORY, slots)
        cpu = load_weighted_quantile(rows, at, self._fraction)
        entities, pods = view.split(np.stack([cpu, memory], axis=1))
        terms = {
            "fraction": np.broadcast_to([self._fraction, np.nan], entities.shape),
            "window_seconds": np.broadcast_to([np.nan, self._window_seconds], entities.shape),
        }
        return Peaks(entities, pods, terms)


def load_weighted_quantile(rows: Rows, at: IntArray, fraction: float) -> FloatArray:
    """Of cpu, cores (n,): the end of the first bucket up to which lies this share of all the load
    that the histogram holds, the load of a bucket being its weight times its end. 0 where
    there never was a load, NaN where a row has no sample."""
    histograms = rows.buckets[_CPU]
    answer = np.full(len(at), np.nan)
    for profile, layout in enumerate(histograms.layouts):
        own = np.flatnonzero(rows.profile[at] == profile)
        weights = histograms.dense(at[own])[:, : layout.num_buckets]
        found = quantile_buckets(weights * layout.ends, (fraction,))[0]
        answer[own] = np.where(found < 0, np.nan, layout.ends[found])
    return np.where(rows.idle(at)[:, _CPU], 0.0, answer)
