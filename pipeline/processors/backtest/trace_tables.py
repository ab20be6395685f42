"""Read traces from two tables: usage series, and where pods with this usage ran.

docs/reference/backtest.md describes the columns. Everything is checked before it is used: a value
that is negative, infinite or absurd is an error that names table, row and column, and so is a
missing value, except in samples: a missing sample is unknown.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.backtest.trace import MEBIBYTE, Trace
from pipeline.processors.backtest.usage_gaps import gap_note, hold_samples
from pipeline.processors.model.model_config import RESOURCES

AMOUNTS: Final = ("cpu_request_m", "cpu_limit_m", "mem_request_mi", "mem_limit_mi")
SERIES_TYPES: Final = {
    "series": pa.string(),
    "start": pa.int64(),
    **dict.fromkeys(AMOUNTS, pa.float64()),
    "cpu_m": pa.large_list(pa.float64()),
    "mem_mi": pa.large_list(pa.float64()),
}
PLACEMENT_TYPES: Final = {
    "scenario": pa.string(),
    "node": pa.string(),
    "pod": pa.string(),
    "series": pa.string(),
    "start": pa.int64(),
    "end": pa.int64(),
    "allocatable_m": pa.float64(),
}
WORKLOAD: Final = "workload"
"""A column of placement that need not be there."""
_UNITS: Final = np.array([1.0, MEBIBYTE])
"""Millicores and MiB of the tables to millicores and bytes."""
_MOST: Final = {"cpu": 1e9, "mem": 2.0**40}
"""The largest plausible amounts, millicores and MiB."""
MOST_STEP_SECONDS: Final = 86_400
MOST_STEPS: Final = 10_000_000
MOST_START_SECONDS: Final = 2**35
_HINT: Final = "docs/reference/backtest.md has the columns"


class Grid(NamedTuple):
    """The steps of a data set: their length, number, and the Unix time of the first."""

    step_seconds: int
    steps: int
    start_seconds: int


class _Series(NamedTuple):
    """The columns of s series: `first` (s,) is the first of its samples in `usage` (m, 2).
    `notes` report gaps."""

    names: npt.NDArray[Any]
    start: IntArray
    lengths: IntArray
    first: IntArray
    requests: FloatArray
    limits: FloatArray
    usage: FloatArray
    notes: tuple[str, ...]


def read_traces(dataset: str, series: pa.Table, placement: pa.Table) -> list[Trace]:
    """The trace of each scenario of a data set, by scenario name.

    Raises InvalidRecordError for tables that are not of this form.
    """
    grid = _grid(series, placement)
    table = _typed("series", series, SERIES_TYPES)
    usage = _series(table, grid)
    has_workloads = WORKLOAD in placement.column_names
    types = PLACEMENT_TYPES | ({WORKLOAD: pa.string()} if has_workloads else {})
    stays = _typed("placement", placement, types)
    _check_stays(stays, grid)
    position = {name: number for number, name in enumerate(usage.names.tolist())}
    traces = []
    for scenario in sorted(pc.unique(stays["scenario"]).to_pylist()):
        chosen = stays.filter(pc.equal(stays["scenario"], scenario))
        traces.append(_trace(dataset, scenario, grid, usage, position, chosen))
    return traces


def _grid(series: pa.Table, placement: pa.Table) -> Grid:
    both = [_metadata("series", series), _metadata("placement", placement)]
    if both[0] != both[1]:
        raise InvalidRecordError(
            f"series and placement have different steps: {both[0]} and {both[1]}",
            hint="write step_s, steps and t0_unix alike into the metadata of both files",
        )
    return both[0]


def _metadata(name: str, table: pa.Table) -> Grid:
    metadata = table.schema.metadata or {}
    limits = {
        "step_s": (1, MOST_STEP_SECONDS),
        "steps": (1, MOST_STEPS),
        "t0_unix": (0, MOST_START_SECONDS),
    }
    values = []
    for key, (low, high) in limits.items():
        text = metadata.get(key.encode(), b"").decode(errors="replace")
        # `int` takes more than digits, and any number of them.
        if not (text.isascii() and text.isdigit() and len(text) < 16 and low <= int(text) <= high):
            raise InvalidRecordError(
                f"{name}: {key} of the file's metadata is {text!r:.40}, "
                f"not a whole number from {low} to {high}",
                hint=_HINT,
            )
        values.append(int(text))
    return Grid(*values)


def _typed(name: str, table: pa.Table, types: dict[str, pa.DataType]) -> pa.Table:
    """The columns of these types, without others. Raises InvalidRecordError for a missing column,
    another type, and a missing value anywhere but in `mem_mi`."""
    columns = {}
    for column, kind in types.items():
        if table.column_names.count(column) != 1:
            many = "two columns" if column in table.column_names else "no column"
            raise InvalidRecordError(f"{name}: {many} {column}", hint=_HINT)
        try:
            columns[column] = table.column(column).cast(kind)
        except (pa.ArrowException, ValueError) as error:
            raise InvalidRecordError(f"{name}: {column}: {error!s:.200}", hint=_HINT) from error
        if column != "mem_mi" and columns[column].null_count:
            row = pc.index(columns[column].is_null(), True).as_py()
            raise InvalidRecordError(f"{name}: row {row} has no {column}", hint=_HINT)
    if not len(table):
        raise InvalidRecordError(f"{name}: the table has no rows", hint=_HINT)
    return pa.table(columns).combine_chunks()


def _series(table: pa.Table, grid: Grid) -> _Series:
    names = np.array(table["series"].to_pylist(), object)
    _check_unique("series", names)
    start = table["start"].to_numpy()
    lengths = pc.list_value_length(table["cpu_m"]).to_numpy().astype(np.int64)
    _refuse("series", lengths < 1, "cpu_m has no sample", names)
    outside = (start < 0) | (start > grid.steps - lengths)
    _refuse("series", outside, f"its samples are not within the {grid.steps} steps", names)
    amounts = {name: table[name].to_numpy() for name in AMOUNTS}
    for name, values in amounts.items():
        _check_amounts("series", name, values, names)
    requests = np.stack([amounts["cpu_request_m"], amounts["mem_request_mi"]], axis=1)
    limits = np.stack([amounts["cpu_limit_m"], amounts["mem_limit_mi"]], axis=1)
    excess = requests > limits
    _refuse("series", excess[:, 0] | excess[:, 1], "a request is above its limit", names)
    usage = np.empty((int(lengths.sum()), 2))
    notes = []
    for r, column in enumerate(("cpu_m", "mem_mi")):
        has = limits[:, 1] > 0.0 if r else np.ones(len(table), np.bool_)
        samples = _samples(column, table[column], lengths, has, names)
        usage[:, r] = hold_samples(samples, lengths, grid.step_seconds)
        unknown = np.isnan(usage[:, r]) & (limits[:, r] > 0.0).repeat(lengths)
        notes.append(gap_note(RESOURCES[r], unknown, lengths, grid.step_seconds))
    most = np.where(limits > 0.0, limits, np.nan).repeat(lengths, axis=0)
    usage = np.minimum(usage, most) * _UNITS  # NaN, not 0, of a resource that a series has not
    first = np.cumsum(lengths) - lengths
    return _Series(
        names, start, lengths, first, requests * _UNITS, limits * _UNITS, usage,
        tuple(filter(None, notes)),
    )  # fmt: skip


def _samples(
    column: str,
    lists: pa.ChunkedArray,
    lengths: IntArray,
    has: npt.NDArray[np.bool_],
    names: npt.NDArray[Any],
) -> FloatArray:
    """All samples of a column one after the other, NaN for unknown ones and for series without the
    resource."""
    present = lists.is_valid().to_numpy()
    _refuse("series", present & ~has, f"it has {column} and no limit for it", names)
    _refuse("series", ~present & has, f"it has a limit and no {column}", names)
    counts = np.where(present, pc.list_value_length(lists).fill_null(0).to_numpy(), lengths)
    _refuse("series", counts != lengths, "cpu_m and mem_mi differ in length", names)
    flat = pc.list_flatten(lists)
    owner = np.arange(len(lengths)).repeat(np.where(present, lengths, 0))
    values = flat.cast(pa.float64()).to_numpy()  # a missing sample becomes NaN
    _check_samples("series", column, values, names[owner])
    usage = np.full(int(lengths.sum()), np.nan)
    usage[np.repeat(present, lengths)] = values
    return usage


def _check_stays(stays: pa.Table, grid: Grid) -> None:
    start, end = stays["start"].to_numpy(), stays["end"].to_numpy()
    pods = np.array(stays["pod"].to_pylist(), object)
    _refuse("placement", start >= end, "its stay has no step: start is not before end", pods)
    outside = (start < 0) | (end > grid.steps)
    _refuse("placement", outside, f"its stay is not within the {grid.steps} steps", pods)
    _check_amounts("placement", "allocatable_m", stays["allocatable_m"].to_numpy(), pods)


def _trace(
    dataset: str,
    scenario: str,
    grid: Grid,
    series: _Series,
    position: dict[str, int],
    stays: pa.Table,
) -> Trace:
    where = f"placement of {scenario!r:.40}"
    pods = np.array(stays["pod"].to_pylist(), object)
    nodes, node_index = np.unique(np.array(stays["node"].to_pylist(), object), return_inverse=True)
    start, end = stays["start"].to_numpy(), stays["end"].to_numpy()
    series_index = np.array([position.get(name, -1) for name in stays["series"].to_pylist()])
    _refuse(where, series_index < 0, "its series is not in the table of series", pods)
    begin, length = series.start[series_index], series.lengths[series_index]
    outside = (start < begin) | (end > begin + length)
    _refuse(where, outside, "its series has no samples for a part of its stay", pods)
    _check_overlaps(where, pods, start, end)
    order = np.lexsort((pods.astype(str), start, node_index))
    allocatable = np.full((len(nodes), 2), np.nan)
    allocatable[node_index, 0] = stays["allocatable_m"].to_numpy()
    series_index = series_index[order]
    workloads = stays[WORKLOAD].take(order).to_pylist() if WORKLOAD in stays.column_names else ()
    return Trace(
        dataset=dataset,
        scenario=scenario,
        step_seconds=grid.step_seconds,
        start_seconds=grid.start_seconds,
        steps=grid.steps,
        nodes=tuple(nodes.tolist()),
        allocatable=allocatable,
        pods=tuple(pods[order].tolist()),
        node_index=node_index[order].astype(np.int64),
        start=start[order],
        end=end[order],
        requests=series.requests[series_index],
        limits=series.limits[series_index],
        series=tuple(series.names.tolist()),
        series_index=series_index,
        first_sample=series.first[series_index] + start[order] - series.start[series_index],
        usage=series.usage,
        workloads=tuple(workloads),
        notes=series.notes,
    )


def _check_unique(table: str, names: npt.NDArray[Any]) -> None:
    unique, counts = np.unique(names, return_counts=True)
    if (counts > 1).any():
        twice = unique[counts > 1][0]
        raise InvalidRecordError(f"{table}: {twice!r:.100} has {counts.max()} rows", hint=_HINT)


def _check_overlaps(table: str, pods: npt.NDArray[Any], start: IntArray, end: IntArray) -> None:
    """A pod is in one place at a time: a pod that moves gets another name."""
    order = np.lexsort((start, pods.astype(str)))
    names, begins, ends = pods[order], start[order], end[order]
    overlaps = np.zeros(len(pods), np.bool_)
    overlaps[1:] = (names[1:] == names[:-1]) & (begins[1:] < ends[:-1])
    _refuse(table, overlaps, "two of its stays overlap", names)


def implausible(column: str, values: FloatArray) -> npt.NDArray[np.bool_]:
    """Which samples of a column are negative or absurd; an unknown sample (NaN) is neither."""
    return np.asarray((values < 0.0) | (values > most_plausible(column)))


def most_plausible(column: str) -> float:
    """The largest plausible amount of a column, in its unit."""
    return _MOST["mem" if column.startswith("mem") else "cpu"]


def _check_samples(table: str, column: str, values: FloatArray, owners: npt.NDArray[Any]) -> None:
    problem = f"{column} has a value that is negative or above {most_plausible(column):.4g}"
    _refuse(table, implausible(column, values), problem, owners)


def _check_amounts(table: str, column: str, values: FloatArray, owners: npt.NDArray[Any]) -> None:
    most = most_plausible(column)
    _refuse(
        table,
        ~((values >= 0.0) & (values <= most)),
        f"{column} has a value that is missing, negative or above {most:.4g}",
        owners,
    )


def _refuse(
    table: str, wrong: npt.NDArray[np.bool_], problem: str, owners: npt.NDArray[Any]
) -> None:
    """Raise InvalidRecordError if any row is `wrong`, naming the first and its owner."""
    if wrong.any():
        name = owners[int(wrong.argmax())]
        raise InvalidRecordError(f"{table}: {name!r:.100}: {problem}", hint=_HINT)
