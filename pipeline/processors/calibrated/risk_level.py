"""The level of risk at which to predict now, so that the measured rate meets the declared one.

A debt of risk is repaid: after more exceedances than the risk that predictions took, the level is
below the declared risk for a while, after fewer above. Exceedances of running predictions count at
once. It is an integral controller on the rate of misses, as adaptive conformal inference (Gibbs and
Candes, NeurIPS 2021), with bounds on the level.
"""

from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray

DEBT_HALF_LIFE_DAYS: Final = 10.0
_REPAYMENT_DAYS: Final = 2.0
_MOST_OWED: Final = 0.25
"""Bound of a debt, in declared risks over the time of repayment."""
_MOST_UNSPENT: Final = 0.375
"""Bound of unspent risk, likewise."""
_LOWEST: Final = 0.25
HIGHEST: Final = 2.0
"""Bounds of the level, in declared risks."""


def repayment_steps(horizon_steps: int, steps_of_a_day: float) -> float:
    """Time in which a debt is repaid: two days, at least two horizons."""
    return max(_REPAYMENT_DAYS * steps_of_a_day, 2.0 * horizon_steps)


def bounded(debt: FloatArray, risks: FloatArray, repayment: float) -> FloatArray:
    """The debt (negative) or unspent risk (positive), cut: a bad first week must not be repaid for
    a month, and a careful one not made up for by a careless second one (anti-windup of an integral
    controller)."""
    declared = risks * repayment
    cut: FloatArray = np.clip(debt, -_MOST_OWED * declared, _MOST_UNSPENT * declared)
    return cut


def level(risks: FloatArray, debt: FloatArray, pending: FloatArray, repayment: float) -> FloatArray:
    """Level for each declared risk. `debt` is the sum of (taken - measured) risk * steps over the
    predictions whose outcome is known, `pending` that of (declared - expected) risk * steps over
    running ones."""
    steered: FloatArray = np.clip(
        risks + (debt + pending) / repayment, _LOWEST * risks, HIGHEST * risks
    )
    return steered
