"""The Beta distribution with a given mean and deviation: its fit, and its distribution function.

LowRiskOverCommitment needs the regularized incomplete beta function. numpy does not have it, and
scipy would be a large dependency for one function.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray

_NARROWEST: Final = 1e6
"""alpha + beta above which the distribution counts as a point: a deviation below 0.05%."""
_MOST_TERMS: Final = 2000
_CLOSE_ENOUGH: Final = 1e-14
_TINY: Final = 1e-300


class Fit(NamedTuple):
    """The parameters, (values,), NaN where there is no fit."""

    alpha: FloatArray
    beta: FloatArray

    @property
    def is_fit(self) -> BoolArray:
        return np.isfinite(self.alpha)


def fit(mean: FloatArray, deviation: FloatArray) -> Fit:
    """Fit a distribution on 0 to 1 by the method of moments. There is no fit for a deviation larger
    than the mean allows, nor for a negligible one."""
    variance, largest = deviation**2, mean * (1 - mean)
    is_possible = (deviation > 0) & (variance < largest)
    with np.errstate(all="ignore"):
        strength = largest / variance - 1
        strength = np.where(is_possible & (strength <= _NARROWEST), strength, np.nan)
    return Fit(mean * strength, (1 - mean) * strength)


def probability_below(mean: FloatArray, deviation: FloatArray, threshold: FloatArray) -> FloatArray:
    """The probability of a value at or below `threshold`, all (values,).

    Without a fit it is a step: 1 if the mean is 0, or if the deviation is negligible and the mean
    is not above the threshold, else 0.
    """
    fitted = fit(mean, deviation)
    is_point = deviation**2 * _NARROWEST < mean * (1 - mean)
    step = (mean == 0) | (((deviation == 0) | is_point) & (mean <= threshold))
    alpha, beta = (np.where(fitted.is_fit, each, 1.0) for each in fitted)
    inside = incomplete_beta(alpha, beta, np.clip(threshold, 0.0, 1.0))
    return np.where(fitted.is_fit, inside, step.astype(np.float64))


def incomplete_beta(alpha: FloatArray, beta: FloatArray, x: FloatArray) -> FloatArray:
    """The regularized incomplete beta function I_x(alpha, beta), parameters above 0, `x` from 0 to
    1, by its continued fraction on the side of the mean where that converges quickly. The absolute
    error is below 1e-8 for parameters of a fit."""
    swapped = x > (alpha + 1) / (alpha + beta + 2)
    a, b = np.where(swapped, beta, alpha), np.where(swapped, alpha, beta)
    x = np.where(swapped, 1 - x, x)
    with np.errstate(divide="ignore"):
        front = np.exp(a * np.log(x) + b * np.log1p(-x) - _log_beta(a, b)) / a
    below_x = np.where(x <= 0, 0.0, front * _continued_fraction(a, b, x))
    return np.clip(np.where(swapped, 1 - below_x, below_x), 0.0, 1.0)


def _continued_fraction(a: FloatArray, b: FloatArray, x: FloatArray) -> FloatArray:
    """The continued fraction, by Lentz's method as modified by Thompson and Barnett. Each value on
    its own: a value that has converged, or is NaN, gets no further terms with the others."""
    c = np.ones_like(x)
    d = 1 / _not_zero(1 - (a + b) * x / (a + 1))
    value = d.copy()
    result, unfinished = np.empty_like(x), np.arange(len(x))
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _not_zero(1 + term * d)
            c = _not_zero(1 + term / c)
            value = value * c * d
        goes_on = np.abs(c * d - 1) >= _CLOSE_ENOUGH
        if not goes_on.all():
            result[unfinished] = value
            unfinished = unfinished[goes_on]
            a, b, x, c, d, value = (each[goes_on] for each in (a, b, x, c, d, value))
            if not len(unfinished):
                break
    result[unfinished] = value
    return result


def _not_zero(values: FloatArray) -> FloatArray:
    return np.where(np.abs(values) < _TINY, _TINY, values)


def _log_beta(a: FloatArray, b: FloatArray) -> FloatArray:
    logarithm: FloatArray = _log_gamma(a) + _log_gamma(b) - _log_gamma(a + b)
    return logarithm


_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])
