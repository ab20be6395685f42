"""The table on the metrics page: how many nodes, how old, how far behind its topics."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.clock import Clock
from pipeline.metrics import NAMESPACE, REGISTRY
from pipeline.processors.model.usage_anomalies import ODDITIES
from pipeline.table.node_anomalies import odd
from pipeline.table.node_documents import LimitsRatio, limits_ratios
from pipeline.table.state_table import Table
from pipeline.table.table_feed import FeedState


class _Watched(NamedTuple):
    table: Table
    state: FeedState
    clock: Clock
    stale_after_seconds: float


class _TableCollector(Collector):
    """Reads the table when the page is asked for; nothing is counted twice."""

    watched: _Watched | None = None

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        if self.watched is None:
            return
        table, state, clock, stale_after = self.watched
        rows = table.lookup(list(table))
        ages = table.ages(rows, clock.now())
        known = ages[~np.isnan(ages)]
        contact = np.nan if state.contact is None else clock.now() - state.contact
        stale = len(ages) - int(table.fresh(rows, clock.now(), stale_after).sum())
        youngest, oldest = (known.min(), known.max()) if known.size else (np.nan, np.nan)
        unusable = table["unusable_thresholds"].sum()
        behind = np.nan if state.lag_records is None else state.lag_records
        for name, value, documentation in (
            ("nodes", len(table), "Nodes in the table."),
            ("stale_nodes", stale, "Nodes without a window that is young enough to be judged."),
            ("newest_window_age_seconds", youngest, "Age of the youngest window in the table."),
            ("oldest_window_age_seconds", oldest, "Age of the oldest window in the table."),
            ("lag_records", behind, "Records of the topics that are not in the table yet."),
            ("contact_age_seconds", contact, "Seconds since the broker last answered."),
            ("unusable_threshold_nodes", unusable, "Nodes whose own thresholds are not all used."),
            ("pods", len(table.pods), "Pods on nodes of the table."),
            ("pods_in_flight", table.pods.in_flight, "Pods that are not in their node's usage."),
            ("pods_placed", table.pods.tentative, "Pods that were placed, and not seen there yet."),
            ("connected", state.connected, "1 if the broker answers."),
            ("caught_up", state.caught_up, "1 if all that lay in the topics at start was read."),
        ):
            yield GaugeMetricFamily(f"{NAMESPACE}_table_{name}", documentation, float(value))
        yield from _work(table)
        yield _promised(table)
        yield _odd(table, clock.now(), stale_after)
        yield _records(state)
        bad = CounterMetricFamily(
            f"{NAMESPACE}_table_bad_records", "Records refused, by reason.", labels=["reason"]
        )
        for reason, count in sorted(state.bad.items()):
            bad.add_metric([reason], count)
        yield bad


def _work(table: Table) -> Iterator[Metric]:
    """What pods cost: so much for each that comes or goes, and nothing for a question."""
    for name, count, documentation in (
        ("pod_events", table.pod_events, "Pods that came, changed, went or were placed."),
        ("recomputed_rows", table.recomputed_rows,
         "Nodes of which it was worked out anew what is in flight: their pods or usage changed."),
    ):  # fmt: skip
        yield CounterMetricFamily(f"{NAMESPACE}_table_{name}", documentation, float(count))


def _promised(table: Table) -> Metric:
    """How far limits go beyond what is there: seldom in line with requests, and told nowhere."""
    found = GaugeMetricFamily(
        f"{NAMESPACE}_table_limits_ratio",
        "Limits of a node's pods over its allocatable: the middle node, one of ten, the highest.",
        labels=["resource", "quantile"],
    )
    each = limits_ratios(table, list(table)).values()
    for resource in LimitsRatio.__struct_fields__:
        ratios = [ratio for one in each if (ratio := getattr(one, resource)) is not None]
        for quantile in (0.5, 0.9, 1.0) if ratios else ():
            value = float(np.quantile(ratios, quantile))
            found.add_metric([resource, f"{quantile:g}"], value)
    return found


def _odd(table: Table, now: float, stale_after: float) -> Metric:
    found = GaugeMetricFamily(
        f"{NAMESPACE}_table_odd_nodes",
        "Nodes whose usage is odd: "
        + ", ".join(f"{name}: {what}" for name, what in ODDITIES.items()),
        labels=["oddity"],
    )
    for name, where in odd(table, table.lookup(list(table)), now, stale_after).items():
        found.add_metric([name], float(where.sum()))
    return found


def _records(state: FeedState) -> Metric:
    records = CounterMetricFamily(
        f"{NAMESPACE}_table_records", "Records read: applied, older.", labels=["outcome"]
    )
    records.add_metric(["applied"], state.applied)
    records.add_metric(["older"], state.older)
    return records


_COLLECTOR = _TableCollector()
REGISTRY.register(_COLLECTOR)


def watch(table: Table, state: FeedState, clock: Clock, stale_after_seconds: float) -> None:
    """Show this table on the metrics page of the process, in place of one shown before."""
    _COLLECTOR.watched = _Watched(table, state, clock, stale_after_seconds)
