"""The level of risk at which to predict now, so that the measured rate meets the declared one.

A debt of risk is repaid: after too many exceedances the level is below the declared risk for a
while, after too few above. Exceedances of running predictions count at once. It is an integral
controller on the rate of misses, as adaptive conformal inference (Gibbs and Candes, NeurIPS 2021),
with bounds on the level.
"""

from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray

DEBT_HALF_LIFE_DAYS: Final = 10.0
_REPAYMENT_DAYS: Final = 2.0
_MOST_OWED: Final = 0.25
"""Bound of a debt and of unspent risk, in declared risks over the time of repayment."""
_LOWEST: Final = 0.25
_HIGHEST: Final = 2.0


def repayment_steps(horizon_steps: int, steps_of_a_day: float) -> float:
    """Time in which a debt is repaid: two days, at least two horizons."""
    return max(_REPAYMENT_DAYS * steps_of_a_day, 2.0 * horizon_steps)


def bounded(debt: FloatArray, risks: FloatArray, repayment: float) -> FloatArray:
    """The debt (negative) or unspent risk (positive), cut: a bad first week must not be repaid for
    a month, and a careful one must not be made up for (anti-windup of an integral controller).

    Either moves the level by a quarter of the declared risk at most.
    """
    most = _MOST_OWED * risks * repayment
    cut: FloatArray = np.clip(debt, -most, most)
    return cut


def level(risks: FloatArray, debt: FloatArray, pending: FloatArray, repayment: float) -> FloatArray:
    """Level for each declared risk. `debt` and `pending` are sums of (declared - measured) * steps
    over predictions whose outcome is known, and over running ones."""
    steered: FloatArray = np.clip(
        risks + (debt + pending) / repayment, _LOWEST * risks, _HIGHEST * risks
    )
    return steered
