"""Seeded streams of usage for a calibrated pool."""

from collections.abc import Iterator

import numpy as np

from pipeline.processors.calibrated.calibrated_pool import CalibratedPool
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.calibrated.pod_usage import PodUsage

HORIZON = Horizon(steps=24, step_seconds=3600)
"""Steps of an hour: a day is 24 steps."""
RISKS = (0.01, 0.02, 0.05, 0.1)


def stationary(
    seed: int, steps: int, *, nodes: int = 6, pods: int = 6, moves: float = 0.0
) -> Iterator[tuple[int, PodUsage]]:
    """Usage of `pods` pods on each node, log-normal and independent by step, around a mean of each
    pod. With probability `moves` a step, a pod is replaced by a new one."""
    rng = np.random.default_rng(seed)
    count = nodes * pods
    ids, node = np.arange(count), np.repeat(np.arange(nodes), pods) + 1000
    means = rng.uniform(50.0, 400.0, count)
    for step in range(steps):
        replaced = rng.random(count) < moves
        ids = np.where(replaced, ids + count, ids)
        means = np.where(replaced, rng.uniform(50.0, 400.0, count), means)
        usage = means * rng.lognormal(0.0, 0.3, count)
        yield step, PodUsage(ids, node, usage, 3.0 * means, 8.0 * means)


def new_pool() -> CalibratedPool:
    return CalibratedPool(HORIZON, RISKS)
