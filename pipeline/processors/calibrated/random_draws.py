"""Random numbers that depend only on what they are for: a restart draws the same ones.

Counters are hashed by SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, "Fast splittable
pseudorandom number generators").
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray

Draws = npt.NDArray[np.uint64]
_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))


def mixed(counters: Draws) -> Draws:
    """SplitMix64's output for each counter."""
    value = counters * _GAMMA
    value = (value ^ (value >> _SHIFTS[0])) * _MULTIPLIERS[0]
    value = (value ^ (value >> _SHIFTS[1])) * _MULTIPLIERS[1]
    return value ^ (value >> _SHIFTS[2])


def draws(ids: IntArray, step: int, count: int) -> Draws:
    """64 random bits for each id and each of `count` futures at a step, (ids, count)."""
    seed = mixed(np.array([step], np.int64).astype(np.uint64))
    base = mixed(ids.astype(np.uint64) + seed)
    futures: Draws = np.arange(1, count + 1).astype(np.uint64)
    return mixed(base[:, None] + futures)


def unit_interval(bits: Draws, shift: int, width: int) -> FloatArray:
    """`width` of the bits, from bit `shift` on, as numbers from 0 to below 1."""
    part = (bits >> np.uint64(shift)) & np.uint64((1 << width) - 1)
    return part.astype(np.float64) / float(1 << width)
