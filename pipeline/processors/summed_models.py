"""Models of workloads or containers of several nodes, added up, and requests from them.

Formulas: recommender of the Vertical Pod Autoscaler, see `recommendation.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model import state_codec
from pipeline.processors.model.column_store import Column
from pipeline.processors.model.entity_models import NEVER, EntityModels
from pipeline.processors.model.histogram import (
    decay_factor,
    quantiles,
    shift_factor,
    shifted_reference_ms,
)
from pipeline.processors.model.model_config import RESOURCES, VPA
from pipeline.processors.model.workload_samples import HALF_LIFE_MS
from pipeline.processors.predictors.vpa import FLOOR, MARGIN_PERCENT, TARGET
from pipeline.topics.workloads import Workload, WorkloadContainer

FRACTIONS: Final = (0.5, TARGET, 0.95)
"""Quantiles of lower bound, target and upper bound, for both resources."""
OBSERVED: Final = {"observed_ms": Column((), "<i8")}
"""How long each model was observed."""
DAY_MS: Final = 86_400_000

_FACTOR: Final = (100.0 + MARGIN_PERCENT) / 100.0
_Key = TypeVar("_Key", Workload, WorkloadContainer)


class SummedModels(Generic[_Key]):
    """Models of several nodes added up by key: `rows` are those of `models`, whose columns include
    `OBSERVED`."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.models = EntityModels((VPA,), columns)
        self.rows: dict[_Key, int] = {}
        self._reference_ms: int | None = None

    def rows_of(self, keys: Sequence[_Key]) -> IntArray:
        """The rows of known keys."""
        return np.array([self.rows[key] for key in keys], np.int64)

    def add(
        self,
        keys: Sequence[_Key],
        positions: IntArray,
        columns: Mapping[str, npt.NDArray[Any]],
        histograms: Sequence[state_codec.SparseHistograms],
        reference_ms: int,
        window_ms: int,
    ) -> IntArray:
        """Add the models of `keys`, which are at `positions` in the columns and histograms of a
        node. Returns their rows."""
        new = [key for key in keys if key not in self.rows]
        self.rows.update(
            zip(new, self.models.allocate(np.zeros(len(new), np.int8)).tolist(), strict=True)
        )
        rows, models = self.rows_of(keys), self.models
        factor = self._moved_to(reference_ms)
        for sums, (counts, buckets, weights) in zip(models.histograms, histograms, strict=True):
            row_of = np.full(len(counts), NEVER)
            row_of[positions] = rows
            bucket_rows = row_of.repeat(counts)
            wanted = bucket_rows != NEVER
            sums.add_repeated(bucket_rows[wanted], buckets[wanted], weights[wanted] * factor)
        samples = columns["samples"][positions]
        models.samples[rows] += samples
        models.store["observed_ms"][rows] += samples[:, 0] * window_ms
        first, last = columns["first_ms"][positions], columns["last_ms"][positions]
        before = models.first_ms[rows]
        earliest = np.where(before == NEVER, first, np.minimum(before, first))
        models.first_ms[rows] = np.where(first == NEVER, before, earliest)
        models.last_ms[rows] = np.maximum(models.last_ms[rows], last)
        return rows

    def remove(self, keys: Iterable[_Key]) -> None:
        """Forget these keys."""
        rows = np.array([self.rows.pop(key) for key in keys], np.int64)
        self.models.release(rows)

    def advice(
        self, rows: IntArray, shares: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Days of history (n,), and of cpu and memory lower bound, target and upper bound (n, 3)
        with these `shares` (n,) of the floor of a pod."""
        models = self.models
        lifetime_ms = models.last_ms[rows] - models.first_ms[rows]
        days = np.minimum(lifetime_ms, models.store["observed_ms"][rows]) / DAY_MS
        cpu, memory = (
            np.stack(bounds(self._quantiles(rows, r), days, FLOOR[r] * shares), axis=1)
            for r in range(len(RESOURCES))
        )
        return days, cpu, memory

    def _moved_to(self, reference_ms: int) -> float:
        """Move the common reference for weights with this one, and return the factor of these.
        Both are multiples of the half-life, so that factors are exact powers of two."""
        before = self._reference_ms
        self._reference_ms = shifted_reference_ms(before, reference_ms, HALF_LIFE_MS)
        if before is not None and before != self._reference_ms:
            rows = np.array([*self.rows.values()], np.int64)
            factor = shift_factor(before, self._reference_ms, HALF_LIFE_MS)
            for histograms in self.models.histograms:
                histograms.scale(rows, factor, self.models.profile[rows])
        return decay_factor(reference_ms, self._reference_ms, HALF_LIFE_MS)

    def _quantiles(self, rows: IntArray, resource: int) -> FloatArray:
        """Quantiles of `FRACTIONS`, (3, n), NaN without samples."""
        weights = self.models.histograms[resource].dense(rows)
        return quantiles(weights, VPA.layouts[resource], FRACTIONS)


def bounds(
    quantiles: FloatArray, confidence_days: FloatArray, floor: FloatArray | float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Lower bound, target and upper bound from the `quantiles` (3, n) of n workloads with this many
    days of history (n,). NaN is unknown, as is the upper bound without history."""
    lower, target, upper = quantiles * _FACTOR
    with np.errstate(divide="ignore", invalid="ignore"):
        lower = lower * (1.0 + 0.001 / confidence_days) ** -2.0
        upper = upper * (1.0 + 1.0 / confidence_days)
    upper[np.isinf(upper)] = np.nan
    return np.maximum(lower, floor), np.maximum(target, floor), np.maximum(upper, floor)
