"""N-sigma by the hour of the day: a peak that is due in the afternoon is not expected at night.

Owes the rest: what it keeps per row, a mean and a variance for each hour (UTC) and resource, in
float32, off by less than a thousandth of the usage, and how often it began since its last sample:
676 bytes in all. Whenever an hour begins anew it weighs a bit less, so that all days together never
weigh more than `days` in full.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.column_store import Column
from pipeline.processors.model.entity_columns import NEVER, Rows
from pipeline.processors.model.model_config import FIRST_CLASS
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.option_checks import check_between

_HOURS: Final = 24
_HOUR_MS: Final = 3_600_000
_WEIGHT, _MEAN, _VARIANCE = range(3)


class HourlyNSigma:
    """Highest of mean + N * stdev over the hours of the day that the entity's horizon touches.

    Unknown before `history_seconds` have passed since the first sample, and when the horizon
    touches an hour that was never seen. Raises ValueError for options out of range.
    """

    name = "hourly-nsigma"
    prod: Literal["pair", "classes"] = "classes"

    def __init__(self, days: float = 7.0, history_seconds: float = 86_400.0) -> None:
        check_between("days", days, 1, 366)
        # Weight, mean and variance by hour, how often it began since its last sample, and the last
        # hour seen, counted from the epoch. With the days in their names no state is taken over
        # that faded in another way.
        self._hours, self._newest = f"hourly_{days:g}", f"hourly_{days:g}_at"
        self._missed = f"hourly_{days:g}_missed"
        self.columns: Mapping[str, Column] = {
            self._hours: Column((_HOURS, 3, 2), "<f4"),
            self._missed: Column((_HOURS, 2), "<u2"),
            self._newest: Column((), "<i4", NEVER),
        }
        fading = [(1.0 - 1.0 / days) ** times for times in range(math.floor(days) + 1)]
        self._fading: Final = np.array([*fading, 0.0])
        self._history_ms = 1000 * check_between("history_seconds", history_seconds, 0, 31_536_000)

    def observe(
        self, rows: Rows, at: IntArray, values: FloatArray, end_ms: npt.NDArray[np.int64]
    ) -> None:
        """One sample for the hour in which each window ends."""
        # A window that ends with the hour is still of it.
        hour = (end_ms - 1) // _HOUR_MS
        kept, newest = rows.store[self._hours], rows.store[self._newest]
        missed = rows.store[self._missed]
        self._age(kept, missed, at, newest[at], hour)
        newest[at] = hour
        place = (at, hour % _HOURS)
        weight, mean, variance = np.moveaxis(kept[place].astype(np.float64), 1, 0)
        known = ~np.isnan(values)
        total = weight + 1.0
        # What has been forgotten altogether must not round what comes.
        delta = values - np.where(weight > 0.0, mean, 0.0)
        share = weight / total
        learned = np.stack(
            [total, values - share * delta, share * (variance + delta * delta / total)], axis=1
        )
        kept[place] = np.where(known[:, None], learned, kept[place])
        missed[place] = np.where(known, 0, missed[place])

    def _age(
        self,
        kept: npt.NDArray[Any],
        missed: npt.NDArray[Any],
        at: IntArray,
        old: IntArray,
        new: IntArray,
    ) -> None:
        """Lower the weight of each hour of the day as often as it began since; what began
        more than `days` times without a sample is forgotten."""
        later = np.flatnonzero((old != NEVER) & (new > old))
        of_day = np.arange(_HOURS)
        begun = (new[later, None] - of_day) // _HOURS - (old[later, None] - of_day) // _HOURS
        too_often = len(self._fading) - 1
        times = np.minimum(missed[at[later]] + begun[:, :, None], too_often)
        missed[at[later]] = times
        fading = self._fading[np.minimum(begun, too_often)][:, :, None]
        kept[at[later], :, _WEIGHT] *= np.where(times < too_often, fading, 0.0)

    def peak(self, view: View) -> Peaks:
        """Terms: the `hour` that decides, and its `mean` and `stdev`."""
        rows, at = view.rows, view.all_rows
        kept = rows.store[self._hours][at].astype(np.float64)
        known = kept[:, :, _WEIGHT] > 0.0
        stdev = np.sqrt(kept[:, :, _VARIANCE])
        mean = kept[:, :, _MEAN]
        touched = _touched(view)
        sigmas = view.of_all_rows(view.settings.nsigma_multiplier)
        peaks = mean + sigmas[:, None, None] * stdev
        candidates = np.where(touched[:, :, None] & known, peaks, -np.inf)
        hour = candidates.argmax(axis=1)
        usable = (known | ~touched[:, :, None]).all(axis=1) & self._old_enough(view)[:, None]
        found = (
            np.where(usable, np.take_along_axis(values, hour[:, None, :], axis=1)[:, 0], np.nan)
            for values in (peaks, mean, stdev)
        )
        (entities, pods), (mean_term, _), (stdev_term, _) = (view.split(part) for part in found)
        hours, _ = view.split(np.where(usable, hour, np.nan))
        return Peaks(entities, pods, {"hour": hours, "mean": mean_term, "stdev": stdev_term})

    def _old_enough(self, view: View) -> npt.NDArray[np.bool_]:
        first = view.rows.first_ms[view.all_rows]
        history_ms = view.of_all_rows(view.end_ms) - first
        return np.asarray((first != NEVER) & (history_ms >= self._history_ms))


def _touched(view: View) -> npt.NDArray[np.bool_]:
    """Which hours of the day the horizon of each row touches, (k * E + n, 24)."""
    nodes = len(view.end_ms)
    of_pods = view.horizon_seconds[FIRST_CLASS + view.classes]
    horizon_ms = 1000.0 * np.concatenate([np.tile(view.horizon_seconds, nodes), of_pods])
    end_ms = view.of_all_rows(view.end_ms)
    first = end_ms // _HOUR_MS
    last = np.maximum((end_ms + horizon_ms - 1) // _HOUR_MS, first)
    return np.asarray((np.arange(_HOURS) - first[:, None]) % _HOURS <= (last - first)[:, None])
