"""The choice of a setting: which, judged by what, and when there is none."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from pipeline.processors.backtest.calibration import Calibration, calibrate, is_scorable
from pipeline.processors.backtest.judge import SuitePredictions
from pipeline.processors.backtest.setting_grid import Setting, grid, present_setting
from pipeline.processors.backtest.suites import Suite
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.trace_tables import read_traces
from pipeline.processors.calibrated.limits import HIGHEST_RISK, LOWEST_RISK
from pipeline.processors.model.model_config import ModelConfig
from pipeline.topics.nodes import Strategy
from tests.processors.backtest.trace_files import (
    PLACEMENT,
    SERIES,
    series_row,
    stay_row,
    table_of,
)

NODES, DAYS = 8, 41
STEPS = DAYS * 24


def trace_of(days: int = DAYS) -> Trace:
    """Nodes with a pod each, in steps of an hour; the usage does not matter here."""
    steps = days * 24
    metadata = {"step_s": "3600", "t0_unix": "1700000100", "steps": str(steps)}
    series = [series_row(f"s{n}", [1] * steps) for n in range(NODES)]
    stays = [stay_row(f"p{n}", f"s{n}", 0, steps, node=f"n{n}") for n in range(NODES)]
    tables = table_of(series, SERIES, metadata), table_of(stays, PLACEMENT, metadata)
    (trace,) = read_traces("made", *tables)
    return trace


def suite_of(resource: Literal["cpu", "memory"] = "cpu") -> Suite:
    return Suite(
        name=resource, dataset="made", resource=resource, burn_in_hours=24, stride_steps=1
    )  # fmt: skip


def setting_of(margin: float, quantile: float = 0.9) -> Setting:
    return Setting(
        predictor="percentile", safety_margin_percent=margin, nsigma_multiplier=3.0,
        quantiles=(quantile, quantile), half_life_seconds=(43_200.0, 43_200.0),
    )  # fmt: skip


def predicted(
    trace: Trace, peaks: Mapping[Setting, float], suite: Suite, rates: tuple[float, float]
) -> SuitePredictions:
    """Requests of 10 and an oracle of 5, but of 9 at a share of the points of both halves."""
    at = suite.at(trace)
    later = at >= (24 + trace.steps) // 2
    oracle = np.full((NODES, len(at)), 5.0)
    for half, rate in zip((~later, later), rates, strict=True):
        columns = np.flatnonzero(half)
        oracle[:, columns[: round(rate * len(columns))]] = 9.0
    requests = np.full(oracle.shape, 10.0)
    predictions = [np.full(oracle.shape, peak) for peak in peaks.values()]
    return SuitePredictions(suite, at, requests, oracle, 0.5, predictions)


BOLD, CAREFUL, IDLE = setting_of(0), setting_of(20), setting_of(40)
PEAKS = {IDLE: 10.0, BOLD: 6.0, CAREFUL: 9.0}


def chosen(target: float, rates: tuple[float, float], days: int = DAYS) -> Calibration:
    trace = trace_of(days)
    return calibrate(trace, [predicted(trace, PEAKS, suite_of(), rates)], [*PEAKS], target)


def test_setting_that_saves_most_at_the_rate() -> None:
    result = chosen(0.1, (0.05, 0.08))
    assert (result.setting, result.outcome) == (BOLD, "reached")
    (cpu,) = result.results
    assert cpu.chosen_on.violation == pytest.approx(0.05, abs=0.003)
    assert cpu.judged_on.violation == pytest.approx(0.08, abs=0.003)
    assert cpu.judged_on.savings == pytest.approx(0.4)
    assert cpu.confidence.low <= cpu.judged_on.violation <= cpu.confidence.high
    assert (cpu.present.violation, cpu.present.savings) == (0.0, 0.0)
    assert chosen(0.1, (0.15, 0.0)).setting == CAREFUL


def test_later_half_does_not_choose() -> None:
    for rate in (0.0, 0.5, 1.0):
        result = chosen(0.1, (0.05, rate))
        assert (result.setting, result.outcome) == (BOLD, "reached" if rate < 0.1 else "missed")


def test_closest_setting_if_none_reaches_the_rate() -> None:
    trace, suite = trace_of(), suite_of()
    peaks = {setting_of(0): 4.0, setting_of(20): 6.0}
    given = predicted(trace, peaks, suite, (0.3, 0.0))
    result = calibrate(trace, [given], [*peaks], 0.1)
    assert (result.setting, result.outcome) == (setting_of(20), "unreached")


def test_history_that_is_too_short() -> None:
    assert chosen(0.1, (0.0, 0.0)).outcome == "reached"
    result = chosen(0.001, (0.0, 0.0))
    assert result.outcome == "too short"
    assert result.needed_seconds is not None
    # So long a history is long enough, and a little less is not.
    needed = int(chosen(0.02, (0.0, 0.0), days=20).needed_seconds or 0) // 86_400
    assert chosen(0.02, (0.0, 0.0), days=needed).outcome == "reached"
    assert chosen(0.02, (0.0, 0.0), days=needed - 3).outcome == "too short"
    assert not is_scorable(trace_of(2), suite_of())


def test_resources_share_predictor_and_margin() -> None:
    trace = trace_of()
    cpu, memory = suite_of("cpu"), suite_of("memory")
    low, high = setting_of(10, 0.9), setting_of(10, 0.99)
    bold = setting_of(0)
    # Without margin cpu alone would save more, but memory would violate.
    halves = [
        predicted(trace, {bold: 6.0, low: 7.0, high: 8.0}, cpu, (0.5, 0.5)),
        predicted(trace, {bold: 4.0, low: 4.0, high: 9.0}, memory, (0.0, 0.0)),
    ]
    halves[0].oracle[:] = 5.0
    result = calibrate(trace, halves, [bold, low, high], 0.05)
    assert result.outcome == "reached"
    assert result.setting is not None
    assert result.setting.quantiles == (0.9, 0.99)
    assert result.setting.safety_margin_percent == 10.0
    assert [each.alone for each in result.results] == [bold, high]


def test_resource_without_a_result_keeps_its_present_values() -> None:
    trace, suite = trace_of(), suite_of()
    peaks = {setting_of(0, 0.95): 10.0, setting_of(0, 0.9): 6.0}
    given = predicted(trace, peaks, suite, (0.0, 0.0))
    result = calibrate(trace, [given], [*peaks], 0.1)
    assert result.setting is not None
    assert result.setting.quantiles == (0.9, 0.95)


def calibrated(risk: float) -> Setting:
    options = {"calibrated": {"risk": risk}}
    strategy = Strategy(predictor="calibrated")
    return present_setting(ModelConfig(options=options, strategy=strategy), "calibrated")


def test_of_a_declared_risk_shares_of_the_searched_rate_are_tried() -> None:
    present = calibrated(0.05)
    risks = [setting.risk for setting in grid(present, 0.04)]
    assert risks == [0.05, 0.01, 0.02, 0.03, 0.04, 0.06]
    assert all(replace(setting, risk=0.05) == present for setting in grid(present, 0.04))
    # The present one is tried once, and none beyond what may be declared.
    assert [setting.risk for setting in grid(present, 0.05)].count(0.05) == 1
    assert [setting.risk for setting in grid(present, 0.0001)] == [0.05, LOWEST_RISK]
    assert max(setting.risk or 0.0 for setting in grid(present, 0.5)) == HIGHEST_RISK


def test_a_risk_without_one_declared_is_none() -> None:
    present = present_setting(ModelConfig(), "percentile")
    assert {setting.risk for setting in grid(present, 0.02)} == {None}
    assert present.options.keys() == {"cpu", "memory"}
    assert calibrated(0.05).options == {"risk": 0.05}


def test_resources_share_the_declared_risk() -> None:
    trace = trace_of()
    bold, careful = calibrated(0.1), calibrated(0.01)
    halves = [
        predicted(trace, {bold: 6.0, careful: 7.0}, suite_of("cpu"), (0.0, 0.0)),
        predicted(trace, {bold: 6.0, careful: 9.0}, suite_of("memory"), (0.5, 0.5)),
    ]
    result = calibrate(trace, halves, [bold, careful], 0.05)
    assert result.setting == careful
    assert [each.alone for each in result.results] == [bold, careful]


def test_points_of_unknown_outcome_do_not_count() -> None:
    trace, suite = trace_of(), suite_of()
    given = predicted(trace, PEAKS, suite, (0.05, 0.05))
    given.oracle[:] = np.nan
    result = calibrate(trace, [given], [*PEAKS], 0.1)
    assert (result.outcome, result.setting, result.results) == ("too short", None, ())
