"""Propose usage thresholds of a node pool from the history of its nodes, by three sigma.

The usage of a pool at a random time on a random node has, by the law of total variance, every node
with the same weight,

    mean = average of the nodes' means
    sigma^2 = average of the nodes' variances (over time) + variance of the nodes' means (between
    nodes)

A threshold at mean + 3 sigma is passed by 0.13% of normally distributed usage, and by at most 10%
of any (the one-sided inequality of Chebyshev and Cantelli, 1 / (1 + 3^2)). Law of total variance:
N. A. Weiss, A Course in Probability (2005), pages 385-386. docs/how-to/choose-thresholds.md has the
limits of the method.
"""

import math
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray
from pipeline.topics.alerts import RULES, Rule

SIGMAS: Final = 3.0
LEAST_NODES: Final = 5
"""The standard error of the deviation between n normal nodes is 1 / sqrt(2 (n - 1)) of it, a third
with five: too much with fewer."""
LEAST_HISTORY_SECONDS: Final = 86_400.0
"""Usage follows the time of day: a shorter history misses its peak or its valley."""
LEAST_SIGMA: Final = 0.1
"""Points below which usage is constant, such as that of a simulation."""
LOWEST_PERCENT: Final = 50.0
"""Below it no threshold of usage is proposed: nodes with room would refuse pods."""
HIGHEST_PERCENT: Final = 95.0
"""Above it none is proposed: it would leave no room."""
LEAST_DISTANCE: Final = 5.0
"""Points between a pool's mean and a proposed threshold that is a distance from it."""
MOST_PERCENT: Final = 105.0
"""Mean or deviation above it is impossible, and unknown."""
SAME_POINTS: Final = 2.0
"""Thresholds that differ by no more are the same: a proposal changes from day to day."""

Excluded = Literal["stale", "short", "unknown"]


class NodeHistories(NamedTuple):
    """History of the n nodes of a pool, in percent of allocatable by rule, NaN unknown.

    `mean` and `stdev` (n, rules) are over time, of a history of `seconds` (n, rules). `usage`
    (n, rules) is that of the last window, and `is_fresh` (n,) whether that is recent.
    """

    mean: FloatArray
    stdev: FloatArray
    seconds: FloatArray
    usage: FloatArray
    is_fresh: BoolArray


class Present(NamedTuple):
    """The thresholds in force, in percent by rule (rules,), NaN none; `low` marks nodes that may
    take pods. With `deviates` they are distances from the mean of the pool."""

    high: FloatArray
    low: FloatArray
    deviates: bool = False


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What the history of a pool says about the thresholds of one rule. Null is unknown, or none.

    rule: node_cpu, node_memory, prod_cpu or prod_memory.
    nodes: All nodes of the pool.
    known_nodes: Nodes whose history counts.
    excluded_nodes: Nodes whose history does not count: stale without fresh usage, short with a
      history of less than a day, unknown without a plausible mean and deviation.
    mean_percent: Mean over time and nodes.
    sigma_percent: Standard deviation over time and nodes.
    over_time_share: Share of the variance that is over time; the rest is between nodes.
    three_sigma_percent: Mean + 3 sigma.
    high_percent: The present threshold above which a node is hot or refuses pods.
    low_percent: The present threshold up to which a node may take pods of hot ones.
    nodes_above: Known nodes whose last window is above the present high threshold.
    time_above_percent: Expected time that a node is above it, if its usage is normal over time.
    proposed_high_percent: The proposed high threshold.
    proposed_low_percent: The proposed low threshold, one sigma below the mean.
    reason: Why it is proposed, or why nothing is.
    """

    rule: Rule
    nodes: int
    known_nodes: int
    excluded_nodes: dict[Excluded, int]
    mean_percent: float | None = None
    sigma_percent: float | None = None
    over_time_share: float | None = None
    three_sigma_percent: float | None = None
    high_percent: float | None = None
    low_percent: float | None = None
    nodes_above: int | None = None
    time_above_percent: float | None = None
    proposed_high_percent: int | None = None
    proposed_low_percent: int | None = None
    reason: str = ""


class Spread(NamedTuple):
    """Mean and variance of a pool's usage, in percent and its square."""

    mean: float
    over_time: float
    between_nodes: float

    @property
    def sigma(self) -> float:
        return math.sqrt(self.over_time + self.between_nodes)


def total_spread(mean: FloatArray, stdev: FloatArray) -> Spread:
    """Mean and variance over time and nodes, of the means and standard deviations over time of n
    nodes (n,), at least one, all known.

    >>> total_spread(np.array([40.0, 60.0]), np.array([5.0, 5.0]))
    Spread(mean=50.0, over_time=25.0, between_nodes=100.0)
    """
    return Spread(float(mean.mean()), float((stdev**2).mean()), float(mean.var()))


def share_above(mean: FloatArray, stdev: FloatArray, threshold: float) -> float:
    """Expected share of time, 0 to 1, that a node is above `threshold`, if the usage of each of n
    nodes (n,) is normal over time. A mixture, not one normal: nodes may differ much.

    >>> share_above(np.array([50.0, 50.0]), np.array([5.0, 0.0]), 50.0)
    0.25
    """
    shares = [
        0.5 * math.erfc((threshold - node_mean) / (math.sqrt(2.0) * deviation))
        if deviation > 0.0 else float(node_mean > threshold)
        for node_mean, deviation in zip(mean.tolist(), stdev.tolist(), strict=True)
    ]  # fmt: skip
    return math.fsum(shares) / len(shares)


