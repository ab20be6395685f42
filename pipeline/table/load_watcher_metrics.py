"""The table as load-watcher's document, so that Trimaran's plugins run on it unchanged.

Only nodes with a fresh window are in it: the plugins do not look at ages, and would use the last
load of a dead node for ever. `load_snapshot` copies one moment of the table;
`LoadSnapshot.document` makes the document, which takes a while for thousands of nodes and may run
in another thread.
"""

import math
from collections.abc import Iterator
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.exchange.load_watcher_document import (
    AVERAGE,
    DEVIATION,
    LATEST,
    WINDOWS,
    Metadata,
    Metric,
    NodeMetrics,
    WatcherDocument,
    document,
    metric,
    served_window,
)
from pipeline.processors.loadaware.usage_readings import usage_percent
from pipeline.table.node_names import RowArray
from pipeline.table.state_table import Table
from pipeline.topics.node_state import AGGREGATED
from pipeline.topics.resource_amounts import RATES

SOURCE: Final = "springtide"

_TYPES: Final = {"CPU": "cpu_cores", "Memory": "memory_bytes"}
_RATE_TYPES: Final = {
    resource: ("Bandwidth" if "network" in resource else "Storage", resource.rpartition("/")[2])
    for resource in RATES
}
"""Type and name of each rate; Trimaran's plugins ignore these types of load-watcher."""
_RATE_STATISTICS: Final = {AVERAGE: "mean", DEVIATION: "stdev"}
_PERCENTILES: Final = ("p50", "p90", "p95", "p99")
_DATA_CENTER: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")


class _Values(NamedTuple):
    """One metric of all nodes: percent of capacity, or bytes a second."""

    type: str
    operator: str
    rollup: str
    values: list[float]
    name: str


class LoadSnapshot(NamedTuple):
    """Load of nodes at the time `now`, over the window that is served."""

    names: list[str]
    labels: list[dict[str, str]]
    values: list[_Values]
    window: str
    end: int
    now: int

    def document(self) -> WatcherDocument:
        """The document of load-watcher."""
        nodes = {
            name: NodeMetrics(
                metrics=tuple(self._metrics(index)),
                tags=labels,
                metadata=Metadata(
                    data_center=next((labels[key] for key in _DATA_CENTER if key in labels), "")
                ),
            )
            for index, (name, labels) in enumerate(zip(self.names, self.labels, strict=True))
        }
        return document(nodes, self.window, self.end, self.now, SOURCE)

    def _metrics(self, index: int) -> Iterator[Metric]:
        for type, operator, rollup, values, name in self.values:
            value = metric(type, operator, rollup, values[index], name=name)
            if value is not None:
                yield value


def load_snapshot(
    table: Table, now: float, stale_after_seconds: float, *, host: str = "", window: str = "15m"
) -> LoadSnapshot:
    """Load over `window`, or over the next shorter window with data, of nodes with a fresh window;
    of one node, if `host` names it."""
    names = [host] if host else list(table)
    rows = table.lookup(names)
    fresh = table.fresh(rows, now, stale_after_seconds)
    names, rows = (
        [name for name, is_fresh in zip(names, fresh, strict=True) if is_fresh],
        rows[fresh],
    )
    with_data = (span for span in WINDOWS if _has_any(table, rows, span))
    served = served_window(window, with_data)
    return LoadSnapshot(
        names=names,
        labels=[node.labels if (node := table.snapshot(name).node) else {} for name in names],
        values=[*_values(table, rows, served), *_rates(table, rows, served)],
        window=served or window,
        end=int(table["as_of_seconds"][rows].max(initial=0.0)) or int(now),
        now=int(now),
    )


def _has_any(table: Table, rows: RowArray, span: str) -> bool:
    return bool(np.isfinite(table[f"usage_mean_{span}_cpu_cores"][rows]).any())


def _values(table: Table, rows: RowArray, span: str | None) -> Iterator[_Values]:
    for type, unit in _TYPES.items():
        name = type.lower()
        latest = _percents(table, rows, "usage", unit)
        if span is None:
            yield _Values(type, LATEST, "", latest, name)
            continue
        averages = _percents(table, rows, f"usage_mean_{span}", unit)
        yield _Values(type, AVERAGE, span, averages, name)
        # A new node has no average yet; of a node that has both, some plugins take the latest.
        pairs = zip(averages, latest, strict=True)
        rest = [newest if math.isnan(average) else math.nan for average, newest in pairs]
        yield _Values(type, LATEST, "", rest, name)
        deviations = _percents(table, rows, f"usage_stdev_{span}", unit)
        yield _Values(type, DEVIATION, span, deviations, name)
        for rollup, seconds in AGGREGATED.items():
            for percentile in _PERCENTILES if seconds <= WINDOWS[span] else ():
                percents = _percents(table, rows, f"usage_{percentile}_{rollup}", unit)
                yield _Values(type, percentile.upper(), rollup, percents, name)


def _rates(table: Table, rows: RowArray, span: str | None) -> Iterator[_Values]:
    """Network and disk rates in bytes a second, as averages and deviations over the span and all
    shorter ones, and of the last window."""
    spans = () if span is None else [name for name in WINDOWS if WINDOWS[name] <= WINDOWS[span]]
    for resource, (type, name) in _RATE_TYPES.items():
        yield _Values(type, LATEST, "", table[f"usage_{resource}"][rows].tolist(), name)
        for each, (operator, statistic) in product(spans, _RATE_STATISTICS.items()):
            column = table[f"usage_{statistic}_{each}_{resource}"]
            yield _Values(type, operator, each, column[rows].tolist(), name)


def _percents(table: Table, rows: RowArray, column: str, unit: str) -> list[float]:
    capacity = table[f"capacity_{unit}"][rows]
    percents: list[float] = usage_percent(table[f"{column}_{unit}"][rows], capacity).tolist()
    return percents
