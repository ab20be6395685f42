"""Hot nodes, the planner's alerts and recent plans as one JSON document."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from pipeline import API_VERSION
from pipeline.processors.console import limits
from pipeline.processors.console.fleet_document import MEBIBYTE
from pipeline.processors.console.relief_log import LoggedPlan
from pipeline.times import parse_time, time_or_none
from pipeline.topics.actions import Outcome
from pipeline.topics.alerts import AlertRecord, OpenAlert
from pipeline.topics.eviction_plans import LeavingPod


class ReliefTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """An open alert of the planner: about hot nodes that it cannot relieve, or about usage whose
    level changed.

    rule: What it is about, such as all_nodes_hot or pool_cpu_level.
    severity: `warning` or `critical`.
    node: The node; empty for an alert about a pool or a workload.
    pool: The node pool.
    workload: The workload as kind/namespace/name; empty for other alerts.
    since_seconds: When it was opened, in seconds since 1970.
    why: Why the planner can do nothing, or what changed.
    """

    rule: str
    severity: str
    node: str
    pool: str
    workload: str
    since_seconds: int
    why: str


class PodOfPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of a plan.

    namespace: Its namespace; may be empty.
    name: Its name; may be empty.
    uid: Its UID.
    pod_class: Its class, such as batch.
    cpu_millicores: CPU that its eviction is expected to free.
    memory_mebibytes: Memory that its eviction is expected to free.
    target: The node where it is expected to land; empty if that is unknown.
    outcome: What became of it: intended, done, failed, refused, marked; observed or recommended
      if the mode of the evictor forbids the eviction; null if no action is known.
    at_seconds: When that was written, in seconds since 1970.
    error: The reason of a refusal or failure.
    """

    namespace: str
    name: str
    uid: str
    pod_class: str
    cpu_millicores: int
    memory_mebibytes: int
    target: str
    outcome: Outcome | None
    at_seconds: int | None
    error: str


class ReliefPlanItem(msgspec.Struct, frozen=True, kw_only=True):
    """A plan and its outcome.

    id: Its id.
    node: The node that pods are to leave.
    at_seconds: When it was written, in seconds since 1970.
    valid_until_seconds: Until when it is valid; null if the plan does not say it.
    planner: Who made it.
    strategy: The strategy that made it; may be empty.
    why: Why it was made.
    waiting: The pod that needs the room, as namespace/name; empty for a plan that relieves a node.
    pods: Its first pods.
    more_pods: How many pods it has in addition.
    outcome: The last action about the plan as a whole; null if there is none.
    error: The reason of that action.
    helped: Whether the planner found that it helped; null if it was not judged.
    verdict: Why it helped or not.
    """

    id: str
    node: str
    at_seconds: int
    valid_until_seconds: int | None
    planner: str
    strategy: str
    why: str
    waiting: str
    pods: list[PodOfPlan]
    more_pods: int
    outcome: Outcome | None
    error: str
    helped: bool | None
    verdict: str


