"""Simulate where a target of TargetLoadPacking leads: how full nodes get, and how far above it.

KEP-61 of scheduler-plugins advises a target ten percent below the wanted usage; the figures show
why. Pods arrive at an even pace, use a share of their request that varies, or what pods of a trace
used, and never leave. The same input and seed give the same figures.
"""

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.scorers.target_load_packing import (
    UNMEASURED_SECONDS,
    busier,
    predicted_percent,
    target_load,
)

WINDOW_SECONDS: Final = 30.0
_AVERAGED_WINDOWS: Final = 30
"""Windows in the average: a quarter of an hour."""
_UNMEASURED_WINDOWS: Final = int(UNMEASURED_SECONDS / WINDOW_SECONDS)
_REMEMBERED: Final = 0.9
"""The correlation of a pod's usage from one window to the next."""
_PACKED_SHARE: Final = 0.8


class SimulatedLoad(NamedTuple):
    """Nodes, and pods that arrive `pods_per_window` at a time. Each requests `request_millicores`
    and uses `used_share` of that on average, with a relative standard deviation of `deviation`."""

    nodes: int = 20
    capacity_millicores: int = 16_000
    pods: int = 300
    pods_per_window: int = 2
    request_millicores: int = 500
    used_share: float = 0.9
    deviation: float = 0.3


class Outcome(NamedTuple):
    """Usage of packed nodes in percent in the hour after the last pod: average, 95th percentile,
    maximum, and the share of windows above `wanted_percent`; None if no node is packed.
    `waiting_pods` fit nowhere by their requests. All pods use `load_percent` of all nodes."""

    target_percent: float
    wanted_percent: float
    load_percent: float
    waiting_pods: int
    packed_nodes: int
    average: float | None
    p95: float | None
    highest: float | None
    share_above: float | None


class UsageSeries(NamedTuple):
    """What s pods used, (s, steps) millicores, NaN unknown, and requested, (s,) millicores."""

    usage: FloatArray
    requests: FloatArray
    step_seconds: int


class _Pods(NamedTuple):
    """Pods in the order of their arrival: `requests` (pods,) millicores, and a function that gives
    the usage (pods,) in the next window. All use `mean` millicores together."""

    requests: FloatArray
    next_usage: Callable[[], FloatArray]
    mean: float


def simulate(
    load: SimulatedLoad,
    target_percent: float,
    wanted_percent: float,
    seed: int = 0,
    series: UsageSeries | None = None,
) -> Outcome:
    """Simulate one target. With `series` each pod requests and uses what one of these did from some
    time on; `load` has their number alone. Raises ValueError if none is long enough."""
    arrivals, hour = -(-load.pods // load.pods_per_window), int(3600 / WINDOW_SECONDS)
    random = np.random.default_rng(seed)
    pods = _drawn(load, random)
    if series is not None:
        pods = _of_series(load, series, arrivals + hour, random)
    node_of = np.full(load.pods, -1, np.int64)
    past = np.zeros((arrivals + hour, load.nodes))
    for window in range(arrivals + hour):
        if window < arrivals:
            first = max(0, window - _AVERAGED_WINDOWS)
            _place(load, pods.requests, node_of, past[first:window], target_percent, window)
        past[window] = _by_node(load, node_of, pods.next_usage())
    percent = 100 * past[-hour:] / load.capacity_millicores
    packed = percent[:, percent.mean(axis=0) > _PACKED_SHARE * target_percent]
    figures: list[float | None] = [None] * 4
    if packed.size:
        above = (packed > wanted_percent).mean()
        figures = [*map(float, (packed.mean(), np.quantile(packed, 0.95), packed.max(), above))]
    return Outcome(
        target_percent,
        wanted_percent,
        100 * pods.mean / (load.nodes * load.capacity_millicores),
        int((node_of < 0).sum()),
        packed.shape[1],
        *figures,
    )


def _drawn(load: SimulatedLoad, random: np.random.Generator) -> _Pods:
    """Pods whose usage varies at random; no pod uses less than 0."""
    usual = load.used_share * load.request_millicores
    swing = random.standard_normal(load.pods)

    def next_usage() -> FloatArray:
        nonlocal swing
        fresh = random.standard_normal(load.pods)
        swing = _REMEMBERED * swing + np.sqrt(1 - _REMEMBERED**2) * fresh
        return np.asarray(usual * np.maximum(1 + load.deviation * swing, 0))

    requests = np.full(load.pods, float(load.request_millicores))
    return _Pods(requests, next_usage, load.pods * usual)


def _of_series(
    load: SimulatedLoad, series: UsageSeries, windows: int, random: np.random.Generator
) -> _Pods:
    """Pods that use what a series did from a random step on, as long as its usage is known."""
    steps = math.ceil(windows * WINDOW_SECONDS / series.step_seconds)
    known = ~np.isnan(series.usage) & (series.requests[:, None] > 0)
    counts = np.cumsum(np.pad(known, ((0, 0), (1, 0))), axis=1)
    starts = np.argwhere(counts[:, steps:] - counts[:, :-steps] == steps)
    if not len(starts):
        hours = windows * WINDOW_SECONDS / 3600
        raise ValueError(f"no pod with a request has known usage for {hours:.1f} h on end")
    chosen, first = starts[random.integers(0, len(starts), load.pods)].T
    usage = series.usage[chosen[:, None], first[:, None] + np.arange(steps)]
    window = -1

    def next_usage() -> FloatArray:
        nonlocal window
        window += 1
        return np.asarray(usage[:, int(window * WINDOW_SECONDS / series.step_seconds)])

    return _Pods(series.requests[chosen], next_usage, float(usage.mean(axis=1).sum()))


def _place(
    load: SimulatedLoad,
    requests: FloatArray,
    node_of: IntArray,
    averaged: FloatArray,
    target_percent: float,
    window: int,
) -> None:
    """Place the pods of a window on the best nodes one by one; a pod that fits nowhere waits."""
    capacity = np.full(load.nodes, float(load.capacity_millicores))
    nothing = np.zeros((1, load.nodes))
    loads = 100 * (averaged if len(averaged) else nothing) / capacity
    first = window * load.pods_per_window
    unmeasured = max(0, first - (_UNMEASURED_WINDOWS - 1) * load.pods_per_window)

    def requested(since: int, pod: int) -> FloatArray:
        """The requests of these pods on each node, and of the pod to place."""
        own = float(requests[pod])
        return _by_node(load, node_of[since:pod], requests[since:pod]) + own

    for pod in range(first, min(first + load.pods_per_window, load.pods)):
        average, latest = (
            predicted_percent(used, capacity, requested(since, pod))
            for used, since in ((loads.mean(axis=0), unmeasured), (loads[-1], first))
        )
        score = target_load(busier(average, latest), target_percent)
        fits = requested(0, pod) <= capacity
        if fits.any():
            node_of[pod] = np.where(fits, score, -1).argmax()


def _by_node(load: SimulatedLoad, node_of: IntArray, amounts: FloatArray) -> FloatArray:
    """The sum of these amounts of pods on each node, (nodes,); -1 is no node."""
    placed = node_of >= 0
    sums: FloatArray = np.bincount(node_of[placed], amounts[placed], minlength=load.nodes).astype(
        np.float64
    )
    return sums
