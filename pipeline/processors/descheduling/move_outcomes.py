"""Whether the moves of a plan helped: the source cooled, and no node got hot where its pods landed.
The scheduler decides where that is. Plans of strategies that do not relieve hot nodes help if no
such node got hot.

A plan is judged once, when usage over its whole span shows its last eviction and the replacement:
the alert for which it was made must be closed by then, or soon after, or only wait for further
windows below its threshold. Unknown usage says nothing. A strategy whose plans do not
help is paused, LowNodeLoad for the pool alone: more evictions would do more harm. The pause ends
when the judged plans are an hour old, so that it is tried again.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from pipeline.processors.descheduling.low_node_load import NAME as LOW_NODE_LOAD
from pipeline.processors.kubernetes.top_owner import workload_of
from pipeline.times import parse_time, time_or_none
from pipeline.topics.alerts import OpenAlert, calm_percent
from pipeline.topics.pods import PodRecord

LANDING_SECONDS: Final = 60.0
"""Between an eviction and the first window of the replacement: it stops, is placed and starts."""
SETTLE_SECONDS: Final = 180.0
"""Between the span of usage after an eviction and the moment at which a node that did not cool by
it is still hot."""
JUDGED_PLANS: Final = 5
FEWEST_HELPED: Final = 3
"""A strategy of whose last `JUDGED_PLANS` plans fewer helped is paused."""


class EndedPlan(NamedTuple):
    """A plan that evicted at least one pod, and has ended. Times are Unix times; `evicted_at` is
    that of the last eviction, `workloads` (kind/namespace/name) are those of the pods that left,
    and `targets` the nodes where they were expected to land. The node may still cool until the plan
    `is_settled`."""

    plan_id: str
    node: str
    strategy: str
    at: float
    evicted_at: float
    workloads: frozenset[str]
    targets: tuple[str, ...]
    is_settled: bool


class Verdict(NamedTuple):
    """Whether a plan helped, and why, for people."""

    helped: bool
    why: str


class DatedAlert(NamedTuple):
    """An open alert, and when it opened (Unix time)."""

    opened_at: float
    alert: OpenAlert


def dated_alerts(alerts: Iterable[OpenAlert], as_of: str, now: float) -> list[DatedAlert]:
    """Open alerts of a node, by the clock of `now`: the node's own may be ahead or behind, but
    knows how long they had been open at the end of its last window, `as_of`. That ended a little
    before `now`, so the times are too late by as much."""
    end = parse_time(as_of)
    ages = ((max(end - parse_time(alert.since), 0.0), alert) for alert in alerts)
    return [DatedAlert(now - age, alert) for age, alert in ages]


def is_still_hot(
    plan: EndedPlan, alerts: Sequence[DatedAlert], hysteresis_percent: float
) -> bool | None:
    """Whether one of the open alerts of the plan's node is one that the plan should have ended;
    None if usage that decides is unknown. An alert that opened within `LANDING_SECONDS` of the last
    eviction is about usage from before. Other strategies than LowNodeLoad do not go by alerts.

    A policy may ask for more windows below the threshold than there are until the plan is settled:
    then usage below it is enough.
    """
    if plan.strategy != LOW_NODE_LOAD:
        return False
    latest = plan.evicted_at + LANDING_SECONDS
    own = [alert for opened_at, alert in alerts if opened_at <= latest]
    if not plan.is_settled:
        return bool(own)
    hot = [_is_hot(alert, hysteresis_percent) for alert in own]
    return True if True in hot else None if None in hot else False


def _is_hot(alert: OpenAlert, hysteresis_percent: float) -> bool | None:
    usage, threshold = alert.usage_percent, alert.threshold_percent
    if usage is None or threshold is None:
        return None
    return usage > calm_percent(threshold, hysteresis_percent)


def landed_on(plan: EndedPlan, pods: Iterable[PodRecord]) -> set[str]:
    """The nodes of those pods that replace pods of the plan: of the same workload, and created
    since the plan was made. The clock of the API server may be behind by `LANDING_SECONDS`."""
    since = plan.at - LANDING_SECONDS
    return {
        pod.node
        for pod in pods
        if (time_or_none(pod.created_at or "") or 0.0) >= since
        and str(workload_of(pod) or "") in plan.workloads
    }


def verdict(plan: EndedPlan, *, still_hot: bool, heated: Collection[str]) -> Verdict | None:
    """Judge a plan; None if its node may still cool. `heated` are the nodes that got hot after the
    plan, and where a pod of it landed."""
    relieves = plan.strategy == LOW_NODE_LOAD
    if still_hot:
        return Verdict(False, "the node is still hot") if plan.is_settled else None
    if heated:
        begin = "the node cooled, but " if relieves else ""
        return Verdict(False, f"{begin}{', '.join(sorted(heated)[:5])} got hot")
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
