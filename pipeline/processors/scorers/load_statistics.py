"""What Trimaran's plugins make of average and deviation of a node's usage (scheduling 3)."""

from typing import NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.scorers.rounding import clamp


class Load(NamedTuple):
    """Average and deviation of usage, (nodes,), in the unit of the capacity that they belong to;
    NaN where nothing was measured."""

    average: FloatArray
    deviation: FloatArray


def of_percent(capacity: FloatArray, average: FloatArray, deviation: FloatArray) -> Load:
    """The load of nodes whose usage is known in percent of their capacity. A deviation that nobody
    knows counts as none where the average is known."""
    known = np.isfinite(average)
    spread = np.where(known, np.nan_to_num(deviation, nan=0.0), np.nan)
    return Load(average * capacity / 100, spread * capacity / 100)


class Shares(NamedTuple):
    """Mean and deviation as shares of capacity, (nodes,), each from 0 to 1."""

    mean: FloatArray
    deviation: FloatArray


def shares(capacity: FloatArray, load: Load, requested: FloatArray | float = 0.0) -> Shares:
    """The load with what a pod asks for, in shares of capacity; both 0 where there is none."""
    with np.errstate(all="ignore"):
        mean = clamp((load.average + requested) / capacity)
        deviation = clamp(load.deviation / capacity)
    there = capacity > 0
    return Shares(np.where(there, mean, 0.0), np.where(there, deviation, 0.0))
