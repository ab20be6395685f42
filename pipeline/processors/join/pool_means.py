"""The mean usage of node pools, for windows of nodes whose thresholds are distances from it.

Which means are known when a sample is joined is chance, as with pods. The window keeps what was
known, so that detection is a function of windows alone.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pipeline.topics.hot_node_policy import HotNodePolicy, UsageKind
from pipeline.topics.pool_means import PoolMeansRecord

LONGEST_MS: Final = 600_000
"""How far the means of a pool may be from the end of a window that has them."""


class PoolMeans(NamedTuple):
    """The known means of a pool in `percent` by rule, as of `at_ms`, milliseconds since 1970."""

    at_ms: int
    usage: UsageKind
    span_seconds: int
    percent: Mapping[str, float]


def pool_means(record: PoolMeansRecord) -> PoolMeans:
    """The known means of a record. Raises ValueError if its time is invalid."""
    percents = {rule: mean.percent for rule, mean in record.means.items()}
    known = {rule: percent for rule, percent in percents.items() if percent is not None}
    return PoolMeans(record.at_ms, record.usage, record.span_seconds, known)


def known_percent(
    means: PoolMeans | None, policy: HotNodePolicy, window_end_ms: int
) -> dict[str, float]:
    """The `mean_percent` of a policy in the window of this end, empty if it is unknown.

    Unknown are means of another usage than the policy compares, and means from more than
    `LONGEST_MS` before the window, or, as for windows of a backlog, after it.
    """
    if means is None or (means.usage, means.span_seconds) != (policy.usage, policy.span_seconds):
        return {}
    return dict(means.percent) if abs(window_end_ms - means.at_ms) <= LONGEST_MS else {}
