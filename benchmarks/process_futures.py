"""Continue a run of a random process: what may happen after a step, given all that happened.

Futures are independent draws from the process itself. They know the constants of each pod, the
state of its noise, which bursts run and which pods move at times, but nothing that was drawn for
later steps. So their quantiles are the best that a predictor can know.
"""

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from benchmarks import random_processes as processes
from benchmarks.random_processes import DAY, PODS, Event, ProcessRun
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray

Usage = npt.NDArray[np.float32]


def future_peaks(run: ProcessRun, step: int, futures: int, random: Generator) -> FloatArray:
    """Highest usage in the day after `step` of the pods that run then on each node, millicores,
    (nodes, futures)."""
    trace = run.trace
    stays = np.flatnonzero((trace.start <= step) & (step < trace.end))  # ordered by node
    pods = trace.series_index[stays]
    usage = (future_usage(run, step, futures, random) * run.scales.astype(np.float32))[..., pods]
    np.minimum(usage, run.limits[pods].astype(np.float32), out=usage)
    moves = np.bincount(trace.series_index) > 1
    left = remaining_stays(step - trace.start[stays], futures, random)
    left[:, ~moves[pods]] = DAY
    usage *= np.arange(DAY)[:, None, None] < left
    nodes, first = np.unique(trace.node_index[stays], return_index=True)
    peaks = np.zeros((len(trace.nodes), futures))
    peaks[nodes] = np.add.reduceat(usage, first, axis=2).max(axis=0).T
    return peaks


def remaining_stays(passed: IntArray, futures: int, random: Generator) -> IntArray:
    """Steps for which pods stay on their node, if they came `passed` steps ago and move at times,
    (futures, pods)."""
    steps = random.exponential(processes.MEAN_STAY, (futures, len(passed))).astype(np.int64)
    shortest = np.maximum(steps, processes.SHORTEST_STAY) - passed - 1
    return np.where(passed < processes.SHORTEST_STAY, shortest, steps)


def future_usage(run: ProcessRun, step: int, futures: int, random: Generator) -> Usage:
    """Usage as a share of the pod's own scale in the day after `step`, (steps, futures, pods)."""
    usage = _noise(run, step, futures, random)
    base = np.broadcast_to(run.latent.base, (PODS, processes.STEPS))
    usage *= base[:, step + 1 : step + 1 + DAY].T[:, None].astype(np.float32)
    shape = usage.shape
    match run.process:
        case "on-off":
            usage *= _spells(run.latent.factor, step, futures, random)
        case "spiky":
            usage += processes.spikes(random, shape)
        case "cron":
            usage += _runs(run, step, futures, random)
        case "random-walk":
            moves = random.standard_normal(shape, np.float32) * np.float32(processes.WALK_SIGMA)
            usage *= np.exp(np.cumsum(moves, axis=0)) * run.latent.factor[:, step]
        case "fleet-step":
            usage *= _fleet_step(run, step, futures, random)
        case "level-shifts":
            shifts, places = (
                np.zeros(shape, np.float32),
                _places(random, shape, processes.SHIFTS_A_DAY),
            )
            np.add.at(shifts, places, random.normal(0.0, processes.SHIFT_SIGMA, len(places[0])))
            usage *= np.exp(np.cumsum(shifts, axis=0)) * run.latent.factor[:, step]
        case "heavy-tail":
            usage += _bursts(run, step, futures, random)
        case "fleet-bursts":
            usage *= _fleet_bursts(run, step, futures, random)
    return usage


def _noise(run: ProcessRun, step: int, futures: int, random: Generator) -> Usage:
    normal = random.standard_normal((DAY, futures, PODS), np.float32)
    if run.process == "calm":
        return np.float32(1.0) + np.float32(processes.CALM_SIGMA) * normal
    last = np.log(run.latent.noise[:, step])
    if run.process == "fleet-noise":
        _continue(normal, last, *processes.SWELLING_NOISE)
        swell = random.standard_normal((DAY, futures, 1), np.float32)
        _continue(swell, np.log(run.latent.swell[:, step]), *processes.SWELL)
        normal *= np.exp(swell)
    else:
        _continue(normal, last, *processes.NOISE)
    return np.exp(normal)


def _continue(normal: Usage, last: FloatArray, memory: float, sigma: float) -> None:
    """Turn independent draws into an autoregression that continues from `last`."""
    normal *= np.float32(sigma * np.sqrt(1.0 - memory**2))
    normal[0] += np.float32(memory) * last.astype(np.float32)
    for step in range(1, len(normal)):
        normal[step] += np.float32(memory) * normal[step - 1]


def _places(
    random: Generator, shape: tuple[int, ...], per_day: float
) -> tuple[npt.NDArray[np.int64], ...]:
    """Steps, and places on the other axes, at which events begin, `per_day` at each place."""
    count = random.poisson(per_day * np.prod(shape[1:]))
    return tuple(random.integers(0, length, count) for length in shape)


