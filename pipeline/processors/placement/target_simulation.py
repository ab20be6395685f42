"""Simulate where a target of TargetLoadPacking leads: how full nodes get, and how far above it.

KEP-61 of scheduler-plugins advises a target ten percent below the wanted usage; the figures show
why. Pods arrive at an even pace, use a share of their request that varies, and never leave. The
same `SimulatedLoad` and seed give the same figures.
"""

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


def simulate(
    load: SimulatedLoad, target_percent: float, wanted_percent: float, seed: int = 0
) -> Outcome:
    random = np.random.default_rng(seed)
    node_of = np.full(load.pods, -1, np.int64)
    swing = random.standard_normal(load.pods)
    arrivals, hour = -(-load.pods // load.pods_per_window), int(3600 / WINDOW_SECONDS)
    past = np.zeros((arrivals + hour, load.nodes))
    for window in range(arrivals + hour):
        if window < arrivals:
            first = max(0, window - _AVERAGED_WINDOWS)
            _place(load, node_of, past[first:window], target_percent, window)
        fresh = random.standard_normal(load.pods)
        swing = _REMEMBERED * swing + np.sqrt(1 - _REMEMBERED**2) * fresh
        past[window] = _used(load, node_of, swing)
    percent = 100 * past[-hour:] / load.capacity_millicores
    packed = percent[:, percent.mean(axis=0) > _PACKED_SHARE * target_percent]
    figures: list[float | None] = [None] * 4
    if packed.size:
        above = (packed > wanted_percent).mean()
        figures = [*map(float, (packed.mean(), np.quantile(packed, 0.95), packed.max(), above))]
    used = load.pods * load.used_share * load.request_millicores
    return Outcome(
        target_percent,
        wanted_percent,
        100 * used / (load.nodes * load.capacity_millicores),
        int((node_of < 0).sum()),
        packed.shape[1],
        *figures,
    )


def _used(load: SimulatedLoad, node_of: IntArray, swing: FloatArray) -> FloatArray:
    """The usage of each node, (nodes,) millicores; no pod uses less than 0."""
    usual = load.used_share * load.request_millicores
    placed = node_of >= 0
    each = usual * np.maximum(1 + load.deviation * swing[placed], 0)
    used: FloatArray = np.bincount(node_of[placed], each, minlength=load.nodes).astype(np.float64)
    return used


def _place(
    load: SimulatedLoad, node_of: IntArray, averaged: FloatArray, target_percent: float, window: int
) -> None:
    """Place the pods of a window on the best nodes one by one; a pod that fits nowhere waits."""
    capacity = np.full(load.nodes, float(load.capacity_millicores))
    nothing, request = np.zeros((1, load.nodes)), float(load.request_millicores)
    loads = 100 * (averaged if len(averaged) else nothing) / capacity
    first = window * load.pods_per_window
    unmeasured = max(0, first - (_UNMEASURED_WINDOWS - 1) * load.pods_per_window)
    for pod in range(first, min(first + load.pods_per_window, load.pods)):
        average, latest = (
            predicted_percent(
                used, capacity, (_sum_by_node(load, node_of[since:pod]) + 1.0) * request
            )
            for used, since in ((loads.mean(axis=0), unmeasured), (loads[-1], first))
        )
        score = target_load(busier(average, latest), target_percent)
        fits = (_sum_by_node(load, node_of[:pod]) + 1) * request <= capacity
        if fits.any():
            node_of[pod] = np.where(fits, score, -1).argmax()


def _sum_by_node(load: SimulatedLoad, node_of: IntArray) -> FloatArray:
    """The number of these pods on each node, (nodes,)."""
    return np.bincount(node_of[node_of >= 0], minlength=load.nodes).astype(np.float64)
