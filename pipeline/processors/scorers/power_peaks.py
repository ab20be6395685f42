"""Peaks of Trimaran: where a pod makes power rise least. power(x) = k0 + k1 * exp(k2 * x), x being
percent of the node's capacity.

Source: what the plugin does (scheduling 3.4), but for nodes of which it knows nothing, or that
would overflow: upstream gives them the lowest cost, so that they are the best. Here they are worst.
"""

from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.scorers.rounding import MAX_SCORE

COST_UNITS: Final = 1e15
_LARGEST_COST: Final = 9.2e18


class PowerModel(NamedTuple):
    """The constants of each node, (nodes,); NaN where it has no model. The first does not matter
    for a rise."""

    k0: FloatArray
    k1: FloatArray
    k2: FloatArray


def power_rise(
    model: PowerModel,
    used_percent: FloatArray,
    capacity_millicores: FloatArray,
    request_millicores: float,
) -> FloatArray:
    """How much more power the node takes with the pod, (nodes,) in the unit of the model; NaN where
    that cannot be known: without model, measurement or capacity, or beyond 100 percent."""
    with np.errstate(all="ignore"):
        percent = used_percent + 100 * request_millicores / capacity_millicores
        rise = model.k1 * (np.exp(model.k2 * percent) - np.exp(model.k2 * used_percent))
        known = (capacity_millicores > 0) & (percent <= 100) & np.isfinite(rise)
    return np.where(known, rise, np.nan)


def costs(rise: FloatArray) -> IntArray:
    """The raise as a whole number, as the plugin has it; 0 where it is unknown."""
    units = np.clip(rise * COST_UNITS, -_LARGEST_COST, _LARGEST_COST)
    return np.where(np.isnan(rise), 0.0, units).astype(np.int64)


def cheapest_first(cost: IntArray, known: np.ndarray) -> IntArray:
    """Costs as scores: 100 for the cheapest, 0 for the dearest and where nothing is known, linear
    and cut. Where nothing costs anything nobody is better: 0."""
    if not known.any() or not cost[known].any():
        return np.zeros(len(cost), np.int64)
    lowest, highest = int(cost[known].min()), int(cost[known].max())
    # Differences of whole numbers may not fit into 64 bits.
    spread = max(highest - lowest, 1)
    judged = np.where(known, cost, lowest).tolist()
    share = [MAX_SCORE - MAX_SCORE * (one - lowest) // spread for one in judged]
    return np.where(known, np.array(share, np.int64), 0)
