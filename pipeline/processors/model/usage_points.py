"""The last half hour of each node, second by second, and exact statistics of it.

Averages, percentiles and deviations of a node do not depend, to the last bit, on which nodes are
read together. A second holds the last point measured in it. Values are float64: a float of 32 bits
would report 0.7 cores as 699 millicores.

A statistic of a span is unknown if the first and last point of the span are less than half of it
apart, as in Koordinator's aggregated usage; each resource is judged separately.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.model.column_store import Column
from pipeline.processors.model.model_config import MAX_USAGE
from pipeline.processors.model.rank_percentiles import parse_percentile, row_percentiles
from pipeline.topics.node_state import AGGREGATED, AGGREGATIONS, DEVIATION

_T = TypeVar("_T", bound=np.generic)

SECONDS: Final = 1800

COLUMNS: Final = {"points": Column((2, SECONDS)), "points_second": Column((), "<i8", -1)}
"""`points` are values by Unix second modulo `SECONDS`, NaN unknown; `points_second` is the newest
second, -1 before the first window, when `points` are meaningless."""

_PERCENTS: Final = [p for p in map(parse_percentile, AGGREGATIONS) if p is not None]
_SPANS: Final = np.array(sorted({*AGGREGATED.values(), *DEVIATION.values()}))
_PLACES: Final = np.arange(SECONDS)
_NODES_AT_ONCE: Final = 8  # so that their points stay in the cache of a core


@dataclass(frozen=True, slots=True)
class RecentUsage:
    """Statistics of n nodes, cores and bytes, NaN unknown.

    `aggregated` (n, 3, 5, 2) by `AGGREGATED` and `AGGREGATIONS`; `deviation` (n, 3, 2, 2) by
    `DEVIATION`, mean and population standard deviation.
    """

    aggregated: FloatArray
    deviation: FloatArray


def observe(
    ring: FloatArray,
    newest: IntArray,
    rows: IntArray,
    start_ms: IntArray,
    end_ms: IntArray,
    points: Sequence[FloatArray],
) -> None:
    """Store the points of one window per row; `rows` are distinct, and their windows never
    go back in time.

    `points` are (m, 3) for each row: seconds after the window's start, cores, bytes. Points outside
    their window and invalid values (NaN, negative, implausible) are ignored.
    """
    last = _second(end_ms)
    _forget(ring, newest, rows, last)
    newest[rows] = last
    counts = [len(row_points) for row_points in points]
    if not any(counts):
        return
    position = np.arange(len(rows)).repeat(counts)
    offsets, *usages = np.concatenate(points).T
    with np.errstate(over="ignore"):
        offset_ms = np.rint(offsets * 1000.0)
    inside = (offset_ms >= 0.0) & (offset_ms <= (end_ms - start_ms)[position])
    second = _second(start_ms[position] + np.where(inside, offset_ms, 0.0).astype(np.int64))
    inside &= second > last[position] - SECONDS
    for r, usage in enumerate(usages):
        known = np.flatnonzero(inside & (usage >= 0.0) & (usage <= MAX_USAGE[r]))
        # The last value of a second wins. Adding 0 turns -0 into 0.
        ring[rows[position[known]], r, second[known] % SECONDS] = usage[known] + 0.0


def _second(time_ms: IntArray) -> IntArray:
    """The second of a time: like a window, a second is (start, end]."""
    return -(-time_ms // 1000)


def _forget(ring: FloatArray, newest: IntArray, rows: IntArray, last: IntArray) -> None:
    """Clear the seconds after the newest one, up to `last`."""
    before = newest.take(rows)
    passed = np.where(before < 0, SECONDS, np.minimum(last - before, SECONDS))
    first = (last - passed + 1) % SECONDS
    for row, start, steps in zip(rows.tolist(), first.tolist(), passed.tolist(), strict=True):
        end = start + steps
        ring[row, :, start:end] = np.nan
        if end > SECONDS:
            ring[row, :, : end - SECONDS] = np.nan


def read(ring: FloatArray, newest: IntArray, rows: IntArray) -> RecentUsage:
    """The statistics of these rows, each of which has observed a window."""
    aggregated = np.full((len(rows), 2, len(AGGREGATED), len(AGGREGATIONS)), np.nan)
    deviation = np.full((len(rows), 2, len(DEVIATION), 2), np.nan)
    # Nodes without points are skipped: all their statistics are unknown.
    some = [i for i, row in enumerate(rows.tolist()) if not np.isnan(ring[row]).all()]
    for first in range(0, len(some), _NODES_AT_ONCE):
        part = some[first : first + _NODES_AT_ONCE]
        aggregated[part], deviation[part] = _statistics(_newest_first(ring, newest, rows[part]))
    # By span and statistic, then resource.
    return RecentUsage(aggregated.transpose(0, 2, 3, 1), deviation.transpose(0, 2, 3, 1))


def percentile(
    ring: FloatArray, newest: IntArray, rows: IntArray, span_seconds: int, percent: int
) -> FloatArray:
    """A percentile of these rows over a span of at most `SECONDS`, (n, 2); NaN where first and last
    point are less than half of it apart."""
    span = min(span_seconds, SECONDS)
    places = (newest.take(rows)[:, None] - np.arange(span)) % SECONDS
    series = np.take_along_axis(ring[rows], places[:, None], axis=2)
    known = ~np.isnan(series)
    oldest = np.where(known, _PLACES[:span], -1).max(axis=-1)
    reaches = 2 * (oldest - known.argmax(axis=-1)) >= span
    values = row_percentiles(series.reshape(-1, span), [percent]).reshape(-1, 2)
    return np.where(reaches & known.any(axis=-1), values, np.nan)


def mean_between(
    ring: FloatArray, newest: IntArray, row: int, start_ms: int, end_ms: int
) -> FloatArray:
    """Mean of the points of one row in (start, end], (2,); NaN where first and last point are less
    than half of it apart."""
    last = math.ceil(end_ms / 1000)
    first = max(start_ms // 1000 + 1, int(newest[row]) - SECONDS + 1)
    mean = np.full(2, np.nan)
    if first > last or last > newest[row]:
        return mean
    points = ring[row][:, np.arange(first, last + 1) % SECONDS]
    for r, values in enumerate(points):
        known = np.flatnonzero(~np.isnan(values))
        if len(known) and 2000 * (known[-1] - known[0]) >= end_ms - start_ms:
            mean[r] = values[known].mean()
    return mean


def fractions(usage: FloatArray, allocatable: FloatArray) -> FloatArray:
    """`usage` (.., 2) as fractions of `allocatable` (.., 2); NaN where that is 0 or unknown."""
    room = np.where(allocatable > 0.0, allocatable, np.nan)
    parts: FloatArray = usage / room
    return parts


def _newest_first(ring: FloatArray, newest: IntArray, rows: IntArray) -> FloatArray:
    """The points of these rows, (n, 2, SECONDS)."""
    series = np.empty((len(rows), 2, SECONDS))
    places = (newest.take(rows) % SECONDS).tolist()
    for newest_first, row, place in zip(series, rows.tolist(), places, strict=True):
        # Two slices are copied in a fraction of the time of an index array.
        newest_first[:, : place + 1] = ring[row, :, place::-1]
        newest_first[:, place + 1 :] = ring[row, :, :place:-1]
    return series


def _statistics(series: FloatArray) -> tuple[FloatArray, FloatArray]:
    """`aggregated` and `deviation` of n rows, by resource, then span and statistic."""
    aggregated = np.empty((len(series), 2, len(AGGREGATED), len(AGGREGATIONS)))
    deviation = np.empty((len(series), 2, len(DEVIATION), 2))
    known = ~np.isnan(series)
    values = np.where(known, series, 0.0)
    counts, means = _means(values, known)
    for i, span in enumerate(AGGREGATED.values()):
        mean = means[span]
        aggregated[:, :, i, 0] = mean
        aggregated[:, :, i, 1:] = _percentiles(series[..., :span], mean)
    for i, span in enumerate(DEVIATION.values()):
        mean = means[span]
        deviations = (values[..., :span] - mean[..., None]) * known[..., :span]
        deviation[:, :, i, 0] = mean
        deviation[:, :, i, 1] = np.sqrt((deviations * deviations).sum(axis=-1) / counts[span])
    return aggregated, deviation


def _means(
    values: FloatArray, known: BoolArray
) -> tuple[dict[int, IntArray], dict[int, FloatArray]]:
    """By span, (n, 2): the number of points, at least 1, and their mean, NaN where they do not
    reach over half of the span.

    Every sum runs over all seconds, those without a point being 0, and so in one order.
    """
    counts = np.maximum(_over_spans(np.add, known.astype(np.int64)), 1)
    oldest = _over_spans(np.maximum, np.where(known, _PLACES, -1))
    reaches = 2 * (oldest - known.argmax(axis=-1)[..., None]) >= _SPANS
    sums = _over_spans(np.add, values)
    means = np.where(reaches, sums / counts, np.nan)
    spans = _SPANS.tolist()
    return (
        dict(zip(spans, np.moveaxis(counts, -1, 0), strict=True)),
        dict(zip(spans, np.moveaxis(means, -1, 0), strict=True)),
    )


def _over_spans(operation: np.ufunc, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
    """`operation` over each of the spans of `values` (n, 2, SECONDS), (n, 2, spans)."""
    parts = operation.reduceat(values, [0, *_SPANS[:-1]], axis=-1)
    spans: npt.NDArray[_T] = operation.accumulate(parts, axis=-1)
    return spans


def _percentiles(series: FloatArray, mean: FloatArray) -> FloatArray:
    """Percentiles (n, 2, percents) of `series` (n, 2, span), unknown where the mean is."""
    percentiles = row_percentiles(series.reshape(-1, series.shape[-1]), _PERCENTS)
    return np.where(np.isnan(mean)[..., None], np.nan, percentiles.reshape(*mean.shape, -1))
