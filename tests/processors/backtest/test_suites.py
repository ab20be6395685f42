"""Which suites a trace gets, by its name, its length and the options."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import UsageError
from pipeline.processors.backtest.suites import (
    PUBLIC,
    Selection,
    Suite,
    check_suites,
    selected_suites,
    usual_suites,
)
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.trace_tables import read_traces
from tests.processors.backtest.trace_files import (
    PLACEMENT,
    SERIES,
    series_row,
    stay_row,
    table_of,
)


def trace_of(hours: float, dataset: str = "april", scenario: str = "std") -> Trace:
    row = series_row("a", [1, 2], mem_mi=[1, 2], mem_limit_mi=4)
    stay = stay_row("pod", "a", 0, 2)
    (trace,) = read_traces(dataset, table_of([row], SERIES), table_of([stay], PLACEMENT))
    return replace(trace, scenario=scenario, steps=round(hours * 12))


def test_public_traces_have_their_published_suites() -> None:
    suites = usual_suites(trace_of(720, "bitbrains_rnd"))
    assert [suite.name for suite in suites] == [
        "bitbrains-cpu-24h", "bitbrains-mem-24h", "bitbrains-cpu-3h",
    ]  # fmt: skip
    assert usual_suites(trace_of(240, "google_jobs", "static")) == []
    without_memory = replace(trace_of(240, "google_jobs"), limits=np.array([[1000.0, 0.0]]))
    assert [suite.name for suite in usual_suites(without_memory)] == ["google-cpu-24h"]
    assert {suite.source for suite in PUBLIC} == {"bitbrains", "google", "planetlab"}


@pytest.mark.parametrize(
    ("hours", "horizons", "burn_in", "stride"),
    [
        (720, [24, 3], 168, 12),
        (504, [24, 3], 168, 12),
        (240, [24], 72, 6),
        (120, [6], 24, 3),
        (48, [6], 24, 3),
        (24, [3], 6, 3),
        (8, [1], 2, 3),
    ],
)
def test_other_traces_have_suites_by_their_length(
    hours: float, horizons: list[float], burn_in: float, stride: int
) -> None:
    trace = trace_of(hours)
    suites = usual_suites(trace)
    assert [(suite.resource, suite.horizon_hours) for suite in suites] == [
        (resource, horizon) for resource in ("cpu", "memory") for horizon in horizons
    ]
    assert {(suite.burn_in_hours, suite.stride_steps) for suite in suites} == {(burn_in, stride)}
    assert suites[0].name == f"april-std-cpu-{horizons[0]}h"
    assert all(len(suite.at(trace)) for suite in suites)


def test_options_select_suites() -> None:
    trace = trace_of(720)
    assert selected_suites(trace, Selection(scenarios=["dense"])) == []
    memory = selected_suites(trace, Selection(resources=["memory"], horizon_hours=[12.0]))
    assert [(s.name, s.burn_in_hours, s.stride_steps) for s in memory] == [
        ("april-std-mem-12h", 168.0, 12)
    ]
    own = selected_suites(trace, Selection(burn_in_hours=48.0, stride_seconds=900.0))
    assert {(s.horizon_hours, s.burn_in_hours, s.stride_steps) for s in own} == {
        (24.0, 48.0, 3), (3.0, 48.0, 3),
    }  # fmt: skip


def test_a_horizon_shorter_than_a_step_is_refused() -> None:
    """A step would be judged under the name of the shorter horizon."""
    with pytest.raises(UsageError, match="shorter than a step of april"):
        selected_suites(trace_of(8, "april"), Selection(horizon_hours=[299 / 3600]))
    (suite,) = selected_suites(
        trace_of(8, "april"), Selection(horizon_hours=[300 / 3600], resources=["cpu"])
    )
    assert suite.horizon_steps(trace_of(8, "april")) == 1


def test_scored_steps_leave_room_for_the_horizon() -> None:
    suite = Suite(name="s", dataset="april", horizon_hours=1, burn_in_hours=0.5, stride_steps=5)
    assert suite.at(trace_of(3)).tolist() == [6, 11, 16, 21]


def test_two_suites_of_one_name() -> None:
    with pytest.raises(UsageError, match="two suites are called"):
        check_suites([PUBLIC[0], PUBLIC[0]])
