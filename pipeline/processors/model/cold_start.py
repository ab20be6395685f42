"""The cold-start rule: a pod without enough history counts its request instead of its own peak.

`cold` decides which pods have too little history, `counts_request` which pods count their request.
All sums of peaks over pods use both: the view of pods (`reclaimable`), predictors that add up pods
(`pod_sums`), and `springtide explain`, which prints `criteria` and `reason`. The callers decide
which pods are part of a sum. The limits are those
of a node's strategy: `cold_start_seconds` and `cold_start_samples`.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.model.entity_columns import NEVER, Rows
from pipeline.processors.model.pairs import pairs
from pipeline.processors.model.predictor import PeakSettings

FlagT = TypeVar("FlagT", bool, BoolArray)


def cold(
    rows: Rows,
    pods: IntArray,
    ages: FloatArray,
    end_ms: IntArray,
    node_of: IntArray,
    settings: PeakSettings,
) -> BoolArray:
    """Whether each pod is cold, (n,): not older than the cold start, or with too few samples of a
    resource.

    `pods` are rows, `ages` seconds, `end_ms` the ends of the windows, all (n,). A pod of unknown
    age is as old as its first sample. A resource without samples counts only if the other has none
    either: it has no model to trust.
    """
    first_ms = rows.first_ms.take(pods)
    seen_seconds = np.where(first_ms == NEVER, 0.0, (end_ms - first_ms) / 1000.0)
    ages = np.where(np.isnan(ages), seen_seconds, ages)
    young = ages <= settings.cold_start_seconds[node_of]
    samples = rows.samples.take(pods, axis=0)
    few = samples < pairs(settings.cold_start_samples[node_of])
    begun = samples > 0
    cpu, memory = (few & (begun | ~begun[:, ::-1])).T
    return np.asarray(young | cpu | memory)


def counts_request(has_request: FlagT, is_cold: FlagT, lacks_peak: FlagT) -> FlagT:
    """Whether a pod's request counts instead of its peak. A cold pod of unknown request counts its
    peak: there is nothing else."""
    return has_request & (is_cold | lacks_peak)


def criteria(seconds: float, samples: int) -> str:
    """When a pod is cold, in words."""
    return f"at most {seconds!r} s old or with fewer than {samples} samples"


def reason(age_seconds: float | None, samples: int, other_samples: str) -> str:
    """Why a pod is cold, in words; `other_samples` are those of the other resource."""
    age = "of unknown age" if age_seconds is None else f"{age_seconds!r} s old"
    return f"cold, {age}, {samples} samples ({other_samples})"
