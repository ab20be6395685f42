"""Traces of known shape, made by a seed: 8 nodes of 10 pods each for eight days, every 15 minutes.

All pods request 1000 millicores and may use 2000.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.trace import Trace

NODES: Final = 8
PODS_PER_NODE: Final = 10
STEP_SECONDS: Final = 900
STEPS_PER_DAY: Final = 96
STEPS: Final = 8 * STEPS_PER_DAY
PODS: Final = NODES * PODS_PER_NODE


def trace_of(name: str, usage: FloatArray) -> Trace:
    """The trace of pods that use these millicores, (PODS, STEPS), and run all the time."""
    memory = np.full(usage.size, np.nan)
    return Trace(
        dataset=name, scenario="std", step_seconds=STEP_SECONDS, start_seconds=1_700_006_400,
        steps=STEPS, nodes=tuple(f"node-{n}" for n in range(NODES)),
        allocatable=np.full((NODES, 2), np.nan),
        pods=tuple(f"pod-{n:03}" for n in range(PODS)),
        node_index=np.arange(PODS) // PODS_PER_NODE,
        start=np.zeros(PODS, np.int64), end=np.full(PODS, STEPS),
        requests=np.tile([1000.0, 0.0], (PODS, 1)), limits=np.tile([2000.0, 0.0], (PODS, 1)),
        series=tuple(f"series-{n}" for n in range(PODS)), series_index=np.arange(PODS),
        first_sample=np.arange(PODS) * STEPS,
        usage=np.stack([np.clip(usage, 0.0, 2000.0).ravel(), memory], axis=1),
    )  # fmt: skip


def steady(random: np.random.Generator) -> FloatArray:
    """Independent noise about a mean that never changes: peaks of pods do not coincide."""
    means = random.uniform(200, 500, (PODS, 1))
    return means * (1 + 0.3 * random.standard_normal((PODS, STEPS)))


def daily(random: np.random.Generator) -> FloatArray:
    """All pods are busy at the same hours of each day: peaks coincide, and last hours have told
    little about the next day."""
    hours = np.arange(STEPS) % STEPS_PER_DAY / 4
    wave = np.maximum(np.cos((hours - 14) / 24 * 2 * np.pi), 0.0) ** 2
    means = random.uniform(100, 200, (PODS, 1))
    return means * (1 + 3 * wave + 0.1 * random.standard_normal((PODS, STEPS)))


def bursts(random: np.random.Generator) -> FloatArray:
    """Little usage, with rare bursts of single pods up to their limit: percentiles miss them."""
    usage = random.uniform(100, 200, (PODS, 1)) * np.ones(STEPS)
    return np.where(random.random((PODS, STEPS)) < 0.003, 2000.0, usage)


SHAPES: Final[dict[str, Callable[[np.random.Generator], FloatArray]]] = {
    shape.__name__: shape for shape in (steady, daily, bursts)
}
