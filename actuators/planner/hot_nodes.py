"""What the state table says about hot nodes."""

from collections.abc import Mapping

from pipeline.table import Table
from pipeline.topics.alerts import OpenAlert
from pipeline.topics.hot_node_policy import HotNodePolicy

Alerts = Mapping[str, tuple[OpenAlert, ...]]
"""Open alerts by node."""


def open_alerts(table: Table) -> dict[str, tuple[OpenAlert, ...]]:
    """The open alerts of each hot node."""
    return {
        name: records.state.alerts
        for name, records in zip(*table.rows(), strict=True)
        if name and records.node is not None and records.state is not None and records.state.alerts
    }


def urgency(node: str, alerts: tuple[OpenAlert, ...]) -> tuple[bool, str, str]:
    """The order in which hot nodes are relieved: critical alerts first, then the oldest ones."""
    is_critical = any(alert.severity == "critical" for alert in alerts)
    return not is_critical, min(alert.since for alert in alerts), node


def pool_of(table: Table, node: str) -> str:
    """The name of the node's pool, empty if it is unknown or has none."""
    record = table.snapshot(node).node
    return "" if record is None or record.hot_nodes is None else record.hot_nodes.pool


def span_seconds(table: Table, node: str) -> float:
    """The span of usage that decides whether the node is hot."""
    record = table.snapshot(node).node
    policy = HotNodePolicy() if record is None else record.hot_nodes or HotNodePolicy()
    return float(policy.span_seconds)
