"""Whether the moves of a plan helped: the source cooled, and no target got hot. Plans of strategies
that do not relieve hot nodes help if no target got hot.

A plan is judged once, when usage over its whole span shows its last eviction and the replacement:
the alert for which it was made must be closed by then, or soon after. A strategy whose plans do not
help is paused: more evictions would do more harm. The pause ends when its judged plans are an hour
old, so that it is tried again.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from pipeline.processors.descheduling.low_node_load import NAME as LOW_NODE_LOAD
from pipeline.times import time_or_none
from pipeline.topics.alerts import OpenAlert

LANDING_SECONDS: Final = 60.0
"""Between an eviction and the first window of the replacement: it stops, is placed and starts."""
SETTLE_SECONDS: Final = 180.0
"""Between the span of usage after an eviction and the last moment at which an alert closes by it.
"""
JUDGED_PLANS: Final = 5
FEWEST_HELPED: Final = 3
"""A strategy of whose last `JUDGED_PLANS` plans fewer helped is paused."""

Alerts = Sequence[OpenAlert]


class EndedPlan(NamedTuple):
    """A plan that evicted at least one pod, and has ended. Times are Unix times; `evicted_at` is
    that of the last eviction, `targets` are the nodes where pods were expected to land. The node
    may still cool until the plan `is_settled`."""

    plan_id: str
    node: str
    strategy: str
    at: float
    evicted_at: float
    targets: tuple[str, ...]
    is_settled: bool


class Verdict(NamedTuple):
    """Whether a plan helped, and why, for people."""

    helped: bool
    why: str


def verdict(plan: EndedPlan, alerts_of: Callable[[str], Alerts | None]) -> Verdict | None:
    """Judge a plan by the alerts that are open now, None for a node whose usage is not fresh.
    None: it cannot be judged yet, because its node may still cool, or its usage is not fresh.

    Only an alert that was open when the last pod left shows that the source did not cool, and only
    one that opened after the plan that a target got hot by it.
    """
    source, relieves = alerts_of(plan.node), plan.strategy == LOW_NODE_LOAD
    if source is None:
        return None
    if relieves and any(_opened(alert) <= plan.evicted_at for alert in source):
        return Verdict(False, "the node is still hot") if plan.is_settled else None
    heated = [
        target
        for target in dict.fromkeys(plan.targets)
        if any(_opened(alert) > plan.at for alert in alerts_of(target) or ())
    ]
    if heated:
        begin = "the node cooled, but " if relieves else ""
        return Verdict(False, f"{begin}{', '.join(heated[:5])} got hot")
    return Verdict(True, f"{'the node cooled, and ' if relieves else ''}no target got hot")


def does_not_help(verdicts: Iterable[tuple[float, bool]]) -> bool:
    """Whether a strategy with these verdicts of the last hour is paused: their times (Unix time),
    and whether the plans helped.

    Plans of one round are often judged at the same time and have no order. If only some of them
    would be among the last `JUDGED_PLANS`, all of them count, and the share that helped decides.
    """
    newest = sorted(verdicts, reverse=True)
    if len(newest) < JUDGED_PLANS:
        return False
    oldest_at = newest[JUDGED_PLANS - 1][0]
    last = [helped for at, helped in newest if at >= oldest_at]
    return sum(last) * JUDGED_PLANS < FEWEST_HELPED * len(last)


def _opened(alert: OpenAlert) -> float:
    # A time that cannot be read must not look like success.
    return time_or_none(alert.since) or 0.0
