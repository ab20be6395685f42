"""LoadVariationRiskBalancing of Trimaran: nodes whose load is low and steady first.

risk = (mean + margin * deviation ** (1 / sensitivity)) / 2, both as shares of capacity, the second
term within 0 and 1. Source: what the plugin does, which halves the sum (scheduling 3.2).
"""

from collections.abc import Sequence

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.scorers.load_statistics import Load, shares
from pipeline.processors.scorers.rounding import clamp, half_away


def risk_score(
    capacity: FloatArray,
    load: Load,
    requested: FloatArray | float,
    *,
    margin: float = 1.0,
    sensitivity: float = 1.0,
) -> FloatArray:
    """The score of one resource, (nodes,), 0 to 100, not rounded: NaN where it was not measured.
    A sensitivity below 0 takes no root."""
    used = Load(
        np.clip(load.average, 0.0, np.maximum(capacity, 0.0)),
        np.clip(load.deviation, 0.0, np.maximum(capacity, 0.0)),
    )
    of = shares(capacity, used, np.maximum(requested, 0.0))
    spread = of.deviation
    if sensitivity >= 0:
        with np.errstate(divide="ignore"):
            spread = spread ** np.divide(1.0, sensitivity)
    risk = (of.mean + clamp(spread * margin)) / 2
    score = np.where(capacity > 0, (1 - risk) * 100, 0.0)
    return np.where(np.isfinite(load.average), score, np.nan)


def load_variation(scores: Sequence[FloatArray]) -> IntArray:
    """The score of nodes by those of their resources, each (nodes,): the lowest of the resources
    that were measured, rounded, 0 where none was."""
    lowest = np.fmin.reduce(np.array(scores))
    return half_away(lowest)
