"""Usage over a range of time: the windows of a node, or of one pod on it, and statistics of them.

Owes the rest: what was measured and nothing made up. An amount that is not known is None, a window
that is missing is no point, but counted where numbers of windows show it.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np

from pipeline import API_VERSION
from pipeline.processors.arrays import FloatArray
from pipeline.processors.model.rank_percentiles import percent_of, percentile_rows
from pipeline.times import format_time, parse_time
from pipeline.topics.samples import STATISTICS
from pipeline.topics.windows import Window

RESOURCES: Final = ("cpu_cores", "memory_bytes")

_PERCENTILES: Final = ("p50", "p90", "p95", "p99")


class SeriesStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Of the points that are known: their number, average, percentiles by rank floor(n*p)-1, and
    maximum; None where there is none."""

    points: int
    avg: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


class PodSought(NamedTuple):
    """A pod by its `uid` (as its cgroup is named), or if that is empty by namespace and name."""

    namespace: str = ""
    name: str = ""
    uid: str = ""

    def __str__(self) -> str:
        return self.uid or f"{self.namespace}/{self.name}"


class SeriesPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One window: by resource the statistics of the samples in it, of the node or of the pod `uid`.
    `coverage` is the share of the window that was seen."""

    start: str
    end: str
    uid: str | None
    coverage: float | None
    cpu_cores: dict[str, float | None]
    memory_bytes: dict[str, float | None]


class UsageSeries(msgspec.Struct, frozen=True, kw_only=True):
    """The windows that ended in a range, oldest first; `statistics` are of their averages.
    `missing_windows` were measured, as their neighbours' numbers say, and are not there."""

    apiVersion: str = API_VERSION  # noqa: N815
    kind: str = "UsageSeries"
    node: str
    pod: str | None
    missing_windows: int
    items: list[SeriesPoint]
    statistics: dict[str, SeriesStatistics]


class SeenWindow(NamedTuple):
    """What a series keeps of a window: its exporter's start, its number there, and its points."""

    epoch: int
    sequence: int
    points: tuple[SeriesPoint, ...]


def seen(window: Window, pod: PodSought | None) -> SeenWindow:
    """The node's point of a window, or those of the pod."""
    points = tuple(_point(window, row, is_pod=pod is not None) for row in _rows(window, pod))
    return SeenWindow(window.header.epoch, window.header.sequence, points)


def usage_series(node: str, pod: PodSought | None, windows: Iterable[SeenWindow]) -> UsageSeries:
    """The series of these windows of one node, in any order; of one that is there again the last
    counts."""
    by_number: dict[int, dict[int, SeenWindow]] = {}
    for window in windows:
        by_number.setdefault(window.epoch, {})[window.sequence] = window
    points = (
        point for one in by_number.values() for window in one.values() for point in window.points
    )
    items = sorted(points, key=lambda point: (parse_time(point.end), point.uid or ""))
    averages = {name: [getattr(item, name)["avg"] for item in items] for name in RESOURCES}
    return UsageSeries(
        node=node,
        pod=str(pod) if pod else None,
        missing_windows=sum(max(one) - min(one) + 1 - len(one) for one in by_number.values()),
        items=items,
        statistics={
            name: statistics_of(np.array(values, np.float64)) for name, values in averages.items()
        },
    )


def _rows(window: Window, pod: PodSought | None) -> Iterator[int]:
    """The rows of a window that are meant: the node's, or those of the pod. One that was made anew
    may be there beside the one before."""
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
    """The pods of a window, `namespace/name`, of which the names are known."""
    return {f"{namespace}/{name}" for namespace, name in _names(window) if name is not None}


def _names(window: Window) -> list[tuple[str | None, str | None]]:
    """Namespace and name of each pod in order of the UIDs."""
    pods = window.rows.pods
    return list(zip(pods.column("namespace"), pods.column("name"), strict=True))


def statistics_of(values: FloatArray) -> SeriesStatistics:
    """Statistics of (points,), NaN being no point."""
    known = values[~np.isnan(values)]
    if not len(known):
        nothing = dict.fromkeys(("avg", "max", *_PERCENTILES))
        return SeriesStatistics(points=0, **nothing)
    percents = [percent_of(name) or 0 for name in _PERCENTILES]
    ranked = percentile_rows(known[None, :], percents)[0].tolist()
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
