"""`springtide.alerts`: changes of the alerts of hot nodes, keyed by node or pool.

The model agent writes a record when an alert opens, becomes critical, is critical no more, or
closes. An alert is named by its `id`; its newest record, by generation and offset, is its state.
After a failure records may be written again: a repeat has the id, generation and offset of the
first, and changes nothing. The alerts that are open now are also in the newest node state of the
node: an alert that is not there is over, even if retention or a lost log took the record of its
end.

The planner writes alerts about hot nodes that it cannot relieve, and about pools and workloads
whose level of usage changed. It repeats the newest record of
each alert that is open every `REPEAT_SECONDS`: one that was not repeated for `FORGOTTEN_SECONDS`
is over. An alert about a pool has no node, and the pool as its key; one about a
workload has the workload as its key.
"""

from typing import Final, Literal, get_args

import msgspec

from pipeline.topics.result_header import Result, check_time

Rule = Literal["node_cpu", "node_memory", "prod_cpu", "prod_memory"]
ReliefRule = Literal["all_nodes_hot", "nothing_can_be_done", "plans_do_not_help"]
LevelRule = Literal[
    "pool_cpu_level", "pool_memory_level", "workload_cpu_level", "workload_memory_level"
]
Severity = Literal["warning", "critical"]
Transition = Literal["opened", "escalated", "eased", "closed"]
CloseReason = Literal[
    "cooled", "policy", "new machine", "node deleted", "planned", "returned", "learned"
]

RULES: Final[tuple[Rule, ...]] = get_args(Rule)
"""The rules: usage of the node, and of its Prod pods, each of cpu and memory."""
RELIEF_RULES: Final[tuple[ReliefRule, ...]] = get_args(ReliefRule)
"""The rules of the planner: no node of a pool can take pods, no pod of a hot node can leave, or
plans for a pool are paused."""
LEVEL_RULES: Final[tuple[LevelRule, ...]] = get_args(LevelRule)
"""The rules of the planner about usage whose level changed: of a pool's nodes, or of a workload's
pods."""
PLANNER_RULES: Final = (*RELIEF_RULES, *LEVEL_RULES)
REPEAT_SECONDS: Final = 1800.0
FORGOTTEN_SECONDS: Final = 7200.0
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the last window in which tasks of the node stalled, 0 to 1; null is unknown.

    cpu_some: Some task waited for CPU.
    memory_some: Some task waited for memory.
    memory_full: All tasks waited for memory.
    io_some: Some task waited for disks.
    io_full: All tasks waited for disks.
    """

    cpu_some: float | None = None
    memory_some: float | None = None
    memory_full: float | None = None
    io_some: float | None = None
    io_full: float | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers on which a change of an alert rests. Percents are of allocatable before
    amplification; null is unknown.

    usage: The usage that is compared: average, p50, p90, p95, p99 or peak; empty where the node
      has no policy any more.
    span_seconds: Span of the average or percentile.
    usage_percent: The usage.
    threshold_percent: Usage above it is hot.
    critical_percent: Usage above it is critical.
    pool_mean_percent: Mean usage of the node's pool, if the threshold is a distance from it.
    series: The usage in percent at the end of each of the last windows, newest last.
    pressure: Pressure of the node in the last window; null if it is not measured.
    """

    usage: str = ""
    span_seconds: int = 0
    usage_percent: float | None = None
    threshold_percent: float | None = None
    critical_percent: float | None = None
    pool_mean_percent: float | None = None
    series: tuple[float | None, ...] = ()
    pressure: Pressure | None = None


class LevelChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the level of usage: of the nodes of a pool as a share of their allocatable, or of
    a pod of a workload in cores or bytes.

    since: Begin of the first hour on the new level, RFC 3339, UTC.
    before: Mean usage in the same hours of the day before.
    after: Mean usage since then, over a day at most.
    detector: The rule that found it.
    """

    since: str
    before: float
    after: float
    detector: str

    def __post_init__(self) -> None:
        check_time("since", self.since)


class AlertRecord(Result, frozen=True, kw_only=True):
    """A change of an alert with the window that ended at `as_of`.

    id: Node, rule, and end of the window that opened the alert.
    rule: What is hot: node_cpu, node_memory, prod_cpu or prod_memory. Or what the planner cannot
      do: all_nodes_hot (no node of the pool can take pods), nothing_can_be_done (no pod of the hot
      node can leave it) or plans_do_not_help (plans for the pool are paused). Or whose usage
      changed its level: pool_cpu_level, pool_memory_level, workload_cpu_level or
      workload_memory_level.
    transition: opened, escalated (to critical), eased (to warning) or closed.
    severity: Severity after the change; of a closed alert, the last one.
    since: End of the window that opened the alert, RFC 3339, UTC.
    duration_seconds: How long the alert has been open.
    reason: Why it was closed: cooled, policy (the threshold was removed), new machine (another one
      took the node's name), node deleted, planned (there is a plan again), returned (usage is
      back on its former level) or learned (the change is 26 hours old); null for other changes.
    pool: The node pool whose thresholds apply, or in which most pods of the workload are.
    workload: The workload of an alert about its usage, as kind/namespace/name.
    evidence: The numbers on which the change rests.
    change: How the level of usage changed; null for other alerts.
    why: Why the planner can do nothing, or what changed; empty for alerts about usage.
    """

    id: str
    rule: Rule | ReliefRule | LevelRule
    transition: Transition
    severity: Severity
    since: str
    duration_seconds: float
    reason: CloseReason | None = None
    pool: str = ""
    workload: str = ""
    evidence: Evidence = Evidence()
    change: LevelChange | None = None
    why: str = ""

    @property
    def crossed_percent(self) -> float | None:
        """The threshold that the change is about: of an alert that became critical, was opened as
        critical, or is critical no more, the critical one."""
        is_critical = self.transition != "closed" and self.severity == "critical"
        if is_critical or self.transition == "eased":
            critical = self.evidence.critical_percent
            return self.evidence.threshold_percent if critical is None else critical
        return self.evidence.threshold_percent

    def __post_init__(self) -> None:
        Result.__post_init__(self)
        check_time("since", self.since)


class OpenAlert(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An alert that is open, in the node state of its node. Raises `ValueError` for a `since` that
    is not a time.

    rule: What is hot: node_cpu, node_memory, prod_cpu or prod_memory.
    severity: warning or critical.
    since: End of the window that opened the alert.
    usage_percent: The compared usage in percent of allocatable without the reservation; null is
      unknown.
    threshold_percent: Usage above it is hot; null is unknown.
    """

    rule: Rule
    severity: Severity
    since: str
    usage_percent: float | None = None
    threshold_percent: float | None = None

    @property
    def severity_percent(self) -> float | None:
        """Usage above it has the severity of the alert; None is unknown."""
        threshold = self.threshold_percent
        if threshold is None or self.severity == "warning":
            return threshold
        return critical_percent(threshold)

    def __post_init__(self) -> None:
        check_time("since", self.since)


def critical_percent(threshold_percent: float) -> float:
    """Usage above it is critical: the middle between the threshold and 100%, and a threshold from
    there on itself."""
    return max(threshold_percent, (threshold_percent + 100.0) / 2.0)


def calm_percent(threshold_percent: float, hysteresis_percent: float) -> float:
    """Usage up to it lets an alert close: so many points below the threshold, but not below half of
    it, because an alert of a low threshold must be able to close."""
    return max(threshold_percent - hysteresis_percent, threshold_percent / 2.0)


def alert_id(node: str, rule: str, since: str) -> str:
    """The id of an alert of `node` that opened at `since` (RFC 3339, UTC)."""
    return f"{node}/{rule}/{since}"
