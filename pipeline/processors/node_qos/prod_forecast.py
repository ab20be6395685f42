"""Predict how much CPU pods that are not best-effort need within the next minute.

An addition to Koordinator: best-effort work leaves before the others need the room. The models of
the worker predict peaks of hours from windows of 30 s; this predicts the next minute from the last
one, second by second.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Final

_WINDOW: Final = 60
_HORIZON_SECONDS: Final = 60
_LEAST_SECONDS: Final = 10
_RECENT: Final = 20


def predicted_peak_cores(recent_cores: Sequence[float], sigmas: float) -> float | None:
    """The peak of the next minute; None if there are fewer than 10 seconds of usage.

    `recent_cores` is the usage of each second, oldest first; the last minute counts. The peak is
    the level plus the growth. The level is mean + `sigmas` * standard deviation, as of the
    predictor `nsigma-v1`, at most the highest usage. Usage grows if it did so over the minute as
    well as over the last 20 seconds: as fast as the slower of the two, at most by the range of the
    minute, so that one step is not taken for a rise without an end.
    """
    cores = recent_cores[-_WINDOW:]
    if len(cores) < _LEAST_SECONDS:
        return None
    mean = sum(cores) / len(cores)
    stdev = sqrt(sum((value - mean) ** 2 for value in cores) / len(cores))
    highest = max(cores)
    level = min(mean + sigmas * stdev, highest)
    slope = min(_slope(cores), _slope(cores[-_RECENT:]))
    growth = min(max(slope, 0.0) * _HORIZON_SECONDS, highest - min(cores))
    return level + growth


def _slope(cores: Sequence[float]) -> float:
    """Growth per second of the line with the least squares; `cores` has two values or more."""
    middle = (len(cores) - 1) / 2
    weights = [second - middle for second in range(len(cores))]
    spread = sum(weight * weight for weight in weights)
    return sum(weight * value for weight, value in zip(weights, cores, strict=True)) / spread
