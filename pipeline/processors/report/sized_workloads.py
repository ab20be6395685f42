"""Requests for the pods of each workload, by the formulas of `springtide recommend`.

A sample is the highest usage of a pod in an hour, where a worker takes a quantile of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.group_runs import group_runs
from pipeline.processors.model.histogram import quantiles
from pipeline.processors.model.model_config import KOORDINATOR, VPA
from pipeline.processors.model.resource_pairs import TO_KUBERNETES
from pipeline.processors.predictors.vpa import FLOOR
from pipeline.processors.report.cluster_usage import HOUR_SECONDS, ClusterUsage
from pipeline.processors.summed_models import FRACTIONS, bounds

_DAY_HOURS: Final = 24
_LEAST_WEIGHT_CORES: Final = 0.1
_MOST_WEIGHT_CORES: Final = 1000.0
PERCENTILES: Final = (0.95, 0.98)
"""Quantiles of the predictor `percentile` for cpu and memory."""
_PODS_AT_ONCE: Final = 1000
"""Workloads with so many pods are sized together: their samples fit into the CPU cache."""


class SizedWorkloads(NamedTuple):
    """Workloads by name. `workload_index` (n,) is that of each pod, -1 without one. `lower`,
    `target` and `upper` (w, 2) are the request of each pod and the bounds within which a request
    may stay, `peaks` (w, 2) the peak of all pods together by the predictor `percentile`; NaN is
    unknown. `history_days` (w,) is the confidence in them."""

    names: tuple[str, ...]
    workload_index: IntArray
    lower: FloatArray
    target: FloatArray
    upper: FloatArray
    peaks: FloatArray
    history_days: FloatArray


def sized_workloads(usage: ClusterUsage) -> SizedWorkloads:
    """The requests of the workloads with a pod in `usage`."""
    names = tuple(sorted({*usage.workloads} - {""}))
    number = {name: i for i, name in enumerate(names)}
    index = np.array([number.get(name, -1) for name in usage.workloads], np.int64)
    pods = np.argsort(index, kind="stable")[np.count_nonzero(index < 0) :]
    starts = np.searchsorted(index[pods], np.arange(len(names)))
    parts = []
    for workloads, own in group_runs(starts, len(pods), _PODS_AT_ONCE):
        part = _Pods(
            index[pods[own]] - workloads.start, usage.requests[pods[own]], usage.highest[pods[own]]
        )
        parts.append(_sized(part, workloads.stop - workloads.start))
    return SizedWorkloads(names, index, *map(np.concatenate, zip(*parts, strict=True)))


class _Pods(NamedTuple):
    """All pods of some workloads: the index of the workload of each, requests and usage as in
    `ClusterUsage`."""

    workload: IntArray
    requests: FloatArray
    highest: FloatArray

    @property
    def hours(self) -> int:
        return int(self.highest.shape[1])


def _sized(usage: _Pods, count: int) -> tuple[FloatArray, ...]:
    """The arrays of `SizedWorkloads` by workload."""
    samples = [_samples(usage, r) for r in range(2)]
    days = _history_days(usage, samples, count)
    weights = _cpu_weights(usage, samples[0], count), _memory_weights(usage, samples[1], count)
    by_resource = [
        bounds(quantiles(weights[r], VPA.layouts[r], FRACTIONS), days, FLOOR[r]) for r in range(2)
    ]
    lower, target, upper = (
        np.stack([both[i] for both in by_resource], axis=1) * TO_KUBERNETES for i in range(3)
    )
    return lower, target, upper, _peaks(usage, samples, count), days


_Samples = tuple[IntArray, IntArray]
"""Pod and hour of each known sample."""


def _samples(usage: _Pods, r: int) -> _Samples:
    pods, hours = (~np.isnan(usage.highest[:, :, r])).nonzero()
    return pods, hours


def _decay(hours: IntArray, usage: _Pods, half_life_seconds: float) -> FloatArray:
    """The weight of samples at the end of these hours, 1 at the end of the last one."""
    age = (usage.hours - 1 - hours) * HOUR_SECONDS
    weight: FloatArray = 2.0 ** (-age / half_life_seconds)
    return weight


def _histogram(
    workloads: IntArray, buckets: IntArray, weights: FloatArray, count: int, size: int
) -> FloatArray:
    flat: FloatArray = np.bincount(
        workloads * size + buckets, weights, minlength=count * size
    ).astype(np.float64)
    return flat.reshape(count, size)


def _cpu_weights(usage: _Pods, samples: _Samples, count: int) -> FloatArray:
    """Histograms of cpu: a sample weighs the request of its pod."""
    layout = VPA.layouts[0]
    pods, hours = samples
    request = usage.requests[:, 0] / TO_KUBERNETES[0]
    request = np.where(request > _MOST_WEIGHT_CORES, _LEAST_WEIGHT_CORES, request)
    weights = np.maximum(request, _LEAST_WEIGHT_CORES)[pods]
    weights = weights * _decay(np.arange(usage.hours), usage, VPA.half_life_seconds[0])[hours]
    values = usage.highest[pods, hours, 0] / TO_KUBERNETES[0]
    return _histogram(
        usage.workload[pods], layout.digitize(values), weights, count, layout.num_buckets
    )


def _memory_weights(usage: _Pods, samples: _Samples, count: int) -> FloatArray:
    """Histograms of memory: one peak of each pod and 24 hours from its first sample on, which
    weighs as at their end."""
    layout = VPA.layouts[1]
    pods, hours = samples
    if not len(pods):
        return np.zeros((count, layout.num_buckets))
    first = np.zeros(len(usage.workload), np.int64)
    begins = np.flatnonzero(np.diff(pods, prepend=-1))  # ordered by pod, then hour
    first[pods[begins]] = hours[begins]
    day = (hours - first[pods]) // _DAY_HOURS
    starts = np.flatnonzero(np.diff(pods, prepend=-1) | np.diff(day, prepend=-1))
    peaks = np.maximum.reduceat(usage.highest[pods, hours, 1], starts)
    own, ends = pods[starts], first[pods[starts]] + (day[starts] + 1) * _DAY_HOURS
    weights = _decay(ends, usage, VPA.half_life_seconds[1])
    return _histogram(
        usage.workload[own], layout.digitize(peaks), weights, count, layout.num_buckets
    )


def _history_days(usage: _Pods, samples: Sequence[_Samples], count: int) -> FloatArray:
    """From the first to the last sample of any pod, at most what all samples together cover."""
    first, last = np.full(count, usage.hours), np.zeros(count, np.int64)
    for pods, hours in samples:
        np.minimum.at(first, usage.workload[pods], hours)
        np.maximum.at(last, usage.workload[pods], hours)
    covered = np.bincount(usage.workload[samples[0][0]], minlength=count)
    lifetime = np.maximum(last - first, 0)
    days: FloatArray = np.minimum(lifetime, covered) / _DAY_HOURS
    return days


def _peaks(usage: _Pods, samples: Sequence[_Samples], count: int) -> FloatArray:
    """The peak of all pods of each workload together, by `percentile`, (w, 2)."""
    peaks = np.full((count, 2), np.nan)
    for r, layout in enumerate(KOORDINATOR.layouts):
        pods, hours = samples[r]
        cells = usage.workload[pods] * usage.hours + hours
        sums = np.bincount(cells, usage.highest[pods, hours, r], minlength=count * usage.hours)
        has_any = np.bincount(cells, minlength=count * usage.hours) > 0
        (at,) = has_any.nonzero()
        workloads, hour = at // usage.hours, at % usage.hours
        weights = _histogram(
            workloads,
            layout.digitize(sums[at] / TO_KUBERNETES[r]),
            _decay(hour, usage, KOORDINATOR.half_life_seconds[r]),
            count,
            layout.num_buckets,
        )
        peaks[:, r] = quantiles(weights, layout, PERCENTILES[r : r + 1])[0] * TO_KUBERNETES[r]
    return peaks