def _spells(spells: FloatArray, step: int, futures: int, random: Generator) -> Usage:
    is_on = np.tile(spells[:, step] == processes.ON, futures)
    differs = spells[:, step::-1] != spells[:, step, None]
    passed = np.where(differs.any(axis=1), differs.argmax(axis=1) - 1, step)
    passed = np.tile(passed, futures)
    ends = _spell_steps(is_on, passed, random) - passed - 1
    was_on, changes = is_on.copy(), np.zeros((DAY, len(is_on)), np.bool_)
    ending = np.flatnonzero(ends < DAY)
    while len(ending):
        changes[ends[ending], ending] = True
        is_on[ending] = ~is_on[ending]
        ends[ending] += _spell_steps(is_on[ending], np.zeros(len(ending), np.int64), random)
        ending = ending[ends[ending] < DAY]
    is_on = was_on ^ np.logical_xor.accumulate(changes, axis=0)
    usage = np.where(is_on, np.float32(processes.ON), np.float32(processes.OFF))
    return usage.reshape(DAY, futures, PODS)


def _spell_steps(is_on: BoolArray, passed: IntArray, random: Generator) -> IntArray:
    """Lengths of spells that have not ended after `passed` steps."""
    scale = np.where(is_on, *processes.SPELL_STEPS)
    least = np.maximum(passed / scale - processes.LEAST_SPELL, 0.0)
    drawn = (1.0 + least) * (1.0 + random.pareto(processes.SPELL_TAIL, len(passed))) - 1.0
    steps = 1 + ((drawn + processes.LEAST_SPELL) * scale).astype(np.int64)
    return np.maximum(steps, passed + 1)


def _runs(run: ProcessRun, step: int, futures: int, random: Generator) -> Usage:
    assert run.latent.since_run is not None
    usage = np.zeros((DAY + processes.LONGEST_RUN, futures, PODS), np.float32)
    steps = np.arange(processes.LONGEST_RUN)[:, None]
    for pod, since in enumerate(run.latent.since_run):
        if (height := run.latent.added[pod, step]) > 0.0:
            left = random.integers(since[step], processes.LONGEST_RUN, futures) - since[step]
            usage[: len(steps), :, pod] = np.where(steps < left, height, 0.0)
        for start in np.flatnonzero(since[step + 1 : step + 1 + DAY] == 0).tolist():
            lengths = random.integers(1, processes.LONGEST_RUN + 1, futures)
            heights = np.where(steps < lengths, processes.run_heights(random, (futures,)), 0.0)
            usage[start : start + len(steps), :, pod] = heights
    return usage[:DAY]


def _fleet_step(run: ProcessRun, step: int, futures: int, random: Generator) -> Usage:
    now = run.latent.factor[:, step]
    if (now > 1.0).any():
        return now.astype(np.float32)
    first, end = processes.FLEET_STEP
    starts = random.integers(max(first, step + 1), end, futures) - step - 1
    factors = random.uniform(*processes.STEP_FACTORS, (futures, PODS)).astype(np.float32)
    is_after = np.arange(DAY)[:, None, None] >= starts[:, None]
    return np.where(is_after, factors, np.float32(1.0))


def _bursts(run: ProcessRun, step: int, futures: int, random: Generator) -> Usage:
    shape = (DAY, futures, PODS)
    changes = np.zeros((DAY + 1, futures, PODS))
    starts, *places = _places(random, shape, processes.BURSTS_A_DAY)
    ends = np.minimum(starts + processes.burst_steps(random, len(starts)), DAY)
    heights = processes.burst_heights(random, len(starts))
    np.add.at(changes, (starts, *places), heights)
    np.subtract.at(changes, (ends, *places), heights)
    usage = np.cumsum(changes[:-1], axis=0).astype(np.float32)
    for burst in _running(run, step):
        left = random.geometric(processes.BURST_END, futures) - (burst.start < step)
        is_running = np.arange(DAY)[:, None] < left
        pod = int(burst.heights.argmax())
        usage[..., pod] += np.where(is_running, burst.heights[pod], 0.0)
    return usage


def _fleet_bursts(run: ProcessRun, step: int, futures: int, random: Generator) -> Usage:
    factor = np.ones((DAY, futures, PODS), np.float32)
    starts, places = _places(random, (DAY, futures), processes.FLEET_BURSTS_A_DAY)
    for start, place in zip(starts.tolist(), places.tolist(), strict=True):
        burst = processes.fleet_burst(random, start)
        factor[start : burst.end, place] *= (1.0 + burst.heights).astype(np.float32)
    shortest, longest = processes.FLEET_BURST_STEPS
    for burst in _running(run, step):
        passed = step - burst.start
        left = random.integers(max(shortest, passed + 1), longest, futures) - passed - 1
        heights = (1.0 + burst.heights).astype(np.float32)
        factor *= np.where(np.arange(DAY)[:, None, None] < left[:, None], heights, np.float32(1.0))
    return factor


def _running(run: ProcessRun, step: int) -> list[Event]:
    return [event for event in run.latent.events if event.start <= step < event.end]
