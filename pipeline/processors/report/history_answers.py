"""Answers of Prometheus to the queries of `prometheus_queries`, without amounts that cannot be."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.prometheus_ranges import RangeColumns
from pipeline.processors.report.cluster_usage import HOUR_SECONDS
from pipeline.processors.report.prometheus_queries import LABELS_OF_POD

_MOST: Final = {"cpu": 2.0**20, "memory": 2.0**50}
"""Cores and bytes of a pod or node. More is an error of the source: a counter that jumps."""
Labels = Mapping[str, str]
Vector = Sequence[tuple[Labels, float]]
PodPlace = tuple[str, str, str]
"""Namespace, name and node of a pod."""


class HourSamples(NamedTuple):
    """Values of series by hour in small arrays, (m,): `owner` indexes `labels`."""

    labels: Sequence[Labels]
    owner: npt.NDArray[np.int32]
    hour: npt.NDArray[np.int16]
    values: FloatArray


class PartMeans(NamedTuple):
    """Mean usage of series over the hours from `first` to before `end`."""

    first: int
    end: int
    vector: Vector


class History(NamedTuple):
    """All answers by the name of the query, for hours that end at `end_seconds`; `means` by
    resource. `warnings` are those of the server, such as one of a part that did not answer."""

    end_seconds: int
    hours: int
    rate_seconds: int
    vectors: Mapping[str, Vector]
    ranges: Mapping[str, Sequence[HourSamples]]
    means: Mapping[str, Sequence[PartMeans]]
    warnings: Sequence[str] = ()


def hour_samples(columns: RangeColumns, end_seconds: int, hours: int) -> HourSamples:
    """Place the values of an answer in the hours that they end. Raises `InvalidRecordError` for
    values at other times."""
    hour, rest = np.divmod(columns.seconds - end_seconds, HOUR_SECONDS)
    hour += hours - 1
    if rest.any() or (hour < 0).any() or (hour >= hours).any():
        raise InvalidRecordError(
            "Prometheus answered with values at times that were not asked for",
            hint="a proxy between us and Prometheus may change queries: ask Prometheus itself",
        )
    owner = np.arange(len(columns.labels)).repeat(columns.counts)
    return HourSamples(
        columns.labels, owner.astype(np.int32), hour.astype(np.int16), columns.values
    )


def steady_means(begin: Vector, end: Vector, hours: int) -> tuple[Vector, set[tuple[str, str]]]:
    """Mean cores over a part of so many hours by the `COUNTERS` at its ends, of the series of pods
    whose containers all ran throughout: each has an id, and a counter at both ends. Returns also
    the namespaces and names of pods with other containers."""
    before = {_of_container(labels): seconds for labels, seconds in begin}
    used: dict[tuple[str, ...], float] = defaultdict(float)
    changed = set[tuple[str, ...]]()
    for labels, seconds in end:
        container = _of_container(labels)
        series = container[: len(LABELS_OF_POD)]
        increase = seconds - before.pop(container, np.nan)
        if labels.get("id") and increase >= 0.0:
            used[series] += increase
        else:
            changed.add(series)
    changed.update(container[: len(LABELS_OF_POD)] for container in before)
    means = [
        (
            {name: value for name, value in zip(LABELS_OF_POD, series, strict=True) if value},
            seconds / (hours * HOUR_SECONDS),
        )
        for series, seconds in used.items()
        if series not in changed
    ]
    return means, {(namespace, pod) for namespace, pod, *_ in changed}


def _of_container(labels: Labels) -> tuple[str, ...]:
    return tuple([labels.get(name, "") for name in (*LABELS_OF_POD, "container", "id")])


def place_of(labels: Labels) -> PodPlace:
    """The place of a pod by its labels."""
    return labels.get("namespace", ""), labels.get("pod", ""), labels.get("node", "")


def without_impossible(history: History, left_out: Counter[str]) -> History:
    """The history without amounts that are negative, not finite, or beyond `_MOST`; `left_out`
    counts them."""
    vectors, ranges = dict(history.vectors), dict(history.ranges)
    count = 0

    def possible(vector: Vector, default: str) -> Vector:
        nonlocal count
        own = [
            (labels, value)
            for labels, value in vector
            if 0.0 <= value <= _MOST.get(labels.get("resource", default), np.inf)
        ]
        count += len(vector) - len(own)
        return own

    for name in ("allocatable", "capacity", "requests", "limits", "cpu_last", "memory_last"):
        vectors[name] = possible(vectors[name], name.partition("_")[0])
    means = {
        name: [part._replace(vector=possible(part.vector, name)) for part in parts]
        for name, parts in history.means.items()
    }
    for name, own in history.ranges.items():
        most = _MOST[name.removeprefix("node_")]
        ranges[name] = [_known(part, most) for part in own]
        count += sum(int(np.isnan(part.values).sum()) for part in ranges[name])
    if count:
        left_out["values that are negative, not finite, or too large"] = count
    return history._replace(vectors=vectors, ranges=ranges, means=means)


def _known(part: HourSamples, most: float) -> HourSamples:
    """The samples, NaN where they are negative, not finite, or above `most`."""
    is_wrong = ~((part.values >= 0.0) & (part.values <= most))
    return part._replace(values=np.where(is_wrong, np.nan, part.values)) if is_wrong.any() else part
