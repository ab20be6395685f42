"""The table on the metrics page: how many nodes, how old, how far behind its topics."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pipeline.clock import Clock
from pipeline.metrics import REGISTRY, scraped_counter, scraped_gauge
from pipeline.processors.model.usage_anomalies import ANOMALIES
from pipeline.table.data_outages import DataOutages
from pipeline.table.node_anomalies import anomalies
from pipeline.table.node_documents import limits_over_allocatable
from pipeline.table.state_table import Table
from pipeline.table.table_feed import FeedState

_STATISTICS: Final = {"median": 0.5, "p90": 0.9, "max": 1.0}

_GAUGES: Final = {
    name: scraped_gauge(f"table_{name}", documentation)
    for name, documentation in (
        ("nodes", "Nodes in the table."),
        ("stale_nodes", "Nodes without a window that is young enough to be judged."),
        ("newest_window_age_seconds", "Age of the youngest window in the table."),
        ("oldest_window_age_seconds", "Age of the oldest window in the table."),
        ("usage_outage_nodes",
         "Nodes that lost their usage together, and are judged by requests alone."),
        ("heartbeat_age_seconds", "Seconds since the last heartbeat of the watcher came."),
        ("incomplete_seconds",
         "Seconds since the watcher last had complete lists of Nodes and Pods."),
        ("lag_records", "Records of the topics that are not in the table yet."),
        ("contact_age_seconds", "Seconds since the broker last answered."),
        ("unusable_threshold_nodes", "Nodes with invalid thresholds of their own."),
        ("pods", "Pods on nodes of the table."),
        ("pods_in_flight", "Pods not yet in the usage of their node."),
        ("pods_placed", "Placed pods whose bind is not seen yet."),
        ("connected", "1 if the broker answers."),
        ("caught_up", "1 if all that lay in the topics at start was read."),
    )
}  # fmt: skip
_POD_EVENTS: Final = scraped_counter(
    "table_pod_events", "Pods that came, changed, left or were placed."
)
_RECOMPUTED_ROWS: Final = scraped_counter(
    "table_recomputed_rows",
    "Nodes whose pods in flight were computed again, because pods or usage changed.",
)
_RECORDS: Final = scraped_counter("table_records", "Records read: applied, older.", ["outcome"])
_LIMITS_RATIO: Final = scraped_gauge(
    "table_limits_ratio",
    "Limits of a node's pods over its allocatable: median, 90th percentile, maximum.",
    # Not `quantile`, which is reserved for summaries.
    ["resource", "statistic"],
)
_ODD_NODES: Final = scraped_gauge(
    "table_odd_nodes",
    "Nodes with an anomaly of their usage: "
    + ", ".join(f"{name}: {text}" for name, text in ANOMALIES.items())
    + ".",
    ["oddity"],
)
_GAUGE_NODES: Final = scraped_gauge(
    "table_extended_resource_nodes",
    "Nodes whose young window has usage of an extended resource that LoadAware may judge.",
    ["resource"],
)


class TableMetrics(NamedTuple):
    """The metrics of one table."""

    table: Table
    state: FeedState
    clock: Clock
    stale_after_seconds: float
    outages: DataOutages

    def collect(self) -> Iterator[Metric]:
        """Read the table."""
        yield from self._gauges()
        yield from self._work()
        yield self._limits_ratios()
        yield self._anomalies()
        yield self._judged_gauges()
        yield from self._records()

    def _gauges(self) -> Iterator[Metric]:
        table, state, now = self.table, self.state, self.clock.now()
        rows = table.known_rows
        ages = table.ages(rows, now)
        known = ages[~np.isnan(ages)]
        youngest, oldest = (known.min(), known.max()) if known.size else (np.nan, np.nan)
        stale = len(ages) - int(table.fresh(rows, now, self.stale_after_seconds).sum())
        contact = np.nan if state.contact is None else now - state.contact
        lag = np.nan if state.lag_records is None else state.lag_records
        outage = self.outages.usage(now)
        beats, is_watched = table.heartbeats, table.is_watched
        invalid = table["invalid_thresholds"].sum()
        values = {
            "nodes": len(table),
            "stale_nodes": stale,
            "newest_window_age_seconds": youngest,
            "oldest_window_age_seconds": oldest,
            "usage_outage_nodes": outage.lost if outage else 0,
            "heartbeat_age_seconds": beats.age(now) if is_watched else np.nan,
            "incomplete_seconds": beats.incomplete_seconds(now) if is_watched else np.nan,
            "lag_records": lag,
            "contact_age_seconds": contact,
            "unusable_threshold_nodes": invalid,
            "pods": len(table.pods),
            "pods_in_flight": table.pods.in_flight,
            "pods_placed": table.pods.tentative,
            "connected": state.connected,
            "caught_up": state.caught_up,
        }
        for name, declared in _GAUGES.items():
            family = declared()
            family.add_metric([], float(values[name]))
            yield family

    def _work(self) -> Iterator[Metric]:
        for declared, count in (
            (_POD_EVENTS, self.table.pod_events),
            (_RECOMPUTED_ROWS, self.table.recomputed_rows),
        ):
            family = declared()
            family.add_metric([], float(count))
            yield family

    def _limits_ratios(self) -> Metric:
        metric = _LIMITS_RATIO()
        for resource, ratios in limits_over_allocatable(self.table, self.table.known_rows).items():
            known = ratios[np.isfinite(ratios)]
            values = np.quantile(known, [*_STATISTICS.values()]).tolist() if known.size else []
            for statistic, value in zip(_STATISTICS, values, strict=False):
                metric.add_metric([resource, statistic], value)
        return metric

    def _anomalies(self) -> Metric:
        metric = _ODD_NODES()
        rows, now = self.table.known_rows, self.clock.now()
        for name, is_affected in anomalies(self.table, rows, now, self.stale_after_seconds).items():
            metric.add_metric([name], float(is_affected.sum()))
        return metric

    def _judged_gauges(self) -> Metric:
        metric = _GAUGE_NODES()
        table, rows = self.table, self.table.known_rows
        fresh = table.fresh(rows, self.clock.now(), self.stale_after_seconds)
        for name in table.gauges:
            known = np.isfinite(table[f"usage_{name}"][rows])
            metric.add_metric([name], float((known & fresh).sum()))
        return metric

    def _records(self) -> Iterator[Metric]:
        records = _RECORDS()
        records.add_metric(["applied"], self.state.applied)
        records.add_metric(["older"], self.state.older)
        yield records


class _TableCollector(Collector):
    metrics: TableMetrics | None = None

    def collect(self) -> Iterator[Metric]:
        return iter(()) if self.metrics is None else self.metrics.collect()


_COLLECTOR = _TableCollector()
REGISTRY.register(_COLLECTOR)


def show_table_metrics(
    table: Table,
    state: FeedState,
    clock: Clock,
    stale_after_seconds: float,
    outages: DataOutages,
) -> None:
    """Show this table on the metrics page of the process, instead of any shown before."""
    _COLLECTOR.metrics = TableMetrics(table, state, clock, stale_after_seconds, outages)
