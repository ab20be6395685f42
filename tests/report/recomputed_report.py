"""Recompute a report from the samples of a recorded week, by plain loops: what Prometheus computes
by PromQL, and the formulas of the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.model.model_config import VPA
from tests.report.recorded_week import HOURS, STEP_SECONDS, RecordedWeek, Series

_BY_HOUR: Final = 3600 // STEP_SECONDS
RATE_STEPS: Final = 4
"""Rates look back over 20 minutes: four scrapes."""


def rate(values: FloatArray, end: int, steps: int) -> float:
    """`rate` of Prometheus over the samples at `steps` steps up to `end`, NaN without two."""
    first = end - steps + 1
    own = [(i, values[i]) for i in range(max(first, 0), end + 1) if not math.isnan(values[i])]
    if len(own) < 2:
        return math.nan
    (begin, low), (last, high) = own[0], own[-1]
    increase, sampled = high - low, float(last - begin)
    interval = sampled / (len(own) - 1)
    to_start: float = begin - (end - steps)
    to_end = float(end - last)
    if to_start >= interval * 1.1:
        to_start = interval / 2
    if increase > 0.0 and low >= 0.0:
        to_start = min(to_start, sampled * low / increase)
    if to_end >= interval * 1.1:
        to_end = interval / 2
    return float(increase * (sampled + to_start + to_end) / sampled / (steps * STEP_SECONDS))


def _cpu_of_hour(values: FloatArray, end: int) -> float:
    """The cores of an hour: by the counter at both ends, else the rate of the part that is
    known."""
    increase = float(values[end] - values[end - _BY_HOUR])
    known = not math.isnan(increase)
    return increase / 3600 if known else rate(values, end, _BY_HOUR)


def _of_pod(values: Sequence[tuple[str, float]]) -> float:
    """The sum over containers of the highest of each; NaN without any."""
    highest: dict[str, float] = {}
    for container, value in values:
        if not math.isnan(value):
            highest[container] = max(value, highest.get(container, -math.inf))
    return sum(highest.values()) if highest else math.nan


def _sum(values: Sequence[float]) -> float:
    """The sum of the known values; NaN without any."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) if known else math.nan


def hours_of_pods(week: RecordedWeek) -> dict[str, dict[str, FloatArray]]:
    """By pod: `highest` (h, 2) of each hour, and `mean` (2,), in millicores and bytes."""
    series: dict[tuple[str, str], list[Series]] = {}
    for each in week.series():
        if each.metric.startswith("container_") and "pod" in each.labels:
            series.setdefault((each.labels["pod"], each.metric), []).append(each)
    result = {}
    for pod in {name for name, _ in series}:
        highest, means = np.full((2, HOURS, 2), np.nan)
        cpu = series[pod, "container_cpu_usage_seconds_total"]
        memory = series[pod, "container_memory_working_set_bytes"]
        for hour in range(HOURS):
            end = (hour + 1) * _BY_HOUR
            sums = [
                _sum([rate(s.values, at, RATE_STEPS) for s in cpu])
                for at in range(end - _BY_HOUR + RATE_STEPS, end + 1, RATE_STEPS)
            ]
            window = slice(end - _BY_HOUR + 1, end + 1)
            hourly = [_cpu_of_hour(s.values, end) for s in cpu]
            parts = [(s.labels["container"], s.values[window]) for s in memory]
            known = [(name, own[~np.isnan(own)]) for name, own in parts]
            some = [(name, own) for name, own in known if len(own)]
            highest[hour] = (
                np.floor(np.fmax.reduce(sums) * 10_000 + 0.5) / 10,
                _of_pod([(name, float(own.max())) for name, own in some]),
            )
            means[hour] = (
                _sum(hourly) * 1000,
                _of_pod([(name, float(own.mean())) for name, own in some]),
            )
        result[pod] = {"highest": highest, "mean": np.nanmean(means, axis=0)}
    return result


def cpu_target(week: RecordedWeek, pods: Sequence[str], highest: dict[str, FloatArray]) -> float:
    """The target of the Vertical Pod Autoscaler for cpu, in cores, from the hours of these pods."""
    requests = {pod.name: pod.requests[0] for pod in week.pods}
    starts = VPA.layouts[0].starts.tolist()
    weights = [0.0] * len(starts)
    for pod in pods:
        for hour in range(HOURS):
            cores = highest[pod][hour, 0] / 1000
            if not math.isnan(cores):
                bucket = max(i for i, start in enumerate(starts) if start <= cores or i == 0)
                decay = 2.0 ** (-(HOURS - 1 - hour) / 24)
                weights[bucket] += max(requests[pod], 0.1) * decay
    total, running = sum(weights), 0.0
    for i, weight in enumerate(weights):
        running += weight
        if running >= 0.9 * total:
            return max(starts[i + 1] * 1.15, 0.025)
    raise AssertionError("the weights reach their sum")


def memory_target(pods: Sequence[str], highest: dict[str, FloatArray]) -> float:
    """The same for memory, in bytes, from one peak of each pod and 24 hours."""
    starts = VPA.layouts[1].starts.tolist()
    weights = [0.0] * len(starts)
    for pod in pods:
        known = [h for h in range(HOURS) if not math.isnan(highest[pod][h, 1])]
        for first in range(known[0], HOURS, 24):
            day = [highest[pod][h, 1] for h in known if first <= h < first + 24]
            if day:
                bucket = max(i for i, start in enumerate(starts) if start <= max(day))
                weights[bucket] += 2.0 ** (-(HOURS - 1 - first - 24) / 24)
    total, running = sum(weights), 0.0
    for i, weight in enumerate(weights):
        running += weight
        if running >= 0.9 * total:
            return max(starts[i + 1] * 1.15, 250 * 2.0**20)
    raise AssertionError("the weights reach their sum")
