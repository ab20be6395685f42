"""Resampled futures: past days of the pods of a node, recombined into peaks that may come.

Each future picks one past window of the horizon's length for every pod, at the same time of the
day, a day k back with weight 0.93^k. In half of the futures the pods of a node share the day. With
the probability that pods of this age outgrew their past, the window is stretched by a step that
some pod of the fleet took. Young pods are predicted from first horizons of other pods.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.calibrated.entity_rows import EntityRows
from pipeline.processors.calibrated.fleet_experience import FleetExperience
from pipeline.processors.calibrated.horizon import HISTORY_DAYS, Horizon
from pipeline.processors.calibrated.random_draws import draws, unit_interval

FUTURES: Final = 128
_DAY_WEIGHT: Final = 0.93
_RECENT_WINDOWS: Final = 8
_TABLE: Final = 512


@dataclass(frozen=True, slots=True)
class Windows:
    """Past windows that a pod may repeat: how many blocks back each begins, and for each number of
    known days and recent windows the window at each of `_TABLE` equal shares of probability."""

    offsets: IntArray
    days: int
    table: npt.NDArray[np.int64]  # (days known, recent windows known, _TABLE)


@cache
def windows_of(horizon: Horizon) -> Windows:
    """Windows at the same time of the day; for horizons below a day also the last ones. All pools
    of one horizon share them: nobody writes to them."""
    days = np.arange(1, HISTORY_DAYS + 1)
    recent = np.arange(1, (_RECENT_WINDOWS if horizon.blocks <= horizon.day_blocks else 0) + 1)
    offsets = np.concatenate([days * horizon.day_blocks, recent * (horizon.blocks - 1)])
    weights = _DAY_WEIGHT ** np.concatenate([days, recent])
    shares = (np.arange(_TABLE) + 0.5) / _TABLE
    table = np.zeros((len(days) + 1, len(recent) + 1, _TABLE), np.int64)
    for known_days in range(len(days) + 1):
        for known_recent in range(len(recent) + 1):
            known = np.concatenate([days <= known_days, recent <= known_recent])
            cumulated = np.cumsum(weights * known)
            if cumulated[-1]:
                table[known_days, known_recent] = np.searchsorted(
                    cumulated, shares * cumulated[-1], side="right"
                )
    return Windows(offsets, len(days), table)


def future_peaks(
    pods: EntityRows,
    rows: IntArray,
    starts: IntArray,
    nodes: IntArray,
    step: int,
    horizon: Horizon,
    windows: Windows,
    experience: FleetExperience,
) -> FloatArray:
    """Peaks of the futures of each node after the samples of `step`, (nodes, FUTURES).

    `rows` are the rows of pods, ordered by node; the pods of node i begin at `starts[i]` and its
    id is `nodes[i]`. No node is without pods.
    """
    usage = _past_windows(pods, rows, step, horizon, windows)
    picked, stretch = _choices(pods, rows, starts, nodes, step, horizon, windows, experience)
    young = step + 1 - pods["first_step"][rows] < horizon.young_steps
    ends = np.append(starts[1:], len(rows))
    result = np.empty((len(starts), FUTURES))
    count = len(windows.offsets)
    for i, (first, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        index = picked[first:end] + count * np.arange(end - first)[:, None]
        flat = usage[first:end].reshape(-1, usage.shape[2])
        futures = np.take(flat, index, axis=0)  # (pods, futures, blocks)
        futures *= stretch[first:end, :, None]
        total = futures.sum(axis=0)
        if young[first:end].any():
            some = rows[first:end][young[first:end]]
            total += _young_futures(pods, some, step, horizon, experience)
        result[i] = total.max(axis=1)
    return result


def _past_windows(
    pods: EntityRows, rows: IntArray, step: int, horizon: Horizon, windows: Windows
) -> npt.NDArray[np.float32]:
    """Usage by block of each window, (pods, windows, blocks). A pod younger than a horizon repeats
    what it has; pods for which first horizons of others stand have zeros."""
    block = step // horizon.block_steps
    ring = horizon.ring_blocks
    blocks = block - windows.offsets[:, None] + np.arange(horizon.blocks)
    usage = pods["maxima"][rows].take(blocks % ring, axis=1)
    age = step + 1 - pods["first_step"][rows]
    short = np.flatnonzero(age < horizon.steps)
    first = pods["first_step"][rows[short]] // horizon.block_steps
    own = first[:, None] + np.arange(horizon.blocks) % (block - first + 1)[:, None]
    usage[short] = pods["maxima"][rows[short][:, None], own % ring][:, None, :]
    usage[age < horizon.young_steps] = 0.0
    return usage


def _choices(
    pods: EntityRows,
    rows: IntArray,
    starts: IntArray,
    nodes: IntArray,
    step: int,
    horizon: Horizon,
    windows: Windows,
    experience: FleetExperience,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The window and the stretch of each pod in each future, (pods, futures)."""
    block = step // horizon.block_steps
    first = -(-pods["first_step"][rows] // horizon.block_steps)
    passed = np.maximum(block - first, 0)
    days = np.minimum(passed // horizon.day_blocks, windows.days)
    recent = np.minimum(passed // (horizon.blocks - 1), windows.table.shape[1] - 1)
    bits = draws(pods["id"][rows], step, FUTURES)
    share = (bits >> np.uint64(55)).astype(np.int64)
    picked = windows.table[days[:, None], recent[:, None], share]
    sizes = np.diff(np.append(starts, len(rows)))
    half = FUTURES // 2
    common = (draws(nodes, step, half) >> np.uint64(55)).astype(np.int64)
    longest_days = np.maximum.reduceat(days, starts)
    longest_recent = np.maximum.reduceat(recent, starts)
    shared = windows.table[longest_days[:, None], longest_recent[:, None], common]
    shared = np.repeat(shared, sizes, axis=0)
    picked[:, :half] = np.where(_is_known(shared, days, recent, windows), shared, picked[:, :half])
    return picked, _stretches(pods, rows, step, horizon, experience, bits)


def _is_known(
    picked: npt.NDArray[np.int64], days: IntArray, recent: IntArray, windows: Windows
) -> BoolArray:
    known: BoolArray = np.where(
        picked < windows.days,
        picked < days[:, None],
        picked - windows.days < recent[:, None],
    )
    return known


def _stretches(
    pods: EntityRows,
    rows: IntArray,
    step: int,
    horizon: Horizon,
    experience: FleetExperience,
    bits: npt.NDArray[np.uint64],
) -> npt.NDArray[np.float32]:
    """Factors on the windows: 1, or past peak * factor = past peak^(1 - s) * limit^s."""
    histories = (step + 1 - pods["first_step"][rows]) // horizon.steps
    outgrows = unit_interval(bits, 0, 24) < experience.probability_to_outgrow(histories)[:, None]
    past = np.maximum(np.maximum(pods["past_peak"][rows], pods["peak"][rows]), 1.0)
    room = np.log(np.maximum(pods["limit"][rows] / past, 1.0))
    steps = experience.growth_steps()
    outgrown = np.flatnonzero(outgrows)
    shares = unit_interval(bits.flat[outgrown], 24, 24)
    drawn = steps[(shares * len(steps)).astype(np.int64)]
    factors = np.ones(bits.shape, np.float32)
    factors.flat[outgrown] = np.exp(drawn * room[outgrown // FUTURES])
    return factors


def _young_futures(
    pods: EntityRows, rows: IntArray, step: int, horizon: Horizon, experience: FleetExperience
) -> npt.NDArray[np.float32]:
    """Usage of young pods in each future, (futures, blocks): another pod's first horizon relative
    to its request, at least the pod's own mean. The request if nothing was seen."""
    mean = (pods["sum"][rows] / np.maximum(pods["samples"][rows], 1.0)).astype(np.float32)
    request = pods["request"][rows].astype(np.float32)
    limit = pods["limit"][rows].astype(np.float32)
    seen = experience.first_windows()
    if not len(seen):
        seen = np.ones((1, horizon.blocks), np.float32)
    share = unit_interval(draws(pods["id"][rows], ~step, FUTURES), 0, 32)
    usage = seen[(share * len(seen)).astype(np.int64)] * request[:, None, None]
    np.clip(usage, mean[:, None, None], limit[:, None, None], out=usage)
    total: npt.NDArray[np.float32] = usage.sum(axis=0)
    return total
