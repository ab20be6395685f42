"""From readings to usage: the definitions of the field, pure."""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction


def system_usage(node: float, pods: Iterable[float], host_apps: Iterable[float]) -> float:
    """What is left of the node's usage after pods and host applications, never below 0."""
    return max(0.0, node - sum(pods) - sum(host_apps))


def hot_bytes(with_page_cache_bytes: int, cold_bytes: int) -> int:
    """Usage with hot page cache only, never below 0."""
    return max(0, with_page_cache_bytes - cold_bytes)


def average(values: Sequence[float]) -> float:
    """Arithmetic mean, rounded once. Raises `ValueError` for no values."""
    if not values:
        raise ValueError("an average of no values")
    return math.fsum(values) / len(values)


def rank_percentile(ascending: Sequence[float], p: Fraction) -> float:
    """The value at rank floor(n*p), counted from 1 and at least 1, of values in ascending order.

    `p` is a fraction, so that floor(n * 9/10) is never a rounding error short. Raises `ValueError`
    for no values.
    """
    if not ascending:
        raise ValueError("a percentile of no values")
    rank = len(ascending) * p.numerator // p.denominator
    return ascending[max(0, rank - 1)]
