"""N-sigma by hour of the day: a peak that comes every afternoon is not expected at night.

Each row stores a mean and a variance for each hour (UTC) and resource in float32, with an error
below a thousandth of the usage, and how often the hour began since its last sample: 676 bytes.
Whenever an hour begins again its weight fades, so that all days together weigh at most `days`.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.model.column_store import Column
from pipeline.processors.model.entity_models import NEVER, EntityModels
from pipeline.processors.model.model_config import FIRST_CLASS
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.declaration import MOMENTS, Declaration, Formula, Term
from pipeline.processors.predictors.options import between

_HOURS: Final = 24
_HOUR_MS: Final = 3_600_000
_WEIGHT, _MEAN, _VARIANCE = range(3)


class HourlyNSigma:
    """Predicts the highest mean + N standard deviations of the hours of the day within the horizon.
    The peak is unknown before `history_seconds` have passed since the first sample, and where the
    horizon touches an hour without samples: usage of that hour was never observed."""

    name = "hourly-nsigma"
    prod: Literal["pair", "classes"] = "classes"
    declaration: Final = Declaration(
        summary="highest mean + N * standard deviation of the hours of the day within the horizon",
        options=(
            between("days", 7.0, 1, 366, "weight of all days together"),
            between("history_seconds", 86_400.0, 0, 31_536_000, "age before the first peak"),
        ),
        terms=(Term("hour", "(UTC)", note="that decides"), Term("mean"), Term("stdev")),
        formulas=(Formula(MOMENTS),),
        unknown="too short a history, or an hour without samples",
    )

    def __init__(self, **options: Any) -> None:
        given = self.declaration.checked(options)
        days = given["days"]
        # Hours with weight, mean and variance; how often an hour began since its last sample; the
        # last hour seen, counted from the epoch. State that faded by other days is not restored,
        # because their number is in the names.
        self._hours, self._newest = f"hourly_{days:g}", f"hourly_{days:g}_at"
        self._missed = f"hourly_{days:g}_missed"
        self.columns: Mapping[str, Column] = {
            self._hours: Column((_HOURS, 3, 2), "<f4"),
            self._missed: Column((_HOURS, 2), "<u2"),
            self._newest: Column((), "<i4", NEVER),
        }
        fading = [(1.0 - 1.0 / days) ** times for times in range(math.floor(days) + 1)]
        self._fading: Final = np.array([*fading, 0.0])
        self._history_ms = 1000 * given["history_seconds"]

    def observe(
        self, models: EntityModels, rows: IntArray, values: FloatArray, end_ms: IntArray
    ) -> None:
        """Learn one sample for the hour in which each window ends."""
        # A window that ends with the hour still belongs to it.
        hour = (end_ms - 1) // _HOUR_MS
        hours, newest = models.store[self._hours], models.store[self._newest]
        missed = models.store[self._missed]
        self._fade(hours, missed, rows, newest[rows], hour)
        newest[rows] = hour
        cell = (rows, hour % _HOURS)
        weight, mean, variance = np.moveaxis(hours[cell].astype(np.float64), 1, 0)
        known = ~np.isnan(values)
        total = weight + 1.0
        # The mean of an hour without weight must not round the new one.
        delta = values - np.where(weight > 0.0, mean, 0.0)
        share = weight / total
        learned = np.stack(
            [total, values - share * delta, share * (variance + delta * delta / total)], axis=1
        )
        hours[cell] = np.where(known[:, None], learned, hours[cell])
        missed[cell] = np.where(known, 0, missed[cell])

    def _fade(
        self,
        hours: npt.NDArray[Any],
        missed: npt.NDArray[Any],
        rows: IntArray,
        old: IntArray,
        new: IntArray,
    ) -> None:
        """Lower the weight of each hour of the day once for each time that it began from `old` to
        `new`; forget an hour that began more than `days` times without a sample."""
        later = np.flatnonzero((old != NEVER) & (new > old))
        of_day = np.arange(_HOURS)
        begun = (new[later, None] - of_day) // _HOURS - (old[later, None] - of_day) // _HOURS
        too_often = len(self._fading) - 1
        times = np.minimum(missed[rows[later]] + begun[:, :, None], too_often)
        missed[rows[later]] = times
        fading = self._fading[np.minimum(begun, too_often)][:, :, None]
        hours[rows[later], :, _WEIGHT] *= np.where(times < too_often, fading, 0.0)

    def peak(self, view: View) -> Peaks:
        """Return the highest mean + N * stdev of the hours that each row's horizon touches."""
        models, rows = view.models, view.all_rows
        hours = models.store[self._hours][rows].astype(np.float64)
        known = hours[:, :, _WEIGHT] > 0.0
        stdev = np.sqrt(hours[:, :, _VARIANCE])
        mean = hours[:, :, _MEAN]
        touched = _touched(view)
        sigmas = view.repeat_per_row(view.strategies["nsigma_multiplier"])
        peaks = mean + sigmas[:, None, None] * stdev
        candidates = np.where(touched[:, :, None] & known, peaks, -np.inf)
        hour = candidates.argmax(axis=1)
        usable = (known | ~touched[:, :, None]).all(axis=1) & self._old_enough(view)[:, None]
        deciding = (
            np.where(usable, np.take_along_axis(values, hour[:, None, :], axis=1)[:, 0], np.nan)
            for values in (peaks, mean, stdev)
        )
        (entities, pods), (mean_term, _), (stdev_term, _) = (view.split(part) for part in deciding)
        hour_term, _ = view.split(np.where(usable, hour, np.nan))
        return Peaks(entities, pods, {"hour": hour_term, "mean": mean_term, "stdev": stdev_term})

    def _old_enough(self, view: View) -> BoolArray:
        first = view.models.first_ms[view.all_rows]
        history_ms = view.repeat_per_row(view.end_ms) - first
        return np.asarray((first != NEVER) & (history_ms >= self._history_ms))


def _touched(view: View) -> BoolArray:
    """Which hours of the day the horizon of each row touches, (k * E + n, 24)."""
    nodes = len(view.end_ms)
    of_pods = view.horizon_seconds[FIRST_CLASS + view.classes]
    horizon_ms = 1000.0 * np.concatenate([np.tile(view.horizon_seconds, nodes), of_pods])
    end_ms = view.repeat_per_row(view.end_ms)
    first = end_ms // _HOUR_MS
    last = np.maximum((end_ms + horizon_ms - 1) // _HOUR_MS, first)
    return np.asarray((np.arange(_HOURS) - first[:, None]) % _HOURS <= (last - first)[:, None])


PREDICTOR: Final = HourlyNSigma
