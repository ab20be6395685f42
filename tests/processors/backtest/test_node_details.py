"""Which nodes a report shows, and what explains its worst violations."""

import numpy as np
import pytest

from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.node_details import (
    WORST_VIOLATIONS,
    Details,
    Judged,
    RisenPod,
    details,
)
from pipeline.processors.backtest.protocol import outcomes, score, scored_steps
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.trace_tables import read_traces
from tests.processors.backtest.trace_files import (
    METADATA,
    PLACEMENT,
    SERIES,
    Row,
    series_row,
    stay_row,
    table_of,
)

STEPS, HORIZON = 40, 6


def trace_of(series: list[Row], stays: list[Row]) -> Trace:
    metadata = METADATA | {"steps": str(STEPS)}
    tables = table_of(series, SERIES, metadata), table_of(stays, PLACEMENT, metadata)
    (trace,) = read_traces("made", *tables)
    return trace


def details_of(trace: Trace, predicted: FloatArray) -> Details:
    """Details of predictions that are the same at each step, (k,) or (k, q)."""
    at = scored_steps(STEPS, HORIZON, 10, 1)
    happened = outcomes(trace, at, HORIZON)
    requests, oracle = happened.requests[..., 0], happened.oracle[..., 0]
    predictions = np.broadcast_to(predicted.reshape(len(trace.nodes), -1), oracle.shape)
    return details(
        Judged(
            trace=trace, resource=0, horizon_steps=HORIZON, at=at, predictions=predictions,
            requests=requests, oracle=oracle, tolerance=1.0,
            machines=score(predictions, requests, oracle, 1.0),
        )
    )  # fmt: skip


@pytest.fixture
def risen() -> Details:
    """One node: `a` rises at step 20 from 100 to 400, `b` stays at 100, `new` comes at 17."""
    rises = [100] * 20 + [400] * 20
    trace = trace_of(
        [
            series_row("a", rises), series_row("b", [100] * STEPS),
            series_row("c", [50] * 23, start=17),
        ],
        [
            stay_row("a", "a", 0, STEPS), stay_row("b", "b", 0, STEPS),
            stay_row("new", "c", 17, STEPS),
        ],
    )  # fmt: skip
    return details_of(trace, np.array([300.0]))


def test_a_violation_names_the_pods_that_rose_and_the_new_ones(risen: Details) -> None:
    violation = risen.violations[0]
    assert (violation.node, violation.pods) == ("node-0", 3)
    assert (violation.predicted, violation.real_peak, violation.requests) == (300.0, 550.0, 1500.0)
    assert (violation.step, violation.peak_step) == (17, 20)
    assert violation.risen == (RisenPod(pod="a", usage=400.0, past_peak=100.0),)
    assert violation.bursts == ()
    assert (violation.risen_count, violation.risen_by) == (1, 300.0)
    assert (violation.new_pods, violation.new_usage, violation.unknown) == (1, 50.0, 0.0)


def test_violations_of_a_node_are_more_than_a_horizon_apart(risen: Details) -> None:
    steps = sorted(violation.step for violation in risen.violations)
    assert 2 <= len(steps) <= WORST_VIOLATIONS
    assert (np.diff(steps) > HORIZON).all()
    missing = [violation.real_peak - violation.predicted for violation in risen.violations]
    assert missing == sorted(missing, reverse=True)


def test_pods_that_only_peak_together_did_not_rise() -> None:
    up, down = [200 if step % 4 == 0 else 20 for step in range(STEPS)], [20] * STEPS
    for step in (3, 9, 24):
        down[step] = 200
    trace = trace_of(
        [series_row("a", up), series_row("b", down)],
        [stay_row("a", "a", 0, STEPS), stay_row("b", "b", 0, STEPS)],
    )
    violation = details_of(trace, np.array([300.0])).violations[0]
    assert (violation.peak_step, violation.real_peak) == (24, 400.0)
    assert (violation.risen, violation.risen_by, violation.new_pods) == ((), 0.0, 0)
    # `b` peaks more rarely: its mean is lower.
    assert [burst.pod for burst in violation.bursts] == ["b", "a"]
    assert [burst.usage for burst in violation.bursts] == [200.0, 200.0]
    past = down[: violation.step + 1]
    assert violation.bursts[0].past_mean == pytest.approx(np.mean(past))


