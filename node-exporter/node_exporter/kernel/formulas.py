"""Definitions of usage and statistics over readings."""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction


def system_usage(node: float, pods: Iterable[float], host_apps: Iterable[float]) -> float:
    """Usage of the node minus pods minus host applications, at least 0."""
    return max(0.0, node - sum(pods) - sum(host_apps))


def hot_bytes(with_page_cache_bytes: int, cold_bytes: int) -> int:
    """Memory usage without cold page cache, at least 0."""
    return max(0, with_page_cache_bytes - cold_bytes)


def average(values: Sequence[float]) -> float:
    """Arithmetic mean, rounded once. Raises `ValueError` for no values."""
    if not values:
        raise ValueError("an average of no values")
    return math.fsum(values) / len(values)


def rank_percentile(ascending: Sequence[float], p: Fraction) -> float:
    """The value at the 1-based rank max(1, floor(n * p)) of n values in ascending order.

    `p` is a fraction, which keeps floor(n * 9/10) exact. Raises `ValueError` for no values.
    """
    if not ascending:
        raise ValueError("a percentile of no values")
    rank = len(ascending) * p.numerator // p.denominator
    return ascending[max(0, rank - 1)]
