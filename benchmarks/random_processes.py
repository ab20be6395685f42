"""Random processes of usage, with which no constant of a predictor was chosen, as traces.

In a run 160 pods of a process run for four weeks on 20 nodes; 40% of them move every two days on
average. What a run drew stays known: `process_futures` continues it from any step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.random import Generator

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.backtest.trace import Trace

PROCESSES: Final = {
    "calm": "constant, 3% of noise",
    "weekly": "a daily wave, other weekends",
    "on-off": "on for hours, off for days",
    "spiky": "independent spikes of 15 minutes",
    "cron": "runs every 6 hours, day or week",
    "level-shifts": "a new level of a pod every 10 days",
    "random-walk": "a random walk",
    "growth": "all pods grow by 1 to 4% a day",
    "heavy-tail": "a burst of a pod a day, Pareto heights",
    "fleet-noise": "noise of all pods swells and ebbs over days",
    "fleet-bursts": "bursts of half of all pods at once, every other day",
    "fleet-step": "all pods use 1.2 to 1.8 times as much from some day on",
}
PODS: Final = 160
NODES: Final = 20
HOUR: Final = 4  # steps of 15 minutes
DAY: Final = 24 * HOUR
STEPS: Final = 28 * DAY
CALM_SIGMA: Final = 0.03
NOISE: Final = 0.8, 0.15
"""Of the autoregression that most processes have: its memory of a step, its standard deviation."""
SWELLING_NOISE: Final = 0.9, 0.3
SWELL: Final = 0.997, 0.5
WALK_SIGMA: Final = 0.3 / np.sqrt(3 * DAY)
FLEET_STEP: Final = STEPS // 2, 3 * STEPS // 4
STEP_FACTORS: Final = 1.2, 1.8
SHIFTS_A_DAY: Final = 0.1
BURSTS_A_DAY: Final = 1.0
FLEET_BURSTS_A_DAY: Final = 0.5
FLEET_BURST_STEPS: Final = HOUR, 12 * HOUR
BURST_END: Final = 0.2  # probability after each step
SHIFT_SIGMA: Final = 0.5
ON: Final = 1.0
OFF: Final = 0.1
SPELL_STEPS: Final = 2 * HOUR, 10 * HOUR
"""A spell on or off lasts this times (a Pareto variable + `LEAST_SPELL`)."""
SPELL_TAIL: Final = 1.3
LEAST_SPELL: Final = 0.2
LONGEST_RUN: Final = 9  # steps
SHORTEST_STAY: Final = HOUR
MEAN_STAY: Final = 2 * DAY


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """A burst in the steps [start, end), with a height of each pod, (pods,)."""

    start: int
    end: int
    heights: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Latent:
    """What a run drew. Usage is base * noise^swell * factor + added, as a share of the pod's own
    scale; each broadcasts to (pods, steps).

    `base` follows from constants of each pod and the time; `noise` is that of each pod alone;
    the others are what the process is named for. `events` are the bursts in `factor` or `added`,
    `since_run` counts the steps since the last run of a pod began.
    """

    base: FloatArray
    noise: FloatArray
    swell: FloatArray
    factor: FloatArray
    added: FloatArray
    events: tuple[Event, ...] = ()
    since_run: IntArray | None = None

    def usage(self) -> FloatArray:
        """Usage of each pod at each step, (pods, steps)."""
        return self.base * self.noise**self.swell * self.factor + self.added


@dataclass(frozen=True, slots=True, eq=False)
class ProcessRun:
    """A run of a process: its trace, and what it drew. `scales` and `limits` (pods,) are
    millicores."""

    process: str
    trace: Trace
    latent: Latent
    scales: FloatArray
    limits: FloatArray


def latent_of(process: str, random: Generator) -> Latent:
    """Draw a run of a process."""
    daily = _daily(random, 0.3 if process in ("level-shifts", "fleet-noise") else None)
    noise, one, none = _correlated(random, PODS, *NOISE), np.ones((1, 1)), np.zeros((1, 1))
    days = np.arange(STEPS) / DAY
    match process:
        case "calm":
            noise = 1.0 + CALM_SIGMA * random.standard_normal((PODS, STEPS))
            return Latent(one, noise, one, one, none)
        case "weekly":
            weekend = random.uniform(0.2, 1.6, (PODS, 1))
            return Latent(daily * np.where(days // 1 % 7 >= 5, weekend, 1), noise, one, one, none)
        case "on-off":
            spells = np.array([_on_off(random) for _ in range(PODS)])
            return Latent(one, noise, one, spells, none)
        case "spiky":
            return Latent(0.3 * one, noise, one, one, spikes(random, (PODS, STEPS)))
        case "cron":
            runs, since = map(np.array, zip(*(_runs(random) for _ in range(PODS)), strict=True))
            return Latent(0.15 * one, noise, one, one, runs, since_run=since)
        case "random-walk":
            walk = np.cumsum(random.standard_normal((PODS, STEPS)) * WALK_SIGMA, axis=1)
            return Latent(one, noise, one, np.exp(walk), none)
        case "growth":
            return Latent(daily * (1 + random.uniform(0.01, 0.04) * days), noise, one, one, none)
        case "fleet-noise":
            swell = _correlated(random, 1, *SWELL)
            return Latent(0.4 * daily, _correlated(random, PODS, *SWELLING_NOISE), swell, one, none)
        case "fleet-step":
            is_after = np.arange(STEPS) >= random.integers(*FLEET_STEP)
            factors = random.uniform(*STEP_FACTORS, (PODS, 1))
            return Latent(daily, noise, one, np.where(is_after, factors, 1.0), none)
        case "level-shifts":
            return Latent(daily, noise, one, _levels(random), none)
        case "heavy-tail":
            bursts, added = tuple(_bursts(random)), np.zeros((PODS, STEPS))
            for burst in bursts:
                added[:, burst.start : burst.end] += burst.heights[:, None]
            return Latent(0.3 * one, noise, one, one, added, bursts)
    starts = _times(random, FLEET_BURSTS_A_DAY)
    bursts = tuple(fleet_burst(random, start) for start in starts)
    factor = np.ones((PODS, STEPS))
    for burst in bursts:
        factor[:, burst.start : burst.end] *= 1.0 + burst.heights[:, None]
    return Latent(daily, noise, one, factor, none, bursts)


def spikes(random: Generator, shape: tuple[int, ...]) -> FloatArray:
    return 0.3 * random.gamma(0.15, 2.0, shape)


def run_heights(random: Generator, shape: tuple[int, ...] | None = None) -> FloatArray:
    return np.exp(random.normal(0.0, 0.4, shape))


def fleet_burst(random: Generator, start: int) -> Event:
    """A burst of half of the pods that begins at `start`."""
    heights = random.uniform(0.3, 2.0) * random.uniform(0.5, 1.5, PODS)
    has_burst = random.random(PODS) < 0.5
    return Event(start, start + int(random.integers(*FLEET_BURST_STEPS)), has_burst * heights)


def burst_heights(random: Generator, count: int) -> FloatArray:
    heights: FloatArray = 0.3 * random.pareto(1.5, count)
    return heights


def burst_steps(random: Generator, count: int) -> IntArray:
    return 1 + random.geometric(BURST_END, count)


def _bursts(random: Generator) -> Iterator[Event]:
    """Bursts of single pods."""
    for pod in range(PODS):
        for start in _times(random, BURSTS_A_DAY):
            end = start + int(burst_steps(random, 1)[0])
            heights = np.zeros(PODS)
            heights[pod] = burst_heights(random, 1)[0]
            yield Event(start, end, heights)


def _levels(random: Generator) -> FloatArray:
    """Factor on each pod at each step, (pods, steps)."""
    shifts = np.zeros((PODS, STEPS))
    for row in shifts:
        for start in _times(random, SHIFTS_A_DAY):
            row[start:] += random.normal(0.0, SHIFT_SIGMA)
    return np.exp(shifts)


def _times(random: Generator, per_day: float) -> list[int]:
    return list(map(int, random.integers(0, STEPS, random.poisson(per_day * STEPS / DAY))))


def _daily(random: Generator, height: float | None) -> FloatArray:
    heights = random.uniform(0.2, 1.0, (PODS, 1)) if height is None else height
    hours = np.arange(STEPS) / HOUR - random.normal(14.0, 2.0, (PODS, 1))
    return 1.0 + np.asarray(heights * np.cos(2 * np.pi * hours / 24))


def _correlated(random: Generator, rows: int, memory: float, sigma: float) -> FloatArray:
    """exp of an autoregression of first order over the steps, of standard deviation `sigma`."""
    noise = random.standard_normal((rows, STEPS)) * sigma
    noise[:, 1:] *= np.sqrt(1.0 - memory**2)
    for step in range(1, STEPS):
        noise[:, step] += memory * noise[:, step - 1]
    return np.exp(noise)


def _on_off(random: Generator) -> FloatArray:
    usage, start, is_on = np.full(STEPS, OFF), 0, random.random() < 0.3
    while start < STEPS:
        scale = SPELL_STEPS[0 if is_on else 1]
        end = start + 1 + int((random.pareto(SPELL_TAIL) + LEAST_SPELL) * scale)
        usage[start:end] = ON if is_on else OFF
        start, is_on = end, not is_on
    return usage


def _runs(random: Generator) -> tuple[FloatArray, IntArray]:
    """Usage of the runs of a pod, (steps,), and the steps since the last one began, (steps,)."""
    usage, period = np.zeros(STEPS), int(random.choice([6, 24, 24, 168])) * HOUR
    first = int(random.integers(period))
    for start in range(first, STEPS, period):
        height = run_heights(random)
        usage[start : start + int(random.integers(1, LONGEST_RUN + 1))] = height
    return usage, (np.arange(STEPS) - first) % period


def run_of(process: str, seed: int) -> ProcessRun:
    """Pods of a process. Requests are 1.5 times the 99% quantile of the first week, log-normal."""
    random = np.random.default_rng([seed, *process.encode()])
    limits = random.choice([1000.0, 2000.0, 4000.0, 8000.0], (PODS, 1), p=[0.4, 0.3, 0.2, 0.1])
    latent = latent_of(process, random)
    scales = np.exp(random.normal(6.0, 0.7, (PODS, 1)))
    usage = np.minimum(latent.usage() * scales, limits)
    high = np.quantile(usage[:, : 7 * DAY], 0.99, axis=1)
    requests = np.clip(1.5 * high * np.exp(random.normal(0.0, 0.4, PODS)), 50.0, limits[:, 0])
    requested, node_of_pod, stays = np.zeros(NODES), np.full(PODS, -1), []
    for start, end, pod in _stays(random):
        if node_of_pod[pod] >= 0:
            requested[node_of_pod[pod]] -= requests[pod]
        choices = random.choice(NODES, 3, replace=False)
        node_of_pod[pod] = choices[np.argmin(requested[choices])]
        requested[node_of_pod[pod]] += requests[pod]
        stays.append((int(node_of_pod[pod]), start, end, pod))
    nodes, starts, ends, pods = np.array(sorted(stays)).T
    trace = Trace(
        dataset="processes", scenario=process, step_seconds=900, start_seconds=0, steps=STEPS,
        nodes=tuple(f"node-{node}" for node in range(NODES)),
        allocatable=np.full((NODES, 2), 64_000.0), node_index=nodes, start=starts, end=ends,
        pods=tuple(f"pod-{pod}-{start}" for pod, start in zip(pods, starts, strict=True)),
        requests=requests[pods, None] * [1.0, 0.0], limits=limits[pods] * [1.0, 0.0],
        series=tuple(f"pod-{pod}" for pod in range(PODS)), series_index=pods,
        first_sample=pods * STEPS + starts,
        usage=np.stack([usage.ravel(), np.full(usage.size, np.nan)], axis=1),
    )  # fmt: skip
    return ProcessRun(process, trace, latent, scales[:, 0], limits[:, 0])


def _stays(random: Generator) -> list[tuple[int, int, int]]:
    stays = []
    for pod in range(PODS):
        end, is_moving = 0, random.random() < 0.4
        while (start := end) < STEPS:
            steps = max(SHORTEST_STAY, int(random.exponential(MEAN_STAY))) if is_moving else STEPS
            end = min(start + steps, STEPS)
            stays.append((start, end, pod))
    return sorted(stays)
