"""What a pod of a workload used in the last days, hour by hour: for new pods on nodes where their
workload did not run.

A node states it for each of its workloads, from the longest history that a pod of it has. Another
node begins the history of a new pod with it.
"""

from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.calibrated.entity_rows import EntityRows
from pipeline.processors.calibrated.fleet_experience import FleetExperience
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.calibrated.pod_history import NO_WORKLOAD
from pipeline.times import format_time
from pipeline.topics.workload_histories import HOUR_MS, MOST_HOURS, SCALE, HistoryHours

HOUR_SECONDS: Final = 3600
DAY_HOURS: Final = 24
LEAST_HOURS: Final = 6
"""Pods with a shorter history are young themselves."""
_LEAST_HORIZONS: Final = 2


class HourlyPeaks(NamedTuple):
    """The highest usage of a pod in each of the hours until `end_hour`, (hours,), oldest first.
    Hours count since 1970."""

    end_hour: int
    peaks: FloatArray


def stated(history: HourlyPeaks, unit: float) -> HistoryHours:
    """The history for other nodes; amounts are multiples of `unit`."""
    highest = float(history.peaks.max())
    shares = history.peaks / highest if highest > 0.0 else np.zeros(len(history.peaks))
    return HistoryHours(
        until=format_time(history.end_hour * HOUR_SECONDS),
        highest=highest * unit,
        hours=np.ceil(shares * SCALE).astype(np.uint8).tobytes(),
    )


def hourly_peaks(stated: HistoryHours, unit: float) -> HourlyPeaks:
    """The history that another node stated."""
    shares = np.frombuffer(stated.hours, np.uint8) / SCALE
    end_hour = stated.until_ms // HOUR_MS
    return HourlyPeaks(end_hour, shares * stated.highest / unit)


def of_workloads(
    running: EntityRows, departed: EntityRows, step: int, horizon: Horizon
) -> dict[int, HourlyPeaks]:
    """The longest history of each workload among pods that run as of `step` and `departed` ones,
    the newest of equally long ones; workloads with `LEAST_HOURS` or more."""
    ends = np.concatenate([np.full(len(running), step), departed["last_step"][departed.rows]])
    both = [(pods, row) for pods in (running, departed) for row in pods.rows.tolist()]
    workloads, first_steps, ids = (
        np.concatenate([pods[name][pods.rows] for pods in (running, departed)])
        for name in ("workload", "first_step", "id")
    )
    seconds = horizon.step_seconds
    end_hours = (ends + 1) * seconds // HOUR_SECONDS
    first_hours = -(-first_steps * seconds // HOUR_SECONDS)
    hours = np.minimum(end_hours - first_hours, MOST_HOURS)
    longest: dict[int, HourlyPeaks] = {}
    for i in np.lexsort((ids, -end_hours, -hours)).tolist():
        workload = int(workloads[i])
        if hours[i] < LEAST_HOURS:
            break
        if workload != NO_WORKLOAD and workload not in longest:
            pods, row = both[i]
            longest[workload] = _hourly(pods, row, int(hours[i]), int(end_hours[i]), horizon)
    return longest


def _hourly(pods: EntityRows, row: int, hours: int, end_hour: int, horizon: Horizon) -> HourlyPeaks:
    seconds = horizon.block_steps * horizon.step_seconds
    numbers = np.arange(end_hour - hours, end_hour)
    first = int(numbers[0]) * HOUR_SECONDS // seconds
    blocks = np.arange(first, (end_hour * HOUR_SECONDS - 1) // seconds + 1)
    maxima = pods["maxima"][row][blocks % horizon.ring_blocks].astype(np.float64)
    return HourlyPeaks(end_hour, _regridded(maxima, first, seconds, numbers, HOUR_SECONDS))


def begin_with(
    pods: EntityRows, row: int, history: HourlyPeaks, step: int, horizon: Horizon
) -> None:
    """Begin the history of the new pod in `row`, which is empty, with that of its workload. In the
    hours since its end the last day is repeated, or all of it if it is shorter."""
    seconds, length = horizon.block_steps * horizon.step_seconds, horizon.block_steps
    block = step // length
    last_hour = ((block * seconds) - 1) // HOUR_SECONDS
    first_hour = history.end_hour - len(history.peaks)
    period = min(len(history.peaks), DAY_HOURS)
    hours = np.arange(first_hour, last_hour + 1)
    missing = np.maximum(hours - history.end_hour + 1, 0)
    known = hours - -(-missing // period) * period - first_hour
    first = max(-(-first_hour * HOUR_SECONDS // seconds), block - horizon.ring_blocks + 1)
    blocks = np.arange(first, block)
    if not len(blocks):
        return
    usage = _regridded(history.peaks[known], first_hour, HOUR_SECONDS, blocks, seconds)
    age = step - first * length
    begun = (blocks - first) * length  # ages at which blocks begin
    ended = age // horizon.steps * horizon.steps
    young = begun < horizon.young_steps
    for name in ("maxima", "at_node_peak"):
        pods[name][row, blocks % horizon.ring_blocks] = usage
    pods["first_step"][row] = first * length
    pods["samples"][row] = age
    pods["sum"][row] = age * usage.mean()
    pods["usage"][row] = usage[-1]
    for name, some in (
        ("past_peak", begun < ended), ("peak", begun >= ended),
        ("early_peak", young), ("later_peak", ~young),
    ):  # fmt: skip
        pods[name][row] = usage[some].max(initial=0.0)


def learn_growth(
    pods: EntityRows, row: int, step: int, horizon: Horizon, experience: FleetExperience
) -> None:
    """Pass on how the pod of another node grew, whose history the pod in `row` begins with: a node
    to which pods come and go sees few whole horizons of its own."""
    length = horizon.block_steps
    first, of_horizon = int(pods["first_step"][row]) // length, -(-horizon.steps // length)
    count = (step // length - first) // of_horizon
    if count < _LEAST_HORIZONS:
        return
    blocks = first + np.arange(count * of_horizon)
    usage = pods["maxima"][row, blocks % horizon.ring_blocks].astype(np.float64)
    peaks = usage.reshape(count, of_horizon).max(axis=1)
    pasts = np.maximum.accumulate(peaks)[:-1]
    limits = np.full(count - 1, pods["limit"][row])
    experience.add_horizons(np.arange(1, count), peaks[1:], pasts, limits)


def _regridded(
    values: FloatArray, first: int, seconds: int, numbers: IntArray, other_seconds: int
) -> FloatArray:
    """The highest of `values` in each of other spans. Values are of spans of `seconds`, from number
    `first` on; the others are `numbers`, of `other_seconds`."""
    begins = numbers * other_seconds // seconds - first
    ends = ((numbers + 1) * other_seconds - 1) // seconds - first
    overlaps = [
        values[np.clip(np.minimum(begins + k, ends), 0, len(values) - 1)]
        for k in range(int((ends - begins).max()) + 1)
    ]
    highest: FloatArray = np.max(overlaps, axis=0)
    return highest
