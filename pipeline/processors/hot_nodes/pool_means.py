"""The mean usage of node pools, computed for `springtide.fleet`.

Means are of the usage that detection compares, as node states have it: a threshold that is a
distance from a mean then compares like with like.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.hot_nodes.pool_thresholds import known_means
from pipeline.times import format_time
from pipeline.topics.alerts import RULES
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.pool_means import PoolMeansRecord, RuleMean

LARGEST_PERCENT: Final = 1000.0
"""Usage above it is impossible, and unknown: one absurd node must not move the mean of a pool."""
MOVED_POINTS: Final = 0.5
"""Means that moved by more are published at once."""
NEVER: Final = -1
_DIGITS: Final = 2


def pool_means(
    policies: Sequence[HotNodePolicy], percents: FloatArray, end_ms: IntArray
) -> Iterator[PoolMeansRecord]:
    """Yield the means of each pool, by name.

    `policies` (n) are those of the nodes, whose thresholds are distances from the mean; `percents`
    (n, rules) is the compared usage in percent, NaN unknown; `end_ms` (n,) is the end of the last
    window, `NEVER` without one.

    A mean is unknown if fewer than half of the pool's nodes are known: a mean of few nodes makes
    normal ones hot. While a policy changes node by node, nodes that still compare another usage
    than most of the pool count as unknown. A pool without any window has no record.
    """
    members: dict[str, list[int]] = {}
    for index, policy in enumerate(policies):
        members.setdefault(policy.pool, []).append(index)
    usage = np.where((percents >= 0.0) & (percents <= LARGEST_PERCENT), percents, np.nan)
    for pool in sorted(members):
        nodes = members[pool]
        newest_ms = int(end_ms[nodes].max())
        if newest_ms != NEVER:
            yield _record(pool, [policies[index] for index in nodes], usage[nodes], newest_ms)


def _record(
    pool: str, policies: Sequence[HotNodePolicy], usage: FloatArray, newest_ms: int
) -> PoolMeansRecord:
    kinds = [(policy.usage, policy.span_seconds) for policy in policies]
    counts = Counter(kinds)
    kind = max(sorted(counts), key=counts.__getitem__)
    alike = np.array([own == kind for own in kinds])
    means, known = known_means(np.where(alike[:, None], usage, np.nan))
    named = {
        f"{scope}_{resource}"
        for policy in policies
        for scope, percents in (("node", policy.high_percent), ("prod", policy.prod_high_percent))
        for resource in percents
    }
    return PoolMeansRecord(
        pool=pool,
        at=format_time(newest_ms / 1000),
        nodes=len(policies),
        usage=kind[0],
        span_seconds=kind[1],
        means={
            rule: RuleMean(
                percent=round(float(mean), _DIGITS) if 2 * count >= len(policies) else None,
                known_nodes=count,
            )
            for rule, mean, count in zip(RULES, means.tolist(), known.tolist(), strict=True)
            if rule in named
        },
    )


def has_moved(before: PoolMeansRecord, after: PoolMeansRecord) -> bool:
    """Whether a mean moved by more than `MOVED_POINTS`, or became known or unknown, or the pool
    compares other usage."""
    kinds = [(each.usage, each.span_seconds, each.means.keys()) for each in (before, after)]
    if kinds[0] != kinds[1]:
        return True
    pairs = ((before.means[rule].percent, mean.percent) for rule, mean in after.means.items())
    return any(
        (old is None) != (new is None)
        or (old is not None and new is not None and abs(new - old) > MOVED_POINTS)
        for old, new in pairs
    )
