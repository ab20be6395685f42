"""Add samples of pods or containers to the models of their workloads.

Formulas: aggregation of the Vertical Pod Autoscaler. Weights halve in 24 hours. Memory enters as
one peak of each pod or container and 24 hours, counted from its first sample; a higher peak of the
same 24 hours replaces it. An OOM kill counts as a peak above what was used (`oom_peaks.py`).
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.entity_models import NEVER, NO_ROW, EntityModels
from pipeline.processors.model.histogram import decay_factor
from pipeline.processors.model.model_config import VPA
from pipeline.processors.model.oom_peaks import PodOomKill, needed_bytes

HALF_LIFE_MS: Final = VPA.half_life_ms[0]
PEAK_INTERVAL_MS: Final = 86_400_000

_CPU_LAYOUT, _MEMORY_LAYOUT = VPA.layouts
_Times = TypeVar("_Times", int, IntArray)


class Peaks(NamedTuple):
    """Of some pods or containers the highest memory of their present 24 hours (n,), and when these
    end (n,)."""

    bytes: FloatArray
    end_ms: IntArray


def add_cpu(
    models: EntityModels,
    places: IntArray,
    values: FloatArray,
    weights: FloatArray,
    end_ms: IntArray,
) -> None:
    """Add samples in cores (n,) with these `weights` to the models `places`."""
    models.histograms[0].add_repeated(places, _CPU_LAYOUT.digitize(values), weights)
    np.add.at(models.samples.reshape(-1), 2 * places, 1)
    remember_times(models, places, end_ms)


def add_memory(
    models: EntityModels,
    places: IntArray,
    values: FloatArray,
    end_ms: IntArray,
    known: Peaks,
    reference_ms: IntArray,
) -> tuple[IntArray, Peaks]:
    """Add those of `values` in bytes (n,), NaN is unknown, that are higher than the last peak or
    the first of their 24 hours, to the models `places`, `NO_ROW` is none.

    `reference_ms` (n,) are the decay references. Returns which values these are, and their peaks.
    """
    has_ended = end_ms >= known.end_ms
    # Both are False for an unknown usage.
    changed = (values > known.bytes) | (has_ended & (values >= 0.0))
    at = np.flatnonzero(changed & (places != NO_ROW))
    if not len(at):
        return at, Peaks(values[at], end_ms[at])
    places, values, end_ms, has_ended = places[at], values[at], end_ms[at], has_ended[at]
    buckets = _MEMORY_LAYOUT.digitize(values)
    old_buckets = _MEMORY_LAYOUT.digitize(known.bytes[at])
    ends = known.end_ms[at]
    begun = np.where(ends == NEVER, end_ms, ends)
    ends = np.where(has_ended, _next_end_ms(begun, end_ms), ends)
    weights = np.array(
        [
            decay_factor(end, reference, HALF_LIFE_MS)
            for end, reference in zip(ends.tolist(), reference_ms[at].tolist(), strict=True)
        ]
    )
    moved = np.flatnonzero(~has_ended & (buckets != old_buckets))
    added = np.flatnonzero(has_ended | (buckets != old_buckets))
    if len(added):
        histograms = models.histograms[1]
        histograms.subtract(places[moved], old_buckets[moved], weights[moved])
        histograms.add_repeated(places[added], buckets[added], weights[added])
    np.add.at(models.samples.reshape(-1), 2 * places[has_ended] + 1, 1)
    remember_times(models, places, end_ms)
    return at, Peaks(values, ends)


class CountedKill(NamedTuple):
    """An OOM kill that counted: the peak of its pod or container after it, when its 24 hours end,
    what is to be known of the kill, and the peak as which it counts."""

    peak_bytes: float
    peak_end_ms: int
    kill: PodOomKill
    counted_bytes: float


def add_oom_kill(
    models: EntityModels,
    place: int,
    killed_ms: int,
    request_bytes: float,
    known: PodOomKill | None,
    old_peak: float,
    interval_end_ms: int,
    end_ms: int,
    reference_ms: int,
) -> CountedKill | None:
    """Add a kill as the peak that it counts as to the model `place`; None if there is no such
    model, the kill is in the future or too old, or it or a later one counted already.

    `known` is the last kill that counted, `old_peak` the peak of the 24 hours that end at
    `interval_end_ms`, `end_ms` the end of the window.
    """
    is_new = known is None or known.killed_ms < killed_ms
    is_recent = end_ms - PEAK_INTERVAL_MS <= killed_ms <= end_ms
    if place == NO_ROW or not is_new or not is_recent:
        return None
    usage = old_peak if known is None else known.usage(old_peak, interval_end_ms)
    peak = needed_bytes(max(request_bytes, usage))
    has_ended = killed_ms >= interval_end_ms
    if has_ended:
        begun_ms = killed_ms if interval_end_ms == NEVER else interval_end_ms
        interval_end_ms = _next_end_ms(begun_ms, killed_ms)
        usage = 0.0
    new_peak = old_peak
    if has_ended or peak > old_peak:
        weight = decay_factor(interval_end_ms, reference_ms, HALF_LIFE_MS)
        _replace_peak(models, place, None if has_ended else old_peak, peak, weight)
        new_peak = added = peak
    else:
        added = old_peak if usage != old_peak else 0.0
    remember_times(models, np.array([place]), np.array([end_ms]))
    kill = PodOomKill(killed_ms, interval_end_ms, added, usage)
    return CountedKill(new_peak, interval_end_ms, kill, peak)


def _replace_peak(
    models: EntityModels, place: int, old_peak: float | None, peak: float, weight: float
) -> None:
    """Add a peak to a model, in place of an old one if there is one."""
    histograms, at, weights = models.histograms[1], np.array([place]), np.array([weight])
    bucket = _MEMORY_LAYOUT.digitize(np.array([peak]))
    if old_peak is None:
        models.samples[place, 1] += 1
    else:
        old_bucket = _MEMORY_LAYOUT.digitize(np.array([old_peak]))
        if (old_bucket == bucket).all():
            return
        histograms.subtract(at, old_bucket, weights)
    histograms.add_repeated(at, bucket, weights)


def remember_times(models: EntityModels, places: IntArray, end_ms: IntArray) -> None:
    """Note that the models `places` have a sample of these times."""
    first_ms = models.first_ms
    new = places[first_ms.take(places) == NEVER]
    models.last_ms[places] = end_ms
    if len(new):
        first_ms[new] = models.last_ms[new]


def _next_end_ms(begun_ms: _Times, time_ms: _Times) -> _Times:
    """The end of the 24 hours in which a time is, counted from `begun_ms`."""
    return begun_ms + ((time_ms - begun_ms) // PEAK_INTERVAL_MS + 1) * PEAK_INTERVAL_MS
