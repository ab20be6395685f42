"""Options of a predictor: name, default, allowed values, and the check of a given value."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Option:
    """An option: `help` is its purpose, `allowed` its values in words. `check` gets name and value,
    returns the value to use and raises ValueError for a value that is not allowed."""

    name: str
    default: Any
    help: str
    allowed: str
    check: Callable[[str, Any], Any]


def fraction(name: str, default: float, help: str) -> Option:
    """A share above 0, at most 1."""
    return Option(name, default, help, "above 0, at most 1", check_fraction)


def positive(name: str, default: float, help: str) -> Option:
    """A finite number above 0."""
    return Option(name, default, help, "above 0", _check_positive)


def between(name: str, default: float, low: float, high: float, help: str) -> Option:
    """A number from `low` to `high`, both included."""

    def check(name: str, value: float) -> float:
        if not _is_number(value) or not low <= value <= high:
            raise ValueError(f"{name} is {value!r}, not a number from {low:.15g} to {high:.15g}")
        return float(value)

    return Option(name, default, help, f"{low:.15g} to {high:.15g}", check)


def choice(name: str, default: str, allowed: Sequence[str], help: str) -> Option:
    """One of a few texts."""

    def check(name: str, value: str) -> str:
        if value not in allowed:
            raise ValueError(f"{name} is {value!r:.100}, not {' or '.join(allowed)}")
        return value

    return Option(name, default, help, " or ".join(f"`{text}`" for text in allowed), check)


def check_fraction(name: str, value: float) -> float:
    """`value` if it is a share above 0 and at most 1. Raises ValueError."""
    if not _is_number(value) or not 0 < value <= 1:
        # The quantile of the share 0 is the lowest usage ever seen, not a peak.
        raise ValueError(f"{name} is {value!r}, not a number from above 0 up to 1")
    return float(value)


def check_mapping(name: str, value: Mapping[str, _T]) -> Mapping[str, _T]:
    """`value` if it is a mapping. Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is {value!r}, not values by name")
    return value


def _check_positive(name: str, value: float) -> float:
    if not _is_number(value) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value!r}, not a number above 0")
    return float(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
