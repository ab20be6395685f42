"""The table as load-watcher's document, so that Trimaran's plugins run on our numbers unchanged.

A node is in it that was heard of lately: the plugins look at no age themselves, and would go by the
last load of a dead one for ever. `watched` takes one moment of the table, `Watched.document` makes
of that what is sent, which for thousands of nodes takes a while: it may be done elsewhere.
"""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.exchange.load_watcher_document import (
    AVERAGE,
    DEVIATION,
    LATEST,
    WINDOWS,
    Document,
    Metadata,
    Metric,
    NodeMetrics,
    document,
    metric,
    served_window,
)
from pipeline.processors.loadaware.usage_thresholds import usage_percent
from pipeline.table.state_table import RowArray, Table
from pipeline.topics.node_state import AGGREGATED

SOURCE: Final = "springtide"

_TYPES: Final = {"CPU": "cpu_cores", "Memory": "memory_bytes"}
_PERCENTILES: Final = ("p50", "p90", "p95", "p99")
_DATA_CENTER: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")


class _Values(NamedTuple):
    """One metric of all nodes, in percent."""

    type: str
    operator: str
    rollup: str
    percents: list[float]


class Watched(NamedTuple):
    """What the table said of these nodes at `now`, over the window that is served."""

    names: list[str]
    labels: list[dict[str, str]]
    values: list[_Values]
    window: str
    end: int
    now: int

    def document(self) -> Document:
        """What load-watcher would say of them."""
        nodes = {
            name: NodeMetrics(
                metrics=tuple(self._metrics(place)),
                tags=labels,
                metadata=Metadata(data_center=_data_center(labels)),
            )
            for place, (name, labels) in enumerate(zip(self.names, self.labels, strict=True))
        }
        return document(nodes, self.window, self.end, self.now, SOURCE)

    def _metrics(self, place: int) -> Iterator[Metric]:
        for type, operator, rollup, percents in self.values:
            found = metric(type, operator, rollup, percents[place], name=type.lower())
            if found is not None:
                yield found


def watched(
    table: Table,
    now: float,
    stale_after_seconds: float,
    *,
    host: str = "",
    window: str = "15m",
) -> Watched | None:
    """The nodes over `window`, or the next shorter one that they have data of; one node, if `host`
    names it. None where there is nothing to be told: of that node, or of any."""
    names = [host] if host else list(table)
    rows = table.lookup(names)
    fresh = table.fresh(rows, now, stale_after_seconds)
    names, rows = [name for name, young in zip(names, fresh, strict=True) if young], rows[fresh]
    if not names:
        return None
    known = (span for span in WINDOWS if _has_any(table, rows, span))
    served = served_window(window, known)
    return Watched(
        names=names,
        labels=[_labels(table, name) for name in names],
        values=[*_values(table, rows, served)],
        window=served or window,
        end=int(table["as_of_seconds"][rows].max()),
        now=int(now),
    )


def _has_any(table: Table, rows: RowArray, span: str) -> bool:
    return bool(np.isfinite(table[f"usage_mean_{span}_cpu_cores"][rows]).any())


def _values(table: Table, rows: RowArray, span: str | None) -> Iterator[_Values]:
    for type, unit in _TYPES.items():
        latest = _percents(table, rows, "usage", unit)
        if span is None:
            yield _Values(type, LATEST, "", latest)
            continue
        averages = _percents(table, rows, f"usage_mean_{span}", unit)
        yield _Values(type, AVERAGE, span, averages)
        # A node that is new has no average yet; of one that has both some plugins take the latest.
        both = zip(averages, latest, strict=True)
        rest = [newest if math.isnan(average) else math.nan for average, newest in both]
        yield _Values(type, LATEST, "", rest)
        deviations = _percents(table, rows, f"usage_stdev_{span}", unit)
        yield _Values(type, DEVIATION, span, deviations)
        for rollup, seconds in AGGREGATED.items():
            for name in _PERCENTILES if seconds <= WINDOWS[span] else ():
                percents = _percents(table, rows, f"usage_{name}_{rollup}", unit)
                yield _Values(type, name.upper(), rollup, percents)


def _percents(table: Table, rows: RowArray, column: str, unit: str) -> list[float]:
    capacity = table[f"capacity_{unit}"][rows]
    found: list[float] = usage_percent(table[f"{column}_{unit}"][rows], capacity).tolist()
    return found


def _labels(table: Table, name: str) -> dict[str, str]:
    node = table.snapshot(name).node
    return {} if node is None else node.labels


def _data_center(labels: dict[str, str]) -> str:
    return next((labels[key] for key in _DATA_CENTER if key in labels), "")
