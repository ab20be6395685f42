"""What is wrong with what the table is told of nodes: odd usage, and thresholds of no use.

Owes the rest: one place where it is found, for the metrics page, the query interface and `top`.
Nothing of it is asked for by filter and prioritize.
"""

from collections.abc import Sequence

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray
from pipeline.processors.loadaware.node_thresholds import ANNOTATION
from pipeline.processors.model.usage_anomalies import Told, oddities
from pipeline.table.state_table import RowArray, Table


def odd(
    table: Table, rows: RowArray, now: float, stale_after_seconds: float
) -> dict[str, BoolArray]:
    """By the names of `ODDITIES`, in their order, at which of these rows it is, (rows,)."""

    def both(name: str) -> FloatArray:
        return np.array([table[f"{name}_{unit}"][rows] for unit in ("cpu_cores", "memory_bytes")]).T

    as_of = table["as_of_seconds"][rows]
    told = Told(
        usage=both("usage"),
        mean=both("usage_mean_15m"),
        deviation=both("usage_stdev_15m"),
        capacity=both("capacity"),
        coverage=table["coverage"][rows],
        since_gap_seconds=as_of - table["last_gap_seconds"][rows],
        since_bad_value_seconds=as_of - table["last_bad_value_seconds"][rows],
    )
    return oddities(told, table.fresh(rows, now, stale_after_seconds))


def odd_by_row(
    table: Table, rows: RowArray, now: float, stale_after_seconds: float
) -> list[list[str]]:
    """What is odd about each of these rows, by name, in the order of `ODDITIES`."""
    found: list[list[str]] = [[] for _ in range(len(rows))]
    for name, where in odd(table, rows, now, stale_after_seconds).items():
        for at in np.flatnonzero(where).tolist():
            found[at].append(name)
    return found


def unusable_thresholds(table: Table, names: Sequence[str] | None = None) -> dict[str, str]:
    """The annotation of each of these nodes, or of all, whose own thresholds cannot be used."""
    if not table["unusable_thresholds"].any():
        return {}
    names = tuple(table) if names is None else names
    where = np.flatnonzero(table["unusable_thresholds"][table.lookup(names)])
    records = {names[at]: table.snapshot(names[at]).node for at in where.tolist()}
    return {name: node.annotations[ANNOTATION] for name, node in records.items() if node}
