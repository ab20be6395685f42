"""Tables that are no trace are refused, with table, row and column."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRecordError
from pipeline.processors.backtest.trace import MEBIBYTE
from pipeline.processors.backtest.trace_tables import read_traces
from pipeline.processors.backtest.usage_gaps import hold_samples
from tests.processors.backtest.reference_protocol import held
from tests.processors.backtest.trace_files import (
    METADATA,
    PLACEMENT,
    SERIES,
    series_row,
    stay_row,
    table_of,
)

USUAL = series_row("a", [1, 2, 3, 4], start=10)
STAY = stay_row("pod", "a", 10, 14)


def refusal(series: pa.Table, placement: pa.Table) -> str:
    with pytest.raises(InvalidRecordError) as caught:
        read_traces("made", series, placement)
    assert caught.value.hint
    return caught.value.message


def series_refusal(**changes: Any) -> str:
    return refusal(table_of([USUAL | changes], SERIES), table_of([STAY], PLACEMENT))


def stay_refusal(*rows: Any) -> str:
    return refusal(table_of([USUAL], SERIES), table_of(rows, PLACEMENT))


def test_stay_reads_the_usage_of_its_series() -> None:
    series = [series_row("b", [9, 9]), USUAL | {"mem_mi": [5, 6, 7, 8], "mem_limit_mi": 7}]
    stays = [stay_row("pod", "a", 11, 13), stay_row("b", "b", 0, 2, node="a-node")]
    (trace,) = read_traces("made", table_of(series, SERIES), table_of(stays, PLACEMENT))
    assert trace.nodes == ("a-node", "node-0")
    assert trace.pods == ("b", "pod")
    assert trace.stay_usage(1).tolist() == [[2.0, 6 * MEBIBYTE], [3.0, 7 * MEBIBYTE]]
    assert np.isnan(trace.stay_usage(0)[:, 1]).all()
    assert trace.resources == ("cpu", "memory")
    assert (trace.steps, trace.step_seconds, trace.start_seconds) == (40, 300, 1700000100)
    assert trace.allocatable[:, 0].tolist() == [8000.0, 8000.0]


def test_each_scenario_is_a_trace() -> None:
    stays = [STAY, stay_row("pod", "a", 10, 12, scenario="dense")]
    traces = read_traces("made", table_of([USUAL], SERIES), table_of(stays, PLACEMENT))
    assert [(trace.scenario, trace.end.tolist()) for trace in traces] == [
        ("dense", [12]), ("std", [14]),
    ]  # fmt: skip


@pytest.mark.parametrize("column", SERIES)
def test_missing_column_of_series(column: str) -> None:
    table = table_of([USUAL], SERIES).drop_columns([column])
    assert refusal(table, table_of([STAY], PLACEMENT)) == f"series: no column {column}"


@pytest.mark.parametrize("column", PLACEMENT)
def test_missing_column_of_placement(column: str) -> None:
    table = table_of([STAY], PLACEMENT).drop_columns([column])
    assert refusal(table_of([USUAL], SERIES), table) == f"placement: no column {column}"


def test_column_twice() -> None:
    table = table_of([USUAL], SERIES)
    table = table.append_column("start", table["start"])
    assert refusal(table, table_of([STAY], PLACEMENT)) == "series: two columns start"


@pytest.mark.parametrize("key", ["step_s", "steps", "t0_unix"])
@pytest.mark.parametrize("value", ["", "-1", "five", "1e3", "9" * 30, "²", "1_0"])
def test_invalid_metadata(key: str, value: str) -> None:
    metadata = METADATA | {key: value}
    tables = table_of([USUAL], SERIES, metadata), table_of([STAY], PLACEMENT, metadata)
    assert f"series: {key} of the file's metadata is" in refusal(*tables)


def test_metadata_of_the_two_files_differ() -> None:
    placement = table_of([STAY], PLACEMENT, METADATA | {"steps": "41"})
    assert "have different steps" in refusal(table_of([USUAL], SERIES), placement)


def test_no_metadata() -> None:
    table = table_of([USUAL], SERIES).replace_schema_metadata(None)
    assert "step_s of the file's metadata is ''" in refusal(table, table_of([STAY], PLACEMENT))


def test_tables_without_rows() -> None:
    assert refusal(table_of([], SERIES), table_of([STAY], PLACEMENT)).endswith("no rows")
    assert refusal(table_of([USUAL], SERIES), table_of([], PLACEMENT)).endswith("no rows")


@pytest.mark.parametrize("column", [name for name in SERIES if name != "mem_mi"])
def test_missing_value_of_series(column: str) -> None:
    assert series_refusal(**{column: None}) == f"series: row 0 has no {column}"


@pytest.mark.parametrize("column", PLACEMENT)
def test_missing_value_of_placement(column: str) -> None:
    assert stay_refusal(STAY, STAY | {column: None}) == f"placement: row 1 has no {column}"


@pytest.mark.parametrize(
    ("column", "value"),
    [("cpu_m", -1), ("cpu_m", 2**31 - 1), ("mem_mi", -1)],
)
def test_invalid_sample(column: str, value: int) -> None:
    changes = {"mem_mi": [1, 2, 3, 4], "mem_limit_mi": 9} | {column: [1, 2, 3, value]}
    assert f"'a': {column} has a value that is negative or above" in series_refusal(**changes)


@pytest.mark.parametrize("column", ["cpu_m", "mem_mi"])
def test_missing_sample_is_held_for_an_hour_and_then_unknown(column: str) -> None:
    samples = [None, 2, *[None] * 13, 4]
    changes = {"cpu_m": [1] * 16, "mem_mi": [1] * 16, "mem_limit_mi": 9} | {column: samples}
    series = table_of([USUAL | changes], SERIES)
    (trace,) = read_traces("made", series, table_of([STAY | {"end": 26}], PLACEMENT))
    usage = trace.stay_usage(0)[:, ["cpu_m", "mem_mi"].index(column)]
    assert np.flatnonzero(np.isnan(usage)).tolist() == [0, 14]
    assert (usage[1:14] == usage[1]).all()
    assert usage[15] == 2 * usage[1]
    resource = {"cpu_m": "cpu", "mem_mi": "memory"}[column]
    (note,) = trace.notes
    assert note == f"{resource} is unknown for 0.2 h, in 2 gaps of 1 series"


@given(
    seed=st.integers(0, 2**32), step_seconds=st.sampled_from([300, 900, 3600, 7200]),
)  # fmt: skip
def test_samples_are_held_as_by_the_slow_rule(seed: int, step_seconds: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 30, 4)
    series = [random.integers(0, 9, length).astype(float) for length in lengths]
    for values in series:
        values[random.random(len(values)) < random.random()] = np.nan
    found = hold_samples(np.concatenate(series), lengths, step_seconds)
    listed = [[None if np.isnan(v) else int(v) for v in values] for values in series]
    expected = [v for values in listed for v in held(values, 3600 // step_seconds)]
    assert [None if np.isnan(v) else int(v) for v in found] == expected


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.5, 1e300])
@pytest.mark.parametrize(
    "column", ["cpu_request_m", "cpu_limit_m", "mem_request_mi", "mem_limit_mi"]
)
def test_invalid_amount(column: str, value: float) -> None:
    types = SERIES | {column: pa.float64()}
    table = table_of([USUAL | {column: value}], types)
    assert f"'a': {column} has a value" in refusal(table, table_of([STAY], PLACEMENT))


def test_samples_may_be_fractions() -> None:
    types = SERIES | {"cpu_m": pa.list_(pa.float32())}
    table = table_of([USUAL | {"cpu_m": [0.5, 1.5, 2.5, 3.5]}], types)
    (trace,) = read_traces("made", table, table_of([STAY], PLACEMENT))
    assert trace.stay_usage(0)[:, 0].tolist() == [0.5, 1.5, 2.5, 3.5]


def test_samples_that_are_no_numbers() -> None:
    table = table_of([USUAL | {"cpu_m": ["x"]}], SERIES | {"cpu_m": pa.list_(pa.string())})
    assert refusal(table, table_of([STAY], PLACEMENT)).startswith("series: cpu_m: ")


@pytest.mark.parametrize("start", [-1, 37, 2**31 - 1])
def test_series_outside_of_the_steps(start: int) -> None:
    assert series_refusal(start=start) == "series: 'a': its samples are not within the 40 steps"


def test_series_that_is_inconsistent() -> None:
    memory = {"mem_mi": [1, 2, 3], "mem_limit_mi": 9}
    assert series_refusal(**memory) == "series: 'a': cpu_m and mem_mi differ in length"
    assert series_refusal(mem_limit_mi=9) == "series: 'a': it has a limit and no mem_mi"
    assert series_refusal(mem_mi=[1] * 4) == "series: 'a': it has mem_mi and no limit for it"
    assert series_refusal(cpu_m=[]) == "series: 'a': cpu_m has no sample"
    assert series_refusal(cpu_request_m=1001) == "series: 'a': a request is above its limit"
    twice = table_of([USUAL, USUAL], SERIES)
    assert refusal(twice, table_of([STAY], PLACEMENT)) == "series: 'a' has 2 rows"


def test_stay_that_is_not_possible() -> None:
    def changed(**changes: Any) -> str:
        return stay_refusal(STAY | changes)

    assert changed(series="b") == (
        "placement of 'std': 'pod': its series is not in the table of series"
    )
    assert changed(end=10) == "placement: 'pod': its stay has no step: start is not before end"
    assert changed(end=41) == "placement: 'pod': its stay is not within the 40 steps"
    assert changed(start=-1) == "placement: 'pod': its stay is not within the 40 steps"
    without = "placement of 'std': 'pod': its series has no samples for a part of its stay"
    assert changed(start=9) == without
    assert changed(end=15) == without
    assert changed(allocatable_m=-1).startswith("placement: 'pod': allocatable_m has a value")


def test_pod_at_two_places() -> None:
    overlap = "placement of 'std': 'pod': two of its stays overlap"
    assert stay_refusal(STAY, STAY) == overlap
    assert stay_refusal(STAY, STAY | {"node": "node-1", "start": 13}) == overlap
