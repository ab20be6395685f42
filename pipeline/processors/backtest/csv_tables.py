"""The tables of a trace in long form, as of CSV files, to those of `trace_tables`.

A row of `series` is a series at a step, with its requests and limits again; a missing row or amount
is unknown usage. Times are Unix seconds. docs/reference/backtest.md describes the columns.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.backtest.sample_grid import SampleGrid, WrongSampleError, sample_grid
from pipeline.processors.backtest.trace_tables import (
    AMOUNTS,
    WORKLOAD,
    implausible,
    most_plausible,
)

_NAME: Final = pa.dictionary(pa.int32(), pa.string())
_SAMPLES: Final = ("cpu_m", "mem_mi")
LONG_SERIES_TYPES: Final = {
    "series": _NAME,
    "time_unix": pa.int64(),
    **dict.fromkeys((*_SAMPLES, *AMOUNTS), pa.float64()),
}
LONG_PLACEMENT_TYPES: Final = {
    "scenario": pa.string(),
    "node": pa.string(),
    "pod": pa.string(),
    "series": pa.string(),
    "start_unix": pa.int64(),
    "end_unix": pa.int64(),
    "allocatable_m": pa.float64(),
    WORKLOAD: pa.string(),
}
_HINT: Final = "docs/reference/backtest.md has the columns"
_FIRST_ROW: Final = 2
"""Row 1 of a file is its header."""


class ListTables(NamedTuple):
    """The tables that `read_traces` reads."""

    series: pa.Table
    placement: pa.Table


def list_tables(series: pa.Table, placement: pa.Table) -> ListTables:
    """Convert tables with the columns of `LONG_SERIES_TYPES` and `LONG_PLACEMENT_TYPES`.

    Raises InvalidRecordError, which names table, row and column. What it does not check here,
    `read_traces` does.
    """
    for name, table in (("series", series), ("placement", placement)):
        if not len(table):
            raise InvalidRecordError(f"{name}: the table has no rows", hint=_HINT)
        for column in table.column_names:
            if column not in (*_SAMPLES, WORKLOAD):
                missing = table[column].is_null(nan_is_null=True).to_numpy()
                _refuse(name, missing, f"it has no {column}")
    names, owner = _owners(series)
    try:
        grid = sample_grid(owner, series["time_unix"].to_numpy(), len(names))
    except WrongSampleError as error:
        where = f"row {error.sample + _FIRST_ROW}: time_unix"
        raise InvalidRecordError(f"series: {where}: {error.message}", hint=error.hint) from error
    except InvalidRecordError as error:
        raise InvalidRecordError(f"series: {error.message}", hint=error.hint) from error
    metadata = {
        "step_s": str(grid.step_seconds),
        "steps": str(grid.steps),
        "t0_unix": str(grid.start_seconds),
    }
    return ListTables(
        _listed_series(series, names, owner, grid).replace_schema_metadata(metadata),
        _stepped_placement(placement, grid).replace_schema_metadata(metadata),
    )


def _owners(series: pa.Table) -> tuple[npt.NDArray[Any], IntArray]:
    """The names of all series, ascending, and the series of each row."""
    column = series["series"].unify_dictionaries().combine_chunks()
    given = np.array(column.dictionary.to_pylist(), object)
    names, place = np.unique(given, return_inverse=True)
    return names, place.astype(np.int64)[column.indices.to_numpy()]


def _listed_series(
    series: pa.Table, names: npt.NDArray[Any], owner: IntArray, grid: SampleGrid
) -> pa.Table:
    columns = {"series": pa.array(names, pa.string()), "start": grid.first_step}
    first_row = np.zeros(len(names), np.int64)
    first_row[owner[::-1]] = np.arange(len(owner))[::-1]
    for column in (*AMOUNTS, *_SAMPLES):
        values = series[column].to_numpy()  # a missing amount becomes NaN
        problem = f"{column} is negative or above {most_plausible(column):.4g}"
        _refuse("series", implausible(column, values), problem)
        if column in AMOUNTS:
            same = values[first_row]
            problem = f"{column} is not that of an earlier row of the series"
            _refuse("series", values != same[owner], problem)
            columns[column] = same
        else:
            is_absent = np.zeros(len(names), np.bool_)
            if column == "mem_mi":
                is_absent = columns["mem_limit_mi"] == 0.0
                is_absent[owner[~np.isnan(values)]] = False
            columns[column] = _lists(values, is_absent, grid)
    return pa.table(columns)


def _lists(values: FloatArray, is_absent: BoolArray, grid: SampleGrid) -> pa.Array:
    """The samples of each series, NaN in gaps; null for series without the resource."""
    offsets = np.concatenate([[0], np.cumsum(grid.lengths)])
    return pa.LargeListArray.from_arrays(offsets, grid.spread(values), mask=pa.array(is_absent))


def _stepped_placement(placement: pa.Table, grid: SampleGrid) -> pa.Table:
    columns = {name: placement[name] for name in placement.column_names}
    if WORKLOAD in columns:
        columns[WORKLOAD] = columns[WORKLOAD].fill_null("")
    for column, stepped in (("start_unix", "start"), ("end_unix", "end")):
        seconds = columns.pop(column).to_numpy()
        problem = (
            f"{column} is not a multiple of the step, {grid.step_seconds} s, after the first "
            f"time_unix, {grid.start_seconds}"
        )
        _refuse("placement", (seconds - grid.start_seconds) % grid.step_seconds != 0, problem)
        columns[stepped] = pa.array((seconds - grid.start_seconds) // grid.step_seconds)
    return pa.table(columns)


def _refuse(table: str, wrong: BoolArray, problem: str) -> None:
    """Raise InvalidRecordError if any row is `wrong`, naming the first."""
    if wrong.any():
        row = int(wrong.argmax()) + _FIRST_ROW
        raise InvalidRecordError(f"{table}: row {row}: {problem}", hint=_HINT)
