"""The alerts of hot nodes in the form of Alertmanager's API, version 2.

Alertmanager identifies an alert by its labels. The severity is one of them, because routes select
by it: an alert that becomes critical is another one there.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from pipeline.times import format_time, parse_time
from pipeline.topics.alerts import LEVEL_RULES, AlertRecord, OpenAlert
from pipeline.topics.node_state import NodeStateRecord

NAME: Final = "SpringtideHotNode"
LEVEL_NAME: Final = "SpringtideLevelChange"
"""The label `alertname`: of alerts about hot nodes, and about levels of usage that changed."""

Labels = tuple[tuple[str, str], ...]
"""Labels in order of their names, which identify an alert."""

_TEXTS: Final = {
    "node_cpu": "CPU of node {node}",
    "node_memory": "Memory of node {node}",
    "prod_cpu": "CPU of the Prod pods of node {node}",
    "prod_memory": "Memory of the Prod pods of node {node}",
}

_RELIEF_TEXTS: Final[Mapping[str, str]] = {
    "all_nodes_hot": "No node of pool {pool} can take pods of its hot nodes",
    "nothing_can_be_done": "Hot node {node} cannot be relieved",
    "plans_do_not_help": "Plans for pool {pool} are paused, because they do not help",
    "pool_cpu_level": "CPU usage of pool {pool} has changed its level",
    "pool_memory_level": "Memory usage of pool {pool} has changed its level",
    "workload_cpu_level": "CPU usage of {workload} has changed its level",
    "workload_memory_level": "Memory usage of {workload} has changed its level",
}


class FiringAlert(NamedTuple):
    """An alert about usage as of the window that ended at `as_of`; or one of the planner, as of its
    newest change."""

    node: str
    alert: OpenAlert | AlertRecord
    as_of: str


class PostedAlert(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An alert in the body of POST /api/v2/alerts. It fires until `ends_at`."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_at: str
    ends_at: str


def firing_alerts(
    states: Iterable[NodeStateRecord], extra: Mapping[str, str]
) -> dict[Labels, FiringAlert]:
    """The open alerts in these node states. Each has the labels `extra`, over which its own go."""
    return {
        _labels(state.node, alert, extra): FiringAlert(state.node, alert, state.as_of)
        for state in states
        for alert in state.alerts
    }


def firing_relief_alerts(
    alerts: Iterable[AlertRecord], extra: Mapping[str, str]
) -> dict[Labels, FiringAlert]:
    """Open alerts of the planner. One about a pool has the label `pool` in place of `node`, one
    about a workload `workload`."""
    return {
        _labels(alert.node, alert, extra): FiringAlert(alert.node, alert, alert.as_of)
        for alert in alerts
    }


def _labels(node: str, alert: OpenAlert | AlertRecord, extra: Mapping[str, str]) -> Labels:
    name = LEVEL_NAME if alert.rule in LEVEL_RULES else NAME
    own = {"alertname": name, "rule": alert.rule, "severity": alert.severity}
    if node or isinstance(alert, OpenAlert):
        own["node"] = node
    elif alert.workload:
        own["workload"] = alert.workload
    else:
        own["pool"] = alert.pool
    return tuple(sorted({**extra, **own}.items()))


def posted_alert(labels: Labels, firing: FiringAlert, ends_at: float) -> PostedAlert:
    """The alert, firing until `ends_at` in seconds since 1970; a time in the past resolves it.

    Alertmanager refuses an end before the start, which the clock of the node may have ahead.
    """
    alert = firing.alert
    texts = _relief_texts(alert) if isinstance(alert, AlertRecord) else _usage_texts(firing, alert)
    return PostedAlert(
        labels=dict(labels),
        annotations=dict(zip(("summary", "description"), texts, strict=True)),
        starts_at=alert.since if parse_time(alert.since) <= ends_at else format_time(ends_at),
        ends_at=format_time(ends_at),
    )


def _usage_texts(firing: FiringAlert, alert: OpenAlert) -> tuple[str, str]:
    node, usage, threshold = firing.node, alert.usage_percent, alert.severity_percent
    usage_text = "unknown" if usage is None else f"{usage:.1f}%"
    limit_text = "critical threshold" if alert.severity == "critical" else "threshold"
    if threshold is not None:
        limit_text += f" of {threshold:g}%"
    return (
        f"{_TEXTS[alert.rule].format(node=node)} is above its {limit_text}",
        f"Usage of allocatable is {usage_text} at {firing.as_of}. "
        f"`springtide explain {node}` derives it.",
    )


def _relief_texts(alert: AlertRecord) -> tuple[str, str]:
    summary = _RELIEF_TEXTS[alert.rule].format(
        node=alert.node, pool=alert.pool, workload=alert.workload
    )
    see = "" if alert.change else " `springtide plan` shows the plan."
    return summary, f"{alert.why}.{see}"
