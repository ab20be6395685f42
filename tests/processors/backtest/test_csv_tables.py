"""Tables in long form are the traces that they were written from, or are refused by row."""

import io
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRecordError
from pipeline.processors.backtest import sample_grid
from pipeline.processors.backtest.csv_tables import list_tables
from pipeline.processors.backtest.trace import MEBIBYTE, Trace
from pipeline.processors.backtest.trace_tables import read_traces
from tests.processors.backtest.trace_exports import (
    Row,
    content,
    long_placement_rows,
    long_series_rows,
    long_tables,
    random_trace,
)

T0 = 1700000100


def sample(step: int, cpu: float | None, **changes: Any) -> Row:
    row = {
        "series": "a", "time_unix": T0 + 300 * step, "cpu_m": cpu, "mem_mi": None,
        "cpu_request_m": 500.0, "cpu_limit_m": 1000.0, "mem_request_mi": 0.0, "mem_limit_mi": 0.0,
    }  # fmt: skip
    return row | changes


def stay(first: int, end: int, **changes: Any) -> Row:
    row = {
        "scenario": "std", "node": "n", "pod": "p", "series": "a", "start_unix": T0 + 300 * first,
        "end_unix": T0 + 300 * end, "allocatable_m": 8000.0,
    }  # fmt: skip
    return row | changes


USUAL = [sample(0, 1.0), sample(1, 2.0), sample(2, 3.0)]


def traces_of(series: list[Row], placement: list[Row]) -> list[Trace]:
    return read_traces("made", *list_tables(*long_tables(series, placement)))


def refusal(series: list[Row], placement: list[Row]) -> str:
    with pytest.raises(InvalidRecordError) as caught:
        traces_of(series, placement)
    assert caught.value.hint
    return caught.value.message


@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(2, 30),
    step_seconds=st.sampled_from([1, 300, 3600]),
)
def test_trace_written_as_csv_reads_back_equal(seed: int, steps: int, step_seconds: int) -> None:
    random = np.random.default_rng(seed)
    trace = random_trace(random, steps, step_seconds, mixed=True)
    rows = [long_series_rows(trace), long_placement_rows(trace)]
    for each in rows:
        random.shuffle(each)
    written = []
    for table in long_tables(*rows):
        sink = io.BytesIO()
        pyarrow.csv.write_csv(table, sink)
        types = pyarrow.csv.ConvertOptions(
            column_types=table.schema, null_values=[""], strings_can_be_null=True
        )
        written.append(pyarrow.csv.read_csv(io.BytesIO(sink.getvalue()), convert_options=types))
    (back,) = read_traces("made", *list_tables(*written))
    assert content(back) == content(trace, held_steps=3600 // step_seconds)


def test_rows_in_any_order_and_without_some_steps() -> None:
    rows = [
        sample(3, 4.0, mem_mi=7.5, mem_limit_mi=8.0),
        sample(0, 1.0, mem_mi=6.0, mem_limit_mi=8.0),
        sample(1, None, mem_mi=9.0, mem_limit_mi=8.0),
        sample(1, 5.0, series="b"),
    ]
    (trace,) = traces_of(rows, [stay(0, 4), stay(1, 2, series="b", pod="q")])
    assert (trace.step_seconds, trace.steps, trace.start_seconds) == (300, 4, T0)
    # Gaps of up to an hour are held.
    assert trace.stay_usage(0)[:, 0].tolist() == [1.0, 1.0, 1.0, 4.0]
    assert (trace.stay_usage(0)[:, 1] / MEBIBYTE).tolist() == [6.0, 8.0, 8.0, 7.5]
    assert np.isnan(trace.stay_usage(1)[:, 1]).all()
    assert trace.notes == ()


def test_rows_that_are_missing_for_more_than_an_hour_are_unknown() -> None:
    rows = [sample(0, 1.0), sample(1, 2.0), sample(15, 3.0), sample(16, float("nan"))]
    (trace,) = traces_of(rows, [stay(0, 17)])
    usage = trace.stay_usage(0)[:, 0].tolist()
    assert usage[:14] == [1.0] + [2.0] * 13
    assert np.isnan(usage[14])
    assert usage[15:] == [3.0, 3.0]
    (note,) = trace.notes
    assert note.startswith("cpu is unknown for 0.1 h, in 1 gap of 1 series")


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("series", None, "it has no series"),
        ("time_unix", None, "it has no time_unix"),
        ("time_unix", -1, "time_unix: its time is not from 0 to"),
        ("time_unix", 2**62, "time_unix: its time is not from 0 to"),
        ("time_unix", T0 + 300, "time_unix: its series has a sample at this time already"),
        ("cpu_m", -0.5, "cpu_m is negative or above 1e+09"),
        ("cpu_m", float("inf"), "cpu_m is negative or above 1e+09"),
        ("mem_mi", 1e300, "mem_mi is negative or above 1.1e+12"),
        ("cpu_request_m", None, "it has no cpu_request_m"),
        ("cpu_request_m", float("nan"), "it has no cpu_request_m"),
        ("cpu_request_m", 501.0, "cpu_request_m is not that of an earlier row of the series"),
        ("cpu_limit_m", float("-inf"), "cpu_limit_m is negative or above 1e+09"),
    ],
)
def test_wrong_series_row_is_named(column: str, value: Any, problem: str) -> None:
    rows = [*USUAL[:2], USUAL[2] | {column: value}]
    assert f"series: row 4: {problem}" in refusal(rows, [stay(0, 2)])


