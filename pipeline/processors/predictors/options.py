"""Checks of the options that a predictor is given; each names what is allowed."""

from __future__ import annotations

import math


def check_fraction(name: str, value: float) -> float:
    """`value` if it is a share, 0 to 1. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name} is {value!r}, not a number from 0 to 1")
    return float(value)


def check_positive(name: str, value: float) -> float:
    """`value` if it is finite and above 0. Raises ValueError."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value!r}, not a number above 0")
    return float(value)
