"""Checks of the options that a predictor is given; each names what is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

_T = TypeVar("_T")


def check_fraction(name: str, value: float) -> float:
    """`value` if it is a share above 0 and up to 1. Raises ValueError."""
    if not _is_number(value) or not 0 < value <= 1:
        # Of the share 0 the quantile is the least that was ever used: no peak.
        raise ValueError(f"{name} is {value!r}, not a number from above 0 up to 1")
    return float(value)


def check_positive(name: str, value: float) -> float:
    """`value` if it is finite and above 0. Raises ValueError."""
    if not _is_number(value) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value!r}, not a number above 0")
    return float(value)


def check_between(name: str, value: float, low: float, high: float) -> float:
    """`value` if it is one of `low` to `high`, both included. Raises ValueError."""
    if not _is_number(value) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}, not a number from {low:.15g} to {high:.15g}")
    return float(value)


def check_mapping(name: str, value: Mapping[str, _T] | None) -> Mapping[str, _T]:
    """`value` if it has values by name, empty for None. Raises ValueError."""
    if not isinstance(value, Mapping | None):
        raise ValueError(f"{name} is {value!r}, not values by name")
    return value or {}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
