"""Absolute limits of nodes, and which nodes are hot or may take pods, by LowNodeLoad's rules.

Other than in Koordinator, thresholds of a pool are never written into those of another, a resource
that only `highThresholds` names is watched, and one that it does not name makes no node hot,
however much a node uses of it. Unknown usage is neither hot nor low.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.descheduling.low_node_load import NodePool
from pipeline.processors.hot_nodes.pool_thresholds import (
    deviation_percents,
    is_unused,
    known_means,
)

NORMAL, HIGH, LOW, PROD_HIGH, PROD_LOW, BOTH_LOW = range(6)
CLASSES: Final = ("normal", "high", "low", "prod_high", "prod_low", "both_low")
"""The names of the classes of nodes by their code."""


class Limits(NamedTuple):
    """Limits of nodes, (nodes, resources) each; those of `prod` are for usage of Prod pods.

    Up to `low` a node may take pods, and with them it must stay within `high`: the capacity where a
    resource has no high threshold. Above `hot` pods should leave: infinity without a threshold.
    """

    low: FloatArray
    high: FloatArray
    hot: FloatArray
    prod_low: FloatArray
    prod_high: FloatArray
    prod_hot: FloatArray


class OverUse(NamedTuple):
    """A resource above its limit; `scope` is `node` or `prod`."""

    resource: str
    scope: str
    usage_percent: float
    threshold_percent: float

    def __str__(self) -> str:
        return (
            f"{self.scope} usage of {self.resource} is {self.usage_percent:.2f}%, above "
            f"{self.threshold_percent:.2f}%"
        )


def watched_resources(pool: NodePool) -> tuple[str, ...]:
    """The resources with a threshold, and memory, which must always fit."""
    named = (pool.low_percent, pool.high_percent, pool.prod_low_percent, pool.prod_high_percent)
    return tuple(dict.fromkeys([*(name for percents in named for name in percents), "memory"]))


def percents(amounts: FloatArray, capacity: FloatArray) -> FloatArray:
    """Percent of capacity, NaN where it is 0 or unknown."""
    shares = np.full(np.broadcast_shapes(amounts.shape, capacity.shape), np.nan)
    np.divide(100.0 * amounts, capacity, out=shares, where=capacity > 0)
    return shares


def static_limits(percent: FloatArray | float, capacity: FloatArray) -> FloatArray:
    """Percentages of capacity, rounded down to whole amounts.

    >>> static_limits(29, np.array([100.0])).tolist()
    [28.0]
    """
    limits: FloatArray = np.trunc(percent * 0.01 * capacity)
    return limits


def deviation_limits(
    mean: FloatArray, low: FloatArray, high: FloatArray, capacity: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Limits at distances below and above the mean of the nodes. A distance of 0 means that the
    resource is not compared: both limits are the capacity."""
    lower, upper = deviation_percents(mean, low, high)
    return static_limits(lower, capacity), static_limits(upper, capacity)


def node_limits(
    pool: NodePool,
    resources: Sequence[str],
    capacity: FloatArray,
    usage: FloatArray,
    prod_usage: FloatArray,
) -> Limits:
    """The limits of the nodes of a pool. A resource without a low threshold is low up to the high
    limit."""
    low, high = pool.low_percent, pool.high_percent
    prod_low, prod_high = pool.prod_low_percent, pool.prod_high_percent
    return Limits(
        *_limits(pool, low, high, resources, capacity, usage),
        *_limits(pool, prod_low, prod_high, resources, capacity, prod_usage),
    )


def _limits(
    pool: NodePool,
    low: Mapping[str, float],
    high: Mapping[str, float],
    resources: Sequence[str],
    capacity: FloatArray,
    usage: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """`low`, `high` and `hot` of `Limits`."""
    low_percent = np.array([low.get(name, np.nan) for name in resources])
    high_percent = np.array([high.get(name, np.nan) for name in resources])
    no_low, no_high = np.isnan(low_percent), np.isnan(high_percent)
    if pool.use_deviation_thresholds:
        mean, _ = known_means(percents(usage, capacity))
        lower, upper = deviation_limits(mean, low_percent, high_percent, capacity)
        no_high = is_unused(low_percent, high_percent)
    else:
        lower = static_limits(low_percent, capacity)
        upper = np.where(no_high, capacity, static_limits(high_percent, capacity))
    return np.where(no_low, upper, lower), upper, np.where(no_high, np.inf, upper)


def is_over(usage: FloatArray, limits: FloatArray) -> BoolArray:
    """Which resources are known to be above their limit; exactly at the limit is not above."""
    over: BoolArray = np.greater(usage, limits)
    return over


def _is_under(usage: FloatArray, limits: FloatArray) -> BoolArray:
    """Which nodes are known to be above no limit."""
    under: BoolArray = np.logical_and.reduce(usage <= limits, axis=1)
    return under


def classify(
    usage: FloatArray, prod_usage: FloatArray, limits: Limits, is_cordoned: BoolArray
) -> IntArray:
    """The class of each node, a code of `CLASSES`. A cordoned node takes no pods."""
    low = _is_under(usage, limits.low) & ~is_cordoned
    high = is_over(usage, limits.hot).any(axis=1) & ~low
    prod_high = is_over(prod_usage, limits.prod_hot).any(axis=1)
    prod_low = _is_under(prod_usage, limits.prod_low) & ~is_cordoned & ~prod_high
    codes: IntArray = np.select(
        [high, prod_high, low & prod_low, low, prod_low],
        [HIGH, PROD_HIGH, BOTH_LOW, LOW, PROD_LOW],
        NORMAL,
    ).astype(np.int64)
    return codes


def over_use(
    scope: str,
    resources: Sequence[str],
    usage: FloatArray,
    limits: FloatArray,
    capacity: FloatArray,
    threshold_percent: Mapping[str, float] | None = None,
) -> Iterator[OverUse]:
    """Yield what one node uses above its limits, in the order of names. Arrays are (resources,).
    Thresholds are those configured, where a resource has one, else derived from the limit."""
    shares, limit_shares = percents(usage, capacity), percents(limits, capacity)
    given = threshold_percent or {}
    above = np.flatnonzero(is_over(usage, limits)).tolist()
    for index in sorted(above, key=lambda i: resources[i]):
        name = resources[index]
        threshold = given.get(name, float(limit_shares[index]))
        yield OverUse(name, scope, float(shares[index]), float(threshold))
