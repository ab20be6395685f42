"""The shape of a prediction: what the node's peak is expected to follow, before the margin.

Shape = (S^2 M N)^0.225, all as shares of the sum of requests. S is a high quantile of the peaks of
resampled futures. M is the highest usage within 7 days of the pods that run now. N is the highest
share of its requests that the node used within 7 days, whatever pods ran then: what left is the
best guess of what young pods will do.
"""

from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.calibrated.entity_rows import EntityRows
from pipeline.processors.calibrated.fleet_experience import FleetExperience
from pipeline.processors.calibrated.horizon import Horizon

FUTURE_QUANTILE: Final = 0.9
_NEW_POD_QUANTILE: Final = 0.8
_LOWEST, _HIGHEST = 0.02, 3.0
_WEEK_DAYS: Final = 7
_EXPONENT: Final = 0.225


def shape(
    futures: FloatArray, past: FloatArray, node_shares: FloatArray, requests: FloatArray
) -> FloatArray:
    """The shape as a share of the requests, from peaks of futures (nodes, futures) and past peaks
    (nodes,), amounts in any unit, and the shares that nodes used (nodes,)."""
    kth = round(FUTURE_QUANTILE * futures.shape[1]) - 1
    s, m = np.partition(futures, kth, axis=1)[:, kth] / requests, past / requests
    shape: FloatArray = np.clip((s * s * m * node_shares) ** _EXPONENT, _LOWEST, _HIGHEST)
    return shape


def highest_shares(nodes: EntityRows, rows: IntArray, step: int, horizon: Horizon) -> FloatArray:
    """Highest share of its requests that each node in `rows` used in the last 7 days."""
    columns = _week(step, horizon) % nodes["shares"].shape[1]
    highest: FloatArray = nodes["shares"][rows][:, columns].max(axis=1).astype(np.float64)
    return highest


def week_blocks(horizon: Horizon) -> int:
    return _WEEK_DAYS * horizon.day_blocks


def _week(step: int, horizon: Horizon) -> IntArray:
    """Blocks of the last 7 days with the present one."""
    block = step // horizon.block_steps
    return np.arange(block - week_blocks(horizon) + 1, block + 1)


def past_peaks(
    pods: EntityRows,
    rows: IntArray,
    starts: IntArray,
    step: int,
    horizon: Horizon,
    experience: FleetExperience,
) -> FloatArray:
    """Highest usage of each node's present pods in the last 7 days. A pod counts as its own mean
    before its first sample; new pods count as a high first horizon of other pods."""
    blocks = _week(step, horizon)
    usage = pods["at_node_peak"][rows][:, blocks % horizon.ring_blocks].astype(np.float64)
    first = pods["first_step"][rows]
    mean = pods["sum"][rows] / np.maximum(pods["samples"][rows], 1.0)
    absent = blocks[None, :] < (first // horizon.block_steps)[:, None]
    usage = np.where(absent, mean[:, None], usage)
    peaks = np.sort(experience.first_windows().max(axis=1, initial=0.0))
    typical = peaks[int(_NEW_POD_QUANTILE * (len(peaks) - 1))] if len(peaks) else 1.0
    new = step + 1 - first < horizon.new_steps
    usage[new] += (typical * pods["request"][rows[new]])[:, None]
    total = np.add.reduceat(usage, starts, axis=0)
    highest: FloatArray = total.max(axis=1)
    return highest