def test_times_that_are_not_on_the_grid() -> None:
    rows = [*USUAL, sample(3, 1.0, time_unix=T0 + 1000)]
    assert refusal(rows, [stay(0, 2)]).startswith("series: row 5: time_unix: its time is not a mul")
    problem = refusal(USUAL, [stay(0, 2), stay(0, 2, pod="q", end_unix=T0 + 301)])
    assert problem.startswith("placement: row 3: end_unix is not a multiple of the step, 300 s")
    days = [sample(0, 1.0), sample(1, 1.0, time_unix=T0 + 86_401)]
    assert "samples are 86,401 s or more apart" in refusal(days, [stay(0, 1)])
    assert "no series has two samples" in refusal([sample(0, 1.0)], [stay(0, 1)])


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("pod", None, "placement: row 2: it has no pod"),
        ("end_unix", None, "placement: row 2: it has no end_unix"),
        ("allocatable_m", float("nan"), "placement: row 2: it has no allocatable_m"),
        ("allocatable_m", float("inf"), "placement: 'p': allocatable_m has a value"),
        ("series", "c", "placement of 'std': 'p': its series is not in the table of series"),
        ("start_unix", T0 - 300, "placement: 'p': its stay is not within the 3 steps"),
        ("end_unix", T0, "placement: 'p': its stay has no step"),
    ],
)
def test_wrong_stay_is_named(column: str, value: Any, problem: str) -> None:
    assert problem in refusal(USUAL, [stay(0, 2) | {column: value}])


def test_tables_without_rows() -> None:
    assert refusal([], [stay(0, 2)]) == "series: the table has no rows"
    assert refusal(USUAL, []) == "placement: the table has no rows"


def test_few_rows_do_not_take_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two samples of a series, years apart, are a gap of millions of steps."""
    seconds = [sample(0, 1.0), sample(0, 1.0, time_unix=T0 + 1)]
    late = sample(0, 1.0, time_unix=T0 + 11_000_000)
    assert "or more than 10,000,000 steps" in refusal([*seconds, late], [stay(0, 1)])
    monkeypatch.setattr(sample_grid, "MOST_SAMPLES", 1000)
    hours = [sample(step, 1.0, series=name) for name in "abc" for step in (0, 1, 400)]
    assert "3 series on 401 steps of 300 s have 1,203 samples, more than 1,000" in refusal(
        hours, [stay(0, 1)]
    )
