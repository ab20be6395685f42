"""Show the state table to people: a table that fits a terminal, or plain text for a pipe.

`springtide top` and the demo share it. `pipeline.cli.top_columns` declares the columns.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.table import Table as RichTable
from rich.text import Text

from pipeline.cli.top_columns import COLUMNS, DEFAULT_SORT, SORT_KEYS, NodeRow
from pipeline.processors.accuracy.accuracy_totals import AccuracyTotals, NodeAccuracy
from pipeline.processors.explain.text_columns import align_columns
from pipeline.processors.loadaware.usage_readings import usage_percent
from pipeline.processors.model.pending_peaks import Schedule
from pipeline.table import Table
from pipeline.table.node_anomalies import anomalies_by_row
from pipeline.table.node_documents import NO_FACTS, LimitsRatio, NodeFacts

STALE_AFTER_SECONDS: Final = 180.0

GAP: Final = 2
"""Columns between two columns of a table."""

_UNITS: Final = {"cpu": "cpu_cores", "memory": "memory_bytes"}


class JudgedPeaks(NamedTuple):
    """Judged peaks, one per `interval_seconds` of each node (`model.accuracy_interval_seconds`)."""

    totals: AccuracyTotals
    interval_seconds: float

    def stale_seconds(self, accuracy: NodeAccuracy | None, now: float) -> float:
        """The age of the newest judged peak if two are overdue, else NaN."""
        if accuracy is None:
            return np.nan
        schedule = Schedule.of(self.interval_seconds, accuracy.horizon_seconds)
        age = now - accuracy.judged_until
        return age if age > 2 * schedule.interval_ms / 1000 else np.nan


class NodeLine(NamedTuple):
    """A node with a cell (text, style) for each entry of `COLUMNS`."""

    name: str
    cells: tuple[tuple[str, str], ...]
    is_stale: bool


def node_lines(
    table: Table,
    now: float,
    *,
    sort: str = DEFAULT_SORT,
    stale_after_seconds: float = STALE_AFTER_SECONDS,
    facts: NodeFacts = NO_FACTS,
    judged: JudgedPeaks | None = None,
) -> list[NodeLine]:
    """Return a line per node, sorted as by `sort_rows`."""
    rows = node_rows(table, now, stale_after_seconds, facts, judged)
    return [node_line(row) for row in sort_rows(rows, sort)]


def node_line(row: NodeRow) -> NodeLine:
    """The texts of all columns for a node."""
    return NodeLine(row.name, tuple(column.cell(row) for column in COLUMNS), not row.is_fresh)


def sort_rows(rows: Iterable[NodeRow], sort: str) -> list[NodeRow]:
    """Sort by `SORT_KEYS[sort]`: highest first, unknown last, then by name."""
    sort_value = SORT_KEYS[sort].value

    def order(row: NodeRow) -> tuple[float, str]:
        value = sort_value(row)
        return (math.inf if math.isnan(value) else -value), row.name

    return sorted(rows, key=order)


class _RowValues(Mapping[str, float]):
    """One row of columns. A value is converted when it is read: few of the columns are shown."""

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: Mapping[str, npt.NDArray[Any]], row: int) -> None:
        self._columns = columns
        self._row = row

    def __getitem__(self, name: str) -> float:
        return float(self._columns[name][self._row])

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def node_rows(
    table: Table,
    now: float,
    stale_after_seconds: float,
    facts: NodeFacts,
    judged: JudgedPeaks | None = None,
) -> list[NodeRow]:
    """Return everything that is known of each node of the table, in the table's order."""
    names = list(table)
    rows = table.lookup(names)
    ages = table.ages(rows, now).tolist()
    fresh = table.fresh(rows, now, stale_after_seconds).tolist()
    anomalies = anomalies_by_row(table, rows, now, stale_after_seconds)
    arrays = {column.name: table[column.name][rows] for column in table.columns}
    for kind in ("usage", "peak"):
        for resource, unit in _UNITS.items():
            arrays[f"{kind}_{resource}_percent"] = usage_percent(
                arrays[f"{kind}_{unit}"], arrays[f"allocatable_{unit}"]
            )
    states = [table.snapshot(name).state for name in names]
    accuracies = [
        judged.totals.of_node(state.node, state.predictor) if judged and state else None
        for state in states
    ]
    return [
        NodeRow(
            name,
            _RowValues(arrays, index),
            states[index],
            ages[index],
            fresh[index],
            anomalies[index],
            facts.limits.get(name, LimitsRatio()),
            name in facts.threshold_problems,
            accuracies[index],
            judged.stale_seconds(accuracies[index], now) if judged else np.nan,
        )
        for index, name in enumerate(names)
    ]


def terminal_table(
    lines: Sequence[NodeLine], *, width: int = 200, height: int | None = None, headers: bool = True
) -> RichTable:
    """Return a table with the columns that fit into `width` and the nodes that fit into `height`.

    Columns are dropped by their `drop_order`, equal ones together.
    """
    widths = [
        max(len(column.header), *(len(line.cells[index][0]) for line in lines), 0)
        for index, column in enumerate(COLUMNS)
    ]
    shown = fitting_columns(widths, [column.drop_order for column in COLUMNS], width)
    line_count = len(lines) if height is None else max(1, height - 3)
    rich = RichTable(
        box=None,
        pad_edge=False,
        show_header=headers,
        header_style="bold",
        caption_justify="left",
        caption_style="dim",
    )
    for index in shown:
        rich.add_column(
            COLUMNS[index].header,
            justify="left" if COLUMNS[index].is_left_aligned else "right",
            no_wrap=True,
            overflow="ellipsis",
        )
    for line in lines[:line_count]:
        cells = (Text(*line.cells[index]) for index in shown)
        rich.add_row(*cells, style="dim" * line.is_stale)
    if not lines:
        rich.caption = "no node has published a window yet"
    elif len(lines) > line_count:
        rich.caption = f"and {len(lines) - line_count} more"
    return rich


def plain_text(lines: Sequence[NodeLine], *, headers: bool = True) -> str:
    """Return all columns as text for a pipe, uncut. Spaces in headers become dashes."""
    rows = [[text or "-" for text, _ in line.cells] for line in lines]
    if headers:
        rows.insert(0, [column.header.replace(" ", "-") for column in COLUMNS])
    right = [index for index, column in enumerate(COLUMNS) if not column.is_left_aligned]
    return "".join(f"{line}\n" for line in align_columns(rows, right))


def fitting_columns(widths: Sequence[int], drop_orders: Sequence[int], width: int) -> list[int]:
    """Return the indexes of the columns that fit into `width`, with gaps of `GAP`: columns are
    dropped by their `drop_order`, equal ones together, 0 never."""
    for dropped in range(max(drop_orders) + 1):
        shown = [index for index, order in enumerate(drop_orders) if not 0 < order <= dropped]
        if sum(widths[index] + GAP for index in shown) - GAP <= width:
            break
    return shown
