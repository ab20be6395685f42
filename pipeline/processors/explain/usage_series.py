"""Usage over a range of time: the windows of a node, or of a pod on it, and their statistics.

Unknown amounts are None. A missing window has no point; it is counted if the numbers of its
neighbours prove it.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np

from pipeline import API_VERSION
from pipeline.processors.arrays import FloatArray
from pipeline.processors.model.rank_percentiles import parse_percentile, row_percentiles
from pipeline.times import format_time, parse_time
from pipeline.topics.samples import STATISTICS
from pipeline.topics.windows import Window

RESOURCES: Final = ("cpu_cores", "memory_bytes")

_PERCENTILES: Final = ("p50", "p90", "p95", "p99")


class SeriesStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the known points; None without points.

    points: Number of known points.
    avg: Average.
    p50: Median, by rank floor(n*p)-1.
    p90: 90th percentile.
    p95: 95th percentile.
    p99: 99th percentile.
    max: Maximum.
    """

    points: int
    avg: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


class PodSelector(NamedTuple):
    """A pod by the `uid` of its cgroup, or if that is empty by namespace and name."""

    namespace: str = ""
    name: str = ""
    uid: str = ""

    def __str__(self) -> str:
        return self.uid or f"{self.namespace}/{self.name}"


class SeriesPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One window of the node or of the pod `uid`: statistics of the samples by resource. `coverage`
    is the observed share of the window."""

    start: str
    end: str
    uid: str | None
    coverage: float | None
    cpu_cores: dict[str, float | None]
    memory_bytes: dict[str, float | None]


class UsageSeries(msgspec.Struct, frozen=True, kw_only=True):
    """The windows that ended in a range, oldest first; `statistics` are of their averages.
    `missing_windows` counts windows that exist by their neighbours' numbers, and are not there."""

    apiVersion: str = API_VERSION
    kind: str = "UsageSeries"
    node: str
    pod: str | None
    missing_windows: int
    items: list[SeriesPoint]
    statistics: dict[str, SeriesStatistics]


class WindowPoints(NamedTuple):
    """A window in a series: the start of its exporter, its number, and its points."""

    epoch: int
    sequence: int
    points: tuple[SeriesPoint, ...]


def window_points(window: Window, pod: PodSelector | None) -> WindowPoints:
    """The points of the node, or of the pod, in a window."""
    points = tuple(_point(window, row, is_pod=pod is not None) for row in _rows(window, pod))
    return WindowPoints(window.header.epoch, window.header.sequence, points)


def usage_series(
    node: str, pod: PodSelector | None, windows: Iterable[WindowPoints]
) -> UsageSeries:
    """Build the series of one node's windows, in any order; of repeated ones the last counts."""
    by_number: dict[int, dict[int, WindowPoints]] = {}
    for window in windows:
        by_number.setdefault(window.epoch, {})[window.sequence] = window
    points = (
        point
        for numbered in by_number.values()
        for window in numbered.values()
        for point in window.points
    )
    items = sorted(points, key=lambda point: (parse_time(point.end), point.uid or ""))
    averages = {name: [getattr(item, name)["avg"] for item in items] for name in RESOURCES}
    return UsageSeries(
        node=node,
        pod=str(pod) if pod else None,
        missing_windows=sum(
            max(numbers) - min(numbers) + 1 - len(numbers) for numbers in by_number.values()
        ),
        items=items,
        statistics={
            name: statistics_of(np.array(values, np.float64)) for name, values in averages.items()
        },
    )


def _rows(window: Window, pod: PodSelector | None) -> Iterator[int]:
    """The row of the node, or the rows of the pod. A recreated pod may be listed beside the pod of
    the same name before it."""
    listing = window.rows.listing
    if pod is None:
        yield listing.node
        return
    if pod.uid:
        yield from (row for row in listing.pods.tolist() if listing.ids[row] == pod.uid)
        return
    names = _names(window)
    for row, name in zip(listing.pods.tolist(), names, strict=True):
        if name == (pod.namespace, pod.name):
            yield row


def pod_names(window: Window) -> set[str]:
    """The pods of a window with a known name, as `namespace/name`."""
    return {f"{namespace}/{name}" for namespace, name in _names(window) if name is not None}


def _names(window: Window) -> list[tuple[str | None, str | None]]:
    """Namespace and name of each pod in order of the UIDs."""
    pods = window.rows.pods.decode()
    return list(zip(pods.column("namespace"), pods.column("name"), strict=True))


def statistics_of(values: FloatArray) -> SeriesStatistics:
    """Statistics of (points,); NaN is not a point."""
    known = values[~np.isnan(values)]
    if not len(known):
        nothing = dict.fromkeys(("avg", "max", *_PERCENTILES))
        return SeriesStatistics(points=0, **nothing)
    percents = [parse_percentile(name) or 0 for name in _PERCENTILES]
    ranked = row_percentiles(known[None, :], percents)[0].tolist()
    return SeriesStatistics(
        points=len(known),
        avg=float(known.mean()),
        max=float(known.max()),
        **dict(zip(_PERCENTILES, ranked, strict=True)),
    )


def _point(window: Window, row: int, *, is_pod: bool) -> SeriesPoint:
    def number(column: str) -> float | None:
        value = float(window.rows.sample.number(column)[row])
        return value if np.isfinite(value) else None

    usage = {
        resource: {statistic: number(f"{resource}_{statistic}") for statistic in STATISTICS}
        for resource in RESOURCES
    }
    return SeriesPoint(
        start=format_time(window.header.window_start_ms / 1000),
        end=format_time(window.header.window_end_ms / 1000),
        uid=window.rows.listing.ids[row] if is_pod else None,
        coverage=number("coverage"),
        cpu_cores=usage["cpu_cores"],
        memory_bytes=usage["memory_bytes"],
    )