class Relief(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that are hot now, and what was planned and done about hot nodes.

    Columns with the name of one thing have one value for each listed alert: critical ones first,
    then the oldest.

    hot_nodes: Nodes with an open alert; some of them may not be listed.
    critical_nodes: How many of them have a critical alert.
    hot_alerts: Open alerts of all of them.
    node: Name of the node.
    pool: Its node pool.
    rule: What is hot: node_cpu, node_memory, prod_cpu or prod_memory.
    severity: `warning` or `critical`.
    since_seconds: When the alert was opened, in seconds since 1970.
    usage_percent: The compared usage in percent of allocatable; null is unknown.
    threshold_percent: Usage above it is hot; null is unknown.
    stale: Whether the last window of the node is too old to be judged.
    troubles: Open alerts of the planner; null while they are not known.
    more_troubles: How many more are open; null while that is not known.
    plans: Plans of the last two hours, newest first; null while they are not known.
    has_all_plans: Whether there are no older plans of the last two hours; null while that is not
      known.
    problem: Why alerts of the planner and plans are not known, or are not up to date; empty if
      they are.
    """

    apiVersion: str = API_VERSION
    kind: Literal["Relief"] = "Relief"
    hot_nodes: int
    critical_nodes: int
    hot_alerts: int
    node: list[str]
    pool: list[str]
    rule: list[str]
    severity: list[str]
    since_seconds: list[int]
    usage_percent: list[float | None]
    threshold_percent: list[float | None]
    stale: list[bool]
    troubles: list[ReliefTrouble] | None
    more_troubles: int | None
    plans: list[ReliefPlanItem] | None
    has_all_plans: bool | None
    problem: str = ""


class HotNode(NamedTuple):
    """A node with its open alerts."""

    name: str
    pool: str
    is_stale: bool
    alerts: Sequence[OpenAlert]


class KnownRelief(NamedTuple):
    """Open alerts of the planner, plans, newest first, and whether these are all; None while they
    are not known, for the reason in `problem`."""

    troubles: Sequence[AlertRecord] | None = None
    plans: Sequence[LoggedPlan] | None = None
    has_all_plans: bool | None = None
    problem: str = ""


def relief_document(hot: Sequence[HotNode], known: KnownRelief) -> Relief:
    """The document of these nodes, each with at least one open alert."""
    rows = [(node, alert) for node in hot for alert in node.alerts]
    rows.sort(key=lambda row: (row[1].severity != "critical", row[1].since, row[0].name))
    critical = {node.name for node, alert in rows if alert.severity == "critical"}
    hot_alerts, rows = len(rows), rows[: limits.HOT_ROWS]
    troubles, plans = known.troubles, known.plans
    return Relief(
        hot_nodes=len(hot),
        critical_nodes=len(critical),
        hot_alerts=hot_alerts,
        node=[node.name for node, _ in rows],
        pool=[node.pool for node, _ in rows],
        rule=[alert.rule for _, alert in rows],
        severity=[alert.severity for _, alert in rows],
        since_seconds=[round(parse_time(alert.since)) for _, alert in rows],
        usage_percent=[_tenths(alert.usage_percent) for _, alert in rows],
        threshold_percent=[_tenths(alert.threshold_percent) for _, alert in rows],
        stale=[node.is_stale for node, _ in rows],
        troubles=None if troubles is None else [*_troubles(troubles)],
        more_troubles=None if troubles is None else max(len(troubles) - limits.TROUBLES, 0),
        plans=None if plans is None else [_plan(logged) for logged in plans if logged.plan],
        has_all_plans=known.has_all_plans,
        problem=known.problem,
    )


def _tenths(percent: float | None) -> float | None:
    return None if percent is None else round(percent, 1)


def _troubles(alerts: Sequence[AlertRecord]) -> Iterator[ReliefTrouble]:
    order = sorted(alerts, key=lambda alert: (alert.severity != "critical", alert.since, alert.id))
    for alert in order[: limits.TROUBLES]:
        yield ReliefTrouble(
            rule=alert.rule,
            severity=alert.severity,
            node=alert.node,
            pool=alert.pool,
            workload=alert.workload,
            since_seconds=round(parse_time(alert.since)),
            why=alert.why[: limits.TEXT_CHARACTERS],
        )


def _plan(logged: LoggedPlan) -> ReliefPlanItem:
    plan, whole, verdict = logged.plan, logged.of_plan, logged.verdict
    assert plan is not None
    until = time_or_none(plan.valid_until)
    waiting = plan.waiting
    return ReliefPlanItem(
        id=plan.id,
        node=plan.node,
        at_seconds=round(logged.at),
        valid_until_seconds=None if until is None else round(until),
        planner=plan.planner,
        strategy=plan.strategy,
        why=plan.why,
        waiting="" if waiting is None else f"{waiting.namespace}/{waiting.name}",
        pods=[_pod(pod, logged) for pod in plan.pods],
        more_pods=logged.more_pods,
        outcome=None if whole is None else whole.outcome,
        error="" if whole is None else whole.error,
        helped=None if verdict is None else verdict.outcome == "done",
        verdict="" if verdict is None else verdict.why,
    )


def _pod(pod: LeavingPod, logged: LoggedPlan) -> PodOfPlan:
    last = logged.of_pods.get(pod.uid)
    return PodOfPlan(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        pod_class=pod.pod_class,
        cpu_millicores=pod.cpu_millicores,
        memory_mebibytes=round(pod.memory_bytes / MEBIBYTE),
        target=pod.target,
        outcome=None if last is None else last.outcome,
        at_seconds=None if last is None else round(last.at),
        error="" if last is None else last.error,
    )