def advise(pool: NodeHistories, present: Present) -> list[Advice]:
    """Advice about the thresholds of usage of the nodes, and about those of Prod that are in force.

    Where thresholds of some resources are in force, the others are not compared, on purpose, and
    get no advice. A threshold of Prod is at most that of the node.
    """
    advice = []
    for scope in (slice(0, 2), slice(2, 4)):
        is_set = ~np.isnan(present.high[scope])
        named = is_set if is_set.any() else np.full(2, scope.start == 0)
        advice += [_advise(pool, present, scope.start + int(i)) for i in np.flatnonzero(named)]
    if present.deviates:
        return advice
    most: dict[str, float | None] = {
        each.rule: each.proposed_high_percent or each.high_percent for each in advice
    }
    return [_below_node(each, most.get(each.rule.replace("prod_", "node_"))) for each in advice]


def _advise(pool: NodeHistories, present: Present, rule: int) -> Advice:
    mean, stdev = pool.mean[:, rule], pool.stdev[:, rule]
    with np.errstate(invalid="ignore"):
        plausible = (mean >= 0.0) & (mean <= MOST_PERCENT) & (stdev >= 0.0)
        plausible &= stdev <= MOST_PERCENT
        is_long = pool.seconds[:, rule] >= LEAST_HISTORY_SECONDS
    known = pool.is_fresh & plausible & is_long
    excluded: dict[Excluded, int] = {
        "stale": int((~pool.is_fresh).sum()),
        "short": int((pool.is_fresh & plausible & ~is_long).sum()),
        "unknown": int((pool.is_fresh & ~plausible).sum()),
    }
    high, low = (_number(own[rule]) for own in (present.high, present.low))
    counts = Advice(
        rule=RULES[rule], nodes=len(mean), known_nodes=int(known.sum()),
        excluded_nodes=excluded, high_percent=high, low_percent=low,
    )  # fmt: skip
    if not known.any():
        return _without_proposal(counts, _too_few(counts))
    spread = total_spread(mean[known], stdev[known])
    usage = pool.usage[known, rule]
    usage = usage[~np.isnan(usage)]
    above, time_above = None, None
    if high is not None and len(usage):
        above = int((usage > (high + usage.mean() if present.deviates else high)).sum())
    if high is not None:
        mark = high + spread.mean if present.deviates else high
        time_above = round(100.0 * share_above(mean[known], stdev[known], mark), 2)
    variance = spread.over_time + spread.between_nodes
    measured = msgspec.structs.replace(
        counts,
        mean_percent=round(spread.mean, 2),
        sigma_percent=round(spread.sigma, 2),
        over_time_share=round(spread.over_time / variance, 3) if variance else None,
        three_sigma_percent=round(spread.mean + SIGMAS * spread.sigma, 2),
        nodes_above=above,
        time_above_percent=time_above,
    )
    return _propose(measured, spread, deviates=present.deviates)


def _propose(measured: Advice, spread: Spread, *, deviates: bool) -> Advice:
    mark = spread.mean + SIGMAS * spread.sigma
    if measured.known_nodes < LEAST_NODES or 2 * measured.known_nodes < measured.nodes:
        return _without_proposal(measured, _too_few(measured))
    if spread.sigma < LEAST_SIGMA:
        return _without_proposal(measured, "usage does not vary, so no deviation says anything")
    if mark > HIGHEST_PERCENT:
        text = f"mean + 3 sigma is {mark:.1f}%, which leaves no room: {_cure(measured)}"
        return _without_proposal(measured, text)
    if not deviates and mark < LOWEST_PERCENT:
        text = f"mean + 3 sigma is {mark:.1f}%, where nodes have room for more pods"
        return _without_proposal(measured, text)
    # Rounded first: the least error of a sum must not cost a whole point.
    high = math.ceil(round(SIGMAS * spread.sigma if deviates else mark, 6))
    low = max(round(spread.sigma if deviates else spread.mean - spread.sigma), 1)
    if deviates:
        high = max(high, int(LEAST_DISTANCE))
    wanted = msgspec.structs.replace(measured, proposed_high_percent=high, proposed_low_percent=low)
    return msgspec.structs.replace(wanted, reason=_reason(wanted))


def _reason(advice: Advice) -> str:
    high, present = advice.proposed_high_percent, advice.high_percent
    assert high is not None
    if present is None:
        return "mean + 3 sigma; there is no threshold yet"
    if abs(high - present) <= SAME_POINTS:
        return "the present threshold is right"
    if high < present:
        return "lower: finds unusual nodes sooner, and leaves less room for growth"
    text = f"higher: usual usage is above the present threshold {advice.time_above_percent:g}% "
    return f"{text}of the time; {_cure(advice)}"


def _cure(advice: Advice) -> str:
    """What an operator can do about usage that varies much, by where it varies."""
    if advice.over_time_share is not None and advice.over_time_share < 0.5:
        return "mostly nodes differ, so relieve hot ones or split the pool"
    return "it varies mostly over time, so TimeSharedThresholds may allow more in the valley"


def _too_few(advice: Advice) -> str:
    need = max(LEAST_NODES, -(-advice.nodes // 2))
    known = f"{advice.known_nodes} of {advice.nodes} nodes"
    return f"a day of history of {known} is known, {need} are needed"


def _without_proposal(advice: Advice, reason: str) -> Advice:
    return msgspec.structs.replace(advice, reason=f"no proposal: {reason}")


def _below_node(advice: Advice, most: float | None) -> Advice:
    """The same with a proposal for Prod that is at most the threshold of the node."""
    high, low = advice.proposed_high_percent, advice.proposed_low_percent
    if high is None or low is None or most is None or high <= most:
        return advice
    high = math.floor(most)
    return msgspec.structs.replace(
        advice, proposed_high_percent=high, proposed_low_percent=min(low, high),
        reason="at most the threshold of the node",
    )  # fmt: skip


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