def test_the_series_of_a_node_is_what_ran_and_what_was_scored(risen: Details) -> None:
    (worst,) = risen.nodes
    series = worst.series
    assert (worst.role, series.node, series.first_step) == ("worst", "node-0", 0)
    assert series.usage[[0, 18, 20]].tolist() == [200.0, 250.0, 550.0]
    assert series.requests[[0, 18]].tolist() == [1000.0, 1500.0]
    assert series.predicted.tolist() == [300.0] * len(series.at)
    assert worst.violation == series.is_missed.mean() > 0.0
    around = risen.violations[0].series
    assert around.first_step == 17 - 2 * HORIZON
    assert len(around.usage) == 3 * HORIZON + 1
    assert (around.at - around.first_step < len(around.usage)).all()


def test_worst_median_and_best_node() -> None:
    usage = {"n1": 300, "n2": 100, "n3": 200, "n4": 200, "n5": 100}
    trace = trace_of(
        [series_row(name, [value] * STEPS) for name, value in usage.items()],
        [stay_row(f"pod-{name}", name, 0, STEPS, node=name) for name in usage],
    )
    predicted = np.array([100.0, 400.0, 150.0, 300.0, 150.0])[:, None].repeat(24, axis=1)
    predicted[2, ::2] = 250.0  # every other prediction of n3 holds
    shown = details_of(trace, predicted).nodes
    assert [(node.role, node.series.node) for node in shown] == [
        ("worst", "n1"), ("median", "n2"), ("best", "n5"),
    ]  # fmt: skip
    assert [node.violation for node in shown] == [1.0, 0.0, 0.0]


def test_a_node_without_pods_is_not_shown_and_unknown_predictions_are_the_requests() -> None:
    trace = trace_of(
        [series_row("a", [400] * STEPS), series_row("b", [400] * 2)],
        [stay_row("a", "a", 0, STEPS), stay_row("b", "b", 0, 2, node="idle")],
    )
    result = details_of(trace, np.array([np.nan, np.nan]))
    assert [node.series.node for node in result.nodes] == ["node-0"]
    assert result.nodes[0].series.predicted.tolist() == [500.0] * 24
    assert result.violations == ()


def test_a_pod_that_returned_has_its_past() -> None:
    usage = [100] * 10 + [300] + [100] * 9 + [400] * 20
    trace = trace_of(
        [series_row("a", usage), series_row("b", [100] * STEPS)],
        [stay_row("a", "a", 0, 15), stay_row("a", "a", 16, STEPS), stay_row("b", "b", 0, STEPS)],
    )
    violation = details_of(trace, np.array([300.0])).violations[0]
    assert (violation.step, violation.peak_step) == (14, 20)
    assert violation.risen == (RisenPod(pod="a", usage=400.0, past_peak=300.0),)
    assert (violation.pods, violation.new_pods) == (2, 0)


def test_unknown_usage_before_a_violation_is_counted() -> None:
    usage = [100] * 2 + [None] * 13 + [100] * 7 + [400] * 18
    trace = trace_of([series_row("a", usage)], [stay_row("a", "a", 0, STEPS)])
    violation = details_of(trace, np.array([200.0])).violations[0]
    # A value holds for an hour, so that one sample of the gap is unknown.
    assert (violation.step, violation.unknown) == (16, 1 / HORIZON)


def test_bursts_are_named_beside_rises_that_explain_little() -> None:
    burst = [400 if step in (5, 20) else 20 for step in range(STEPS)]
    rise = [20] * 20 + [40] * 20
    trace = trace_of(
        [series_row("a", burst), series_row("b", rise), series_row("c", [20] * STEPS)],
        [stay_row(name, name, 0, STEPS) for name in "abc"],
    )
    violation = details_of(trace, np.array([100.0])).violations[0]
    assert violation.risen == (RisenPod(pod="b", usage=40.0, past_peak=20.0),)
    assert [(burst.pod, burst.usage) for burst in violation.bursts] == [("a", 400.0)]
