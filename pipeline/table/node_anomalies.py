"""Anomalies of usage and invalid thresholds per node.

For the metrics page, the query interface and `springtide top`; filter and prioritize ask for
neither.
"""

from collections.abc import Sequence

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray
from pipeline.processors.loadaware.node_thresholds import ANNOTATION
from pipeline.processors.model.usage_anomalies import ReportedUsage, find_anomalies
from pipeline.table.node_names import RowArray
from pipeline.table.state_table import Table


def anomalies(
    table: Table, rows: RowArray, now: float, stale_after_seconds: float
) -> dict[str, BoolArray]:
    """For each name of `ANOMALIES`, in their order, the rows that have that anomaly, (rows,)."""

    def by_resource(name: str) -> FloatArray:
        columns = [table[f"{name}_{unit}"][rows] for unit in ("cpu_cores", "memory_bytes")]
        return np.array(columns).T

    as_of = table["as_of_seconds"][rows]
    usage = ReportedUsage(
        usage=by_resource("usage"),
        mean=by_resource("usage_mean_15m"),
        deviation=by_resource("usage_stdev_15m"),
        capacity=by_resource("capacity"),
        coverage=table["coverage"][rows],
        since_gap_seconds=as_of - table["last_gap_seconds"][rows],
        since_bad_value_seconds=as_of - table["last_bad_value_seconds"][rows],
        is_disputed=table["disputed"][rows],
    )
    return find_anomalies(usage, table.fresh(rows, now, stale_after_seconds))


def anomalies_by_row(
    table: Table, rows: RowArray, now: float, stale_after_seconds: float
) -> list[list[str]]:
    """The names of the anomalies of each row, in the order of `ANOMALIES`."""
    names: list[list[str]] = [[] for _ in range(len(rows))]
    for name, is_affected in anomalies(table, rows, now, stale_after_seconds).items():
        for index in np.flatnonzero(is_affected).tolist():
            names[index].append(name)
    return names


def invalid_thresholds(table: Table, names: Sequence[str] | None = None) -> dict[str, str]:
    """The annotations with invalid thresholds of these nodes, or of all, by node name."""
    if not table["invalid_thresholds"].any():
        return {}
    names = tuple(table) if names is None else names
    affected = np.flatnonzero(table["invalid_thresholds"][table.lookup(names)])
    records = {names[index]: table.snapshot(names[index]).node for index in affected.tolist()}
    return {name: node.annotations[ANNOTATION] for name, node in records.items() if node}
